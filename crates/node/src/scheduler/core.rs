//! The scheduler's machine, shared by everything in this process that has events or requests for it.

use std::future::ready;
use std::sync::Arc;

use futures::FutureExt;
use hypha_api::{Accepted, Answer, Unavailable, Watch};
use hypha_driver::Shared;
use hypha_engine::{Command, FromWorker, NewTask, Reply, Scheduler, SchedulerEvent, SchedulerStep};
use hypha_model::{TaskId, Time, WorkerId};
use hypha_store::Store;
use tokio::sync::oneshot;

use super::carrier::{Requester, SchedulerCarrier};

/// See the head of this file.
pub(crate) struct Core {
    pub(super) machine: Arc<Shared<Scheduler, Arc<Store>, SchedulerCarrier>>,
}

impl Core {
    pub(super) fn new(
        scheduler: Scheduler,
        step: SchedulerStep,
        store: Arc<Store>,
        carrier: SchedulerCarrier,
    ) -> Core {
        let machine = Arc::new(Shared::new(scheduler, step, store, carrier));
        machine.carrier().serve(&machine);
        Core { machine }
    }

    /// Something happened.
    pub(crate) fn tell(&self, event: SchedulerEvent) {
        self.machine.tell([event]);
    }

    /// A worker said some things. If the store fails they are lost: workers repeat what was not recorded.
    pub(crate) fn worker_said(&self, worker: WorkerId, said: impl Iterator<Item = FromWorker>) {
        let carrier = self.machine.carrier();
        let unseen = said.filter_map(|message| match message {
            // Only the first piece of a stream concerns the machine.
            FromWorker::Output { attempt, fence, piece } => {
                let piece = carrier.pass_on(worker, fence, piece)?;
                Some(FromWorker::Output { attempt, fence, piece })
            }
            other => Some(other),
        });
        self.machine.tell(unseen.map(|message| SchedulerEvent::WorkerSaid { worker, message }));
    }

    /// Asks the machine; the answer comes when it is durable.
    pub(super) fn ask(&self, command: Command) -> Answer<Reply> {
        let (answer, answered) = oneshot::channel();
        let event = SchedulerEvent::Asked(command);
        let give = |requester: Requester, reply| requester.give(reply, |_, _| Vec::new());
        self.machine.ask(event, Requester::Command(answer), give);
        answered.map(|answer| answer.unwrap_or_else(|_| Err(stopping()))).boxed()
    }

    /// Submits, and watches without missing anything.
    pub(super) fn submit(&self, tasks: Vec<NewTask>, watch: bool) -> Answer<Vec<Accepted>> {
        if !tasks.iter().any(|task| task.stored) {
            return ready(self.submit_unstored(tasks, watch)).boxed();
        }
        let (answer, answered) = oneshot::channel();
        let event = SchedulerEvent::Asked(Command::SubmitTasks(tasks));
        self.machine.ask_with_next_commit(event, Requester::Submit { answer, watch });
        answered.map(|answer| answer.unwrap_or_else(|_| Err(stopping()))).boxed()
    }

    /// Submits tasks that are not stored: nothing durable is at stake, so the reply comes here and now.
    fn submit_unstored(
        &self,
        tasks: Vec<NewTask>,
        watch: bool,
    ) -> Result<Vec<Accepted>, Unavailable> {
        let event = SchedulerEvent::Asked(Command::SubmitTasks(tasks));
        let accepted = self.machine.ask(event, Requester::OnTheLine, |_, reply| match reply {
            Reply::Submitted(answers) => Some(self.machine.carrier().accept(answers, watch)),
            _ => None,
        });
        accepted.flatten().ok_or_else(|| {
            let stopped = self.stopped();
            Unavailable(stopped.unwrap_or_else(|| "the scheduler did not answer".to_owned()))
        })
    }

    /// Watches a task from now on.
    pub(super) fn watch(&self, task: TaskId) -> Watch {
        self.machine.carrier().watch(task)
    }

    /// Looks at the machine.
    pub(super) fn read<T>(&self, look: impl FnOnce(&Scheduler, Time) -> T) -> T {
        self.machine.read(look)
    }

    /// The time that the machine goes by.
    pub(super) fn now(&self) -> Time {
        hypha_driver::Carrier::now(self.machine.carrier())
    }

    /// Why nothing is acknowledged at present.
    pub(super) fn stopped(&self) -> Option<String> {
        self.machine.stopped().map(|why| why.to_string())
    }
}

pub(super) fn stopping() -> Unavailable {
    Unavailable("the scheduler is stopping".to_owned())
}
