//! The oracle: our own strategy, with every run time known beforehand, exactly.
//!
//! It knows the run time of a task alone: its true run time at speed 1, noise included, over the true speed of each
//! worker. It does not know which tasks will arrive, what will fail, or how tasks that run at once slow each other.

use hypha_engine::Image;
use hypha_model::Name;
use hypha_placement::{Predictive, Strategy};
use hypha_predict::Predictor;

use crate::checkers::Violation;
use crate::compare::{Comparison, PredictorInput, measure};
use crate::pool::PoolSpec;
use crate::report::MeasuredRun;

/// Runs our own strategy once, with every run time known beforehand.
pub fn oracle(comparison: &Comparison, load: f64, seed: u64) -> Result<MeasuredRun, Violation> {
    let knowing =
        Comparison { predictor_input: PredictorInput::Truth, table: None, ..comparison.clone() };
    // With everything known there is nothing to explore.
    let strategy = Predictive { exploration: 0.0, ..Predictive::default() };
    measure(&knowing, Strategy::Predictive(strategy), load, seed)
}

/// The label from which the oracle knows the speed of a worker.
pub(crate) fn hardware(speed: f64) -> Option<Name> {
    format!("speed {speed}").parse().ok()
}

/// A store with a predictor that knows the speeds of the pool.
pub(crate) fn image(pool: &PoolSpec) -> Image {
    let mut speeds: Vec<(Name, f64)> =
        pool.speeds().into_iter().filter_map(|speed| Some((hardware(speed)?, speed))).collect();
    speeds.sort_by(|(a, _), (b, _)| a.cmp(b));
    speeds.dedup_by(|(a, _), (b, _)| a == b);
    Image { predictor: Some(Predictor::oracle(&speeds).snapshot()), ..Image::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batching::Batching;
    use crate::compare::{FailureRates, Requests};
    use crate::mix::Mix;
    use crate::workload::Workload;
    use crate::world::{Arrivals, WorkerSetup};
    use hypha_model::Span;

    const TASKS: usize = 50;

    /// The oracle's prediction for each task on each worker is its run time there when it runs alone.
    #[test]
    fn predictions_equal_run_times_alone() {
        let pool: PoolSpec = "1x0.5,2x1.0,1x1.01,1x4.0,1x333.3".parse().unwrap();
        let predictor = image(&pool).predictor.unwrap();
        let mut predictor = Predictor::restore(Default::default(), predictor);
        for (at, speed) in pool.speeds().into_iter().enumerate() {
            let comparison = Comparison {
                workload: Workload::Poisson,
                pool: format!("1x{speed:?}").parse().unwrap(),
                predictor_input: PredictorInput::Truth,
                noise: 0.5,
                tasks: TASKS,
                latency: Span::ZERO,
                table: None,
                mix: Mix::default(),
                // So slow together that an overlap of two would show.
                batching: Batching { at_once: 4, slowdown: 3.0 },
                failures: FailureRates::default(),
            };
            // Far apart, so that none waits for another.
            let load = 2e-4;
            let peak_speed = speed * comparison.batching.peak();
            let requests = comparison.workload.requests(1, peak_speed, load, 0.5, TASKS);
            let tasks = Requests::new(&comparison, requests, 1);
            let worker = predictor.add_worker(WorkerSetup::id(at), hardware(speed).as_ref());
            let mut predicted_ms: Vec<f64> = (0..TASKS)
                .map(|index| {
                    let query = predictor.query(&tasks.task(index).spec);
                    let estimate = predictor.estimate(&query, worker);
                    assert_eq!(estimate.error_s, 0.0);
                    estimate.mean_s * 1e3
                })
                .collect();
            predicted_ms.sort_by(f64::total_cmp);
            let latency = oracle(&comparison, load, 1).unwrap().measures.latency;
            let happened = [latency.mean_ms, latency.p50_ms, latency.p95_ms, latency.max_ms];
            let mean_ms = predicted_ms.iter().sum::<f64>() / TASKS as f64;
            let predicted = [mean_ms, predicted_ms[24], predicted_ms[47], predicted_ms[49]];
            for (happened, predicted) in happened.iter().zip(predicted) {
                // A microsecond: the resolution of time.
                assert!((happened - predicted).abs() <= 0.001, "{speed}: {happened}, {predicted}");
            }
        }
    }
}
