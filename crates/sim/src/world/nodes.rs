//! The nodes of a world: indices, ids, and what each node is made from.

use std::fmt;
use std::sync::Arc;

use hypha_engine::{Mutant, OwnerState, Settings, Terms};
use hypha_model::{SchedulerId, TaskSpec, Worker, WorkerId};
use uuid::Uuid;

use super::back_ends::BackEndKind;
use crate::network::Clock;

/// A node, by its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Node {
    /// A scheduler.
    Scheduler(usize),
    /// A worker.
    Worker(usize),
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Node::Scheduler(at) => write!(f, "scheduler {at}"),
            Node::Worker(at) => write!(f, "worker {at}"),
        }
    }
}

/// A scheduler of a world.
#[derive(Clone, Debug)]
pub(crate) struct SchedulerSetup {
    pub(crate) at: usize,
    pub(crate) id: SchedulerId,
    pub(crate) settings: Settings,
}

impl SchedulerSetup {
    pub(super) fn new(at: usize, settings: Settings) -> SchedulerSetup {
        let id = SchedulerId::from_uuid(Uuid::from_u128(SCHEDULERS | at as u128));
        SchedulerSetup { at, id, settings }
    }
}

/// A worker of a world.
#[derive(Clone, Debug)]
pub struct WorkerSetup {
    /// Its description; its id must be the one of its index ([`WorkerSetup::id`]).
    pub worker: Arc<Worker>,
    /// How fast it is.
    pub speed: f64,
    /// How much tasks that run at once slow each other ([`Batching`](crate::batching::Batching)).
    pub batch_slowdown: f64,
    /// Its clock.
    pub clock: Clock,
    /// The schedulers that find it.
    pub known_to: Vec<usize>,
    /// A planted fault.
    pub mutant: Option<Mutant>,
    /// Its back end, if it is an HTTP worker of the one scheduler that finds it.
    pub back_end: Option<BackEndKind>,
    /// The terms of its owner.
    pub terms: Terms,
    /// What its owner does with it.
    pub owner: OwnerState,
}

impl WorkerSetup {
    /// The id of the worker at this index.
    pub fn id(at: usize) -> WorkerId {
        WorkerId::from_uuid(Uuid::from_u128(WORKERS | at as u128))
    }
}

/// Ids in a world carry the index of their node, so that no map is needed.
const WORKERS: u128 = 1 << 64;
const SCHEDULERS: u128 = 2 << 64;
const INDEX_MASK: u128 = (1 << 64) - 1;

pub(crate) fn worker_index(id: WorkerId) -> Option<usize> {
    let bits = id.uuid().as_u128();
    (bits & !INDEX_MASK == WORKERS).then_some((bits & INDEX_MASK) as usize)
}

pub(super) fn scheduler_index(id: SchedulerId) -> Option<usize> {
    let bits = id.uuid().as_u128();
    (bits & !INDEX_MASK == SCHEDULERS).then_some((bits & INDEX_MASK) as usize)
}

/// The index of a task, which its input carries.
pub fn index_of_spec(spec: &TaskSpec) -> Option<usize> {
    let bytes: [u8; 4] = spec.input.bytes().try_into().ok()?;
    Some(u32::from_le_bytes(bytes) as usize)
}
