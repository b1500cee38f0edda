//! A synthetic swarm: eight workers of three speeds that report no hardware, and requests with known costs.

use hypha_model::{Metadata, Name, Requirement, Rng, Span, TaskSpec, WorkerId};
use hypha_predict::{Calibration, Predictor, Query, Settings, WorkerKey};
use uuid::Uuid;

/// How much of a request the client states.
#[derive(Clone, Copy, Debug)]
pub(crate) enum KnownFeatures {
    Everything,
    InputOnly,
    Nothing,
}

pub(crate) const SPEEDS: [f64; 8] = [4.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];

pub(crate) struct World {
    pub(crate) rng: Rng,
    pub(crate) predictor: Predictor,
    pub(crate) workers: Vec<WorkerKey>,
    pub(crate) noise: f64,
}

/// A request with its true cost on a worker of speed 1.
pub(crate) struct Request {
    pub(crate) input: f64,
    pub(crate) output: f64,
}

impl Request {
    pub(crate) fn cost_s(&self) -> f64 {
        0.02 + self.input / 4_000.0 + self.output / 40.0
    }
}

pub(crate) fn worker_id(number: u128) -> WorkerId {
    WorkerId::from_uuid(Uuid::from_u128(number))
}

pub(crate) fn name(text: &str) -> Name {
    text.parse().unwrap()
}

pub(crate) fn spec(model: &str, numbers: &[(&str, f64)]) -> TaskSpec {
    TaskSpec {
        requirement: Requirement { model: Some(name(model)), ..Requirement::default() },
        metadata: Metadata::of_numbers(numbers),
        ..TaskSpec::default()
    }
}

impl World {
    pub(crate) fn new(seed: u64) -> World {
        let mut predictor = Predictor::new(Settings::default());
        let workers = (0..8).map(|i| predictor.add_worker(worker_id(i), None)).collect();
        World { rng: Rng::new(seed), predictor, workers, noise: 0.2 }
    }

    /// Input lognormal between 100 and 8000 tokens, output geometric between 5 and 800.
    pub(crate) fn request(&mut self) -> Request {
        let input = (1_000.0 * (0.9 * self.rng.normal()).exp()).clamp(100.0, 8_000.0).round();
        let output = (5.0 + 120.0 * self.rng.exponential()).min(800.0).round();
        Request { input, output }
    }

    pub(crate) fn query(&mut self, request: &Request, known: KnownFeatures) -> Query {
        let both = [("input_tokens", request.input), ("output_tokens", request.output)];
        let known = match known {
            KnownFeatures::Everything => &both[..],
            KnownFeatures::InputOnly => &both[..1],
            KnownFeatures::Nothing => &[],
        };
        self.predictor.query(&spec("llama", known))
    }

    /// Runs a request on a worker that takes `cost_s / speed`, with noise.
    pub(crate) fn run(&mut self, query: &Query, worker: usize, cost_s: f64) -> f64 {
        let seconds = cost_s / SPEEDS[worker] * (self.noise * self.rng.normal()).exp();
        self.predictor.observe(query, self.workers[worker], Span::from_secs_f64(seconds));
        seconds
    }

    /// Runs `count` requests on random workers, and judges the predictions after the first `warm_up`.
    pub(crate) fn measure_calibration(
        &mut self,
        known: KnownFeatures,
        warm_up: usize,
        count: usize,
    ) -> Calibration {
        let mut calibration = Calibration::default();
        for at in 0..count {
            let request = self.request();
            let query = self.query(&request, known);
            let worker = self.rng.below(8) as usize;
            let before = self.predictor.estimate(&query, self.workers[worker]);
            let seconds = self.run(&query, worker, request.cost_s());
            if at >= warm_up {
                calibration.observe(&before, seconds);
            }
        }
        calibration
    }
}
