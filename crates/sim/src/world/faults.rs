//! What goes wrong, and when.

use hypha_engine::{Command, SchedulerEvent, WorkerEvent};
use hypha_model::{Span, Time};
use hypha_placement::Strategy;

use super::World;
use super::agenda::Happening;
use crate::watch::Violation;

/// One thing that goes wrong, or is done by an operator, at a point in time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// The worker's process dies, with all that it runs. Schedulers notice at once, or not at all.
    KillWorker {
        /// Which.
        worker: usize,
        /// Whether the broken connection is noticed.
        noticed: bool,
    },
    /// The worker's process is told to end: it gives back what it has, and ends soon after.
    StopWorker {
        /// Which.
        worker: usize,
    },
    /// It is started again.
    StartWorker {
        /// Which.
        worker: usize,
    },
    /// Schedulers find the worker again, as discovery does now and then.
    FindWorker {
        /// Which.
        worker: usize,
    },
    /// The scheduler dies in its next step, at this point of it.
    KillScheduler {
        /// Which.
        scheduler: usize,
        /// Where in the step.
        point: CrashPoint,
    },
    /// It is started again.
    StartScheduler {
        /// Which.
        scheduler: usize,
    },
    /// The worker becomes this many times slower for what it starts from now on.
    SlowWorker {
        /// Which.
        worker: usize,
        /// By how much.
        factor: f64,
    },
    /// A client cancels a task.
    CancelTask {
        /// Which.
        index: usize,
    },
    /// An operator chooses another strategy.
    SwitchStrategy {
        /// Of which scheduler.
        scheduler: usize,
        /// Which one.
        strategy: Strategy,
    },
    /// An operator removes a worker.
    RemoveWorker {
        /// From which scheduler.
        scheduler: usize,
        /// Which.
        worker: usize,
    },
}

/// Where in a step a scheduler dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashPoint {
    /// Nothing of the step is durable, nothing has left.
    BeforePersist,
    /// All of it is durable, nothing has left.
    BeforeSend,
    /// All of it is durable, some of it has left.
    AmidSend,
}

/// Everything that goes wrong in a run.
#[derive(Clone, Debug, Default)]
pub struct Timetable {
    /// At these times.
    pub faults: Vec<(Time, Fault)>,
    /// Between these times, this scheduler and this worker cannot reach each other.
    pub partitions: Vec<(Time, Time, usize, usize)>,
    /// Between these times this worker's process is stopped: what it is told waits for it, and its connections stay.
    pub freezes: Vec<(Time, Time, usize)>,
    /// At any time.
    pub odds: Odds,
}

/// What goes wrong by chance.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Odds {
    /// Runs that end with an error.
    pub executor_error: f64,
    /// Results that do not match their digest.
    pub corruption: f64,
}

impl Timetable {
    /// Whether the two cannot reach each other now.
    pub(super) fn parted(&self, scheduler: usize, worker: usize, now: Time) -> bool {
        self.partitions
            .iter()
            .any(|(from, to, s, w)| *s == scheduler && *w == worker && (*from..*to).contains(&now))
    }

    /// When the worker goes on, if its process is stopped now.
    pub(super) fn thaws(&self, worker: usize, now: Time) -> Option<Time> {
        let mut frozen = self.freezes.iter().filter(|(_, _, who)| *who == worker);
        frozen.find(|(from, to, _)| (*from..*to).contains(&now)).map(|(_, to, _)| *to)
    }

    /// Whether an answer may be lost, so that clients ask again.
    pub(super) fn clients_retry(&self) -> bool {
        self.faults.iter().any(|(_, fault)| matches!(fault, Fault::KillScheduler { .. }))
    }
}

/// How long after a death a broken connection is noticed.
const NOTICED_AFTER: Span = Span::from_millis(5);

/// How long a worker that was told to end waits for an answer.
const LEAVE_TIME: Span = Span::from_millis(200);

impl World {
    pub(super) fn strike(&mut self, fault: Fault) -> Result<(), Violation> {
        match fault {
            Fault::KillWorker { worker, noticed } => {
                let now = self.now;
                let node = &mut self.workers[worker];
                if node.machine.is_none() {
                    return Ok(());
                }
                node.kill(now);
                if noticed {
                    for scheduler in node.setup.known_to.clone() {
                        let life = self.schedulers[scheduler].life;
                        let happening = Happening::Disconnected { scheduler, life, worker };
                        self.agenda.add(now + NOTICED_AFTER, happening);
                    }
                }
                Ok(())
            }
            Fault::StopWorker { worker } => {
                let kill = Happening::Fault(Fault::KillWorker { worker, noticed: true });
                self.agenda.add(self.now + LEAVE_TIME, kill);
                self.step_worker(worker, WorkerEvent::AskedToLeave)
            }
            Fault::StartWorker { worker } => {
                if self.workers[worker].machine.is_none() {
                    self.start_worker(worker)?;
                }
                Ok(())
            }
            Fault::FindWorker { worker } => self.announce(worker),
            Fault::KillScheduler { scheduler, point } => {
                self.schedulers[scheduler].crash = Some(point);
                Ok(())
            }
            Fault::StartScheduler { scheduler } => {
                self.schedulers[scheduler].crash = None;
                if self.schedulers[scheduler].machine.is_none() {
                    self.start_scheduler(scheduler);
                }
                Ok(())
            }
            Fault::SlowWorker { worker, factor } => {
                self.workers[worker].slowness = factor;
                Ok(())
            }
            Fault::CancelTask { index } => {
                let scheduler = self.arrivals.scheduler(index);
                match self.watch.id_of(index) {
                    Some(id) => self.ask(scheduler, Command::CancelTask(id)),
                    None => Ok(()),
                }
            }
            Fault::SwitchStrategy { scheduler, strategy } => {
                self.ask(scheduler, Command::SetStrategy(strategy))
            }
            Fault::RemoveWorker { scheduler, worker } => {
                let id = self.workers[worker].setup.worker.id;
                self.ask(scheduler, Command::RemoveWorker(id))
            }
        }
    }

    pub(super) fn crash_scheduler(&mut self, at: usize) {
        self.note(|| format!("scheduler {at} dies"));
        self.watch.died(self.now, at);
        let node = &mut self.schedulers[at];
        node.machine = None;
        node.life += 1;
        node.wake_at = None;
    }

    pub(super) fn ask(&mut self, scheduler: usize, command: Command) -> Result<(), Violation> {
        self.step_scheduler(scheduler, SchedulerEvent::Asked { request: u64::MAX, command })
    }
}
