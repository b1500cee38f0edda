//! Resources beyond amounts: what is measured on a machine, and GPUs that a client names.

use hypha_model::{Capacity, GpuIds, Requirement, Usage, Worker};
use hypha_placement::{LoadMetric, NamedGpus, Pick, Strategy, TaskRef, WorkerSlot};

use crate::fixture::{Fixture, GIB, asking, executor, gpus, plain};

#[test]
fn measured_usage_counts_besides_what_is_booked() {
    for load_metric in [LoadMetric::CpuUsage, LoadMetric::MemoryUsage] {
        let mut fixture =
            Fixture::new(Strategy::CapabilityBased { load_metric, pick: Pick::LeastLoaded });
        for _ in 0..3 {
            let capacity =
                Capacity { cpu_milli: 10_000, memory_bytes: 10 * GIB, ..Capacity::default() };
            let executors = vec![executor("vllm", &[], 4)];
            fixture.join(Worker { capacity, executors, ..plain() });
        }
        let measure = |fixture: &mut Fixture, slot, permille| {
            let usage = match load_metric {
                LoadMetric::CpuUsage => Usage { cpu_permille: permille, memory_permille: 0 },
                _ => Usage { cpu_permille: 0, memory_permille: permille },
            };
            fixture.placement.set_usage(WorkerSlot(slot), usage, fixture.now);
        };
        for (slot, permille) in [(0, 900), (1, 200), (2, 500)] {
            measure(&mut fixture, slot, permille);
        }
        // A task without amounts counts as a quarter, the share of its slot: 0.2, 0.45, then 0.5 against 0.7.
        let slots = [0; 3].map(|_| fixture.place_plain());
        assert_eq!(slots, [Some(1), Some(1), Some(2)], "{load_metric:?}");
        // The next measurement has seen them.
        for (slot, permille) in [(0, 100), (1, 300), (2, 600)] {
            measure(&mut fixture, slot, permille);
        }
        assert_eq!(fixture.place_plain(), Some(0), "{load_metric:?}");
        // What is booked counts if it is more.
        let half =
            Requirement { cpu_milli: 5_000, memory_bytes: 5 * GIB, ..Requirement::default() };
        let task = fixture.arrive(asking(half));
        fixture.placement.adopt(task, WorkerSlot(0), &fixture.predictor, fixture.now);
        measure(&mut fixture, 0, 0);
        assert_eq!(fixture.place_plain(), Some(1), "{load_metric:?}");
    }
}

#[test]
fn named_gpus_are_used_where_they_are_free() {
    for strategy in crate::random::strategies() {
        let mut fixture = Fixture::new(strategy);
        for count in [1, 2, 2] {
            let capacity = Capacity { devices: gpus(count), ..Capacity::default() };
            let executors = vec![executor("vllm", &[], 2)];
            fixture.join(Worker { capacity, executors, ..plain() });
        }
        let on = |ids: &[u32]| {
            let add = |all: GpuIds, id: &u32| all.with(*id).unwrap();
            let gpu_ids = ids.iter().fold(GpuIds::default(), add);
            Requirement { gpu_ids, min_gpus: gpu_ids.count(), ..Requirement::default() }
        };
        let state = |fixture: &Fixture, ids: &[u32]| fixture.placement.named_gpus(&on(ids));
        assert_eq!(state(&fixture, &[2]), NamedGpus::Unknown, "{strategy}");
        // The second GPU of each worker that has two, and then neither is left.
        let mut slots = [0, 0].map(|_| fixture.place(asking(on(&[1]))).map(|slot| slot.0));
        slots.sort_unstable();
        assert_eq!(slots, [Some(1), Some(2)], "{strategy}");
        assert_eq!(state(&fixture, &[1]), NamedGpus::Taken, "{strategy}");
        assert_eq!(state(&fixture, &[0, 1]), NamedGpus::Taken, "{strategy}");
        assert_eq!(state(&fixture, &[0]), NamedGpus::Free, "{strategy}");
        fixture.complete(TaskRef(0), 1.0);
        assert_eq!(state(&fixture, &[0, 1]), NamedGpus::Free, "{strategy}");
    }
}
