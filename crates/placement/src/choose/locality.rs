//! The preference for workers of the scheduler's own region: it is worth a time, and is no filter.

use super::{Evaluation, Scored};
use crate::WorkerSlot;
use crate::capability::LOCAL;
use crate::index::Need;
use crate::strategy::Bind;

impl Evaluation<'_> {
    /// A local worker, unless the task would be delayed there by more than `max_local_wait_s` compared with the worker
    /// that is selected from all. Two searches at most.
    pub(super) fn select_local_first(
        &mut self,
        need: &Need,
        max_local_wait_s: f64,
        cursor: &mut usize,
    ) -> (Option<WorkerSlot>, bool) {
        let local_need = Need { capabilities: need.capabilities | LOCAL, ..*need };
        let cursor_before = *cursor;
        let (local, explored) = self.select(&local_need, cursor);
        let Some(local) = local else { return self.select(need, cursor) };
        self.scratch.preferred_local = !explored;
        // A worker with room delays nothing.
        if explored || self.recipe.bind == Bind::WithRoom {
            return (Some(local), explored);
        }
        let most_s = self.delay_s(local) - max_local_wait_s;
        if most_s <= 0.0 {
            return (Some(local), false);
        }
        let scored = self.scratch.best.iter().find(|scored| scored.slot == local).copied();
        let cursor_after = std::mem::replace(cursor, cursor_before);
        let (any, explored) = self.select(need, cursor);
        if any.is_some_and(|slot| explored || slot == local || self.delay_s(slot) < most_s) {
            self.scratch.preferred_local = false;
            return (any, explored);
        }
        *cursor = cursor_after;
        if let Some(scored) = scored {
            self.keep_scored(scored);
        }
        (Some(local), false)
    }

    /// How long until the task is expected to begin at a worker or, where the strategy predicts that, to end there.
    fn delay_s(&mut self, slot: WorkerSlot) -> f64 {
        let Some(member) = self.pool.member(slot) else { return f64::INFINITY };
        if self.recipe.is_time_based() {
            let terms = self.terms(slot, member);
            return terms.wait_s + terms.run_s + terms.transfer_s + terms.risk_s;
        }
        member.wait_for(self.task, &self.request.spec.requirement, self.now).mean_s
    }

    /// Lets the explanation show the local worker as it was scored, whatever the second search found.
    fn keep_scored(&mut self, scored: Scored) {
        let best = &mut self.scratch.best;
        best.retain(|other| other.slot != scored.slot);
        best.insert(0, scored);
    }
}
