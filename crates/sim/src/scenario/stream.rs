//! Worlds in which small tasks arrive continuously, large ones between them, and perhaps interactive requests: there
//! are no faults, and nothing may starve (`checkers/starvation.rs`).

use std::sync::Arc;

use hypha_engine::{Image, NewTask, Settings};
use hypha_model::{
    Capacity, Executor, ExecutorClass, Metadata, Money, Payload, Requirement, Rng, Span, TaskSpec,
    Time, Worker,
};
use hypha_placement::{Preferences, Strategy};

use super::{Scope, Tasks, name};
use crate::checkers::{ArrivedTask, StarvationBounds};
use crate::network::{Clock, Network};
use crate::world::{FaultSchedule, START, Setup, WorkerSetup, World};

/// Tasks of a stream for each task of the scope.
const TASK_MULTIPLIER: usize = 5;
/// Run times are between these, the same for large and small.
const MIN_RUN_S: f64 = 0.2;
const MAX_RUN_S: f64 = 1.0;
/// One in so many tasks is large.
const LARGE_EVERY: u64 = 40;
/// Two small tasks leave a worker no room for a large one; three of them fill it.
const WORKER_GB: u64 = 24;
const SMALL_GB: u64 = 8;
const LARGE_GB: u64 = 20;
/// By how much the predictive order delays a task at most: the usual run (0.6 s), times its ageing (2), times the
/// square of the largest size (1.0 s over 0.6 s).
const MAX_REORDER_S: f64 = 3.5;
/// Separates these draws from those of the other world of the seed.
const SALT: u64 = 0x7374_7265_616d;

/// The stream of a seed.
pub fn world(seed: u64, scope: &Scope, log: bool) -> World {
    let mut rng = Rng::new(seed ^ SALT);
    let (workers, slots) = (1 + rng.below(2), 2 + rng.below(2) as u32);
    let in_all = workers as u32 * slots;
    let max_in_flight = rng.chance(0.3).then(|| 1 + rng.below(u64::from(in_all)) as u32);
    let at_once = max_in_flight.map_or(in_all, |most| most.min(in_all));
    let load = f64::from(at_once) * (0.7 + 0.3 * rng.unit());
    let interactive = if rng.chance(0.5) { 0.2 } else { 0.0 };
    let bound = if rng.chance(0.4) { 0.2 } else { 0.0 };
    let all = Strategy::all();
    let strategy = all[rng.below(all.len() as u64) as usize];
    let strategy = scope.strategy.and_then(|name| name.parse().ok()).unwrap_or(strategy);
    let gap_s = (MIN_RUN_S + MAX_RUN_S) / 2.0 / load;
    let tasks = tasks(&mut rng, scope.tasks * TASK_MULTIPLIER, gap_s, (interactive, bound));
    let latency = if rng.chance(0.5) { Span::from_millis(2) } else { Span::ZERO };
    let mut world = World::new(Setup {
        seed: rng.next_u64(),
        settings: vec![Settings {
            strategy,
            preferences: Preferences { max_in_flight, ..Preferences::default() },
            task_timeout: Span::from_secs(60),
            mutant: scope.mutant,
            ..Settings::default()
        }],
        image: Image::default(),
        commands: Vec::new(),
        workers: (0..workers as usize).map(|at| worker(at, slots, scope)).collect(),
        arrivals: Box::new(tasks),
        network: Network { latency, ..Network::PERFECT },
        fault_schedule: FaultSchedule::default(),
        thorough: false,
        log,
    });
    world.check_starvation(StarvationBounds {
        longest_s: MAX_RUN_S,
        slots: slots.min(at_once),
        overtaking_s: if matches!(strategy, Strategy::Predictive(_)) { MAX_REORDER_S } else { 0.0 },
        load,
        has_interactive: interactive > 0.0,
    });
    world
}

/// When everything must have ended: the stream, and the tasks left at its end.
pub fn deadline(scope: &Scope) -> Time {
    START + Span::from_secs_f64(60.0 + 2.0 * (scope.tasks * TASK_MULTIPLIER) as f64 * MAX_RUN_S)
}

/// A task, as the starvation checker needs it.
pub(crate) fn arrived_task(index: usize, task: &NewTask, run_s: f64) -> ArrivedTask {
    let is_large = task.spec.requirement.memory_bytes >= LARGE_GB << 30;
    ArrivedTask { index, run_s, is_large, is_interactive: !task.stored }
}

fn worker(at: usize, slots: u32, scope: &Scope) -> WorkerSetup {
    let executor = name("test").map(|name| Executor {
        class: ExecutorClass::Inference,
        name,
        models: Vec::new(),
        concurrency: slots,
    });
    WorkerSetup {
        worker: Arc::new(Worker {
            id: WorkerSetup::id(at),
            capacity: Capacity { memory_bytes: WORKER_GB << 30, ..Capacity::default() },
            executors: executor.into_iter().collect(),
            hardware: None,
            region: None,
            price: Money::ZERO,
        }),
        speed: 1.0,
        clock: Clock::new(START, Span::ZERO, 1.0),
        known_to: vec![0],
        mutant: scope.mutant,
        back_end: None,
        batch_slowdown: 0.0,
    }
}

fn tasks(rng: &mut Rng, count: usize, gap_s: f64, (interactive, bound): (f64, f64)) -> Tasks {
    let mut at = START + Span::from_millis(1);
    let mut tasks = Vec::with_capacity(count);
    for index in 0..count {
        at = at + Span::from_secs_f64(gap_s * rng.exponential());
        let run_s = MIN_RUN_S + (MAX_RUN_S - MIN_RUN_S) * rng.unit();
        let is_large = rng.below(LARGE_EVERY) == 0;
        let stored = is_large || !rng.chance(interactive);
        let memory_gb = if is_large { LARGE_GB } else { SMALL_GB };
        let spec = TaskSpec {
            requirement: Requirement { memory_bytes: memory_gb << 30, ..Requirement::default() },
            input: Payload::from((index as u32).to_le_bytes().as_slice()),
            metadata: Metadata::of_numbers(&[("input_tokens", run_s * 1_000.0)]),
            ..TaskSpec::default()
        };
        let task = NewTask {
            spec: Arc::new(spec),
            idempotency_key: None,
            bind_at_once: rng.chance(bound),
            stored,
            quota: None,
        };
        tasks.push((at, task, run_s, 0));
    }
    Tasks { tasks }
}
