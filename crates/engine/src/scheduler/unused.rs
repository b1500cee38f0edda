//! Why a worker is given nothing at present, to be read.

use hypha_market::HeldLease;
use hypha_model::{RefusalKind, Requirement, TaskId, TaskState, Time, WorkerId};

use super::blame::LeftAlone;
use super::workers::WorkerState;
use super::{Scheduler, Slot};

/// Why a worker is given nothing at present.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unused {
    /// It is being removed: it finishes what it has.
    Removed,
    /// It has not granted a lease yet.
    NotLeased {
        /// Why it did not, if it said so.
        refused: Option<RefusalKind>,
    },
    /// It cannot be relied on since then.
    Lost {
        /// Since when.
        since: Time,
        /// What was noticed.
        reason: &'static str,
    },
    /// It could not be reached, or what its executors forward to could not, and has not been found well since.
    Unreached {
        /// Since when.
        since: Time,
    },
    /// It owes an answer, and has said nothing since then.
    Late {
        /// Since when.
        since: Time,
    },
    /// Other schedulers hold so much of it that what is left is too little.
    LeasedToOthers,
    /// It has failed too often in a row, or all of its executors have that would do.
    LeftAlone(LeftAlone),
}

/// Workers that are looked at for the reason why a task is stranded: it is asked for by many at once when a server that
/// many use has gone, and everybody else waits meanwhile.
const MAX_LOOKED_AT: usize = 1_000;

/// A task that nobody would take at present, not even when its turn comes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stranded {
    /// What is wrong with one of those who otherwise would, if one of them is known.
    pub why: Option<Unused>,
    /// Since when all of them are away, if they are.
    pub since: Option<Time>,
}

impl Scheduler {
    /// Whether a task waits, and nobody would take it at present. One that waits for whoever is busy is not stranded.
    pub fn stranded(&self, task: TaskId) -> Option<Stranded> {
        let task = self.task(*self.by_id.get(&task)?)?;
        let wanted = &task.accepted.spec.requirement;
        if task.state != TaskState::Queued || self.placement.is_served(wanted) {
            return None;
        }
        let workers = self.workers.iter().flatten().take(MAX_LOOKED_AT);
        let reasons = workers.filter_map(|state| {
            wanted.satisfied_by(&state.worker).ok()?;
            self.why_unused(state.worker.id, Some(wanted))
        });
        let reasons: Vec<Unused> = reasons.collect();
        let gone: Option<Vec<Time>> = reasons.iter().map(Unused::away_since).collect();
        // The last that went may be the first to come back.
        let since = gone.and_then(|times| times.into_iter().max());
        Some(Stranded { why: reasons.into_iter().next(), since })
    }

    /// Why a worker is given nothing; with a requirement, why it is given nothing that asks for this.
    pub fn why_unused(&self, worker: WorkerId, wanted: Option<&Requirement>) -> Option<Unused> {
        let state = self.known_state(worker)?;
        let too_little = || {
            let portion = state.portion.as_ref()?;
            portion.refuses(&state.worker, wanted?).map(|_| Unused::LeasedToOthers)
        };
        state.unused().or_else(too_little).or_else(|| {
            let executors: Vec<usize> = match wanted {
                Some(requirement) => requirement.executors_of(&state.worker).collect(),
                None => (0..state.worker.executors.len()).collect(),
            };
            let all: Option<Vec<Unused>> =
                executors.into_iter().map(|at| state.executor_unused(at)).collect();
            // Whichever is tried first again: what is away may be back at any time.
            all?.into_iter().min_by_key(|unused| match unused {
                Unused::LeftAlone(alone) => Some(alone.until),
                _ => None,
            })
        })
    }

    /// Why an executor of a worker is given nothing although the worker is used, by its place in the worker's list.
    pub fn why_executor_unused(&self, worker: WorkerId, executor: usize) -> Option<Unused> {
        self.known_state(worker)?.executor_unused(executor)
    }

    fn known_state(&self, worker: WorkerId) -> Option<&WorkerState> {
        let Slot(slot) = *self.slot_of.get(&worker)?;
        self.workers.get(slot as usize)?.as_ref()
    }
}

impl Unused {
    /// Since when it is not there, if that is so.
    fn away_since(&self) -> Option<Time> {
        match self {
            Unused::Lost { since, .. } | Unused::Unreached { since } | Unused::Late { since } => {
                Some(*since)
            }
            Unused::Removed
            | Unused::NotLeased { .. }
            | Unused::LeasedToOthers
            | Unused::LeftAlone(_) => None,
        }
    }
}

impl WorkerState {
    /// Why nothing at all is given to it.
    pub(super) fn unused(&self) -> Option<Unused> {
        if self.draining {
            return Some(Unused::Removed);
        }
        if self.replaced {
            return Some(Unused::NotLeased { refused: None });
        }
        if let HeldLease::Requested { refused, .. } = self.lease {
            let lost = self.lost.and_then(|lost| Some((lost.since, lost.reason?)));
            return Some(match lost {
                Some((since, reason)) => Unused::Lost { since, reason },
                None => Unused::NotLeased { refused },
            });
        }
        if self.portion.as_ref().is_some_and(|portion| portion.slots.iter().all(|it| *it == 0)) {
            return Some(Unused::LeasedToOthers);
        }
        if self.late {
            return Some(Unused::Late { since: self.heard });
        }
        self.blames.own().cloned().map(Unused::LeftAlone)
    }

    fn executor_unused(&self, executor: usize) -> Option<Unused> {
        let alone = || self.blames.of_executor(executor).cloned().map(Unused::LeftAlone);
        self.blames.away(executor).map(|since| Unused::Unreached { since }).or_else(alone)
    }
}
