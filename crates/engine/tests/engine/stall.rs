//! A scheduler that stalled: messages that it could not receive meanwhile are no fault of its workers.

use hypha_engine::{RetryPolicy, SchedulerEvent, Settings, ToWorker};
use hypha_model::{Span, TaskState};

use crate::harness::*;

/// Longer than a lease holds.
const LONG: Span = Span::from_secs(130);

fn with_attempts(max_attempts: u32) -> Rig {
    let retry = RetryPolicy { max_attempts, ..RetryPolicy::default() };
    let mut rig = Rig::new(Settings { retry, ..Settings::default() });
    rig.join(1);
    rig
}

#[test]
fn a_lease_that_expires_in_a_stall_uses_up_no_attempt() {
    for stalled in [true, false] {
        let mut rig = with_attempts(3);
        let (id, assignment) = rig.dispatched(task());
        rig.start(&assignment);
        rig.silence(1);
        if stalled {
            rig.now = rig.now + LONG;
        }
        rig.wait(LONG);
        let failed = rig.stored(id).failed.last().unwrap().reason.clone();
        assert_eq!(rig.stored(id).failures, u32::from(!stalled), "{failed}");
        assert_eq!(rig.scheduler.workers(rig.now)[0].0.health.failed, u64::from(!stalled));
        assert_eq!(rig.view(id).state, TaskState::Queued, "it is retried");
    }
}

#[test]
fn a_task_that_allows_one_attempt_fails_if_its_lease_expires_in_a_stall() {
    let mut rig = with_attempts(1);
    let (id, assignment) = rig.dispatched(task());
    rig.start(&assignment);
    rig.now = rig.now + LONG;
    rig.wait(secs(1));
    assert_eq!(rig.ended(id).state, TaskState::Failed);
    let error = rig.ended(id).error.as_ref().unwrap();
    assert!(error.message.starts_with("lost: the scheduler stalled"), "{error}");
    assert!(rig.is_cancelled(&assignment) || rig.workers[&assignment.worker].holding.is_empty());
}

/// The answers may have arrived and not been handled.
#[test]
fn answers_due_in_a_stall_get_their_timeout_again() {
    let mut rig = with_attempts(3);
    let (id, assignment) = rig.dispatched(task());
    rig.silence(1);
    // Long enough for an acknowledgement, a heartbeat and a run, and shorter than the lease holds.
    rig.now = rig.now + secs(60);
    rig.event(SchedulerEvent::Woke);
    assert_eq!(rig.dispatches().len(), 0, "it is not repeated at once");
    rig.wait(secs(4));
    assert_eq!(rig.scheduler.counts().retried, 0);
    rig.accept(&assignment);
    rig.wait(secs(1));
    assert_eq!((rig.view(id).attempts, rig.view(id).worker), (1, Some(assignment.worker)));
    assert!(rig.scheduler.lease_of(assignment.worker).is_some());
}

#[test]
fn a_run_that_times_out_in_a_stall_may_still_report_its_end() {
    let mut rig = with_attempts(3);
    let timeout = secs(50);
    let (id, assignment) = rig.dispatched(with_spec(|spec| spec.timeout = Some(timeout)));
    rig.start(&assignment);
    rig.now = rig.now + secs(80);
    rig.event(SchedulerEvent::Woke);
    rig.wait(secs(1));
    rig.finish(&assignment);
    assert_eq!(rig.ended(id).state, TaskState::Completed);
}

/// Whatever wakes it: here a command arrives before its timer fires.
#[test]
fn nothing_is_dispatched_under_a_lease_that_expired_in_a_stall() {
    let mut rig = with_attempts(3);
    rig.silence(1);
    rig.now = rig.now + LONG;
    let id = rig.submit(task());
    assert!(rig.dispatches().is_empty());
    assert!(rig.sent_to(1).iter().any(|told| matches!(told, ToWorker::RequestLease(_))));
    assert_eq!(rig.view(id).state, TaskState::Queued);
}
