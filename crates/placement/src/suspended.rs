//! Executors that get no new tasks, quarantined or unreachable, although their workers do.

use hypha_model::{Requirement, Time};

use crate::capability::need_of;
use crate::member::Member;
use crate::strategy::Bind;
use crate::{Placement, Stage, TaskRef, WorkerSlot};

impl Placement {
    /// Suspends an executor of a worker or resumes it; a suspended one gets no new tasks and keeps those that it has.
    /// Tasks that are bound to the worker and have no executor there any more are to be released
    /// ([`Placement::release_unschedulable`]).
    pub fn set_suspended(&mut self, slot: WorkerSlot, executor: usize, suspended: bool, now: Time) {
        self.pool.change(slot, now, |member| member.set_suspended(executor, suspended));
        self.recount_offer(slot);
        match suspended {
            true => self.capacity_lost(),
            false => self.capacity_gained(slot),
        }
    }

    /// Whether an executor of a worker is suspended.
    pub fn is_suspended(&self, slot: WorkerSlot, executor: usize) -> bool {
        self.pool.member(slot).is_some_and(|member| member.is_suspended(executor))
    }

    /// The executor of its worker that runs a task, by its index in the worker's list; `None` before the task is
    /// dispatched.
    pub fn executor_of(&self, task: TaskRef) -> Option<usize> {
        match self.stage(task)? {
            Stage::Dispatched(slot) => self.pool.member(slot)?.executor_of(task),
            Stage::Waiting(..) | Stage::Bound(_) => None,
        }
    }

    /// Whether some worker would run this, now or when it has room.
    pub fn is_schedulable(&self, requirement: &Requirement) -> bool {
        let need = match self.pool.bind_stage() {
            Bind::WithRoom => need_of(requirement).ignoring_free_amounts(),
            Bind::AtSubmit | Bind::Late => need_of(requirement),
        };
        let near = |member: &Member| {
            self.preferences.max_rtt.is_none_or(|most| member.rtt_s <= most.as_secs_f64())
        };
        let takes = |member: &Member| near(member) && member.refuses_ever(requirement).is_none();
        self.pool.trees().iter().enumerate().any(|(at, tree)| {
            let mut accepts = |position: usize| {
                let slot = self.pool.slot_at(at, position);
                slot.and_then(|slot| self.pool.member(slot)).is_some_and(takes)
            };
            tree.first_from(0, &need, &mut accepts).is_some()
        })
    }
}
