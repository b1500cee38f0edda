//! Equally good workers share the load.

use hypha_model::{Requirement, Span, TaskSpec, Worker};
use hypha_placement::{AttemptEnd, LoadMetric, Pick, Predictive, Strategy, WorkerSlot};

use crate::fixture::{Fixture, asking, executor, name, plain, spec_of};

/// `predictive` without chance: no exploration.
const PREDICTIVE: Strategy = Strategy::Predictive(Predictive {
    ageing: 2.0,
    wait_surcharge: 3.0,
    lookahead: 16,
    exploration: 0.0,
});
const AT_ONCE: u32 = 16;

fn wide(at_once: u32) -> Worker {
    Worker { executors: vec![executor("builtin", &[], at_once)], ..plain() }
}

/// How many of the tasks each of the workers gets, if they arrive one after the other and none ends.
fn shares(fixture: &mut Fixture, tasks: impl IntoIterator<Item = TaskSpec>) -> Vec<u32> {
    let mut counts = vec![0; fixture.placement.workers()];
    for task in tasks {
        fixture.later(0.2);
        counts[fixture.place(task).unwrap().0 as usize] += 1;
    }
    counts
}

fn of_model(model: &str) -> TaskSpec {
    asking(Requirement { model: Some(name(model)), ..Requirement::default() })
}

fn two_equals(strategy: Strategy) -> Fixture {
    let mut fixture = Fixture::new(strategy);
    (0..2).for_each(|_| {
        fixture.join(wide(AT_ONCE));
    });
    fixture
}

#[test]
fn equal_workers_get_equal_shares_under_every_strategy_that_spreads() {
    let least = |load_metric| Strategy::CapabilityBased { load_metric, pick: Pick::LeastLoaded };
    let record =
        Strategy::CapabilityBased { load_metric: LoadMetric::default(), pick: Pick::Performance };
    let mut all = Strategy::all().to_vec();
    all.extend([least(LoadMetric::CpuUsage), least(LoadMetric::MemoryUsage), record, PREDICTIVE]);
    for strategy in all {
        let mut fixture = two_equals(strategy);
        let counts = shares(&mut fixture, (0..8).map(|_| TaskSpec::default()));
        match strategy {
            // These take the first by definition.
            Strategy::Fifo | Strategy::FirstFit => assert_eq!(counts, [8, 0], "{strategy}"),
            // Random.
            Strategy::Random | Strategy::Probabilistic => {
                assert!(counts.iter().all(|count| *count > 0), "{strategy}: {counts:?}");
            }
            // One decision in a hundred is exploration.
            _ => assert_eq!(counts, [4, 4], "{strategy}"),
        }
    }
}

#[test]
fn running_tasks_count_as_load_with_and_without_measurements() {
    for strategy in [PREDICTIVE, Strategy::ShortestQueue, Strategy::Weighted { weight: 1.0 }] {
        // Two models that no worker has run, alternating.
        let mut fixture = two_equals(strategy);
        let mixed = (0..8).map(|at| of_model(["sleep", "burn"][at % 2]));
        assert_eq!(shares(&mut fixture, mixed), [4, 4], "{strategy}: not measured");
        // Measured on both, long and short.
        let mut fixture = two_equals(strategy);
        for (key, seconds) in
            fixture.keys.clone().into_iter().flat_map(|key| [(key, 0.02), (key, 5.0)])
        {
            let query = fixture.predictor.query(&spec_of(seconds));
            (0..50).for_each(|_| {
                fixture.predictor.observe(&query, key, Span::from_secs_f64(seconds));
            });
        }
        let mixed = (0..8).map(|at| spec_of([0.02, 5.0][at % 2]));
        assert_eq!(shares(&mut fixture, mixed), [4, 4], "{strategy}: measured");
    }
}

#[test]
fn load_counts_relative_to_slots() {
    let mut fixture = Fixture::new(PREDICTIVE);
    for at_once in [4, 12] {
        fixture.join(wide(at_once));
    }
    let counts = shares(&mut fixture, (0..8).map(|_| spec_of(1.0)));
    assert_eq!(counts, [2, 6]);
}

#[test]
fn idle_workers_are_used_in_rotation() {
    for strategy in [PREDICTIVE, Strategy::ShortestQueue, Strategy::WorstFit] {
        let mut fixture = Fixture::new(strategy);
        (0..3).for_each(|_| {
            fixture.join(wide(AT_ONCE));
        });
        let mut places = Vec::new();
        for _ in 0..6 {
            fixture.later(1.0);
            let task = fixture.arrive(spec_of(1.0));
            fixture.plan();
            places.extend(fixture.where_is(task));
            fixture.placement.finish(task, hypha_placement::AttemptEnd::Withdrawn, fixture.now);
        }
        assert_eq!(places, [0, 1, 2, 0, 1, 2], "{strategy}");
    }
}

#[test]
fn differences_below_measurement_noise_are_ties() {
    // A round trip of 0.3 ms is as good as one of 0.9 ms, and one of 2 ms nearly so for a task of a second.
    for (near_us, far_us, seconds, expected) in [
        (300, 900, 0.01, [4, 4]),
        (300, 2_000, 1.0, [4, 4]),
        (300, 2_000, 0.01, [8, 0]),
        (300, 50_000, 1.0, [8, 0]),
    ] {
        let mut fixture = two_equals(PREDICTIVE);
        for (slot, rtt_us) in [(0, near_us), (1, far_us)] {
            fixture.placement.record_contact(
                WorkerSlot(slot),
                Span::from_micros(rtt_us),
                fixture.now,
            );
        }
        let case = format!("{near_us} and {far_us} µs, {seconds} s");
        let tasks = (0..8).map(|_| spec_of(seconds));
        assert_eq!(shares(&mut fixture, tasks), expected, "{case}");
    }
    // Nor is a faster worker left idle because it has more tasks.
    let mut fixture = Fixture::new(PREDICTIVE);
    let fast = fixture.join(wide(AT_ONCE));
    fixture.join(wide(AT_ONCE));
    fixture.placement.set_factor(fast, 0.9, fixture.now);
    assert_eq!(shares(&mut fixture, (0..8).map(|_| spec_of(1.0))), [8, 0]);
}

#[test]
fn one_slow_round_trip_does_not_turn_tasks_away() {
    let mut fixture = two_equals(PREDICTIVE);
    for slot in [WorkerSlot(0), WorkerSlot(1)] {
        fixture.placement.record_contact(slot, Span::from_micros(500), fixture.now);
    }
    fixture.placement.record_contact(WorkerSlot(0), Span::from_millis(30), fixture.now);
    assert_eq!(shares(&mut fixture, (0..8).map(|_| spec_of(1.0))), [4, 4]);
    // A permanently longer round trip is believed after a while, a shorter one at once.
    let rtt = |fixture: &Fixture| fixture.placement.view(WorkerSlot(0), fixture.now).unwrap().rtt;
    (0..40).for_each(|_| {
        fixture.placement.record_contact(WorkerSlot(0), Span::from_millis(30), fixture.now)
    });
    assert!(rtt(&fixture) > Span::from_millis(25), "{}", rtt(&fixture));
    fixture.placement.record_contact(WorkerSlot(0), Span::from_millis(1), fixture.now);
    assert_eq!(rtt(&fixture), Span::from_millis(1));
}

/// Workers of different hardware are in different trees.
#[test]
fn hardware_that_differs_in_name_only_is_equal() {
    let mut fixture = Fixture::new(PREDICTIVE);
    for hardware in ["A100", "H100", "T4"] {
        fixture.join(Worker { hardware: Some(name(hardware)), ..wide(AT_ONCE) });
    }
    let counts = shares(&mut fixture, (0..9).map(|_| of_model("new")));
    assert_eq!(counts, [3, 3, 3]);
}

/// In a pool where distances differ, the search for the least used of equals must not become a scan of all.
#[test]
fn many_equal_workers_share_the_load() {
    let mut fixture = Fixture::new(PREDICTIVE);
    for at in 0..200 {
        let slot = fixture.join(wide(4));
        let rtt = Span::from_micros(200 + 13 * (at % 50));
        fixture.placement.record_contact(slot, rtt, fixture.now);
    }
    let counts = shares(&mut fixture, (0..400).map(|_| spec_of(1.0)));
    assert!(counts.iter().all(|count| (1..=3).contains(count)), "{counts:?}");
}

/// An executor that succeeds on every worker, and one that fails on some: its failures tell nothing about the models
/// that others run.
fn good_and_bad() -> Worker {
    let executors = vec![executor("good", &["good"], 8), executor("bad", &["bad"], 8)];
    Worker { executors, ..plain() }
}

#[test]
fn failures_of_one_executor_do_not_affect_the_others() {
    let mut fixture = Fixture::new(PREDICTIVE);
    for _ in 0..2 {
        fixture.join(good_and_bad());
    }
    let mut failed = 0;
    for _ in 0..20 {
        let task = fixture.arrive(of_model("bad"));
        fixture.plan();
        fixture.later(1.0);
        match fixture.where_is(task).unwrap() {
            0 => {
                failed += 1;
                fixture.fail(task);
            }
            _ => fixture.complete(task, 1.0),
        }
    }
    assert!((1..8).contains(&failed), "{failed}: the worker where it fails is avoided");
    assert_eq!(shares(&mut fixture, (0..8).map(|_| of_model("good"))), [4, 4]);
    // Workers that join again with their record keep all of it.
    let mut again = Fixture::new(PREDICTIVE);
    for slot in fixture.placement.worker_slots() {
        let record = serde_json::to_string(&fixture.placement.health(slot).unwrap()).unwrap();
        again.join_healthy(good_and_bad(), serde_json::from_str(&record).unwrap());
    }
    assert_eq!(shares(&mut again, (0..4).map(|_| of_model("good"))), [2, 2]);
    assert_eq!(shares(&mut again, (0..4).map(|_| of_model("bad"))), [0, 4]);
    // What the worker itself loses counts against all of its executors.
    for _ in 0..8 {
        let task = fixture.arrive(of_model("good"));
        fixture.plan();
        let lost = fixture.where_is(task) == Some(0);
        let ending = if lost { AttemptEnd::Lost } else { AttemptEnd::Withdrawn };
        fixture.placement.finish(task, ending, fixture.now);
    }
    let counts = shares(&mut fixture, (0..4).map(|_| of_model("good")));
    assert!(counts[0] < counts[1], "{counts:?}");
}
