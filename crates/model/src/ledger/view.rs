//! What can be asked of a ledger without changing it, and the proof that it adds up.

use serde::Serialize;

use super::{Ledger, Slot};
use crate::resource::WHOLE_GPU;

/// What is free now, in the amounts that an index over workers needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Free {
    /// Processor time, in thousandths of a core.
    pub cpu_milli: u64,
    /// Main memory.
    pub memory_bytes: u64,
    /// Disk.
    pub storage_bytes: u64,
    /// GPUs of which a whole is free.
    pub whole_gpus: u32,
    /// The most memory that one GPU has free.
    pub greatest_gpu_memory_bytes: u64,
    /// The largest share that one GPU has free, in thousandths; not always the same GPU.
    pub greatest_milli_gpu: u32,
    /// Shares of all GPUs together, in thousandths.
    pub milli_gpu: u64,
    /// Memory of all GPUs together.
    pub gpu_memory_bytes: u128,
}

/// How much of each resource is booked, from 0 to 1; 0 of what the worker does not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Utilisation {
    /// Processor time.
    pub cpu: f64,
    /// Main memory.
    pub memory: f64,
    /// Disk.
    pub storage: f64,
    /// Shares of GPUs.
    pub gpu: f64,
    /// Memory of GPUs.
    pub gpu_memory: f64,
}

/// What an operator is shown of a worker's resources.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Statistics {
    /// Bookings.
    pub booked: usize,
    /// GPUs.
    pub total_gpus: u32,
    /// GPUs of which no share is booked.
    pub available_gpus: u32,
    /// Memory of all GPUs.
    pub gpu_memory_total_bytes: u128,
    /// Memory that is free, over all GPUs.
    pub gpu_memory_available_bytes: u128,
    /// How much is booked.
    pub utilisation: Utilisation,
}

impl<K: Ord + Copy> Ledger<K> {
    /// What is free now.
    pub fn free(&self) -> Free {
        let mut free = Free {
            cpu_milli: self.free.cpu_milli,
            memory_bytes: self.free.memory_bytes,
            storage_bytes: self.free.storage_bytes,
            milli_gpu: self.free.milli_gpu,
            gpu_memory_bytes: self.free.gpu_memory_bytes,
            ..Free::default()
        };
        for slot in &self.slots {
            free.whole_gpus += u32::from(slot.free_milli_gpu >= WHOLE_GPU);
            free.greatest_gpu_memory_bytes =
                free.greatest_gpu_memory_bytes.max(slot.free_memory_bytes);
            free.greatest_milli_gpu = free.greatest_milli_gpu.max(slot.free_milli_gpu);
        }
        free
    }

    /// How much of each resource is booked.
    pub fn utilisation(&self) -> Utilisation {
        let (free, total) = (&self.free, &self.total);
        let used = |free, total| part(free, total).map_or(0.0, |free| 1.0 - free);
        Utilisation {
            cpu: used(free.cpu_milli.into(), total.cpu_milli.into()),
            memory: used(free.memory_bytes.into(), total.memory_bytes.into()),
            storage: used(free.storage_bytes.into(), total.storage_bytes.into()),
            gpu: used(free.milli_gpu.into(), total.milli_gpu.into()),
            gpu_memory: used(free.gpu_memory_bytes, total.gpu_memory_bytes),
        }
    }

    /// What an operator is shown.
    pub fn statistics(&self) -> Statistics {
        let available = self.slots.iter().filter(|slot| slot.free_milli_gpu == slot.milli_gpu);
        Statistics {
            booked: self.booked(),
            total_gpus: self.slots.len() as u32,
            available_gpus: available.count() as u32,
            gpu_memory_total_bytes: self.total.gpu_memory_bytes,
            gpu_memory_available_bytes: self.free.gpu_memory_bytes,
            utilisation: self.utilisation(),
        }
    }

    /// Books everything again onto an empty worker, without trusting any running sum, and compares. For the
    /// simulator and for tests.
    pub fn check(&self) -> Result<(), String> {
        let mut sums = self.total;
        let empty = |slot: &Slot| Slot {
            free_memory_bytes: slot.memory_bytes,
            free_milli_gpu: slot.milli_gpu,
            ..*slot
        };
        let mut slots: Vec<Slot> = self.slots.iter().map(empty).collect();
        for (nth, booking) in self.bookings.values().enumerate() {
            let over = |what: &str| format!("booking {nth} takes more {what} than there is");
            take(&mut sums.cpu_milli, booking.cpu_milli).ok_or_else(|| over("cpu"))?;
            take(&mut sums.memory_bytes, booking.memory_bytes).ok_or_else(|| over("memory"))?;
            take(&mut sums.storage_bytes, booking.storage_bytes).ok_or_else(|| over("storage"))?;
            if !booking.devices.is_sorted_by(|a, b| a < b) {
                return Err(format!("booking {nth} has a GPU twice: {:?}", booking.devices));
            }
            for at in &booking.devices {
                let slot = slots.get_mut(*at as usize).ok_or_else(|| over("GPUs"))?;
                let memory = slot.free_memory_bytes.checked_sub(booking.gpu_memory_bytes);
                slot.free_memory_bytes = memory.ok_or_else(|| over("memory of a GPU"))?;
                let share = slot.free_milli_gpu.checked_sub(booking.milli_gpu);
                slot.free_milli_gpu = share.ok_or_else(|| over("share of a GPU"))?;
            }
        }
        sums.milli_gpu = slots.iter().map(|slot| u64::from(slot.free_milli_gpu)).sum();
        sums.gpu_memory_bytes = slots.iter().map(|slot| u128::from(slot.free_memory_bytes)).sum();
        same("sums", &self.free, &sums)?;
        same("GPUs", &*self.slots, slots.as_slice())
    }
}

/// `free` of `total`, or none where there is nothing to have a part of.
fn part(free: impl Into<u128>, total: impl Into<u128>) -> Option<f64> {
    let total = total.into();
    (total > 0).then(|| free.into() as f64 / total as f64)
}

fn take(free: &mut u64, amount: u64) -> Option<()> {
    *free = free.checked_sub(amount)?;
    Some(())
}

fn same<T: PartialEq + std::fmt::Debug + ?Sized>(
    what: &str,
    kept: &T,
    counted: &T,
) -> Result<(), String> {
    if kept == counted {
        return Ok(());
    }
    Err(format!("{what} do not add up: kept {kept:?}, bookings leave {counted:?}"))
}
