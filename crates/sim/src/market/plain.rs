//! A market without faults, for measurements.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hypha_engine::job::JobPlan;
use hypha_engine::{Image, Mutant, OwnerState, Settings, Terms};
use hypha_market::{GangRole, GangSpec};
use hypha_model::{
    Capacity, Executor, ExecutorClass, Maximise, Money, Name, Priority, Requirement, Rng, Span,
    Time, Worker,
};

use crate::network::{Clock, Network};
use crate::world::{
    Arrivals, FaultSchedule, MarketJob, MarketSetup, Mesh, Rogue, START, Setup, WorkerSetup, World,
    program,
};

/// A market to measure.
#[derive(Clone, Debug)]
pub struct PlainMarket {
    /// How many workers, each with [`CORES`].
    pub workers: usize,
    /// How many schedulers.
    pub schedulers: usize,
    /// The delay of a link.
    pub link: Span,
    /// Whether schedulers are connected to all workers, and so know them; otherwise they reach them by gossip.
    pub is_connected: bool,
    /// The number of neighbours of each node in the gossip mesh.
    pub degree: usize,
    /// How long offers are collected.
    pub window: Span,
    /// The seed.
    pub seed: u64,
    /// Schedulers that flood.
    pub rogues: Vec<Rogue>,
    /// A planted fault of some workers.
    pub faulty_workers: Option<(Mutant, BTreeSet<usize>)>,
}

/// A job of a plain market.
#[derive(Clone, Debug, PartialEq)]
pub struct PlainJob {
    /// When it is submitted, in seconds.
    pub at_s: f64,
    /// Its roles: members, cores of each in thousandths, and run time in seconds.
    pub roles: Vec<(u32, u64, f64)>,
}

/// The cores of each worker, in thousandths.
pub const CORES: u64 = 8_000;
/// The TTL of leases.
pub const LEASE_TTL: Span = Span::from_secs(30);

impl Default for PlainMarket {
    fn default() -> PlainMarket {
        PlainMarket {
            workers: 50,
            schedulers: 5,
            link: Span::from_millis(20),
            is_connected: true,
            degree: 6,
            window: Span::from_millis(500),
            seed: 1,
            rogues: Vec::new(),
            faulty_workers: None,
        }
    }
}

struct NoTasks;

impl Arrivals for NoTasks {
    fn count(&self) -> usize {
        0
    }
    fn at(&self, _: usize) -> Time {
        START
    }
    fn task(&self, _: usize) -> hypha_engine::NewTask {
        hypha_engine::NewTask {
            spec: Arc::default(),
            idempotency_key: None,
            bind_at_once: false,
            stored: true,
            quota: None,
            weight: None,
        }
    }
    fn run_s(&self, _: usize) -> f64 {
        0.0
    }
}

/// A world with these jobs, which go to the schedulers in turn.
pub fn world(market: &PlainMarket, jobs: &[PlainJob]) -> World {
    let mut rng = Rng::new(market.seed);
    let settings = Settings {
        // Heartbeats of leases that nobody uses, between everyone: often enough.
        health_check_interval: Span::from_secs(10),
        lease_ttl: Span::from_secs(60),
        organisation: name("lab"),
        ..Settings::default()
    };
    let jobs = jobs.iter().enumerate().map(|(index, it)| job(market, index, it)).collect();
    let mesh = mesh(&mut rng, market);
    World::new(Setup {
        seed: rng.next_u64(),
        settings: vec![settings; market.schedulers],
        image: Image::default(),
        commands: Vec::new(),
        workers: (0..market.workers).map(|at| worker(market, at)).collect(),
        arrivals: Box::new(NoTasks),
        network: Network { latency: market.link, ..Network::PERFECT },
        fault_schedule: FaultSchedule::default(),
        market: Some(MarketSetup {
            jobs,
            lease_ttl: LEASE_TTL,
            mesh: Some(Arc::new(mesh)),
            rogues: market.rogues.clone(),
            quiet_from: None,
        }),
        thorough: false,
        log: false,
    })
}

fn name(text: &str) -> Option<Name> {
    text.parse().ok()
}

fn worker(market: &PlainMarket, at: usize) -> WorkerSetup {
    let executor = name("train").map(|name| Executor {
        class: ExecutorClass::default(),
        name,
        models: Vec::new(),
        concurrency: 64,
    });
    let capacity = Capacity { cpu_milli: CORES, memory_bytes: 64 << 30, ..Capacity::default() };
    let known_to = if market.is_connected { (0..market.schedulers).collect() } else { Vec::new() };
    let mutant = market.faulty_workers.as_ref().filter(|(_, who)| who.contains(&at));
    WorkerSetup {
        worker: Arc::new(Worker {
            id: WorkerSetup::id(at),
            capacity,
            executors: executor.into_iter().collect(),
            hardware: None,
            region: None,
            price: Money::ZERO,
        }),
        speed: 1.0,
        batch_slowdown: 0.0,
        clock: Clock::new(START, Span::ZERO, 1.0),
        known_to,
        mutant: mutant.map(|(mutant, _)| *mutant),
        back_end: None,
        terms: Terms::default(),
        owner: OwnerState::default(),
    }
}

fn job(market: &PlainMarket, index: usize, job: &PlainJob) -> MarketJob {
    let role = |(at, (count, cpu_milli, _)): (usize, &(u32, u64, f64))| {
        Some(GangRole {
            name: name(&format!("role-{at}"))?,
            requirement: Arc::new(Requirement { cpu_milli: *cpu_milli, ..Requirement::default() }),
            count: *count,
            minimum: *count,
            wants_all: false,
            bid: Money::from_micros(100),
            max: Money::from_micros(200),
        })
    };
    let roles: Vec<GangRole> = job.roles.iter().enumerate().filter_map(role).collect();
    let program = |(at, role): (usize, &GangRole)| program(index, at, (*role.requirement).clone());
    let programs = roles.iter().enumerate().map(program).collect();
    let gang = GangSpec {
        roles,
        priority: Priority::default(),
        is_preemptible: false,
        maximise: Maximise::Balance,
        budget: None,
        window: market.window,
        lease_ttl: LEASE_TTL,
    };
    let name = name(&format!("job-{index}"));
    let plan = JobPlan { name, tenant: None, gang: Arc::new(gang), programs };
    MarketJob {
        at: START + Span::from_secs(1) + Span::from_secs_f64(job.at_s),
        scheduler: index % market.schedulers,
        plan: Arc::new(plan),
        run_s: job.roles.iter().map(|(_, _, run_s)| *run_s).collect(),
    }
}

/// A random mesh in which each node has about `degree` neighbours, and each link about the delay of the market's.
fn mesh(rng: &mut Rng, market: &PlainMarket) -> Mesh {
    let nodes = market.schedulers + market.workers;
    let mut links: Vec<BTreeMap<usize, Span>> = vec![BTreeMap::new(); nodes];
    for from in 0..nodes {
        for _ in 0..market.degree.div_ceil(2) {
            let to = rng.below(nodes as u64) as usize;
            let delay = market.link.mul_f64(0.5 + rng.unit());
            if to != from {
                links[from].insert(to, delay);
                links[to].insert(from, delay);
            }
        }
    }
    // Each node sends a message to all of its neighbours but the one that it has it from.
    let ends: u64 = links.iter().map(|of| of.len() as u64).sum();
    let delays = (0..market.schedulers)
        .map(|scheduler| shortest(&links, scheduler).split_off(market.schedulers))
        .collect();
    Mesh { delays, messages: ends.saturating_sub(nodes as u64 - 1) }
}

/// How long a message takes from a node to each.
fn shortest(links: &[BTreeMap<usize, Span>], from: usize) -> Vec<Span> {
    // A node that the random mesh does not reach is found by others some seconds later.
    let mut reached = vec![Span::from_secs(5); links.len()];
    let mut next = BTreeSet::from([(Span::ZERO, from)]);
    reached[from] = Span::ZERO;
    while let Some((at, node)) = next.pop_first() {
        for (to, delay) in &links[node] {
            if at + *delay < reached[*to] {
                reached[*to] = at + *delay;
                next.insert((at + *delay, *to));
            }
        }
    }
    reached
}
