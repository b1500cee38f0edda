//! Who is to blame for an attempt that gave no result, and who is left alone for a while because of it.
//!
//! A program that fails on its input says nothing about the machine: what an executor does badly counts against that
//! executor, and only what the worker itself loses counts against the worker.

use std::collections::VecDeque;
use std::sync::Arc;

use hypha_model::{TaskId, Time, Worker};
use hypha_placement::Slot;

use super::away::Away;
use super::{Scheduler, WorkerState};

/// Tasks that an executor failed and that are remembered, so that each counts once. With more of them in turn than this,
/// it is more likely the executor than the tasks.
const MAX_COUNTED: usize = 16;
/// How often the pause is doubled: up to 16 times the first.
const MAX_DOUBLINGS: u32 = 4;
/// The part of the last failure that is kept with whoever is left alone: enough to recognise it.
const MAX_LAST_CHARS: usize = 200;

/// What a worker and its executors are blamed for.
#[derive(Default)]
pub(super) struct Blames {
    own: Blame,
    executors: Vec<Blame>,
}

/// How often in a row somebody has failed.
#[derive(Clone, Default)]
struct Blame {
    failures: u32,
    /// The tasks that were counted last.
    counted: VecDeque<TaskId>,
    /// How often in a row it was left alone.
    pauses: u32,
    left_alone: Option<LeftAlone>,
    /// It could not be reached, and has not been found well since. No blame, but as good a reason to give it nothing.
    away: Option<Away>,
}

/// Until when a worker or an executor is given nothing, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftAlone {
    /// Until then.
    pub until: Time,
    /// How many failures in a row there were.
    pub failures: u32,
    /// The last of them.
    pub last: Arc<str>,
}

/// Who failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Culprit {
    Worker,
    /// By its place in the worker's list.
    Executor(usize),
}

impl Blames {
    pub(super) fn none(worker: &Worker) -> Blames {
        Blames { own: Blame::default(), executors: vec![Blame::default(); worker.executors.len()] }
    }

    /// Those of a worker that was described as `old` and is described as `new`: an executor of the same name is the
    /// same.
    fn of_the_same(mut self, old: &Worker, new: &Worker) -> Blames {
        let inherited = |executor: &hypha_model::Executor| {
            let is_it = |other: &hypha_model::Executor| {
                (other.class, &other.name) == (executor.class, &executor.name)
            };
            let at = old.executors.iter().position(is_it);
            at.and_then(|at| self.executors.get_mut(at)).map(std::mem::take).unwrap_or_default()
        };
        let executors = new.executors.iter().map(inherited).collect();
        Blames { own: self.own, executors }
    }

    /// Why the worker as a whole is left alone.
    pub(super) fn own(&self) -> Option<&LeftAlone> {
        self.own.left_alone.as_ref()
    }

    /// Why an executor is left alone.
    pub(super) fn of_executor(&self, executor: usize) -> Option<&LeftAlone> {
        self.executors.get(executor)?.left_alone.as_ref()
    }

    /// Since when an executor cannot be reached.
    pub(super) fn away(&self, executor: usize) -> Option<Time> {
        Some(self.executors.get(executor)?.away?.since)
    }

    pub(super) fn away_mut(&mut self, executor: usize) -> Option<&mut Option<Away>> {
        Some(&mut self.executors.get_mut(executor)?.away)
    }

    /// Whether an executor is given nothing, for whatever reason.
    pub(super) fn rests(&self, executor: usize) -> bool {
        self.of_executor(executor).is_some() || self.away(executor).is_some()
    }

    /// When the first pause ends.
    pub(super) fn next_end(&self) -> Option<Time> {
        let all = self.executors.iter().chain([&self.own]);
        all.filter_map(|blame| Some(blame.left_alone.as_ref()?.until)).min()
    }

    fn of(&mut self, culprit: Culprit) -> Option<&mut Blame> {
        match culprit {
            Culprit::Worker => Some(&mut self.own),
            Culprit::Executor(at) => self.executors.get_mut(at),
        }
    }
}

impl Blame {
    /// Whether the failure of this task counts. One that fails again and again on its own input is not more
    /// evidence than the first time.
    fn counts(&mut self, task: TaskId) -> bool {
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
        (self.failures, self.pauses) = (0, 0);
        self.counted.clear();
        self.left_alone.take().is_some()
    }
}

impl Scheduler {
    /// Whoever fails one task after the other is left alone for a while, then tried again.
    pub(super) fn judge(
        &mut self,
        now: Time,
        slot: Slot,
        culprit: Culprit,
        (task, reason): (TaskId, &str),
    ) {
        let Some(Some(state)) = self.workers.get_mut(slot.0 as usize) else { return };
        state.changed = true;
        let Some(blame) = state.blames.of(culprit) else { return };
        if culprit != Culprit::Worker && !blame.counts(task) {
            return;
        }
        blame.failures = blame.failures.saturating_add(1);
        if blame.failures < self.settings.max_consecutive_failures || blame.left_alone.is_some() {
            return;
        }
        let doublings = blame.pauses.min(MAX_DOUBLINGS);
        blame.pauses = blame.pauses.saturating_add(1);
        let until = now + self.settings.quarantine.times(1 << doublings);
        let last = reason.chars().take(MAX_LAST_CHARS).collect::<String>().into();
        blame.left_alone = Some(LeftAlone { until, failures: blame.failures, last });
        self.counts.quarantines += 1;
        match culprit {
            Culprit::Worker => {
                self.placement.set_available(slot, false, now);
                self.release_bound(now, slot);
            }
            Culprit::Executor(at) => self.rest(now, slot, at),
        }
        self.arm_worker(slot);
    }

    /// An executor, and with it its worker, has done well: whoever is left alone need not be tried for that again.
    pub(super) fn absolve(&mut self, now: Time, slot: Slot, executor: Option<usize>) {
        let Some(Some(state)) = self.workers.get_mut(slot.0 as usize) else { return };
        let own = state.blames.own.clear();
        if let Some(at) = executor
            && state.blames.of(Culprit::Executor(at)).is_some_and(Blame::clear)
        {
            self.rest(now, slot, at);
        }
        if own {
            self.update_availability(now, slot);
        }
    }

    /// Whether a loss counts against the worker. One that dies fails once, however many attempts it had: so does
    /// everything that it loses before it says something again.
    pub(super) fn counts_loss(&mut self, slot: Option<Slot>) -> bool {
        let state = slot.and_then(|slot| self.workers.get_mut(slot.0 as usize)?.as_mut());
        state.is_some_and(|state| !std::mem::replace(&mut state.loss_counted, true))
    }

    /// Ends the pauses whose time has come.
    pub(super) fn end_pauses(&mut self, now: Time, slot: Slot) {
        let Some(Some(state)) = self.workers.get_mut(slot.0 as usize) else { return };
        if state.blames.next_end().is_none_or(|end| end > now) {
            return;
        }
        let over =
            |blame: &mut Blame| blame.left_alone.take_if(|alone| alone.until <= now).is_some();
        let own = over(&mut state.blames.own);
        let executors = state.blames.executors.iter_mut().enumerate();
        let ended: Vec<usize> =
            executors.filter_map(|(at, blame)| over(blame).then_some(at)).collect();
        for at in ended {
            self.rest(now, slot, at);
        }
        if own {
            self.update_availability(now, slot);
        }
    }

    /// A worker that describes itself anew is blamed for what it was blamed for before.
    pub(super) fn inherit(&mut self, now: Time, slot: Slot, blames: Blames, old: &Worker) {
        let Some(Some(state)) = self.workers.get_mut(slot.0 as usize) else { return };
        state.blames = blames.of_the_same(old, &state.worker);
        for at in 0..state.worker.executors.len() {
            self.rest(now, slot, at);
        }
        self.arm_worker(slot);
    }

    /// Tells placement whether an executor is given something.
    pub(super) fn rest(&mut self, now: Time, slot: Slot, executor: usize) {
        let Some(Some(state)) = self.workers.get(slot.0 as usize) else { return };
        let rests = state.blames.rests(executor);
        if rests == self.placement.is_left_alone(slot, executor) {
            return;
        }
        self.placement.leave_alone(slot, executor, rests, now);
        if rests {
            // A list of numbers: quickly made, however many they are.
            let bound = self.placement.bound_to(slot);
            self.release_stranded(now, slot, bound.into_iter());
        }
    }

    /// Compares who is left alone here and in placement.
    pub(super) fn check_blames(&self, slot: Slot, state: &WorkerState) -> Result<(), String> {
        for at in 0..state.worker.executors.len() {
            let (here, there) = (state.blames.rests(at), self.placement.is_left_alone(slot, at));
            if here != there {
                return Err(format!("executor {at} of {slot:?} is left alone: {here} and {there}"));
            }
        }
        Ok(())
    }
}
