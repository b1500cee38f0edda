//! The machines in virtual time: schedulers, workers, the network between them, and what goes wrong.
//!
//! The world carries steps out as a node does: first `persist`, then `send` and `run`. A crash may fall
//! before, between or after.

mod agenda;
mod faults;
pub(crate) mod nodes;

use std::sync::Arc;

use hypha_engine::scheduler::Effect;
use hypha_engine::{
    Command, FromWorker, NewTask, Notice, Outcome, Reply, Run, Scheduler, SchedulerEvent, ToWorker,
    WorkerEvent, WorkerMachine,
};
use hypha_model::{Payload, Rng, Span, Time};

pub use faults::{CrashPoint, Fault, Odds, Timetable};
pub use nodes::{WorkerSetup, index_of_spec};

use crate::network::Network;
use crate::watch::{Violation, Watch};
use agenda::{Agenda, Happening};
use nodes::{SchedulerNode, WorkerNode};

/// Virtual time begins here; not at zero, which machines take for "never".
pub const START: Time = Time::from_micros(1_700_000_000_000_000);
/// How long an executor takes to stop.
const STOP_TIME: Span = Span::from_millis(1);
/// A client that got no answer asks again after this long, with the same key.
const CLIENT_PATIENCE: Span = Span::from_secs(2);

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
    /// Whether it is stored. If not, its client waits on the line, and is told if the scheduler dies.
    fn is_stored(&self, _index: usize) -> bool {
        true
    }
    /// Which scheduler it is submitted to.
    fn scheduler(&self, _index: usize) -> usize {
        0
    }
}

/// Everything that makes a run.
pub struct Setup {
    /// Repeats the run.
    pub seed: u64,
    /// One for each scheduler.
    pub settings: Vec<hypha_engine::Settings>,
    /// What each scheduler finds in its store when it starts for the first time.
    pub image: hypha_engine::Image,
    /// What each scheduler is asked at the start.
    pub commands: Vec<Command>,
    /// The workers.
    pub workers: Vec<WorkerSetup>,
    /// The tasks.
    pub arrivals: Box<dyn Arrivals>,
    /// How messages travel.
    pub network: Network,
    /// What goes wrong, and when.
    pub timetable: Timetable,
    /// Keep all that is durable, so that a scheduler can be restarted, and check everything after every
    /// step. For small worlds.
    pub thorough: bool,
    /// Keep a line for each event.
    pub log: bool,
}

/// See the head of this file.
pub struct World {
    now: Time,
    rng: Rng,
    agenda: Agenda,
    schedulers: Vec<SchedulerNode>,
    workers: Vec<WorkerNode>,
    arrivals: Box<dyn Arrivals>,
    network: Network,
    timetable: Timetable,
    watch: Watch,
    next_arrival: usize,
    log: Option<Vec<String>>,
    steps: u64,
}

impl World {
    /// A world at its start: all nodes are up, and all workers are known to their schedulers.
    pub fn new(setup: Setup) -> World {
        let mut rng = Rng::new(setup.seed);
        let count = setup.arrivals.count();
        let mut world = World {
            now: START,
            agenda: Agenda::default(),
            schedulers: Vec::new(),
            workers: Vec::new(),
            arrivals: setup.arrivals,
            network: setup.network,
            timetable: setup.timetable,
            watch: Watch::new(count, setup.settings.len(), setup.thorough),
            next_arrival: 0,
            log: setup.log.then(Vec::new),
            steps: 0,
            rng: rng.fork(),
        };
        for settings in setup.settings {
            let at = world.schedulers.len();
            let node = SchedulerNode::new(
                at,
                settings,
                setup.image.clone(),
                setup.thorough,
                rng.next_u64(),
            );
            world.schedulers.push(node);
            world.start_scheduler(at);
            for command in setup.commands.clone() {
                // An empty scheduler has nothing yet that could be violated.
                let _ = world.ask(at, command);
            }
        }
        for worker in setup.workers {
            let at = world.workers.len();
            world.workers.push(WorkerNode::new(worker, rng.next_u64()));
            // Nothing has happened yet that could be violated.
            let _ = world.start_worker(at);
        }
        for (at, fault) in &world.timetable.faults {
            world.agenda.add(*at, Happening::Fault(*fault));
        }
        world.next_arrival();
        world
    }

    /// Runs until every task has ended, or nothing more happens, or `deadline`. Returns what was violated.
    pub fn run(&mut self, deadline: Time) -> Result<(), Violation> {
        while let Some((at, happening)) = self.agenda.next() {
            if at > deadline {
                break;
            }
            self.now = at;
            self.steps += 1;
            self.happen(happening)?;
            if self.watch.all_ended() && self.next_arrival >= self.arrivals.count() {
                return Ok(());
            }
        }
        self.watch.stuck(self.now, &self.schedulers)
    }

    /// Lets everything settle after the last task, and checks that nothing is left over.
    pub fn drain(&mut self, deadline: Time) -> Result<(), Violation> {
        loop {
            let idle = self.workers.iter().all(WorkerNode::is_idle);
            if idle {
                break;
            }
            let Some((at, happening)) = self.agenda.next() else { break };
            if at > deadline {
                break;
            }
            self.now = at;
            self.happen(happening)?;
        }
        for node in &self.schedulers {
            self.watch.drained(self.now, node)?;
        }
        for node in &self.workers {
            self.watch.worker_drained(self.now, node)?;
        }
        Ok(())
    }

    /// The time now.
    pub fn now(&self) -> Time {
        self.now
    }

    /// What was seen of the tasks.
    pub fn watch(&self) -> &Watch {
        &self.watch
    }

    /// How many events there were.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// The lines of the log.
    pub fn log(&self) -> &[String] {
        self.log.as_deref().unwrap_or_default()
    }

    /// How long each worker was busy.
    pub fn busy(&self) -> Vec<Span> {
        self.workers.iter().map(|worker| worker.busy).collect()
    }

    /// A scheduler that is up, to be read.
    pub fn scheduler(&self, at: usize) -> Option<&Scheduler> {
        self.schedulers.get(at)?.machine.as_ref()
    }

    fn happen(&mut self, happening: Happening) -> Result<(), Violation> {
        let wanted = happening.wants_worker();
        if let Some(thaw) = wanted.and_then(|worker| self.timetable.thaws(worker, self.now)) {
            self.agenda.add(thaw, happening);
            return Ok(());
        }
        self.note(|| happening.describe());
        match happening {
            Happening::Submit { index } => {
                self.next_arrival();
                self.submit(index)
            }
            Happening::ToWorker { worker, scheduler, life, message } => {
                // A connection does not outlive either end.
                if self.workers[worker].life != life {
                    return Ok(());
                }
                let id = self.schedulers[scheduler].id;
                let event = WorkerEvent::SchedulerSaid { scheduler: id, message };
                self.step_worker(worker, event)
            }
            Happening::FromWorker { scheduler, worker, life, message } => {
                if self.schedulers[scheduler].life != life {
                    return Ok(());
                }
                let id = self.workers[worker].setup.worker.id;
                let void = self.watch.void_result(self.schedulers[scheduler].id, &message);
                let event = SchedulerEvent::WorkerSaid { worker: id, message };
                self.step_scheduler(scheduler, event)?;
                self.watch.not_recorded(void)?;
                self.watch.one_holder(self.now, &self.schedulers, &self.workers[worker])
            }
            Happening::SchedulerWakes { scheduler, at } => {
                if self.schedulers[scheduler].wake_at != Some(at) {
                    return Ok(());
                }
                self.schedulers[scheduler].wake_at = None;
                self.step_scheduler(scheduler, SchedulerEvent::Woke)
            }
            Happening::WorkerWakes { worker, at } => {
                if self.workers[worker].wake_at != Some(at) {
                    return Ok(());
                }
                self.workers[worker].wake_at = None;
                self.step_worker(worker, WorkerEvent::Woke)
            }
            Happening::RunEnds { worker, life, id } => {
                let node = &mut self.workers[worker];
                if node.life != life {
                    return Ok(());
                }
                let Some(run) = node.end_run(id, self.now) else { return Ok(()) };
                let outcome = self.outcome(worker, run.index, run.stopped);
                self.step_worker(worker, WorkerEvent::Ended { id, outcome })
            }
            Happening::Fault(fault) => self.strike(fault),
            Happening::Disconnected { scheduler, life, worker } => {
                if self.schedulers[scheduler].life != life {
                    return Ok(());
                }
                let id = self.workers[worker].setup.worker.id;
                self.step_scheduler(scheduler, SchedulerEvent::WorkerDisconnected(id))
            }
        }
    }

    fn next_arrival(&mut self) {
        if self.next_arrival < self.arrivals.count() {
            let index = self.next_arrival;
            self.agenda.add(self.arrivals.at(index).max(self.now), Happening::Submit { index });
            self.next_arrival += 1;
        }
    }

    /// A client submits a task, and does so again with the same key until it is answered.
    fn submit(&mut self, index: usize) -> Result<(), Violation> {
        if self.watch.is_answered(index) {
            return Ok(());
        }
        self.watch.submitted(index, self.now);
        let is_stored = self.arrivals.is_stored(index);
        if self.timetable.clients_retry() && is_stored {
            self.agenda.add(self.now + CLIENT_PATIENCE, Happening::Submit { index });
        }
        let scheduler = self.arrivals.scheduler(index);
        let tasks = vec![self.arrivals.task(index)];
        let command = Command::SubmitTasks(tasks);
        let event = SchedulerEvent::Asked { request: index as u64, command };
        self.step_scheduler(scheduler, event)?;
        if !is_stored {
            // What has not been answered by now never will be, and the client notices.
            self.watch.hung_up(self.now, index);
        }
        Ok(())
    }

    fn step_scheduler(&mut self, at: usize, event: SchedulerEvent) -> Result<(), Violation> {
        let now = self.now;
        let node = &mut self.schedulers[at];
        let Some(machine) = &mut node.machine else { return Ok(()) };
        let mut step = std::mem::take(&mut node.step);
        step.clear();
        machine.step(now, event, &mut step);
        let crash = node.crash.take();
        if crash.is_some() && self.rng.chance(0.5) {
            step.at_once.clear();
        }
        self.let_out(at, &mut step.at_once)?;
        let node = &mut self.schedulers[at];
        if crash != Some(CrashPoint::BeforePersist) {
            for record in &step.persist {
                self.watch.persisted(now, (at, node.id), record)?;
                node.image.apply(record);
            }
        }
        if let Some(point) = crash {
            let left = match point {
                CrashPoint::AmidSend => self.rng.below(step.send.len() as u64 + 1) as usize,
                CrashPoint::BeforePersist | CrashPoint::BeforeSend => 0,
            };
            step.send.truncate(left);
            self.send_all(at, &mut step.send)?;
            self.schedulers[at].step = step;
            self.crash_scheduler(at);
            return Ok(());
        }
        if let Some(wake) = step.wake_at {
            let wake = wake.max(now);
            if node.wake_at != Some(wake) {
                node.wake_at = Some(wake);
                self.agenda.add(wake, Happening::SchedulerWakes { scheduler: at, at: wake });
            }
        } else {
            node.wake_at = None;
        }
        self.watch.scheduler_stepped(now, &mut self.schedulers[at])?;
        self.send_all(at, &mut step.send)?;
        self.schedulers[at].step = step;
        Ok(())
    }

    fn send_all(&mut self, scheduler: usize, effects: &mut Vec<Effect>) -> Result<(), Violation> {
        for effect in effects.drain(..) {
            match effect {
                Effect::ToWorker { worker, message } => {
                    if let Some(worker) = nodes::worker_index(worker) {
                        self.send_to_worker(scheduler, worker, message);
                    }
                }
                Effect::Reply { request, reply } => self.replied(request, &reply)?,
                Effect::Notice { .. } => {}
            }
        }
        Ok(())
    }

    /// What has nothing durable at stake leaves whatever comes of the rest of the step.
    fn let_out(&mut self, scheduler: usize, effects: &mut Vec<Effect>) -> Result<(), Violation> {
        for effect in effects.drain(..) {
            match effect {
                Effect::ToWorker { worker, message } => {
                    if let Some(worker) = nodes::worker_index(worker) {
                        self.send_to_worker(scheduler, worker, message);
                    }
                }
                Effect::Reply { request, reply: Reply::Submitted(answers) } => {
                    let asked = (scheduler, request as usize);
                    let mut answers = answers.iter();
                    answers.try_for_each(|answer| self.watch.on_line(self.now, asked, answer))?;
                }
                Effect::Notice { task, notice: Notice::Ended { finished, .. } } => {
                    self.watch.ended_on_line(self.now, (scheduler, task), &finished)?;
                }
                Effect::Reply { .. } | Effect::Notice { .. } => {}
            }
        }
        Ok(())
    }

    fn replied(&mut self, request: u64, reply: &Reply) -> Result<(), Violation> {
        let Reply::Submitted(answers) = reply else { return Ok(()) };
        for answer in answers {
            self.watch.answered(self.now, request as usize, answer)?;
        }
        Ok(())
    }

    fn step_worker(&mut self, at: usize, event: WorkerEvent) -> Result<(), Violation> {
        let node = &mut self.workers[at];
        let local = node.clock.local(self.now);
        let Some(machine) = &mut node.machine else { return Ok(()) };
        let mut step = std::mem::take(&mut node.step);
        step.clear();
        machine.step(local, event, &mut step);
        let node = &mut self.workers[at];
        step.persist.iter().for_each(|record| node.keep(record));
        match step.wake_at.map(|wake| node.clock.true_time(wake).max(self.now)) {
            Some(wake) if node.wake_at != Some(wake) => {
                node.wake_at = Some(wake);
                self.agenda.add(wake, Happening::WorkerWakes { worker: at, at: wake });
            }
            Some(_) => {}
            None => node.wake_at = None,
        }
        self.watch.worker_stepped(self.now, &self.workers[at])?;
        for said in step.send.drain(..) {
            if let Some(scheduler) = nodes::scheduler_index(said.to) {
                self.send_to_scheduler(at, scheduler, said.message);
            }
        }
        for run in step.run.drain(..) {
            self.carry_out(at, run);
        }
        self.workers[at].step = step;
        Ok(())
    }

    fn carry_out(&mut self, at: usize, run: Run) {
        let node = &mut self.workers[at];
        let life = node.life;
        match run {
            Run::Start { id, dispatch, .. } => {
                let Some(index) = index_of_spec(&dispatch.spec) else { return };
                let run_s = self.arrivals.run_s(index) / node.speed();
                let ends = self.now + Span::from_secs_f64(run_s);
                node.begin_run(id, index, self.now);
                self.agenda.add(ends, Happening::RunEnds { worker: at, life, id });
            }
            Run::Stop(id) => {
                node.stop_run(id);
                self.agenda.add(self.now + STOP_TIME, Happening::RunEnds { worker: at, life, id });
            }
        }
    }

    /// What an executor returns: the task's input, unless a fault strikes.
    fn outcome(&mut self, worker: usize, index: usize, stopped: bool) -> Outcome {
        let odds = &self.timetable.odds;
        if stopped || (odds.executor_error > 0.0 && self.rng.chance(odds.executor_error)) {
            let error = format!("the executor failed on worker {worker}");
            return match self.rng.unit() {
                // What it forwards to is away.
                0.7..0.8 => Outcome::Unreached { error },
                drawn => Outcome::Failed { error, retry: drawn < 0.8 },
            };
        }
        let result = Payload::from((index as u32).to_le_bytes().as_slice());
        if odds.corruption > 0.0 && self.rng.chance(odds.corruption) {
            let digest = Payload::from(&b"something else"[..]).digest();
            return Outcome::Completed { result, digest };
        }
        let digest = result.digest();
        Outcome::Completed { result, digest }
    }

    fn send_to_worker(&mut self, scheduler: usize, worker: usize, message: ToWorker) {
        if self.timetable.parted(scheduler, worker, self.now) {
            return;
        }
        let life = self.workers[worker].life;
        let [first, second] = self.network.deliveries(self.now, &mut self.rng);
        if let Some(at) = second {
            let message = message.clone();
            self.agenda.add(at, Happening::ToWorker { worker, scheduler, life, message });
        }
        if let Some(at) = first {
            self.agenda.add(at, Happening::ToWorker { worker, scheduler, life, message });
        }
    }

    fn send_to_scheduler(&mut self, worker: usize, scheduler: usize, message: FromWorker) {
        if self.timetable.parted(scheduler, worker, self.now) {
            return;
        }
        let life = self.schedulers[scheduler].life;
        let [first, second] = self.network.deliveries(self.now, &mut self.rng);
        if let Some(at) = second {
            let message = message.clone();
            self.agenda.add(at, Happening::FromWorker { scheduler, worker, life, message });
        }
        if let Some(at) = first {
            self.agenda.add(at, Happening::FromWorker { scheduler, worker, life, message });
        }
    }

    fn note(&mut self, line: impl FnOnce() -> String) {
        if let Some(log) = &mut self.log {
            log.push(format!("{:>10.6} {}", self.now.since(START).as_secs_f64(), line()));
        }
    }

    fn start_scheduler(&mut self, at: usize) {
        let now = self.now;
        let node = &mut self.schedulers[at];
        let mut step = std::mem::take(&mut node.step);
        step.clear();
        let machine = Scheduler::recover(
            node.id,
            node.settings.clone(),
            node.image.clone_image(),
            node.seed,
            now,
            &mut step,
        );
        node.machine = Some(machine);
        for record in &step.persist {
            node.image.apply(record);
        }
        if let Some(wake) = step.wake_at {
            node.wake_at = Some(wake);
            self.agenda.add(wake, Happening::SchedulerWakes { scheduler: at, at: wake });
        }
        // A new life answers nobody, so nothing can be violated yet.
        let _ = self.send_all(at, &mut step.send);
        self.schedulers[at].step = step;
    }

    fn start_worker(&mut self, at: usize) -> Result<(), Violation> {
        let node = &mut self.workers[at];
        let mut step = std::mem::take(&mut node.step);
        step.clear();
        let worker = Arc::clone(&node.setup.worker);
        let mut machine = WorkerMachine::start(worker, node.epoch, node.left, node.seed, &mut step);
        machine.mutate(node.setup.mutant);
        step.persist.iter().for_each(|record| node.keep(record));
        node.machine = Some(machine);
        node.step = step;
        self.announce(at)
    }

    /// The schedulers that can find a worker find it.
    fn announce(&mut self, at: usize) -> Result<(), Violation> {
        let worker = Arc::clone(&self.workers[at].setup.worker);
        for scheduler in self.workers[at].setup.known_to.clone() {
            let found = SchedulerEvent::WorkerFound(Arc::clone(&worker));
            self.step_scheduler(scheduler, found)?;
            // One that an operator removed before is registered again, or is never used any more.
            let machine = self.schedulers[scheduler].machine.as_ref();
            if machine.is_some_and(|machine| machine.is_removed(worker.id)) {
                self.ask(scheduler, Command::RegisterWorker(Arc::clone(&worker)))?;
            }
        }
        Ok(())
    }
}
