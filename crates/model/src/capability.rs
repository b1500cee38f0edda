//! How a worker is found: the lists that it is entered in, and the lists that a query reads.
//!
//! A directory keeps lists, not indices, so a worker is entered in every [`Listing`] that fits it, and a query reads
//! the few that together hold every match, then filters with [`CapabilityQuery::satisfied_by`].

use std::fmt;

use crate::name::Name;
use crate::worker::Worker;

/// The required capabilities of a worker. The default requires nothing: every worker satisfies it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct CapabilityQuery {
    /// Models that it must serve, all of them.
    pub models: Vec<Name>,
    /// An executor that it must have, by name.
    pub executor: Option<Name>,
    /// Main memory.
    pub min_memory_bytes: u64,
    /// Whether it must have a GPU at all.
    pub gpu_required: bool,
    /// Memory on one of its GPUs; more than zero requires a GPU.
    pub min_gpu_memory_bytes: u64,
    /// Processor time, in thousandths of a core.
    pub cpu_milli: u64,
}

/// A list in which workers are entered.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Listing {
    /// Every worker.
    All,
    /// Serves this model by name.
    Model(Name),
    /// Has an executor that serves any model.
    AnyModel,
    /// Has an executor of this name.
    Executor(Name),
    /// Has a GPU with at least this many GiB of memory, one of [`GPU_STEPS_GIB`].
    Gpu(u32),
}

/// The steps in which GPUs are listed by memory, in GiB: the sizes that are sold, and one for "any".
///
/// A worker is listed under every step up to its largest GPU, so a query reads exactly one.
pub const GPU_STEPS_GIB: [u32; 10] = [0, 4, 8, 12, 16, 24, 32, 48, 80, 128];

impl CapabilityQuery {
    /// Whether `worker` matches: its stated capacity is enough when nothing else runs on it.
    pub fn satisfied_by(&self, worker: &Worker) -> bool {
        let serves = |model| worker.executors.iter().any(|executor| executor.serves(model));
        let gpu = largest_gpu(worker);
        self.models.iter().all(serves)
            && self
                .executor
                .as_ref()
                .is_none_or(|name| worker.executors.iter().any(|executor| executor.name == *name))
            && worker.capacity.memory_bytes >= self.min_memory_bytes
            && worker.capacity.cpu_milli >= self.cpu_milli
            && (gpu.is_some() || !self.requires_gpu())
            && gpu.unwrap_or(0) >= self.min_gpu_memory_bytes
    }

    /// The lists that together hold every match, the shortest expected: by executor, else by model, else by GPU, else
    /// all.
    pub fn listings(&self) -> Vec<Listing> {
        if let Some(executor) = &self.executor {
            vec![Listing::Executor(executor.clone())]
        } else if let Some(model) = self.models.first() {
            vec![Listing::Model(model.clone()), Listing::AnyModel]
        } else if self.requires_gpu() {
            let wanted = self.min_gpu_memory_bytes;
            let step = GPU_STEPS_GIB.into_iter().rev().find(|step| gib(*step) <= wanted);
            vec![Listing::Gpu(step.unwrap_or(0))]
        } else {
            vec![Listing::All]
        }
    }

    fn requires_gpu(&self) -> bool {
        self.gpu_required || self.min_gpu_memory_bytes > 0
    }
}

/// Every list that `worker` belongs in, each once.
pub fn listings_of(worker: &Worker) -> Vec<Listing> {
    let mut listings = vec![Listing::All];
    for executor in &worker.executors {
        listings.push(Listing::Executor(executor.name.clone()));
        listings.extend(executor.models.iter().cloned().map(Listing::Model));
        if executor.models.is_empty() {
            listings.push(Listing::AnyModel);
        }
    }
    if let Some(memory) = largest_gpu(worker) {
        listings.extend(GPU_STEPS_GIB.into_iter().filter(|s| gib(*s) <= memory).map(Listing::Gpu));
    }
    listings.sort();
    listings.dedup();
    listings
}

fn largest_gpu(worker: &Worker) -> Option<u64> {
    worker.capacity.devices.iter().map(|device| device.memory_bytes).max()
}

const fn gib(count: u32) -> u64 {
    (count as u64) << 30
}

impl fmt::Display for Listing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Listing::All => f.write_str("all"),
            Listing::Model(name) => write!(f, "model/{name}"),
            Listing::AnyModel => f.write_str("any-model"),
            Listing::Executor(name) => write!(f, "executor/{name}"),
            Listing::Gpu(step) => write!(f, "gpu/{step}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::{Capacity, Device, WHOLE_GPU};
    use crate::{Executor, ExecutorClass, Money, WorkerId};
    use proptest::prelude::*;

    fn name(text: &str) -> Name {
        text.parse().unwrap()
    }

    fn executor() -> impl Strategy<Value = Executor> {
        (0..3_u8, prop::collection::vec(0..4_u8, 0..3)).prop_map(|(id, models)| Executor {
            class: ExecutorClass::Inference,
            name: name(&format!("executor-{id}")),
            models: models.into_iter().map(|id| name(&format!("model-{id}"))).collect(),
            concurrency: 1,
        })
    }

    fn worker() -> impl Strategy<Value = Worker> {
        let executors = prop::collection::vec(executor(), 0..3);
        (executors, prop::collection::vec(0..100_u64, 0..3), 0..64_u64, 0..64_u64).prop_map(
            |(executors, gpus, memory, cores)| Worker {
                id: WorkerId::from_uuid(uuid::Uuid::nil()),
                capacity: Capacity {
                    cpu_milli: cores * 1_000,
                    memory_bytes: memory << 30,
                    storage_bytes: 0,
                    devices: gpus
                        .into_iter()
                        .map(|gib| Device {
                            model: name("gpu"),
                            memory_bytes: gib << 30,
                            milli_gpu: WHOLE_GPU,
                        })
                        .collect(),
                },
                executors,
                hardware: None,
                region: None,
                price: Money::default(),
            },
        )
    }

    fn query() -> impl Strategy<Value = CapabilityQuery> {
        (
            prop::collection::vec(0..4_u8, 0..3),
            prop::option::of(0..3_u8),
            (0..64_u64, any::<bool>(), 0..130_u64, 0..64_u64),
        )
            .prop_map(|(models, executor, (memory, gpu_required, gpu, cores))| {
                CapabilityQuery {
                    models: models.into_iter().map(|id| name(&format!("model-{id}"))).collect(),
                    executor: executor.map(|id| name(&format!("executor-{id}"))),
                    min_memory_bytes: memory << 30,
                    gpu_required,
                    min_gpu_memory_bytes: gpu << 30,
                    cpu_milli: cores * 1_000,
                }
            })
    }

    proptest! {
        /// A worker that satisfies a query is in one of the lists that the query reads.
        #[test]
        fn query_reads_a_list_of_every_match(worker in worker(), query in query()) {
            let read = query.listings();
            prop_assert!(read.len() <= 2);
            if query.satisfied_by(&worker) {
                let listed = listings_of(&worker);
                prop_assert!(read.iter().any(|one| listed.contains(one)), "{read:?} {listed:?}");
            }
        }
    }

    #[test]
    fn query_reads_the_narrowest_lists() {
        let gpu =
            |gib: u64| CapabilityQuery { min_gpu_memory_bytes: gib << 30, ..Default::default() };
        assert_eq!(gpu(23).listings(), [Listing::Gpu(16)]);
        assert_eq!(gpu(24).listings(), [Listing::Gpu(24)]);
        let any = CapabilityQuery { gpu_required: true, ..Default::default() };
        assert_eq!(any.listings(), [Listing::Gpu(0)]);
        assert_eq!(CapabilityQuery::default().listings(), [Listing::All]);
    }
}
