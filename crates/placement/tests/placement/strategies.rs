//! What each strategy is for. Each story is told in a way that no other recipe would end like it.

use hypha_model::{Capacity, Priority, Requirement, Span, TaskSpec, Worker};
use hypha_placement::{
    Action, Health, LoadMetric, Pick, Predictive, Preferences, Slot, Strategy, TaskRef, Ticket,
};

use crate::bench::{Bench, GIB, asking, dispatched, executor, gpus, name, plain, spec_of};

const CAPABILITY: Strategy =
    Strategy::CapabilityBased { load_metric: LoadMetric::TaskCount, pick: Pick::LeastLoaded };

/// `predictive` without luck: nothing is tried out.
fn predictive() -> Strategy {
    Strategy::Predictive(Predictive { exploration: 0.0, ..Predictive::default() })
}

fn places(bench: &mut Bench, count: usize) -> Vec<Option<u32>> {
    (0..count).map(|_| bench.place_plain()).collect()
}

fn with_capacity(cpu_milli: u64, memory_bytes: u64, at_once: u32) -> Worker {
    Worker {
        capacity: Capacity { cpu_milli, memory_bytes, ..Capacity::default() },
        executors: vec![executor("vllm", &[], at_once)],
        ..plain()
    }
}

/// Runs a task on each of the workers in turn and lets it end as `end` says.
fn record(bench: &mut Bench, rounds: usize, end: impl Fn(&mut Bench, TaskRef, u32)) {
    for _ in 0..rounds {
        for slot in bench.placement.slots() {
            let ticket = bench.ticket(TaskSpec::default());
            let task = bench.arrive_with(ticket);
            bench.placement.adopt(task, slot, &bench.predictor, bench.now);
            end(bench, task, slot.0);
        }
    }
}

#[test]
fn fifo_and_first_fit_take_the_first_with_room_in_the_order_of_arrival() {
    for strategy in [Strategy::Fifo, Strategy::FirstFit] {
        let mut bench = Bench::of(strategy, 2);
        let urgent = asking(Requirement { priority: Priority(5_000), ..Requirement::default() });
        bench.arrive_many(3);
        bench.arrive(urgent);
        assert_eq!(dispatched(&bench.plan()), [(0, 0), (1, 1)]);
        bench.complete(TaskRef(1), 1.0);
        assert_eq!(dispatched(&bench.plan()), [(2, 1)], "the urgent one must not pass");
    }
}

#[test]
fn priority_goes_first_and_to_the_least_loaded() {
    let mut bench = Bench::new(Strategy::Priority);
    bench.join(with_capacity(0, 0, 2));
    bench.join(with_capacity(0, 0, 2));
    for priority in [0, 500, 9_000, 500] {
        let requirement = Requirement { priority: Priority(priority), ..Requirement::default() };
        bench.arrive(asking(requirement));
    }
    assert_eq!(dispatched(&bench.plan()), [(2, 0), (1, 1), (3, 0), (0, 1)]);
}

#[test]
fn round_robin_goes_around_whatever_the_load() {
    let mut bench = Bench::of(Strategy::RoundRobin, 3);
    let around: Vec<_> = [0, 1, 2, 0, 1, 2, 0].map(Some).to_vec();
    assert_eq!(places(&mut bench, 7), around);
    bench.placement.set_available(Slot(2), false, bench.now);
    assert_eq!(places(&mut bench, 3), [Some(1), Some(0), Some(1)]);
}

#[test]
fn capability_based_takes_the_least_loaded_by_each_metric() {
    // By tasks the last is the least loaded, by cores the first, by memory the second.
    for (load_metric, expected) in
        [(LoadMetric::CpuUsage, 0), (LoadMetric::MemoryUsage, 1), (LoadMetric::TaskCount, 2)]
    {
        let mut bench =
            Bench::new(Strategy::CapabilityBased { load_metric, pick: Pick::LeastLoaded });
        (0..3).for_each(|_| {
            bench.join(with_capacity(10_000, 10 * GIB, 4));
        });
        for (slot, cpu_milli, memory_gib) in
            [(0, 100, 4), (0, 100, 4), (1, 2_000, 1), (1, 2_000, 1), (2, 5_000, 5)]
        {
            let memory_bytes = memory_gib * GIB;
            let ticket = bench.ticket(asking(Requirement {
                cpu_milli,
                memory_bytes,
                ..Requirement::default()
            }));
            let task = bench.arrive_with(ticket);
            bench.placement.adopt(task, Slot(slot), &bench.predictor, bench.now);
        }
        assert_eq!(bench.place_plain(), Some(expected), "{load_metric:?}");
    }
}

#[test]
fn random_picks_are_uniform() {
    let pick = Strategy::CapabilityBased { load_metric: LoadMetric::TaskCount, pick: Pick::Random };
    for strategy in [Strategy::Random, pick] {
        let mut bench = Bench::of(strategy, 5);
        // A hole, and one that cannot: the others must not get their share from a neighbour.
        bench.placement.remove_worker(Slot(1), bench.now);
        bench.placement.set_available(Slot(3), false, bench.now);
        let mut counts = [0u32; 5];
        for _ in 0..3_000 {
            counts[bench.place_plain().unwrap() as usize] += 1;
        }
        assert_eq!((counts[1], counts[3]), (0, 0));
        // Three standard deviations of a share of a third of 3,000 are 77.
        assert!([0, 2, 4].iter().all(|at| counts[*at].abs_diff(1_000) < 80), "{counts:?}");
    }
}

#[test]
fn power_of_two_is_between_random_and_least_loaded() {
    let spread = |strategy| {
        let mut bench = Bench::of(strategy, 50);
        let mut counts = [0u32; 50];
        for _ in 0..1_000 {
            counts[bench.place_plain().unwrap() as usize] += 1;
        }
        counts.iter().max().unwrap() - counts.iter().min().unwrap()
    };
    let (random, two, least) =
        (spread(Strategy::Random), spread(Strategy::PowerOfTwo), spread(CAPABILITY));
    assert!(random > 10 && (2..=8).contains(&two) && least == 0, "{random} {two} {least}");
    // Of two workers both are always drawn.
    let mut bench = Bench::of(Strategy::PowerOfTwo, 2);
    let told = places(&mut bench, 20);
    assert_eq!(told.iter().filter(|slot| **slot == Some(0)).count(), 10);
}

#[test]
fn performance_aware_prefers_each_part_of_a_record() {
    let pick =
        Strategy::CapabilityBased { load_metric: LoadMetric::TaskCount, pick: Pick::Performance };
    for strategy in [Strategy::PerformanceAware, pick] {
        // Speed.
        let mut bench = Bench::of(strategy, 3);
        record(&mut bench, 5, |bench, task, slot| {
            bench.complete(task, [2.0, 1.0, 3.0][slot as usize])
        });
        assert_eq!(bench.place_plain(), Some(1));
        // Load: twice as fast, so one task ahead is a tie and two are worse.
        assert_eq!(places(&mut bench, 2), [Some(0), Some(1)]);
        // Success.
        let mut bench = Bench::of(strategy, 2);
        record(&mut bench, 5, |bench, task, slot| match slot {
            0 => bench.fail(task),
            _ => bench.complete(task, 1.0),
        });
        record(&mut bench, 1, |bench, task, _| bench.complete(task, 1.0));
        assert_eq!(bench.place_plain(), Some(1));
        // Latency.
        let mut bench = Bench::of(strategy, 2);
        record(&mut bench, 5, |bench, task, _| bench.complete(task, 1.0));
        bench.placement.saw(Slot(0), Some(Span::from_millis(300)), bench.now);
        assert_eq!(bench.place_plain(), Some(1));
    }
}

#[test]
fn load_balancing_counts_tasks_by_gpus_and_forgets_failures() {
    let strategy = Strategy::LoadBalancing { penalty_half_life_s: 10.0 };
    let mut bench = Bench::new(strategy);
    for count in [1, 4] {
        let capacity = Capacity { devices: gpus(count), ..Capacity::default() };
        bench.join(Worker { capacity, ..plain() });
    }
    // 0/1 and 0/4; then 1/1 against 0/4, 1/4, 2/4, 3/4; then a tie.
    assert_eq!(places(&mut bench, 6), [0, 1, 1, 1, 1, 0].map(Some));

    let mut bench = Bench::of(strategy, 2);
    let task = bench.arrive(TaskSpec::default());
    bench.plan();
    bench.fail(task);
    // A failure weighs as much as a task on a worker with one GPU.
    assert_eq!(bench.place_plain(), Some(1));
    bench.later(40.0);
    bench.placement.refresh(bench.now);
    // 1/16 of it is left, against one task.
    assert_eq!(bench.place_plain(), Some(0));
    let chosen = bench.placement.explanation(TaskRef(2)).unwrap().chosen.unwrap();
    assert!((chosen.score - 0.0625).abs() < 1e-3, "{chosen:?}");
}

#[test]
fn the_idle_steal_the_newest_from_the_longest_queue_above_the_threshold() {
    let queue = |bound: usize| {
        let mut bench = Bench::new(Strategy::WorkStealing { steal_threshold: 2 });
        bench.join(plain());
        // Two are in the hands of the worker, the rest in its queue here.
        bench.arrive_many(2 + bound);
        bench.plan();
        bench.join(plain());
        bench
    };
    assert_eq!(queue(2).plan(), []);
    let mut bench = queue(3);
    let (task, from, to) = (TaskRef(4), Slot(0), Slot(1));
    assert_eq!(
        bench.plan(),
        [Action::Move { task, from, to }, Action::Dispatch { task, slot: to }]
    );
    assert_eq!(bench.placement.statistics().steals, 1);
    let explanation = bench.placement.explanation(task).unwrap();
    let [thief, victim] = [1, 0].map(|slot| bench.placement.worker_id(Slot(slot)));
    assert_eq!(explanation.chosen.map(|chosen| chosen.worker), thief);
    assert_eq!(explanation.runners_up.first().map(|other| other.worker), victim);
}

#[test]
fn what_may_not_go_to_a_worker_is_not_stolen_by_it() {
    let story = |preferences: Preferences, rtt_ms: u64, tried: &[Slot]| {
        let mut bench = Bench::with(Strategy::WorkStealing { steal_threshold: 2 }, preferences);
        bench.join(plain());
        for _ in 0..6 {
            let tried = Box::from(tried);
            let ticket = Ticket { tried, ..bench.ticket(TaskSpec::default()) };
            bench.arrive_with(ticket);
        }
        bench.plan();
        let thief = bench.join(plain());
        bench.placement.saw(thief, Some(Span::from_millis(rtt_ms)), bench.now);
        bench.plan();
        bench.placement.statistics().steals
    };
    let near = Preferences { max_rtt: Some(Span::from_millis(10)), ..Preferences::default() };
    assert_eq!(story(near.clone(), 5, &[]), 1);
    assert_eq!(story(near, 20, &[]), 0, "too far");
    assert_eq!(story(Preferences::default(), 5, &[Slot(1)]), 0, "tried before");
}

#[test]
fn a_full_scheduler_does_not_steal_from_itself() {
    // A queue that `max_given` holds up, at a worker that could run all of it at once.
    let preferences = Preferences { max_given: Some(1), ..Preferences::default() };
    let mut bench = Bench::with(Strategy::WorkStealing { steal_threshold: 0 }, preferences);
    bench.join(with_capacity(0, 0, 8));
    bench.arrive_many(5);
    assert_eq!(dispatched(&bench.plan()).len(), 1);
    assert_eq!(bench.placement.statistics().steals, 0);
}

#[test]
fn adaptive_learns_as_fast_as_it_is_told_to() {
    // The first was slow once and fast since; who learns slowly has not forgotten.
    let story = |learning_rate| {
        let mut bench = Bench::of(Strategy::Adaptive { learning_rate }, 2);
        record(&mut bench, 1, |bench, task, slot| bench.complete(task, [9.0, 2.0][slot as usize]));
        record(&mut bench, 4, |bench, task, slot| bench.complete(task, [1.0, 2.0][slot as usize]));
        bench.place_plain()
    };
    assert_eq!((story(0.9), story(0.1)), (Some(0), Some(1)));
}

#[test]
fn shortest_queue_adds_backlog_and_run() {
    let mut bench = Bench::new(Strategy::ShortestQueue);
    bench.join_fast(1.0);
    bench.join_fast(4.0);
    // Where it ends first: 1/4, 2/4, 3/4, then 4/4 or 1/1.
    let told = places_of(&mut bench, 1.0, 3);
    assert_eq!(told, [Some(1); 3]);
    let told = places_of(&mut bench, 1.0, 5);
    assert_eq!(told.iter().filter(|slot| **slot == Some(0)).count(), 1, "{told:?}");
}

fn places_of(bench: &mut Bench, seconds: f64, count: usize) -> Vec<Option<u32>> {
    (0..count).map(|_| bench.place(spec_of(seconds)).map(|slot| slot.0)).collect()
}

#[test]
fn weighted_counts_uncertainty_against_a_worker() {
    // The same expected finish: one has two tasks ahead whose time nobody knows, the other is a bit slower.
    let story = |strategy| {
        let mut bench = Bench::new(strategy);
        bench.join_fast(1.0);
        bench.join_fast(0.45);
        let explained = |bench: &mut Bench| {
            let task = bench.arrive(spec_of(1.0));
            let full = bench.placement.explain_fully(task, &bench.predictor, bench.now).unwrap();
            bench.plan();
            full.verdicts[0].candidate.unwrap().terms.unwrap()
        };
        explained(&mut bench);
        explained(&mut bench)
    };
    let (plain, weighted) =
        (story(Strategy::ShortestQueue), story(Strategy::Weighted { weight: 9.0 }));
    assert_eq!(plain.error_s, 0.0);
    assert!(weighted.error_s > 0.0);
    assert!((plain.total() - (plain.wait_s + plain.run_s)).abs() < 1e-9);
}

#[test]
fn probabilistic_spreads_and_favours_the_shorter() {
    let count = |strategy| {
        let mut counts = [0u32; 2];
        // Nobody has been seen at work, so predictions are uncertain.
        let mut bench = Bench::of(strategy, 2);
        bench.placement.set_factor(Slot(0), 1.0, bench.now);
        bench.placement.set_factor(Slot(1), 0.7, bench.now);
        for _ in 0..300 {
            let task = bench.arrive(spec_of(1.0));
            bench.plan();
            counts[bench.where_is(task).unwrap() as usize] += 1;
            bench.complete(task, 1.0);
        }
        counts
    };
    let [slow, fast] = count(Strategy::Probabilistic);
    assert!(slow > 60 && fast > slow + 30, "{slow} {fast}");
    assert_eq!(count(Strategy::ShortestQueue)[0], 0);
}

#[test]
fn fits_look_at_all_resources() {
    let story = |strategy| {
        let mut bench = Bench::new(strategy);
        // Much memory and few cores; the reverse; little of both; too little.
        for (cpu_milli, memory) in [(4_000, 64), (16_000, 8), (4_000, 8), (1_000, 64)] {
            bench.join(with_capacity(cpu_milli, memory * GIB, 4));
        }
        let requirement =
            Requirement { cpu_milli: 2_000, memory_bytes: 8 * GIB, ..Requirement::default() };
        (0..4)
            .map(|_| bench.place(asking(requirement.clone())).map(|slot| slot.0))
            .collect::<Vec<_>>()
    };
    // Left over, in cores or 4 GiB: 20, 18, 6; a worker gives its cores and its memory.
    assert_eq!(story(Strategy::BestFit), [Some(2), Some(1), Some(0), Some(0)]);
    assert_eq!(story(Strategy::WorstFit), [Some(0), Some(1), Some(0), Some(2)]);
    assert_eq!(story(Strategy::FirstFit), [Some(0), Some(0), Some(1), Some(2)]);
}

#[test]
fn predictive_binds_late_and_waits_for_the_fast_one() {
    let mut bench = Bench::new(predictive());
    bench.join_fast(8.0);
    let slow = bench.join_fast(1.0);
    bench.arrive(spec_of(4.0));
    bench.arrive(spec_of(4.0));
    bench.arrive(spec_of(4.0));
    // 0.5 s on the fast one; the second waits there rather than run for 4 s.
    assert_eq!(dispatched(&bench.plan())[0], (0, 0));
    assert_eq!(bench.where_is(TaskRef(1)), None);
    assert!(bench.placement.statistics().held_back > 0);
    assert!(bench.placement.plan_at().is_some(), "the free worker must be looked at again");
    // The fast one hangs: whoever waits for it gives up.
    bench.placement.begin(TaskRef(0), bench.now);
    bench.later(60.0);
    assert!(dispatched(&bench.plan()).contains(&(1, slow.0)));
    // An early-binding strategy would have tied all of them at once.
    let mut bench = Bench::of(Strategy::ShortestQueue, 1);
    bench.arrive_many(3);
    bench.plan();
    assert_eq!(bench.placement.waiting(), 0);
}

#[test]
fn run_that_begins_about_when_expected_changes_nothing() {
    let mut bench = Bench::new(predictive());
    let slot = bench.join_fast(1.0);
    bench.arrive(spec_of(4.0));
    assert_eq!(dispatched(&bench.plan()), [(0, 0)]);
    let left_s =
        |bench: &Bench| bench.placement.backlog_s(slot, bench.now).map(|(mean_s, _)| mean_s);
    // A message has travelled.
    bench.later(0.01);
    let before = left_s(&bench);
    bench.placement.begin(TaskRef(0), bench.now);
    assert_eq!(left_s(&bench), before);
    // It waited there: its time counts from now.
    bench.later(1.0);
    let before = left_s(&bench);
    bench.placement.begin(TaskRef(0), bench.now);
    assert!(left_s(&bench) > before.map(|before| before + 0.5), "{before:?}");
}

#[test]
fn short_tasks_pass_long_ones_but_not_for_ever() {
    let story = |ageing, wait_s| {
        let parameters = Predictive { ageing, exploration: 0.0, ..Predictive::default() };
        let mut bench = Bench::new(Strategy::Predictive(parameters));
        bench.join_fast(1.0);
        // The worker is busy, and many wait, so that there is a backlog.
        bench.arrive(spec_of(1.0));
        bench.plan();
        bench.placement.begin(TaskRef(0), bench.now);
        for _ in 0..30 {
            bench.arrive(spec_of(1.0));
        }
        let long = bench.arrive(spec_of(8.0));
        bench.later(wait_s);
        let short = bench.arrive(spec_of(0.1));
        let mut order = Vec::new();
        let mut running = TaskRef(0);
        for _ in 0..32 {
            bench.later(0.1);
            bench.complete(running, 0.1);
            let given = dispatched(&bench.plan());
            running = TaskRef(given[0].0);
            order.push(running);
        }
        let at = |task| order.iter().position(|other| *other == task).unwrap_or(99);
        at(short) < at(long)
    };
    assert!(story(2.0, 0.0), "the shorter goes first");
    assert!(!story(0.0, 0.0), "without ageing it is first come, first served");
    assert!(!story(2.0, 3_600.0), "what has waited long is not passed");
}

#[test]
fn predictive_orders_by_priority_and_deadline() {
    let story = |requirement: Requirement| {
        let mut bench = Bench::new(predictive());
        bench.join_fast(1.0);
        bench.arrive(spec_of(1.0));
        bench.plan();
        bench.arrive(spec_of(1.0));
        let mut spec = spec_of(1.0);
        spec.requirement =
            Requirement { estimated_time: spec.requirement.estimated_time, ..requirement };
        let special = bench.arrive(spec);
        bench.complete(TaskRef(0), 1.0);
        dispatched(&bench.plan())[0].0 == special.0
    };
    assert!(!story(Requirement::default()));
    assert!(story(Requirement { priority: Priority(1_000), ..Requirement::default() }));
    let deadline = Some(Span::from_secs_f64(1.5));
    assert!(story(Requirement { deadline, ..Requirement::default() }));
}

#[test]
fn a_wait_surcharge_sends_short_tasks_to_what_is_free() {
    let story = |wait_surcharge| {
        let parameters = Predictive { wait_surcharge, exploration: 0.0, ..Predictive::default() };
        let mut bench = Bench::new(Strategy::Predictive(parameters));
        bench.join_fast(4.0);
        bench.join_fast(1.0);
        bench.place(spec_of(1.0));
        // 0.25 s of waiting and 0.25 s of running there, 1 s here.
        bench.place(spec_of(1.0)).map(|slot| slot.0)
    };
    assert_eq!((story(0.0), story(9.0)), (None, Some(1)));
}

#[test]
fn exploration_tries_a_worker_that_was_left_alone() {
    let story = |exploration| {
        let parameters = Predictive { exploration, ..Predictive::default() };
        let mut bench = Bench::new(Strategy::Predictive(parameters));
        bench.join_fast(4.0);
        bench.join_fast(1.0);
        bench.later(10_000.0);
        let mut tried = 0;
        for _ in 0..20 {
            let task = bench.arrive(spec_of(1.0));
            bench.plan();
            tried += bench.where_is(task).unwrap();
            bench.complete(task, 1.0);
        }
        assert_eq!(bench.placement.statistics().explored > 0, exploration > 0.0);
        tried
    };
    assert_eq!(story(0.0), 0);
    // Once: then it is no longer stale.
    assert_eq!(story(1.0), 1);
}

#[test]
fn the_next_task_travels_while_the_last_one_ends() {
    let story = |rtt_ms| {
        let mut bench = Bench::new(predictive());
        let slot = bench.join_fast(1.0);
        bench.placement.saw(slot, Some(Span::from_millis(rtt_ms)), bench.now);
        bench.arrive(spec_of(1.0));
        bench.arrive(spec_of(1.0));
        bench.plan();
        assert_eq!(bench.where_is(TaskRef(1)), None);
        let again = bench.placement.plan_at().filter(|_| rtt_ms > 0);
        assert_eq!(again.is_some(), rtt_ms > 0);
        bench.later(0.95);
        bench.plan();
        bench.where_is(TaskRef(1))
    };
    assert_eq!((story(0), story(500)), (None, Some(0)));
}

#[test]
fn a_full_executor_is_not_a_free_worker() {
    // Two executors, one each at a time; only one serves the model. What waits for that one must neither be
    // dumped on the worker nor be promised a start at once.
    let mut bench = Bench::new(predictive());
    let executors = vec![executor("a", &["llama"], 1), executor("b", &["gpt"], 1)];
    let slot = bench.join(Worker { executors, ..plain() });
    bench.placement.saw(slot, Some(Span::from_millis(1)), bench.now);
    for _ in 0..5 {
        let model = Some(name("llama"));
        let mut spec = spec_of(1.0);
        spec.requirement.model = model;
        bench.arrive(spec);
    }
    assert_eq!(dispatched(&bench.plan()).len(), 1);
    let chosen = bench.placement.explanation(TaskRef(1)).unwrap().chosen.unwrap();
    assert!(chosen.terms.unwrap().wait_s > 0.0, "{chosen:?}");
}

#[test]
fn a_task_that_must_be_bound_at_once_goes_to_the_shortest_queue_if_it_must_wait() {
    for strategy in [
        Strategy::Fifo,
        Strategy::FirstFit,
        Strategy::BestFit,
        Strategy::WorstFit,
        Strategy::Priority,
    ] {
        let mut bench = Bench::new(strategy);
        (0..2).for_each(|_| {
            bench.join(with_capacity(1_000, GIB, 1));
        });
        // Everything is taken.
        let whole = Requirement { cpu_milli: 1_000, memory_bytes: GIB, ..Requirement::default() };
        bench.arrive(asking(whole.clone()));
        bench.arrive(asking(whole.clone()));
        bench.plan();
        for _ in 0..4 {
            let ticket = Ticket { bind_at_once: true, ..bench.ticket(asking(whole.clone())) };
            bench.arrive_with(ticket);
        }
        bench.plan();
        let bound: Vec<_> = (2..6).map(|task| bench.where_is(TaskRef(task))).collect();
        assert_eq!(bound, [0, 1, 0, 1].map(Some), "{strategy}");
    }
}

#[test]
fn preferences_hold_for_every_strategy() {
    for strategy in crate::random::strategies() {
        let preferences = Preferences {
            prefer_region: Some(name("eu")),
            max_rtt: Some(Span::from_millis(100)),
            max_given: None,
        };
        let mut bench = Bench::with(strategy, preferences);
        for region in ["us", "eu", "us"] {
            bench.join(Worker { region: Some(name(region)), ..plain() });
        }
        assert_eq!(bench.place_plain(), Some(1), "{strategy}: the region first");
        bench.placement.finish(TaskRef(0), hypha_placement::Ending::Withdrawn, bench.now);
        bench.placement.saw(Slot(1), Some(Span::from_millis(200)), bench.now);
        bench.placement.saw(Slot(0), Some(Span::from_millis(200)), bench.now);
        assert_eq!(bench.place_plain(), Some(2), "{strategy}: not too far");
        bench.placement.finish(TaskRef(1), hypha_placement::Ending::Withdrawn, bench.now);
        bench.placement.saw(Slot(0), Some(Span::from_millis(1)), bench.now);
        let place = |bench: &mut Bench, tried: Vec<Slot>| {
            let ticket = Ticket { tried: tried.into(), ..bench.ticket(TaskSpec::default()) };
            let task = bench.arrive_with(ticket);
            bench.plan();
            let slot = bench.where_is(task);
            bench.placement.finish(task, hypha_placement::Ending::Withdrawn, bench.now);
            slot
        };
        assert_eq!(place(&mut bench, vec![Slot(0)]), Some(2), "{strategy}: elsewhere first");
        assert_eq!(place(&mut bench, vec![Slot(2)]), Some(0), "{strategy}: elsewhere first");
        assert!(place(&mut bench, vec![Slot(0), Slot(2)]).is_some(), "{strategy}: or there again");
    }
}

#[test]
fn an_adopted_task_that_the_worker_offers_no_executor_for_harms_nothing() {
    let mut bench = Bench::new(predictive());
    let slot = bench.join(Worker { executors: Vec::new(), ..plain() });
    let task = bench.arrive(TaskSpec::default());
    bench.placement.adopt(task, slot, &bench.predictor, bench.now);
    assert_eq!(bench.where_is(task), Some(slot.0));
    bench.complete(task, 1.0);
    bench.placement.check(bench.now).unwrap();
}

#[test]
fn what_is_no_factor_is_ignored() {
    let mut bench = Bench::of(predictive(), 2);
    for factor in [f64::NAN, f64::INFINITY, -1.0, 0.0] {
        bench.placement.set_factor(Slot(0), factor, bench.now);
        let slot = bench.place(spec_of(1.0));
        assert!(slot.is_some() || bench.placement.waiting() > 0);
    }
    bench.placement.check(bench.now).unwrap();
}

#[test]
fn a_worker_that_boasts_and_a_queue_that_asks_for_everything_do_not_overflow() {
    let load_metric = LoadMetric::MemoryUsage;
    let mut bench = Bench::new(Strategy::CapabilityBased { load_metric, pick: Pick::LeastLoaded });
    let mut worker = with_capacity(u64::MAX, u64::MAX, u32::MAX);
    worker.executors.push(executor("more", &[], u32::MAX));
    bench.join(worker);
    let everything =
        Requirement { cpu_milli: u64::MAX, memory_bytes: u64::MAX, ..Requirement::default() };
    (0..4).for_each(|_| {
        assert_eq!(bench.place(asking(everything.clone())), Some(Slot(0)));
    });
}

#[test]
fn a_worker_without_a_record_is_not_buried_in_tasks() {
    let mut bench = Bench::new(CAPABILITY);
    let slot = bench.join(plain());
    bench.placement.saw(slot, Some(Span::from_millis(1)), bench.now);
    bench.arrive_many(20);
    assert_eq!(dispatched(&bench.plan()).len(), 2);
}

#[test]
fn a_switch_keeps_the_order_of_arrival_and_what_was_handed_over() {
    let mut bench = Bench::of(Strategy::ShortestQueue, 1);
    bench.arrive_many(6);
    assert_eq!(dispatched(&bench.plan()), [(0, 0), (1, 0)]);
    bench.placement.switch(Strategy::Fifo, bench.now);
    assert_eq!((bench.placement.waiting(), bench.where_is(TaskRef(1))), (4, Some(0)));
    for expected in 2..6 {
        bench.complete(TaskRef(expected - 2), 1.0);
        bench.complete(TaskRef(expected - 1), 1.0);
        assert_eq!(dispatched(&bench.plan()), [(expected, 0)]);
    }
}

#[test]
fn failures_under_another_strategy_are_forgotten_too() {
    let mut bench = Bench::of(Strategy::RoundRobin, 2);
    record(&mut bench, 9, |bench, task, slot| match slot {
        0 => bench.fail(task),
        _ => bench.complete(task, 1.0),
    });
    bench.later(36_000.0);
    bench.placement.switch(Strategy::LoadBalancing { penalty_half_life_s: 300.0 }, bench.now);
    assert_eq!(places(&mut bench, 2), [Some(1), Some(0)], "long ago");
}

#[test]
fn a_health_that_was_kept_is_used() {
    let mut bench = Bench::new(Strategy::PerformanceAware);
    let mut poor = Health::default();
    poor.success_rate = 0.2;
    bench.join_healthy(plain(), poor);
    bench.join(plain());
    assert_eq!(bench.place_plain(), Some(1));
}
