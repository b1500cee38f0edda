//! Clients and operators: the requests that they send to schedulers, and how often.

use std::sync::Arc;

use hypha_engine::{Command, Scheduler, SchedulerEvent};
use hypha_model::Span;

use super::World;
use super::event_queue::WorldEvent;
use super::nodes::Node;
use crate::checkers::Violation;
use crate::scenario::stream;

/// A client that got no answer retries after this long, with the same key.
const CLIENT_RETRY_AFTER: Span = Span::from_secs(2);

/// The sender of a request to a scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Requester {
    /// The client that submits the task with this index.
    Client(usize),
    /// The client that submits the job with this index.
    Job(usize),
    /// A requester that ignores its reply.
    Operator,
}

impl World {
    pub(super) fn next_arrival(&mut self) {
        if self.next_arrival < self.arrivals.count() {
            let index = self.next_arrival;
            self.events.add(self.arrivals.at(index).max(self.now), WorldEvent::Submit { index });
            self.next_arrival += 1;
        }
    }

    /// A client submits a task, and does so again with the same key until it is answered.
    pub(super) fn submit(&mut self, index: usize) -> Result<(), Violation> {
        if self.checkers.is_answered(index) {
            return Ok(());
        }
        self.checkers.submitted(index, self.now);
        if self.checkers.checks_starvation() {
            let (task, run_s) = (self.arrivals.task(index), self.arrivals.run_s(index));
            self.checkers
                .starvation_task_arrived(self.now, stream::arrived_task(index, &task, run_s));
        }
        if self.fault_schedule.clients_retry() && self.arrivals.is_stored(index) {
            self.events.add(self.now + CLIENT_RETRY_AFTER, WorldEvent::Submit { index });
        }
        let command = Command::SubmitTasks(vec![self.arrivals.task(index)]);
        self.request(self.arrivals.scheduler(index), Requester::Client(index), command)
    }

    pub(super) fn cancel(&mut self, index: usize) -> Result<(), Violation> {
        match self.checkers.id_of(index) {
            Some(id) => {
                self.operator_request(self.arrivals.scheduler(index), Command::CancelTask(id))
            }
            None => Ok(()),
        }
    }

    /// An operator sends a command.
    pub(super) fn operator_request(
        &mut self,
        scheduler: usize,
        command: Command,
    ) -> Result<(), Violation> {
        self.request(scheduler, Requester::Operator, command)
    }

    /// Sends a request to a scheduler. A suspended process receives it when it resumes.
    pub(super) fn request(
        &mut self,
        scheduler: usize,
        from: Requester,
        command: Command,
    ) -> Result<(), Violation> {
        let incarnation = self.schedulers[scheduler].incarnation;
        match self.fault_schedule.frozen_until(Node::Scheduler(scheduler), self.now) {
            Some(thaw) => {
                let request = WorldEvent::Requested { scheduler, incarnation, from, command };
                self.events.add(thaw, request);
                Ok(())
            }
            None => self.requested(scheduler, incarnation, from, command),
        }
    }

    pub(super) fn requested(
        &mut self,
        scheduler: usize,
        incarnation: u32,
        from: Requester,
        command: Command,
    ) -> Result<(), Violation> {
        // A connection does not outlive either end.
        if self.schedulers[scheduler].incarnation == incarnation {
            self.ask::<Scheduler>(scheduler, SchedulerEvent::CommandReceived(command), from)?;
        }
        if let Requester::Client(index) = from
            && !self.arrivals.is_stored(index)
        {
            // A request that has not been answered by now never will be, and the client notices.
            self.checkers.client_disconnected(self.now, index);
        }
        Ok(())
    }

    /// The schedulers that can find a worker find it.
    pub(super) fn announce(&mut self, worker: usize) {
        for scheduler in self.workers[worker].setup.known_to.clone() {
            self.events.add(self.now, WorldEvent::Found { scheduler, worker });
        }
    }

    pub(super) fn found(&mut self, scheduler: usize, worker: usize) -> Result<(), Violation> {
        self.connect(scheduler, worker)?;
        let worker = Arc::clone(&self.workers[worker].setup.worker);
        let found = SchedulerEvent::WorkerFound(Arc::clone(&worker));
        self.tell::<Scheduler>(scheduler, found)?;
        // A worker that an operator removed before is registered again, or is never used any more.
        let machine = self.schedulers[scheduler].machine.as_ref();
        if machine.is_some_and(|machine| machine.is_removed(worker.id)) {
            self.operator_request(scheduler, Command::RegisterWorker(worker))?;
        }
        Ok(())
    }
}
