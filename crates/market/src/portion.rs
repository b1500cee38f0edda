//! A portion of a worker, in integers.

use hypha_model::{Capacity, Device, Refusal, RefusalKind, Requirement, Worker};
use serde::{Deserialize, Serialize};

/// Amounts of a worker's resources. Devices and executors are in the worker's own order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Portion {
    /// Processor time, in thousandths of a core.
    pub cpu_milli: u64,
    /// Main memory.
    pub memory_bytes: u64,
    /// Disk.
    pub storage_bytes: u64,
    /// The part of each GPU.
    pub devices: Vec<DevicePart>,
    /// How many tasks each executor may run at once.
    pub slots: Vec<u32>,
}

/// A part of one GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DevicePart {
    /// Its memory.
    pub memory_bytes: u64,
    /// A share of it, in thousandths.
    pub milli_gpu: u32,
}

impl Portion {
    /// All of a worker.
    pub fn whole(worker: &Worker) -> Portion {
        let capacity = &worker.capacity;
        let device = |device: &Device| DevicePart {
            memory_bytes: device.memory_bytes,
            milli_gpu: device.milli_gpu,
        };
        Portion {
            cpu_milli: capacity.cpu_milli,
            memory_bytes: capacity.memory_bytes,
            storage_bytes: capacity.storage_bytes,
            devices: capacity.devices.iter().map(device).collect(),
            slots: worker.executors.iter().map(|executor| executor.concurrency.max(1)).collect(),
        }
    }

    /// Nothing of a worker.
    pub fn empty(worker: &Worker) -> Portion {
        Portion {
            devices: vec![DevicePart::default(); worker.capacity.devices.len()],
            slots: vec![0; worker.executors.len()],
            ..Portion::default()
        }
    }

    /// The portion, limited to what the worker has. A peer may claim anything.
    pub fn clamped_to(&self, worker: &Worker) -> Portion {
        self.min(&Portion::whole(worker))
    }

    /// The capacity of `worker` if this were all that it has.
    pub fn capacity(&self, worker: &Worker) -> Capacity {
        let devices = worker.capacity.devices.iter().enumerate().map(|(at, device)| {
            let DevicePart { memory_bytes, milli_gpu } =
                self.devices.get(at).copied().unwrap_or_default();
            Device { model: device.model.clone(), memory_bytes, milli_gpu }
        });
        Capacity {
            cpu_milli: self.cpu_milli,
            memory_bytes: self.memory_bytes,
            storage_bytes: self.storage_bytes,
            devices: devices.collect(),
        }
    }

    /// Why `requirement` could not run within this portion even if nothing else ran; `None` if it could.
    pub fn refusal_for(&self, worker: &Worker, requirement: &Requirement) -> Option<Refusal> {
        let has_slot = |at: usize| self.slots.get(at).is_some_and(|slots| *slots > 0);
        requirement.refused_by(&self.capacity(worker)).or_else(|| {
            let none = !requirement.executors_of(worker).any(has_slot);
            none.then(|| Refusal::without_amount(RefusalKind::Busy))
        })
    }

    /// The lesser of each amount.
    pub fn min(&self, other: &Portion) -> Portion {
        self.zip(other, u64::min)
    }

    /// The greater of each amount.
    pub fn max(&self, other: &Portion) -> Portion {
        self.zip(other, u64::max)
    }

    /// The sum of each amount.
    pub fn plus(&self, other: &Portion) -> Portion {
        self.zip(other, u64::saturating_add)
    }

    /// The difference of each amount; zero where `other` has more.
    pub fn minus(&self, other: &Portion) -> Portion {
        self.zip(other, u64::saturating_sub)
    }

    /// Whether no amount of `other` is greater.
    pub fn covers(&self, other: &Portion) -> bool {
        other.minus(self).is_empty()
    }

    /// Whether every amount is zero.
    pub fn is_empty(&self) -> bool {
        let device = |device: &DevicePart| *device == DevicePart::default();
        (self.cpu_milli, self.memory_bytes, self.storage_bytes) == (0, 0, 0)
            && self.devices.iter().all(device)
            && self.slots.iter().all(|slots| *slots == 0)
    }

    /// Applies `with` to each pair of amounts; an amount that is missing is zero.
    fn zip(&self, other: &Portion, with: impl Fn(u64, u64) -> u64) -> Portion {
        let narrow = |a: u32, b: u32| u32::try_from(with(a.into(), b.into())).unwrap_or(u32::MAX);
        let device = |at: usize| {
            let of = |portion: &Portion| portion.devices.get(at).copied().unwrap_or_default();
            let (a, b) = (of(self), of(other));
            DevicePart {
                memory_bytes: with(a.memory_bytes, b.memory_bytes),
                milli_gpu: narrow(a.milli_gpu, b.milli_gpu),
            }
        };
        let slots = |at: usize| {
            let of = |portion: &Portion| portion.slots.get(at).copied().unwrap_or_default();
            narrow(of(self), of(other))
        };
        Portion {
            cpu_milli: with(self.cpu_milli, other.cpu_milli),
            memory_bytes: with(self.memory_bytes, other.memory_bytes),
            storage_bytes: with(self.storage_bytes, other.storage_bytes),
            devices: (0..self.devices.len().max(other.devices.len())).map(device).collect(),
            slots: (0..self.slots.len().max(other.slots.len())).map(slots).collect(),
        }
    }
}
