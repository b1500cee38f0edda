//! Interactive tasks: placed like others, never durable, and their effects do not wait for a disk.

use hypha_engine::{Command, Effect, FromWorker, Notice, Record, Scheduler};
use hypha_model::{Payload, TaskState};

use crate::harness::*;

/// The number of durable records of tasks, and of effects and replies that wait for them.
fn of_tasks(steps: &[Committed<Scheduler>]) -> (usize, usize) {
    let durable = |record: &&Record| {
        !matches!(record, Record::Worker { .. } | Record::Predictor(_) | Record::Started { .. })
    };
    let persisted = steps.iter().flat_map(|step| &step.persist).filter(durable).count();
    let waits = |step: &Committed<Scheduler>| step.send.len() + usize::from(step.reply.is_some());
    (persisted, steps.iter().map(waits).sum())
}

fn ended(rig: &Rig) -> Option<TaskState> {
    rig.sent().find_map(|effect| match effect {
        Effect::Notice { notice: Notice::Ended { finished, .. }, .. } => Some(finished.state),
        _ => None,
    })
}

#[test]
fn an_interactive_task_stores_nothing_and_its_effects_leave_at_once() {
    let mut rig = Rig::with_workers(&[1]);
    rig.unstored = 1;
    let (_, assignment) = rig.dispatched(unstored());
    assert_eq!(of_tasks(&rig.steps), (0, 0));
    rig.start(&assignment);
    assert_eq!(of_tasks(&rig.steps), (0, 0));
    rig.unstored = 0;
    rig.finish(&assignment);
    assert_eq!((of_tasks(&rig.steps), ended(&rig)), ((0, 0), Some(TaskState::Completed)));
    rig.restart();
    assert_eq!(rig.scheduler.open_tasks(), 0);
}

#[test]
fn a_worker_that_fails_before_the_first_piece_is_replaced_silently() {
    let mut rig = Rig::with_workers(&[1, 2]);
    rig.unstored = 1;
    let (_, assignment) = rig.dispatched(unstored());
    rig.finish_with(&assignment, failed(true));
    rig.wait(rig.settings.min_plan_interval);
    let again = rig.dispatches();
    assert_eq!(again.len(), 1, "at once, without the backoff of stored tasks");
    assert_ne!(again[0].worker, assignment.worker);
    assert_eq!(of_tasks(&rig.steps).0, 0);
    rig.unstored = 0;
    rig.finish(&again[0]);
    assert_eq!(ended(&rig), Some(TaskState::Completed));
}

#[test]
fn after_the_first_piece_a_failure_is_the_end() {
    let mut rig = Rig::with_workers(&[1, 2]);
    rig.unstored = 1;
    let (id, assignment) = rig.dispatched(unstored());
    let (attempt, fence) = (assignment.dispatch.attempt, assignment.dispatch.fence);
    let piece = Payload::from(&b"data: 1"[..]);
    rig.receive(assignment.n(), FromWorker::Output { attempt, fence, piece: piece.clone() });
    assert_eq!(rig.notices(id), [Notice::Output(piece)]);
    rig.unstored = 0;
    rig.finish_with(&assignment, failed(true));
    assert_eq!(ended(&rig), Some(TaskState::Failed));
}

#[test]
fn a_client_that_disconnects_stops_the_run() {
    let mut rig = Rig::with_workers(&[1]);
    rig.unstored = 1;
    let (id, assignment) = rig.dispatched(unstored());
    rig.unstored = 0;
    rig.ask(Command::CancelTask(id));
    assert!(rig.is_cancelled(&assignment));
    assert_eq!(ended(&rig), Some(TaskState::Cancelled));
}

#[test]
fn attempts_of_an_earlier_incarnation_are_stopped() {
    let mut rig = Rig::with_workers(&[1]);
    rig.unstored = 1;
    let (_, assignment) = rig.dispatched(unstored());
    rig.unstored = 0;
    rig.workers
        .get_mut(&assignment.worker)
        .unwrap()
        .holding
        .push((assignment.dispatch.attempt, assignment.dispatch.fence));
    rig.restart();
    assert!(rig.is_cancelled(&assignment), "its client no longer waits");
}
