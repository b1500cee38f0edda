//! Executors that cannot be reached: what they forward to is away. They are given nothing until they have been found
//! well, and nobody is blamed.

use hypha_market::HeldLease;
use hypha_model::{Name, Time, WorkerId};
use hypha_placement::Slot;

use super::Scheduler;

/// An executor could not be reached.
#[derive(Clone, Copy, Debug)]
pub(super) struct Away {
    pub(super) since: Time,
    /// When that was noticed last.
    noticed: Time,
}

impl Scheduler {
    /// An executor could not be reached. What it has, it may yet finish.
    pub(super) fn unreached(&mut self, now: Time, slot: Slot, executor: usize) {
        let Some(Some(state)) = self.workers.get_mut(slot.0 as usize) else { return };
        let Some(away) = state.blames.away_mut(executor) else { return };
        let since = away.map_or(now, |away| away.since);
        *away = Some(Away { since, noticed: now });
        self.rest(now, slot, executor);
        self.look_soon(now, slot);
        self.arm_worker(slot);
    }

    /// A worker says which of its executors cannot be reached; the others can. A worker with one name twice means both.
    pub(super) fn said_away(&mut self, now: Time, worker: WorkerId, names: &[Name]) {
        self.plan_wanted = false;
        let Some((slot, state)) = self.state_of(worker) else { return };
        let executors = state.worker.executors.iter();
        let away: Vec<bool> = executors.map(|executor| names.contains(&executor.name)).collect();
        for (executor, away) in away.into_iter().enumerate() {
            let rested = self.placement.is_left_alone(slot, executor);
            if away {
                self.unreached(now, slot, executor);
            } else if let Some(Some(state)) = self.workers.get_mut(slot.0 as usize)
                && state.blames.away_mut(executor).is_some_and(|away| away.take().is_some())
            {
                self.rest(now, slot, executor);
            }
            // What was bound to it is decided anew, and what waited for it.
            self.plan_wanted |= rested != self.placement.is_left_alone(slot, executor);
        }
    }

    /// A worker has answered what it was asked at `sent`: whoever was not said to be away since then is well. A
    /// question from before says nothing of how it has been since.
    pub(super) fn found_well(&mut self, now: Time, slot: Slot, sent: Time) {
        let Some(Some(state)) = self.workers.get_mut(slot.0 as usize) else { return };
        let is_well = |at: &usize| {
            let away = state.blames.away_mut(*at);
            away.is_some_and(|away| away.take_if(|away| away.noticed < sent).is_some())
        };
        let well: Vec<usize> = (0..state.worker.executors.len()).filter(is_well).collect();
        for executor in well {
            self.rest(now, slot, executor);
        }
        self.look_soon(now, slot);
    }

    /// As long as an executor is away, its worker is asked more often than others. Not at once: the answer would most
    /// likely be the same, and whoever is found well and cannot be reached must not be asked without end.
    fn look_soon(&mut self, now: Time, slot: Slot) {
        let look_at = now + self.settings.health_check_timeout;
        let Some(Some(state)) = self.workers.get_mut(slot.0 as usize) else { return };
        let any = (0..state.worker.executors.len()).any(|at| state.blames.away(at).is_some());
        if let HeldLease::Held { next, .. } = &mut state.lease
            && any
        {
            *next = (*next).min(look_at);
        }
    }
}
