//! A new incarnation from the durable state of the last one. (For tasks in every stage, see `stages.rs`.)

use std::sync::Arc;

use hypha_engine::{Command, FromWorker, Record, Reply, RetryPolicy, SchedulerEvent, Settings};
use hypha_model::{Epoch, Refusal, RefusalKind, Span, TaskId, TaskState};
use hypha_placement::Strategy;
use hypha_predict::{LookupTable, Mode};

use crate::harness::*;

#[test]
fn strategy_mode_predictor_and_health_come_back() {
    let mut rig = Rig::with_workers(&[1, 2]);
    // One is much slower than the other.
    let both = [rig.dispatched(task()).1, rig.dispatched(task()).1];
    rig.now = rig.now + secs(1);
    for assignment in both {
        let (attempt, fence) = (assignment.dispatch.attempt, assignment.dispatch.fence);
        let run = Span::from_millis(if assignment.n() == 1 { 10 } else { 900 });
        rig.receive(
            assignment.n(),
            FromWorker::Finished { attempt, fence, run, outcome: completed() },
        );
    }
    rig.ask(Command::SetStrategy(Strategy::BestFit));
    let table = LookupTable::from_csv("model,mean_ms,error_ms\n*,1500,10\n").unwrap();
    assert_eq!(
        rig.ask(Command::SetMode(Mode::LookupTable)),
        Reply::ModeSet(Err(hypha_predict::NoLookupTable))
    );
    rig.ask(Command::SetTable(table));
    assert_eq!(rig.ask(Command::SetMode(Mode::LookupTable)), Reply::ModeSet(Ok(())));
    rig.wait(secs(30));
    let learned = |rig: &Rig| -> Vec<(u64, f64)> {
        let workers = rig.scheduler.workers(rig.now).into_iter();
        workers.map(|(view, _)| (view.health.completed, view.factor)).collect()
    };
    let before = learned(&rig);
    assert!(before.iter().any(|(_, factor)| *factor != 1.0), "{before:?}");
    rig.restart();
    assert_eq!(rig.scheduler.epoch(), Epoch(2));
    assert!(matches!(rig.steps[0].persist[0], Record::Started { epoch: Epoch(2) }));
    assert_eq!(*rig.scheduler.strategy().0, Strategy::BestFit);
    assert_eq!(rig.disk.image.mode, Some(Mode::LookupTable));
    assert_eq!(rig.scheduler.mode(), Mode::Default, "until the driver has loaded the table");
    assert_eq!(learned(&rig), before);
}

#[test]
fn an_attempt_whose_worker_does_not_reconnect_is_retried_elsewhere() {
    let mut rig = Rig::with_workers(&[1]);
    let (id, assignment) = rig.dispatched(task());
    rig.silence(1);
    rig.restart();
    rig.join(2);
    assert_eq!(
        (rig.view(id).worker, rig.view(id).state),
        (Some(worker_id(1)), TaskState::Scheduled)
    );
    rig.wait(secs(119));
    assert!(rig.dispatches().is_empty(), "it may still run");
    rig.wait(secs(4));
    assert_eq!(rig.dispatches()[0].n(), 2);
    assert_eq!(
        rig.view(id).last_error.unwrap(),
        "the scheduler was restarted and the worker did not reconnect"
    );
    // It comes back after all, with the void attempt.
    rig.workers.get_mut(&worker_id(1)).unwrap().holding =
        vec![(assignment.dispatch.attempt, assignment.dispatch.fence)];
    rig.join(1);
    assert!(rig.is_cancelled(&assignment));
    rig.finish(&assignment);
    assert_eq!(rig.ends(), 0);
}

#[test]
fn a_result_that_arrives_before_the_lease_counts() {
    let mut rig = Rig::with_workers(&[1]);
    let (id, assignment) = rig.dispatched(task());
    rig.silence(1);
    rig.restart();
    rig.finish(&assignment);
    assert_eq!(rig.ended(id).state, TaskState::Completed);
    rig.join(1);
    assert_eq!(rig.scheduler.counts().retried, 0);
}

#[test]
fn a_backoff_continues_after_a_restart() {
    let mut rig = Rig::with_workers(&[1]);
    let (id, assignment) = rig.dispatched(task());
    rig.finish_with(&assignment, failed(true));
    let until = rig.view(id).not_before.unwrap();
    rig.restart();
    assert_eq!(rig.view(id).not_before, Some(until));
    rig.wait(until.since(rig.now));
    assert_eq!(rig.dispatches()[0].dispatch.attempt.number, 2);
}

/// By its clock, the next incarnation of a scheduler may begin earlier than the last one ended.
#[test]
fn a_clock_that_was_set_back_does_not_prolong_a_backoff() {
    let mut rig = Rig::with_workers(&[1]);
    let (id, assignment) = rig.dispatched(task());
    rig.finish_with(&assignment, failed(true));
    rig.now = rig.now - secs(3_600);
    rig.restart();
    let longest = rig.settings.retry.backoff_max;
    assert!(rig.view(id).not_before.unwrap() <= rig.now + longest);
    rig.wait(longest);
    assert_eq!(rig.dispatches()[0].dispatch.attempt.number, 2);
}

#[test]
fn an_answer_to_an_earlier_incarnation_is_ignored() {
    let mut rig = Rig::with_workers(&[1]);
    rig.silence(1);
    rig.restart();
    let old: Vec<_> = (0..100)
        .map(|request| hypha_engine::FromWorker::LeaseGranted {
            portion: None,
            request: (1 << 44) | request,
            lease: hypha_model::LeaseId::new(rig.now, &mut hypha_model::Rng::new(request)),
            epoch: Epoch(1),
            ttl: secs(120),
            holding: Vec::new(),
        })
        .collect();
    for grant in old {
        rig.receive(1, grant);
    }
    assert_eq!(rig.scheduler.lease_of(worker_id(1)), None);
    rig.event(SchedulerEvent::WorkerFound(Arc::new(worker(1))));
}

/// After a restart, the scheduler learns that an attempt runs, and since when.
#[test]
fn an_attempt_that_runs_over_a_restart_keeps_its_start_time() {
    for (elapsed, expected) in [(secs(4), secs(4)), (secs(1_000), secs(5))] {
        let mut rig = Rig::with_workers(&[1]);
        let (id, assignment) = rig.dispatched(task());
        rig.start(&assignment);
        rig.now = rig.now + secs(5);
        rig.restart();
        assert_eq!(rig.view(id).state, TaskState::Scheduled);
        let (attempt, fence) = (assignment.dispatch.attempt, assignment.dispatch.fence);
        rig.receive(1, FromWorker::Running { attempt, fence, elapsed });
        let view = rig.view(id);
        assert_eq!(view.state, TaskState::Running);
        let since = rig.now - expected;
        assert_eq!(view.started, Some(since), "not before its dispatch");
        rig.finish(&assignment);
        assert_eq!(rig.ended(id).started, Some(since));
    }
}

#[test]
fn the_start_of_an_unobserved_run_is_its_end_minus_its_run_time() {
    let mut rig = Rig::with_workers(&[1]);
    let (id, assignment) = rig.dispatched(task());
    rig.now = rig.now + secs(5);
    rig.restart();
    rig.finish(&assignment);
    assert_eq!(rig.ended(id).started, Some(rig.now - Span::from_millis(10)));
}

#[test]
fn a_removed_worker_stays_removed_over_a_restart_until_it_is_registered() {
    let mut rig = Rig::with_workers(&[1]);
    rig.ask(Command::RemoveWorker(worker_id(1)));
    for registered in [false, true] {
        if registered {
            rig.ask(Command::RegisterWorker(Arc::new(worker(1))));
        }
        rig.restart();
        rig.event(SchedulerEvent::WorkerFound(Arc::new(worker(1))));
        assert_eq!(rig.scheduler.workers(rig.now).len(), usize::from(registered));
        assert_eq!(rig.disk.image.removed.len(), usize::from(!registered));
        assert_eq!(rig.scheduler.is_removed(worker_id(1)), !registered);
    }
}

/// The worker may reconnect and finish its attempt, or never.
#[test]
fn a_draining_worker_finishes_its_attempts_over_a_restart() {
    for comes_back in [true, false] {
        let mut rig = Rig::with_workers(&[1]);
        let (id, assignment) = rig.dispatched(task());
        rig.start(&assignment);
        rig.ask(Command::RemoveWorker(worker_id(1)));
        rig.silence(1);
        rig.restart();
        let other = rig.submit(task());
        assert_eq!(rig.disk.image.workers.len(), 1, "it has an attempt left");
        if comes_back {
            rig.workers.get_mut(&worker_id(1)).unwrap().silent = false;
            rig.event(SchedulerEvent::WorkerFound(Arc::new(worker(1))));
            assert!(rig.scheduler.lease_of(worker_id(1)).is_some(), "to finish, leased at once");
            assert!(rig.dispatches().is_empty(), "and gets no new tasks");
            rig.finish(&assignment);
            assert_eq!(rig.ended(id).state, TaskState::Completed);
        } else {
            rig.wait(secs(121));
            assert_eq!(
                rig.view(id).last_error.unwrap(),
                "the scheduler was restarted and the worker did not reconnect"
            );
        }
        assert!(rig.disk.image.workers.is_empty(), "then it is forgotten");
        assert_eq!(rig.view(other).state, TaskState::Queued);
    }
}

#[test]
fn removed_workers_are_bounded_and_the_oldest_are_forgotten_first() {
    const KEPT: usize = 10_000;
    let mut rig = Rig::with_workers(&[]);
    // In an order that is not that of their ids.
    let id = |n: usize| hypha_model::WorkerId::new(START, &mut hypha_model::Rng::new(n as u64));
    for n in 0..=KEPT {
        rig.now = rig.now + Span::from_millis(1);
        let worker = hypha_model::Worker { id: id(n), ..worker(1) };
        rig.event(SchedulerEvent::WorkerFound(Arc::new(worker)));
        assert_eq!(rig.ask(Command::RemoveWorker(id(n))), Reply::WorkerRemoved(true));
    }
    assert_eq!(rig.disk.image.removed.len(), KEPT);
    let known = |n| (rig.scheduler.is_removed(id(n)), rig.disk.image.removed.contains_key(&id(n)));
    assert_eq!((known(0), known(1)), ((false, false), (true, true)));
}

#[test]
fn a_readmitted_worker_is_used_again_at_once() {
    for seen in [true, false] {
        let mut rig = Rig::with_workers(&[1]);
        rig.ask(Command::RemoveWorker(worker_id(1)));
        rig.restart();
        if seen {
            rig.event(SchedulerEvent::WorkerFound(Arc::new(worker(1))));
        }
        let readmit = Command::ReadmitWorker(worker_id(1));
        assert_eq!(rig.ask(readmit.clone()), Reply::WorkerReadmitted(true));
        assert_eq!(rig.scheduler.workers(rig.now).len(), usize::from(seen));
        assert_eq!(rig.ask(readmit), Reply::WorkerReadmitted(false));
        assert!(rig.disk.image.removed.is_empty());
        rig.join(1);
    }
    // It stays connected, so a search does not find it again.
    let mut rig = Rig::with_workers(&[1]);
    rig.ask(Command::RemoveWorker(worker_id(1)));
    assert!(rig.scheduler.workers(rig.now).is_empty());
    rig.ask(Command::ReadmitWorker(worker_id(1)));
    assert_eq!(rig.dispatched(task()).1.n(), 1);
    // Readmitted while it drains, it gets new tasks.
    let mut rig = Rig::with_workers(&[1]);
    let (_, assignment) = rig.dispatched(task());
    rig.ask(Command::RemoveWorker(worker_id(1)));
    rig.ask(Command::ReadmitWorker(worker_id(1)));
    rig.finish(&assignment);
    assert_eq!(rig.dispatched(task()).1.n(), 1);
}

#[test]
fn counts_continue_those_of_an_earlier_machine() {
    let mut rig = Rig::with_workers(&[1]);
    let (_, assignment) = rig.dispatched(task());
    rig.finish(&assignment);
    let counts = *rig.scheduler.counts();
    rig.restart();
    assert_eq!(rig.scheduler.counts().completed, 0);
    rig.scheduler.continue_counts(&counts);
    rig.join(1);
    let (_, assignment) = rig.dispatched(task());
    rig.finish(&assignment);
    assert_eq!((rig.scheduler.counts().submitted, rig.scheduler.counts().completed), (2, 2));
}

#[test]
fn the_start_time_of_an_attempt_is_stored_and_never_changes() {
    let mut rig = Rig::with_workers(&[1]);
    let (id, assignment) = rig.dispatched(task());
    rig.wait(Span::from_millis(250));
    rig.start(&assignment);
    let began = rig.view(id).started.unwrap();
    assert_eq!(rig.persisted().count(), 0, "it waits for the next commit");
    rig.wait(secs(2));
    assert_eq!(rig.stored(id).current.as_ref().unwrap().started, Some(began), "or for a second");
    rig.workers.get_mut(&worker_id(1)).unwrap().holding =
        vec![(assignment.dispatch.attempt, assignment.dispatch.fence)];
    rig.restart();
    assert_eq!((rig.view(id).started, rig.view(id).state), (Some(began), TaskState::Running));
    // The worker's own measurement differs by some milliseconds.
    let (attempt, fence) = (assignment.dispatch.attempt, assignment.dispatch.fence);
    rig.receive(1, FromWorker::Running { attempt, fence, elapsed: Span::from_millis(2_003) });
    assert_eq!(rig.view(id).started, Some(began));
    rig.finish(&assignment);
    assert_eq!(rig.ended(id).started, Some(began));
}

#[test]
fn a_run_at_a_back_end_is_resumed_after_a_restart_and_not_started_again() {
    let mut rig = Rig::with_workers(&[1]);
    let (id, assignment) = rig.dispatched(task());
    let (attempt, fence) = (assignment.dispatch.attempt, assignment.dispatch.fence);
    rig.start(&assignment);
    rig.receive(1, FromWorker::Delegated { attempt, fence, handle: Arc::from("own/7") });
    rig.wait(secs(2));
    assert_eq!(rig.stored(id).current.as_ref().unwrap().handle.as_deref(), Some("own/7"));
    // The worker is in the scheduler's own process, and has lost its state.
    rig.workers.get_mut(&worker_id(1)).unwrap().holding.clear();
    rig.restart();
    let again = rig.dispatches();
    assert_eq!(again.len(), 1);
    assert_eq!((again[0].dispatch.attempt, again[0].dispatch.fence), (attempt, fence));
    assert_eq!(again[0].dispatch.resume.as_deref(), Some("own/7"));
    rig.finish(&again[0]);
    let ended = rig.ended(id);
    assert_eq!((ended.state, ended.attempts), (TaskState::Completed, 1));
}

/// An attempt that a back end has, and a restart after which the scheduler resumes it.
fn resumed(settings: Settings, outage: Span) -> (Rig, TaskId, Assignment) {
    let mut rig = Rig::new(settings);
    rig.join(1);
    let (id, assignment) = rig.dispatched(task());
    let (attempt, fence) = (assignment.dispatch.attempt, assignment.dispatch.fence);
    rig.start(&assignment);
    rig.receive(1, FromWorker::Delegated { attempt, fence, handle: Arc::from("own/7") });
    rig.wait(secs(2));
    rig.workers.get_mut(&worker_id(1)).unwrap().holding.clear();
    rig.now = rig.now + outage;
    rig.restart();
    let again = rig.dispatches().remove(0);
    assert_eq!(again.dispatch.resume.as_deref(), Some("own/7"));
    (rig, id, again)
}

#[test]
fn an_outage_does_not_count_against_the_timeout_of_a_run_at_a_back_end() {
    let timeout = Settings::default().task_timeout;
    let (mut rig, id, again) = resumed(Settings::default(), timeout + secs(60));
    rig.start(&again);
    rig.wait(timeout - secs(10));
    assert_eq!(rig.view(id).state, TaskState::Running);
    rig.finish(&again);
    let ended = rig.ended(id);
    assert_eq!((ended.state, ended.attempts), (TaskState::Completed, 1));
}

#[test]
fn a_run_that_a_back_end_lost_over_a_restart_uses_up_no_attempt() {
    let refusal = Refusal::without_amount(RefusalKind::Busy);
    let refused = |again: &Assignment| {
        let (attempt, fence) = (again.dispatch.attempt, again.dispatch.fence);
        FromWorker::Refused { attempt, fence, refusal }
    };
    let (mut rig, id, again) = resumed(Settings::default(), secs(1));
    rig.receive(1, refused(&again));
    assert_eq!(rig.stored(id).failures, 0);
    assert!(rig.stored(id).finished.is_none(), "it is retried");
    // With a limit of one attempt, it is not retried.
    let retry = RetryPolicy { max_attempts: 1, ..RetryPolicy::default() };
    let (mut rig, id, again) = resumed(Settings { retry, ..Settings::default() }, secs(1));
    rig.receive(1, refused(&again));
    let ended = rig.ended(id);
    assert_eq!(ended.state, TaskState::Failed);
    let error = ended.error.as_ref().unwrap().to_string();
    assert!(
        error.starts_with("lost: ") && error.contains("the back end no longer has the attempt")
    );
}

#[test]
fn reports_of_a_void_attempt_are_not_stored() {
    let mut rig = Rig::with_workers(&[1, 2]);
    let (id, assignment) = rig.dispatched(task());
    let (attempt, fence) = (assignment.dispatch.attempt, assignment.dispatch.fence);
    rig.start(&assignment);
    rig.receive(
        assignment.n(),
        FromWorker::Delegated { attempt, fence, handle: Arc::from("own/7") },
    );
    rig.finish_with(&assignment, failed(true));
    let current = loop {
        rig.wait(Span::from_millis(100));
        if let Some(current) = rig.stored(id).current.clone() {
            break current;
        }
    };
    assert_ne!(current.fence, fence);
    assert_eq!((current.started, current.handle), (None, None));
}
