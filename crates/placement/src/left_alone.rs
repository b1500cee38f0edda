//! Executors that are left alone for a while, although their workers are used.

use hypha_model::{Requirement, Time};

use crate::capability::need_of;
use crate::member::Member;
use crate::strategy::Bind;
use crate::{Placement, Slot, Stage, TaskRef};

impl Placement {
    /// Gives an executor of a worker nothing new, or something again; what it has, it keeps. What is bound to the worker
    /// and has no executor there any more is to be released ([`Placement::release_stranded`]).
    pub fn leave_alone(&mut self, slot: Slot, executor: usize, alone: bool, now: Time) {
        self.pool.change(slot, now, |member| member.leave_alone(executor, alone));
        match alone {
            true => self.lost(),
            false => self.gained(slot),
        }
    }

    /// Whether an executor of a worker is left alone.
    pub fn is_left_alone(&self, slot: Slot, executor: usize) -> bool {
        self.pool.member(slot).is_some_and(|member| member.is_left_alone(executor))
    }

    /// The executor of its worker that runs a task, by its place in the worker's list; `None` before the task is
    /// handed over.
    pub fn executor_of(&self, task: TaskRef) -> Option<usize> {
        match self.stage(task)? {
            Stage::Given(slot) => self.pool.member(slot)?.executor_of(task),
            Stage::Waiting(..) | Stage::Bound(_) => None,
        }
    }

    /// Whether some worker would run this, now or when its turn comes.
    pub fn is_served(&self, requirement: &Requirement) -> bool {
        let need = match self.pool.binds() {
            Bind::WithRoom => need_of(requirement).whatever_is_free(),
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
