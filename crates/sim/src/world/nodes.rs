//! The nodes of a world: a machine with what surrounds it.

use std::collections::BTreeMap;
use std::sync::Arc;

use hypha_engine::{
    Image, Leaving, Mutant, Record, RunId, Scheduler, SchedulerStep, Settings, WorkerMachine,
    WorkerRecord, WorkerStep,
};
use hypha_model::{Epoch, SchedulerId, Span, TaskSpec, Time, Worker, WorkerId};
use uuid::Uuid;

use super::faults::CrashPoint;
use crate::network::Clock;

/// A worker of a world.
#[derive(Clone, Debug)]
pub struct WorkerSetup {
    /// What it says of itself; its id must be the one of its place ([`WorkerSetup::id`]).
    pub worker: Arc<Worker>,
    /// How fast it is.
    pub speed: f64,
    /// Its clock.
    pub clock: Clock,
    /// The schedulers that find it.
    pub known_to: Vec<usize>,
    /// A planted fault.
    pub mutant: Option<Mutant>,
}

impl WorkerSetup {
    /// The id of the worker at this place.
    pub fn id(at: usize) -> WorkerId {
        WorkerId::from_uuid(Uuid::from_u128(WORKERS | at as u128))
    }
}

/// Ids in a world carry the place of their node, so that no map is needed.
const WORKERS: u128 = 1 << 64;
const SCHEDULERS: u128 = 2 << 64;
const PLACE: u128 = (1 << 64) - 1;

pub(super) fn worker_index(id: WorkerId) -> Option<usize> {
    let bits = id.uuid().as_u128();
    (bits & !PLACE == WORKERS).then_some((bits & PLACE) as usize)
}

pub(super) fn scheduler_index(id: SchedulerId) -> Option<usize> {
    let bits = id.uuid().as_u128();
    (bits & !PLACE == SCHEDULERS).then_some((bits & PLACE) as usize)
}

/// The index of a task, which its input carries.
pub fn index_of_spec(spec: &TaskSpec) -> Option<usize> {
    let bytes: [u8; 4] = spec.input.bytes().try_into().ok()?;
    Some(u32::from_le_bytes(bytes) as usize)
}

pub(crate) struct SchedulerNode {
    pub(crate) at: usize,
    pub(crate) id: SchedulerId,
    pub(crate) settings: Settings,
    pub(crate) machine: Option<Scheduler>,
    pub(crate) image: Durable,
    pub(super) seed: u64,
    pub(super) life: u32,
    pub(super) crash: Option<CrashPoint>,
    pub(super) wake_at: Option<Time>,
    pub(super) step: SchedulerStep,
}

/// What is durable. A world that never restarts a scheduler keeps only what it began with: a million tasks
/// would fill the memory.
pub(crate) enum Durable {
    All(Box<Image>),
    Beginning(Box<Image>),
}

impl Durable {
    pub(super) fn apply(&mut self, record: &Record) {
        if let Durable::All(image) = self {
            image.apply(record);
        }
    }

    pub(super) fn clone_image(&self) -> Image {
        match self {
            Durable::All(image) | Durable::Beginning(image) => (**image).clone(),
        }
    }
}

impl SchedulerNode {
    pub(super) fn new(
        at: usize,
        settings: Settings,
        image: Image,
        thorough: bool,
        seed: u64,
    ) -> SchedulerNode {
        let image = Box::new(image);
        SchedulerNode {
            at,
            id: SchedulerId::from_uuid(Uuid::from_u128(SCHEDULERS | at as u128)),
            settings,
            machine: None,
            image: if thorough { Durable::All(image) } else { Durable::Beginning(image) },
            seed,
            life: 0,
            crash: None,
            wake_at: None,
            step: SchedulerStep::default(),
        }
    }
}

pub(crate) struct WorkerNode {
    pub(crate) setup: WorkerSetup,
    pub(crate) machine: Option<WorkerMachine>,
    pub(crate) clock: Clock,
    pub(crate) busy: Span,
    pub(super) slowness: f64,
    pub(super) seed: u64,
    pub(crate) epoch: Epoch,
    /// The last life that ended in order.
    pub(super) left: Option<Leaving>,
    pub(super) life: u32,
    pub(super) wake_at: Option<Time>,
    pub(super) step: WorkerStep,
    runs: BTreeMap<RunId, RunningTask>,
}

/// A run of an executor.
#[derive(Clone, Copy, Debug)]
pub(super) struct RunningTask {
    pub(super) index: usize,
    pub(super) stopped: bool,
    since: Time,
}

impl WorkerNode {
    pub(super) fn new(setup: WorkerSetup, seed: u64) -> WorkerNode {
        WorkerNode {
            clock: setup.clock,
            setup,
            machine: None,
            busy: Span::ZERO,
            slowness: 1.0,
            seed,
            epoch: Epoch::default(),
            left: None,
            life: 0,
            wake_at: None,
            step: WorkerStep::default(),
            runs: BTreeMap::new(),
        }
    }

    /// Something became durable.
    pub(super) fn keep(&mut self, record: &WorkerRecord) {
        match record {
            WorkerRecord::Started(epoch) => self.epoch = *epoch,
            WorkerRecord::Left(left) => self.left = Some(*left),
        }
    }

    pub(super) fn speed(&self) -> f64 {
        self.setup.speed / self.slowness
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.runs.is_empty()
    }

    pub(super) fn begin_run(&mut self, id: RunId, index: usize, now: Time) {
        self.runs.insert(id, RunningTask { index, stopped: false, since: now });
    }

    pub(super) fn stop_run(&mut self, id: RunId) {
        if let Some(run) = self.runs.get_mut(&id) {
            run.stopped = true;
        }
    }

    pub(super) fn end_run(&mut self, id: RunId, now: Time) -> Option<RunningTask> {
        let run = self.runs.remove(&id)?;
        self.busy += now.since(run.since);
        Some(run)
    }

    pub(super) fn kill(&mut self, now: Time) {
        for run in std::mem::take(&mut self.runs).into_values() {
            self.busy += now.since(run.since);
        }
        self.machine = None;
        self.life += 1;
        self.wake_at = None;
    }
}
