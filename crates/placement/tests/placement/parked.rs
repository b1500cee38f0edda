//! Tasks that no worker can run cost the others nothing, and are found when a worker joins that can. The tests count
//! looks (a look that finds no worker is counted as `waited`), not time.

use hypha_model::{Requirement, Span, TaskSpec, Worker};
use hypha_placement::{Preferences, Strategy, TaskRef, WorkerSlot};

use crate::fixture::{Fixture, GIB, asking, executor, name, plain};
use crate::random::strategies;

fn serving(models: &[&str]) -> Worker {
    Worker { executors: vec![executor("vllm", models, 4)], ..plain() }
}

fn wanting(model: &str) -> TaskSpec {
    asking(Requirement { model: Some(name(model)), ..Requirement::default() })
}

/// Plans until no further plan is due at once; returns how many plans it took.
fn settle(fixture: &mut Fixture) -> usize {
    for plans in 1..10_000 {
        fixture.plan();
        if fixture.placement.plan_at().is_none_or(|at| at > fixture.now) {
            return plans;
        }
    }
    panic!("the plans do not settle");
}

fn arrive_unschedulable(fixture: &mut Fixture, count: usize) -> Vec<TaskRef> {
    let tasks = (0..count).map(|at| fixture.arrive(wanting(&format!("absent-{at}")))).collect();
    settle(fixture);
    tasks
}

#[test]
fn unschedulable_tasks_are_evaluated_once() {
    for strategy in strategies() {
        let mut fixture = Fixture::new(strategy);
        fixture.join(serving(&["llama"]));
        arrive_unschedulable(&mut fixture, 600);
        assert_eq!(fixture.placement.statistics().waited, 600, "{strategy}");
        for _ in 0..50 {
            let task = fixture.arrive(wanting("llama"));
            fixture.plan();
            assert_eq!(fixture.where_is(task), Some(0), "{strategy}");
            fixture.complete(task, 1.0);
        }
        // More tasks of the same shapes do not change that.
        arrive_unschedulable(&mut fixture, 300);
        assert_eq!(fixture.placement.statistics().waited, 600, "{strategy}");
    }
}

#[test]
fn new_worker_finds_the_tasks_it_can_run_and_looks_at_no_others() {
    for strategy in strategies() {
        let mut fixture = Fixture::new(strategy);
        fixture.join(serving(&["llama"]));
        let tasks = arrive_unschedulable(&mut fixture, 600);
        let looks = fixture.placement.statistics().waited;
        let slot = fixture.join(serving(&["absent-7", "absent-11"]));
        fixture.plan();
        for (at, task) in tasks.iter().enumerate() {
            let expected = (at == 7 || at == 11).then_some(slot.0);
            assert_eq!(fixture.where_is(*task), expected, "{strategy} {at}");
        }
        assert_eq!(fixture.placement.statistics().waited, looks, "{strategy}");
    }
}

#[test]
fn worker_for_any_model_finds_all_tasks_a_bounded_number_per_plan() {
    for strategy in strategies() {
        let mut fixture = Fixture::new(strategy);
        fixture.join(serving(&["llama"]));
        arrive_unschedulable(&mut fixture, 5_000);
        fixture.join(serving(&[]));
        let plans = settle(&mut fixture);
        assert!((5..60).contains(&plans), "{strategy}: {plans} plans");
        let full = fixture.placement.view(WorkerSlot(1), fixture.now).unwrap();
        let bound_or_full = full.queued + full.in_flight >= 4;
        assert!(bound_or_full && fixture.placement.waiting() < 5_000, "{strategy}");
    }
}

/// Whatever makes a worker able to run more, the tasks that waited for it begin.
#[test]
fn parked_tasks_return_with_their_worker() {
    for strategy in strategies() {
        for cause in ["available", "executor", "near", "joined"] {
            let max_rtt = Some(Span::from_millis(10));
            let mut fixture =
                Fixture::with(strategy, Preferences { max_rtt, ..Preferences::default() });
            let slot = fixture.join(serving(&["llama"]));
            fixture.join(serving(&["gpt"]));
            match cause {
                "available" => fixture.placement.set_available(slot, false, fixture.now),
                "executor" => fixture.placement.set_suspended(slot, 0, true, fixture.now),
                "near" => {
                    fixture.placement.record_contact(slot, Span::from_millis(50), fixture.now)
                }
                _ => drop(fixture.placement.remove_worker(slot, fixture.now)),
            }
            let task = fixture.arrive(wanting("llama"));
            settle(&mut fixture);
            assert_eq!(fixture.where_is(task), None, "{strategy} {cause}");
            match cause {
                "available" => fixture.placement.set_available(slot, true, fixture.now),
                "executor" => fixture.placement.set_suspended(slot, 0, false, fixture.now),
                "near" => fixture.placement.record_contact(slot, Span::from_millis(5), fixture.now),
                _ => drop(fixture.join(serving(&["llama"]))),
            }
            fixture.plan();
            assert!(fixture.where_is(task).is_some(), "{strategy} {cause}");
        }
    }
}

/// A thousand shapes of tasks that lack memory now, and one behind them that does not.
#[test]
fn long_queue_without_room_is_searched_in_bounded_steps() {
    for strategy in [Strategy::Fifo, Strategy::BestFit, Strategy::Priority] {
        let mut fixture = Fixture::new(strategy);
        let mut worker = serving(&[]);
        worker.capacity.memory_bytes = 10 * GIB;
        fixture.join(worker);
        let memory = |memory_bytes| asking(Requirement { memory_bytes, ..Requirement::default() });
        assert_eq!(fixture.place(memory(6 * GIB)), Some(WorkerSlot(0)));
        (0..1_000).for_each(|at| {
            fixture.arrive(memory(5 * GIB + at));
        });
        let small = fixture.arrive(memory(GIB));
        let (mut plans, mut before) = (0, fixture.placement.statistics().waited);
        while fixture.where_is(small).is_none() {
            fixture.plan();
            plans += 1;
            let looks = fixture.placement.statistics().waited;
            // Plus those with a reservation.
            assert!(looks - before <= 256 + 16, "{strategy}: {} looks", looks - before);
            before = looks;
            assert!(fixture.placement.plan_at().is_some() || fixture.where_is(small).is_some());
        }
        assert!((3..=6).contains(&plans), "{strategy}: {plans} plans");
    }
}
