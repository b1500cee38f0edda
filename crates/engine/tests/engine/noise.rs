//! Any message in any state: no machine panics, and its state stays consistent.

use std::sync::Arc;

use hypha_engine::{
    Command, Dispatch, Effect, FromWorker, Image, LeaseRequest, Leaving, NewTask, Outcome,
    OutgoingMessage, RetryPolicy, RunCommand, RunId, Scheduler, SchedulerEvent, SchedulerStep,
    Settings, ToWorker, WorkerEffect, WorkerEvent, WorkerImage, WorkerMachine, WorkerStep,
};
use hypha_machine::{Batch, MemoryDisk};
use hypha_model::{
    AttemptId, Epoch, FailureKind, Fence, LeaseId, Payload, Refusal, RefusalKind, Rng, Span,
    TaskError, TaskId, TaskResult, TaskSpec, Time,
};
use hypha_placement::Strategy;
use hypha_predict::Mode;

use crate::harness::{Committed, START, commit, completed, name, scheduler_id, worker, worker_id};

/// Draws messages, most of them with ids that were really seen.
struct Noise {
    rng: Rng,
    attempts: Vec<(AttemptId, Fence)>,
    leases: Vec<(LeaseId, Epoch)>,
    numbers: Vec<u64>,
    /// Whether some tasks are not stored.
    forgets: bool,
}

impl Noise {
    fn new(seed: u64) -> Noise {
        Noise {
            rng: Rng::new(seed),
            attempts: vec![],
            leases: vec![],
            numbers: vec![],
            forgets: seed % 2 == 1,
        }
    }

    fn pick<T: Clone>(rng: &mut Rng, seen: &[T], otherwise: impl FnOnce(&mut Rng) -> T) -> T {
        if seen.is_empty() || rng.chance(0.1) {
            otherwise(rng)
        } else {
            // The newest are the ones that may still be live.
            let back = rng.below(seen.len().min(8) as u64) as usize;
            seen[seen.len() - 1 - back].clone()
        }
    }

    fn number(&mut self) -> u64 {
        Noise::pick(&mut self.rng, &self.numbers, |rng| [0, 1, u64::MAX][rng.below(3) as usize])
    }

    fn attempt(&mut self) -> (AttemptId, Fence) {
        let (mut attempt, mut fence) = Noise::pick(&mut self.rng, &self.attempts, |rng| {
            (AttemptId { task: TaskId::new(START, rng), number: u32::MAX }, Fence(u64::MAX))
        });
        match self.rng.below(20) {
            0 => attempt.number = attempt.number.wrapping_add(1),
            1 => fence.0 = fence.0.wrapping_sub(1),
            _ => {}
        }
        (attempt, fence)
    }

    fn lease(&mut self) -> (LeaseId, Epoch) {
        Noise::pick(&mut self.rng, &self.leases, |rng| (LeaseId::new(START, rng), Epoch(u64::MAX)))
    }

    fn span(&mut self) -> Span {
        let spans = [Span::ZERO, Span::from_micros(1), Span::from_secs(1), Span::MAX];
        spans.get(self.rng.below(6) as usize).copied().unwrap_or(Span::from_secs(120))
    }

    fn outcome(&mut self) -> Outcome {
        match self.rng.below(6) {
            0 => Outcome::TimedOut,
            3 => Outcome::Unreachable { error: "é\0".repeat(2_000) },
            1 => {
                let kind = self.rng.below(FailureKind::ALL.len() as u64) as usize;
                let error = TaskError::new(FailureKind::ALL[kind], "é\0".repeat(2_000));
                Outcome::Failed(TaskError { status: Some(self.rng.next_u64() as u16), ..error })
            }
            2 => {
                let digest = Payload::from(&b"other"[..]).digest();
                let result = TaskResult::Inline { payload: Payload::default(), digest };
                Outcome::Completed { result }
            }
            _ => completed(),
        }
    }

    fn holding(&mut self) -> Vec<(AttemptId, Fence)> {
        (0..self.rng.below(6)).map(|_| self.attempt()).collect()
    }

    fn refusal(&mut self) -> Refusal {
        let kind = RefusalKind::ALL[self.rng.below(RefusalKind::ALL.len() as u64) as usize];
        Refusal { kind, needed: u64::MAX, present: self.rng.next_u64() }
    }

    fn worker_message(&mut self) -> FromWorker {
        let (attempt, fence) = self.attempt();
        let (lease, epoch) = self.lease();
        match self.rng.below(17) {
            16 => {
                let names = ["test", "other"].map(name);
                FromWorker::Unreachable {
                    executors: names[self.rng.below(2) as usize..].to_vec(),
                    owner: None,
                }
            }
            0..=3 => {
                let (request, ttl) = (self.number(), self.span());
                let holding = self.holding();
                self.leases.push((lease, epoch));
                FromWorker::LeaseGranted { request, lease, epoch, ttl, portion: None, holding }
            }
            4 => FromWorker::LeaseRefused { request: self.number(), refusal: self.refusal() },
            5 => {
                let (nonce, holding) = (self.number(), self.holding());
                FromWorker::Alive { lease, epoch, nonce, portion: None, usage: None, holding }
            }
            6 => FromWorker::LeaseUnknown { lease, epoch },
            7 => FromWorker::Accepted { attempt, fence },
            8 => FromWorker::Refused { attempt, fence, refusal: self.refusal() },
            9 | 10 => FromWorker::Started { attempt, fence },
            12 => FromWorker::Running { attempt, fence, elapsed: self.span() },
            13 => FromWorker::Left { epoch, lease: self.rng.chance(0.5).then_some(lease) },
            11 => FromWorker::Progress { attempt, fence, permille: self.rng.next_u64() as u16 },
            _ => {
                let (run, outcome) = (self.span(), self.outcome());
                FromWorker::Finished { attempt, fence, run, outcome }
            }
        }
    }

    fn spec(&mut self) -> Arc<TaskSpec> {
        let mut spec = TaskSpec::default();
        let requirement = &mut spec.requirement;
        match self.rng.below(12) {
            0 => requirement.memory_bytes = u64::MAX,
            1 => requirement.cpu_milli = u64::MAX,
            2 => (requirement.min_gpus, requirement.milli_gpu) = (u32::MAX, u32::MAX),
            3 => requirement.model = Some(name("a model")),
            _ => {}
        }
        if self.rng.chance(0.3) {
            requirement.deadline = Some(self.span());
        }
        spec.tenant = self.rng.chance(0.3).then(|| name("acme"));
        if self.rng.chance(0.3) {
            spec.requirement.estimated_time = Some(self.span());
        }
        if self.rng.chance(0.3) {
            spec.timeout = Some(self.span());
        }
        Arc::new(spec)
    }

    fn command(&mut self) -> Command {
        match self.rng.below(10) {
            0 => Command::CancelTask(self.attempt().0.task),
            1 => {
                let all = Strategy::all();
                Command::SetStrategy(all[self.rng.below(all.len() as u64) as usize])
            }
            2 => Command::SetMode(Mode::LookupTable),
            3 => Command::RemoveWorker(worker_id(self.rng.below(4) as u8)),
            4 => Command::ReadmitWorker(worker_id(self.rng.below(4) as u8)),
            _ => Command::SubmitTasks((0..self.rng.below(4)).map(|_| self.task()).collect()),
        }
    }

    fn task(&mut self) -> NewTask {
        let key: Arc<str> = Arc::from(["a", "b", "c"][self.rng.below(3) as usize]);
        NewTask {
            spec: self.spec(),
            idempotency_key: self.rng.chance(0.3).then_some(key),
            bind_at_once: self.rng.chance(0.2),
            stored: !self.forgets || self.rng.chance(0.7),
            quota: self.rng.chance(0.3).then(|| self.rng.below(20) as u32),
            weight: self.rng.chance(0.3).then(|| self.rng.unit()),
        }
    }

    /// Mostly a little later; sometimes much later, or near `Time::MAX`.
    fn later(&mut self, now: Time) -> Time {
        match self.rng.below(400) {
            0 => Time::from_micros(u64::MAX - self.rng.below(1_000_000)),
            1 => now + Span::from_secs(100_000),
            2..60 => now + Span::from_secs(self.rng.below(100)),
            _ => now + Span::from_millis(self.rng.below(100)),
        }
    }
}

#[test]
fn a_scheduler_survives_any_message_in_any_state() {
    for seed in 0..150 {
        let mut noise = Noise::new(seed);
        let retry =
            RetryPolicy { max_attempts: noise.rng.below(5) as u32, ..RetryPolicy::default() };
        let settings = Settings { retry, max_queue: 20, ..Settings::default() };
        let mut disk = MemoryDisk::<Image>::default();
        let mut now = START;
        let recover = |image: &Image, now| {
            let (image, mut step) = (image.clone(), SchedulerStep::default());
            let id = scheduler_id();
            let machine = Scheduler::recover(id, settings.clone(), image, seed, now, &mut step);
            (machine, Batch::from(step))
        };
        let (mut scheduler, mut batch) = recover(&disk.image, now);
        for at in 0..1_500 {
            now = noise.later(now);
            let worker_at = noise.rng.below(4) as u8;
            let event = match noise.rng.below(13) {
                12 => SchedulerEvent::WorkerReconnected(worker_id(worker_at)),
                0 => SchedulerEvent::WorkerFound(Arc::new(described(worker_at, &mut noise.rng))),
                1 => SchedulerEvent::WorkerDisconnected(worker_id(worker_at)),
                2 | 3 => SchedulerEvent::CommandReceived(noise.command()),
                4 | 5 => SchedulerEvent::Woke,
                _ => {
                    let message = noise.worker_message();
                    SchedulerEvent::WorkerMessageReceived {
                        worker: worker_id(worker_at),
                        message: message.into(),
                    }
                }
            };
            if noise.rng.chance(0.01) {
                (scheduler, batch) = recover(&disk.image, now);
            }
            batch.step_request(&mut scheduler, now, event, ());
            if let Err(error) = scheduler.check(now) {
                panic!("seed {seed}, event {at}: {error}");
            }
            let Committed { send, at_once, .. } = commit(&mut batch, &mut disk);
            let open = disk.image.tasks.values().filter(|task| task.finished.is_none()).count();
            if noise.forgets {
                assert!(open <= scheduler.open_tasks(), "seed {seed}, event {at}");
            } else {
                assert_eq!(open, scheduler.open_tasks(), "seed {seed}, event {at}");
            }
            for effect in send.into_iter().chain(at_once) {
                let Effect::ToWorker { message, .. } = effect else { continue };
                match message {
                    ToWorker::RequestLease(LeaseRequest { request, .. }) => {
                        noise.numbers.push(request)
                    }
                    ToWorker::Heartbeat { nonce, .. } => noise.numbers.push(nonce),
                    ToWorker::Dispatch(d) => noise.attempts.push((d.attempt, d.fence)),
                    _ => {}
                }
            }
        }
    }
}

fn described(n: u8, rng: &mut Rng) -> hypha_model::Worker {
    let mut worker = worker(n);
    match rng.below(12) {
        0 => worker.executors.clear(),
        1 => worker.executors[0].concurrency = u32::MAX,
        2 => worker.executors[0].concurrency = 0,
        3 => worker.capacity.memory_bytes = u64::MAX,
        _ => {}
    }
    worker
}

#[test]
fn a_worker_survives_any_message_in_any_state() {
    for seed in 0..300 {
        let mut noise = Noise::new(seed);
        let (mut now, mut step) = (START, WorkerStep::default());
        let mut disk = MemoryDisk::<WorkerImage>::default();
        let me = Arc::new(described(1, &mut noise.rng));
        let left = Leaving { epoch: Epoch(0), holders: vec![scheduler_id()] };
        let left = noise.rng.chance(0.5).then_some(left);
        let mut machine = WorkerMachine::start(me, Epoch(0), left, seed, &mut step);
        let mut batch = Batch::from(step);
        let mut runs: Vec<RunId> = Vec::new();
        for at in 0..1_000 {
            now = noise.later(now);
            let (attempt, fence) = noise.attempt();
            let (lease, epoch) = noise.lease();
            let message = match noise.rng.below(12) {
                0 => ToWorker::RequestLease(LeaseRequest {
                    request: noise.number(),
                    ttl: noise.span(),
                    ..LeaseRequest::default()
                }),
                1 => ToWorker::Heartbeat { lease, epoch, nonce: 1, demand: None },
                2 => ToWorker::Cancel { attempt, fence },
                3 => ToWorker::Recorded { attempt, fence },
                4 if noise.rng.chance(0.1) => ToWorker::ReleaseLease { lease, epoch },
                _ => {
                    let fence = Fence(noise.rng.below(1_000));
                    noise.attempts.push((attempt, fence));
                    let (spec, timeout) = (noise.spec(), noise.span());
                    ToWorker::Dispatch(Arc::new(Dispatch {
                        lease,
                        epoch,
                        attempt,
                        fence,
                        spec,
                        timeout,
                        interactive: noise.rng.chance(0.3),
                        resume: noise.rng.chance(0.1).then(|| Arc::from("own/7")),
                    }))
                }
            };
            let scheduler = if noise.rng.chance(0.9) {
                scheduler_id()
            } else {
                hypha_model::SchedulerId::new(now, &mut noise.rng)
            };
            let id = Noise::pick(&mut noise.rng, &runs, |_| RunId { scheduler, fence });
            let event = match noise.rng.below(8) {
                0 => WorkerEvent::Woke,
                1 => WorkerEvent::Progressed { id, permille: u16::MAX },
                2 | 3 => WorkerEvent::Ended { id, outcome: noise.outcome(), run: None },
                4 if noise.rng.chance(0.001) => WorkerEvent::LeaveRequested,
                _ => WorkerEvent::SchedulerMessageReceived { scheduler, message },
            };
            batch.step_event(&mut machine, now, event);
            if let Err(error) = machine.check() {
                panic!("seed {seed}, event {at}: {error}");
            }
            let committed = commit(&mut batch, &mut disk);
            for effect in committed.at_once.into_iter().chain(committed.send) {
                match effect {
                    WorkerEffect::Run(RunCommand::Start { id, .. }) => runs.push(id),
                    WorkerEffect::Send(OutgoingMessage {
                        message: FromWorker::LeaseGranted { lease, epoch, .. },
                        ..
                    }) => noise.leases.push((lease, epoch)),
                    _ => {}
                }
            }
        }
        assert!(noise.leases.is_empty() || !runs.is_empty() || seed > 0, "the noise reaches runs");
    }
}
