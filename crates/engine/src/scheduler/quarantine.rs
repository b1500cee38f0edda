//! Failure streaks of workers and executors, and the quarantine that follows them.
//!
//! A program that fails on its input is no evidence against the machine: a failed run counts against its executor, and
//! only attempts that the worker itself loses count against the worker. An error that a back end answers is weak
//! evidence, most often about the request: it takes more of them, and no success in between.

use std::collections::VecDeque;
use std::sync::Arc;

use hypha_model::{TaskId, Time, Worker};
use hypha_placement::WorkerSlot;

use super::unreachable::Unreachable;
use super::{Scheduler, WorkerState};

/// Tasks that failed at an executor and are remembered, so that each counts once. If more of them fail in turn, the
/// fault is more likely in the executor than in the tasks.
const MAX_COUNTED: usize = 16;
/// After how many tasks in a row that a back end answered with an error its executor is quarantined, although the back
/// end passes its health check. More than a client sends to find out what a model can do, such as images and
/// embeddings; less than `MAX_COUNTED`, so that each of these tasks is remembered.
const MAX_ERRORS_ANSWERED: u32 = 10;
/// How often the quarantine is doubled: up to 16 times the first.
const MAX_DOUBLINGS: u32 = 4;
/// The part of the last failure that is kept with a quarantine: enough to recognise it.
const MAX_LAST_FAILURE_CHARS: usize = 200;

/// The failure streaks of a worker and its executors.
#[derive(Default)]
pub(super) struct FailureStreaks {
    own: FailureStreak,
    executors: Vec<FailureStreak>,
}

/// The consecutive failures of a worker or an executor.
#[derive(Clone, Default)]
struct FailureStreak {
    failures: Tally,
    /// The errors that the back end answered.
    errors_answered: Tally,
    /// How often in a row it was quarantined.
    quarantines: u32,
    quarantine: Option<Quarantine>,
    /// It is unreachable, and no health check has passed since. Not a failure, but it gets no tasks either.
    unreachable: Option<Unreachable>,
}

/// How many tasks failed in a row.
#[derive(Clone, Default)]
struct Tally {
    count: u32,
    /// The tasks that were counted last.
    counted: VecDeque<TaskId>,
}

/// Until when a worker or an executor gets no tasks, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quarantine {
    /// Until then.
    pub until: Time,
    /// How many failures in a row there were.
    pub failures: u32,
    /// The last of them.
    pub last_failure: Arc<str>,
}

/// What a failure counts against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FaultOrigin {
    Worker,
    /// By its index in the worker's list.
    Executor(usize),
    /// The back end of this executor, which answered with an error.
    BackEnd(usize),
}

impl FailureStreaks {
    pub(super) fn none(worker: &Worker) -> FailureStreaks {
        FailureStreaks {
            own: FailureStreak::default(),
            executors: vec![FailureStreak::default(); worker.executors.len()],
        }
    }

    /// The streaks of a worker whose description `old` is replaced by `new`: an executor of the same class and name is
    /// the same.
    fn carried_over(mut self, old: &Worker, new: &Worker) -> FailureStreaks {
        let inherited = |executor: &hypha_model::Executor| {
            let is_it = |other: &hypha_model::Executor| {
                (other.class, &other.name) == (executor.class, &executor.name)
            };
            let at = old.executors.iter().position(is_it);
            at.and_then(|at| self.executors.get_mut(at)).map(std::mem::take).unwrap_or_default()
        };
        let executors = new.executors.iter().map(inherited).collect();
        FailureStreaks { own: self.own, executors }
    }

    /// The quarantine of the worker as a whole.
    pub(super) fn own(&self) -> Option<&Quarantine> {
        self.own.quarantine.as_ref()
    }

    /// The quarantine of an executor.
    pub(super) fn of_executor(&self, executor: usize) -> Option<&Quarantine> {
        self.executors.get(executor)?.quarantine.as_ref()
    }

    /// Since when an executor is unreachable.
    pub(super) fn unreachable_since(&self, executor: usize) -> Option<Time> {
        Some(self.unreachable(executor)?.since)
    }

    /// That an executor is unreachable, if it is.
    pub(super) fn unreachable(&self, executor: usize) -> Option<Unreachable> {
        self.executors.get(executor)?.unreachable
    }

    pub(super) fn unreachable_mut(&mut self, executor: usize) -> Option<&mut Option<Unreachable>> {
        Some(&mut self.executors.get_mut(executor)?.unreachable)
    }

    /// Whether an executor gets no tasks: it is quarantined or unreachable.
    pub(super) fn is_suspended(&self, executor: usize) -> bool {
        self.of_executor(executor).is_some() || self.unreachable_since(executor).is_some()
    }

    /// When the first quarantine ends.
    pub(super) fn next_end(&self) -> Option<Time> {
        let all = self.executors.iter().chain([&self.own]);
        all.filter_map(|streak| Some(streak.quarantine.as_ref()?.until)).min()
    }

    fn of(&mut self, origin: FaultOrigin) -> Option<&mut FailureStreak> {
        match origin {
            FaultOrigin::Worker => Some(&mut self.own),
            FaultOrigin::Executor(at) | FaultOrigin::BackEnd(at) => self.executors.get_mut(at),
        }
    }
}

impl Tally {
    /// Counts the failure of a task, once: a task that fails repeatedly on its own input is no more evidence than the
    /// first time. Returns whether it was counted.
    fn count_once(&mut self, task: TaskId) -> bool {
        if self.counted.contains(&task) {
            return false;
        }
        if self.counted.len() >= MAX_COUNTED {
            self.counted.pop_front();
        }
        self.counted.push_back(task);
        self.count = self.count.saturating_add(1);
        true
    }

    /// Keeps the memory for the next failures.
    fn clear(&mut self) {
        self.count = 0;
        self.counted.clear();
    }
}

impl FailureStreak {
    /// Clears the failures. Returns whether it was quarantined for them.
    fn clear(&mut self) -> bool {
        self.failures.clear();
        self.errors_answered.clear();
        self.quarantines = 0;
        self.quarantine.take().is_some()
    }
}

impl Scheduler {
    /// Whether another executor that is in use serves all models that this one serves.
    fn has_alternative(&self, slot: WorkerSlot, executor: usize) -> bool {
        let state = |at: usize| self.workers.get(at).and_then(Option::as_ref);
        let of = state(slot.0 as usize).and_then(|state| state.worker.executors.get(executor));
        let Some(own) = of else { return false };
        let serves_as_much = |other: &hypha_model::Executor| {
            let serves_any = other.models.is_empty();
            let has_all = !own.models.is_empty() && own.models.iter().all(|m| other.serves(m));
            other.class == own.class && (serves_any || has_all)
        };
        (0..self.workers.len()).any(|at| {
            let other = WorkerSlot(at as u32);
            let Some(known) = state(at).filter(|known| known.unavailability().is_none()) else {
                return false;
            };
            known.worker.executors.iter().enumerate().any(|(index, it)| {
                let is_own = (other, index) == (slot, executor);
                !is_own && serves_as_much(it) && !self.placement.is_suspended(other, index)
            })
        })
    }

    /// Counts a failure. A worker or an executor with too many in a row is quarantined for a while, then used again.
    pub(super) fn record_failure(
        &mut self,
        now: Time,
        slot: WorkerSlot,
        origin: FaultOrigin,
        (task, reason): (TaskId, &str),
    ) {
        let Some(Some(state)) = self.workers.get_mut(slot.0 as usize) else { return };
        state.is_unsaved = true;
        let Some(streak) = state.streaks.of(origin) else { return };
        let max_failures = self.settings.max_consecutive_failures;
        let (tally, max) = match origin {
            FaultOrigin::Worker | FaultOrigin::Executor(_) => (&mut streak.failures, max_failures),
            FaultOrigin::BackEnd(_) => {
                (&mut streak.errors_answered, max_failures.max(MAX_ERRORS_ANSWERED))
            }
        };
        match origin {
            // All losses of a worker before its next message count as one already.
            FaultOrigin::Worker => tally.count = tally.count.saturating_add(1),
            _ if !tally.count_once(task) => return,
            _ => {}
        }
        let failures = tally.count;
        if failures < max || streak.quarantine.is_some() {
            return;
        }
        // Quarantine sends tasks elsewhere. Without an elsewhere, it would only take the model away from clients whose
        // requests the back end can answer.
        if let FaultOrigin::BackEnd(at) = origin
            && !self.has_alternative(slot, at)
        {
            return;
        }
        let Some(Some(state)) = self.workers.get_mut(slot.0 as usize) else { return };
        let Some(streak) = state.streaks.of(origin) else { return };
        let doublings = streak.quarantines.min(MAX_DOUBLINGS);
        streak.quarantines = streak.quarantines.saturating_add(1);
        let until = now + self.settings.quarantine.times(1 << doublings);
        let last_failure = reason.chars().take(MAX_LAST_FAILURE_CHARS).collect::<String>().into();
        streak.quarantine = Some(Quarantine { until, failures, last_failure });
        self.counts.quarantines += 1;
        match origin {
            FaultOrigin::Worker => {
                self.placement.set_available(slot, false, now);
                self.release_bound(now, slot);
            }
            FaultOrigin::Executor(at) | FaultOrigin::BackEnd(at) => {
                self.update_suspension(now, slot, at);
            }
        }
        self.arm_worker(slot);
    }

    /// An executor, and with it its worker, has completed a task: their failures are cleared, and their quarantines
    /// end.
    pub(super) fn clear_failures(&mut self, now: Time, slot: WorkerSlot, executor: Option<usize>) {
        let Some(Some(state)) = self.workers.get_mut(slot.0 as usize) else { return };
        let own = state.streaks.own.clear();
        if let Some(at) = executor
            && state.streaks.of(FaultOrigin::Executor(at)).is_some_and(FailureStreak::clear)
        {
            self.update_suspension(now, slot, at);
        }
        if own {
            self.update_availability(now, slot);
        }
    }

    /// Whether a loss counts against the worker. A worker that dies fails once, however many attempts it had: all
    /// losses before its next message count as one.
    pub(super) fn count_loss(&mut self, slot: Option<WorkerSlot>) -> bool {
        let state = slot.and_then(|slot| self.workers.get_mut(slot.0 as usize)?.as_mut());
        state.is_some_and(|state| !std::mem::replace(&mut state.loss_counted, true))
    }

    /// Ends the quarantines whose time has come.
    pub(super) fn end_quarantines(&mut self, now: Time, slot: WorkerSlot) {
        let Some(Some(state)) = self.workers.get_mut(slot.0 as usize) else { return };
        if state.streaks.next_end().is_none_or(|end| end > now) {
            return;
        }
        let over = |streak: &mut FailureStreak| {
            streak.quarantine.take_if(|quarantine| quarantine.until <= now).is_some()
        };
        let own = over(&mut state.streaks.own);
        let executors = state.streaks.executors.iter_mut().enumerate();
        let ended: Vec<usize> =
            executors.filter_map(|(at, streak)| over(streak).then_some(at)).collect();
        for at in ended {
            self.update_suspension(now, slot, at);
        }
        if own {
            self.update_availability(now, slot);
        }
    }

    /// A worker with a new description keeps its failure streaks.
    pub(super) fn inherit_streaks(
        &mut self,
        now: Time,
        slot: WorkerSlot,
        streaks: FailureStreaks,
        old: &Worker,
    ) {
        let Some(Some(state)) = self.workers.get_mut(slot.0 as usize) else { return };
        state.streaks = streaks.carried_over(old, &state.worker);
        for at in 0..state.worker.executors.len() {
            self.update_suspension(now, slot, at);
        }
        self.arm_worker(slot);
    }

    /// Tells placement whether an executor is suspended.
    pub(super) fn update_suspension(&mut self, now: Time, slot: WorkerSlot, executor: usize) {
        let Some(Some(state)) = self.workers.get(slot.0 as usize) else { return };
        let is_suspended = state.streaks.is_suspended(executor);
        if is_suspended == self.placement.is_suspended(slot, executor) {
            return;
        }
        self.placement.set_suspended(slot, executor, is_suspended, now);
        if is_suspended {
            // A list of references: cheap to make, however long it is.
            let bound = self.placement.bound_to(slot);
            self.release_unschedulable(now, slot, bound.into_iter());
        }
    }

    /// Compares which executors are suspended here and in placement.
    pub(super) fn check_suspensions(
        &self,
        slot: WorkerSlot,
        state: &WorkerState,
    ) -> Result<(), String> {
        for at in 0..state.worker.executors.len() {
            let (here, there) =
                (state.streaks.is_suspended(at), self.placement.is_suspended(slot, at));
            if here != there {
                return Err(format!(
                    "executor {at} of {slot:?} is suspended: {here} here and {there} in placement"
                ));
            }
        }
        Ok(())
    }
}
