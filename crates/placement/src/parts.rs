//! Changes that concern very many tasks, in parts: a caller that has other work does some, and the rest later. In
//! between, every task has its old or its new state, and may be decided about.

use hypha_model::Time;

use crate::{Placement, Stage, Statistics, Strategy, TaskRef, WorkerSlot};

impl Placement {
    /// Chooses another strategy. Nothing is lost: waiting tasks are put into the new order, bound tasks that are not
    /// dispatched are decided again, dispatched tasks stay.
    pub fn switch(&mut self, strategy: Strategy, now: Time) {
        self.begin_switch(strategy, now);
        self.reorder(0, usize::MAX, now);
    }

    /// The same in parts: decides by another strategy from now on. Until [`Placement::reorder`] reaches them, waiting
    /// tasks keep the position that the previous strategy gave them, and bound tasks stay bound.
    pub fn begin_switch(&mut self, strategy: Strategy, now: Time) {
        for (task, _) in self.reservations.clone() {
            self.release_reservation(task, now);
        }
        self.strategy = strategy;
        self.recipe = strategy.recipe();
        self.statistics = Statistics::default();
        (self.held_back_at, self.ended_at) = (None, None);
        self.pool.reindex(self.recipe, now);
    }

    /// Puts tasks into the order of the strategy: at most `most`, from the number `from` on. Returns those that were
    /// bound to a worker and wait again, and the number to continue with.
    pub fn reorder(
        &mut self,
        from: usize,
        most: usize,
        now: Time,
    ) -> (Vec<TaskRef>, Option<usize>) {
        let end = from.saturating_add(most).min(self.tasks.end());
        let mut released = Vec::new();
        for task in (from..end).map(|at| TaskRef(at as u32)) {
            match self.stage(task) {
                Some(Stage::Bound(_)) => released.push(task),
                Some(Stage::Waiting(..)) => {}
                Some(Stage::Dispatched(_)) | None => continue,
            }
            self.leave_stage(task, now);
            self.wait(task);
        }
        (released, (end < self.tasks.end()).then_some(end))
    }

    /// Releases tasks that are bound to a worker and not dispatched, at most `most`, the next to run first; they wait
    /// again, to be decided again.
    pub fn release_bound(&mut self, slot: WorkerSlot, most: usize, now: Time) -> Vec<TaskRef> {
        let Some(member) = self.pool.member(slot) else { return Vec::new() };
        let bound: Vec<TaskRef> = member.bound.iter().take(most).collect();
        for task in &bound {
            self.leave_stage(*task, now);
            self.wait(*task);
        }
        bound
    }

    /// Releases a task that is bound to a worker if no usable executor there runs it any more. Returns whether it did.
    pub fn release_unschedulable(&mut self, task: TaskRef, slot: WorkerSlot, now: Time) -> bool {
        let Some(entry) = self.tasks.get(task.0 as usize) else { return false };
        let Some(member) = self.pool.member(slot) else { return false };
        let is_unschedulable = entry.stage == Stage::Bound(slot)
            && member.lacks_usable_executor(&entry.request.spec.requirement);
        if is_unschedulable {
            self.leave_stage(task, now);
            self.wait(task);
        }
        is_unschedulable
    }

    /// Whether tasks are bound to a worker and not dispatched.
    pub fn has_bound(&self, slot: WorkerSlot) -> bool {
        self.pool.member(slot).is_some_and(|member| !member.bound.is_empty())
    }
}
