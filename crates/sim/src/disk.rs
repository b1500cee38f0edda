//! A disk that can be full.

use std::convert::Infallible;

use hypha_machine::{Apply, Disk, MemoryDisk};
use thiserror::Error;

/// Stores what is durable in memory, and can be made to fail.
#[derive(Debug)]
pub struct FaultDisk<R, I> {
    memory: MemoryDisk<I>,
    /// Whether writes are kept. A world that never restarts a scheduler keeps only the initial image: a million
    /// tasks would fill the memory.
    is_persistent: bool,
    /// Whether writes fail at present.
    pub is_full: bool,
    /// The records that were written last, for the checkers.
    pub(crate) written: Vec<R>,
}

/// Nothing was written.
#[derive(Clone, Copy, Debug, Error)]
#[error("the disk is full")]
pub struct DiskFull;

impl<R, I> FaultDisk<R, I> {
    /// A working disk with this image.
    pub fn new(image: I) -> FaultDisk<R, I> {
        let memory = MemoryDisk { image };
        FaultDisk { memory, is_persistent: true, is_full: false, written: Vec::new() }
    }

    /// The same, but it drops writes unless it is persistent.
    pub(crate) fn with_persistence(image: I, is_persistent: bool) -> FaultDisk<R, I> {
        FaultDisk { is_persistent, ..FaultDisk::new(image) }
    }

    /// What is durable.
    pub fn image(&self) -> &I {
        &self.memory.image
    }

    /// Changes what is durable other than by records.
    pub(crate) fn image_mut(&mut self) -> &mut I {
        &mut self.memory.image
    }
}

impl<R: Clone, I: Apply<R>> Disk<R> for FaultDisk<R, I> {
    type Error = DiskFull;

    fn write(&mut self, records: Vec<R>) -> Result<(), DiskFull> {
        if self.is_full {
            return Err(DiskFull);
        }
        self.written.clone_from(&records);
        if self.is_persistent {
            let done: Result<(), Infallible> = self.memory.write(records);
            let Ok(()) = done;
        }
        Ok(())
    }
}
