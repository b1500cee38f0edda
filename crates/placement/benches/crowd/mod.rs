//! Workers of several speeds and a predictor that has learned how fast they are: the shared part of the benches.

use std::sync::Arc;

use hypha_model::{
    Capacity, Executor, ExecutorClass, Metadata, Money, Name, Requirement, Rng, Span, TaskSpec,
    Time, Worker, WorkerId,
};
use hypha_placement::{Health, Placement, Preferences, Strategy};
use hypha_predict::{HardwareKey, Predictor, Query, Settings, WorkerKey};

pub(crate) const SPEEDS: [f64; 3] = [1.0, 2.0, 4.0];
/// The mean run time on a worker of speed 1.
pub(crate) const MEAN_RUN_S: f64 = 1.0;
/// When the workers join.
pub(crate) const START: Time = Time::from_micros(1_000_000_000);
/// Longer runs are cut off.
pub(crate) const MOST_NOISE: f64 = 1.0;
/// The logarithm of a run time has this spread: predictions are about 30 % off.
const SPREAD: f64 = 0.3;
/// Completions from which each worker's factor was learned.
const LESSONS: usize = 6;

/// See the module documentation.
pub(crate) struct Crowd {
    pub(crate) workers: Vec<(Arc<Worker>, WorkerKey)>,
    pub(crate) predictor: Predictor,
    pub(crate) spec: Arc<TaskSpec>,
    pub(crate) query: Query,
}

impl Crowd {
    /// Workers that serve `models`, with this concurrency.
    pub(crate) fn new(size: usize, models: Vec<Name>, concurrency: u32) -> Crowd {
        let mut rng = Rng::new(size as u64);
        let mut predictor = Predictor::new(Settings::default());
        let (class, name) = (ExecutorClass::Inference, "vllm".parse().unwrap());
        let executor = Executor { class, name, models, concurrency };
        let workers: Vec<_> = (0..size)
            .map(|_| {
                let id = WorkerId::new(Time::ZERO, &mut rng);
                let worker = Arc::new(Worker {
                    id,
                    capacity: Capacity::default(),
                    executors: vec![executor.clone()],
                    hardware: None,
                    region: None,
                    price: Money::default(),
                });
                (worker, predictor.add_worker(id, None))
            })
            .collect();
        let spec = Arc::new(TaskSpec {
            requirement: Requirement { model: "llama".parse().ok(), ..Requirement::default() },
            metadata: Metadata::of_numbers(&[("input_tokens", 1_000.0), ("output_tokens", 100.0)]),
            ..TaskSpec::default()
        });
        let query = predictor.query(&spec);
        for _ in 0..LESSONS {
            for (at, (_, key)) in workers.iter().enumerate() {
                predictor.observe(&query, *key, run(at, &mut rng));
            }
        }
        Crowd { workers, predictor, spec, query }
    }

    /// A placement that all of them have joined.
    pub(crate) fn placement(&self, strategy: Strategy) -> Placement {
        let mut placement = Placement::new(strategy, Preferences::default(), 1);
        for (worker, key) in &self.workers {
            let (worker, health) = (Arc::clone(worker), Health::default());
            let slot = placement.add_worker(worker, *key, HardwareKey(0), health, START);
            placement.set_factor(slot, self.predictor.factor(*key), START);
            placement.record_contact(slot, Span::from_micros(500), START);
            placement.set_available(slot, true, START);
        }
        placement
    }
}

/// How long a task takes on the worker in slot `at`.
pub(crate) fn run(at: usize, rng: &mut Rng) -> Span {
    let noise = (SPREAD * rng.normal()).clamp(-MOST_NOISE, MOST_NOISE).exp();
    Span::from_secs_f64(MEAN_RUN_S * noise / SPEEDS[at % SPEEDS.len()])
}
