//! Tasks, workers and a trained predictor for the scenarios.

use std::sync::Arc;

use hypha_model::{
    Capacity, Executor, ExecutorClass, Metadata, Money, Payload, Requirement, Rng, Span, TaskSpec,
    Time, Worker, WorkerId,
};
use hypha_predict::{Predictor, Query, Settings, WorkerKey};

/// When every scenario begins.
pub(crate) const START: Time = Time::from_micros(1_700_000_000_000_000);

/// Different tasks of one model.
const SPECS: usize = 64;

/// Run times from which a predictor learns each of its workers.
const OBSERVATIONS_PER_WORKER: usize = 6;

/// The speeds of the workers.
pub(crate) const SPEEDS: [u64; 3] = [1, 2, 4];

/// A request to a model, of some length.
pub(crate) fn spec(rng: &mut Rng) -> TaskSpec {
    let numbers = [
        ("input_tokens", 1.0 + rng.below(8_000) as f64),
        ("output_tokens", 1.0 + rng.below(800) as f64),
    ];
    TaskSpec {
        requirement: Requirement { model: "llama-2-7b".parse().ok(), ..Requirement::default() },
        input: Payload::from(vec![b'x'; 100]),
        metadata: Metadata::of_numbers(&numbers),
        ..TaskSpec::default()
    }
}

/// A worker that serves every model, `at_once` tasks at a time.
pub(crate) fn worker(at_once: u32, rng: &mut Rng) -> anyhow::Result<Arc<Worker>> {
    let executor = Executor {
        class: ExecutorClass::Inference,
        name: "vllm".parse()?,
        models: Vec::new(),
        concurrency: at_once,
    };
    let capacity = Capacity { cpu_milli: 8_000, memory_bytes: 32 << 30, ..Capacity::default() };
    Ok(Arc::new(Worker {
        id: WorkerId::new(START, rng),
        capacity,
        executors: vec![executor],
        hardware: None,
        region: None,
        price: Money::default(),
    }))
}

/// A predictor that has learned from tasks of all of these workers.
pub(crate) struct TrainedPredictor {
    pub(crate) predictor: Predictor,
    pub(crate) workers: Vec<(Arc<Worker>, WorkerKey)>,
    pub(crate) specs: Vec<Arc<TaskSpec>>,
    pub(crate) queries: Vec<Query>,
}

impl TrainedPredictor {
    pub(crate) fn new(workers: usize) -> anyhow::Result<TrainedPredictor> {
        let mut rng = Rng::new(1);
        let mut predictor = Predictor::new(Settings::default());
        let workers = (0..workers)
            .map(|_| {
                let worker = worker(1, &mut rng)?;
                let key = predictor.add_worker(worker.id, None);
                Ok((worker, key))
            })
            .collect::<anyhow::Result<Vec<_>>>()?;
        let specs: Vec<_> = (0..SPECS).map(|_| Arc::new(spec(&mut rng))).collect();
        let queries: Vec<_> = specs.iter().map(|spec| predictor.query(spec)).collect();
        let mut trained = TrainedPredictor { predictor, workers, specs, queries };
        (0..OBSERVATIONS_PER_WORKER * trained.workers.len()).for_each(|at| trained.observe(at));
        Ok(trained)
    }

    /// Learns one run time; its number determines which.
    pub(crate) fn observe(&mut self, at: usize) {
        let worker = at % self.workers.len();
        let run_us = 1_500_000 + (at as u64 * 7_919) % 1_000_000;
        let run = Span::from_micros(run_us / SPEEDS[worker % SPEEDS.len()]);
        let key = self.workers[worker].1;
        self.predictor.observe(&self.queries[at % SPECS], key, run);
    }
}
