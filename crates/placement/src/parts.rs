//! Changes that concern very many tasks, in parts: a caller whose others wait does some, and the rest later. In between,
//! every task is where it was or where it will be, and may be decided about.

use hypha_model::Time;

use crate::{Placement, Stage, Statistics, Strategy, TaskRef, WorkerSlot};

impl Placement {
    /// Chooses another strategy. Nothing is lost: what waits is put into the new order, what is bound to
    /// a worker but not handed over is decided anew, what is handed over stays.
    pub fn switch(&mut self, strategy: Strategy, now: Time) {
        self.begin_switch(strategy, now);
        self.reorder(0, usize::MAX, now);
    }

    /// The same in parts: decides by another strategy from now on. Until [`Placement::reorder`] has come to it, what
    /// waits has the place that the strategy before gave it, and what is bound stays bound.
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
    /// bound to a worker and wait again, and the number to go on with.
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

    /// Takes what is only bound to a worker away from it, at most `most`, those that go first; it waits again, to be
    /// decided anew.
    pub fn release_bound(&mut self, slot: WorkerSlot, most: usize, now: Time) -> Vec<TaskRef> {
        let Some(member) = self.pool.member(slot) else { return Vec::new() };
        let bound: Vec<TaskRef> = member.bound.iter().take(most).collect();
        for task in &bound {
            self.leave_stage(*task, now);
            self.wait(*task);
        }
        bound
    }

    /// Takes a task that is bound to a worker away from it if it has no executor there any more that is used. Says
    /// whether it did.
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

    /// Whether something is bound to a worker and not handed over.
    pub fn has_bound(&self, slot: WorkerSlot) -> bool {
        self.pool.member(slot).is_some_and(|member| !member.bound.is_empty())
    }
}
