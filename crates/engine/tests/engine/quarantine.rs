//! Which workers and executors are quarantined for failing, which are not, and how it is reported.

use std::sync::Arc;

use hypha_engine::scheduler::Unavailability;
use hypha_engine::{
    Command, FromWorker, LeaseRequest, NewTask, RetryPolicy, SchedulerEvent, Settings, ToWorker,
};
use hypha_model::{Executor, Refusal, RefusalKind, Span, TaskState, Worker};
use hypha_placement::Strategy;

use crate::harness::*;

/// A worker with three executors, for the models `a`, `b`, and `c` and `d`.
pub(crate) fn of_models(n: u8) -> Worker {
    let executor = |named: &str, models: &[&str]| Executor {
        name: name(named),
        models: models.iter().map(|model| name(model)).collect(),
        ..worker(n).executors[0].clone()
    };
    Worker {
        executors: vec![
            executor("for-a", &["a"]),
            executor("for-b", &["b"]),
            executor("for-c", &["c", "d"]),
        ],
        ..worker(n)
    }
}

pub(crate) fn asking(model: &str) -> NewTask {
    with_spec(|spec| spec.requirement.model = Some(name(model)))
}

pub(crate) fn joined(settings: Settings, worker: Worker) -> Rig {
    let mut rig = Rig::new(settings);
    rig.workers.entry(worker.id).or_default();
    rig.event(SchedulerEvent::WorkerFound(Arc::new(worker)));
    rig
}

/// Each task fails permanently with its first attempt.
fn once() -> Settings {
    let retry = RetryPolicy { max_attempts: 1, ..RetryPolicy::default() };
    Settings { retry, ..Settings::default() }
}

/// One task after the other is submitted and fails.
fn fail(rig: &mut Rig, task: &NewTask, times: usize) {
    for _ in 0..times {
        let (_, assignment) = rig.dispatched(task.clone());
        rig.finish_with(&assignment, failed(true));
    }
}

fn is_available(rig: &Rig) -> bool {
    rig.scheduler.workers(rig.now)[0].0.available
}

#[test]
fn a_failing_executor_is_quarantined_for_longer_each_time() {
    let mut rig = joined(once(), worker(1));
    fail(&mut rig, &task(), 2);
    assert!(is_available(&rig));
    for pause in [30, 60, 120, 240, 480, 480] {
        fail(&mut rig, &task(), 1);
        assert!(!is_available(&rig), "its only executor");
        let waits = rig.submit(task());
        rig.wait(secs(pause - 1));
        assert!(rig.dispatches().is_empty(), "{pause} s");
        rig.ask(Command::CancelTask(waits));
        rig.wait(secs(1));
        assert!(is_available(&rig), "{pause} s");
    }
    assert_eq!(rig.scheduler.counts().quarantines, 6);
    // After a success it takes three failures again, and the quarantine has its first length.
    let (_, assignment) = rig.dispatched(task());
    rig.finish(&assignment);
    fail(&mut rig, &task(), 3);
    assert!(!is_available(&rig));
    rig.wait(secs(30));
    assert!(is_available(&rig));
}

/// The success of an attempt that was in flight during the last failure is as good as that of a later one.
#[test]
fn a_success_lifts_the_quarantine() {
    let mut wide = worker(1);
    wide.executors[0].concurrency = 4;
    let mut rig = joined(once(), wide);
    let assignment: Vec<Assignment> = (0..4).map(|_| rig.dispatched(task()).1).collect();
    for failing in &assignment[..3] {
        rig.finish_with(failing, failed(true));
    }
    assert!(!is_available(&rig));
    let waits = rig.submit(task());
    assert_eq!(rig.view(waits).state, TaskState::Queued);
    rig.finish(&assignment[3]);
    assert!(is_available(&rig));
    assert_eq!(rig.dispatches().len(), 1);
}

#[test]
fn only_the_failing_executor_is_quarantined() {
    let mut rig = joined(once(), of_models(1));
    let outcomes = [failed(true), hypha_engine::Outcome::TimedOut, {
        let digest = hypha_model::Payload::from(&b"other"[..]).digest();
        let payload = hypha_model::Payload::default();
        let result = hypha_model::TaskResult::Inline { payload, digest };
        hypha_engine::Outcome::Completed { result }
    }];
    for outcome in outcomes {
        let (_, assignment) = rig.dispatched(asking("a"));
        rig.finish_with(&assignment, outcome);
    }
    assert_eq!(rig.scheduler.counts().quarantines, 1);
    assert!(is_available(&rig), "it has others");
    let waits = rig.submit(asking("a"));
    assert_eq!(rig.view(waits).state, TaskState::Queued);
    let (_, assignment) = rig.dispatched(asking("b"));
    rig.finish(&assignment);
    assert!(rig.dispatches().is_empty(), "the success of another executor does not count for it");
    rig.wait(secs(30));
    assert_eq!(rig.dispatches().len(), 1, "then it is used again");
}

#[test]
fn a_task_that_fails_repeatedly_counts_once() {
    let retry = RetryPolicy { max_attempts: 10, backoff_base: Span::ZERO, ..Default::default() };
    let mut rig = joined(Settings { retry, ..Settings::default() }, worker(1));
    let (bad, mut assignment) = rig.dispatched(task());
    for _ in 1..10 {
        rig.finish_with(&assignment, failed(true));
        rig.wait(Span::from_millis(1));
        assignment = rig.dispatches()[0].clone();
    }
    rig.finish_with(&assignment, failed(true));
    assert_eq!((rig.ended(bad).attempts, rig.scheduler.counts().quarantines), (10, 0));
    // Two tasks that fail in turn count as two, however often they fail: with the first task, that makes three.
    rig.submit(task());
    let mut assignment = rig.dispatches();
    rig.submit(task());
    assignment.extend(rig.dispatches());
    let mut failures = 0;
    while let Some(next) = assignment.pop() {
        assert_eq!(rig.scheduler.counts().quarantines, 0, "after {failures}");
        rig.finish_with(&next, failed(true));
        failures += 1;
        assignment.extend(rig.dispatches());
        rig.wait(Span::from_millis(1));
        assignment.extend(rig.dispatches());
    }
    assert_eq!(rig.scheduler.counts().quarantines, 1);
}

#[test]
fn another_suitable_executor_is_used_and_named() {
    let mut both = of_models(1);
    both.executors[1].models = vec![name("a")];
    let mut rig = joined(once(), both);
    fail(&mut rig, &asking("a"), 3);
    let (_, assignment) = rig.dispatched(asking("a"));
    let named = assignment.dispatch.spec.requirement.executor.clone();
    assert_eq!(named, Some(name("for-b")), "the worker would take the first");
    rig.finish_with(&assignment, failed(true));
    fail(&mut rig, &asking("a"), 2);
    assert_eq!(rig.scheduler.counts().quarantines, 2);
    let waits = rig.submit(asking("a"));
    assert_eq!(rig.view(waits).state, TaskState::Queued, "now both are quarantined");
    rig.wait(secs(30));
    assert_eq!(rig.dispatches()[0].dispatch.spec.requirement.executor, None);
}

#[test]
fn tasks_bound_to_a_quarantined_executor_are_placed_again() {
    let settings = Settings { strategy: Strategy::RoundRobin, ..once() };
    let mut rig = joined(settings, of_models(1));
    // More than are dispatched to it: the others are only bound to it.
    let mut assignment = Vec::new();
    let mut a = None;
    for _ in 0..10 {
        a = Some(rig.submit(asking("a")));
        assignment.extend(rig.dispatches());
    }
    let (a, b) = (a.unwrap(), rig.submit(asking("b")));
    let state = |rig: &Rig, id| (rig.view(id).state, rig.view(id).attempts);
    assert_eq!([a, b].map(|id| state(&rig, id)), [(TaskState::Scheduled, 0); 2]);
    for assignment in &assignment[..3] {
        rig.finish_with(assignment, failed(true));
    }
    assert_eq!(rig.scheduler.counts().quarantines, 1);
    assert_eq!(state(&rig, a), (TaskState::Queued, 0));
    assert_eq!(state(&rig, b).0, TaskState::Scheduled);
}

#[test]
fn a_new_description_keeps_failure_streaks() {
    let mut rig = joined(once(), of_models(1));
    fail(&mut rig, &asking("b"), 3);
    let mut anew = of_models(1);
    anew.executors.remove(0);
    rig.event(SchedulerEvent::WorkerFound(Arc::new(anew)));
    let waits = rig.submit(asking("b"));
    assert_eq!(rig.view(waits).state, TaskState::Queued, "an executor of the same name");
    assert_eq!(rig.dispatched(asking("c")).1.n(), 1);
    rig.wait(secs(30));
    assert_eq!(rig.view(waits).state, TaskState::Scheduled);
}

#[test]
fn attempts_are_returned_when_a_worker_changes_its_description() {
    let mut rig = joined(once(), worker(1));
    let (id, assignment) = rig.dispatched(task());
    rig.start(&assignment);
    let anew = Worker { region: Some(name("eu")), ..worker(1) };
    rig.event(SchedulerEvent::WorkerFound(Arc::new(anew)));
    assert!(rig.is_cancelled(&assignment));
    assert_eq!(rig.stored(id).failures, 0, "no attempt is used up");
    assert_eq!(rig.view(id).last_error.unwrap(), "the worker changed its description");
    rig.wait(Span::from_millis(10));
    assert_eq!(rig.dispatches().len(), 1, "at once");
    assert_eq!(rig.scheduler.workers(rig.now)[0].0.health.failed, 0, "not the worker's failure");
}

#[test]
fn unavailable_workers_have_a_reason() {
    let why = |rig: &Rig| rig.scheduler.unavailability_of(worker_id(1), None);
    let mut rig = Rig::new(once());
    rig.event(SchedulerEvent::WorkerFound(Arc::new(of_models(1))));
    assert_eq!(why(&rig), Some(Unavailability::NotLeased { refused: None }));
    let asked = rig.sent_to(1).into_iter().find_map(|told| match told {
        ToWorker::RequestLease(LeaseRequest { request, .. }) => Some(request),
        _ => None,
    });
    let refusal = Refusal::without_amount(RefusalKind::Busy);
    rig.receive(1, FromWorker::LeaseRefused { request: asked.unwrap(), refusal });
    assert_eq!(why(&rig), Some(Unavailability::NotLeased { refused: Some(RefusalKind::Busy) }));
    rig.workers.entry(worker_id(1)).or_default();
    rig.wait(secs(30));
    assert_eq!(why(&rig), None);

    fail(&mut rig, &asking("a"), 3);
    assert_eq!(why(&rig), None, "its other executors are used");
    let until = rig.now + secs(30);
    let alone = |unused: Option<Unavailability>| match unused {
        Some(Unavailability::Quarantined(alone)) => {
            (alone.until, alone.failures, alone.last_failure.to_string())
        }
        other => panic!("{other:?}"),
    };
    let expected = (until, 3, "out of memory".to_owned());
    let (a, b) = (asking("a").spec, asking("b").spec);
    let of = |rig: &Rig, spec: &hypha_model::TaskSpec| {
        rig.scheduler.unavailability_of(worker_id(1), Some(&spec.requirement))
    };
    assert_eq!((alone(of(&rig, &a)), of(&rig, &b)), (expected.clone(), None));
    assert_eq!(alone(rig.scheduler.executor_unavailability_of(worker_id(1), 0)), expected);
    assert_eq!(rig.scheduler.executor_unavailability_of(worker_id(1), 1), None);
    for model in ["b", "c"] {
        fail(&mut rig, &asking(model), 3);
    }
    assert_eq!(alone(why(&rig)), expected, "all are quarantined");

    let lost = rig.now;
    rig.silence(1);
    rig.event(SchedulerEvent::WorkerDisconnected(worker_id(1)));
    let reason = "the connection to the worker was lost";
    assert_eq!(why(&rig), Some(Unavailability::Lost { since: lost, reason }));
    let mut rig = joined(once(), worker(1));
    rig.dispatched(task());
    rig.ask(Command::RemoveWorker(worker_id(1)));
    assert_eq!(why(&rig), Some(Unavailability::Draining));
    assert_eq!(rig.scheduler.unavailability_of(worker_id(9), None), None);
}
