//! A world of competing schedulers whose jobs need gangs of workers, drawn from a seed.

use std::sync::Arc;

use hypha_engine::job::JobPlan;
use hypha_engine::{Image, Mutant, NewTask, OwnerState, Settings, Terms};
use hypha_market::{GangRole, GangSpec, Pricing};
use hypha_model::{
    Capacity, Device, Executor, ExecutorClass, Maximise, Metadata, Money, Name, Payload, Priority,
    Requirement, Rng, Span, TaskSpec, Time, Worker,
};
use hypha_placement::Strategy;

use super::{FAULT_PERIOD, FaultKind, Scope, Tasks, fault_schedule, name, network};
use crate::network::Clock;
use crate::world::market::program;
use crate::world::{
    Fault, FaultSchedule, MarketJob, MarketSetup, START, Setup, WorkerSetup, World,
};

/// The parameters of a world with a market, besides its seed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MarketScope {
    /// How many workers.
    pub workers: usize,
    /// How many schedulers.
    pub schedulers: usize,
    /// How many jobs.
    pub jobs: usize,
    /// Fault kinds that are not injected.
    pub without: Vec<FaultKind>,
    /// A fault planted into the machines.
    pub mutant: Option<Mutant>,
}

impl Default for MarketScope {
    fn default() -> MarketScope {
        MarketScope { workers: 50, schedulers: 5, jobs: 25, without: Vec::new(), mutant: None }
    }
}

/// The TTL of the leases of gangs.
pub const LEASE_TTL: Span = Span::from_secs(10);
/// Jobs are submitted in this time: some while there are faults, some after.
const SUBMIT_PERIOD: Span = Span::from_secs(40);
/// After the last fault, everything must have ended within this: gangs wait for each other, with backoffs of up to 30 s, and
/// leases that are taken back end 30 s later.
const SETTLE_TIMEOUT: Span = Span::from_secs(900);
/// The schedules of faults that are put together: one is for a handful of nodes.
const FAULT_SCHEDULES: usize = 3;
/// This many workers serve every job: those that want more find them in time.
const UNIVERSAL_SHARE: usize = 3;
/// Tasks besides the jobs, so that shared leases and gangs compete.
const TASKS: usize = 20;

/// The world of a seed.
pub fn world(seed: u64, scope: &MarketScope, log: bool) -> World {
    let mut rng = Rng::new(seed ^ 0x6d61_726b_6574);
    // A job on a worker that becomes twenty times slower takes as long as it takes: no bound holds for it.
    let without = scope.without.iter().copied().chain([FaultKind::Slowness]).collect();
    let base = Scope { tasks: TASKS, without, mutant: scope.mutant, strategy: None };
    let settings = super::settings(&mut rng, Strategy::default(), &base);
    let settings: Vec<Settings> = (0..scope.schedulers)
        .map(|at| Settings {
            organisation: organisation(at),
            retry: hypha_engine::RetryPolicy { max_attempts: 10, ..settings.retry },
            ..settings.clone()
        })
        .collect();
    let known_share = [0.0, 0.3, 0.6][rng.below(3) as usize];
    let workers: Vec<WorkerSetup> =
        (0..scope.workers).map(|at| worker(&mut rng, at, known_share, scope)).collect();
    let jobs = jobs(&mut rng, scope);
    let fault_schedule = faults(&mut rng, &base, scope);
    let network = network(&mut rng, &base);
    let has_tasks = known_share > 0.0;
    let tasks = if has_tasks { tasks(&mut rng, scope) } else { Tasks { tasks: Vec::new() } };
    // Only where no message is lost is every receipt countersigned within a renewal.
    let quiet_from = START + FAULT_PERIOD + LEASE_TTL + LEASE_TTL;
    World::new(Setup {
        seed: rng.next_u64(),
        settings,
        image: Image::default(),
        commands: Vec::new(),
        workers,
        arrivals: Box::new(tasks),
        fault_schedule,
        market: Some(MarketSetup {
            jobs,
            lease_ttl: LEASE_TTL,
            mesh: None,
            rogues: Vec::new(),
            quiet_from: (network.loss == 0.0).then_some(quiet_from),
        }),
        network,
        thorough: true,
        log,
    })
}

/// When everything must have ended.
pub fn deadline() -> Time {
    START + FAULT_PERIOD + SETTLE_TIMEOUT
}

fn organisation(scheduler: usize) -> Option<Name> {
    name(["lab", "mill", "shop", "farm", "yard"][scheduler % 5])
}

fn worker(rng: &mut Rng, at: usize, known_share: f64, scope: &MarketScope) -> WorkerSetup {
    let is_universal = at.is_multiple_of(UNIVERSAL_SHARE);
    let gpus = if is_universal { 2 } else { rng.below(3) };
    let device =
        |_| name("gpu").map(|model| Device { model, memory_bytes: 16 << 30, milli_gpu: 1_000 });
    let capacity = Capacity {
        cpu_milli: if is_universal { 8_000 } else { 1_000 * (1 + rng.below(8)) },
        memory_bytes: 32 << 30,
        storage_bytes: 1 << 40,
        devices: (0..gpus).filter_map(device).collect(),
    };
    let executor = name("train").map(|name| Executor {
        class: ExecutorClass::default(),
        name,
        models: Vec::new(),
        concurrency: 4 + rng.below(4) as u32,
    });
    let rate = match scope.without.contains(&FaultKind::Drift) {
        true => 1.0,
        false => 0.9 + 0.2 * rng.unit(),
    };
    let terms = terms(rng, is_universal, scope.schedulers);
    let offset = Span::from_secs(rng.below(100));
    // Where there are tasks, each scheduler knows workers that can run them for nothing.
    let known_share = if is_universal && known_share > 0.0 { 1.0 } else { known_share };
    let known_to: Vec<usize> = (0..scope.schedulers).filter(|_| rng.chance(known_share)).collect();
    WorkerSetup {
        worker: Arc::new(Worker {
            id: WorkerSetup::id(at),
            capacity,
            executors: executor.into_iter().collect(),
            hardware: None,
            region: None,
            price: Money::ZERO,
        }),
        speed: [0.5, 1.0, 2.0][rng.below(3) as usize],
        batch_slowdown: 0.0,
        clock: Clock::new(START, offset, rate),
        known_to,
        mutant: scope.mutant,
        back_end: None,
        terms,
        owner: OwnerState::default(),
    }
}

/// Owners ask for different prices, offer all of a worker or parts, and serve all organisations or some.
fn terms(rng: &mut Rng, is_universal: bool, schedulers: usize) -> Terms {
    let floor = rng.below(60);
    let price = floor + rng.below(60);
    let pricing = if rng.chance(0.3) { Pricing::Whole } else { Pricing::Flexible };
    let served = |rng: &mut Rng| {
        let ceiling = rng.chance(0.3).then(|| Priority::from_milli(500));
        let chosen = (0..schedulers).filter(|_| rng.chance(0.6)).collect::<Vec<_>>();
        chosen.into_iter().filter_map(|at| Some((organisation(at)?, ceiling))).collect()
    };
    let organisations = rng.chance(0.3).then(|| served(rng));
    match is_universal {
        // For nothing, so that tasks, which bid nothing, can end.
        true => Terms::default(),
        false => Terms {
            price: Money::from_micros(price),
            floor: Money::from_micros(floor),
            pricing,
            organisations,
            ..Terms::default()
        },
    }
}

fn jobs(rng: &mut Rng, scope: &MarketScope) -> Vec<MarketJob> {
    let has_priorities = rng.chance(0.6);
    let mut times: Vec<Time> = (0..scope.jobs)
        .map(|_| START + Span::from_micros(1 + rng.below(SUBMIT_PERIOD.as_micros())))
        .collect();
    times.sort_unstable();
    let job = |(index, at): (usize, Time)| {
        let roles = 1 + rng.below(3) as usize;
        let roles: Vec<GangRole> = (0..roles).filter_map(|at| role(rng, at)).collect();
        let programs = roles
            .iter()
            .enumerate()
            .map(|(role, it)| program(index, role, (*it.requirement).clone()))
            .collect();
        let run_s = roles.iter().map(|_| 1.0 + 25.0 * rng.unit() * rng.unit()).collect();
        let priority = if has_priorities { rng.below(3) as i32 * 500 } else { 0 };
        let maximise = [Maximise::Speed, Maximise::Cost, Maximise::Balance][rng.below(3) as usize];
        let gang = GangSpec {
            roles,
            priority: Priority::from_milli(priority),
            is_preemptible: rng.chance(0.5),
            maximise,
            budget: rng.chance(0.2).then(|| Money::from_micros(5_000)),
            window: Span::from_millis(200 + rng.below(400)),
            lease_ttl: LEASE_TTL,
        };
        let plan = JobPlan {
            name: name(&format!("job-{index}")),
            tenant: None,
            gang: Arc::new(gang),
            programs,
        };
        let scheduler = rng.below(scope.schedulers as u64) as usize;
        MarketJob { at, scheduler, plan: Arc::new(plan), run_s }
    };
    times.into_iter().enumerate().map(job).collect()
}

fn role(rng: &mut Rng, at: usize) -> Option<GangRole> {
    let count = 1 + rng.below(3) as u32;
    let gpus = u32::from(rng.chance(0.4));
    let bid = 30 + rng.below(90);
    Some(GangRole {
        name: name(["trainer", "server", "data"][at % 3])?,
        requirement: Arc::new(Requirement {
            cpu_milli: 500 * (1 + rng.below(8)),
            memory_bytes: rng.below(4) << 30,
            min_gpus: gpus,
            milli_gpu: if rng.chance(0.5) { 500 } else { 1_000 },
            ..Requirement::default()
        }),
        count,
        minimum: if rng.chance(0.7) { count } else { 1 + rng.below(count.into()) as u32 },
        wants_all: false,
        bid: Money::from_micros(bid),
        max: Money::from_micros(bid + rng.below(60)),
    })
}

/// Small tasks that any worker runs.
fn tasks(rng: &mut Rng, scope: &MarketScope) -> Tasks {
    let task = |index: usize| {
        let at = START + Span::from_millis(1 + 1_000 * index as u64);
        let spec = TaskSpec {
            requirement: Requirement { cpu_milli: 250, ..Requirement::default() },
            input: Payload::from((index as u32).to_le_bytes().as_slice()),
            metadata: Metadata::of_numbers(&[("input_tokens", 100.0)]),
            ..TaskSpec::default()
        };
        let task = NewTask {
            spec: Arc::new(spec),
            idempotency_key: Some(Arc::from(format!("key-{index}"))),
            bind_at_once: false,
            stored: true,
            quota: None,
            weight: None,
        };
        let scheduler = rng.below(scope.schedulers as u64) as usize;
        (at, task, 0.05 + 0.3 * rng.unit(), scheduler)
    };
    Tasks { tasks: (0..TASKS).map(task).collect() }
}

fn faults(rng: &mut Rng, base: &Scope, scope: &MarketScope) -> FaultSchedule {
    let mut all = FaultSchedule::default();
    for _ in 0..FAULT_SCHEDULES {
        let drawn = fault_schedule::draw(rng, base, scope.workers, scope.schedulers);
        all.faults.extend(drawn.faults);
        all.partitions.extend(drawn.partitions);
        all.freezes.extend(drawn.freezes);
        all.full_disks.extend(drawn.full_disks);
        (all.max_commit_time, all.probabilities) = (drawn.max_commit_time, drawn.probabilities);
    }
    let end = START + FAULT_PERIOD;
    if !scope.without.contains(&FaultKind::Owner) {
        for _ in 0..rng.below(8) {
            let worker = rng.below(scope.workers as u64) as usize;
            let from = fault_schedule::any_time(rng);
            let to = (from + Span::from_millis(100 + rng.below(8_000))).min(end);
            let (is_paused, is_used_by_owner) =
                if rng.chance(0.5) { (true, false) } else { (false, true) };
            let state = OwnerState { is_paused, is_used_by_owner, is_off_hours: false };
            all.faults.push((from, Fault::ChangeOwner { worker, state }));
            let state = OwnerState::default();
            all.faults.push((to, Fault::ChangeOwner { worker, state }));
        }
    }
    all
}
