//! The fixtures of the tests: workers, tasks, and a placement with its predictor and clock.

use std::sync::Arc;

use hypha_model::{
    Capacity, Device, Executor, ExecutorClass, Metadata, Money, Name, Requirement, Rng, Span,
    TaskSpec, Time, Worker, WorkerId,
};
use hypha_placement::{
    Action, AttemptEnd, Health, Placement, PlacementRequest, Preferences, Strategy, TaskRef,
    WorkerSlot,
};
use hypha_predict::{Predictor, Settings, WorkerKey};

pub(crate) const GIB: u64 = 1 << 30;

pub(crate) fn name(text: &str) -> Name {
    text.parse().unwrap()
}

pub(crate) fn executor(named: &str, models: &[&str], concurrency: u32) -> Executor {
    Executor {
        class: ExecutorClass::Inference,
        name: name(named),
        models: models.iter().map(|model| name(model)).collect(),
        concurrency,
    }
}

/// A worker that runs one task at a time and states no amounts.
pub(crate) fn plain() -> Worker {
    Worker {
        id: WorkerId::new(Time::ZERO, &mut Rng::new(0)),
        capacity: Capacity::default(),
        executors: vec![executor("vllm", &[], 1)],
        hardware: None,
        region: None,
        price: Money::default(),
    }
}

pub(crate) fn gpus(count: usize) -> Vec<Device> {
    vec![Device { model: name("A100"), memory_bytes: 40 * GIB, milli_gpu: 1_000 }; count]
}

/// A placement with a clock, for tests of several steps.
pub(crate) struct Fixture {
    pub(crate) placement: Placement,
    pub(crate) predictor: Predictor,
    pub(crate) now: Time,
    pub(crate) keys: Vec<WorkerKey>,
    rng: Rng,
    tasks: u32,
}

impl Fixture {
    pub(crate) fn new(strategy: Strategy) -> Fixture {
        Fixture::with(strategy, Preferences::default())
    }

    pub(crate) fn with(strategy: Strategy, preferences: Preferences) -> Fixture {
        Fixture {
            placement: Placement::new(strategy, preferences, 7),
            predictor: Predictor::new(Settings::default()),
            now: Time::from_micros(1_000_000_000),
            keys: Vec::new(),
            rng: Rng::new(9),
            tasks: 0,
        }
    }

    /// `count` plain workers under `strategy`.
    pub(crate) fn of(strategy: Strategy, count: usize) -> Fixture {
        let mut fixture = Fixture::new(strategy);
        (0..count).for_each(|_| {
            fixture.join(plain());
        });
        fixture
    }

    /// A worker joins and is available.
    pub(crate) fn join(&mut self, worker: Worker) -> WorkerSlot {
        self.join_healthy(worker, Health::default())
    }

    pub(crate) fn join_healthy(&mut self, worker: Worker, health: Health) -> WorkerSlot {
        let worker = Worker { id: WorkerId::new(self.now, &mut self.rng), ..worker };
        let key = self.predictor.add_worker(worker.id, worker.hardware.as_ref());
        let hardware = self.predictor.hardware(worker.hardware.as_ref());
        self.keys.push(key);
        let slot = self.placement.add_worker(Arc::new(worker), key, hardware, health, self.now);
        self.placement.set_factor(slot, self.predictor.factor(key), self.now);
        self.placement.set_available(slot, true, self.now);
        slot
    }

    /// A worker of a known speed: the predictor has enough completions of it.
    pub(crate) fn join_fast(&mut self, speed: f64) -> WorkerSlot {
        let slot = self.join(plain());
        let key = self.keys[slot.0 as usize];
        let query = self.predictor.query(&spec_of(1.0));
        for _ in 0..200 {
            self.predictor.observe(&query, key, Span::from_secs_f64(1.0 / speed));
        }
        for (slot, key) in self.keys.iter().enumerate() {
            let factor = self.predictor.factor(*key);
            self.placement.set_factor(WorkerSlot(slot as u32), factor, self.now);
        }
        slot
    }

    pub(crate) fn request(&mut self, spec: TaskSpec) -> PlacementRequest {
        let query = self.predictor.query(&spec);
        PlacementRequest {
            spec: Arc::new(spec),
            query,
            submitted: self.now,
            bind_at_once: false,
            interactive: false,
            failed_on: Box::default(),
        }
    }

    /// A task arrives, a microsecond after the previous one.
    pub(crate) fn arrive(&mut self, spec: TaskSpec) -> TaskRef {
        let request = self.request(spec);
        self.arrive_with(request)
    }

    pub(crate) fn arrive_with(&mut self, request: PlacementRequest) -> TaskRef {
        let task = TaskRef(self.tasks);
        self.tasks += 1;
        self.placement.arrive(task, request, &self.predictor);
        self.now = self.now + Span::from_micros(1);
        task
    }

    pub(crate) fn arrive_many(&mut self, count: usize) -> Vec<TaskRef> {
        (0..count).map(|_| self.arrive(TaskSpec::default())).collect()
    }

    pub(crate) fn plan(&mut self) -> Vec<Action> {
        let mut actions = Vec::new();
        self.placement.plan(&self.predictor, self.now, &mut actions);
        self.placement.check(self.now).unwrap();
        assert_eq!(self.placement.unexplained(&self.predictor, self.now), None);
        actions
    }

    /// A task arrives alone and is planned. Returns the worker that it went to.
    pub(crate) fn place(&mut self, spec: TaskSpec) -> Option<WorkerSlot> {
        let task = self.arrive(spec);
        self.plan();
        self.placement.worker_of(task)
    }

    pub(crate) fn place_plain(&mut self) -> Option<u32> {
        self.place(TaskSpec::default()).map(|slot| slot.0)
    }

    pub(crate) fn later(&mut self, seconds: f64) {
        self.now = self.now + Span::from_secs_f64(seconds);
    }

    pub(crate) fn complete(&mut self, task: TaskRef, seconds: f64) {
        let run = Span::from_secs_f64(seconds);
        self.placement.finish(task, AttemptEnd::Completed(run), self.now);
    }

    pub(crate) fn fail(&mut self, task: TaskRef) {
        self.placement.finish(task, AttemptEnd::Failed, self.now);
    }

    pub(crate) fn where_is(&self, task: TaskRef) -> Option<u32> {
        self.placement.worker_of(task).map(|slot| slot.0)
    }
}

pub(crate) fn asking(requirement: Requirement) -> TaskSpec {
    TaskSpec { requirement, ..TaskSpec::default() }
}

/// A task whose client states that it takes `seconds`.
pub(crate) fn spec_of(seconds: f64) -> TaskSpec {
    let estimated_time = Some(Span::from_secs_f64(seconds));
    TaskSpec {
        requirement: Requirement { estimated_time, ..Requirement::default() },
        metadata: Metadata::of_numbers(&[("work", seconds)]),
        ..TaskSpec::default()
    }
}

/// The tasks that a plan dispatches, in order.
pub(crate) fn dispatched(actions: &[Action]) -> Vec<(u32, u32)> {
    let dispatch = |action: &Action| match action {
        Action::Dispatch { task, slot } => Some((task.0, slot.0)),
        _ => None,
    };
    actions.iter().filter_map(dispatch).collect()
}
