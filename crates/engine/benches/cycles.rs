//! How many task cycles a second the scheduler machine alone can do on one core: submit, dispatch,
//! started, finished, with 1,000 workers of different speeds.
//!
//! `round_robin` has 800 tasks open at any time: it does not look at speeds, so a steady stream would pile
//! up before the slow. `predictive` has a steady stream: of 0.3 of what the workers can do together, where
//! nothing waits, and of 0.8.
//!
//! The bench plays client and workers from a heap of what happens next. Its own share (the heap, and one
//! `NewTask`, `Started` and `Finished` a cycle) is what `perf` shows for `Bench` and the heap.

#![allow(clippy::disallowed_macros, clippy::disallowed_methods)] // a bench reads clocks and prints

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::convert::Infallible;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use hypha_engine::scheduler::Effect;
use hypha_engine::{
    Command, FromWorker, Image, LeaseRequest, NewTask, Outcome, Record, Scheduler, SchedulerEvent,
    SchedulerStep, Settings, ToWorker,
};
use hypha_machine::{Batch, Disk, Machine};
use hypha_model::{
    AttemptId, Capacity, Epoch, Executor, ExecutorClass, Fence, LeaseId, Metadata, MetadataValue,
    Money, Name, Payload, Rng, SchedulerId, Span, TaskResult, TaskSpec, Time, Worker, WorkerId,
};
use hypha_placement::{Predictive, Strategy};

const WORKERS: u64 = 1_000;
/// Tasks open at any time, if there is no steady stream.
const OPEN_TASKS: usize = 800;
/// The one-way latency to the workers.
const TRIP: Span = Span::from_micros(500);
/// Cycles before the measurement: the predictor knows every worker by then.
const WARM_UP: u64 = 20_000;

/// What happens next in the simulated world around the scheduler.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Next {
    Submit,
    Accepted { worker: u32, attempt: AttemptId, fence: Fence },
    Started { worker: u32, attempt: AttemptId, fence: Fence },
    Finished { worker: u32, attempt: AttemptId, fence: Fence, run: Span },
    Granted { worker: u32, request: u64 },
    Alive { worker: u32, lease: LeaseId, epoch: Epoch, nonce: u64 },
}

/// A disk that costs nothing.
struct Discard;

impl Disk<Record> for Discard {
    type Error = Infallible;

    fn write(&mut self, records: Vec<Record>) -> Result<(), Infallible> {
        black_box(&records);
        Ok(())
    }
}

struct Bench {
    scheduler: Scheduler,
    batch: Batch<Scheduler, ()>,
    disk: Discard,
    now: Time,
    rng: Rng,
    next: BinaryHeap<Reverse<(Time, Next)>>,
    specs: Vec<Arc<TaskSpec>>,
    ids: Vec<WorkerId>,
    speeds: Vec<f64>,
    busy_until: Vec<Time>,
    /// The attempts that each worker has, to answer heartbeats with.
    holding: Vec<Vec<(AttemptId, Fence)>>,
    result: TaskResult,
    open: usize,
    /// How long after one task the next comes; `None` keeps `OPEN_TASKS` open.
    interval: Option<Span>,
    cycles: u64,
    events: u64,
}

impl Bench {
    fn new(strategy: Strategy, load: Option<f64>) -> Bench {
        let mut step = SchedulerStep::default();
        let mut rng = Rng::new(7);
        let now = Time::from_micros(1_700_000_000_000_000);
        let id = SchedulerId::new(now, &mut rng);
        let settings = Settings { strategy, ..Settings::default() };
        let scheduler = Scheduler::recover(id, settings, Image::default(), 1, now, &mut step);
        let result = Payload::from(&b"a result of the usual length of a short answer"[..]);
        let mut bench = Bench {
            scheduler,
            batch: Batch::from(step),
            disk: Discard,
            now,
            next: BinaryHeap::new(),
            specs: (0..64).map(|_| Arc::new(spec(&mut rng))).collect(),
            ids: (0..WORKERS).map(id_at).collect(),
            speeds: (0..WORKERS)
                .map(|_| [0.5, 1.0, 1.0, 2.0, 4.0][rng.below(5) as usize])
                .collect(),
            busy_until: vec![now; WORKERS as usize],
            holding: vec![Vec::new(); WORKERS as usize],
            result: result.into(),
            open: 0,
            interval: None,
            cycles: 0,
            events: 0,
            rng,
        };
        for at in 0..WORKERS {
            bench.happen(now, SchedulerEvent::WorkerFound(Arc::new(worker(id_at(at)))));
        }
        if let Some(load) = load {
            let usual_s = bench.specs.iter().map(|spec| run_s(spec)).sum::<f64>() / 64.0;
            let speed = bench.speeds.iter().sum::<f64>();
            bench.interval = Some(Span::from_secs_f64(usual_s / (load * speed)));
            bench.next.push(Reverse((now, Next::Submit)));
        }
        while bench.cycles < WARM_UP {
            bench.advance();
        }
        bench
    }

    fn advance(&mut self) {
        while self.interval.is_none() && self.open < OPEN_TASKS {
            self.submit();
        }
        let Some(Reverse((at, next))) = self.next.pop() else { return };
        while let Some(wake) = self.scheduler.wake_at(self.now)
            && wake <= at
        {
            self.happen(wake.max(self.now), SchedulerEvent::Woke);
        }
        let (worker, message) = match next {
            Next::Submit => {
                self.now = at;
                let interval = self.interval.unwrap_or(Span::MAX);
                self.next.push(Reverse((at + interval, Next::Submit)));
                return self.submit();
            }
            Next::Accepted { worker, attempt, fence } => {
                (worker, FromWorker::Accepted { attempt, fence })
            }
            Next::Started { worker, attempt, fence } => {
                (worker, FromWorker::Started { attempt, fence })
            }
            Next::Finished { worker, attempt, fence, run } => {
                self.open -= 1;
                self.cycles += 1;
                self.holding[worker as usize].retain(|(_, held)| *held != fence);
                let outcome = Outcome::Completed { result: self.result.clone() };
                (worker, FromWorker::Finished { attempt, fence, run, outcome })
            }
            Next::Granted { worker, request } => {
                let (lease, epoch) = (LeaseId::new(at, &mut self.rng), Epoch(1));
                let (ttl, holding) = (Span::from_secs(120), Vec::new());
                (
                    worker,
                    FromWorker::LeaseGranted { request, lease, epoch, ttl, portion: None, holding },
                )
            }
            Next::Alive { worker, lease, epoch, nonce } => {
                let holding = self.holding[worker as usize].clone();
                (
                    worker,
                    FromWorker::Alive { lease, epoch, nonce, portion: None, usage: None, holding },
                )
            }
        };
        let worker = self.ids[worker as usize];
        self.happen(at, SchedulerEvent::WorkerMessageReceived { worker, message: message.into() });
    }

    fn submit(&mut self) {
        self.open += 1;
        let spec = Arc::clone(&self.specs[self.rng.below(64) as usize]);
        let task = NewTask {
            spec,
            idempotency_key: None,
            bind_at_once: false,
            stored: true,
            quota: None,
            weight: None,
        };
        let command = Command::SubmitTasks(vec![task]);
        self.happen(self.now, SchedulerEvent::CommandReceived(command));
    }

    /// One step, as a driver does it; its effects are put on the heap.
    fn happen(&mut self, now: Time, event: SchedulerEvent) {
        self.now = now;
        self.events += 1;
        self.batch.step_request(&mut self.scheduler, now, event, ());
        let Ok(mut released) = self.batch.seal().write(&mut self.disk);
        let arrives = now + TRIP;
        for effect in released.effects.drain(..) {
            let Effect::ToWorker { worker, message } = effect else { continue };
            let at = index_of(worker);
            match message {
                ToWorker::Dispatch(dispatch) => {
                    let begins = self.busy_until[at].max(arrives);
                    let run_s = run_s(&dispatch.spec) / self.speeds[at];
                    let run = Span::from_secs_f64(run_s);
                    self.busy_until[at] = begins + run;
                    let (attempt, fence, worker) = (dispatch.attempt, dispatch.fence, at as u32);
                    self.holding[at].push((attempt, fence));
                    if begins > arrives {
                        let accepted = Next::Accepted { worker, attempt, fence };
                        self.next.push(Reverse((arrives + TRIP, accepted)));
                    }
                    let started = Next::Started { worker, attempt, fence };
                    let finished = Next::Finished { worker, attempt, fence, run };
                    self.next.push(Reverse((begins + TRIP, started)));
                    self.next.push(Reverse((begins + run + TRIP, finished)));
                }
                ToWorker::RequestLease(LeaseRequest { request, .. }) => {
                    let granted = Next::Granted { worker: at as u32, request };
                    self.next.push(Reverse((arrives + TRIP, granted)));
                }
                ToWorker::Heartbeat { lease, epoch, nonce, .. } => {
                    let alive = Next::Alive { worker: at as u32, lease, epoch, nonce };
                    self.next.push(Reverse((arrives + TRIP, alive)));
                }
                _ => {}
            }
        }
        self.batch.reuse(released);
    }
}

/// The index of a worker is part of its id, so that the bench needs no map.
fn id_at(at: u64) -> WorkerId {
    format!("00000000-0000-7000-8000-{at:012x}").parse().unwrap_or_else(|error| panic!("{error}"))
}

fn index_of(worker: WorkerId) -> usize {
    (worker.uuid().as_u128() & 0xFFFF_FFFF) as usize
}

fn worker(id: WorkerId) -> Worker {
    let executor = Executor {
        class: ExecutorClass::Inference,
        name: name("vllm"),
        models: Vec::new(),
        concurrency: 1,
    };
    let capacity = Capacity { cpu_milli: 8_000, memory_bytes: 32 << 30, ..Capacity::default() };
    let (hardware, region, price) = (None, None, Money::default());
    Worker { id, capacity, executors: vec![executor], hardware, region, price }
}

/// A request of 100 to 2,000 tokens; it takes 50 ms and 0.1 ms a token at speed 1.
fn spec(rng: &mut Rng) -> TaskSpec {
    let tokens = 100.0 + (rng.below(1_900)) as f64;
    let metadata = Metadata::new([(Arc::from("input_tokens"), MetadataValue::Number(tokens))])
        .unwrap_or_else(|error| panic!("{error}"));
    let mut spec = TaskSpec { metadata, ..TaskSpec::default() };
    spec.requirement.model = Some(name("llama-2-7b"));
    spec.input = Payload::from(&(tokens as u32).to_le_bytes()[..]);
    spec
}

fn run_s(spec: &TaskSpec) -> f64 {
    let tokens = spec.input.bytes().try_into().map(u32::from_le_bytes).unwrap_or_default();
    0.05 + 1e-4 * f64::from(tokens)
}

fn name(text: &str) -> Name {
    text.parse().unwrap_or_else(|error| panic!("{error}"))
}

fn cycles(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("cycles");
    group.throughput(Throughput::Elements(1));
    group.measurement_time(Duration::from_secs(5));
    let predictive = Strategy::Predictive(Predictive::default());
    let cases = [
        ("round_robin", Strategy::RoundRobin, None),
        ("predictive, load 0.3", predictive, Some(0.3)),
        ("predictive, load 0.8", predictive, Some(0.8)),
    ];
    for (name, strategy, load) in cases {
        let mut warm = None;
        group.bench_function(name, |bencher| {
            let bench = warm.get_or_insert_with(|| Bench::new(strategy, load));
            bencher.iter_custom(|count| {
                let end = bench.cycles + count;
                let begin = Instant::now();
                while bench.cycles < end {
                    bench.advance();
                }
                begin.elapsed()
            });
        });
        if let Some(bench) = warm {
            let (waiting, open) = (bench.scheduler.waiting_tasks(), bench.scheduler.open_tasks());
            let per_cycle = bench.events as f64 / bench.cycles as f64;
            let retried = bench.scheduler.counts().retried;
            println!(
                "{per_cycle:.2} events a cycle; {waiting} of {open} open tasks wait; {retried} of {} were retried",
                bench.cycles
            );
        }
    }
    group.finish();
}

criterion_group!(benches, cycles);
criterion_main!(benches);
