//! What strategies learn from past runs: of each model, on any hardware, by capacity.

use hypha_model::{Capacity, Requirement, Span, TaskSpec, Worker};
use hypha_placement::{LoadMetric, Pick, Strategy, WorkerSlot};

use crate::fixture::{Fixture, asking, gpus, name, plain};

#[test]
fn adaptive_counts_capacity_in_gpus() {
    let mut fixture = Fixture::new(Strategy::Adaptive { learning_rate: 0.1 });
    for count in [1, 4] {
        let capacity = Capacity { devices: gpus(count), ..Capacity::default() };
        fixture.join(Worker { capacity, ..plain() });
    }
    assert_eq!([0; 6].map(|_| fixture.place_plain()), [0, 1, 1, 1, 1, 0].map(Some));
}

/// A task of a model runs on a worker for `seconds`.
fn run_on(fixture: &mut Fixture, slot: u32, spec: &TaskSpec, seconds: f64) {
    let task = fixture.arrive(spec.clone());
    fixture.placement.adopt(task, WorkerSlot(slot), &fixture.predictor, fixture.now);
    fixture.complete(task, seconds);
}

#[test]
fn the_record_of_one_model_says_nothing_about_another() {
    let pick =
        Strategy::CapabilityBased { load_metric: LoadMetric::TaskCount, pick: Pick::Performance };
    let adaptive = Strategy::Adaptive { learning_rate: 0.1 };
    for strategy in [Strategy::PerformanceAware, pick, adaptive] {
        let of_model = |model: &str| {
            asking(Requirement { model: Some(name(model)), ..Requirement::default() })
        };
        let mut fixture = Fixture::of(strategy, 3);
        for _ in 0..5 {
            for slot in 0..3 {
                run_on(&mut fixture, slot, &of_model("a"), [9.0, 1.0, 3.0][slot as usize]);
                run_on(&mut fixture, slot, &of_model("b"), [1.0, 9.0, 3.0][slot as usize]);
            }
        }
        let fast = [("a", 1), ("b", 0)];
        for (model, slot) in fast {
            assert_eq!(fixture.place(of_model(model)), Some(WorkerSlot(slot)), "{strategy}");
        }
        // Nor do failures.
        let mut fixture = Fixture::of(strategy, 2);
        for slot in [0, 1] {
            for model in ["a", "b"] {
                run_on(&mut fixture, slot, &of_model(model), 1.0);
            }
        }
        for _ in 0..5 {
            let task = fixture.arrive(of_model("a"));
            fixture.placement.adopt(task, WorkerSlot(0), &fixture.predictor, fixture.now);
            fixture.fail(task);
        }
        assert_eq!(fixture.place(of_model("a")), Some(WorkerSlot(1)), "{strategy}");
        assert_eq!(fixture.place(of_model("b")), Some(WorkerSlot(0)), "{strategy}");
    }
}

#[test]
fn past_speeds_of_different_hardware_are_compared() {
    let mut fixture = Fixture::new(Strategy::PerformanceAware);
    for hardware in ["t4", "a100"] {
        fixture.join(Worker { hardware: Some(name(hardware)), ..plain() });
    }
    let query = fixture.predictor.query(&TaskSpec::default());
    for _ in 0..50 {
        for (slot, seconds) in [(0, 4.0), (1, 1.0)] {
            // The predictor learns that each hardware is as fast as it is.
            let key = fixture.keys[slot as usize];
            fixture.predictor.observe(&query, key, Span::from_secs_f64(seconds));
            run_on(&mut fixture, slot, &TaskSpec::default(), seconds);
        }
    }
    assert_eq!(fixture.place_plain(), Some(1));
    let [slow, fast] = [0, 1].map(|slot| fixture.placement.health(WorkerSlot(slot)).unwrap());
    assert!(slow.relative_time > 3.0 * fast.relative_time, "{slow:?} {fast:?}");
}
