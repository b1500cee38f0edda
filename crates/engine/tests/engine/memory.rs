//! The memory that a scheduler keeps after a long queue is gone.

use std::sync::Arc;

use hypha_engine::{
    Command, Image, NewTask, Record, Reply, Scheduler, SchedulerEvent, SchedulerStep, Settings,
};
use hypha_machine::{Apply, Batch, MemoryDisk};
use hypha_model::{Requirement, Rng, SchedulerId, TaskId, TaskSpec};

use crate::harness::START;

const MANY: usize = 60_000;
const IN_ONE_REQUEST: usize = 1_000;
/// How many tasks a scheduler may keep memory for after a long queue, whatever its length.
const FEW: usize = 10_000;

fn ask(scheduler: &mut Scheduler, batch: &mut Batch<Scheduler, ()>, command: Command) -> Reply {
    batch.step_request(scheduler, START, SchedulerEvent::CommandReceived(command), ());
    let Ok(mut released) = batch.seal().write(&mut MemoryDisk::<Nothing>::default());
    let (_, reply) = released.replies.pop().expect("every request has its reply");
    reply
}

/// The image of a disk that keeps nothing, so that it does not hold the memory.
#[derive(Default)]
struct Nothing;

impl Apply<Record> for Nothing {
    fn apply(&mut self, _: &Record) {}
}

/// A task for a model of its own, or for the same as others. No worker serves any of them.
fn task(number: usize) -> NewTask {
    let model = if number.is_multiple_of(2) { format!("model-{number}") } else { "llama".into() };
    let requirement = Requirement { model: model.parse().ok(), ..Requirement::default() };
    let spec = Arc::new(TaskSpec { requirement, ..TaskSpec::default() });
    NewTask {
        spec,
        idempotency_key: None,
        bind_at_once: false,
        stored: true,
        quota: None,
        weight: None,
    }
}

/// In three orders: by arrival, the last first, and mixed.
#[test]
fn memory_shrinks_with_the_queue() {
    let orders: [fn(usize) -> usize; 3] = [|at| at, |at| MANY - 1 - at, |at| (at * 7_919) % MANY];
    for order in orders {
        let mut step = SchedulerStep::default();
        let id = SchedulerId::new(START, &mut Rng::new(1));
        let settings = Settings { max_queue: MANY, ..Settings::default() };
        let mut scheduler = Scheduler::recover(id, settings, Image::default(), 1, START, &mut step);
        let mut batch = Batch::from(step);
        let mut tasks: Vec<TaskId> = Vec::new();
        while tasks.len() < MANY {
            let new = (tasks.len()..tasks.len() + IN_ONE_REQUEST).map(task).collect();
            let reply = ask(&mut scheduler, &mut batch, Command::SubmitTasks(new));
            let Reply::Submitted(answers) = reply else { panic!("{reply:?}") };
            tasks.extend(answers.into_iter().map(|answer| answer.expect("there is room").task));
        }
        assert!(scheduler.task_capacity() >= MANY);
        for at in 0..MANY {
            ask(&mut scheduler, &mut batch, Command::CancelTask(tasks[order(at)]));
        }
        assert_eq!(scheduler.open_tasks(), 0);
        let kept = scheduler.task_capacity();
        assert!(kept < FEW, "memory for {kept} tasks is kept");
    }
}
