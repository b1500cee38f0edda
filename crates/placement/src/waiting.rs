//! The scheduler's queue: tasks that are not bound to a worker, in the order of the strategy.
//!
//! Tasks that ask for the same things form a shape. If no worker can take the first of a shape, none can
//! take the others, so a plan asks once a shape and not once a task.

use std::collections::BTreeMap;

use hypha_model::{ExecutorClass, Name, Requirement};

use crate::TaskRef;
use crate::capability::need_of;
use crate::index::Need;

/// The place of a task in the order: lower goes first. The last part makes every place distinct.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) rank: i64,
    pub(crate) submitted_us: u64,
    pub(crate) serial: u64,
}

/// Index of a shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ShapeId(u32);

impl ShapeId {
    /// No shape: the task has not been put into the queue yet.
    pub(crate) const NONE: ShapeId = ShapeId(u32::MAX);
}

/// Everything that decides which workers fit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ShapeKey {
    class: ExecutorClass,
    executor: Option<Name>,
    model: Option<Name>,
    amounts: [u64; 6],
}

#[derive(Clone, Debug)]
struct Shape {
    key: ShapeKey,
    /// The same for trees of workers.
    need: Need,
    tasks: BTreeMap<Place, TaskRef>,
}

/// See the head of this file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Waiting {
    shapes: Vec<Option<Shape>>,
    free: Vec<u32>,
    by_key: BTreeMap<ShapeKey, ShapeId>,
    /// The shape that was emptied last. It is kept: the next task is likely to have the same.
    emptied: Option<ShapeId>,
    len: usize,
}

impl Waiting {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn insert(
        &mut self,
        requirement: &Requirement,
        place: Place,
        task: TaskRef,
    ) -> ShapeId {
        let id = self.shape_of(requirement);
        if let Some(shape) = &mut self.shapes[id.0 as usize]
            && shape.tasks.insert(place, task).is_none()
        {
            self.len += 1;
        }
        id
    }

    pub(crate) fn remove(&mut self, id: ShapeId, place: Place) {
        let Some(Some(shape)) = self.shapes.get_mut(id.0 as usize) else { return };
        if shape.tasks.remove(&place).is_some() {
            self.len -= 1;
        }
        if shape.tasks.is_empty()
            && let Some(other) = self.emptied.replace(id)
            && other != id
        {
            self.forget_if_empty(other);
        }
    }

    /// What the tasks of a shape need of a worker.
    pub(crate) fn need(&self, id: ShapeId) -> Option<Need> {
        Some(self.shapes.get(id.0 as usize)?.as_ref()?.need)
    }

    fn forget_if_empty(&mut self, id: ShapeId) {
        let at = &mut self.shapes[id.0 as usize];
        if let Some(shape) = at.take_if(|shape| shape.tasks.is_empty()) {
            self.by_key.remove(&shape.key);
            self.free.push(id.0);
        }
    }

    /// The first task of every shape.
    pub(crate) fn heads(&self) -> impl Iterator<Item = (Place, ShapeId, TaskRef)> {
        self.by_key.values().filter_map(|id| self.next_after(*id, None))
    }

    /// The task of a shape that follows the place `after`.
    pub(crate) fn next_after(
        &self,
        id: ShapeId,
        after: Option<Place>,
    ) -> Option<(Place, ShapeId, TaskRef)> {
        use std::ops::Bound::{Excluded, Unbounded};
        let shape = self.shapes[id.0 as usize].as_ref()?;
        let from = after.map_or(Unbounded, Excluded);
        let (place, task) = shape.tasks.range((from, Unbounded)).next()?;
        Some((*place, id, *task))
    }

    /// All tasks, in no useful order.
    pub(crate) fn tasks(&self) -> Vec<TaskRef> {
        self.shapes.iter().flatten().flat_map(|shape| shape.tasks.values().copied()).collect()
    }

    fn shape_of(&mut self, requirement: &Requirement) -> ShapeId {
        let key = ShapeKey {
            class: requirement.class,
            executor: requirement.executor.clone(),
            model: requirement.model.clone(),
            amounts: [
                requirement.cpu_milli,
                requirement.memory_bytes,
                requirement.storage_bytes,
                u64::from(requirement.min_gpus),
                requirement.gpu_memory_bytes,
                u64::from(requirement.milli_gpu),
            ],
        };
        if let Some(id) = self.by_key.get(&key) {
            return *id;
        }
        let need = need_of(requirement);
        let shape = Some(Shape { key: key.clone(), need, tasks: BTreeMap::new() });
        let id = match self.free.pop() {
            Some(at) => {
                self.shapes[at as usize] = shape;
                ShapeId(at)
            }
            None => {
                self.shapes.push(shape);
                ShapeId(self.shapes.len() as u32 - 1)
            }
        };
        self.by_key.insert(key, id);
        id
    }
}
