//! The machines in virtual time: schedulers, workers, the network between them, and the faults.
//!
//! `drive.rs` handles the effects of any machine, as a node's driver does; `host.rs` has the host of a machine, and
//! what a role adds. The roles are in `roles.rs`, with their environment in `clients.rs`, `links.rs` and
//! `executors.rs`; `back_ends.rs` has the HTTP workers.

mod back_ends;
mod clients;
mod drive;
mod event_queue;
mod executors;
mod faults;
pub(crate) mod host;
mod links;
pub(crate) mod market;
pub(crate) mod nodes;
mod roles;

use std::collections::BTreeMap;

use hypha_engine::{Command, NewTask, Scheduler, WorkerImage, WorkerMachine};
use hypha_model::{Rng, Span, Time};

pub use back_ends::BackEndKind;
pub use faults::{BackEndCondition, CrashPoint, Fault, FaultProbabilities, FaultSchedule};
pub use market::{MarketCounts, MarketJob, MarketSetup, Mesh, Rogue, program};
pub use nodes::{Node, WorkerSetup, index_of_spec};

use crate::checkers::{Checkers, StarvationBounds, Violation};
use crate::network::{Clock, Network};
use back_ends::BackEnd;
use event_queue::{EventQueue, WorldEvent};
use executors::Executors;
use host::Host;
use market::Market;
use nodes::SchedulerSetup;

/// Virtual time begins here; not at zero, which machines treat as "never".
pub const START: Time = Time::from_micros(1_700_000_000_000_000);

/// The tasks of a run.
pub trait Arrivals {
    /// How many there are.
    fn count(&self) -> usize;
    /// When the task with this index is submitted. Grows with the index.
    fn at(&self, index: usize) -> Time;
    /// The task. Its input is its index (see [`index_of_spec`]).
    fn task(&self, index: usize) -> NewTask;
    /// Its true run time at speed 1, in seconds.
    fn run_s(&self, index: usize) -> f64;
    /// Whether it is stored. If not, its client waits for the response, and notices if the scheduler dies.
    fn is_stored(&self, _index: usize) -> bool {
        true
    }
    /// Which scheduler it is submitted to.
    fn scheduler(&self, _index: usize) -> usize {
        0
    }
}

/// Everything that defines a run.
pub struct Setup {
    /// The seed, which repeats the run.
    pub seed: u64,
    /// One for each scheduler.
    pub settings: Vec<hypha_engine::Settings>,
    /// What the store of each scheduler holds when it starts for the first time.
    pub image: hypha_engine::Image,
    /// The commands that each scheduler receives at the start.
    pub commands: Vec<Command>,
    /// The workers.
    pub workers: Vec<WorkerSetup>,
    /// The tasks.
    pub arrivals: Box<dyn Arrivals>,
    /// How messages travel.
    pub network: Network,
    /// The faults, and when they strike.
    pub fault_schedule: FaultSchedule,
    /// The jobs, and what the market needs besides.
    pub market: Option<MarketSetup>,
    /// Keep all that is durable, so that a scheduler can be restarted, and check everything after every
    /// step. For small worlds.
    pub thorough: bool,
    /// Keep a line for each event.
    pub log: bool,
}

/// See the module documentation.
pub struct World {
    now: Time,
    rng: Rng,
    events: EventQueue,
    schedulers: Vec<Host<Scheduler>>,
    workers: Vec<Host<WorkerMachine>>,
    /// The executors of each worker.
    executors: Vec<Executors>,
    /// The back end of each HTTP worker.
    back_ends: BTreeMap<usize, BackEnd>,
    arrivals: Box<dyn Arrivals>,
    network: Network,
    /// How often the connection between a scheduler and a worker was replaced.
    replaced: BTreeMap<(usize, usize), u32>,
    fault_schedule: FaultSchedule,
    checkers: Checkers,
    market: Option<Market>,
    next_arrival: usize,
    log: Option<Vec<String>>,
    steps: u64,
}

impl World {
    /// A world at its start: all nodes are up, and all workers are known to their schedulers.
    pub fn new(setup: Setup) -> World {
        let mut rng = Rng::new(setup.seed);
        let count = setup.arrivals.count();
        let checkers = Checkers::new(count, &setup.settings, &setup.fault_schedule, setup.thorough);
        let mut world = World {
            now: START,
            events: EventQueue::default(),
            schedulers: Vec::new(),
            workers: Vec::new(),
            executors: Vec::new(),
            back_ends: BTreeMap::new(),
            arrivals: setup.arrivals,
            network: setup.network,
            replaced: BTreeMap::new(),
            fault_schedule: setup.fault_schedule,
            checkers,
            market: setup.market.map(Market::new),
            next_arrival: 0,
            log: setup.log.then(Vec::new),
            steps: 0,
            rng: rng.fork(),
        };
        for settings in setup.settings {
            let at = world.schedulers.len();
            let clock = Clock::new(START, Span::ZERO, 1.0);
            let (image, seed) = (setup.image.clone(), rng.next_u64());
            let setup_of = SchedulerSetup::new(at, settings);
            world.schedulers.push(Host::new(setup_of, image, setup.thorough, clock, seed));
            // No promise can be broken yet.
            let _ = world.start::<Scheduler>(at);
            for command in setup.commands.clone() {
                let _ = world.operator_request(at, command);
            }
        }
        for worker in setup.workers {
            let at = world.workers.len();
            let (clock, image, seed) = (worker.clock, WorkerImage::default(), rng.next_u64());
            let (back_end, known_to) = (worker.back_end, worker.known_to.first().copied());
            world.executors.push(Executors::new(worker.batch_slowdown));
            world.workers.push(Host::new(worker, image, true, clock, seed));
            if let (Some(kind), Some(scheduler)) = (back_end, known_to) {
                world.back_ends.insert(at, BackEnd::new(kind, scheduler));
            }
            let _ = world.start::<WorkerMachine>(at);
        }
        for (at, fault) in &world.fault_schedule.faults {
            world.events.add(*at, WorldEvent::Fault(*fault));
        }
        world.next_arrival();
        world.begin_market();
        world
    }

    /// From now on, every task must begin within its bound.
    pub(crate) fn check_starvation(&mut self, bounds: StarvationBounds) {
        self.checkers.check_starvation(bounds);
    }

    /// Runs until every task has ended, or nothing more happens, or `deadline`. Returns the promise that was broken.
    pub fn run(&mut self, deadline: Time) -> Result<(), Violation> {
        while let Some((at, event)) = self.events.next() {
            if at > deadline {
                break;
            }
            self.now = at;
            self.steps += 1;
            self.handle_event(event)?;
            self.checkers.check_nothing_starves(self.now)?;
            let has_ended = self.checkers.all_ended() && self.next_arrival >= self.arrivals.count();
            if has_ended && self.market_has_ended() {
                return Ok(());
            }
        }
        self.check_jobs_ended()?;
        self.checkers.check_all_ended(self.now, &self.schedulers)
    }

    /// Lets everything settle after the last task, and checks that nothing is left over.
    pub fn drain(&mut self, deadline: Time) -> Result<(), Violation> {
        loop {
            let is_idle = self.executors.iter().all(Executors::is_idle)
                && self.back_ends.values().all(BackEnd::is_idle);
            if is_idle {
                break;
            }
            let Some((at, event)) = self.events.next() else { break };
            if at > deadline {
                break;
            }
            self.now = at;
            self.handle_event(event)?;
        }
        for node in &self.schedulers {
            self.checkers.check_drained(self.now, node)?;
        }
        for node in &self.workers {
            self.checkers.check_worker_drained(self.now, node)?;
        }
        Ok(())
    }

    /// The time now.
    pub fn now(&self) -> Time {
        self.now
    }

    /// The checkers, with what they observed of the tasks.
    pub fn checkers(&self) -> &Checkers {
        &self.checkers
    }

    /// How many events there were.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// The lines of the log.
    pub fn log(&self) -> &[String] {
        self.log.as_deref().unwrap_or_default()
    }

    /// The work that each worker has done, in seconds that it takes alone there.
    pub fn work_s(&self) -> Vec<f64> {
        self.executors.iter().map(|executors| executors.work_s).collect()
    }

    /// How long each worker was busy, summed over its concurrent runs.
    pub fn busy(&self) -> Vec<Span> {
        self.executors.iter().map(|executors| executors.busy).collect()
    }

    /// A worker that is up, to be read.
    pub fn worker(&self, at: usize) -> Option<&WorkerMachine> {
        self.workers.get(at)?.machine.as_ref()
    }

    /// A scheduler that is up, to be read.
    pub fn scheduler(&self, at: usize) -> Option<&Scheduler> {
        self.schedulers.get(at)?.machine.as_ref()
    }

    fn handle_event(&mut self, event: WorldEvent) -> Result<(), Violation> {
        let wanted = event.required_node().map(|node| self.process_of(node));
        if let Some(thaw) = wanted.and_then(|node| self.fault_schedule.frozen_until(node, self.now))
        {
            self.events.add(thaw, event);
            return Ok(());
        }
        self.note(|| event.describe());
        match event {
            WorldEvent::Submit { index } => {
                self.next_arrival();
                self.submit(index)
            }
            WorldEvent::Requested { scheduler, incarnation, from, command } => {
                self.requested(scheduler, incarnation, from, command)
            }
            WorldEvent::Found { scheduler, worker } => self.found(scheduler, worker),
            WorldEvent::ToWorker { worker, scheduler, link, message } => {
                self.deliver_to_worker(worker, scheduler, link, message)
            }
            WorldEvent::FromWorker { scheduler, worker, link, message } => {
                self.deliver_to_scheduler(scheduler, worker, link, message)
            }
            WorldEvent::Disconnected { scheduler, incarnation, worker } => {
                self.disconnected(scheduler, worker, incarnation)
            }
            WorldEvent::Relinked { scheduler, incarnation, worker } => {
                self.relinked(scheduler, worker, incarnation)
            }
            WorldEvent::RunEnds { worker, machine, id } => self.run_ends(worker, machine, id),
            WorldEvent::Http { worker, incarnation, event } => {
                self.handle_http_event(worker, incarnation, event)
            }
            WorldEvent::Node(Node::Scheduler(at), event) => self.node_event::<Scheduler>(at, event),
            WorldEvent::Node(Node::Worker(at), event) => {
                self.node_event::<WorkerMachine>(at, event)
            }
            WorldEvent::Fault(fault) => self.inject(fault),
            WorldEvent::Market(event) => self.handle_market_event(event),
        }
    }

    fn note(&mut self, line: impl FnOnce() -> String) {
        if let Some(log) = &mut self.log {
            log.push(format!("{:>10.6} {}", self.now.since(START).as_secs_f64(), line()));
        }
    }
}
