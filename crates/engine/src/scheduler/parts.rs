//! Large reads of a scheduler, in parts: all other work waits while a part is read, so a part is bounded, and a reader
//! yields before the next.

use hypha_model::{TaskId, Time, WorkerId};
use hypha_placement::{ExplanationPart, TaskRef, WorkerSlot, WorkerView};

use super::{LeaseView, Scheduler, TaskView};

/// Tasks that are read in one part, at about a microsecond each.
pub const TASKS_PER_PART: usize = 256;
/// Workers that are examined in one part, at about as much each: for their views, for the explanation of a task, and
/// for the reasons why tasks wait.
pub const WORKERS_PER_PART: usize = 256;
/// Task references that are copied in one part, at some nanoseconds each; all of one worker's, even if they are more.
const NUMBERS_PER_PART: usize = 10_000;

/// A part of something that is read from worker to worker.
#[derive(Clone, Debug)]
pub struct Part<T> {
    /// What was read.
    pub items: Vec<T>,
    /// Where the next part begins; `None` if this was the last.
    pub next: Option<WorkerSlot>,
}

impl Scheduler {
    /// Views of the first of these tasks, `None` of those that have ended: of at least one, and of as many as fit into
    /// one part.
    pub fn task_views(&self, ids: &[TaskId], now: Time) -> Vec<Option<TaskView>> {
        let mut reasons = self.placement.waiting_reasons();
        let mut views = Vec::with_capacity(ids.len().min(TASKS_PER_PART));
        for id in ids.iter().take(TASKS_PER_PART) {
            views.push(self.view_of(*id, &mut reasons, now));
            if reasons.looked_at() >= WORKERS_PER_PART {
                break;
            }
        }
        views
    }

    /// The part of a task's explanation for the workers from the slot `from` on; `None` if the task has ended.
    pub fn explain_part(&self, id: TaskId, from: WorkerSlot, now: Time) -> Option<ExplanationPart> {
        let reference = *self.by_id.get(&id)?;
        self.placement.explain_part(reference, &self.predictor, now, from, WORKERS_PER_PART)
    }

    /// Workers with their leases, from the slot `from` on.
    pub fn workers_part(
        &self,
        from: WorkerSlot,
        now: Time,
    ) -> Part<(WorkerView, Option<LeaseView>)> {
        let (slots, next) = self.placement.worker_slots_from(from, WORKERS_PER_PART);
        let view = |slot: WorkerSlot| {
            let state = self.workers.get(slot.0 as usize)?.as_ref()?;
            Some((self.placement.view(slot, now)?, state.lease_view()))
        };
        Part { items: slots.into_iter().filter_map(view).collect(), next }
    }

    /// The tasks that are bound or dispatched to a worker, or to any, from the slot `from` on; in no order. They may be
    /// many, so they are read one by one later ([`Scheduler::placed`]), and may have ended by then.
    pub fn placed_part(&self, worker: Option<WorkerId>, from: WorkerSlot) -> Part<TaskRef> {
        let (slots, next) = match worker {
            Some(worker) => (self.slot_of.get(&worker).copied().into_iter().collect(), None),
            None => self.placement.worker_slots_from(from, WORKERS_PER_PART),
        };
        let mut items = Vec::new();
        for slot in slots {
            if items.len() >= NUMBERS_PER_PART {
                return Part { items, next: Some(slot) };
            }
            items.extend(self.placement.bound_to(slot));
            items.extend(self.placement.dispatched_to(slot));
        }
        Part { items, next }
    }
}
