//! Which workers would do, and every reason why one would not.

use super::RefusalKind::*;
use super::*;
use crate::executor::Executor;
use crate::id::WorkerId;
use crate::money::Money;
use crate::resource::Device;

const GB: u64 = 1_000_000_000;

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn device(memory_bytes: u64, milli_gpu: u32) -> Device {
    Device { model: name("A100"), memory_bytes, milli_gpu }
}

fn executor(class: ExecutorClass, called: &str, models: &[&str]) -> Executor {
    let models = models.iter().map(|model| name(model)).collect();
    Executor { class, name: name(called), models, concurrency: 1 }
}

/// Four cores, 16 GB, no disk, a whole GPU of 40 GB and half a one of 24 GB.
fn lab() -> Worker {
    Worker {
        id: WorkerId::from_uuid(uuid::Uuid::nil()),
        capacity: Capacity {
            cpu_milli: 4_000,
            memory_bytes: 16 * GB,
            storage_bytes: 0,
            devices: vec![device(40 * GB, 1_000), device(24 * GB, 500)],
        },
        executors: vec![
            executor(ExecutorClass::Inference, "vllm", &["llama-2-7b"]),
            executor(ExecutorClass::Inference, "diffusers", &["stable-diffusion-xl"]),
            executor(ExecutorClass::Train, "diloco-transformer", &[]),
        ],
        hardware: None,
        region: None,
        price: Money::ZERO,
    }
}

#[test]
fn every_reason_is_given_with_its_amounts() {
    fn check(needs: Requirement, expected: &[(RefusalKind, u64, u64)]) {
        let refusal = |&(kind, needed, present)| Refusal { kind, needed, present };
        let expected: Vec<Refusal> = expected.iter().map(refusal).collect();
        let capacity = lab().capacity;
        assert_eq!(needs.refusals_by(&capacity).collect::<Vec<_>>(), expected, "{needs:?}");
        assert_eq!(needs.refused_by(&capacity), expected.first().copied(), "{needs:?}");
        let whole = needs.satisfied_by(&lab());
        assert_eq!(whole.err(), expected.first().copied(), "{needs:?}");
    }
    let none = Requirement::default;
    let gpus = |min_gpus, gpu_memory_bytes, milli_gpu| Requirement {
        min_gpus,
        gpu_memory_bytes,
        milli_gpu,
        ..none()
    };
    check(none(), &[]);
    // Exactly the capacity.
    check(Requirement { cpu_milli: 4_000, memory_bytes: 16 * GB, ..none() }, &[]);
    check(Requirement { cpu_milli: 4_001, ..none() }, &[(Cpu, 4_001, 4_000)]);
    check(Requirement { storage_bytes: 1, ..none() }, &[(Storage, 1, 0)]);
    // Incomparable: more of one resource does not make up for less of another, either way.
    check(
        Requirement { cpu_milli: 1_000, memory_bytes: 17 * GB, ..none() },
        &[(Memory, 17 * GB, 16 * GB)],
    );
    check(Requirement { cpu_milli: 5_000, memory_bytes: GB, ..none() }, &[(Cpu, 5_000, 4_000)]);
    check(
        Requirement { cpu_milli: 5_000, memory_bytes: 17 * GB, storage_bytes: 1, ..none() },
        &[(Cpu, 5_000, 4_000), (Memory, 17 * GB, 16 * GB), (Storage, 1, 0)],
    );
    // Without GPUs, requirements on them do not count.
    check(gpus(0, 999 * GB, 1_000), &[]);
    check(gpus(1, 40 * GB, 1_000), &[]);
    check(gpus(2, 24 * GB, 500), &[]);
    // The memory of several GPUs does not add up to that of one, nor do their shares.
    check(gpus(1, 64 * GB, 500), &[(GpuMemory, 1, 0)]);
    check(gpus(1, 0, 1_500), &[(GpuShare, 1, 0)]);
    check(gpus(2, 24 * GB, 501), &[(GpuShare, 2, 1)]);
    check(gpus(2, 40 * GB, 500), &[(GpuMemory, 2, 1)]);
    check(gpus(3, 0, 0), &[(Gpus, 3, 2)]);
}

#[test]
fn the_first_executor_that_would_do_is_found() {
    fn check(class: ExecutorClass, called: &str, model: &str, expected: Result<&str, RefusalKind>) {
        let optional = |text: &str| (!text.is_empty()).then(|| name(text));
        let needs = Requirement {
            class,
            executor: optional(called),
            model: optional(model),
            ..Requirement::default()
        };
        let worker = lab();
        let found = needs.executor_of(&worker).map(|executor| executor.name.as_str());
        assert_eq!(found, expected.map_err(Refusal::without_amount), "{needs:?}");
        assert_eq!(needs.satisfied_by(&worker).err(), found.err(), "{needs:?}");
    }
    use ExecutorClass::{Aggregate, Inference, Train};
    check(Inference, "", "", Ok("vllm"));
    check(Inference, "", "llama-2-7b", Ok("vllm"));
    check(Inference, "", "stable-diffusion-xl", Ok("diffusers"));
    check(Inference, "diffusers", "", Ok("diffusers"));
    check(Inference, "diffusers", "llama-2-7b", Err(Model));
    check(Inference, "", "gpt-2", Err(Model));
    check(Inference, "diloco-transformer", "", Err(Executor));
    check(Train, "", "gpt-2", Ok("diloco-transformer"));
    check(Train, "vllm", "", Err(Executor));
    check(Aggregate, "", "", Err(Executor));
}

#[test]
fn missing_executor_is_reported_before_missing_resources() {
    let needs =
        Requirement { class: ExecutorClass::Aggregate, cpu_milli: 9_000, ..Requirement::default() };
    assert_eq!(needs.satisfied_by(&lab()), Err(Refusal::without_amount(Executor)));
}

#[test]
fn refusals_read_well_and_kinds_are_in_order() {
    let refusal = Refusal { kind: Gpus, needed: 2, present: 1 };
    assert_eq!(refusal.to_string(), "too few GPUs (needs 2, has 1)");
    assert_eq!(Refusal::without_amount(Busy).to_string(), "busy");
    // Counts by reason are arrays over the kinds: each must be at the index of its number.
    for (at, kind) in RefusalKind::ALL.into_iter().enumerate() {
        assert_eq!(kind as usize, at, "{kind:?}");
    }
}
