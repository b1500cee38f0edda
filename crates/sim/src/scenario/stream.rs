//! Worlds in which small tasks arrive continuously, large ones between them, perhaps interactive requests, perhaps with
//! priorities, perhaps more than the pool can do, and perhaps while workers die and messages are lost: nothing may starve
//! (`checkers/starvation.rs`).

use std::sync::Arc;

use hypha_engine::{Image, NewTask, RetryPolicy, Settings};
use hypha_model::{
    Capacity, Executor, ExecutorClass, Metadata, Money, Payload, Priority, Requirement, Rng, Span,
    TaskSpec, Time, Worker,
};
use hypha_placement::{Preferences, Strategy};

use super::{FaultKind, Scope, Tasks, name};
use crate::checkers::{ArrivedTask, StarvationBounds};
use crate::network::{Clock, Network};
use crate::world::{Fault, FaultSchedule, Node, START, Setup, WorkerSetup, World};

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
/// The priorities of a stream that has some, in thousandths: so much higher that a stream of them would keep the others
/// out for its whole length, and not so much that they may.
const HIGH_PRIORITY: i32 = 20;
/// How much later a task may arrive for each thousandth of a higher priority and still go first.
const HEAD_START_S: f64 = 0.6;
const PREDICTIVE_HEAD_START_S: f64 = 0.06;
/// After a worker is lost, the pool is as before after this: the loss is noticed (2 s), its tasks are retried (2 s), it
/// comes back (a lease request each second, and a second of quarantine), and its runs are made again (1 s).
const RECOVERY: Span = Span::from_secs(8);
/// The share of messages that are lost, if some are.
const LOSS: f64 = 0.01;
/// How long the slot of a run is in use after the run if its report is lost: workers repeat it after two seconds.
const LOST_REPORT_S: f64 = 2.5;
/// Separates these draws from those of the other world of the seed.
const SALT: u64 = 0x7374_7265_616d;

/// The stream of a seed.
pub fn world(seed: u64, scope: &Scope, log: bool) -> World {
    let mut rng = Rng::new(seed ^ SALT);
    let (workers, slots) = (1 + rng.below(2) as usize, 2 + rng.below(2) as u32);
    let in_all = workers as u32 * slots;
    let max_in_flight = rng.chance(0.3).then(|| 1 + rng.below(u64::from(in_all)) as u32);
    let at_once = max_in_flight.map_or(in_all, |most| most.min(in_all));
    // Up to all that the pool can do, or up to a third more.
    let share = if rng.chance(0.3) { 1.05 + 0.3 * rng.unit() } else { 0.7 + 0.3 * rng.unit() };
    let load = f64::from(at_once) * share;
    // Half of them keep tasks in a queue, where their order and reservations matter most; most of all bind at submission.
    let queued = [Strategy::default(), Strategy::Priority, Strategy::Fifo, Strategy::BestFit];
    let all = Strategy::all();
    let strategies = if rng.chance(0.5) { &queued[..] } else { &all[..] };
    let strategy = strategies[rng.below(strategies.len() as u64) as usize];
    let strategy = scope.strategy.and_then(|name| name.parse().ok()).unwrap_or(strategy);
    let kinds = TaskKinds {
        interactive: if rng.chance(0.5) { 0.2 } else { 0.0 },
        bound: if rng.chance(0.4) { 0.2 } else { 0.0 },
        low_priority: rng.chance(0.5).then(|| 0.05 + 0.3 * rng.unit()),
    };
    let gap_s = (MIN_RUN_S + MAX_RUN_S) / 2.0 / load;
    let count = scope.tasks * TASK_MULTIPLIER;
    let tasks = tasks(&mut rng, count, gap_s, kinds);
    let latency = if rng.chance(0.5) { Span::from_millis(2) } else { Span::ZERO };
    let length = Span::from_secs_f64(gap_s * count as f64);
    let has_faults = rng.chance(0.5);
    let (fault_schedule, down) = faults(&mut rng, has_faults, scope, workers, length);
    let loses = has_faults && scope.includes(FaultKind::Loss) && rng.chance(0.5);
    let mut world = World::new(Setup {
        seed: rng.next_u64(),
        settings: vec![settings(strategy, max_in_flight, scope)],
        image: Image::default(),
        commands: Vec::new(),
        workers: (0..workers).map(|at| worker(at, slots, scope)).collect(),
        arrivals: Box::new(tasks),
        network: Network { latency, loss: if loses { LOSS } else { 0.0 }, ..Network::PERFECT },
        fault_schedule,
        market: None,
        thorough: false,
        log,
    });
    let (reorder_s, head_start_s) = match strategy {
        Strategy::Predictive(_) => (MAX_REORDER_S, PREDICTIVE_HEAD_START_S),
        Strategy::Priority => (0.0, HEAD_START_S),
        _ => (0.0, 0.0),
    };
    world.check_starvation(StarvationBounds {
        longest_s: MAX_RUN_S + if loses { LOST_REPORT_S } else { 0.0 },
        slots: slots.min(at_once),
        reorder_s,
        head_start_s,
        max_priority: if kinds.low_priority.is_some() { HIGH_PRIORITY } else { 0 },
        load,
        slowdown: slowdown(&kinds, max_in_flight.is_some(), !down.is_empty()),
        outages: outages(&down, workers),
    });
    world
}

/// How much longer a batch task may wait because of later tasks that go before it. Interactive requests go first; they are
/// a quarter of the work at most, and leave more than half of the slots, unless they have piled up while there was no
/// worker: then they leave every fifth start. While a limit on the tasks in flight holds up the queues of workers and
/// that of the scheduler, they take turns. A worker with a queue of its own gets other tasks by a reservation, before
/// which one of its slots may be idle until the run in another ends.
fn slowdown(kinds: &TaskKinds, is_limited: bool, has_outages: bool) -> f64 {
    let by_interactive = match (kinds.interactive > 0.0, has_outages) {
        (false, _) => 1.0,
        (true, false) => 2.0,
        (true, true) => 5.0,
    };
    let by_queues = match (is_limited, kinds.bound > 0.0) {
        (true, _) => 2.0,
        (false, true) => 1.5,
        (false, false) => 1.0,
    };
    by_queues * by_interactive
}

/// When everything must have ended: the stream, and the tasks left at its end.
pub fn deadline(scope: &Scope) -> Time {
    START + Span::from_secs_f64(300.0 + 2.0 * (scope.tasks * TASK_MULTIPLIER) as f64 * MAX_RUN_S)
}

/// The shares of the tasks of a stream.
#[derive(Clone, Copy)]
struct TaskKinds {
    interactive: f64,
    /// Bound to a worker at submission.
    bound: f64,
    /// Without a priority; `None` if all are.
    low_priority: Option<f64>,
}

fn settings(strategy: Strategy, max_in_flight: Option<u32>, scope: &Scope) -> Settings {
    Settings {
        strategy,
        preferences: Preferences { max_in_flight, ..Preferences::default() },
        task_timeout: Span::from_secs(60),
        retry: RetryPolicy {
            backoff_base: Span::from_millis(100),
            backoff_max: Span::from_secs(2),
            ..RetryPolicy::default()
        },
        health_check_interval: Span::from_secs(1),
        health_check_timeout: Span::from_millis(300),
        quarantine: Span::from_secs(1),
        lease_ttl: Span::from_secs(5),
        mutant: scope.mutant,
        ..Settings::default()
    }
}

/// A period in which a worker is down or unreachable.
type Down = (Time, Time, usize);

/// Workers die, noticed or not, some for long, and cannot be reached for a while.
fn faults(
    rng: &mut Rng,
    has_faults: bool,
    scope: &Scope,
    workers: usize,
    length: Span,
) -> (FaultSchedule, Vec<Down>) {
    let (mut schedule, mut down) = (FaultSchedule::default(), Vec::new());
    let times = |rng: &mut Rng, kind, most: u64| match has_faults && scope.includes(kind) {
        true => rng.below(most + 1),
        false => 0,
    };
    let begins = |rng: &mut Rng| START + Span::from_micros(rng.below(length.as_micros().max(1)));
    for _ in 0..times(rng, FaultKind::WorkerCrash, 3) {
        let (from, worker) = (begins(rng), rng.below(workers as u64) as usize);
        let most_ms = if rng.chance(0.5) { 3_000 } else { 200_000 };
        let to = from + Span::from_millis(10 + rng.below(most_ms));
        schedule.faults.push((from, Fault::KillWorker { worker, noticed: rng.chance(0.5) }));
        schedule.faults.push((to, Fault::Start { node: Node::Worker(worker) }));
        down.push((from, to, worker));
    }
    for _ in 0..times(rng, FaultKind::Partition, 2) {
        let (from, worker) = (begins(rng), rng.below(workers as u64) as usize);
        let to = from + Span::from_millis(10 + rng.below(10_000));
        schedule.partitions.push((from, to, 0, worker));
        down.push((from, to, worker));
    }
    (schedule, down)
}

/// The periods in which tasks need not begin: the pool recovers from the loss of a worker, or has no worker.
fn outages(down: &[Down], workers: usize) -> Vec<(Time, Time)> {
    let mut periods: Vec<(Time, Time)> =
        down.iter().map(|(from, ..)| (*from, *from + RECOVERY)).collect();
    for (at, (from, to, worker)) in down.iter().enumerate() {
        if workers == 1 {
            periods.push((*from, *to + RECOVERY));
        }
        for (other_from, other_to, other) in &down[at + 1..] {
            let (from, to) = ((*from).max(*other_from), (*to).min(*other_to) + RECOVERY);
            if worker != other && from < to {
                periods.push((from, to));
            }
        }
    }
    periods.sort_unstable();
    periods.dedup_by(|next, earlier| {
        let overlaps = next.0 <= earlier.1;
        if overlaps {
            earlier.1 = earlier.1.max(next.1);
        }
        overlaps
    });
    periods
}

/// A task, as the starvation checker needs it.
pub(crate) fn arrived_task(index: usize, task: &NewTask, run_s: f64) -> ArrivedTask {
    let is_large = task.spec.requirement.memory_bytes >= LARGE_GB << 30;
    let priority = (task.spec.requirement.priority.as_f64() * 1e3).round() as i32;
    ArrivedTask { index, run_s, priority, is_large, is_interactive: !task.stored }
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
        terms: hypha_engine::Terms::default(),
        owner: hypha_engine::OwnerState::default(),
        batch_slowdown: 0.0,
    }
}

fn tasks(rng: &mut Rng, count: usize, gap_s: f64, kinds: TaskKinds) -> Tasks {
    let mut at = START + Span::from_millis(1);
    let mut tasks = Vec::with_capacity(count);
    for index in 0..count {
        at = at + Span::from_secs_f64(gap_s * rng.exponential());
        let run_s = MIN_RUN_S + (MAX_RUN_S - MIN_RUN_S) * rng.unit();
        let is_large = rng.below(LARGE_EVERY) == 0;
        let stored = is_large || !rng.chance(kinds.interactive);
        let memory_gb = if is_large { LARGE_GB } else { SMALL_GB };
        let is_high = kinds.low_priority.is_some_and(|share| !rng.chance(share));
        let requirement = Requirement {
            memory_bytes: memory_gb << 30,
            priority: Priority::from_milli(if is_high { HIGH_PRIORITY } else { 0 }),
            ..Requirement::default()
        };
        let spec = TaskSpec {
            requirement,
            input: Payload::from((index as u32).to_le_bytes().as_slice()),
            metadata: Metadata::of_numbers(&[("input_tokens", run_s * 1_000.0)]),
            ..TaskSpec::default()
        };
        let task = NewTask {
            spec: Arc::new(spec),
            idempotency_key: None,
            bind_at_once: rng.chance(kinds.bound),
            stored,
            quota: None,
            weight: None,
        };
        tasks.push((at, task, run_s, 0));
    }
    Tasks { tasks }
}
