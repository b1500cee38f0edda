//! What a queued task costs in memory: a million of them in a scheduler machine, by the resident size of the
//! process. Each has its own specification, as those that come over HTTP.
//!
//! Run times mean little here and are shown only to notice a mistake. Only Linux reports the resident size.

#![allow(clippy::disallowed_macros, clippy::disallowed_methods, clippy::disallowed_types)] // a bench reads clocks and prints

use std::process::{Command as Process, ExitCode};
use std::sync::Arc;
use std::time::Instant;

use hypha_engine::{
    Command, Image, LeaseRequest, NewTask, Scheduler, SchedulerEvent, SchedulerStep, Settings,
};
use hypha_engine::{FromWorker, ToWorker, scheduler::Effect};
use hypha_machine::{Batch, MemoryDisk};
use hypha_model::{
    Capacity, Epoch, Executor, ExecutorClass, LeaseId, Metadata, Money, Name, Payload, Requirement,
    Rng, SchedulerId, Span, TaskSpec, Time, Worker, WorkerId,
};
use hypha_placement::Strategy;

/// The allocator that a scheduler runs with: how it rounds sizes is part of the result.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const TASKS: u64 = 1_000_000;
/// Tasks in one request.
const BATCH: u64 = 500;
const WORKERS: usize = 4;
/// Kernels can be built with other page sizes; this is the common one.
const PAGE_BYTES: u64 = 4_096;
const START: Time = Time::from_micros(1_700_000_000_000_000);

/// What is queued, each in a process of its own: memory that was freed would be used again.
const CASES: [Case; 5] = [
    Case { name: "waits", ..PLAIN },
    Case { name: "waits, with two numbers", metadata: true, ..PLAIN },
    Case { name: "waits, with a deadline", deadline: true, ..PLAIN },
    Case { name: "waits, with a key", key: true, ..PLAIN },
    Case { name: "bound to one of four", workers: Some(Strategy::PowerOfTwo), ..PLAIN },
];

/// A task whose model no worker has.
const PLAIN: Case = Case { name: "", metadata: false, deadline: false, key: false, workers: None };

struct Case {
    name: &'static str,
    metadata: bool,
    deadline: bool,
    /// An idempotency key.
    key: bool,
    /// Whether there are workers, and the strategy then.
    workers: Option<Strategy>,
}

fn main() -> ExitCode {
    let chosen =
        std::env::args().find_map(|argument| argument.strip_prefix("--case=")?.parse().ok());
    if let Some(case) = chosen.and_then(|at: usize| CASES.get(at)) {
        measure(case);
        return ExitCode::SUCCESS;
    }
    for at in 0..CASES.len() {
        let this = std::env::current_exe().unwrap_or_else(|error| panic!("{error}"));
        let status = Process::new(this).arg(format!("--case={at}")).status();
        if !status.is_ok_and(|status| status.success()) {
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn measure(case: &Case) {
    let mut rng = Rng::new(7);
    let settings = Settings {
        max_queue: TASKS as usize,
        strategy: case.workers.unwrap_or(Settings::default().strategy),
        ..Settings::default()
    };
    let id = SchedulerId::new(START, &mut rng);
    let mut step = SchedulerStep::default();
    let mut scheduler = Scheduler::recover(id, settings, Image::default(), 1, START, &mut step);
    let mut batch = Batch::from(step);
    if case.workers.is_some() {
        (0..WORKERS).for_each(|_| add_worker(&mut scheduler, &mut rng, &mut batch));
    }
    let (empty, began) = (resident_bytes(), Instant::now());
    for request in 0..TASKS / BATCH {
        let tasks = (0..BATCH).map(|at| new_task(case, request * BATCH + at)).collect();
        let event = SchedulerEvent::CommandReceived(Command::SubmitTasks(tasks));
        batch.step_event(&mut scheduler, START + Span::from_millis(request), event);
        drop(batch.seal());
    }
    let (rate, full) = (TASKS as f64 / began.elapsed().as_secs_f64(), resident_bytes());
    let (open, each) = (scheduler.open_tasks(), (full - empty) as f64 / TASKS as f64);
    println!("{:24} {each:5.0} bytes a task of {open}; {rate:7.0} submits/s", case.name);
}

/// As the HTTP surface makes it: nothing is shared with other tasks.
fn new_task(case: &Case, number: u64) -> NewTask {
    let model = if case.workers.is_some() { "echo" } else { "nobody-has-it" };
    let numbers = [("input_tokens", (number % 100) as f64), ("output_tokens", 20.0)];
    let spec = TaskSpec {
        requirement: Requirement {
            model: Some(name(model)),
            deadline: case.deadline.then_some(Span::from_secs(3_600)),
            ..Requirement::default()
        },
        input: Payload::from(format!("{{\"text\": \"n {number:7}\"}}").as_bytes()),
        metadata: if case.metadata { Metadata::of_numbers(&numbers) } else { Metadata::default() },
        ..TaskSpec::default()
    };
    let idempotency_key =
        case.key.then(|| Arc::from(format!("a key of a usual length {number:7}")));
    NewTask {
        spec: Arc::new(spec),
        idempotency_key,
        bind_at_once: false,
        stored: true,
        quota: None,
        weight: None,
    }
}

fn add_worker(scheduler: &mut Scheduler, rng: &mut Rng, batch: &mut Batch<Scheduler, ()>) {
    let id = WorkerId::new(START, rng);
    let worker = Worker {
        id,
        capacity: Capacity { cpu_milli: 1_000, ..Capacity::default() },
        executors: vec![Executor {
            name: name("echo"),
            class: ExecutorClass::Inference,
            models: vec![name("echo")],
            concurrency: 1,
        }],
        hardware: None,
        region: None,
        price: Money::default(),
    };
    batch.step_event(scheduler, START, SchedulerEvent::WorkerFound(Arc::new(worker)));
    let Ok(released) = batch.seal().write(&mut MemoryDisk::<Image>::default());
    let asked = released.effects.into_iter().find_map(|effect| match effect {
        Effect::ToWorker {
            message: ToWorker::RequestLease(LeaseRequest { request, .. }), ..
        } => Some(request),
        _ => None,
    });
    let message = FromWorker::LeaseGranted {
        portion: None,
        request: asked.unwrap_or_else(|| panic!("no lease was requested")),
        lease: LeaseId::new(START, rng),
        epoch: Epoch(1),
        ttl: Span::from_secs(3_600),
        holding: Vec::new(),
    };
    batch.step_event(
        scheduler,
        START,
        SchedulerEvent::WorkerMessageReceived { worker: id, message: message.into() },
    );
}

fn name(text: &str) -> Name {
    text.parse().unwrap_or_else(|error| panic!("{error}"))
}

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or_else(|| panic!("/proc/self/statm does not tell the resident size")) * PAGE_BYTES
}
