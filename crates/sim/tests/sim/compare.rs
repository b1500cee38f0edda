//! The measurements of comparisons.

use hypha_model::Span;
use hypha_placement::Strategy;
use hypha_predict::LookupTable;
use hypha_sim::batching::Batching;
use hypha_sim::compare::{Comparison, FailureRates, PredictorInput, measure};
use hypha_sim::mix::Mix;
use hypha_sim::oracle::oracle;
use hypha_sim::predict::calibrate;
use hypha_sim::workload::Workload;

pub(crate) fn comparison(workload: Workload, pool: &str, tasks: usize) -> Comparison {
    Comparison {
        workload,
        pool: pool.parse().unwrap(),
        predictor_input: PredictorInput::InputOutput,
        noise: 0.2,
        tasks,
        latency: Span::ZERO,
        table: None,
        mix: Mix::default(),
        batching: Batching::NONE,
        failures: FailureRates::default(),
    }
}

pub(crate) fn mean_ms(comparison: &Comparison, strategy: Strategy, load: f64, seed: u64) -> f64 {
    measure(comparison, strategy, load, seed).unwrap().measures.latency.mean_ms
}

fn oracle_ms(comparison: &Comparison, load: f64, seed: u64) -> f64 {
    oracle(comparison, load, seed).unwrap().measures.latency.mean_ms
}

#[test]
fn every_strategy_finishes_every_workload() {
    for workload in [Workload::Poisson, Workload::Bimodal, Workload::Pareto, Workload::Burst] {
        let comparison = comparison(workload.clone(), "1x4.0,1x2.0,2x1.0", 500);
        for strategy in Strategy::all() {
            let measures = measure(&comparison, strategy, 0.7, 1).unwrap().measures;
            let it = measures.latency;
            let ascending = [0.0, it.p50_ms, it.p95_ms, it.p99_ms, it.p999_ms, it.max_ms];
            assert!(ascending.is_sorted() && it.mean_ms > 0.0, "{strategy} on {workload:?}");
            assert!(it.mean_ms <= it.max_ms && it.p50_ms > 0.0, "{strategy}: {measures:?}");
            assert!((0.0..=1.0).contains(&measures.utilisation), "{strategy}: {measures:?}");
            assert!((0.0..=1.0 + 1e-9).contains(&measures.fairness), "{strategy}: {measures:?}");
        }
    }
}

#[test]
fn a_run_repeats_for_its_seed() {
    let comparison = comparison(Workload::Burst, "1x2.0,3x1.0", 1_000);
    for strategy in [Strategy::default(), Strategy::Probabilistic, Strategy::Random] {
        let run = |seed| mean_ms(&comparison, strategy, 0.8, seed);
        assert_eq!(run(1).to_bits(), run(1).to_bits());
        assert_ne!(run(1).to_bits(), run(2).to_bits());
    }
}

/// One worker, one task at a time, no noise: the mean of an M/G/1 queue is known (Pollaczek and
/// Khinchine): W = load × E[S²] / (2 E[S] (1 - load)).
#[test]
fn single_queue_matches_theory() {
    let comparison = Comparison { noise: 0.0, ..comparison(Workload::Poisson, "1x1.0", 20_000) };
    let (mut measured_s, mut expected_s) = (0.0, 0.0);
    for seed in 1..=4 {
        let load = 0.5;
        let requests = Workload::Poisson.requests(seed, 1.0, load, 0.0, 20_000);
        let n = requests.len() as f64;
        let mean = requests.iter().map(|r| r.run_s).sum::<f64>() / n;
        let square = requests.iter().map(|r| r.run_s * r.run_s).sum::<f64>() / n;
        expected_s += mean + load * square / (2.0 * mean * (1.0 - load));
        measured_s += mean_ms(&comparison, Strategy::Fifo, load, seed) / 1e3;
    }
    let ratio = measured_s / expected_s;
    assert!((0.93..1.07).contains(&ratio), "measured {measured_s}, expected {expected_s}");
}

/// The README's claim on a small scale: on unequal workers, the predictive strategy beats binding at submission, and
/// comes close to an oracle.
#[test]
fn predictive_beats_others_and_is_near_the_oracle() {
    let comparison = comparison(Workload::Poisson, "1x4.0,1x2.0,6x1.0", 6_000);
    let mean =
        |strategy| (1..=3).map(|seed| mean_ms(&comparison, strategy, 0.8, seed)).sum::<f64>();
    let ours = mean(Strategy::default());
    for other in [Strategy::ShortestQueue, Strategy::RoundRobin, Strategy::Random] {
        assert!(ours < 0.95 * mean(other), "{other}: {} against {ours}", mean(other));
    }
    let knowing: f64 = (1..=3).map(|seed| oracle_ms(&comparison, 0.8, seed)).sum();
    assert!(ours < 1.15 * knowing, "{ours} against the oracle's {knowing}");
}

/// On a quiet pool the oracle runs everything on the fastest worker, at any index, and each task takes as long as it
/// takes alone: to the microsecond, the resolution of time.
#[test]
fn the_oracle_knows_the_speeds() {
    for pool in ["1x4.0,1x1.0", "1x1.0,1x4.0", "1x3.0,1x4.0,1x1.0", "2x1.0,1x4.0"] {
        // Far apart, so that none waits for another.
        let (load, tasks) = (2e-4, 100);
        let quiet = comparison(Workload::Poisson, pool, tasks);
        let requests = quiet.workload.requests(1, quiet.pool.total_speed(), load, 0.2, tasks);
        let best_ms: Vec<f64> = requests.iter().map(|r| r.run_s * 1e3 / 4.0).collect();
        let latency = oracle(&quiet, load, 1).unwrap().measures.latency;
        let mean_ms = best_ms.iter().sum::<f64>() / tasks as f64;
        assert!((latency.mean_ms - mean_ms).abs() < 0.001, "{pool}: {latency:?}, {mean_ms}");
        let max_ms = best_ms.iter().copied().fold(0.0, f64::max);
        assert!((latency.max_ms - max_ms).abs() < 0.001, "{pool}: {latency:?}, {max_ms}");
    }
}

#[test]
fn a_lookup_table_is_used() {
    // Every row is the opposite of the truth, so a scheduler that uses it chooses badly.
    let rows = "model,output_tokens,mean_ms,error_ms\nmodel,1,60000,10\nmodel,1000,10,10\n";
    let table = LookupTable::from_csv(rows).unwrap();
    let learned = comparison(Workload::Bimodal, "1x4.0,1x2.0,2x1.0", 2_000);
    let misled = Comparison { table: Some(table), ..learned.clone() };
    let mean = |comparison: &Comparison| mean_ms(comparison, Strategy::default(), 0.85, 1);
    assert!(mean(&misled) > 1.1 * mean(&learned), "{} {}", mean(&misled), mean(&learned));
}

#[test]
fn prediction_intervals_cover_their_share_for_every_predictor_input() {
    let pool = "1x4.0,1x2.0,6x1.0".parse().unwrap();
    for workload in [Workload::Poisson, Workload::Pareto] {
        let requests = workload.requests(1, 12.0, 0.8, 0.2, 8_000);
        for predictor_input in
            [PredictorInput::InputOutput, PredictorInput::Input, PredictorInput::Nothing]
        {
            let calibration = calibrate(&requests, &pool, predictor_input, None);
            let [half, ninety, most] = calibration.coverage_percent();
            assert!((45.0..55.0).contains(&half), "{predictor_input}: {half}");
            assert!((85.0..95.0).contains(&ninety), "{predictor_input}: {ninety}");
            assert!((97.0..=100.0).contains(&most), "{predictor_input}: {most}");
        }
        let informed = calibrate(&requests, &pool, PredictorInput::InputOutput, None);
        assert!(informed.mean_absolute_percentage_error() < 25.0);
    }
}
