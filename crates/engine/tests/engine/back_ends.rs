//! What the answers of back ends mean for tasks, executors and workers.

use hypha_engine::scheduler::Unavailability;
use hypha_engine::{Command, FromWorker, Notice, Outcome, RetryPolicy, Settings};
use hypha_model::{FailureKind, Refusal, RefusalKind, Span, TaskError, TaskId, TaskState};

use crate::harness::*;

/// A back end has answered with this status.
fn answered(status: u16) -> TaskError {
    let error = TaskError::new(FailureKind::of_http_status(status), "no");
    TaskError { status: Some(status), ..error }
}

fn pass_backoff(rig: &mut Rig, id: TaskId) -> Span {
    let backoff = rig.view(id).not_before.unwrap().since(rig.now);
    rig.wait(backoff);
    backoff
}

/// The error that the client of an interactive task gets.
fn interactive_error(rig: &Rig, id: TaskId) -> Option<TaskError> {
    rig.notices(id).into_iter().find_map(|notice| match notice {
        Notice::Ended { finished, .. } => finished.error.clone(),
        _ => None,
    })
}

/// As a back end that answers 429 for an hour, whatever the policy says about failures.
#[test]
fn a_stored_task_waits_for_a_busy_back_end() {
    let retry =
        RetryPolicy { max_attempts: 1, retry_on_worker_failure: false, ..Default::default() };
    let mut rig = Rig::new(Settings { retry, ..Settings::default() });
    rig.join(1);
    let (id, mut assignment) = rig.dispatched(task());
    let begun = rig.now;
    while rig.now.since(begun) < secs(3_600) {
        rig.finish_with(&assignment, Outcome::Failed(answered(429)));
        assert_eq!((rig.ends(), rig.stored(id).failures), (0, 0));
        assert_eq!(rig.view(id).failed.last().unwrap().kind, FailureKind::BackendBusy);
        let backoff = pass_backoff(&mut rig, id);
        assert!(backoff <= retry.backoff_max, "{backoff}");
        assignment = rig.dispatches()[0].clone();
    }
    assert!(rig.scheduler.workers(rig.now)[0].0.available, "it does not count as a failure");
    assert_eq!(rig.scheduler.workers(rig.now)[0].0.health.failed, 0);
    rig.finish(&assignment);
    assert_eq!(rig.ended(id).state, TaskState::Completed);
}

#[test]
fn a_stored_task_waits_as_long_as_the_back_end_asks_within_a_bound() {
    for (retry_after_s, expected) in [(600, 600), (u32::MAX, 3_600)] {
        let mut rig = Rig::with_workers(&[1]);
        let (id, assignment) = rig.dispatched(task());
        let busy = TaskError { retry_after_s: Some(retry_after_s), ..answered(503) };
        rig.finish_with(&assignment, Outcome::Failed(busy));
        assert_eq!(pass_backoff(&mut rig, id), secs(expected));
        assert_eq!(rig.dispatches().len(), 1);
    }
}

/// Its client knows how to wait, and for how long.
#[test]
fn an_interactive_task_is_tried_elsewhere_and_then_gets_the_answer() {
    let mut rig = Rig::with_workers(&[1, 2]);
    rig.unstored = 1;
    let (id, first) = rig.dispatched(unstored());
    rig.finish_with(&first, Outcome::Failed(answered(429)));
    rig.wait(rig.settings.min_plan_interval);
    let second = rig.dispatches().remove(0);
    assert_ne!(second.worker, first.worker);
    rig.finish_with(&second, Outcome::Failed(answered(429)));
    rig.wait(rig.settings.min_plan_interval);
    let third = rig.dispatches().remove(0);
    rig.unstored = 0;
    rig.finish_with(&third, Outcome::Failed(answered(429)));
    assert_eq!(
        interactive_error(&rig, id),
        Some(answered(429)),
        "after as many attempts as it has"
    );

    let mut rig = Rig::with_workers(&[1]);
    rig.unstored = 1;
    let (id, only) = rig.dispatched(unstored());
    rig.unstored = 0;
    rig.finish_with(&only, Outcome::Failed(answered(429)));
    assert_eq!(interactive_error(&rig, id), Some(answered(429)), "there is no other worker");
}

#[test]
fn an_answer_about_the_request_is_final_and_counts_against_neither_executor_nor_worker() {
    let mut rig = Rig::with_workers(&[1]);
    for _ in 0..5 {
        let (id, assignment) = rig.dispatched(task());
        rig.finish_with(&assignment, Outcome::Failed(answered(501)));
        assert_eq!(rig.ended(id).error, Some(answered(501)));
        assert_eq!(rig.ended(id).attempts, 1);
    }
    assert!(rig.scheduler.workers(rig.now)[0].0.available);
    assert_eq!(rig.scheduler.workers(rig.now)[0].0.health.failed, 0);
}

#[test]
fn a_few_errors_of_a_back_end_are_retried_once_elsewhere_and_do_not_quarantine() {
    let mut rig = Rig::with_workers(&[1, 2]);
    for _ in 0..5 {
        let (id, first) = rig.dispatched(task());
        rig.finish_with(&first, Outcome::Failed(answered(500)));
        pass_backoff(&mut rig, id);
        let second = rig.dispatches().remove(0);
        assert_ne!(second.worker, first.worker);
        rig.finish_with(&second, Outcome::Failed(answered(500)));
        assert_eq!(rig.ended(id).error, Some(answered(500)));
        assert_eq!(rig.ended(id).attempts, 2);
    }
    assert!(rig.scheduler.workers(rig.now).iter().all(|(worker, _)| worker.available));
    assert_eq!(rig.scheduler.counts().quarantines, 0);
}

/// The number of tasks after which it is quarantined.
const MAX_ERRORS_ANSWERED: usize = 10;

/// A task for which worker 2 has too few cores.
fn large() -> hypha_engine::NewTask {
    with_spec(|spec| spec.requirement.cpu_milli = 2_000)
}

/// One large task after the other is submitted, gets the status from worker 1, and again when it is retried.
fn answer(rig: &mut Rig, status: u16, tasks: usize) {
    for _ in 0..tasks {
        let (id, first) = rig.dispatched(large());
        rig.finish_with(&first, Outcome::Failed(answered(status)));
        if rig.scheduler.workers(rig.now)[0].0.available {
            pass_backoff(rig, id);
            let second = rig.dispatches().remove(0);
            rig.finish_with(&second, Outcome::Failed(answered(status)));
        } else {
            rig.ask(Command::CancelTask(id));
        }
    }
}

/// As a back end that passes its health check but has lost its model.
#[test]
fn a_back_end_that_answers_every_task_with_an_error_is_quarantined() {
    let mut rig = Rig::with_workers(&[1]);
    let mut small = worker(2);
    small.capacity.cpu_milli = 1_000;
    rig.join_as(small);
    let is_available = |rig: &Rig| rig.scheduler.workers(rig.now)[0].0.available;
    answer(&mut rig, 500, MAX_ERRORS_ANSWERED - 1);
    assert!(is_available(&rig), "a task counts once, although it was retried there");
    let (_, assignment) = rig.dispatched(large());
    rig.finish(&assignment);
    answer(&mut rig, 500, MAX_ERRORS_ANSWERED - 1);
    assert!(is_available(&rig), "a success clears the count");
    answer(&mut rig, 500, 1);
    assert!(!is_available(&rig));
    let why = rig.scheduler.executor_unavailability_of(worker_id(1), 0);
    let Some(Unavailability::Quarantined(quarantine)) = why else { panic!("{why:?}") };
    let until = rig.now + rig.settings.quarantine;
    assert_eq!((quarantine.failures as usize, quarantine.until), (MAX_ERRORS_ANSWERED, until));

    // After the quarantine the next answer decides.
    rig.wait(rig.settings.quarantine);
    assert!(is_available(&rig));
    answer(&mut rig, 502, 1);
    assert!(!is_available(&rig), "quarantined again, for longer");
    rig.wait(rig.settings.quarantine);
    assert!(!is_available(&rig));
    rig.wait(rig.settings.quarantine);
    let (_, assignment) = rig.dispatched(large());
    rig.finish(&assignment);
    answer(&mut rig, 500, MAX_ERRORS_ANSWERED - 1);
    assert!(is_available(&rig));
    assert_eq!(rig.scheduler.counts().quarantines, 2);
}

/// Quarantine would send its tasks nowhere, and take the model away from clients whose requests it can answer.
#[test]
fn the_only_back_end_of_a_model_is_not_quarantined_for_errors_that_it_answers() {
    let mut rig = Rig::with_workers(&[1]);
    answer(&mut rig, 500, 3 * MAX_ERRORS_ANSWERED);
    assert!(rig.scheduler.workers(rig.now)[0].0.available);
    assert_eq!(rig.scheduler.counts().quarantines, 0);
    let (_, assignment) = rig.dispatched(task());
    rig.finish(&assignment);
}

#[test]
fn answers_about_requests_and_load_never_quarantine() {
    let mut rig = Rig::with_workers(&[1]);
    for status in [400, 404, 422, 501].into_iter().cycle().take(4 * MAX_ERRORS_ANSWERED) {
        let (_, assignment) = rig.dispatched(task());
        rig.finish_with(&assignment, Outcome::Failed(answered(status)));
    }
    for _ in 0..2 * MAX_ERRORS_ANSWERED {
        let (id, assignment) = rig.dispatched(task());
        rig.finish_with(&assignment, Outcome::Failed(answered(429)));
        rig.ask(Command::CancelTask(id));
    }
    assert_eq!(rig.scheduler.counts().quarantines, 0);
}

/// The last failure of a task often says least.
#[test]
fn of_several_failures_the_most_significant_is_shown() {
    let mut rig = Rig::with_workers(&[1]);
    let (id, assignment) = rig.dispatched(task());
    rig.finish_with(
        &assignment,
        Outcome::Failed(TaskError::new(FailureKind::ProgramFailed, "no voice")),
    );
    pass_backoff(&mut rig, id);
    let assignment = rig.dispatches().remove(0);
    let (attempt, fence) = (assignment.dispatch.attempt, assignment.dispatch.fence);
    let refusal = Refusal::without_amount(RefusalKind::Busy);
    rig.receive(1, FromWorker::Refused { attempt, fence, refusal });
    for _ in 0..2 {
        pass_backoff(&mut rig, id);
        let assignment = rig.dispatches().remove(0);
        rig.finish_with(&assignment, Outcome::TimedOut);
    }
    let ended = rig.ended(id);
    let error = TaskError::new(FailureKind::ProgramFailed, "no voice");
    assert_eq!(ended.error, Some(error), "{:?}", ended.failed);
    assert_eq!(ended.failed.last().unwrap().kind, FailureKind::TimedOut, "all are listed");
}
