//! Capabilities of a worker and needs of a task, as the rounded numbers and bits that trees compare.

use hypha_model::{Executor, ExecutorClass, Name, Requirement, Worker};

use crate::index::{Bounds, Need};

const MIB: u64 = 1 << 20;

/// Set for workers of the preferred region.
pub(crate) const LOCAL: u64 = 1 << 63;
/// The classes of executors take the bits from here on.
const FIRST_CLASS_BIT: u32 = 60;
/// Names of executors and models share the remaining bits by hash. A collision costs a look at a leaf that then
/// refuses.
const NAME_BITS: u64 = 60;

/// The bits of everything that `worker` can do with the executors that are not `suspended`.
pub(crate) fn capabilities_of(worker: &Worker, suspended: &[bool], local: bool) -> u64 {
    let of_executor = |executor: &Executor| {
        let models = match executor.models.is_empty() {
            true => (1 << FIRST_CLASS_BIT) - 1,
            false => executor.models.iter().fold(0, |bits, model| bits | name_bit(model)),
        };
        class_bit(executor.class) | name_bit(&executor.name) | models
    };
    let is_suspended = |at: usize| suspended.get(at).copied().unwrap_or(false);
    let used = worker.executors.iter().enumerate().filter(|(at, _)| !is_suspended(*at));
    let all = used.fold(0, |bits, (_, executor)| bits | of_executor(executor));
    all | if local { LOCAL } else { 0 }
}

/// What a task with `requirement` needs, rounded down.
pub(crate) fn need_of(requirement: &Requirement) -> Need {
    let requires_gpu = requirement.min_gpus > 0;
    let name = |name: &Option<Name>| name.as_ref().map_or(0, name_bit);
    Need {
        room_by_s: f64::INFINITY,
        cpu_milli: clamp(requirement.cpu_milli),
        memory_mib: clamp(requirement.memory_bytes / MIB),
        storage_mib: clamp(requirement.storage_bytes / MIB),
        gpu_memory_mib: if requires_gpu { clamp(requirement.gpu_memory_bytes / MIB) } else { 0 },
        gpus: requirement.min_gpus.max(requirement.gpu_ids.least_gpus()),
        capabilities: class_bit(requirement.class)
            | name(&requirement.executor)
            | name(&requirement.model),
    }
}

/// Fills in amounts, rounded up.
pub(crate) fn set_amounts(
    bounds: &mut Bounds,
    cpu_milli: u64,
    memory_bytes: u64,
    storage_bytes: u64,
    gpus: u32,
    gpu_memory_bytes: u64,
) {
    bounds.cpu_milli = clamp(cpu_milli);
    bounds.memory_mib = clamp(memory_bytes.div_ceil(MIB));
    bounds.storage_mib = clamp(storage_bytes.div_ceil(MIB));
    bounds.gpus = gpus;
    bounds.gpu_memory_mib = clamp(gpu_memory_bytes.div_ceil(MIB));
}

fn clamp(amount: u64) -> u32 {
    u32::try_from(amount).unwrap_or(u32::MAX)
}

fn class_bit(class: ExecutorClass) -> u64 {
    1 << (FIRST_CLASS_BIT
        + match class {
            ExecutorClass::Inference => 0,
            ExecutorClass::Train => 1,
            ExecutorClass::Aggregate => 2,
        })
}

fn name_bit(name: &Name) -> u64 {
    // FNV-1a: short, fixed for all time, and spreads well enough for a hint.
    let hash = name.as_str().bytes().fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
    });
    1 << ((hash ^ (hash >> 32)) % NAME_BITS)
}
