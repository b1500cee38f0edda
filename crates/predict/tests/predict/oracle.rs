//! An oracle: a predictor that has every run time beforehand.

use hypha_model::{Metadata, Name, Span, TaskSpec};
use hypha_predict::{ORACLE_RUN_S, Predictor, Settings, Snapshot, WorkerKey};

use crate::world::worker_id;

const SPEEDS: [(&str, f64); 3] = [("slow", 0.3), ("usual", 1.0), ("fast", 7.0)];

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn spec(run_s: f64) -> TaskSpec {
    TaskSpec { metadata: Metadata::of_numbers(&[(ORACLE_RUN_S, run_s)]), ..TaskSpec::default() }
}

fn oracle_with_workers() -> (Predictor, Vec<WorkerKey>) {
    let mut predictor = Predictor::oracle(&SPEEDS.map(|(label, speed)| (name(label), speed)));
    let add = |(at, (label, _)): (usize, &(&str, f64))| {
        predictor.add_worker(worker_id(at as u128), Some(&name(label)))
    };
    let workers = SPEEDS.iter().enumerate().map(add).collect();
    (predictor, workers)
}

#[track_caller]
fn check(predictor: &mut Predictor, workers: &[WorkerKey]) {
    for run_s in [1e-3, 0.6, 3.7, 1e5] {
        let query = predictor.query(&spec(run_s));
        for (worker, (label, speed)) in workers.iter().zip(SPEEDS) {
            let estimate = predictor.estimate(&query, *worker);
            let (mean_s, error_s) = (estimate.mean_s, estimate.error_s);
            assert_eq!((mean_s, error_s), (run_s / speed, 0.0), "{run_s} s, {label}");
            assert_eq!(predictor.factor(*worker), 1.0);
        }
    }
}

#[test]
fn predictions_are_exact_whatever_is_measured() {
    let (mut predictor, workers) = oracle_with_workers();
    check(&mut predictor, &workers);
    // Batches and failures make runs take longer than alone; the predictions do not change.
    for at in 0..200 {
        let query = predictor.query(&spec(1.0));
        predictor.observe(&query, workers[at % 3], Span::from_secs(9 + at as u64));
    }
    check(&mut predictor, &workers);
}

/// The scheduler's image carries it within a process; no file can.
#[test]
fn oracle_speeds_are_in_a_snapshot_but_not_in_its_bytes() {
    let (predictor, _) = oracle_with_workers();
    let snapshot = predictor.snapshot();
    let text = serde_json::to_string(&snapshot).unwrap();
    let mut restored = Predictor::restore(Settings::default(), snapshot);
    let add = |(at, (label, _)): (usize, &(&str, f64))| {
        restored.add_worker(worker_id(at as u128), Some(&name(label)))
    };
    let workers: Vec<WorkerKey> = SPEEDS.iter().enumerate().map(add).collect();
    check(&mut restored, &workers);
    let read: Snapshot = serde_json::from_str(&text).unwrap();
    let mut learning = Predictor::restore(Settings::default(), read);
    let worker = learning.add_worker(worker_id(9), Some(&name("fast")));
    let query = learning.query(&spec(700.0));
    assert!(learning.estimate(&query, worker).error_s > 0.0);
}
