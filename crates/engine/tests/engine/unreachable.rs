//! Unreachable back ends: nothing ran there, so no attempt is used up, and they get no tasks until they are reachable.

use std::sync::Arc;

use hypha_engine::record::NO_WORKER_LEFT;
use hypha_engine::scheduler::Unavailability;
use hypha_engine::{
    Effect, FromWorker, LeaseRequest, Notice, Outcome, OwnerReason, SchedulerEvent, Settings,
    ToWorker,
};
use hypha_model::{FailureKind, Name, Refusal, RefusalKind, Span, TaskError, TaskState};

use crate::harness::*;
use crate::quarantine::{asking, joined, of_models};

fn unreached() -> Outcome {
    Outcome::Unreachable { error: "connection refused".to_owned() }
}

fn beats(rig: &Rig) -> usize {
    rig.sent_to(1).iter().filter(|told| matches!(told, ToWorker::Heartbeat { .. })).count()
}

#[test]
fn a_task_waits_until_the_back_end_is_reachable() {
    let mut rig = Rig::with_workers(&[1]);
    for unwell in 1..=5 {
        let (id, assignment) = rig.dispatched(task());
        // The worker does not answer for some seconds.
        rig.silence(1);
        rig.finish_with(&assignment, unreached());
        let since = rig.now;
        let why = rig.scheduler.unavailability_of(worker_id(1), None);
        assert_eq!(why, Some(Unavailability::Unreachable { since }));
        rig.wait(secs(4));
        assert_eq!((beats(&rig), rig.dispatches().len()), (0, 0), "not at once");
        rig.wait(secs(4));
        assert_eq!((beats(&rig), rig.dispatches().len()), (1, 0), "checked");
        rig.workers.get_mut(&worker_id(1)).unwrap().silent = false;
        rig.wait(secs(2));
        let again = rig.dispatches();
        assert_eq!(again.len(), 1, "reachable again, {unwell}");
        assert_eq!(rig.scheduler.unavailability_of(worker_id(1), None), None);
        assert_eq!(
            (rig.stored(id).failures, &*rig.view(id).failed[0].reason),
            (0, "connection refused")
        );
        rig.finish(&again[0]);
        assert_eq!(rig.ended(id).state, TaskState::Completed);
    }
    let counts = rig.scheduler.counts();
    assert_eq!((counts.quarantines, counts.leases_lost), (0, 0));
    assert_eq!(rig.scheduler.workers(rig.now)[0].0.health.failed, 0);
}

#[test]
fn an_older_heartbeat_does_not_make_a_back_end_reachable() {
    let mut rig = Rig::with_workers(&[1]);
    let (_, assignment) = rig.dispatched(task());
    rig.accept(&assignment);
    rig.silence(1);
    rig.wait(secs(30));
    let beat = rig.sent_to(1).into_iter().find_map(|told| match told {
        ToWorker::Heartbeat { lease, epoch, nonce, .. } => Some((lease, epoch, nonce)),
        _ => None,
    });
    let (lease, epoch, nonce) = beat.expect("a heartbeat is in flight");
    rig.now = rig.now + Span::from_millis(1);
    rig.finish_with(&assignment, unreached());
    let holding = Vec::new();
    rig.receive(1, FromWorker::Alive { lease, epoch, nonce, portion: None, usage: None, holding });
    assert!(rig.scheduler.unavailability_of(worker_id(1), None).is_some());
}

#[test]
fn a_back_end_that_stays_unreachable_is_lost_and_its_lease_requested_again() {
    let mut rig = Rig::with_workers(&[1]);
    let (id, assignment) = rig.dispatched(task());
    rig.silence(1);
    rig.finish_with(&assignment, unreached());
    rig.wait(secs(25));
    assert_eq!(rig.scheduler.lease_of(worker_id(1)), None);
    rig.wait(secs(600));
    assert_eq!((rig.view(id).state, rig.stored(id).failures), (TaskState::Queued, 0));
    rig.workers.get_mut(&worker_id(1)).unwrap().silent = false;
    rig.wait(secs(30));
    assert!(!rig.dispatches().is_empty());
}

#[test]
fn a_stored_task_waits_for_an_unreachable_back_end() {
    let mut rig = Rig::with_workers(&[1]);
    let (id, mut assignment) = rig.dispatched(task());
    for unreachable in 1..=150 {
        rig.finish_with(&assignment, unreached());
        assert_eq!(rig.view(id).state, TaskState::Queued, "after {unreachable}");
        // It passes each health check, and every call fails.
        while rig.dispatches().is_empty() {
            rig.wait(secs(1));
        }
        assignment = rig.dispatches().remove(0);
    }
    rig.finish(&assignment);
    assert_eq!(rig.ended(id).state, TaskState::Completed);
}

/// An interactive task goes to another worker, or fails soon if there is none.
#[test]
fn an_interactive_task_fails_soon_if_no_worker_is_available() {
    let mut rig = Rig::with_workers(&[1, 2]);
    rig.unstored = 1;
    let (id, assignment) = rig.dispatched(unstored());
    rig.finish_with(&assignment, unreached());
    rig.wait(rig.settings.min_plan_interval);
    let again = rig.dispatches();
    assert_eq!(again.len(), 1, "replaced at once");
    assert_ne!(again[0].worker, assignment.worker);
    rig.unstored = 0;
    rig.finish_with(&again[0], unreached());
    let ended = rig.sent().find_map(|effect| match effect {
        Effect::Notice { task, notice: Notice::Ended { finished, .. } } if *task == id => {
            finished.error.clone()
        }
        _ => None,
    });
    let message = format!("{NO_WORKER_LEFT}: connection refused");
    assert_eq!(ended, Some(TaskError::new(FailureKind::BackendUnreachable, message)));
}

fn set_unreachable(rig: &mut Rig, executors: &[&str]) -> Vec<Name> {
    let executors: Vec<Name> = executors.iter().map(|one| name(one)).collect();
    rig.workers.get_mut(&worker_id(1)).unwrap().unreachable = executors.clone();
    executors
}

/// If one of a worker's back ends is unreachable, only its executor gets no tasks.
#[test]
fn other_executors_are_used_while_one_is_unreachable() {
    let mut rig = joined(Settings::default(), of_models(1));
    let (id, assignment) = rig.dispatched(asking("a"));
    let since = rig.now;
    set_unreachable(&mut rig, &["for-a"]);
    rig.finish_with(&assignment, unreached());
    for minutes in 1..=10 {
        rig.wait(secs(60));
        assert!(rig.dispatches().is_empty(), "after {minutes} minutes");
        assert!((5..=15).contains(&beats(&rig)), "{} heartbeats in a minute", beats(&rig));
    }
    assert_eq!((rig.view(id).state, rig.stored(id).failures), (TaskState::Queued, 0));
    let why =
        |rig: &Rig, executor| rig.scheduler.executor_unavailability_of(worker_id(1), executor);
    assert_eq!(why(&rig, 0), Some(Unavailability::Unreachable { since }));
    assert_eq!(why(&rig, 1), None);
    assert_eq!(rig.scheduler.unavailability_of(worker_id(1), None), None);
    let wanted = asking("a").spec;
    let why = rig.scheduler.unavailability_of(worker_id(1), Some(&wanted.requirement));
    assert_eq!(why, Some(Unavailability::Unreachable { since }));
    let (_, other) = rig.dispatched(asking("b"));
    rig.finish(&other);

    set_unreachable(&mut rig, &[]);
    rig.wait(secs(11));
    let again = rig.dispatches();
    assert!(!again.is_empty(), "reachable again");
    rig.finish(&again[0]);
    assert_eq!(rig.ended(id).state, TaskState::Completed);
    rig.wait(secs(120));
    assert!(beats(&rig) <= 5, "heartbeats are as rare as before");
}

/// A worker that checks its back ends reports an unreachable one before an attempt fails on it.
#[test]
fn a_reported_unreachable_executor_gets_no_attempts_and_deadlines_hold() {
    let mut rig = joined(Settings::default(), of_models(1));
    let executors = set_unreachable(&mut rig, &["for-a", "unknown"]);
    rig.receive(1, FromWorker::Unreachable { executors, owner: None });
    let spec = |spec: &mut hypha_model::TaskSpec| {
        spec.requirement.model = Some(name("a"));
        spec.requirement.deadline = Some(secs(100));
    };
    let (ends, waits) = (rig.submit(with_spec(spec)), rig.submit(asking("a")));
    rig.wait(secs(101));
    assert!(rig.dispatches().is_empty());
    assert_eq!(rig.ended(ends).state, TaskState::Expired);
    // The restarted scheduler gets the report again with its new lease.
    rig.restart();
    assert!(rig.dispatches().is_empty(), "no attempt is made");
    rig.wait(secs(60));
    assert!(rig.dispatches().is_empty());
    set_unreachable(&mut rig, &[]);
    rig.wait(secs(11));
    assert_eq!(rig.view(waits).attempts, 1);
}

/// A worker reports at once that its back end is reachable again, without waiting for the next heartbeat.
#[test]
fn an_executor_reported_reachable_is_used_at_once() {
    let mut rig = joined(Settings::default(), of_models(1));
    let executors = set_unreachable(&mut rig, &["for-a", "for-b"]);
    rig.receive(1, FromWorker::Unreachable { executors, owner: None });
    let (a, b) = (rig.submit(asking("a")), rig.submit(asking("b")));
    assert!(rig.dispatches().is_empty());
    let executors = set_unreachable(&mut rig, &["for-b"]);
    rig.receive(1, FromWorker::Unreachable { executors, owner: None });
    assert_eq!((rig.view(a).attempts, rig.view(b).attempts), (1, 0));
    set_unreachable(&mut rig, &[]);
    rig.receive(1, FromWorker::Unreachable { executors: vec![], owner: None });
    assert_eq!(rig.view(b).attempts, 1);
}

/// Requests for a lease become rarer for a lost worker, but not for one that answers that it is unavailable.
#[test]
fn a_lost_worker_that_refuses_as_unavailable_is_asked_often() {
    let mut rig = Rig::with_workers(&[1]);
    rig.silence(1);
    rig.event(SchedulerEvent::WorkerDisconnected(worker_id(1)));
    rig.wait(secs(600));
    for _ in 0..10 {
        let asked = rig.sent_to(1).iter().rev().find_map(|told| match told {
            ToWorker::RequestLease(LeaseRequest { request, .. }) => Some(*request),
            _ => None,
        });
        let refusal = Refusal::without_amount(RefusalKind::Unavailable);
        let request = asked.expect("a lease was requested");
        rig.receive(1, FromWorker::LeaseRefused { request, refusal });
        rig.wait(secs(6));
    }
}

/// An executor that is both unreachable and quarantined is used again when neither holds.
#[test]
fn unreachable_and_quarantined_are_separate_reasons() {
    let mut rig = joined(Settings::default(), of_models(1));
    for _ in 0..3 {
        let (_, assignment) = rig.dispatched(asking("a"));
        rig.finish_with(&assignment, failed(true));
    }
    let waits = rig.submit(asking("a"));
    let executors = set_unreachable(&mut rig, &["for-a"]);
    rig.receive(1, FromWorker::Unreachable { executors, owner: None });
    rig.wait(secs(40));
    assert_eq!(rig.view(waits).attempts, 0, "the quarantine is over");
    set_unreachable(&mut rig, &[]);
    rig.wait(secs(11));
    assert!(!rig.dispatches().is_empty());
}

/// A task that waits for a busy worker is schedulable; one that waits for an unreachable worker is not.
#[test]
fn a_task_is_unschedulable_if_no_worker_would_take_it() {
    let mut rig = joined(Settings::default(), of_models(1));
    let (runs, assignment) = rig.dispatched(asking("a"));
    let waits = rig.submit(asking("a"));
    let why =
        |rig: &Rig, id| rig.scheduler.unschedulable(id).map(|unschedulable| unschedulable.why);
    assert_eq!((why(&rig, runs), why(&rig, waits)), (None, None));
    let executors = set_unreachable(&mut rig, &["for-a"]);
    rig.receive(1, FromWorker::Unreachable { executors, owner: None });
    let since = rig.now;
    assert_eq!(why(&rig, runs), None, "it may still complete");
    assert_eq!(why(&rig, waits), Some(Some(Unavailability::Unreachable { since })));
    rig.finish(&assignment);
    assert_eq!(why(&rig, runs), None, "it has ended");
    assert_eq!(why(&rig, waits), Some(Some(Unavailability::Unreachable { since })));
}

/// A worker's owner pauses it: the tasks that waited there go elsewhere without using an attempt, and the reason is
/// shown, also by a worker that grants no lease because of it.
#[test]
fn a_paused_worker_gets_no_tasks_and_the_reason_is_shown() {
    let mut rig = joined(Settings::default(), of_models(1));
    let (id, assignment) = rig.dispatched(asking("a"));
    let since = rig.now;
    let executors = set_unreachable(&mut rig, &["for-a", "for-b", "for-c"]);
    let reason = OwnerReason::Paused;
    rig.receive(1, FromWorker::Unreachable { executors: executors.clone(), owner: Some(reason) });
    let refusal = Refusal::without_amount(RefusalKind::Unavailable);
    let (attempt, fence) = (assignment.dispatch.attempt, assignment.dispatch.fence);
    rig.receive(1, FromWorker::Refused { attempt, fence, refusal });
    assert_eq!((rig.view(id).state, rig.stored(id).failures), (TaskState::Queued, 0));
    let why = |rig: &Rig| rig.scheduler.unavailability_of(worker_id(1), None);
    assert_eq!(why(&rig), Some(Unavailability::Owner { since, reason }));
    assert!(rig.dispatches().is_empty());
    // It is resumed, but its back ends are unreachable.
    rig.receive(1, FromWorker::Unreachable { executors, owner: None });
    assert_eq!(why(&rig), Some(Unavailability::Unreachable { since }));
    set_unreachable(&mut rig, &[]);
    rig.receive(1, FromWorker::Unreachable { executors: vec![], owner: None });
    assert_eq!(why(&rig), None);
    rig.wait(secs(5));
    assert_eq!(rig.view(id).attempts, 2);
}

/// A worker was lost and is back with terms that do not serve this scheduler: they are the reason.
#[test]
fn terms_of_the_owner_are_shown_rather_than_that_the_worker_was_lost() {
    for kind in [RefusalKind::NotServed, RefusalKind::Price] {
        let mut rig = joined(Settings::default(), of_models(1));
        rig.silence(1);
        rig.event(SchedulerEvent::WorkerDisconnected(worker_id(1)));
        rig.event(SchedulerEvent::WorkerFound(Arc::new(of_models(1))));
        let requested = rig.sent_to(1).into_iter().find_map(|message| match message {
            ToWorker::RequestLease(LeaseRequest { request, .. }) => Some(request),
            _ => None,
        });
        let refusal = Refusal::without_amount(kind);
        rig.receive(1, FromWorker::LeaseRefused { request: requested.unwrap(), refusal });
        let why = rig.scheduler.unavailability_of(worker_id(1), None);
        assert_eq!(why, Some(Unavailability::NotLeased { refused: Some(kind) }));
    }
}
