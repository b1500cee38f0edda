//! The requirements of a task on a worker, and the reasons why a worker is refused.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::executor::ExecutorClass;
use crate::gpu_ids::GpuIds;
use crate::name::Name;
use crate::preference::{DeadlinePolicy, Maximise};
use crate::priority::Priority;
use crate::resource::{Capacity, WHOLE_GPU};
use crate::time::Span;
use crate::worker::Worker;

/// What a task requires. The default requires only an inference executor. Serialised, it holds only what differs from
/// that.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct Requirement {
    /// The model that the worker must serve, if one is named.
    #[serde(skip_serializing_if = "is_default")]
    pub model: Option<Name>,
    /// The class of executor.
    #[serde(skip_serializing_if = "is_default")]
    pub class: ExecutorClass,
    /// The executor by name, if one is named.
    #[serde(skip_serializing_if = "is_default")]
    pub executor: Option<Name>,
    /// Processor time, in thousandths of a core.
    #[serde(skip_serializing_if = "is_default")]
    pub cpu_milli: u64,
    /// Main memory.
    #[serde(skip_serializing_if = "is_default")]
    pub memory_bytes: u64,
    /// Disk.
    #[serde(skip_serializing_if = "is_default")]
    pub storage_bytes: u64,
    /// How many GPUs; `gpu_required` requires at least one.
    #[serde(skip_serializing_if = "is_default")]
    pub min_gpus: u32,
    /// Memory on each of those GPUs.
    #[serde(skip_serializing_if = "is_default")]
    pub gpu_memory_bytes: u64,
    /// The share taken of each of those GPUs, in thousandths.
    #[serde(skip_serializing_if = "is_whole")]
    pub milli_gpu: u32,
    /// Exactly these GPUs, if any are named; `min_gpus` is their number.
    #[serde(skip_serializing_if = "is_default")]
    pub gpu_ids: GpuIds,
    /// The client's estimate of the run time.
    #[serde(skip_serializing_if = "is_default")]
    pub estimated_time: Option<Span>,
    /// Higher goes first.
    #[serde(skip_serializing_if = "is_default")]
    pub priority: Priority,
    /// How long after submission the result is still wanted.
    #[serde(skip_serializing_if = "is_default")]
    pub deadline: Option<Span>,
    /// What happens to a submission whose deadline no worker can meet.
    #[serde(skip_serializing_if = "is_default")]
    pub deadline_policy: DeadlinePolicy,
    /// What counts when a worker is chosen; the scheduler's default if `None`.
    #[serde(skip_serializing_if = "is_default")]
    pub maximise: Option<Maximise>,
}

/// Why a worker cannot take a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Refusal {
    /// What is missing.
    pub kind: RefusalKind,
    /// How much is needed, in the unit of the kind; zero where there is no amount.
    pub needed: u64,
    /// How much there is, in the same unit.
    pub present: u64,
}

/// The reason why a worker is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalKind {
    /// Not leased, unhealthy, draining or gone.
    Unavailable,
    /// No executor of the class, or of the name.
    Executor,
    /// No such executor serves the model.
    Model,
    /// Too few milli-cores.
    Cpu,
    /// Too little memory (bytes).
    Memory,
    /// Too little disk (bytes).
    Storage,
    /// Too few GPUs.
    Gpus,
    /// Too few GPUs with the memory (counts GPUs).
    GpuMemory,
    /// Too few GPUs with the share left (counts GPUs).
    GpuShare,
    /// All of its slots are in use.
    Busy,
    /// The round trip is longer than allowed (microseconds).
    TooFar,
    /// An earlier attempt of the task failed there; others go first.
    TriedBefore,
    /// It cannot finish before the deadline (microseconds).
    TooSlow,
    /// The free amounts are reserved for a task that has waited longer.
    Reserved,
    /// Its owner's terms do not serve the scheduler's organisation.
    NotServed,
    /// Its owner's terms ask for a price, and nothing is bid.
    Price,
}

impl Default for Requirement {
    fn default() -> Requirement {
        Requirement {
            model: None,
            class: ExecutorClass::Inference,
            executor: None,
            cpu_milli: 0,
            memory_bytes: 0,
            storage_bytes: 0,
            min_gpus: 0,
            gpu_memory_bytes: 0,
            milli_gpu: WHOLE_GPU,
            gpu_ids: GpuIds::default(),
            estimated_time: None,
            priority: Priority::default(),
            deadline: None,
            deadline_policy: DeadlinePolicy::default(),
            maximise: None,
        }
    }
}

pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

fn is_whole(milli_gpu: &u32) -> bool {
    *milli_gpu == WHOLE_GPU
}

impl Requirement {
    /// The first executor of `worker` that would do, or the reason why none does.
    pub fn executor_of<'w>(&self, worker: &'w Worker) -> Result<&'w crate::Executor, Refusal> {
        let mut named = false;
        for executor in &worker.executors {
            if executor.class != self.class
                || self.executor.as_ref().is_some_and(|name| *name != executor.name)
            {
                continue;
            }
            named = true;
            if self.model.as_ref().is_none_or(|model| executor.serves(model)) {
                return Ok(executor);
            }
        }
        Err(Refusal::without_amount(if named { RefusalKind::Model } else { RefusalKind::Executor }))
    }

    /// Every executor of `worker` that would do, by its index in the list.
    pub fn executors_of(&self, worker: &Worker) -> impl Iterator<Item = usize> {
        let would_do = |executor: &crate::Executor| {
            executor.class == self.class
                && self.executor.as_ref().is_none_or(|name| *name == executor.name)
                && self.model.as_ref().is_none_or(|model| executor.serves(model))
        };
        let executors = worker.executors.iter().enumerate();
        executors.filter(move |(_, executor)| would_do(executor)).map(|(at, _)| at)
    }

    /// How many GPUs a worker must have.
    pub(crate) fn least_gpus(&self) -> u64 {
        u64::from(self.min_gpus.max(self.gpu_ids.least_gpus()))
    }

    /// The first reason why `capacity` would not do even when nothing else runs, if there is one.
    pub fn refused_by(&self, capacity: &Capacity) -> Option<Refusal> {
        self.refusals_by(capacity).next()
    }

    /// Every reason why `capacity` would not do even when nothing else runs.
    pub fn refusals_by(&self, capacity: &Capacity) -> impl Iterator<Item = Refusal> {
        let gpus = |enough: &dyn Fn(&crate::Device) -> bool| {
            let named = (0..).zip(&capacity.devices).filter(|(at, _)| self.gpu_ids.allow(*at));
            named.filter(|(_, device)| enough(device)).count() as u64
        };
        let (memory, share) = (self.gpu_memory_bytes, self.milli_gpu);
        let wanted = u64::from(self.min_gpus);
        let mut reasons = [None; 4];
        let mut require = |at: usize, kind, needed: u64, present: u64| {
            reasons[at] = (needed > present).then_some(Refusal { kind, needed, present });
        };
        require(0, RefusalKind::Cpu, self.cpu_milli, capacity.cpu_milli);
        require(1, RefusalKind::Memory, self.memory_bytes, capacity.memory_bytes);
        require(2, RefusalKind::Storage, self.storage_bytes, capacity.storage_bytes);
        if wanted > 0 {
            // One reason for the GPUs: the first that the machine lacks, and not its consequences.
            let (all, least) = (capacity.devices.len() as u64, self.least_gpus());
            let with_memory = gpus(&|d| d.memory_bytes >= memory);
            let with_both = gpus(&|d| d.memory_bytes >= memory && d.milli_gpu >= share);
            let (kind, wanted, present) = if all < least {
                (RefusalKind::Gpus, least, all)
            } else if with_memory < wanted {
                (RefusalKind::GpuMemory, wanted, with_memory)
            } else {
                (RefusalKind::GpuShare, wanted, with_both)
            };
            require(3, kind, wanted, present);
        }
        reasons.into_iter().flatten()
    }

    /// Whether `worker` could run this when nothing else runs on it.
    pub fn satisfied_by(&self, worker: &Worker) -> Result<(), Refusal> {
        self.executor_of(worker)?;
        self.refused_by(&worker.capacity).map_or(Ok(()), Err)
    }
}

impl Refusal {
    /// A refusal without an amount.
    pub const fn without_amount(kind: RefusalKind) -> Refusal {
        Refusal { kind, needed: 0, present: 0 }
    }
}

impl RefusalKind {
    /// All kinds, in order; counts by reason are arrays over these.
    pub const ALL: [RefusalKind; 16] = [
        RefusalKind::Unavailable,
        RefusalKind::Executor,
        RefusalKind::Model,
        RefusalKind::Cpu,
        RefusalKind::Memory,
        RefusalKind::Storage,
        RefusalKind::Gpus,
        RefusalKind::GpuMemory,
        RefusalKind::GpuShare,
        RefusalKind::Busy,
        RefusalKind::TooFar,
        RefusalKind::TriedBefore,
        RefusalKind::TooSlow,
        RefusalKind::Reserved,
        RefusalKind::NotServed,
        RefusalKind::Price,
    ];
}

impl fmt::Display for RefusalKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RefusalKind::Unavailable => "unavailable",
            RefusalKind::Executor => "no such executor",
            RefusalKind::Model => "model not served",
            RefusalKind::Cpu => "too few cores",
            RefusalKind::Memory => "too little memory",
            RefusalKind::Storage => "too little disk",
            RefusalKind::Gpus => "too few GPUs",
            RefusalKind::GpuMemory => "too few GPUs with that much memory",
            RefusalKind::GpuShare => "too few GPUs with that share free",
            RefusalKind::Busy => "busy",
            RefusalKind::TooFar => "round trip too long",
            RefusalKind::TriedBefore => "an earlier attempt failed there",
            RefusalKind::TooSlow => "cannot finish in time",
            RefusalKind::Reserved => "reserved for a task that has waited longer",
            RefusalKind::NotServed => "serves other organisations only",
            RefusalKind::Price => "asks for a price",
        })
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.needed {
            0 => write!(f, "{}", self.kind),
            needed => write!(f, "{} (needs {needed}, has {})", self.kind, self.present),
        }
    }
}

#[cfg(test)]
mod tests;
