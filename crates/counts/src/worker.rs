//! A worker machine with a long queue: a run ends, its result is recorded, the next of the queue begins, and another
//! dispatch arrives. What a round costs must not grow with the queue.

use std::collections::VecDeque;
use std::hint::black_box;
use std::sync::Arc;

use anyhow::{Context, ensure};
use hypha_engine::{
    Dispatch, FromWorker, LeaseRequest, Outcome, OutgoingMessage, RunCommand, RunId, ToWorker,
    WorkerEffect, WorkerEvent, WorkerMachine, WorkerStep,
};
use hypha_machine::Batch;
use hypha_model::{
    AttemptId, Epoch, Fence, LeaseId, Payload, Rng, SchedulerId, Span, TaskId, TaskSpec, Time,
};

use crate::cycle::NullDisk;
use crate::tasks::{START, spec, worker};

/// Runs at once, as a server that batches has.
const CONCURRENCY: u32 = 256;
/// Dispatches that wait on the worker: what short tasks and a long round trip lead to.
const QUEUE: u64 = 2_000;
/// The time between two events.
const TICK: Span = Span::from_micros(20);

pub(crate) fn run(rounds: u64) -> anyhow::Result<()> {
    let mut rng = Rng::new(1);
    let mut step = WorkerStep::default();
    let machine =
        WorkerMachine::start(worker(CONCURRENCY, &mut rng)?, Epoch(0), None, 1, &mut step);
    let spec = Arc::new(spec(&mut rng));
    let mut rig = Rig { now: START, machine, lease: None, begun: VecDeque::new(), next: 0, spec };
    rig.collect(Batch::from(step));
    let request = LeaseRequest { request: 1, ttl: Span::from_secs(600), ..LeaseRequest::default() };
    rig.receive(ToWorker::RequestLease(request));
    for _ in 0..u64::from(CONCURRENCY) + QUEUE {
        rig.dispatch()?;
    }
    for _ in 0..rounds {
        let id = rig.begun.pop_front().context("no run has begun")?;
        let outcome = Outcome::Completed { result: Payload::from(&b"42"[..]).into() };
        rig.event(WorkerEvent::Ended { id, outcome, run: None });
        rig.receive(ToWorker::Recorded { attempt: attempt(id.fence.0), fence: id.fence });
        rig.dispatch()?;
    }
    ensure!(rig.begun.len() == CONCURRENCY as usize, "{} runs at once", rig.begun.len());
    Ok(())
}

struct Rig {
    now: Time,
    machine: WorkerMachine,
    lease: Option<LeaseId>,
    begun: VecDeque<RunId>,
    next: u64,
    spec: Arc<TaskSpec>,
}

impl Rig {
    fn dispatch(&mut self) -> anyhow::Result<()> {
        self.next += 1;
        let dispatch = Dispatch {
            lease: self.lease.context("no lease was granted")?,
            epoch: Epoch(1),
            attempt: attempt(self.next),
            fence: Fence(self.next),
            spec: Arc::clone(&self.spec),
            timeout: Span::from_secs(300),
            interactive: false,
            resume: None,
        };
        self.receive(ToWorker::Dispatch(Arc::new(dispatch)));
        Ok(())
    }

    fn receive(&mut self, message: ToWorker) {
        let scheduler = SchedulerId::LOCAL;
        self.event(WorkerEvent::SchedulerMessageReceived { scheduler, message });
    }

    fn event(&mut self, event: WorkerEvent) {
        self.now = self.now + TICK;
        let mut batch = Batch::<WorkerMachine, ()>::default();
        batch.step_event(&mut self.machine, self.now, event);
        self.collect(batch);
    }

    fn collect(&mut self, mut batch: Batch<WorkerMachine, ()>) {
        let at_once = batch.take_at_once();
        let Ok(released) = batch.seal().write(&mut NullDisk);
        for effect in at_once.into_iter().chain(released.effects) {
            match effect {
                WorkerEffect::Run(RunCommand::Start { id, .. }) => self.begun.push_back(id),
                WorkerEffect::Send(OutgoingMessage {
                    message: FromWorker::LeaseGranted { lease, .. },
                    ..
                }) => self.lease = Some(lease),
                other => drop(black_box(other)),
            }
        }
    }
}

fn attempt(number: u64) -> AttemptId {
    AttemptId { task: TaskId::new(START, &mut Rng::new(number)), number: 1 }
}
