//! Work that is too much for one step is done in parts; in between, each item has its old or its new state.

use std::sync::Arc;

use hypha_engine::scheduler::{TASKS_PER_PART, Unavailability};
use hypha_engine::{Command, Record, SchedulerEvent, Settings};
use hypha_machine::Machine;
use hypha_model::{Span, TaskId, TaskState};
use hypha_placement::Strategy;

use crate::harness::*;

const PER_STEP: usize = 4;

fn rig(strategy: Strategy) -> Rig {
    Rig::new(Settings { strategy, items_per_step: PER_STEP, ..Settings::default() })
}

/// A worker with this concurrency is found.
fn join(rig: &mut Rig, n: u8, concurrency: u32) {
    let mut wide = worker(n);
    wide.executors[0].concurrency = concurrency;
    rig.workers.entry(worker_id(n)).or_default();
    rig.event(SchedulerEvent::WorkerFound(Arc::new(wide)));
}

/// Ten tasks that a worker runs at once.
fn ten_running(rig: &mut Rig) -> Vec<Assignment> {
    join(rig, 1, 10);
    let assignment: Vec<Assignment> = (0..10).map(|_| rig.dispatched(task()).1).collect();
    assignment.iter().for_each(|assignment| rig.start(assignment));
    assignment
}

fn requeued(rig: &Rig) -> usize {
    rig.persisted().filter(|record| matches!(record, Record::Requeued { .. })).count()
}

fn has_rest(rig: &Rig) -> bool {
    rig.scheduler.wake_at(rig.now) == Some(rig.now)
}

/// Wakes the scheduler as long as it asks to be woken at once. Returns how many items `count` saw in each step.
fn rest(rig: &mut Rig, count: impl Fn(&Rig) -> usize) -> Vec<usize> {
    let mut counts = Vec::new();
    while has_rest(rig) {
        rig.event(SchedulerEvent::Woke);
        counts.push(count(rig));
        assert!(counts.len() < 100, "it does not end: {counts:?}");
    }
    counts
}

#[test]
fn attempts_of_a_lost_worker_are_given_up_in_parts() {
    let mut rig = rig(Strategy::Fifo);
    let assignment = ten_running(&mut rig);
    rig.silence(1);
    rig.event(SchedulerEvent::WorkerDisconnected(worker_id(1)));
    assert_eq!(requeued(&rig), PER_STEP);
    let unused = rig.scheduler.unavailability_of(worker_id(1), None);
    assert!(matches!(unused, Some(Unavailability::Lost { .. })), "unavailable at once: {unused:?}");
    assert!(has_rest(&rig));

    // A deferred attempt is still valid: its result counts.
    let valid = |rig: &Rig, assignment: &&Assignment| {
        rig.view(assignment.dispatch.attempt.task).state == TaskState::Running
    };
    let last = assignment.iter().rfind(|assignment| valid(&rig, assignment)).unwrap().clone();
    rig.finish(&last);
    assert_eq!(rig.ended(last.dispatch.attempt.task).state, TaskState::Completed);

    assert_eq!(rest(&mut rig, requeued), [4, 1], "the one with a result is skipped");
    assert_eq!(rig.scheduler.counts().retried, 9);
    let health = rig.scheduler.workers(rig.now)[0].0.health.clone();
    assert_eq!(health.failed, 1, "it failed once, although it sent a message meanwhile");
}

#[test]
fn a_worker_with_a_new_lease_stops_attempts_that_are_not_given_up_yet() {
    let mut rig = rig(Strategy::Fifo);
    let assignment = ten_running(&mut rig);
    // It answers at once, and names all of them.
    rig.event(SchedulerEvent::WorkerDisconnected(worker_id(1)));
    assert!(rig.scheduler.lease_of(worker_id(1)).is_some());
    assert!(assignment.iter().all(|assignment| rig.is_cancelled(assignment)));
    rest(&mut rig, requeued);
    assert_eq!(rig.scheduler.counts().retried, 10);
    rig.wait(secs(5));
    let again = rig.scheduler.workers(rig.now)[0].0.in_flight;
    assert_eq!(again, 10, "they are dispatched to it again");
}

#[test]
fn tasks_bound_to_a_lost_worker_are_released_in_parts() {
    let mut rig = rig(Strategy::RoundRobin);
    join(&mut rig, 1, 1);
    let tasks: Vec<TaskId> = (0..12).map(|_| rig.submit(task())).collect();
    let bound = |rig: &Rig| {
        tasks.iter().filter(|task| rig.view(**task).state == TaskState::Scheduled).count()
    };
    rig.silence(1);
    rig.event(SchedulerEvent::WorkerDisconnected(worker_id(1)));
    assert_eq!(bound(&rig), 12 - PER_STEP);
    assert_eq!(rest(&mut rig, bound), [4, 0]);
}

#[test]
fn a_long_queue_is_reordered_in_parts() {
    let mut rig = rig(Strategy::Fifo);
    let tasks: Vec<TaskId> = (0..10)
        .map(|n| {
            let priority = hypha_model::Priority::from_milli(n * 1_000);
            rig.submit(with_spec(|spec| spec.requirement.priority = priority))
        })
        .collect();
    rig.ask(Command::SetStrategy(Strategy::Priority));
    assert!(has_rest(&rig));
    assert_eq!(rest(&mut rig, |_| 0).len(), 2);
    join(&mut rig, 1, 1);
    let first = rig.dispatches()[0].dispatch.attempt.task;
    assert_eq!(Some(&first), tasks.last());
}

#[test]
fn work_due_at_the_same_time_is_done_in_parts() {
    let mut rig = rig(Strategy::Fifo);
    for _ in 0..10 {
        rig.submit(with_deadline(10));
    }
    rig.now = rig.now + Span::from_secs(10);
    rig.event(SchedulerEvent::Woke);
    assert_eq!(rig.ends(), PER_STEP);
    let mut ends = Vec::new();
    while rig.scheduler.wake_at(rig.now).is_some_and(|at| at <= rig.now) {
        rig.event(SchedulerEvent::Woke);
        ends.push(rig.ends());
    }
    assert_eq!(ends, [4, 2]);
}

#[test]
fn a_new_description_takes_effect_when_the_old_attempts_are_gone() {
    let mut rig = rig(Strategy::Fifo);
    ten_running(&mut rig);
    join(&mut rig, 1, 20);
    assert_eq!(requeued(&rig), PER_STEP);
    let described = |rig: &Rig| {
        let (view, lease) = rig.scheduler.workers(rig.now).remove(0);
        (view.worker.executors[0].concurrency, view.available, lease.is_some())
    };
    assert!(matches!(described(&rig), (10, false, _)), "it gets no new tasks");
    rest(&mut rig, requeued);
    assert_eq!(described(&rig), (20, true, true));
    assert_eq!(rig.scheduler.counts().retried, 10);
}

#[test]
fn a_worker_that_withdraws_its_new_description_keeps_the_old_one() {
    let mut rig = rig(Strategy::Fifo);
    ten_running(&mut rig);
    join(&mut rig, 1, 20);
    join(&mut rig, 1, 10);
    rest(&mut rig, requeued);
    let (view, lease) = rig.scheduler.workers(rig.now).remove(0);
    assert_eq!(view.worker.executors[0].concurrency, 10);
    assert!(view.available && lease.is_some());
}

#[test]
fn task_views_are_bounded() {
    let mut rig = Rig::new(Settings::default());
    let tasks: Vec<TaskId> = (0..TASKS_PER_PART + 1).map(|_| rig.submit(task())).collect();
    let views = rig.scheduler.task_views(&tasks, rig.now);
    assert_eq!(views.len(), TASKS_PER_PART);
    assert!(views.iter().all(Option::is_some));
    assert_eq!(rig.scheduler.task_views(&tasks[views.len()..], rig.now).len(), 1);
}
