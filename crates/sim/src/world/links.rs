//! Messages between schedulers and workers.

use hypha_engine::{FromWorker, Scheduler, SchedulerEvent, ToWorker, WorkerEvent, WorkerMachine};
use hypha_model::Time;

use super::World;
use super::agenda::Happening;
use crate::watch::{LATE, Violation};

impl World {
    pub(super) fn send_to_worker(&mut self, scheduler: usize, worker: usize, message: ToWorker) {
        let life = self.workers[worker].life;
        if self.is_http(worker) {
            return self.send_to_http_worker(scheduler, worker, message);
        }
        for at in self.deliveries(scheduler, worker) {
            let message = message.clone();
            self.agenda.add(at, Happening::ToWorker { worker, scheduler, life, message });
        }
    }

    pub(super) fn send_to_scheduler(
        &mut self,
        worker: usize,
        scheduler: usize,
        message: FromWorker,
    ) {
        if self.is_http(worker) {
            return self.http_worker_says(worker, message);
        }
        let life = self.schedulers[scheduler].life;
        for at in self.deliveries(scheduler, worker) {
            let message = message.clone();
            self.agenda.add(at, Happening::FromWorker { scheduler, worker, life, message });
        }
    }

    /// When a message between the two arrives: not at all, once or twice.
    fn deliveries(
        &mut self,
        scheduler: usize,
        worker: usize,
    ) -> impl Iterator<Item = Time> + use<> {
        let arrivals = match self.timetable.parted(scheduler, worker, self.now) {
            true => [None, None],
            false => self.network.deliveries(self.now, &mut self.rng),
        };
        let (first, on_time) = (arrivals[0], self.now + LATE);
        if first.is_none_or(|arrival| arrival > on_time) {
            self.watch.link_failed(scheduler, worker, first.unwrap_or(self.now));
        }
        arrivals.into_iter().flatten()
    }

    pub(super) fn worker_hears(
        &mut self,
        worker: usize,
        scheduler: usize,
        life: u32,
        message: ToWorker,
    ) -> Result<(), Violation> {
        // A connection does not outlive either end.
        if self.workers[worker].life != life {
            return Ok(());
        }
        let scheduler = self.schedulers[scheduler].setup.id;
        self.tell::<WorkerMachine>(worker, WorkerEvent::SchedulerSaid { scheduler, message })
    }

    pub(super) fn scheduler_hears(
        &mut self,
        scheduler: usize,
        worker: usize,
        life: u32,
        message: FromWorker,
    ) -> Result<(), Violation> {
        let host = &self.schedulers[scheduler];
        if host.life != life {
            return Ok(());
        }
        let void = self.watch.void_result(host.setup.id, &message);
        let id = self.workers[worker].setup.worker.id;
        self.tell::<Scheduler>(scheduler, SchedulerEvent::WorkerSaid { worker: id, message })?;
        self.watch.not_recorded(void)?;
        self.watch.holders_stop_first(self.now, &self.schedulers, &self.workers[worker])
    }

    pub(super) fn disconnected(
        &mut self,
        scheduler: usize,
        worker: usize,
        life: u32,
    ) -> Result<(), Violation> {
        if self.schedulers[scheduler].life != life {
            return Ok(());
        }
        let id = self.workers[worker].setup.worker.id;
        self.tell::<Scheduler>(scheduler, SchedulerEvent::WorkerDisconnected(id))
    }
}
