//! Views of why a worker gets no tasks at present.

use hypha_market::{HeldLease, OwnerReason};
use hypha_model::{RefusalKind, Requirement, TaskId, TaskState, Time, WorkerId};

use super::quarantine::Quarantine;
use super::workers::WorkerState;
use super::{Scheduler, WorkerSlot};

/// Why a worker gets no tasks at present.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unavailability {
    /// It is being removed: it finishes what it has.
    Draining,
    /// It has not granted a lease yet.
    NotLeased {
        /// Why it refused, if it did.
        refused: Option<RefusalKind>,
    },
    /// It cannot be relied on since then.
    Lost {
        /// Since when.
        since: Time,
        /// Why.
        reason: &'static str,
    },
    /// The back ends of its executors are unreachable, and no health check has passed since.
    Unreachable {
        /// Since when.
        since: Time,
    },
    /// Its owner lets nothing new begin.
    Owner {
        /// Since when; the back ends may have been unreachable before.
        since: Time,
        /// Why.
        reason: OwnerReason,
    },
    /// It has not answered a message in time, and has sent nothing since then.
    Unresponsive {
        /// Since when.
        since: Time,
    },
    /// Other schedulers hold so much of it that too little is left.
    LeasedToOthers,
    /// It has failed too often in a row, or all of its executors have that could run the task.
    Quarantined(Quarantine),
}

/// Workers that are examined for the reason why a task is unschedulable: many clients request it at once when a popular
/// back end becomes unreachable, and all other work waits meanwhile.
const MAX_WORKERS_EXAMINED: usize = 1_000;

/// A queued task that no worker would take at present, even at the head of the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unschedulable {
    /// Why one of the workers that could otherwise run it is unavailable, if there is one.
    pub why: Option<Unavailability>,
    /// Since when all of them are unreachable, if they are.
    pub since: Option<Time>,
}

impl Scheduler {
    /// Whether a task is queued and no worker would take it at present. A task that waits for a busy worker is
    /// schedulable.
    pub fn unschedulable(&self, task: TaskId) -> Option<Unschedulable> {
        let task = self.task(*self.by_id.get(&task)?)?;
        let wanted = &task.accepted.spec.requirement;
        if task.state != TaskState::Queued || self.placement.is_schedulable(wanted) {
            return None;
        }
        let workers = self.workers.iter().flatten().take(MAX_WORKERS_EXAMINED);
        let reasons = workers.filter_map(|state| {
            wanted.satisfied_by(&state.worker).ok()?;
            self.unavailability_of(state.worker.id, Some(wanted))
        });
        let reasons: Vec<Unavailability> = reasons.collect();
        let gone: Option<Vec<Time>> =
            reasons.iter().map(Unavailability::unreachable_since).collect();
        // The last to become unreachable may be the first to come back.
        let since = gone.and_then(|times| times.into_iter().max());
        Some(Unschedulable { why: reasons.into_iter().next(), since })
    }

    /// Why a worker gets no tasks; with a requirement, why it gets none with this requirement.
    pub fn unavailability_of(
        &self,
        worker: WorkerId,
        wanted: Option<&Requirement>,
    ) -> Option<Unavailability> {
        let state = self.known_state(worker)?;
        let too_little = || {
            let portion = state.portion.as_ref()?;
            portion.refusal_for(&state.worker, wanted?).map(|_| Unavailability::LeasedToOthers)
        };
        state.unavailability().or_else(too_little).or_else(|| {
            let executors: Vec<usize> = match wanted {
                Some(requirement) => requirement.executors_of(&state.worker).collect(),
                None => (0..state.worker.executors.len()).collect(),
            };
            let all: Option<Vec<Unavailability>> =
                executors.into_iter().map(|at| state.executor_unavailability(at)).collect();
            // The executor that is used again first: an unreachable one may be back at any time.
            all?.into_iter().min_by_key(|reason| match reason {
                Unavailability::Quarantined(quarantine) => Some(quarantine.until),
                _ => None,
            })
        })
    }

    /// Why an executor of an available worker gets no tasks, by its index in the worker's list.
    pub fn executor_unavailability_of(
        &self,
        worker: WorkerId,
        executor: usize,
    ) -> Option<Unavailability> {
        self.known_state(worker)?.executor_unavailability(executor)
    }

    fn known_state(&self, worker: WorkerId) -> Option<&WorkerState> {
        let WorkerSlot(slot) = *self.slot_of.get(&worker)?;
        self.workers.get(slot as usize)?.as_ref()
    }
}

impl Unavailability {
    /// Since when the worker or its back end does not answer, if that is the reason.
    fn unreachable_since(&self) -> Option<Time> {
        match self {
            Unavailability::Lost { since, .. }
            | Unavailability::Unreachable { since }
            | Unavailability::Owner { since, .. }
            | Unavailability::Unresponsive { since } => Some(*since),
            Unavailability::Draining
            | Unavailability::NotLeased { .. }
            | Unavailability::LeasedToOthers
            | Unavailability::Quarantined(_) => None,
        }
    }
}

impl WorkerState {
    /// Why it gets no tasks at all.
    pub(super) fn unavailability(&self) -> Option<Unavailability> {
        if self.draining {
            return Some(Unavailability::Draining);
        }
        if self.replaced {
            return Some(Unavailability::NotLeased { refused: None });
        }
        if let HeldLease::Requested { refused, .. } = self.lease {
            if refused == Some(RefusalKind::Unavailable)
                && let Some(owner @ Unavailability::Owner { .. }) = self.unreachability(0)
            {
                return Some(owner);
            }
            // The terms of its owner outlast why it was lost.
            if let Some(RefusalKind::NotServed | RefusalKind::Price) = refused {
                return Some(Unavailability::NotLeased { refused });
            }
            let lost = self.lost.and_then(|lost| Some((lost.since, lost.reason?)));
            return Some(match lost {
                Some((since, reason)) => Unavailability::Lost { since, reason },
                None => Unavailability::NotLeased { refused },
            });
        }
        if self.portion.as_ref().is_some_and(|portion| portion.slots.iter().all(|it| *it == 0)) {
            return Some(Unavailability::LeasedToOthers);
        }
        if self.is_unresponsive {
            return Some(Unavailability::Unresponsive { since: self.last_heard });
        }
        self.streaks.own().cloned().map(Unavailability::Quarantined)
    }

    fn executor_unavailability(&self, executor: usize) -> Option<Unavailability> {
        let quarantined =
            || self.streaks.of_executor(executor).cloned().map(Unavailability::Quarantined);
        self.unreachability(executor).or_else(quarantined)
    }

    fn unreachability(&self, executor: usize) -> Option<Unavailability> {
        let unreachable = self.streaks.unreachable(executor)?;
        let since = unreachable.since;
        Some(match unreachable.owner {
            Some(reason) => Unavailability::Owner { since, reason },
            None => Unavailability::Unreachable { since },
        })
    }
}
