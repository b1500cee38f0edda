//! Faults, and when they strike.

use hypha_engine::{Command, OwnerState, Scheduler, WorkerEvent, WorkerMachine};
use hypha_model::{Span, Time};
use hypha_placement::Strategy;

use super::World;
use super::event_queue::WorldEvent;
use super::nodes::Node;
use crate::checkers::Violation;

/// A fault, or an action of an operator, at a point in time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// The worker's process dies, with all that it runs. Schedulers notice at once, or not at all.
    KillWorker {
        /// Which.
        worker: usize,
        /// Whether the broken connection is noticed.
        noticed: bool,
    },
    /// The worker's process is asked to stop: it returns its attempts, and ends soon after.
    StopWorker {
        /// Which.
        worker: usize,
    },
    /// Schedulers find the worker again, as discovery does now and then.
    FindWorker {
        /// Which.
        worker: usize,
    },
    /// The process dies in its next step, at this point of it, unnoticed by others.
    Crash {
        /// Which.
        node: Node,
        /// Where in the step.
        point: CrashPoint,
    },
    /// It is started again, if it is down.
    Start {
        /// Which.
        node: Node,
    },
    /// The system's clock is set: a running process does not see it, the next one does.
    SetClock {
        /// Whose.
        node: Node,
        /// Forward, or back, by this many microseconds.
        by_micros: i64,
    },
    /// The worker becomes this many times slower for runs that start from now on.
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
    /// The process of a worker's back end dies, with all that it works on, and is started again.
    KillBackEnd {
        /// Whose.
        worker: usize,
    },
    /// A worker's back end forgets its tasks.
    WipeBackEnd {
        /// Whose.
        worker: usize,
    },
    /// Another connection replaces the one between the two, as a direct one replaces a relayed one.
    ReplaceLink {
        /// Between this scheduler.
        scheduler: usize,
        /// And this worker.
        worker: usize,
    },
    /// The owner of a worker pauses it, uses it, or does not any more.
    ChangeOwner {
        /// Of which worker.
        worker: usize,
        /// What the owner does.
        state: OwnerState,
    },
    /// An operator removes a worker.
    RemoveWorker {
        /// From which scheduler.
        scheduler: usize,
        /// Which.
        worker: usize,
    },
}

/// Where in a commit a process dies. Steps that were collected meanwhile are lost, except immediate effects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashPoint {
    /// Nothing of it is durable, nothing was sent.
    BeforePersist,
    /// All of it is durable, nothing was sent.
    BeforeSend,
    /// All of it is durable, some of it was sent.
    DuringSend,
}

/// All faults of a run.
#[derive(Clone, Debug, Default)]
pub struct FaultSchedule {
    /// Faults at these times.
    pub faults: Vec<(Time, Fault)>,
    /// Between these times, this scheduler and this worker cannot reach each other.
    pub partitions: Vec<(Time, Time, usize, usize)>,
    /// Between these times this node's process is suspended: its messages wait for it, and its connections stay.
    pub freezes: Vec<(Time, Time, Node)>,
    /// Between these times every commit of this node fails.
    pub full_disks: Vec<(Time, Time, Node)>,
    /// A commit takes up to this long, and steps made meanwhile go into the next.
    pub max_commit_time: Span,
    /// Between these times, the back end of this worker has this condition.
    pub back_end_conditions: Vec<(Time, Time, usize, BackEndCondition)>,
    /// Faults that may strike at any time.
    pub probabilities: FaultProbabilities,
}

/// What is wrong with a back end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackEndCondition {
    /// It refuses connections.
    Unreachable,
    /// It accepts connections, and does nothing.
    Hung,
    /// It answers 429 to new work.
    Busy,
    /// It answers 500 to new work.
    Failing,
}

/// The probabilities of random faults.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FaultProbabilities {
    /// Runs that end with an error.
    pub executor_error: f64,
    /// All of these errors may be retried; otherwise one in five is reported as final, and in one in ten nothing ran.
    pub errors_are_retried: bool,
    /// Results that do not match their digest.
    pub corruption: f64,
    /// Ends that an instance reports late, twice or not at all.
    pub callbacks: f64,
}

impl FaultSchedule {
    /// Whether the two cannot reach each other now.
    pub(super) fn is_partitioned(&self, scheduler: usize, worker: usize, now: Time) -> bool {
        self.partitions
            .iter()
            .any(|(from, to, s, w)| *s == scheduler && *w == worker && (*from..*to).contains(&now))
    }

    /// What is wrong with the back end of a worker, and until when.
    pub(super) fn back_end_condition(
        &self,
        worker: usize,
        now: Time,
    ) -> Option<(BackEndCondition, Time)> {
        let is_now = |(from, to, whose, _): &&(Time, Time, usize, BackEndCondition)| {
            *whose == worker && (*from..*to).contains(&now)
        };
        let first = self.back_end_conditions.iter().find(is_now);
        first.map(|(_, until, _, condition)| (*condition, *until))
    }

    /// When the node resumes, if its process is suspended now.
    pub(super) fn frozen_until(&self, node: Node, now: Time) -> Option<Time> {
        end_of(&self.freezes, node, now)
    }

    /// When the node's disk works again, if it is full now.
    pub(super) fn full_until(&self, node: Node, now: Time) -> Option<Time> {
        end_of(&self.full_disks, node, now)
    }

    /// Whether a reply may be lost, so that clients retry.
    pub(super) fn clients_retry(&self) -> bool {
        let crashes = |(_, fault): &(Time, Fault)| {
            matches!(fault, Fault::Crash { node: Node::Scheduler(_), .. })
        };
        let of_scheduler = |(_, _, node): &(Time, Time, Node)| matches!(node, Node::Scheduler(_));
        self.faults.iter().any(crashes) || self.full_disks.iter().any(of_scheduler)
    }
}

fn end_of(periods: &[(Time, Time, Node)], node: Node, now: Time) -> Option<Time> {
    let of_node =
        periods.iter().filter(|(from, to, who)| *who == node && (*from..*to).contains(&now));
    of_node.map(|(_, to, _)| *to).max()
}

/// How long after a death a broken connection is noticed.
const NOTICED_AFTER: Span = Span::from_millis(5);

/// How long a worker that is asked to stop waits for an answer.
const LEAVE_TIME: Span = Span::from_millis(200);

impl World {
    pub(super) fn inject(&mut self, fault: Fault) -> Result<(), Violation> {
        match fault {
            Fault::KillWorker { worker, noticed } => {
                if !self.workers[worker].is_up {
                    return Ok(());
                }
                self.end_process::<WorkerMachine>(worker);
                if noticed {
                    for scheduler in self.workers[worker].setup.known_to.clone() {
                        let incarnation = self.schedulers[scheduler].incarnation;
                        let event = WorldEvent::Disconnected { scheduler, incarnation, worker };
                        self.events.add(self.now + NOTICED_AFTER, event);
                    }
                }
                Ok(())
            }
            Fault::StopWorker { worker } => {
                let kill = WorldEvent::Fault(Fault::KillWorker { worker, noticed: true });
                self.events.add(self.now + LEAVE_TIME, kill);
                self.tell::<WorkerMachine>(worker, WorkerEvent::LeaveRequested)
            }
            Fault::FindWorker { worker } => {
                if self.is_http(worker) && self.may_start(worker) {
                    self.start::<WorkerMachine>(worker)?;
                }
                self.announce(worker);
                Ok(())
            }
            Fault::KillBackEnd { worker } => {
                self.kill_back_end(worker);
                Ok(())
            }
            Fault::WipeBackEnd { worker } => {
                self.wipe_back_end(worker);
                Ok(())
            }
            Fault::ReplaceLink { scheduler, worker } => {
                self.replace_link(scheduler, worker);
                Ok(())
            }
            Fault::Crash { node, point } => {
                match node {
                    Node::Scheduler(at) => self.schedulers[at].crash = Some(point),
                    Node::Worker(at) => self.workers[at].crash = Some(point),
                }
                Ok(())
            }
            Fault::Start { node: Node::Scheduler(at) } => self.start::<Scheduler>(at),
            Fault::Start { node: Node::Worker(at) } => match self.may_start(at) {
                true => self.start::<WorkerMachine>(at),
                false => Ok(()),
            },
            Fault::SetClock { node: Node::Scheduler(at), by_micros } => {
                self.schedulers[at].clock_set_by += by_micros;
                Ok(())
            }
            Fault::SetClock { node: Node::Worker(at), by_micros } => {
                self.workers[at].clock_set_by += by_micros;
                Ok(())
            }
            Fault::SlowWorker { worker, factor } => {
                self.executors[worker].slowness = factor;
                Ok(())
            }
            Fault::CancelTask { index } => self.cancel(index),
            Fault::SwitchStrategy { scheduler, strategy } => {
                self.operator_request(scheduler, Command::SetStrategy(strategy))
            }
            Fault::ChangeOwner { worker, state } => {
                self.workers[worker].setup.owner = state;
                self.owner_changed(worker);
                self.tell::<WorkerMachine>(worker, WorkerEvent::OwnerChanged(state))
            }
            Fault::RemoveWorker { scheduler, worker } => {
                let id = self.workers[worker].setup.worker.id;
                self.operator_request(scheduler, Command::RemoveWorker(id))
            }
        }
    }
}
