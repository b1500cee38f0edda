//! Shapes of tasks that no worker could run: when they are parked, and when they are reconsidered.
//!
//! A plan that finds no worker that could run a shape even when idle parks it, so that tasks that cannot run cost
//! those that can nothing. When a worker becomes able to run more than before (it is made available, an executor is
//! resumed, its round trip becomes short enough), the parked shapes that one of its executors may run are
//! reconsidered: a bounded number in a plan, the others in the following plans.

use hypha_model::{Executor, Requirement, Worker};

use crate::tenants::TenantId;
use crate::waiting::{Lane, ShapeId, ShapeKey};
use crate::{Placement, TaskRef, WorkerSlot};

/// How many parked shapes a plan reconsiders, at a tenth of a microsecond each. A hundred thousand are through after a
/// hundred plans, and nothing else waits for them.
pub(crate) const MAX_RECONSIDERED: usize = 1_024;

/// How far the shapes that a worker may run have been reconsidered.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReconsiderCursor {
    /// The next range, and the last key in it.
    range: usize,
    last: Option<ShapeKey>,
}

impl Placement {
    /// A worker can run more than before: parked tasks may be for it.
    pub(crate) fn capacity_gained(&mut self, slot: WorkerSlot) {
        self.gained_capacity.insert(slot, ReconsiderCursor::default());
    }

    /// A worker can run less than before: shapes that were known to be schedulable may not be any longer.
    pub(crate) fn capacity_lost(&mut self) {
        self.capacity_losses += 1;
    }

    /// Parks the shape of a task that no worker takes now, unless one could run it when it has room.
    pub(crate) fn park_if_unschedulable(&mut self, shape: ShapeId, task: TaskRef, certainly: bool) {
        let Some(entry) = self.tasks.get(task.0 as usize) else { return };
        if !certainly {
            if self.waiting.is_known_schedulable(shape, self.capacity_losses) {
                return;
            }
            if self.is_schedulable(&entry.request.spec.requirement) {
                return self.waiting.note_schedulable(shape, self.capacity_losses);
            }
        }
        self.statistics.parked += 1;
        self.release_reservation(task, self.planned_at);
        // No worker could run its tasks, so they no longer wait for one.
        let held: Vec<TaskRef> =
            self.waiting.tasks_of(shape).take_while(|task| self.is_held(*task)).collect();
        for task in held {
            self.release_hold(task, self.planned_at);
        }
        self.waiting.park(shape);
    }

    fn is_held(&self, task: TaskRef) -> bool {
        let entry = self.tasks.get(task.0 as usize);
        entry
            .and_then(|entry| entry.decision.as_ref())
            .is_some_and(|decision| decision.held.is_some())
    }

    /// Reconsiders parked shapes that workers have become able to run.
    pub(crate) fn reconsider_parked(&mut self) {
        let mut left = MAX_RECONSIDERED;
        while left > 0
            && let Some((slot, mut reconsidered)) = self.gained_capacity.pop_first()
        {
            let Some(worker) = self.pool.member(slot).map(|member| &member.worker) else {
                continue;
            };
            let ranges = ranges_of(worker);
            let mut served = Vec::new();
            while left > 0
                && let Some(range) = ranges.get(reconsidered.range)
            {
                let from = reconsidered.last.clone().unwrap_or_else(|| range.first.clone());
                let mut shapes = self
                    .waiting
                    .parked_from(&from)
                    .take_while(|(key, ..)| range.holds(key))
                    .filter(|(key, ..)| Some(*key) != reconsidered.last.as_ref());
                let mut last = None;
                for (key, shape, task) in shapes.by_ref().take(left) {
                    left -= 1;
                    last = Some(key.clone());
                    if self.could_run(slot, task) {
                        served.push(shape);
                    }
                }
                match last {
                    Some(last) if left == 0 => reconsidered.last = Some(last),
                    _ => {
                        reconsidered =
                            ReconsiderCursor { range: reconsidered.range + 1, last: None }
                    }
                }
            }
            for shape in served {
                self.waiting.unpark(shape);
            }
            if reconsidered.range < ranges.len() {
                self.gained_capacity.insert(slot, reconsidered);
            }
        }
    }

    /// Whether a worker could run a task, now or when it has room.
    pub(crate) fn could_run(&self, slot: WorkerSlot, task: TaskRef) -> bool {
        let Some(entry) = self.tasks.get(task.0 as usize) else { return false };
        let near =
            |rtt_s: f64| self.preferences.max_rtt.is_none_or(|most| rtt_s <= most.as_secs_f64());
        let requirement: &Requirement = &entry.request.spec.requirement;
        self.pool
            .member(slot)
            .is_some_and(|member| near(member.rtt_s) && member.refuses_ever(requirement).is_none())
    }

    /// A parked task that some worker would take, although no worker is still to be checked.
    pub(crate) fn wrongly_parked(&self) -> Option<TaskRef> {
        if !self.gained_capacity.is_empty() {
            return None;
        }
        let served = |task: &TaskRef| match self.tasks.get(task.0 as usize) {
            Some(entry) => self.is_schedulable(&entry.request.spec.requirement),
            _ => true,
        };
        self.waiting.parked().find(served)
    }
}

/// Neighbouring shapes that one executor may run.
struct Range {
    first: ShapeKey,
    any_model: bool,
}

impl Range {
    fn holds(&self, key: &ShapeKey) -> bool {
        (key.class, &key.executor) == (self.first.class, &self.first.executor)
            && (self.any_model || key.model == self.first.model)
    }
}

/// The shapes that a worker may run, by class, executor and model; amounts are checked one by one.
fn ranges_of(worker: &Worker) -> Vec<Range> {
    let of_executor = |executor: &Executor| {
        let (class, any_model) = (executor.class, executor.models.is_empty());
        let models: Vec<_> =
            std::iter::once(None).chain(executor.models.iter().cloned().map(Some)).collect();
        [None, Some(executor.name.clone())].into_iter().flat_map(move |executor| {
            let first = move |model| ShapeKey {
                class,
                executor: executor.clone(),
                model,
                amounts: [0; 7],
                lane: Lane::default(),
                tenant: TenantId::default(),
            };
            let range = move |model| Range { first: first(model), any_model };
            models.clone().into_iter().map(range).collect::<Vec<_>>()
        })
    };
    worker.executors.iter().flat_map(of_executor).collect()
}
