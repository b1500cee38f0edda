//! What each strategy is for. Each scenario is such that no other recipe would give its outcome.

use hypha_model::{Capacity, Priority, Requirement, Span, TaskSpec, Worker};
use hypha_placement::{
    Action, Health, LoadMetric, Pick, PlacementRequest, Predictive, Preferences, Strategy, TaskRef,
    WorkerSlot,
};

use crate::fixture::{Fixture, GIB, asking, dispatched, executor, gpus, name, plain, spec_of};

const CAPABILITY: Strategy =
    Strategy::CapabilityBased { load_metric: LoadMetric::TaskCount, pick: Pick::LeastLoaded };

/// `predictive` without chance: no exploration.
fn predictive() -> Strategy {
    Strategy::Predictive(Predictive { exploration: 0.0, ..Predictive::default() })
}

fn places(fixture: &mut Fixture, count: usize) -> Vec<Option<u32>> {
    (0..count).map(|_| fixture.place_plain()).collect()
}

fn with_capacity(cpu_milli: u64, memory_bytes: u64, at_once: u32) -> Worker {
    Worker {
        capacity: Capacity { cpu_milli, memory_bytes, ..Capacity::default() },
        executors: vec![executor("vllm", &[], at_once)],
        ..plain()
    }
}

/// Runs a task on each of the workers in turn and ends it with `end`.
fn record(fixture: &mut Fixture, rounds: usize, end: impl Fn(&mut Fixture, TaskRef, u32)) {
    for _ in 0..rounds {
        for slot in fixture.placement.worker_slots() {
            let request = fixture.request(TaskSpec::default());
            let task = fixture.arrive_with(request);
            fixture.placement.adopt(task, slot, &fixture.predictor, fixture.now);
            end(fixture, task, slot.0);
        }
    }
}

#[test]
fn fifo_and_first_fit_take_the_first_with_room_in_the_order_of_arrival() {
    for strategy in [Strategy::Fifo, Strategy::FirstFit] {
        let mut fixture = Fixture::of(strategy, 2);
        let urgent =
            asking(Requirement { priority: Priority::from_milli(5_000), ..Requirement::default() });
        fixture.arrive_many(3);
        fixture.arrive(urgent);
        assert_eq!(dispatched(&fixture.plan()), [(0, 0), (1, 1)]);
        fixture.complete(TaskRef(1), 1.0);
        assert_eq!(dispatched(&fixture.plan()), [(2, 1)], "the urgent one must not overtake");
    }
}

#[test]
fn priority_goes_first_and_to_the_least_loaded() {
    let mut fixture = Fixture::new(Strategy::Priority);
    fixture.join(with_capacity(0, 0, 2));
    fixture.join(with_capacity(0, 0, 2));
    for priority in [0, 500, 9_000, 500] {
        let requirement =
            Requirement { priority: Priority::from_milli(priority), ..Requirement::default() };
        fixture.arrive(asking(requirement));
    }
    assert_eq!(dispatched(&fixture.plan()), [(2, 0), (1, 1), (3, 0), (0, 1)]);
    // Any number, however large or however close to another.
    let mut fixture = Fixture::new(Strategy::Priority);
    fixture.join(with_capacity(0, 0, 6));
    for priority in [0.91233, 0.91234, -1e300, 1e20, 1e30, -1e20] {
        let priority = Priority::new(priority).unwrap();
        fixture.arrive(asking(Requirement { priority, ..Requirement::default() }));
    }
    let order: Vec<u32> = dispatched(&fixture.plan()).iter().map(|(task, _)| *task).collect();
    assert_eq!(order, [4, 3, 1, 0, 5, 2]);
}

#[test]
fn round_robin_goes_around_whatever_the_load() {
    let mut fixture = Fixture::of(Strategy::RoundRobin, 3);
    let around: Vec<_> = [0, 1, 2, 0, 1, 2, 0].map(Some).to_vec();
    assert_eq!(places(&mut fixture, 7), around);
    fixture.placement.set_available(WorkerSlot(2), false, fixture.now);
    assert_eq!(places(&mut fixture, 3), [Some(1), Some(0), Some(1)]);
}

#[test]
fn capability_based_takes_the_least_loaded_by_each_metric() {
    // By tasks the last is the least loaded, by cores the first, by memory the second.
    for (load_metric, expected) in
        [(LoadMetric::CpuUsage, 0), (LoadMetric::MemoryUsage, 1), (LoadMetric::TaskCount, 2)]
    {
        let mut fixture =
            Fixture::new(Strategy::CapabilityBased { load_metric, pick: Pick::LeastLoaded });
        (0..3).for_each(|_| {
            fixture.join(with_capacity(10_000, 10 * GIB, 4));
        });
        for (slot, cpu_milli, memory_gib) in
            [(0, 100, 4), (0, 100, 4), (1, 2_000, 1), (1, 2_000, 1), (2, 5_000, 5)]
        {
            let memory_bytes = memory_gib * GIB;
            let request = fixture.request(asking(Requirement {
                cpu_milli,
                memory_bytes,
                ..Requirement::default()
            }));
            let task = fixture.arrive_with(request);
            fixture.placement.adopt(task, WorkerSlot(slot), &fixture.predictor, fixture.now);
        }
        assert_eq!(fixture.place_plain(), Some(expected), "{load_metric:?}");
    }
}

#[test]
fn random_picks_are_uniform() {
    let pick = Strategy::CapabilityBased { load_metric: LoadMetric::TaskCount, pick: Pick::Random };
    for strategy in [Strategy::Random, pick] {
        let mut fixture = Fixture::of(strategy, 5);
        // An empty slot, and an unavailable worker: the others must not get the share of a neighbour.
        fixture.placement.remove_worker(WorkerSlot(1), fixture.now);
        fixture.placement.set_available(WorkerSlot(3), false, fixture.now);
        let mut counts = [0u32; 5];
        for _ in 0..3_000 {
            counts[fixture.place_plain().unwrap() as usize] += 1;
        }
        assert_eq!((counts[1], counts[3]), (0, 0));
        // Three standard deviations of a share of a third of 3,000 are 77.
        assert!([0, 2, 4].iter().all(|at| counts[*at].abs_diff(1_000) < 80), "{counts:?}");
    }
}

#[test]
fn power_of_two_is_between_random_and_least_loaded() {
    let spread = |strategy| {
        let mut fixture = Fixture::of(strategy, 50);
        let mut counts = [0u32; 50];
        for _ in 0..1_000 {
            counts[fixture.place_plain().unwrap() as usize] += 1;
        }
        counts.iter().max().unwrap() - counts.iter().min().unwrap()
    };
    let (random, two, least) =
        (spread(Strategy::Random), spread(Strategy::PowerOfTwo), spread(CAPABILITY));
    assert!(random > 10 && (2..=8).contains(&two) && least == 0, "{random} {two} {least}");
    // Of two workers both are always drawn.
    let mut fixture = Fixture::of(Strategy::PowerOfTwo, 2);
    let slots = places(&mut fixture, 20);
    assert_eq!(slots.iter().filter(|slot| **slot == Some(0)).count(), 10);
}

#[test]
fn performance_aware_prefers_each_part_of_a_record() {
    let pick =
        Strategy::CapabilityBased { load_metric: LoadMetric::TaskCount, pick: Pick::Performance };
    for strategy in [Strategy::PerformanceAware, pick] {
        // Speed.
        let mut fixture = Fixture::of(strategy, 3);
        record(&mut fixture, 5, |fixture, task, slot| {
            fixture.complete(task, [2.0, 1.0, 3.0][slot as usize])
        });
        assert_eq!(fixture.place_plain(), Some(1));
        // Load: twice as fast, so one task ahead is a tie and two are worse.
        assert_eq!(places(&mut fixture, 2), [Some(0), Some(1)]);
        // Success.
        let mut fixture = Fixture::of(strategy, 2);
        record(&mut fixture, 5, |fixture, task, slot| match slot {
            0 => fixture.fail(task),
            _ => fixture.complete(task, 1.0),
        });
        record(&mut fixture, 1, |fixture, task, _| fixture.complete(task, 1.0));
        assert_eq!(fixture.place_plain(), Some(1));
        // Latency.
        let mut fixture = Fixture::of(strategy, 2);
        record(&mut fixture, 5, |fixture, task, _| fixture.complete(task, 1.0));
        fixture.placement.record_contact(WorkerSlot(0), Span::from_millis(300), fixture.now);
        assert_eq!(fixture.place_plain(), Some(1));
    }
}

#[test]
fn load_balancing_counts_tasks_by_gpus_and_forgets_failures() {
    let strategy = Strategy::LoadBalancing { penalty_half_life_s: 10.0 };
    let mut fixture = Fixture::new(strategy);
    for count in [1, 4] {
        let capacity = Capacity { devices: gpus(count), ..Capacity::default() };
        fixture.join(Worker { capacity, ..plain() });
    }
    // 0/1 and 0/4; then 1/1 against 0/4, 1/4, 2/4, 3/4; then a tie.
    assert_eq!(places(&mut fixture, 6), [0, 1, 1, 1, 1, 0].map(Some));

    let mut fixture = Fixture::of(strategy, 2);
    let task = fixture.arrive(TaskSpec::default());
    fixture.plan();
    fixture.fail(task);
    // A failure weighs as much as a task on a worker with one GPU.
    assert_eq!(fixture.place_plain(), Some(1));
    fixture.later(40.0);
    fixture.placement.refresh(fixture.now);
    // 1/16 of it is left, against one task.
    assert_eq!(fixture.place_plain(), Some(0));
    let chosen = fixture.placement.explanation(TaskRef(2)).unwrap().chosen.unwrap();
    assert!((chosen.score - 0.0625).abs() < 1e-3, "{chosen:?}");
}

#[test]
fn idle_workers_steal_the_newest_task_from_the_longest_queue_above_the_threshold() {
    let queue = |bound: usize| {
        let mut fixture = Fixture::new(Strategy::WorkStealing { steal_threshold: 2 });
        fixture.join(plain());
        // Two are dispatched to the worker, the rest is in its queue here.
        fixture.arrive_many(2 + bound);
        fixture.plan();
        fixture.join(plain());
        fixture
    };
    assert_eq!(queue(2).plan(), []);
    let mut fixture = queue(3);
    let (task, from, to) = (TaskRef(4), WorkerSlot(0), WorkerSlot(1));
    assert_eq!(
        fixture.plan(),
        [Action::Move { task, from, to }, Action::Dispatch { task, slot: to }]
    );
    assert_eq!(fixture.placement.statistics().steals, 1);
    let explanation = fixture.placement.explanation(task).unwrap();
    let [thief, victim] = [1, 0].map(|slot| fixture.placement.worker_id(WorkerSlot(slot)));
    assert_eq!(explanation.chosen.map(|chosen| chosen.worker), thief);
    assert_eq!(explanation.runners_up.first().map(|other| other.worker), victim);
}

#[test]
fn a_worker_steals_only_tasks_that_it_may_run() {
    let scenario = |preferences: Preferences, rtt_ms: u64, failed_on: &[WorkerSlot]| {
        let mut fixture = Fixture::with(Strategy::WorkStealing { steal_threshold: 2 }, preferences);
        fixture.join(plain());
        for _ in 0..6 {
            let failed_on = Box::from(failed_on);
            let request = PlacementRequest { failed_on, ..fixture.request(TaskSpec::default()) };
            fixture.arrive_with(request);
        }
        fixture.plan();
        let thief = fixture.join(plain());
        fixture.placement.record_contact(thief, Span::from_millis(rtt_ms), fixture.now);
        fixture.plan();
        fixture.placement.statistics().steals
    };
    let near = Preferences { max_rtt: Some(Span::from_millis(10)), ..Preferences::default() };
    assert_eq!(scenario(near.clone(), 5, &[]), 1);
    assert_eq!(scenario(near, 20, &[]), 0, "too far");
    assert_eq!(
        scenario(Preferences::default(), 5, &[WorkerSlot(1)]),
        0,
        "an earlier attempt failed there"
    );
}

#[test]
fn a_full_scheduler_does_not_steal_from_itself() {
    // A queue that `max_in_flight` stalls, at a worker that could run all of it at once.
    let preferences = Preferences { max_in_flight: Some(1), ..Preferences::default() };
    let mut fixture = Fixture::with(Strategy::WorkStealing { steal_threshold: 0 }, preferences);
    fixture.join(with_capacity(0, 0, 8));
    fixture.arrive_many(5);
    assert_eq!(dispatched(&fixture.plan()).len(), 1);
    assert_eq!(fixture.placement.statistics().steals, 0);
}

#[test]
fn adaptive_learns_at_the_configured_rate() {
    // The first was slow once and fast since; a low learning rate has not forgotten.
    let scenario = |learning_rate| {
        let mut fixture = Fixture::of(Strategy::Adaptive { learning_rate }, 2);
        record(&mut fixture, 1, |fixture, task, slot| {
            fixture.complete(task, [9.0, 2.0][slot as usize])
        });
        record(&mut fixture, 4, |fixture, task, slot| {
            fixture.complete(task, [1.0, 2.0][slot as usize])
        });
        fixture.place_plain()
    };
    assert_eq!((scenario(0.9), scenario(0.1)), (Some(0), Some(1)));
}

#[test]
fn shortest_queue_adds_backlog_and_run() {
    let mut fixture = Fixture::new(Strategy::ShortestQueue);
    fixture.join_fast(1.0);
    fixture.join_fast(4.0);
    // Where it ends first: 1/4, 2/4, 3/4, then 4/4 or 1/1.
    let slots = places_of(&mut fixture, 1.0, 3);
    assert_eq!(slots, [Some(1); 3]);
    let slots = places_of(&mut fixture, 1.0, 5);
    assert_eq!(slots.iter().filter(|slot| **slot == Some(0)).count(), 1, "{slots:?}");
}

fn places_of(fixture: &mut Fixture, seconds: f64, count: usize) -> Vec<Option<u32>> {
    (0..count).map(|_| fixture.place(spec_of(seconds)).map(|slot| slot.0)).collect()
}

#[test]
fn weighted_counts_uncertainty_against_a_worker() {
    // The same expected finish: one has two tasks of unknown length ahead, the other is a bit slower.
    let scenario = |strategy| {
        let mut fixture = Fixture::new(strategy);
        fixture.join_fast(1.0);
        fixture.join_fast(0.45);
        let explained = |fixture: &mut Fixture| {
            let task = fixture.arrive(spec_of(1.0));
            let full =
                fixture.placement.explain_fully(task, &fixture.predictor, fixture.now).unwrap();
            fixture.plan();
            full.verdicts[0].candidate.unwrap().terms.unwrap()
        };
        explained(&mut fixture);
        explained(&mut fixture)
    };
    let (plain, weighted) =
        (scenario(Strategy::ShortestQueue), scenario(Strategy::Weighted { weight: 9.0 }));
    assert_eq!(plain.error_s, 0.0);
    assert!(weighted.error_s > 0.0);
    assert!((plain.total() - (plain.wait_s + plain.run_s)).abs() < 1e-9);
}

#[test]
fn probabilistic_spreads_and_favours_the_shorter() {
    let count = |strategy| {
        let mut counts = [0u32; 2];
        // No worker has completed a task, so predictions are uncertain.
        let mut fixture = Fixture::of(strategy, 2);
        fixture.placement.set_factor(WorkerSlot(0), 1.0, fixture.now);
        fixture.placement.set_factor(WorkerSlot(1), 0.7, fixture.now);
        for _ in 0..300 {
            let task = fixture.arrive(spec_of(1.0));
            fixture.plan();
            counts[fixture.where_is(task).unwrap() as usize] += 1;
            fixture.complete(task, 1.0);
        }
        counts
    };
    let [slow, fast] = count(Strategy::Probabilistic);
    assert!(slow > 60 && fast > slow + 30, "{slow} {fast}");
    assert_eq!(count(Strategy::ShortestQueue)[0], 0);
}

#[test]
fn fits_look_at_all_resources() {
    let scenario = |strategy| {
        let mut fixture = Fixture::new(strategy);
        // Much memory and few cores; the reverse; little of both; too little.
        for (cpu_milli, memory) in [(4_000, 64), (16_000, 8), (4_000, 8), (1_000, 64)] {
            fixture.join(with_capacity(cpu_milli, memory * GIB, 4));
        }
        let requirement =
            Requirement { cpu_milli: 2_000, memory_bytes: 8 * GIB, ..Requirement::default() };
        (0..4)
            .map(|_| fixture.place(asking(requirement.clone())).map(|slot| slot.0))
            .collect::<Vec<_>>()
    };
    // Free amounts, in cores or 4 GiB: 20, 18, 6; cores and memory add up.
    assert_eq!(scenario(Strategy::BestFit), [Some(2), Some(1), Some(0), Some(0)]);
    assert_eq!(scenario(Strategy::WorstFit), [Some(0), Some(1), Some(0), Some(2)]);
    assert_eq!(scenario(Strategy::FirstFit), [Some(0), Some(0), Some(1), Some(2)]);
}

#[test]
fn predictive_binds_late_and_waits_for_the_fast_one() {
    let mut fixture = Fixture::new(predictive());
    fixture.join_fast(8.0);
    let slow = fixture.join_fast(1.0);
    fixture.arrive(spec_of(4.0));
    fixture.arrive(spec_of(4.0));
    fixture.arrive(spec_of(4.0));
    // 0.5 s on the fast one; the second waits there rather than run for 4 s.
    assert_eq!(dispatched(&fixture.plan())[0], (0, 0));
    assert_eq!(fixture.where_is(TaskRef(1)), None);
    assert!(fixture.placement.statistics().held_back > 0);
    assert!(fixture.placement.plan_at().is_some(), "the free worker must be looked at again");
    // The fast one hangs: the task that waits for it goes elsewhere.
    fixture.placement.mark_started(TaskRef(0), fixture.now);
    fixture.later(60.0);
    assert!(dispatched(&fixture.plan()).contains(&(1, slow.0)));
    // An early-binding strategy binds all of them at once.
    let mut fixture = Fixture::of(Strategy::ShortestQueue, 1);
    fixture.arrive_many(3);
    fixture.plan();
    assert_eq!(fixture.placement.waiting(), 0);
}

#[test]
fn run_that_begins_about_when_expected_changes_nothing() {
    let mut fixture = Fixture::new(predictive());
    let slot = fixture.join_fast(1.0);
    fixture.arrive(spec_of(4.0));
    assert_eq!(dispatched(&fixture.plan()), [(0, 0)]);
    let left_s = |fixture: &Fixture| {
        fixture.placement.backlog_s(slot, fixture.now).map(|(mean_s, _)| mean_s)
    };
    // The message has travelled.
    fixture.later(0.01);
    let before = left_s(&fixture);
    fixture.placement.mark_started(TaskRef(0), fixture.now);
    assert_eq!(left_s(&fixture), before);
    // It waited there: its run time counts from now.
    fixture.later(1.0);
    let before = left_s(&fixture);
    fixture.placement.mark_started(TaskRef(0), fixture.now);
    assert!(left_s(&fixture) > before.map(|before| before + 0.5), "{before:?}");
}

#[test]
fn short_tasks_overtake_long_ones_but_not_for_ever() {
    let scenario = |ageing, wait_s| {
        let parameters = Predictive { ageing, exploration: 0.0, ..Predictive::default() };
        let mut fixture = Fixture::new(Strategy::Predictive(parameters));
        fixture.join_fast(1.0);
        // The worker is busy and many tasks wait, so there is a backlog.
        fixture.arrive(spec_of(1.0));
        fixture.plan();
        fixture.placement.mark_started(TaskRef(0), fixture.now);
        for _ in 0..30 {
            fixture.arrive(spec_of(1.0));
        }
        let long = fixture.arrive(spec_of(8.0));
        fixture.later(wait_s);
        let short = fixture.arrive(spec_of(0.1));
        let mut order = Vec::new();
        let mut running = TaskRef(0);
        for _ in 0..32 {
            fixture.later(0.1);
            fixture.complete(running, 0.1);
            let next = dispatched(&fixture.plan());
            running = TaskRef(next[0].0);
            order.push(running);
        }
        let at = |task| order.iter().position(|other| *other == task).unwrap_or(99);
        at(short) < at(long)
    };
    assert!(scenario(2.0, 0.0), "the shorter goes first");
    assert!(!scenario(0.0, 0.0), "without ageing it is first come, first served");
    assert!(!scenario(2.0, 3_600.0), "a task that has waited long is not overtaken");
}

#[test]
fn predictive_orders_by_priority_and_deadline() {
    let scenario = |requirement: Requirement| {
        let mut fixture = Fixture::new(predictive());
        fixture.join_fast(1.0);
        fixture.arrive(spec_of(1.0));
        fixture.plan();
        fixture.arrive(spec_of(1.0));
        let mut spec = spec_of(1.0);
        spec.requirement =
            Requirement { estimated_time: spec.requirement.estimated_time, ..requirement };
        let special = fixture.arrive(spec);
        fixture.complete(TaskRef(0), 1.0);
        dispatched(&fixture.plan())[0].0 == special.0
    };
    assert!(!scenario(Requirement::default()));
    assert!(scenario(Requirement {
        priority: Priority::from_milli(1_000),
        ..Requirement::default()
    }));
    let deadline = Some(Span::from_secs_f64(1.5));
    assert!(scenario(Requirement { deadline, ..Requirement::default() }));
}

#[test]
fn wait_surcharge_sends_short_tasks_to_free_workers() {
    let scenario = |wait_surcharge| {
        let parameters = Predictive { wait_surcharge, exploration: 0.0, ..Predictive::default() };
        let mut fixture = Fixture::new(Strategy::Predictive(parameters));
        fixture.join_fast(4.0);
        fixture.join_fast(1.0);
        fixture.place(spec_of(1.0));
        // 0.25 s of waiting and 0.25 s of running there, 1 s here.
        fixture.place(spec_of(1.0)).map(|slot| slot.0)
    };
    assert_eq!((scenario(0.0), scenario(9.0)), (None, Some(1)));
}

#[test]
fn exploration_tries_a_worker_that_was_not_used_for_long() {
    let scenario = |exploration| {
        let parameters = Predictive { exploration, ..Predictive::default() };
        let mut fixture = Fixture::new(Strategy::Predictive(parameters));
        fixture.join_fast(4.0);
        fixture.join_fast(1.0);
        fixture.later(10_000.0);
        let mut tried = 0;
        for _ in 0..20 {
            let task = fixture.arrive(spec_of(1.0));
            fixture.plan();
            tried += fixture.where_is(task).unwrap();
            fixture.complete(task, 1.0);
        }
        assert_eq!(fixture.placement.statistics().explored > 0, exploration > 0.0);
        tried
    };
    assert_eq!(scenario(0.0), 0);
    // Once: then it is no longer stale.
    assert_eq!(scenario(1.0), 1);
}

#[test]
fn the_next_task_travels_while_the_last_one_ends() {
    let scenario = |rtt_ms| {
        let mut fixture = Fixture::new(predictive());
        let slot = fixture.join_fast(1.0);
        fixture.placement.record_contact(slot, Span::from_millis(rtt_ms), fixture.now);
        fixture.arrive(spec_of(1.0));
        fixture.arrive(spec_of(1.0));
        fixture.plan();
        assert_eq!(fixture.where_is(TaskRef(1)), None);
        let again = fixture.placement.plan_at().filter(|_| rtt_ms > 0);
        assert_eq!(again.is_some(), rtt_ms > 0);
        fixture.later(0.95);
        fixture.plan();
        fixture.where_is(TaskRef(1))
    };
    assert_eq!((scenario(0), scenario(500)), (None, Some(0)));
}

#[test]
fn a_full_executor_is_not_a_free_worker() {
    // Two executors, one task each at a time; only one serves the model. Tasks that wait for that one must neither be
    // piled onto the worker nor be predicted to start at once.
    let mut fixture = Fixture::new(predictive());
    let executors = vec![executor("a", &["llama"], 1), executor("b", &["gpt"], 1)];
    let slot = fixture.join(Worker { executors, ..plain() });
    fixture.placement.record_contact(slot, Span::from_millis(1), fixture.now);
    for _ in 0..5 {
        let model = Some(name("llama"));
        let mut spec = spec_of(1.0);
        spec.requirement.model = model;
        fixture.arrive(spec);
    }
    assert_eq!(dispatched(&fixture.plan()).len(), 1);
    let chosen = fixture.placement.explanation(TaskRef(1)).unwrap().chosen.unwrap();
    assert!(chosen.terms.unwrap().wait_s > 0.0, "{chosen:?}");
}

#[test]
fn task_bound_at_once_goes_to_the_shortest_queue_if_it_must_wait() {
    for strategy in [
        Strategy::Fifo,
        Strategy::FirstFit,
        Strategy::BestFit,
        Strategy::WorstFit,
        Strategy::Priority,
    ] {
        let mut fixture = Fixture::new(strategy);
        (0..2).for_each(|_| {
            fixture.join(with_capacity(1_000, GIB, 1));
        });
        // All slots and amounts are taken.
        let whole = Requirement { cpu_milli: 1_000, memory_bytes: GIB, ..Requirement::default() };
        fixture.arrive(asking(whole.clone()));
        fixture.arrive(asking(whole.clone()));
        fixture.plan();
        for _ in 0..4 {
            let request =
                PlacementRequest { bind_at_once: true, ..fixture.request(asking(whole.clone())) };
            fixture.arrive_with(request);
        }
        fixture.plan();
        let bound: Vec<_> = (2..6).map(|task| fixture.where_is(TaskRef(task))).collect();
        assert_eq!(bound, [0, 1, 0, 1].map(Some), "{strategy}");
    }
}

#[test]
fn preferences_hold_for_every_strategy() {
    for strategy in crate::random::strategies() {
        let preferences = Preferences {
            prefer_region: Some(name("eu")),
            max_rtt: Some(Span::from_millis(100)),
            ..Preferences::default()
        };
        let mut fixture = Fixture::with(strategy, preferences);
        for region in ["us", "eu", "us"] {
            fixture.join(Worker { region: Some(name(region)), ..plain() });
        }
        assert_eq!(fixture.place_plain(), Some(1), "{strategy}: the region first");
        fixture.placement.finish(TaskRef(0), hypha_placement::AttemptEnd::Withdrawn, fixture.now);
        fixture.placement.record_contact(WorkerSlot(1), Span::from_millis(200), fixture.now);
        fixture.placement.record_contact(WorkerSlot(0), Span::from_millis(200), fixture.now);
        assert_eq!(fixture.place_plain(), Some(2), "{strategy}: within max_rtt");
        fixture.placement.finish(TaskRef(1), hypha_placement::AttemptEnd::Withdrawn, fixture.now);
        fixture.placement.record_contact(WorkerSlot(0), Span::from_millis(1), fixture.now);
        let place = |fixture: &mut Fixture, failed_on: Vec<WorkerSlot>| {
            let request = PlacementRequest {
                failed_on: failed_on.into(),
                ..fixture.request(TaskSpec::default())
            };
            let task = fixture.arrive_with(request);
            fixture.plan();
            let slot = fixture.where_is(task);
            fixture.placement.finish(task, hypha_placement::AttemptEnd::Withdrawn, fixture.now);
            slot
        };
        assert_eq!(
            place(&mut fixture, vec![WorkerSlot(0)]),
            Some(2),
            "{strategy}: another worker first"
        );
        assert_eq!(
            place(&mut fixture, vec![WorkerSlot(2)]),
            Some(0),
            "{strategy}: another worker first"
        );
        assert!(
            place(&mut fixture, vec![WorkerSlot(0), WorkerSlot(2)]).is_some(),
            "{strategy}: the same worker if no other is left"
        );
    }
}

#[test]
fn adopted_task_without_a_matching_executor_is_harmless() {
    let mut fixture = Fixture::new(predictive());
    let slot = fixture.join(Worker { executors: Vec::new(), ..plain() });
    let task = fixture.arrive(TaskSpec::default());
    fixture.placement.adopt(task, slot, &fixture.predictor, fixture.now);
    assert_eq!(fixture.where_is(task), Some(slot.0));
    fixture.complete(task, 1.0);
    fixture.placement.check(fixture.now).unwrap();
}

#[test]
fn invalid_factor_is_ignored() {
    let mut fixture = Fixture::of(predictive(), 2);
    for factor in [f64::NAN, f64::INFINITY, -1.0, 0.0] {
        fixture.placement.set_factor(WorkerSlot(0), factor, fixture.now);
        let slot = fixture.place(spec_of(1.0));
        assert!(slot.is_some() || fixture.placement.waiting() > 0);
    }
    fixture.placement.check(fixture.now).unwrap();
}

#[test]
fn overstated_capacity_and_demand_do_not_overflow() {
    let load_metric = LoadMetric::MemoryUsage;
    let mut fixture =
        Fixture::new(Strategy::CapabilityBased { load_metric, pick: Pick::LeastLoaded });
    let mut worker = with_capacity(u64::MAX, u64::MAX, u32::MAX);
    worker.executors.push(executor("more", &[], u32::MAX));
    fixture.join(worker);
    let everything =
        Requirement { cpu_milli: u64::MAX, memory_bytes: u64::MAX, ..Requirement::default() };
    (0..4).for_each(|_| {
        assert_eq!(fixture.place(asking(everything.clone())), Some(WorkerSlot(0)));
    });
}

#[test]
fn worker_without_a_record_gets_few_tasks_ahead() {
    let mut fixture = Fixture::new(CAPABILITY);
    let slot = fixture.join(plain());
    fixture.placement.record_contact(slot, Span::from_millis(1), fixture.now);
    fixture.arrive_many(20);
    assert_eq!(dispatched(&fixture.plan()).len(), 2);
}

#[test]
fn switch_keeps_the_order_of_arrival_and_dispatched_tasks() {
    let mut fixture = Fixture::of(Strategy::ShortestQueue, 1);
    fixture.arrive_many(6);
    assert_eq!(dispatched(&fixture.plan()), [(0, 0), (1, 0)]);
    fixture.placement.switch(Strategy::Fifo, fixture.now);
    assert_eq!((fixture.placement.waiting(), fixture.where_is(TaskRef(1))), (4, Some(0)));
    for expected in 2..6 {
        fixture.complete(TaskRef(expected - 2), 1.0);
        fixture.complete(TaskRef(expected - 1), 1.0);
        assert_eq!(dispatched(&fixture.plan()), [(expected, 0)]);
    }
}

#[test]
fn penalties_decay_under_other_strategies_too() {
    let mut fixture = Fixture::of(Strategy::RoundRobin, 2);
    record(&mut fixture, 9, |fixture, task, slot| match slot {
        0 => fixture.fail(task),
        _ => fixture.complete(task, 1.0),
    });
    fixture.later(36_000.0);
    fixture.placement.switch(Strategy::LoadBalancing { penalty_half_life_s: 300.0 }, fixture.now);
    assert_eq!(places(&mut fixture, 2), [Some(1), Some(0)], "long ago");
}

#[test]
fn saved_health_record_is_used() {
    let mut fixture = Fixture::new(Strategy::PerformanceAware);
    let mut poor = Health::default();
    poor.success_rate = 0.2;
    fixture.join_healthy(plain(), poor);
    fixture.join(plain());
    assert_eq!(fixture.place_plain(), Some(1));
}
