//! The scheduler's queue: tasks that are not bound to a worker, for each tenant in the order of the strategy.
//!
//! Tasks of a tenant with the same requirements form a shape. If no worker can take the first of a shape, none can take the
//! others, so a plan searches once a shape and not once a task. A shape that no worker of the pool could run even when
//! idle is parked: plans do not see it until a worker joins that could (`parked.rs`).

use std::collections::{BTreeMap, BTreeSet};

use hypha_model::{ExecutorClass, Name, PagedSlab, Requirement};

use crate::TaskRef;
use crate::capability::need_of;
use crate::index::Need;
use crate::tenants::TenantId;

/// The position of a task in the order: lower goes first. The last part makes every position distinct.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct QueuePosition {
    pub(crate) rank: i64,
    pub(crate) submitted_us: u64,
    pub(crate) serial: u64,
}

impl QueuePosition {
    /// Before all others.
    pub(crate) const FIRST: QueuePosition =
        QueuePosition { rank: i64::MIN, submitted_us: 0, serial: 0 };
}

/// Which of a tenant's queues a task waits in: one bit for each question, so that it is compared in one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Lane(u8);

impl Lane {
    const URGENT: u8 = 2;

    /// `interactive` if the client waits for the response, `urgent` if the deadline is near (`deadlines.rs`).
    pub(crate) fn new(interactive: bool, urgent: bool) -> Lane {
        Lane(u8::from(interactive) + if urgent { Lane::URGENT } else { 0 })
    }

    pub(crate) fn is_urgent(self) -> bool {
        self.0 & Lane::URGENT != 0
    }

    fn is_interactive(self) -> bool {
        self.0 & 1 != 0
    }

    /// The queue of the same kind of clients for tasks that are urgent, or not.
    pub(crate) fn with_urgency(self, urgent: bool) -> Lane {
        Lane::new(self.is_interactive(), urgent)
    }

    fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// Index of a shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ShapeId(u32);

impl ShapeId {
    /// No shape: the task has not been put into the queue yet.
    pub(crate) const NONE: ShapeId = ShapeId(u32::MAX);
}

/// Everything that decides which workers fit. In this order the shapes that one executor may run are neighbours.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ShapeKey {
    pub(crate) class: ExecutorClass,
    pub(crate) executor: Option<Name>,
    pub(crate) model: Option<Name>,
    pub(crate) amounts: [u64; 7],
    /// Does not affect which workers fit, but each lane is a queue of its own.
    pub(crate) lane: Lane,
    /// Nor does this, but each tenant has queues of its own.
    pub(crate) tenant: TenantId,
}

#[derive(Clone, Debug)]
struct Shape {
    key: ShapeKey,
    /// The same for trees of workers.
    need: Need,
    tasks: BTreeMap<QueuePosition, TaskRef>,
    /// Whether no worker could run it, even when idle.
    parked: bool,
    /// The pool's count of capacity losses when some worker was last known to be able to run it.
    schedulable_at: Option<u64>,
}

/// See the module documentation.
#[derive(Clone, Debug, Default)]
pub(crate) struct WaitingQueue {
    shapes: PagedSlab<Shape>,
    by_key: BTreeMap<ShapeKey, ShapeId>,
    /// For each tenant and lane the first task of every shape that is not parked.
    heads: Vec<[BTreeSet<(QueuePosition, ShapeId)>; 4]>,
    /// The tenants that have some, batch and interactive.
    tenants: [Vec<TenantId>; 2],
    parked: BTreeMap<ShapeKey, ShapeId>,
    /// The shape that was emptied last. It is kept: the next task is likely to have the same.
    emptied: Option<ShapeId>,
    len: usize,
}

impl WaitingQueue {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// How many shapes it has memory for.
    pub(crate) fn shape_capacity(&self) -> usize {
        self.shapes.capacity()
    }

    pub(crate) fn insert(
        &mut self,
        tenant: TenantId,
        requirement: &Requirement,
        lane: Lane,
        position: QueuePosition,
        task: TaskRef,
    ) -> ShapeId {
        let id = self.shape_of(tenant, requirement, lane);
        let Some(shape) = self.shapes.get_mut(id.0 as usize) else { return id };
        let before = shape.head();
        if shape.tasks.insert(position, task).is_none() {
            self.len += 1;
        }
        self.head_changed(id, before);
        id
    }

    pub(crate) fn remove(&mut self, id: ShapeId, position: QueuePosition) {
        let Some(shape) = self.shapes.get_mut(id.0 as usize) else { return };
        let before = shape.head();
        if shape.tasks.remove(&position).is_some() {
            self.len -= 1;
        }
        let is_empty = shape.tasks.is_empty();
        self.head_changed(id, before);
        if is_empty {
            self.unpark(id);
            if let Some(other) = self.emptied.replace(id)
                && other != id
            {
                self.forget_if_empty(other);
            }
        }
    }

    fn head_changed(&mut self, id: ShapeId, before: Option<QueuePosition>) {
        let Some(shape) = self.shapes.get(id.0 as usize) else { return };
        let after = shape.head();
        if shape.parked || before == after {
            return;
        }
        let (tenant, lane) = (shape.key.tenant, shape.key.lane);
        self.replace_head(
            tenant,
            lane,
            before.map(|head| (head, id)),
            after.map(|head| (head, id)),
        );
    }

    /// Replaces the first task of a shape by another.
    fn replace_head(
        &mut self,
        tenant: TenantId,
        lane: Lane,
        before: Option<(QueuePosition, ShapeId)>,
        after: Option<(QueuePosition, ShapeId)>,
    ) {
        let at = tenant.0 as usize;
        if self.heads.len() <= at {
            self.heads.resize_with(at + 1, Default::default);
        }
        let heads = &mut self.heads[at][lane.index()];
        let had_some = !heads.is_empty();
        if let Some(before) = before {
            heads.remove(&before);
        }
        if let Some(after) = after {
            heads.insert(after);
        }
        let has_some = !heads.is_empty();
        if had_some != has_some && !self.has_heads(tenant, lane.with_urgency(!lane.is_urgent())) {
            let tenants = &mut self.tenants[usize::from(lane.is_interactive())];
            match has_some {
                true => tenants.push(tenant),
                false => tenants.retain(|other| *other != tenant),
            }
        }
    }

    /// Whether a tenant has tasks in a lane that plans see.
    pub(crate) fn has_heads(&self, tenant: TenantId, lane: Lane) -> bool {
        let heads = self.heads.get(tenant.0 as usize);
        heads.is_some_and(|heads| !heads[lane.index()].is_empty())
    }

    /// The tenants that have tasks in the queue, in no useful order.
    pub(crate) fn tenants(&self, interactive: bool) -> &[TenantId] {
        &self.tenants[usize::from(interactive)]
    }

    /// Hides a shape from plans: no worker could run it.
    pub(crate) fn park(&mut self, id: ShapeId) {
        let Some(shape) = self.shapes.get_mut(id.0 as usize) else { return };
        let Some(head) = shape.head().filter(|_| !shape.parked) else { return };
        (shape.parked, shape.schedulable_at) = (true, None);
        self.parked.insert(shape.key.clone(), id);
        let (tenant, lane) = (shape.key.tenant, shape.key.lane);
        self.replace_head(tenant, lane, Some((head, id)), None);
    }

    /// Lets plans see a shape again.
    pub(crate) fn unpark(&mut self, id: ShapeId) {
        let Some(shape) = self.shapes.get_mut(id.0 as usize) else { return };
        if std::mem::replace(&mut shape.parked, false) {
            self.parked.remove(&shape.key);
            let (tenant, lane) = (shape.key.tenant, shape.key.lane);
            let head = shape.head().map(|head| (head, id));
            self.replace_head(tenant, lane, None, head);
        }
    }

    /// The parked shapes from `key` on, each with its first task.
    pub(crate) fn parked_from(
        &self,
        key: &ShapeKey,
    ) -> impl Iterator<Item = (&ShapeKey, ShapeId, TaskRef)> {
        self.parked.range(key..).filter_map(|(key, id)| {
            let shape = self.shapes.get(id.0 as usize)?;
            Some((key, *id, *shape.tasks.values().next()?))
        })
    }

    /// The first task of each parked shape.
    pub(crate) fn parked(&self) -> impl Iterator<Item = TaskRef> {
        self.parked.values().filter_map(|id| Some(self.next_after(*id, None)?.2))
    }

    /// The parked shapes, each with its first task.
    pub(crate) fn parked_shapes(&self) -> impl Iterator<Item = (ShapeId, TaskRef)> {
        self.parked.values().filter_map(|id| Some((*id, self.next_after(*id, None)?.2)))
    }

    /// How many tasks a shape has.
    pub(crate) fn tasks_in(&self, id: ShapeId) -> usize {
        self.shapes.get(id.0 as usize).map_or(0, |shape| shape.tasks.len())
    }

    /// Whether a worker was known to be able to run a shape when the pool's count of losses was `losses`.
    pub(crate) fn is_known_schedulable(&self, id: ShapeId, losses: u64) -> bool {
        let shape = self.shapes.get(id.0 as usize);
        shape.is_some_and(|shape| shape.schedulable_at == Some(losses))
    }

    pub(crate) fn note_schedulable(&mut self, id: ShapeId, losses: u64) {
        if let Some(shape) = self.shapes.get_mut(id.0 as usize) {
            shape.schedulable_at = Some(losses);
        }
    }

    /// What the tasks of a shape need of a worker.
    pub(crate) fn need(&self, id: ShapeId) -> Option<Need> {
        Some(self.shapes.get(id.0 as usize)?.need)
    }

    fn forget_if_empty(&mut self, id: ShapeId) {
        let shape = self.shapes.get(id.0 as usize);
        if shape.is_some_and(|shape| shape.tasks.is_empty())
            && let Some(shape) = self.shapes.remove(id.0 as usize)
        {
            self.by_key.remove(&shape.key);
        }
    }

    /// The first task of every shape of a tenant that is not parked, in order, from behind the position `after` on.
    pub(crate) fn heads_after(
        &self,
        tenant: TenantId,
        lane: Lane,
        after: Option<QueuePosition>,
    ) -> impl Iterator<Item = (QueuePosition, ShapeId, TaskRef)> {
        use std::ops::Bound::{Excluded, Unbounded};
        let from = after.map_or(Unbounded, |position| Excluded((position, ShapeId::NONE)));
        let heads = self.heads.get(tenant.0 as usize).map(|heads| &heads[lane.index()]);
        let heads = heads.into_iter().flat_map(move |heads| heads.range((from, Unbounded)));
        heads.filter_map(|(_, id)| self.next_after(*id, None))
    }

    /// The first task of every shape that is not parked, in order for each tenant and lane.
    pub(crate) fn heads(
        &self,
        interactive: bool,
    ) -> impl Iterator<Item = (QueuePosition, ShapeId, TaskRef)> {
        let lanes = [true, false].map(|urgent| Lane::new(interactive, urgent));
        let tenants = self.tenants(interactive).iter();
        tenants.flat_map(move |tenant| {
            lanes.into_iter().flat_map(|lane| self.heads_after(*tenant, lane, None))
        })
    }

    /// The tasks of a shape, in order.
    pub(crate) fn tasks_of(&self, id: ShapeId) -> impl Iterator<Item = TaskRef> {
        let shape = self.shapes.get(id.0 as usize);
        shape.into_iter().flat_map(|shape| shape.tasks.values().copied())
    }

    /// The task of a shape that follows the position `after`.
    pub(crate) fn next_after(
        &self,
        id: ShapeId,
        after: Option<QueuePosition>,
    ) -> Option<(QueuePosition, ShapeId, TaskRef)> {
        use std::ops::Bound::{Excluded, Unbounded};
        let shape = self.shapes.get(id.0 as usize)?;
        let from = after.map_or(Unbounded, Excluded);
        let (position, task) = shape.tasks.range((from, Unbounded)).next()?;
        Some((*position, id, *task))
    }

    fn shape_of(&mut self, tenant: TenantId, requirement: &Requirement, lane: Lane) -> ShapeId {
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
                requirement.gpu_ids.bits(),
            ],
            lane,
            tenant,
        };
        if let Some(id) = self.by_key.get(&key) {
            return *id;
        }
        let need = need_of(requirement);
        let tasks = BTreeMap::new();
        let shape = Shape { key: key.clone(), need, tasks, parked: false, schedulable_at: None };
        let id = ShapeId(self.shapes.vacant() as u32);
        self.shapes.insert(id.0 as usize, shape);
        self.by_key.insert(key, id);
        id
    }
}

impl Shape {
    fn head(&self) -> Option<QueuePosition> {
        self.tasks.keys().next().copied()
    }
}
