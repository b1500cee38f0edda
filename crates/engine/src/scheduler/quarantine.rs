//! Who is to blame for an attempt that gave no result, and who is left alone for a while because of it.
//!
//! A program that fails on its input says nothing about the machine: what an executor does badly counts against that
//! executor, and only what the worker itself loses counts against the worker.

use std::collections::VecDeque;
use std::sync::Arc;

use hypha_model::{TaskId, Time, Worker};
use hypha_placement::WorkerSlot;

use super::unreachable::Unreachable;
use super::{Scheduler, WorkerState};

/// Tasks that an executor failed and that are remembered, so that each counts once. With more of them in turn than this,
/// it is more likely the executor than the tasks.
const MAX_COUNTED: usize = 16;
/// How often the pause is doubled: up to 16 times the first.
const MAX_DOUBLINGS: u32 = 4;
/// The part of the last failure that is kept with whoever is left alone: enough to recognise it.
const MAX_LAST_FAILURE_CHARS: usize = 200;

/// What a worker and its executors are blamed for.
#[derive(Default)]
pub(super) struct FailureStreaks {
    own: FailureStreak,
    executors: Vec<FailureStreak>,
}

/// How often in a row somebody has failed.
#[derive(Clone, Default)]
struct FailureStreak {
    failures: u32,
    /// The tasks that were counted last.
    counted: VecDeque<TaskId>,
    /// How often in a row it was left alone.
    quarantines: u32,
    quarantine: Option<Quarantine>,
    /// It could not be reached, and has not been found well since. No blame, but as good a reason to give it nothing.
    unreachable: Option<Unreachable>,
}

/// Until when a worker or an executor is given nothing, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quarantine {
    /// Until then.
    pub until: Time,
    /// How many failures in a row there were.
    pub failures: u32,
    /// The last of them.
    pub last_failure: Arc<str>,
}

/// Who failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FaultOrigin {
    Worker,
    /// By its place in the worker's list.
    Executor(usize),
}

impl FailureStreaks {
    pub(super) fn none(worker: &Worker) -> FailureStreaks {
        FailureStreaks {
            own: FailureStreak::default(),
            executors: vec![FailureStreak::default(); worker.executors.len()],
        }
    }

    /// Those of a worker that was described as `old` and is described as `new`: an executor of the same name is the
    /// same.
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

    /// Why the worker as a whole is left alone.
    pub(super) fn own(&self) -> Option<&Quarantine> {
        self.own.quarantine.as_ref()
    }

    /// Why an executor is left alone.
    pub(super) fn of_executor(&self, executor: usize) -> Option<&Quarantine> {
        self.executors.get(executor)?.quarantine.as_ref()
    }

    /// Since when an executor cannot be reached.
    pub(super) fn unreachable_since(&self, executor: usize) -> Option<Time> {
        Some(self.executors.get(executor)?.unreachable?.since)
    }

    pub(super) fn unreachable_mut(&mut self, executor: usize) -> Option<&mut Option<Unreachable>> {
        Some(&mut self.executors.get_mut(executor)?.unreachable)
    }

    /// Whether an executor is given nothing, for whatever reason.
    pub(super) fn is_suspended(&self, executor: usize) -> bool {
        self.of_executor(executor).is_some() || self.unreachable_since(executor).is_some()
    }

    /// When the first pause ends.
    pub(super) fn next_end(&self) -> Option<Time> {
        let all = self.executors.iter().chain([&self.own]);
        all.filter_map(|streak| Some(streak.quarantine.as_ref()?.until)).min()
    }

    fn of(&mut self, origin: FaultOrigin) -> Option<&mut FailureStreak> {
        match origin {
            FaultOrigin::Worker => Some(&mut self.own),
            FaultOrigin::Executor(at) => self.executors.get_mut(at),
        }
    }
}

impl FailureStreak {
    /// Whether the failure of this task counts. One that fails again and again on its own input is not more
    /// evidence than the first time.
    fn count_once(&mut self, task: TaskId) -> bool {
        if self.counted.contains(&task) {
            return false;
        }
        if self.counted.len() >= MAX_COUNTED {
            self.counted.pop_front();
        }
        self.counted.push_back(task);
        true
    }

    /// Forgets the failures. Says whether it was left alone for them.
    fn clear(&mut self) -> bool {
        (self.failures, self.quarantines) = (0, 0);
        self.counted.clear();
        self.quarantine.take().is_some()
    }
}

impl Scheduler {
    /// Whoever fails one task after the other is left alone for a while, then tried again.
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
        if origin != FaultOrigin::Worker && !streak.count_once(task) {
            return;
        }
        streak.failures = streak.failures.saturating_add(1);
        if streak.failures < self.settings.max_consecutive_failures || streak.quarantine.is_some() {
            return;
        }
        let doublings = streak.quarantines.min(MAX_DOUBLINGS);
        streak.quarantines = streak.quarantines.saturating_add(1);
        let until = now + self.settings.quarantine.times(1 << doublings);
        let last_failure = reason.chars().take(MAX_LAST_FAILURE_CHARS).collect::<String>().into();
        streak.quarantine = Some(Quarantine { until, failures: streak.failures, last_failure });
        self.counts.quarantines += 1;
        match origin {
            FaultOrigin::Worker => {
                self.placement.set_available(slot, false, now);
                self.release_bound(now, slot);
            }
            FaultOrigin::Executor(at) => self.update_suspension(now, slot, at),
        }
        self.arm_worker(slot);
    }

    /// An executor, and with it its worker, has done well: whoever is left alone need not be tried for that again.
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

    /// Whether a loss counts against the worker. One that dies fails once, however many attempts it had: so does
    /// everything that it loses before it says something again.
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

    /// A worker that describes itself anew is blamed for what it was blamed for before.
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

    /// Tells placement whether an executor is given something.
    pub(super) fn update_suspension(&mut self, now: Time, slot: WorkerSlot, executor: usize) {
        let Some(Some(state)) = self.workers.get(slot.0 as usize) else { return };
        let is_suspended = state.streaks.is_suspended(executor);
        if is_suspended == self.placement.is_suspended(slot, executor) {
            return;
        }
        self.placement.set_suspended(slot, executor, is_suspended, now);
        if is_suspended {
            // A list of numbers: quickly made, however many they are.
            let bound = self.placement.bound_to(slot);
            self.release_unschedulable(now, slot, bound.into_iter());
        }
    }

    /// Compares who is left alone here and in placement.
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
