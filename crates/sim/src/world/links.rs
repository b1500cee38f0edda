//! Messages between schedulers and workers.

use hypha_engine::{FromWorker, Scheduler, SchedulerEvent, ToWorker, WorkerEvent, WorkerMachine};
use hypha_model::Time;

use super::World;
use super::event_queue::WorldEvent;
use crate::checkers::{PRESUMED_LOST_AFTER, Violation};

/// The connection that a message travels on: it ends with the process of its receiver, or when another replaces it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Link {
    incarnation: u32,
    replaced: u32,
}

impl World {
    pub(super) fn send_to_worker(&mut self, scheduler: usize, worker: usize, message: ToWorker) {
        if self.is_http(worker) {
            return self.send_to_http_worker(scheduler, worker, message);
        }
        self.count_to_worker(worker, &message);
        let link = self.link_to_worker(scheduler, worker);
        for at in self.deliveries(scheduler, worker) {
            let message = message.clone();
            self.events.add(at, WorldEvent::ToWorker { worker, scheduler, link, message });
        }
    }

    pub(super) fn send_to_scheduler(
        &mut self,
        worker: usize,
        scheduler: usize,
        message: FromWorker,
    ) {
        if self.is_http(worker) {
            return self.send_from_http_worker(worker, message);
        }
        let link = self.link_to_scheduler(scheduler, worker);
        for at in self.deliveries(scheduler, worker) {
            let message = message.clone();
            self.events.add(at, WorldEvent::FromWorker { scheduler, worker, link, message });
        }
    }

    pub(super) fn link_to_worker(&self, scheduler: usize, worker: usize) -> Link {
        Link {
            incarnation: self.workers[worker].incarnation,
            replaced: self.replaced(scheduler, worker),
        }
    }

    pub(super) fn link_to_scheduler(&self, scheduler: usize, worker: usize) -> Link {
        Link {
            incarnation: self.schedulers[scheduler].incarnation,
            replaced: self.replaced(scheduler, worker),
        }
    }

    fn replaced(&self, scheduler: usize, worker: usize) -> u32 {
        self.replaced.get(&(scheduler, worker)).copied().unwrap_or_default()
    }

    /// Another connection between the two replaces the one they have: messages in flight on it are lost. This excuses
    /// no failure: lost messages have to be sent again.
    pub(super) fn replace_link(&mut self, scheduler: usize, worker: usize) {
        let is_connected = self.schedulers[scheduler].is_up && self.workers[worker].is_up;
        if self.is_http(worker) || !is_connected {
            return;
        }
        *self.replaced.entry((scheduler, worker)).or_default() += 1;
        let incarnation = self.schedulers[scheduler].incarnation;
        self.events.add(self.now, WorldEvent::Relinked { scheduler, incarnation, worker });
    }

    /// When a message between the two arrives: not at all, once or twice.
    fn deliveries(
        &mut self,
        scheduler: usize,
        worker: usize,
    ) -> impl Iterator<Item = Time> + use<> {
        let arrivals = match self.fault_schedule.is_partitioned(scheduler, worker, self.now) {
            true => [None, None],
            false => self.network.deliveries(self.now, &mut self.rng),
        };
        let (first, on_time) = (arrivals[0], self.now + PRESUMED_LOST_AFTER);
        if first.is_none_or(|arrival| arrival > on_time) {
            self.checkers.link_failed(scheduler, worker, first.unwrap_or(self.now));
        }
        arrivals.into_iter().flatten()
    }

    pub(super) fn deliver_to_worker(
        &mut self,
        worker: usize,
        scheduler: usize,
        link: Link,
        message: ToWorker,
    ) -> Result<(), Violation> {
        // A connection does not outlive either end.
        if self.link_to_worker(scheduler, worker) != link {
            return Ok(());
        }
        let scheduler = self.schedulers[scheduler].setup.id;
        self.tell::<WorkerMachine>(
            worker,
            WorkerEvent::SchedulerMessageReceived { scheduler, message },
        )
    }

    pub(super) fn deliver_to_scheduler(
        &mut self,
        scheduler: usize,
        worker: usize,
        link: Link,
        message: FromWorker,
    ) -> Result<(), Violation> {
        if self.link_to_scheduler(scheduler, worker) != link {
            return Ok(());
        }
        let void = self.checkers.void_result(self.schedulers[scheduler].setup.id, &message);
        let id = self.workers[worker].setup.worker.id;
        self.tell::<Scheduler>(
            scheduler,
            SchedulerEvent::WorkerMessageReceived { worker: id, message: message.into() },
        )?;
        self.checkers.check_void_result_dropped(void)?;
        self.checkers.check_lease_holders(self.now, &self.schedulers, &self.workers[worker])
    }

    pub(super) fn disconnected(
        &mut self,
        scheduler: usize,
        worker: usize,
        incarnation: u32,
    ) -> Result<(), Violation> {
        if self.schedulers[scheduler].incarnation != incarnation {
            return Ok(());
        }
        let id = self.workers[worker].setup.worker.id;
        self.tell::<Scheduler>(scheduler, SchedulerEvent::WorkerDisconnected(id))
    }

    pub(super) fn relinked(
        &mut self,
        scheduler: usize,
        worker: usize,
        incarnation: u32,
    ) -> Result<(), Violation> {
        if self.schedulers[scheduler].incarnation != incarnation {
            return Ok(());
        }
        let id = self.workers[worker].setup.worker.id;
        self.tell::<Scheduler>(scheduler, SchedulerEvent::WorkerReconnected(id))
    }
}
