//! Tasks that no worker can run cost the others nothing, and are found when a worker comes that can. What is counted is
//! looks (a look that finds no worker is counted as `waited`), not time.

use hypha_model::{Requirement, Span, TaskSpec, Worker};
use hypha_placement::{Preferences, Slot, Strategy, TaskRef};

use crate::bench::{Bench, GIB, asking, executor, name, plain};
use crate::random::strategies;

fn serving(models: &[&str]) -> Worker {
    Worker { executors: vec![executor("vllm", models, 4)], ..plain() }
}

fn wanting(model: &str) -> TaskSpec {
    asking(Requirement { model: Some(name(model)), ..Requirement::default() })
}

/// Plans until nothing more is wanted at once; says how many plans it took.
fn settle(bench: &mut Bench) -> usize {
    for plans in 1..10_000 {
        bench.plan();
        if bench.placement.plan_at().is_none_or(|at| at > bench.now) {
            return plans;
        }
    }
    panic!("it does not settle");
}

fn arrive_unserved(bench: &mut Bench, count: usize) -> Vec<TaskRef> {
    let tasks = (0..count).map(|at| bench.arrive(wanting(&format!("absent-{at}")))).collect();
    settle(bench);
    tasks
}

#[test]
fn what_nobody_can_run_is_looked_at_once() {
    for strategy in strategies() {
        let mut bench = Bench::new(strategy);
        bench.join(serving(&["llama"]));
        arrive_unserved(&mut bench, 600);
        assert_eq!(bench.placement.statistics().waited, 600, "{strategy}");
        for _ in 0..50 {
            let task = bench.arrive(wanting("llama"));
            bench.plan();
            assert_eq!(bench.where_is(task), Some(0), "{strategy}");
            bench.complete(task, 1.0);
        }
        // More of the same do not change that.
        arrive_unserved(&mut bench, 300);
        assert_eq!(bench.placement.statistics().waited, 600, "{strategy}");
    }
}

#[test]
fn a_worker_that_comes_finds_what_it_can_run_and_looks_at_nothing_else() {
    for strategy in strategies() {
        let mut bench = Bench::new(strategy);
        bench.join(serving(&["llama"]));
        let tasks = arrive_unserved(&mut bench, 600);
        let looks = bench.placement.statistics().waited;
        let slot = bench.join(serving(&["absent-7", "absent-11"]));
        bench.plan();
        for (at, task) in tasks.iter().enumerate() {
            let expected = (at == 7 || at == 11).then_some(slot.0);
            assert_eq!(bench.where_is(*task), expected, "{strategy} {at}");
        }
        assert_eq!(bench.placement.statistics().waited, looks, "{strategy}");
    }
}

#[test]
fn a_worker_that_may_run_anything_finds_everything_a_bounded_number_in_a_plan() {
    for strategy in strategies() {
        let mut bench = Bench::new(strategy);
        bench.join(serving(&["llama"]));
        arrive_unserved(&mut bench, 5_000);
        bench.join(serving(&[]));
        let plans = settle(&mut bench);
        assert!((5..60).contains(&plans), "{strategy}: {plans} plans");
        let full = bench.placement.view(Slot(1), bench.now).unwrap();
        let bound_or_full = full.queued + full.in_flight >= 4;
        assert!(bound_or_full && bench.placement.waiting() < 5_000, "{strategy}");
    }
}

/// Whatever makes a worker able to run more, what waited for that begins.
#[test]
fn whatever_brings_a_worker_back_brings_its_tasks_back() {
    for strategy in strategies() {
        for way in ["available", "executor", "near", "joined"] {
            let max_rtt = Some(Span::from_millis(10));
            let mut bench =
                Bench::with(strategy, Preferences { max_rtt, ..Preferences::default() });
            let slot = bench.join(serving(&["llama"]));
            bench.join(serving(&["gpt"]));
            match way {
                "available" => bench.placement.set_available(slot, false, bench.now),
                "executor" => bench.placement.leave_alone(slot, 0, true, bench.now),
                "near" => bench.placement.saw(slot, Some(Span::from_millis(50)), bench.now),
                _ => drop(bench.placement.remove_worker(slot, bench.now)),
            }
            let task = bench.arrive(wanting("llama"));
            settle(&mut bench);
            assert_eq!(bench.where_is(task), None, "{strategy} {way}");
            match way {
                "available" => bench.placement.set_available(slot, true, bench.now),
                "executor" => bench.placement.leave_alone(slot, 0, false, bench.now),
                "near" => bench.placement.saw(slot, Some(Span::from_millis(5)), bench.now),
                _ => drop(bench.join(serving(&["llama"]))),
            }
            bench.plan();
            assert!(bench.where_is(task).is_some(), "{strategy} {way}");
        }
    }
}

/// A thousand kinds of tasks that lack memory now, and one behind them that does not.
#[test]
fn a_long_queue_without_room_is_walked_through_in_bounded_steps() {
    for strategy in [Strategy::Fifo, Strategy::BestFit, Strategy::Priority] {
        let mut bench = Bench::new(strategy);
        let mut worker = serving(&[]);
        worker.capacity.memory_bytes = 10 * GIB;
        bench.join(worker);
        let memory = |memory_bytes| asking(Requirement { memory_bytes, ..Requirement::default() });
        assert_eq!(bench.place(memory(6 * GIB)), Some(Slot(0)));
        (0..1_000).for_each(|at| {
            bench.arrive(memory(5 * GIB + at));
        });
        let small = bench.arrive(memory(GIB));
        let (mut plans, mut before) = (0, bench.placement.statistics().waited);
        while bench.where_is(small).is_none() {
            bench.plan();
            plans += 1;
            let looks = bench.placement.statistics().waited;
            // And those that room is kept for.
            assert!(looks - before <= 256 + 16, "{strategy}: {} looks", looks - before);
            before = looks;
            assert!(bench.placement.plan_at().is_some() || bench.where_is(small).is_some());
        }
        assert!((3..=6).contains(&plans), "{strategy}: {plans} plans");
    }
}
