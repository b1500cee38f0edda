//! Read access to a ledger, and the check that it adds up.

use serde::Serialize;

use super::{DeviceEntry, Ledger, Sums};
use crate::resource::WHOLE_GPU;

/// The free amounts, in the form that an index over workers needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Free {
    /// Processor time, in thousandths of a core.
    pub cpu_milli: u64,
    /// Main memory.
    pub memory_bytes: u64,
    /// Disk.
    pub storage_bytes: u64,
    /// GPUs that are entirely free.
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

/// How much of each resource is booked, from 0 to 1; 0 for a resource that the worker does not have.
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

/// The offered and the booked amounts of each resource; those of GPUs over all of them. Where it was resized, more may
/// be booked than is offered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ResourceAmounts {
    /// What is offered.
    pub total: Amounts,
    /// What is booked.
    pub booked: Amounts,
}

/// An amount of each resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Amounts {
    /// Processor time, in thousandths of a core.
    pub cpu_milli: u64,
    /// Main memory.
    pub memory_bytes: u64,
    /// Disk.
    pub storage_bytes: u64,
    /// Shares of GPUs, in thousandths.
    pub milli_gpu: u64,
    /// Memory of GPUs.
    pub gpu_memory_bytes: u128,
}

/// Statistics of a worker's resources for an operator.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LedgerStatistics {
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

impl Sums {
    fn amounts(&self) -> Amounts {
        Amounts {
            cpu_milli: self.cpu_milli,
            memory_bytes: self.memory_bytes,
            storage_bytes: self.storage_bytes,
            milli_gpu: self.milli_gpu,
            gpu_memory_bytes: self.gpu_memory_bytes,
        }
    }
}

impl<K: Ord + Copy> Ledger<K> {
    /// What is free now.
    pub fn free(&self) -> Free {
        let (total, booked) = (&self.total, &self.booked);
        let mut free = Free {
            cpu_milli: total.cpu_milli.saturating_sub(booked.cpu_milli),
            memory_bytes: total.memory_bytes.saturating_sub(booked.memory_bytes),
            storage_bytes: total.storage_bytes.saturating_sub(booked.storage_bytes),
            ..Free::default()
        };
        for entry in &self.device_entries {
            let (memory_bytes, milli_gpu) = (entry.free_memory_bytes(), entry.free_milli_gpu());
            free.whole_gpus += u32::from(milli_gpu >= WHOLE_GPU);
            free.greatest_gpu_memory_bytes = free.greatest_gpu_memory_bytes.max(memory_bytes);
            free.greatest_milli_gpu = free.greatest_milli_gpu.max(milli_gpu);
            free.milli_gpu += u64::from(milli_gpu);
            free.gpu_memory_bytes += u128::from(memory_bytes);
        }
        free
    }

    /// How much of each resource is booked.
    pub fn utilisation(&self) -> Utilisation {
        let (booked, total) = (&self.booked, &self.total);
        Utilisation {
            cpu: part(booked.cpu_milli, total.cpu_milli),
            memory: part(booked.memory_bytes, total.memory_bytes),
            storage: part(booked.storage_bytes, total.storage_bytes),
            gpu: part(booked.milli_gpu, total.milli_gpu),
            gpu_memory: part(booked.gpu_memory_bytes, total.gpu_memory_bytes),
        }
    }

    /// The offered and the booked amounts.
    pub fn amounts(&self) -> ResourceAmounts {
        ResourceAmounts { total: self.total.amounts(), booked: self.booked.amounts() }
    }

    /// Statistics for an operator.
    pub fn statistics(&self) -> LedgerStatistics {
        let available = self.device_entries.iter().filter(|entry| entry.booked_milli_gpu == 0);
        LedgerStatistics {
            booked: self.booking_count(),
            total_gpus: self.device_entries.len() as u32,
            available_gpus: available.count() as u32,
            gpu_memory_total_bytes: self.total.gpu_memory_bytes,
            gpu_memory_available_bytes: self.free().gpu_memory_bytes,
            utilisation: self.utilisation(),
        }
    }

    /// The booked amounts, as a capacity; the GPUs in order, as memory and share.
    pub fn in_use(&self) -> (u64, u64, u64, impl Iterator<Item = (u64, u32)>) {
        let booked = &self.booked;
        let devices = self
            .device_entries
            .iter()
            .map(|entry| (entry.booked_memory_bytes, entry.booked_milli_gpu));
        (booked.cpu_milli, booked.memory_bytes, booked.storage_bytes, devices)
    }

    /// Whether more is booked than there is: it was resized since.
    pub fn is_overbooked(&self) -> bool {
        let (booked, total) = (&self.booked, &self.total);
        let over = |entry: &DeviceEntry| {
            entry.booked_memory_bytes > entry.memory_bytes
                || entry.booked_milli_gpu > entry.milli_gpu
        };
        booked.cpu_milli > total.cpu_milli
            || booked.memory_bytes > total.memory_bytes
            || booked.storage_bytes > total.storage_bytes
            || self.device_entries.iter().any(over)
    }

    /// Adds every booking up, without trusting any running sum, and compares. For the simulator and for tests. It does
    /// not check whether more is booked than there is; [`Ledger::is_overbooked`] does.
    pub fn check(&self) -> Result<(), String> {
        let mut sums = Sums::default();
        let empty = |entry: &DeviceEntry| DeviceEntry {
            booked_memory_bytes: 0,
            booked_milli_gpu: 0,
            ..*entry
        };
        let mut device_entries: Vec<DeviceEntry> = self.device_entries.iter().map(empty).collect();
        for (nth, booking) in self.bookings.values().enumerate() {
            sums.add(booking);
            if !booking.devices.is_sorted_by(|a, b| a < b) {
                return Err(format!("booking {nth} has a GPU twice: {:?}", booking.devices));
            }
            for at in &booking.devices {
                let missing = || format!("booking {nth} has a GPU that does not exist: {at}");
                let entry = device_entries.get_mut(*at as usize).ok_or_else(missing)?;
                entry.booked_memory_bytes += booking.gpu_memory_bytes;
                entry.booked_milli_gpu += booking.milli_gpu;
            }
        }
        same("sums", &self.booked, &sums)?;
        same("GPUs", &*self.device_entries, device_entries.as_slice())
    }
}

/// How much of `total` is booked, from 0 to 1: it may have shrunk since.
fn part(booked: impl Into<u128>, total: impl Into<u128>) -> f64 {
    let (booked, total) = (booked.into(), total.into());
    if total == 0 { 0.0 } else { (booked as f64 / total as f64).min(1.0) }
}

fn same<T: PartialEq + std::fmt::Debug + ?Sized>(
    what: &str,
    kept: &T,
    counted: &T,
) -> Result<(), String> {
    if kept == counted {
        return Ok(());
    }
    Err(format!("{what} do not add up: recorded {kept:?}, bookings add up to {counted:?}"))
}
