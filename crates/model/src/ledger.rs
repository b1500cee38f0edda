//! The bookings on a worker's capacity, or on a part of it: under which key, and on which GPUs. Nothing is booked
//! twice, nothing is released twice, and no two bookings together take more of a GPU than it has. A ledger may shrink
//! below its bookings: then nothing is free until enough has been released.

mod view;

#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::BTreeMap;

use thiserror::Error;

use crate::requirement::{Refusal, RefusalKind, Requirement};
use crate::resource::Capacity;

pub use view::{Amounts, Free, LedgerStatistics, ResourceAmounts, Utilisation};

/// The bookings on one worker, each under a key of the caller's choice.
#[derive(Clone, Debug)]
pub struct Ledger<K> {
    total: Sums,
    booked: Sums,
    device_entries: Box<[DeviceEntry]>,
    /// Ordered, so that iteration has the same order on every machine.
    bookings: BTreeMap<K, Booking>,
}

/// Which of the GPUs that fit a booking gets. Ties go to the lower index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fit {
    /// Those with the lowest index.
    #[default]
    First,
    /// Those with the least memory and share left over.
    Best,
    /// Those with the most left over.
    Worst,
}

/// Why the ledger did not change.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum LedgerError {
    /// The free amounts are too small.
    #[error("{0}")]
    Refused(Refusal),
    /// The key is in use.
    #[error("there is a booking under this key already: release it first")]
    AlreadyBooked,
    /// The key is not in use: never booked, or released before.
    #[error("there is no booking under this key")]
    NotBooked,
}

/// Amounts of every resource of a worker; those of the GPUs are summed over all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sums {
    cpu_milli: u64,
    memory_bytes: u64,
    storage_bytes: u64,
    milli_gpu: u64,
    /// Wide, because a worker reports its GPUs itself and their sum must not overflow.
    gpu_memory_bytes: u128,
}

/// One GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct DeviceEntry {
    memory_bytes: u64,
    milli_gpu: u32,
    booked_memory_bytes: u64,
    booked_milli_gpu: u32,
}

/// The booking of one key. The amounts of GPUs are per GPU.
#[derive(Clone, Debug)]
struct Booking {
    cpu_milli: u64,
    memory_bytes: u64,
    storage_bytes: u64,
    gpu_memory_bytes: u64,
    milli_gpu: u32,
    /// In ascending order.
    devices: Vec<u32>,
}

impl<K: Ord + Copy> Ledger<K> {
    /// A ledger of all that `capacity` offers, with nothing booked.
    pub fn new(capacity: &Capacity) -> Ledger<K> {
        let device_entries = vec![DeviceEntry::default(); capacity.devices.len()].into();
        let (total, booked) = (Sums::default(), Sums::default());
        let mut ledger = Ledger { total, booked, device_entries, bookings: BTreeMap::new() };
        ledger.resize(capacity);
        ledger
    }

    /// Offers `capacity` from now on, whatever is booked. A GPU that is not in it offers nothing any more.
    pub fn resize(&mut self, capacity: &Capacity) {
        for (at, entry) in self.device_entries.iter_mut().enumerate() {
            let device = capacity.devices.get(at);
            entry.memory_bytes = device.map_or(0, |device| device.memory_bytes);
            entry.milli_gpu = device.map_or(0, |device| device.milli_gpu);
        }
        self.total = Sums {
            cpu_milli: capacity.cpu_milli,
            memory_bytes: capacity.memory_bytes,
            storage_bytes: capacity.storage_bytes,
            milli_gpu: self.device_entries.iter().map(|entry| u64::from(entry.milli_gpu)).sum(),
            gpu_memory_bytes: self
                .device_entries
                .iter()
                .map(|entry| u128::from(entry.memory_bytes))
                .sum(),
        };
    }

    /// Whether the free amounts satisfy `requirement`, or the first reason why not.
    pub fn fits(&self, requirement: &Requirement) -> Result<(), Refusal> {
        self.fits_where(requirement, |_| true)
    }

    /// Whether the free amounts satisfy `requirement` on these GPUs alone, or the first reason why not.
    pub fn fits_where(
        &self,
        requirement: &Requirement,
        may_use: impl Fn(u32) -> bool,
    ) -> Result<(), Refusal> {
        let (needs, total, booked) = (requirement, &self.total, &self.booked);
        let free = |total: u64, booked: u64| total.saturating_sub(booked);
        require(RefusalKind::Cpu, needs.cpu_milli, free(total.cpu_milli, booked.cpu_milli))?;
        let memory_bytes = free(total.memory_bytes, booked.memory_bytes);
        require(RefusalKind::Memory, needs.memory_bytes, memory_bytes)?;
        let storage_bytes = free(total.storage_bytes, booked.storage_bytes);
        require(RefusalKind::Storage, needs.storage_bytes, storage_bytes)?;
        if needs.min_gpus == 0 {
            return Ok(());
        }
        let (mut with_memory, mut with_both) = (0, 0);
        let may_use = |at: u32| needs.gpu_ids.allow(at) && may_use(at);
        for (_, entry) in (0u32..).zip(&self.device_entries).filter(|(at, _)| may_use(*at)) {
            let memory = entry.free_memory_bytes() >= needs.gpu_memory_bytes;
            with_memory += u64::from(memory);
            with_both += u64::from(memory && entry.free_milli_gpu() >= needs.milli_gpu);
        }
        let wanted = u64::from(needs.min_gpus);
        require(RefusalKind::Gpus, needs.least_gpus(), self.device_entries.len() as u64)?;
        require(RefusalKind::GpuMemory, wanted, with_memory)?;
        require(RefusalKind::GpuShare, wanted, with_both)
    }

    /// Whether a GPU has enough free for `requirement`.
    pub fn has_room_on(&self, device: u32, requirement: &Requirement) -> bool {
        self.device_entries.get(device as usize).is_some_and(|entry| entry.fits(requirement))
    }

    /// Books `requirement` under `key` and pins it to GPUs. An error changes nothing.
    pub fn allocate(
        &mut self,
        key: K,
        requirement: &Requirement,
        fit: Fit,
    ) -> Result<(), LedgerError> {
        self.allocate_where(key, requirement, fit, |_| true)
    }

    /// The same, pinned to some of these GPUs only.
    pub fn allocate_where(
        &mut self,
        key: K,
        requirement: &Requirement,
        fit: Fit,
        may_use: impl Fn(u32) -> bool,
    ) -> Result<(), LedgerError> {
        if self.bookings.contains_key(&key) {
            return Err(LedgerError::AlreadyBooked);
        }
        self.fits_where(requirement, &may_use).map_err(LedgerError::Refused)?;
        let booking = Booking {
            cpu_milli: requirement.cpu_milli,
            memory_bytes: requirement.memory_bytes,
            storage_bytes: requirement.storage_bytes,
            gpu_memory_bytes: requirement.gpu_memory_bytes,
            milli_gpu: requirement.milli_gpu,
            devices: self.choose(requirement, fit, may_use),
        };
        for at in &booking.devices {
            let entry = &mut self.device_entries[*at as usize];
            entry.booked_memory_bytes += booking.gpu_memory_bytes;
            entry.booked_milli_gpu += booking.milli_gpu;
        }
        self.booked.add(&booking);
        self.bookings.insert(key, booking);
        Ok(())
    }

    /// Releases the booking of `key`. An error changes nothing.
    pub fn release(&mut self, key: K) -> Result<(), LedgerError> {
        let booking = self.bookings.remove(&key).ok_or(LedgerError::NotBooked)?;
        for at in &booking.devices {
            let entry = &mut self.device_entries[*at as usize];
            entry.booked_memory_bytes -= booking.gpu_memory_bytes;
            entry.booked_milli_gpu -= booking.milli_gpu;
        }
        self.booked.remove(&booking);
        Ok(())
    }

    /// The GPUs that `key` is pinned to, in ascending order; `None` if it has no booking.
    pub fn devices_of(&self, key: K) -> Option<&[u32]> {
        self.bookings.get(&key).map(|booking| booking.devices.as_slice())
    }

    /// How many bookings there are.
    pub fn booking_count(&self) -> usize {
        self.bookings.len()
    }

    /// The keys with a booking, in order.
    pub fn keys(&self) -> impl Iterator<Item = K> {
        self.bookings.keys().copied()
    }

    /// The GPUs for `requirement`, which fits.
    fn choose(
        &self,
        requirement: &Requirement,
        fit: Fit,
        may_use: impl Fn(u32) -> bool,
    ) -> Vec<u32> {
        let wanted = requirement.min_gpus as usize;
        if wanted == 0 {
            return Vec::new();
        }
        let fitting = (0u32..)
            .zip(&self.device_entries)
            .filter(|(at, entry)| entry.fits(requirement) && may_use(*at))
            .filter(|(at, _)| requirement.gpu_ids.allow(*at));
        let mut chosen: Vec<u32> = fitting.map(|(at, _)| at).collect();
        // Memory and share left over, each relative to the largest GPU of the worker: two fractions brought to one
        // denominator, so that the comparison is exact. The sorts are stable: ties stay in order of index.
        let largest_memory =
            self.device_entries.iter().map(|entry| entry.memory_bytes).max().unwrap_or(0);
        let largest_share =
            self.device_entries.iter().map(|entry| entry.milli_gpu).max().unwrap_or(0);
        let left_over = |at: &u32| {
            let entry = &self.device_entries[*at as usize];
            let memory = u128::from(entry.free_memory_bytes() - requirement.gpu_memory_bytes);
            let share = u128::from(entry.free_milli_gpu() - requirement.milli_gpu);
            memory * u128::from(largest_share.max(1)) + share * u128::from(largest_memory.max(1))
        };
        match fit {
            Fit::First => {}
            Fit::Best => chosen.sort_by_key(left_over),
            Fit::Worst => chosen.sort_by_key(|at| Reverse(left_over(at))),
        }
        chosen.truncate(wanted);
        chosen.sort_unstable();
        chosen
    }
}

impl DeviceEntry {
    fn fits(&self, requirement: &Requirement) -> bool {
        self.free_memory_bytes() >= requirement.gpu_memory_bytes
            && self.free_milli_gpu() >= requirement.milli_gpu
    }

    fn free_memory_bytes(&self) -> u64 {
        self.memory_bytes.saturating_sub(self.booked_memory_bytes)
    }

    fn free_milli_gpu(&self) -> u32 {
        self.milli_gpu.saturating_sub(self.booked_milli_gpu)
    }
}

impl Sums {
    fn add(&mut self, booking: &Booking) {
        let devices = booking.devices.len() as u64;
        self.cpu_milli += booking.cpu_milli;
        self.memory_bytes += booking.memory_bytes;
        self.storage_bytes += booking.storage_bytes;
        self.milli_gpu += devices * u64::from(booking.milli_gpu);
        self.gpu_memory_bytes += u128::from(devices) * u128::from(booking.gpu_memory_bytes);
    }

    fn remove(&mut self, booking: &Booking) {
        let devices = booking.devices.len() as u64;
        self.cpu_milli -= booking.cpu_milli;
        self.memory_bytes -= booking.memory_bytes;
        self.storage_bytes -= booking.storage_bytes;
        self.milli_gpu -= devices * u64::from(booking.milli_gpu);
        self.gpu_memory_bytes -= u128::from(devices) * u128::from(booking.gpu_memory_bytes);
    }
}

fn require(kind: RefusalKind, needed: u64, present: u64) -> Result<(), Refusal> {
    if needed > present { Err(Refusal { kind, needed, present }) } else { Ok(()) }
}
