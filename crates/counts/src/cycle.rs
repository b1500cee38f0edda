//! One cycle of the scheduler machine with 100 workers: a task is submitted and dispatched, the worker reports that it
//! has started and that it is done, and the result is recorded.
//!
//! Everything that touches the machine's interface is in `SchedulerHarness::step`.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::hint::black_box;
use std::sync::Arc;

use anyhow::ensure;
use hypha_engine::scheduler::Effect;
use hypha_engine::{
    Command, FromWorker, Image, LeaseRequest, NewTask, Outcome, Scheduler, SchedulerEvent,
    SchedulerStep, Settings, ToWorker,
};
use hypha_machine::{Batch, Disk, Machine};
use hypha_model::{
    AttemptId, Epoch, Fence, LeaseId, Payload, Rng, SchedulerId, Span, TaskResult, TaskSpec, Time,
    WorkerId,
};
use hypha_placement::Strategy;

use crate::tasks::{START, spec, worker};

const WORKERS: usize = 100;
/// Cycles until every worker is known.
const WARM_UP: u64 = 500;
/// The run time of a task, and the interval between tasks.
const RUN: Span = Span::from_millis(1);

pub(crate) fn run(rounds: u64) -> anyhow::Result<()> {
    let mut harness = SchedulerHarness::new(Strategy::default());
    for _ in 0..WORKERS {
        let found = worker(1, &mut harness.rng)?;
        harness.step(SchedulerEvent::WorkerFound(found));
        harness.run_workers();
    }
    let specs: Vec<_> = (0..64).map(|_| Arc::new(spec(&mut harness.rng))).collect();
    for round in 0..WARM_UP + rounds {
        harness.submit(Arc::clone(&specs[round as usize % specs.len()]));
        harness.run_workers();
    }
    ensure!(harness.finished == WARM_UP + rounds, "{} cycles were finished", harness.finished);
    Ok(())
}

/// A disk that keeps nothing: another scenario counts the cost of a commit.
pub(crate) struct NullDisk;

impl<R> Disk<R> for NullDisk {
    type Error = Infallible;

    fn write(&mut self, records: Vec<R>) -> Result<(), Infallible> {
        black_box(records);
        Ok(())
    }
}

/// The client and the workers around a scheduler. Workers respond at once.
pub(crate) struct SchedulerHarness {
    scheduler: Scheduler,
    batch: Batch<Scheduler, ()>,
    pub(crate) now: Time,
    pub(crate) rng: Rng,
    pub(crate) orders: VecDeque<(WorkerId, ToWorker)>,
    result: TaskResult,
    pub(crate) finished: u64,
}

impl SchedulerHarness {
    pub(crate) fn new(strategy: Strategy) -> SchedulerHarness {
        let (mut step, mut rng) = (SchedulerStep::default(), Rng::new(7));
        let id = SchedulerId::new(START, &mut rng);
        let settings = Settings { strategy, ..Settings::default() };
        let scheduler = Scheduler::recover(id, settings, Image::default(), 1, START, &mut step);
        let result = Payload::from(vec![b'y'; 50]).into();
        let orders = VecDeque::new();
        let batch = Batch::from(step);
        SchedulerHarness { scheduler, batch, now: START, rng, orders, result, finished: 0 }
    }

    /// One step, as a driver does it.
    pub(crate) fn step(&mut self, event: SchedulerEvent) {
        black_box(self.batch.step_request(&mut self.scheduler, self.now, event, ()));
        let at_once = self.batch.take_at_once();
        let Ok(mut released) = self.batch.seal().write(&mut NullDisk);
        for effect in at_once.into_iter().chain(released.effects.drain(..)) {
            if let Effect::ToWorker { worker, message } = effect {
                self.orders.push_back((worker, message));
            }
        }
        self.batch.reuse(released);
    }

    pub(crate) fn submit(&mut self, spec: Arc<TaskSpec>) {
        let task = NewTask {
            spec,
            idempotency_key: None,
            bind_at_once: false,
            stored: true,
            quota: None,
            weight: None,
        };
        let command = Command::SubmitTasks(vec![task]);
        self.step(SchedulerEvent::CommandReceived(command));
    }

    /// Lets the workers respond until no message is left, then lets the time of a run pass.
    fn run_workers(&mut self) {
        while let Some((worker, order)) = self.orders.pop_front() {
            match order {
                ToWorker::Dispatch(dispatch) => {
                    let (attempt, fence) = (dispatch.attempt, dispatch.fence);
                    self.send_from_worker(worker, FromWorker::Started { attempt, fence });
                    self.advance_time(RUN);
                    self.finish(worker, (attempt, fence), RUN);
                }
                ToWorker::RequestLease(LeaseRequest { request, .. }) => self.grant(worker, request),
                ToWorker::Heartbeat { lease, epoch, nonce, .. } => {
                    let holding = Vec::new();
                    self.send_from_worker(
                        worker,
                        FromWorker::Alive {
                            lease,
                            epoch,
                            nonce,
                            portion: None,
                            usage: None,
                            holding,
                        },
                    );
                }
                _ => {}
            }
        }
    }

    /// A worker reports that it is done.
    pub(crate) fn finish(
        &mut self,
        worker: WorkerId,
        (attempt, fence): (AttemptId, Fence),
        run: Span,
    ) {
        let outcome = Outcome::Completed { result: self.result.clone() };
        self.send_from_worker(worker, FromWorker::Finished { attempt, fence, run, outcome });
        self.finished += 1;
    }

    /// A worker grants the requested lease.
    pub(crate) fn grant(&mut self, worker: WorkerId, request: u64) {
        let (lease, epoch) = (LeaseId::new(self.now, &mut self.rng), Epoch(1));
        let (ttl, holding) = (Span::from_secs(120), Vec::new());
        let message =
            FromWorker::LeaseGranted { request, lease, epoch, ttl, portion: None, holding };
        self.send_from_worker(worker, message);
    }

    pub(crate) fn send_from_worker(&mut self, worker: WorkerId, message: FromWorker) {
        self.step(SchedulerEvent::WorkerMessageReceived { worker, message: message.into() });
    }

    /// Time passes, and the scheduler wakes when it is due.
    pub(crate) fn advance_time(&mut self, time: Span) {
        let end = self.now + time;
        while let Some(wake) = self.scheduler.wake_at(self.now)
            && wake <= end
        {
            self.now = wake.max(self.now);
            self.step(SchedulerEvent::Woke);
        }
        self.now = end;
    }
}
