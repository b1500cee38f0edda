//! The resources of a machine, in integers.

use serde::{Deserialize, Serialize};

use crate::name::Name;

/// The whole of one GPU, in milli-GPU.
pub const WHOLE_GPU: u32 = 1_000;

/// One GPU of a worker.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Device {
    /// The model name, e.g. `A100`.
    pub model: Name,
    /// Its memory.
    pub memory_bytes: u64,
    /// How much of it is offered, in thousandths; [`WHOLE_GPU`] is all of it.
    pub milli_gpu: u32,
}

/// How much of a machine is in use, by whatever runs on it, as measured. In thousandths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Processor time.
    pub cpu_permille: u16,
    /// Main memory.
    pub memory_permille: u16,
}

/// Everything that a worker offers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Capacity {
    /// Processor time, in thousandths of a core.
    pub cpu_milli: u64,
    /// Main memory.
    pub memory_bytes: u64,
    /// Disk for work directories and caches.
    pub storage_bytes: u64,
    /// The GPUs, in the order in which the machine numbers them.
    pub devices: Vec<Device>,
}
