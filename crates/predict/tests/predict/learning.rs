//! What is learned, how fast, and how it follows changes.

use std::sync::Arc;

use hypha_model::{Metadata, MetadataValue, Span, TaskSpec};
use hypha_predict::{Predictor, Settings, WorkerKey};

use crate::world::{KnownFeatures, Request, SPEEDS, World, name, spec, worker_id};

const PROBE: Request = Request { input: 1_000.0, output: 100.0 };

/// The error of the estimate for a usual request on a worker, as a logarithm.
fn off(world: &mut World, worker: usize, slower: f64) -> f64 {
    let query = world.query(&PROBE, KnownFeatures::Everything);
    let estimate = world.predictor.estimate(&query, world.workers[worker]);
    (estimate.mean_s / (PROBE.cost_s() * slower / SPEEDS[worker])).ln()
}

fn run_one(world: &mut World, worker: usize, slower: f64) {
    let request = world.request();
    let query = world.query(&request, KnownFeatures::Everything);
    world.run(&query, worker, request.cost_s() * slower);
}

#[test]
fn five_completions_each_distinguish_fast_workers_from_slow_ones() {
    let mut sum = 0.0;
    for seed in 0..20 {
        let mut world = World::new(seed);
        for i in 0..40 {
            run_one(&mut world, i % 8, 1.0);
        }
        for worker in 0..8 {
            let off = off(&mut world, worker, 1.0).abs();
            assert!(off < 0.5, "seed {seed}, worker {worker}: {off}");
            sum += off / 160.0;
        }
        let time = |world: &World, worker: usize| world.predictor.factor(world.workers[worker]);
        for slow in 2..8 {
            let ratio = time(&world, slow) / time(&world, 0);
            assert!((2.0..8.0).contains(&ratio), "seed {seed}: {ratio} instead of 4");
        }
    }
    assert!(sum < 0.15, "{sum}");
}

/// A few runs of unknown tasks tell more about the tasks than about the workers.
#[test]
fn workers_count_as_equal_until_they_surely_differ() {
    let mut apart = 0;
    for seed in 0..20 {
        let mut world = World::new(seed);
        // Only the workers of speed 1, each a few times.
        for i in 0..18 {
            run_one(&mut world, 2 + i % 6, 1.0);
        }
        let factors: Vec<f64> = (2..8).map(|i| world.predictor.factor(world.workers[i])).collect();
        apart += factors.iter().filter(|factor| **factor != factors[0]).count();
        // A worker that has run nothing is as fast as they are.
        let new = world.predictor.factor(world.workers[1]);
        assert!(factors.contains(&new), "seed {seed}: {new} and {factors:?}");
    }
    assert!(apart < 20, "{apart} of 120");
}

#[test]
fn slowdown_of_one_worker_is_learned_without_affecting_the_others() {
    for seed in 0..10 {
        let mut world = World::new(seed);
        world.measure_calibration(KnownFeatures::Everything, 0, 400);
        for i in 0..30 {
            run_one(&mut world, 3, 2.0);
            run_one(&mut world, i % 3, 1.0);
        }
        let (changed, same) = (off(&mut world, 3, 2.0), off(&mut world, 5, 1.0));
        assert!(changed.abs() < 0.2, "seed {seed}: {changed}");
        assert!(same.abs() < 0.2, "seed {seed}: {same}");
    }
}

#[test]
fn slowdown_of_a_model_is_learned() {
    for seed in 0..10 {
        let mut world = World::new(seed);
        world.measure_calibration(KnownFeatures::Everything, 0, 400);
        for _ in 0..30 {
            let worker = world.rng.below(8) as usize;
            run_one(&mut world, worker, 2.0);
        }
        let off: Vec<f64> = (0..8).map(|worker| off(&mut world, worker, 2.0)).collect();
        assert!(off.iter().all(|off| off.abs() < 0.3), "seed {seed}: {off:.2?}");
    }
}

#[test]
fn one_absurd_time_does_not_wreck_what_was_learned() {
    let mut world = World::new(1);
    world.measure_calibration(KnownFeatures::Everything, 0, 400);
    let before = off(&mut world, 4, 1.0);
    let query = world.query(&PROBE, KnownFeatures::Everything);
    world.predictor.observe(&query, world.workers[4], Span::MAX);
    world.predictor.observe(&query, world.workers[4], Span::ZERO);
    world.predictor.observe(&query, world.workers[4], Span::MAX);
    assert!((off(&mut world, 4, 1.0) - before).abs() < 0.15);
}

#[test]
fn category_changes_the_time_but_not_the_workers_factor() {
    let mut predictor = Predictor::new(Settings::default());
    let worker = predictor.add_worker(worker_id(1), None);
    let of = |precision: &str| TaskSpec {
        metadata: Metadata::new([(Arc::from("precision"), MetadataValue::Text(precision.into()))])
            .unwrap(),
        ..spec("m", &[])
    };
    let (slow, fast) = (predictor.query(&of("fp32")), predictor.query(&of("int4")));
    for _ in 0..50 {
        predictor.observe(&slow, worker, Span::from_secs(8));
        predictor.observe(&fast, worker, Span::from_secs(2));
    }
    let mean = |query| predictor.estimate(query, worker).mean_s;
    assert!((mean(&slow) / 8.0).ln().abs() < 0.15, "{}", mean(&slow));
    assert!((mean(&fast) / 2.0).ln().abs() < 0.15, "{}", mean(&fast));
}

#[test]
fn estimate_is_the_base_times_the_factor_and_wider() {
    let mut world = World::new(2);
    world.measure_calibration(KnownFeatures::Everything, 0, 100);
    let query = world.query(&PROBE, KnownFeatures::Everything);
    let hardware = world.predictor.hardware(None);
    let base = world.predictor.hardware_estimate(&query, hardware);
    for worker in world.workers.clone() {
        let estimate = world.predictor.estimate(&query, worker);
        let expected = base.mean_s * world.predictor.factor(worker);
        assert!((estimate.mean_s / expected - 1.0).abs() < 1e-12);
        assert!(estimate.error_s / estimate.mean_s > base.error_s / base.mean_s);
    }
    let before: Vec<f64> = world.workers.iter().map(|w| world.predictor.factor(*w)).collect();
    run_one(&mut world, 0, 1.0);
    for (worker, before) in world.workers[1..].iter().zip(&before[1..]) {
        assert_eq!(world.predictor.factor(*worker), *before, "callers cache factors");
    }
}

#[test]
fn worker_that_differs_from_its_hardware_is_distinguished() {
    let mut predictor = Predictor::new(Settings::default());
    let a100 = name("A100");
    let workers: Vec<WorkerKey> =
        (0..4).map(|i| predictor.add_worker(worker_id(i), Some(&a100))).collect();
    let query = predictor.query(&spec("m", &[]));
    for _ in 0..20 {
        for (i, worker) in workers.iter().enumerate() {
            let run = if i == 3 { Span::from_secs(3) } else { Span::from_secs(2) };
            predictor.observe(&query, *worker, run);
        }
    }
    let ratio = predictor.factor(workers[3]) / predictor.factor(workers[0]);
    assert!((ratio - 1.5).abs() < 0.1, "{ratio}");
}
