//! The life cycle of an attempt.

use hypha_engine::{
    Command, FromWorker, Notice, Outcome, Record, RetryPolicy, SchedulerEvent, Settings, ToWorker,
};
use hypha_model::{
    FailureKind, Payload, Refusal, RefusalKind, Span, TaskError, TaskResult, TaskState,
};

use crate::harness::*;

#[test]
fn a_dispatch_carries_lease_epoch_and_fence_and_is_durable_in_the_same_step() {
    let mut rig = Rig::with_workers(&[1]);
    let (id, assignment) = rig.dispatched(task());
    let lease = rig.scheduler.lease_of(worker_id(1)).unwrap();
    let dispatch = &assignment.dispatch;
    assert_eq!((dispatch.lease, dispatch.epoch), (lease.lease, lease.epoch));
    assert_eq!(dispatch.timeout, rig.settings.task_timeout);
    assert!(rig.steps[0].persist.iter().any(|record| matches!(record,
        Record::AttemptDispatched { attempt, fence, worker, .. }
            if (*attempt, *fence, *worker) == (dispatch.attempt, dispatch.fence, assignment.worker))));
    assert_eq!(rig.stored(id).current.as_ref().unwrap().fence, dispatch.fence);
}

#[test]
fn fences_grow_within_an_incarnation_and_across_them() {
    let mut rig = Rig::with_workers(&[1, 2, 3]);
    let (_, first) = rig.dispatched(task());
    let (_, second) = rig.dispatched(task());
    rig.restart();
    let (_, third) = rig.dispatched(task());
    assert!(first.dispatch.fence < second.dispatch.fence);
    assert!(second.dispatch.fence < third.dispatch.fence);
}

#[test]
fn an_unacknowledged_dispatch_is_resent_and_then_fails() {
    let mut rig = Rig::with_workers(&[1]);
    let (id, assignment) = rig.dispatched(task());
    for resend in 1..=3 {
        rig.wait(secs(5));
        assert_eq!(rig.dispatches().len(), 1, "resend {resend}");
        assert_eq!(rig.dispatches()[0].dispatch.fence, assignment.dispatch.fence);
    }
    rig.wait(secs(5));
    assert!(rig.dispatches().is_empty() && rig.is_cancelled(&assignment));
    assert_eq!(rig.view(id).last_error.unwrap(), "the worker does not acknowledge the attempt");
    assert_eq!(rig.stored(id).failures, 1);
}

#[test]
fn an_acknowledged_attempt_may_queue_but_not_forever() {
    let mut rig = Rig::with_workers(&[1]);
    let (id, assignment) = rig.dispatched(task());
    rig.accept(&assignment);
    rig.wait(secs(3_600));
    assert!(rig.dispatches().is_empty() && rig.view(id).last_error.is_none());
    rig.wait(secs(65 * 300 - 3_600));
    assert_eq!(
        rig.view(id).last_error.unwrap(),
        "the worker acknowledged the attempt and did not start it"
    );
}

#[test]
fn progress_never_goes_back() {
    let mut rig = Rig::with_workers(&[1]);
    let (id, assignment) = rig.dispatched(task());
    rig.start(&assignment);
    assert_eq!(rig.notices(id), [Notice::Running]);
    let (attempt, fence) = (assignment.dispatch.attempt, assignment.dispatch.fence);
    let mut seen = Vec::new();
    for permille in [100, 50, 100, 700, 60_000, 3] {
        rig.receive(1, FromWorker::Progress { attempt, fence, permille });
        seen.extend(rig.notices(id));
    }
    assert_eq!(seen, [100, 700, 1_000].map(Notice::Progress));
    assert_eq!(rig.view(id).progress_permille, 1_000);
}

/// A message about an attempt that is not the current one of its worker changes nothing.
#[test]
fn only_the_live_attempt_of_its_own_worker_counts() {
    type Lie = fn(&mut hypha_engine::Dispatch);
    let lies: [(&str, u8, Lie); 4] = [
        ("wrong fence", 1, |dispatch| dispatch.fence.0 += 1),
        ("wrong number", 1, |dispatch| dispatch.attempt.number += 1),
        ("wrong worker", 2, |_| {}),
        ("unknown worker", 9, |_| {}),
    ];
    for (what, from, lie) in lies {
        let mut rig = Rig::with_workers(&[1, 2]);
        rig.submit(task());
        let assignment = rig.dispatches()[0].clone();
        let id = assignment.dispatch.attempt.task;
        // `2` stands for the other worker, `1` for the worker itself.
        let from = if from == 9 {
            9
        } else if from == 1 {
            assignment.n()
        } else {
            3 - assignment.n()
        };
        let mut dispatch = (*assignment.dispatch).clone();
        lie(&mut dispatch);
        let (attempt, fence) = (dispatch.attempt, dispatch.fence);
        let refusal = Refusal::without_amount(RefusalKind::Busy);
        let messages = [
            FromWorker::Started { attempt, fence },
            FromWorker::Progress { attempt, fence, permille: 5 },
            FromWorker::Refused { attempt, fence, refusal },
            FromWorker::Finished { attempt, fence, run: secs(1), outcome: failed(false) },
            FromWorker::Finished { attempt, fence, run: secs(1), outcome: completed() },
        ];
        for message in messages {
            rig.receive(from, message);
            assert_eq!((rig.persisted().count(), rig.notices(id).len()), (0, 0), "{what}");
        }
        assert!(rig.sent_to(from).contains(&ToWorker::Recorded { attempt, fence }), "{what}");
        assert_eq!(rig.scheduler.counts().late_results, 2, "{what}");
        rig.finish(&assignment);
        assert_eq!(rig.ended(id).state, TaskState::Completed, "{what}");
    }
}

#[test]
fn a_result_is_recorded_once() {
    let mut rig = Rig::with_workers(&[1]);
    let (id, assignment) = rig.dispatched(task());
    rig.start(&assignment);
    rig.now = rig.now + secs(1);
    rig.finish(&assignment);
    let ended = rig.ended(id).clone();
    assert_eq!((ended.state, ended.attempts), (TaskState::Completed, 1));
    assert_eq!((ended.worker, ended.started), (Some(worker_id(1)), Some(START)));
    assert_eq!(ended.result.unwrap().payload().unwrap(), &Payload::from(&b"42"[..]));
    rig.finish(&assignment);
    assert_eq!((rig.ends(), rig.scheduler.counts().late_results), (0, 1));
    let (attempt, fence) = (assignment.dispatch.attempt, assignment.dispatch.fence);
    assert_eq!(rig.sent_to(1), [ToWorker::Recorded { attempt, fence }], "the worker may forget it");
}

#[test]
fn a_result_that_does_not_match_its_digest_is_retried() {
    let mut rig = Rig::with_workers(&[1]);
    let (id, assignment) = rig.dispatched(task());
    let digest = Payload::from(&b"42"[..]).digest();
    let result = TaskResult::Inline { payload: Payload::from(&b"41"[..]), digest };
    let outcome = Outcome::Completed { result };
    rig.finish_with(&assignment, outcome);
    assert_eq!(rig.ends(), 0);
    assert_eq!(rig.view(id).last_error.unwrap(), "the result does not match its digest");
    assert_eq!(rig.stored(id).failures, 1);
}

/// How an attempt fails, under which policy, and whether the task is retried.
#[test]
fn failures_are_retried_according_to_the_policy() {
    let policy = RetryPolicy::default();
    let no_timeouts = RetryPolicy { retry_on_timeout: false, ..policy };
    let no_failures = RetryPolicy { retry_on_worker_failure: false, ..policy };
    let once = RetryPolicy { max_attempts: 1, ..policy };
    let cases = [
        ("a failure", policy, failed(true), true),
        ("a permanent failure", policy, failed(false), false),
        ("a failure, off", no_failures, failed(true), false),
        ("a failure, timeouts off", no_timeouts, failed(true), true),
        ("too slow", policy, Outcome::TimedOut, true),
        ("too slow, off", no_timeouts, Outcome::TimedOut, false),
        ("too slow, failures off", no_failures, Outcome::TimedOut, true),
        ("one attempt", once, failed(true), false),
    ];
    for (what, retry, outcome, again) in cases {
        let mut rig = Rig::new(Settings { retry, ..Settings::default() });
        rig.join(1);
        let (id, assignment) = rig.dispatched(task());
        rig.start(&assignment);
        rig.finish_with(&assignment, outcome);
        assert_eq!(rig.ends() == 0, again, "{what}");
        if again {
            assert_eq!(rig.stored(id).failures, 1, "{what}");
        } else {
            let ended = rig.ended(id);
            assert_eq!((ended.state, ended.attempts), (TaskState::Failed, 1), "{what}");
            assert_eq!((ended.worker, ended.started), (Some(worker_id(1)), Some(START)), "{what}");
            assert!(ended.error.is_some(), "{what}");
        }
    }
}

#[test]
fn backoff_doubles_with_jitter_and_ends_with_the_last_attempt() {
    let retry = RetryPolicy { max_attempts: 8, ..RetryPolicy::default() };
    // No quarantine: the worker must be there for each attempt.
    let settings = Settings { retry, max_consecutive_failures: 100, ..Settings::default() };
    let mut pauses = Vec::new();
    let mut rig = Rig::new(settings);
    rig.join(1);
    for _ in 0..2 {
        let (id, mut assignment) = rig.dispatched(task());
        let mut own = Vec::new();
        for _ in 1..8 {
            rig.finish_with(&assignment, failed(true));
            let until = rig.view(id).not_before.unwrap();
            own.push(until.since(rig.now).as_secs_f64());
            assert!(rig.notices(id).iter().any(|notice| matches!(notice, Notice::Delayed { .. })));
            rig.wait(until.since(rig.now));
            assignment = rig.dispatches()[0].clone();
        }
        rig.finish_with(&assignment, failed(true));
        assert_eq!((rig.ended(id).state, rig.ended(id).attempts), (TaskState::Failed, 8));
        pauses.push(own);
    }
    for own in &pauses {
        for (at, pause) in own.iter().enumerate() {
            let most = f64::min(2.0 * f64::from(1 << at), 60.0);
            assert!((most / 2.0..=most).contains(pause), "{own:?}");
        }
    }
    assert_ne!(pauses[0], pauses[1], "tasks that failed together are not retried together");
}

#[test]
fn a_retry_goes_elsewhere_first() {
    for refused in [false, true] {
        let mut rig = Rig::with_workers(&[1, 2]);
        let (_, assignment) = rig.dispatched(task());
        let (attempt, fence) = (assignment.dispatch.attempt, assignment.dispatch.fence);
        if refused {
            let refusal = Refusal::without_amount(RefusalKind::Busy);
            rig.receive(assignment.n(), FromWorker::Refused { attempt, fence, refusal });
        } else {
            rig.finish_with(&assignment, failed(true));
        }
        rig.wait(secs(2));
        assert_eq!(rig.dispatches()[0].n(), 3 - assignment.n(), "refused: {refused}");
    }
}

#[test]
fn refusals_use_up_no_attempts_and_a_stored_task_waits() {
    let mut rig = Rig::with_workers(&[1]);
    let (id, mut assignment) = rig.dispatched(task());
    for _ in 1..=300 {
        refuse(&mut rig, &assignment);
        assert_eq!(rig.stored(id).failures, 0);
        assert_eq!(rig.scheduler.workers(rig.now)[0].0.health.failed, 0);
        let pause = rig.view(id).not_before.unwrap().since(rig.now);
        rig.wait(pause);
        assignment = rig.dispatches()[0].clone();
    }
    rig.finish(&assignment);
    assert_eq!(rig.ended(id).state, TaskState::Completed);
}

#[test]
fn refusals_of_an_interactive_task_are_bounded() {
    let mut rig = Rig::with_workers(&[1]);
    rig.unstored = 1;
    let (id, mut assignment) = rig.dispatched(unstored());
    for _ in 1..100 {
        refuse(&mut rig, &assignment);
        rig.wait(rig.settings.min_plan_interval);
        assignment = rig.dispatches()[0].clone();
    }
    rig.unstored = 0;
    refuse(&mut rig, &assignment);
    let ended = rig.notices(id).into_iter().find_map(|notice| match notice {
        Notice::Ended { finished, .. } => finished.error.clone(),
        _ => None,
    });
    let error = TaskError::new(FailureKind::Refused, "refused by the worker: busy");
    assert_eq!(ended, Some(error));
}

fn refuse(rig: &mut Rig, assignment: &Assignment) {
    let (attempt, fence) = (assignment.dispatch.attempt, assignment.dispatch.fence);
    let refusal = Refusal::without_amount(RefusalKind::Busy);
    rig.receive(1, FromWorker::Refused { attempt, fence, refusal });
}

#[test]
fn a_failure_after_a_refusal_counts() {
    let mut rig = Rig::with_workers(&[1]);
    let (id, assignment) = rig.dispatched(task());
    let (attempt, fence) = (assignment.dispatch.attempt, assignment.dispatch.fence);
    rig.receive(
        1,
        FromWorker::Refused { attempt, fence, refusal: Refusal::without_amount(RefusalKind::Busy) },
    );
    rig.start(&assignment);
    assert_eq!(rig.view(id).state, TaskState::Queued, "a refused attempt cannot start");
    rig.wait(secs(2));
    let assignment = rig.dispatches()[0].clone();
    rig.finish_with(&assignment, failed(false));
    assert_eq!((rig.ended(id).state, rig.ended(id).attempts), (TaskState::Failed, 2));
    let error = TaskError::new(FailureKind::InvalidInput, "out of memory");
    assert_eq!(rig.ended(id).error, Some(error));
}

/// The worker answers heartbeats and never ends the attempt.
#[test]
fn the_scheduler_ends_an_attempt_that_its_worker_does_not() {
    for accepted_long_before in [false, true] {
        let mut rig = Rig::with_workers(&[1]);
        let (id, assignment) = rig.dispatched(with_spec(|spec| spec.timeout = Some(secs(50))));
        if accepted_long_before {
            rig.accept(&assignment);
            rig.wait(secs(100));
        }
        rig.start(&assignment);
        rig.wait(secs(54));
        assert_eq!(rig.view(id).state, TaskState::Running);
        rig.wait(secs(1));
        assert!(rig.is_cancelled(&assignment), "accepted long before: {accepted_long_before}");
        assert_eq!(rig.view(id).last_error.unwrap(), "it took longer than 50.00 s");
    }
}

#[test]
fn the_start_of_a_run_is_known_from_its_end() {
    let mut rig = Rig::with_workers(&[1]);
    for (run, began) in [(secs(3), secs(2)), (Span::MAX, Span::ZERO)] {
        let (id, assignment) = rig.dispatched(task());
        let (attempt, fence) = (assignment.dispatch.attempt, assignment.dispatch.fence);
        let at = rig.now;
        rig.now = rig.now + secs(5);
        rig.receive(1, FromWorker::Finished { attempt, fence, run, outcome: completed() });
        assert_eq!(rig.ended(id).started, Some(at + began));
    }
}

#[test]
fn long_errors_and_forged_times_are_bounded() {
    let mut rig = Rig::with_workers(&[1]);
    let (id, assignment) = rig.dispatched(task());
    let error = "é".repeat(1_000_000);
    rig.finish_with(&assignment, Outcome::Failed(TaskError::new(FailureKind::InvalidInput, error)));
    assert_eq!(rig.ended(id).error.as_ref().unwrap().message.chars().count(), 2_000);
    for run in [Span::MAX, Span::ZERO] {
        let (_, assignment) = rig.dispatched(task());
        let (attempt, fence) = (assignment.dispatch.attempt, assignment.dispatch.fence);
        rig.now = rig.now + secs(2);
        rig.receive(1, FromWorker::Finished { attempt, fence, run, outcome: completed() });
        let health = rig.scheduler.workers(rig.now)[0].0.health.clone();
        assert!(health.avg_completion_time <= secs(2), "{health:?}");
    }
}

#[test]
fn heartbeats_reconcile_lost_and_void_attempts() {
    let mut rig = Rig::with_workers(&[1]);
    let (id, lost) = rig.dispatched(task());
    rig.accept(&lost);
    // It has lost the attempt that it acknowledged, and names one that the scheduler does not know.
    let mut stray = (lost.dispatch.attempt, lost.dispatch.fence);
    stray.1.0 += 1_000;
    rig.workers.get_mut(&worker_id(1)).unwrap().holding = vec![stray];
    rig.wait(secs(30));
    assert!(rig.sent_to(1).contains(&ToWorker::Cancel { attempt: stray.0, fence: stray.1 }));
    assert_eq!(rig.view(id).last_error.unwrap(), "the worker no longer has the attempt");
    assert_eq!(rig.stored(id).failures, 1);
}

#[test]
fn cancels_for_a_worker_that_names_absurdly_many_attempts_are_bounded() {
    let mut rig = Rig::with_workers(&[1]);
    let (_, assignment) = rig.dispatched(task());
    rig.accept(&assignment);
    let attempt = assignment.dispatch.attempt;
    let many = (0..50_000).map(|n| (attempt, hypha_model::Fence(n))).collect();
    rig.workers.get_mut(&worker_id(1)).unwrap().holding = many;
    rig.wait(secs(30));
    let cancels =
        rig.sent_to(1).iter().filter(|told| matches!(told, ToWorker::Cancel { .. })).count();
    // And one for its own attempt, which it does not name.
    assert_eq!(cancels, 1_001);
}

#[test]
fn stolen_tasks_move_and_are_dispatched() {
    let strategy = hypha_placement::Strategy::WorkStealing { steal_threshold: 1 };
    let mut rig = Rig::new(Settings { strategy, ..Settings::default() });
    rig.join(1);
    let ids: Vec<_> = (0..8).map(|_| rig.submit(task())).collect();
    rig.join(2);
    let moved: Vec<Assignment> = rig.dispatches();
    assert!(!moved.is_empty() && moved.iter().all(|assignment| assignment.n() == 2), "{moved:?}");
    assert!(rig.scheduler.counts().stolen >= moved.len() as u64);
    assert!(rig.notices(moved[0].dispatch.attempt.task).contains(&Notice::Scheduled(worker_id(2))));
    for id in ids {
        rig.ask(Command::CancelTask(id));
        assert_eq!(rig.ended(id).state, TaskState::Cancelled);
    }
    rig.event(SchedulerEvent::Woke);
}

#[test]
fn reasons_of_failed_attempts_are_kept_until_the_end_and_over_a_restart() {
    let mut rig = Rig::with_workers(&[1, 2]);
    let (id, assignment) = rig.dispatched(task());
    assert!(rig.view(id).failed.is_empty());
    let at = rig.now;
    let long = format!("no memory {}", "€".repeat(3_000));
    let long = Outcome::Failed(TaskError::new(FailureKind::ProgramFailed, long));
    rig.finish_with(&assignment, long.clone());
    let tries = rig.view(id).failed;
    let kept: Vec<_> = tries.iter().map(|one| (one.number, one.worker, one.at)).collect();
    assert_eq!(kept, [(1, assignment.worker, at)]);
    assert!(tries[0].reason.starts_with("no memory €") && tries[0].reason.chars().count() == 500);
    assert_eq!(rig.stored(id).failed, tries);
    rig.restart();
    assert_eq!(rig.view(id).failed, tries);
    assert_eq!(rig.view(id).last_error.as_deref(), Some(&*tries[0].reason));

    rig.wait(secs(4));
    let second = rig.dispatches()[0].clone();
    assert_ne!(second.worker, assignment.worker, "elsewhere first, also after a restart");
    rig.finish_with(&second, failed(true));
    rig.wait(secs(4));
    let third = rig.dispatches()[0].clone();
    rig.finish_with(&third, long);
    let ended = rig.ended(id);
    let reasons: Vec<_> = ended.failed.iter().map(|one| one.reason.chars().count()).collect();
    assert_eq!(reasons, [500, "out of memory".len(), 500]);
    assert_eq!(ended.error.as_ref().unwrap().message.chars().count(), 2_000, "the last in full");

    let (id, assignment) = rig.dispatched(task());
    rig.finish_with(&assignment, failed(true));
    rig.wait(secs(4));
    let second = rig.dispatches()[0].clone();
    rig.finish(&second);
    assert_eq!(rig.ended(id).state, TaskState::Completed);
    assert_eq!(rig.ended(id).failed[0].worker, assignment.worker);
}

/// Each failure has a kind, which is counted and kept with the attempt.
#[test]
fn failures_keep_their_kind_until_the_end() {
    let say = |kind| Outcome::Failed(TaskError::new(kind, "why"));
    let digest = Payload::from(&b"other"[..]).digest();
    let result = TaskResult::Inline { payload: Payload::from(&b"one"[..]), digest };
    let corrupt = Outcome::Completed { result };
    let mut cases = vec![
        (Outcome::TimedOut, FailureKind::TimedOut),
        (Outcome::Unreachable { error: "why".to_owned() }, FailureKind::BackendUnreachable),
        (corrupt, FailureKind::CorruptResult),
    ];
    // A kind that only the scheduler can determine is not accepted from a worker.
    for kind in FailureKind::ALL {
        let found = if kind.is_run_outcome() { kind } else { FailureKind::WorkerFailed };
        cases.push((say(kind), found));
    }
    for (outcome, kind) in cases {
        let mut rig = Rig::with_workers(&[1]);
        let (id, assignment) = rig.dispatched(task());
        rig.finish_with(&assignment, outcome);
        let failed = match rig.ends() {
            0 => rig.view(id).failed,
            _ => {
                assert_eq!(rig.ended(id).error.as_ref().unwrap().kind, kind);
                rig.ended(id).failed.clone()
            }
        };
        assert_eq!(failed.last().unwrap().kind, kind);
        assert_eq!(rig.ends() == 0, kind.is_retryable(), "{kind}");
        let counted: Vec<_> =
            rig.scheduler.counts().failures.iter().filter(|(_, count)| *count > 0).collect();
        assert_eq!(counted, [(kind, 1)]);
    }
}
