//! A small world with its faults, drawn from a seed.

mod fault_kind;
mod fault_schedule;
mod http;
pub mod market;
pub mod stream;

use std::sync::Arc;

use hypha_engine::{Image, Mutant, NewTask, RetryPolicy, Settings};
use hypha_model::{
    Capacity, Device, Executor, ExecutorClass, Metadata, Money, Name, Payload, Priority,
    Requirement, Rng, Span, TaskSpec, Time, Worker,
};
use hypha_placement::{Preferences, Strategy};

use crate::network::{Clock, Network};
use crate::world::{Arrivals, START, Setup, WorkerSetup, World};

pub use fault_kind::{FaultKind, UnknownFaultKind};

/// The parameters of a scenario, besides its seed: smaller and quieter ones are easier to understand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope {
    /// How many tasks.
    pub tasks: usize,
    /// Fault kinds that are not injected.
    pub without: Vec<FaultKind>,
    /// A fault planted into the machines.
    pub mutant: Option<Mutant>,
    /// Use this strategy instead of a random one.
    pub strategy: Option<&'static str>,
}

impl Default for Scope {
    fn default() -> Scope {
        Scope { tasks: 200, without: Vec::new(), mutant: None, strategy: None }
    }
}

impl Scope {
    fn includes(&self, kind: FaultKind) -> bool {
        !self.without.contains(&kind)
    }
}

/// Faults begin after the start and end with this; then every task must end.
const FAULT_PERIOD: Span = Span::from_secs(30);
/// After the last fault, everything must have ended within this: several backoffs, leases and timeouts.
const SETTLE_TIMEOUT: Span = Span::from_secs(600);

/// The world of a seed.
pub fn world(seed: u64, scope: &Scope, log: bool) -> World {
    let mut rng = Rng::new(seed);
    let schedulers = 1 + usize::from(rng.chance(0.25) && scope.includes(FaultKind::Rival));
    let workers = schedulers + rng.below(6) as usize;
    let all = Strategy::all();
    let strategy = all[rng.below(all.len() as u64) as usize];
    let strategy = scope.strategy.and_then(|name| name.parse().ok()).unwrap_or(strategy);
    let settings = settings(&mut rng, strategy, scope);
    let mut setups: Vec<WorkerSetup> =
        (0..workers).map(|at| worker(&mut rng, at, schedulers, scope)).collect();
    let mut tasks = tasks(&mut rng, scope, schedulers);
    let mut fault_schedule = fault_schedule::draw(&mut rng, scope, workers, schedulers);
    http::draw(seed, scope, schedulers, &mut setups, &mut tasks.tasks, &mut fault_schedule);
    World::new(Setup {
        seed: rng.next_u64(),
        settings: vec![settings; schedulers],
        image: Image::default(),
        commands: Vec::new(),
        workers: setups,
        arrivals: Box::new(tasks),
        network: network(&mut rng, scope),
        fault_schedule,
        market: None,
        thorough: true,
        log,
    })
}

/// When everything must have ended.
pub fn deadline() -> Time {
    START + FAULT_PERIOD + SETTLE_TIMEOUT
}

fn settings(rng: &mut Rng, strategy: Strategy, scope: &Scope) -> Settings {
    Settings {
        strategy,
        preferences: Preferences {
            max_in_flight: rng.chance(0.2).then(|| 1 + rng.below(8) as u32),
            ..Preferences::default()
        },
        max_queue: 100_000,
        task_timeout: Span::from_secs(4),
        retry: RetryPolicy {
            max_attempts: 1 + rng.below(7) as u32,
            backoff_base: Span::from_millis(100),
            backoff_max: Span::from_secs(2),
            retry_on_timeout: rng.chance(0.9),
            retry_on_worker_failure: rng.chance(0.95),
        },
        health_check_interval: Span::from_secs(1),
        health_check_timeout: Span::from_millis(300),
        max_consecutive_failures: 3,
        quarantine: Span::from_secs(1),
        lease_ttl: Span::from_secs(5),
        forget_worker_after: Span::from_secs(20 + rng.below(3_000)),
        key_ttl: Span::from_secs(3_600),
        save_interval: Span::from_secs(2),
        min_plan_interval: Span::from_millis(1),
        // So that work that concerns more than one item is done in parts, between other events.
        items_per_step: 1,
        pool: None,
        organisation: name("lab"),
        mutant: scope.mutant,
    }
}

/// A short name that is known to be valid.
fn name(text: &str) -> Option<Name> {
    text.parse().ok()
}

fn worker(rng: &mut Rng, at: usize, schedulers: usize, scope: &Scope) -> WorkerSetup {
    // Each scheduler has one worker of its own that can run everything, so that every task can end.
    let own = at < schedulers;
    let gpus = rng.below(3).max(u64::from(own));
    let device = |memory_gb: u64| {
        name("gpu").map(|model| Device { model, memory_bytes: memory_gb << 30, milli_gpu: 1_000 })
    };
    let models =
        ["a", "b"].into_iter().filter(|_| rng.chance(0.8) || own).filter_map(name).collect();
    let executors = name("test").map(|name| Executor {
        class: ExecutorClass::Inference,
        name,
        models,
        concurrency: 1 + rng.below(3) as u32,
    });
    let capacity = Capacity {
        cpu_milli: 1_000 * (1 + rng.below(8)),
        memory_bytes: (1 + rng.below(16)) << 30,
        storage_bytes: 1 << 40,
        devices: (0..gpus).filter_map(|_| device(8 << rng.below(2))).collect(),
    };
    let rate = if scope.includes(FaultKind::Drift) { 0.9 + 0.2 * rng.unit() } else { 1.0 };
    let offset = Span::from_secs(rng.below(100));
    let finds = |s: &usize, rng: &mut Rng| match own {
        true => *s == at,
        false => *s == at % schedulers || rng.chance(0.5),
    };
    let known_to = (0..schedulers).filter(|s| finds(s, rng)).collect();
    WorkerSetup {
        worker: Arc::new(Worker {
            id: WorkerSetup::id(at),
            capacity,
            executors: executors.into_iter().collect(),
            hardware: rng.chance(0.5).then(|| name("h100")).flatten(),
            region: None,
            price: Money::ZERO,
        }),
        speed: [0.5, 1.0, 2.0, 4.0][rng.below(4) as usize],
        batch_slowdown: 0.0,
        clock: Clock::new(START, offset, rate),
        known_to,
        mutant: scope.mutant,
        back_end: None,
        terms: hypha_engine::Terms::default(),
        owner: hypha_engine::OwnerState::default(),
    }
}

struct Tasks {
    tasks: Vec<(Time, NewTask, f64, usize)>,
}

impl Arrivals for Tasks {
    fn count(&self) -> usize {
        self.tasks.len()
    }
    fn at(&self, index: usize) -> Time {
        self.tasks[index].0
    }
    fn task(&self, index: usize) -> NewTask {
        self.tasks[index].1.clone()
    }
    fn run_s(&self, index: usize) -> f64 {
        self.tasks[index].2
    }
    fn is_stored(&self, index: usize) -> bool {
        self.tasks[index].1.stored
    }
    fn scheduler(&self, index: usize) -> usize {
        self.tasks[index].3
    }
}

/// The share of interactive tasks: enough of them in each world, and few enough that most tasks
/// are lost when durable state is.
const INTERACTIVE_SHARE: f64 = 0.15;

fn tasks(rng: &mut Rng, scope: &Scope, schedulers: usize) -> Tasks {
    let gap_s = 20.0 / scope.tasks.max(1) as f64;
    let mut at = START + Span::from_millis(1);
    let mut tasks = Vec::with_capacity(scope.tasks);
    for index in 0..scope.tasks {
        at = at + Span::from_secs_f64(gap_s * rng.exponential());
        let input_tokens = 10.0 + rng.exponential() * 100.0;
        let gpu = rng.chance(0.1);
        let requirement = Requirement {
            model: rng.chance(0.5).then(|| name(if rng.chance(0.5) { "a" } else { "b" })).flatten(),
            cpu_milli: 250 * rng.below(4),
            memory_bytes: rng.below(3) << 28,
            min_gpus: u32::from(gpu),
            gpu_memory_bytes: if gpu { rng.below(3) << 30 } else { 0 },
            milli_gpu: 500,
            priority: Priority::from_milli(rng.below(3) as i32 * 500),
            deadline: (scope.includes(FaultKind::Deadline) && rng.chance(0.1))
                .then(|| Span::from_millis(200 + rng.below(10_000))),
            ..Requirement::default()
        };
        let spec = TaskSpec {
            requirement,
            input: Payload::from((index as u32).to_le_bytes().as_slice()),
            metadata: Metadata::of_numbers(&[("input_tokens", input_tokens)]),
            ..TaskSpec::default()
        };
        let stored = !rng.chance(INTERACTIVE_SHARE);
        let task = NewTask {
            spec: Arc::new(spec),
            idempotency_key: stored.then(|| Arc::from(format!("key-{index}"))),
            bind_at_once: rng.chance(0.05),
            stored,
            quota: None,
            weight: None,
        };
        // Some outlive timeouts and leases.
        let long = if rng.chance(0.05) { 10.0 } else { 1.0 };
        let run_s = long * (0.01 + input_tokens / 1_000.0) * (0.2 * rng.normal()).exp();
        let scheduler = rng.below(schedulers as u64) as usize;
        tasks.push((at, task, run_s, scheduler));
    }
    Tasks { tasks }
}

fn network(rng: &mut Rng, scope: &Scope) -> Network {
    let often = |rng: &mut Rng, kind, most: f64| {
        if scope.includes(kind) && rng.chance(0.7) { rng.unit() * most } else { 0.0 }
    };
    let delay_ms = often(rng, FaultKind::Delay, 20.0);
    Network {
        latency: Span::from_secs_f64(delay_ms / 1e3),
        jitter: Span::from_secs_f64(2.0 * delay_ms / 1e3),
        loss: often(rng, FaultKind::Loss, 0.1),
        duplication: often(rng, FaultKind::Duplication, 0.2),
    }
}
