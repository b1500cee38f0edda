//! A task in every stage of its life cycle: it is cancelled, it expires, the strategy changes, the scheduler
//! dies.

use hypha_engine::{Command, NewTask, Record, Reply};
use hypha_model::TaskState;
use hypha_placement::{Predictive, Strategy};

use crate::harness::*;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Stage {
    Queued,
    Bound,
    Unacknowledged,
    Acknowledged,
    Running,
    WaitingForRetry,
}

pub(crate) const STAGES: [Stage; 6] = [
    Stage::Queued,
    Stage::Bound,
    Stage::Unacknowledged,
    Stage::Acknowledged,
    Stage::Running,
    Stage::WaitingForRetry,
];

/// A scheduler whose last task is in this stage, and the attempt if there is one.
fn bring(stage: Stage, task_in_stage: NewTask) -> (Rig, hypha_model::TaskId, Option<Assignment>) {
    let mut rig = Rig::early();
    if stage == Stage::Queued {
        let id = rig.submit(task_in_stage);
        return (rig, id, None);
    }
    rig.join(1);
    if stage == Stage::Bound {
        rig.submit(task());
        rig.submit(task());
        let id = rig.submit(task_in_stage);
        assert_eq!((rig.view(id).state, rig.view(id).attempts), (TaskState::Scheduled, 0));
        return (rig, id, None);
    }
    let (id, assignment) = rig.dispatched(task_in_stage);
    match stage {
        Stage::Acknowledged => rig.accept(&assignment),
        Stage::Running => rig.start(&assignment),
        Stage::WaitingForRetry => {
            rig.finish_with(&assignment, failed(true));
            assert!(rig.view(id).not_before.is_some());
            return (rig, id, None);
        }
        _ => {}
    }
    (rig, id, Some(assignment))
}

#[test]
fn a_task_is_cancelled_in_every_stage() {
    for stage in STAGES {
        let (mut rig, id, assignment) = bring(stage, task());
        let reply = rig.ask(Command::CancelTask(id));
        assert_eq!(reply, Reply::Cancelled(Some(TaskState::Cancelled)), "{stage:?}");
        assert_eq!(rig.ends(), 1, "{stage:?}");
        assert_eq!(rig.ended(id).state, TaskState::Cancelled, "{stage:?}");
        let Some(assignment) = assignment else { continue };
        assert!(rig.is_cancelled(&assignment), "{stage:?}: the worker is notified");
        assert_eq!(rig.ended(id).worker, Some(assignment.worker), "{stage:?}");
        assert_eq!(rig.ended(id).started.is_some(), stage == Stage::Running, "{stage:?}");
        // The result arrives although the task has ended.
        rig.finish(&assignment);
        assert_eq!((rig.ends(), rig.scheduler.counts().late_results), (0, 1), "{stage:?}");
        assert_eq!(rig.ask(Command::CancelTask(id)), Reply::Cancelled(None), "{stage:?}");
    }
}

#[test]
fn a_task_expires_in_every_stage() {
    for stage in STAGES {
        let (mut rig, id, assignment) = bring(stage, with_deadline(1));
        rig.wait(hypha_model::Span::from_millis(999));
        assert_eq!(rig.ends(), 0, "{stage:?}");
        rig.wait(hypha_model::Span::from_millis(1));
        assert_eq!(rig.ended(id).state, TaskState::Expired, "{stage:?}");
        assert!(rig.ended(id).error.as_ref().unwrap().message.starts_with("the deadline passed"));
        if let Some(assignment) = assignment {
            assert!(rig.is_cancelled(&assignment), "{stage:?}: the worker is notified");
            rig.finish(&assignment);
            assert_eq!((rig.ends(), rig.scheduler.counts().late_results), (0, 1), "{stage:?}");
        }
        assert_eq!(rig.scheduler.counts().expired, 1, "{stage:?}");
    }
}

#[test]
fn a_change_of_strategy_loses_nothing_in_any_stage() {
    for stage in STAGES {
        for strategy in [Strategy::Predictive(Predictive::default()), Strategy::FirstFit] {
            let (mut rig, id, assignment) = bring(stage, task());
            let reply = rig.ask(Command::SetStrategy(strategy));
            assert_eq!(reply, Reply::StrategySet(Ok(())));
            assert!(rig.persisted().any(|record| matches!(record, Record::Strategy(_))));
            let view = rig.view(id);
            let bound = view.worker.is_some();
            assert_eq!(view.state == TaskState::Queued, !bound, "{stage:?}: {:?}", view.state);
            assert_eq!(assignment.is_some(), bound, "{stage:?}");
            finish_all(&mut rig, assignment);
            assert_eq!(rig.ended(id).state, TaskState::Completed, "{stage:?}");
        }
    }
}

#[test]
fn a_restart_loses_nothing_in_any_stage() {
    for stage in STAGES {
        for still_has_it in [true, false] {
            let (mut rig, id, assignment) = bring(stage, task());
            let not_before = rig.view(id).not_before;
            if !still_has_it {
                rig.workers.values_mut().for_each(|script| script.holding.clear());
            }
            rig.restart();
            let view = rig.view(id);
            let waits = view.not_before.is_some();
            match (assignment, still_has_it) {
                (Some(assignment), true) => {
                    assert_eq!(view.worker, Some(assignment.worker), "{stage:?}");
                    assert!(!rig.is_cancelled(&assignment), "{stage:?}");
                    assert_eq!(view.attempts, 1, "{stage:?}: it continues and is not restarted");
                    let worker = rig.scheduler.workers(rig.now)[0].0.clone();
                    assert_eq!((worker.in_flight, worker.queued), (1, 0), "{stage:?}");
                    rig.finish(&assignment);
                    assert_eq!(rig.ends(), 1, "{stage:?}");
                }
                (Some(assignment), false) => {
                    assert!(waits, "{stage:?}: retried after a backoff");
                    assert_eq!(rig.stored(id).failures, 0, "{stage:?}: no attempt is used up");
                    rig.finish(&assignment);
                    assert_eq!(rig.ends(), 0, "{stage:?}: the attempt is void");
                }
                (None, _) => assert_eq!(view.not_before, not_before, "{stage:?}"),
            }
            finish_all(&mut rig, None);
            assert_eq!(rig.ended(id).state, TaskState::Completed, "{stage:?}");
        }
    }
}

/// Finishes all dispatched attempts until no task is open.
fn finish_all(rig: &mut Rig, first: Option<Assignment>) {
    if let Some(assignment) = first {
        rig.finish(&assignment);
    }
    if rig.workers.is_empty() {
        rig.join(1);
    }
    for _ in 0..100 {
        let mut assignment = rig.dispatches();
        // Attempts that the worker had before the call count as well.
        for (worker, script) in rig.workers.clone() {
            for (attempt, fence) in script.holding {
                let stored = rig.disk.image.tasks[&attempt.task].clone();
                let dispatch = hypha_engine::Dispatch {
                    interactive: false,
                    lease: rig.scheduler.lease_of(worker).unwrap().lease,
                    epoch: hypha_model::Epoch(1),
                    attempt,
                    fence,
                    spec: stored.accepted.spec.clone(),
                    timeout: secs(1),
                    resume: None,
                };
                assignment.push(Assignment { worker, dispatch: std::sync::Arc::new(dispatch) });
            }
        }
        assignment.iter().for_each(|assignment| rig.finish(assignment));
        if rig.scheduler.open_tasks() == 0 {
            return;
        }
        rig.wait(secs(1));
    }
    panic!("{} tasks are left", rig.scheduler.open_tasks());
}
