//! Learned state survives a restart, bit for bit.

use hypha_predict::{Predictor, Settings, Snapshot};

use crate::world::{KnownFeatures, World, worker_id};

/// The world after a restart, with its workers added again in another order.
fn restarted(world: &World) -> World {
    let text = serde_json::to_string(&world.predictor.snapshot()).unwrap();
    assert!(text.contains("\"shapes\""), "snapshots of earlier versions have this key");
    let snapshot: Snapshot = serde_json::from_str(&text).unwrap();
    let mut predictor = Predictor::restore(Settings::default(), snapshot);
    let mut workers = world.workers.clone();
    for i in (0..8).filter(|i| *i != LEFT).rev() {
        workers[i] = predictor.add_worker(worker_id(i as u128), None);
    }
    World { predictor, workers, rng: world.rng.clone(), noise: world.noise }
}

const LEFT: usize = 6;

#[test]
fn predictions_continue_identically() {
    let mut world = World::new(3);
    world.measure_calibration(KnownFeatures::Everything, 0, 300);
    world.measure_calibration(KnownFeatures::InputOnly, 0, 50);
    world.predictor.forget_worker(world.workers[LEFT]);
    let mut twin = restarted(&world);
    for at in 0..200 {
        let known = if at % 3 == 0 { KnownFeatures::InputOnly } else { KnownFeatures::Everything };
        let request = world.request();
        assert_eq!(twin.request().input, request.input);
        let (query, same) = (world.query(&request, known), twin.query(&request, known));
        assert_eq!(query, same);
        let worker = at % 6;
        let estimate = world.predictor.estimate(&query, world.workers[worker]);
        assert_eq!(twin.predictor.estimate(&same, twin.workers[worker]), estimate, "{at}");
        assert_eq!(
            world.run(&query, worker, request.cost_s()),
            twin.run(&same, worker, request.cost_s())
        );
    }
    assert_eq!(world.predictor.typical_s(), twin.predictor.typical_s());
    // Both treat a new worker as the usual one, and both remember the one that left.
    for id in [100, LEFT as u128] {
        let key = world.predictor.add_worker(worker_id(id), None);
        let same = twin.predictor.add_worker(worker_id(id), None);
        assert_eq!(world.predictor.factor(key), twin.predictor.factor(same));
        assert_ne!(world.predictor.factor(key), 1.0);
    }
}

#[test]
fn damaged_snapshot_is_no_worse_than_none() {
    for wrong in [f64::NAN, f64::INFINITY, -1.0] {
        let mut world = World::new(4);
        world.measure_calibration(KnownFeatures::Everything, 0, 100);
        let text = serde_json::to_string(&world.predictor.snapshot()).unwrap();
        let mut value: serde_json::Value = serde_json::from_str(&text).unwrap();
        spoil(&mut value, wrong.to_bits());
        let snapshot: Snapshot = serde_json::from_value(value).unwrap();
        world.predictor = Predictor::restore(Settings::default(), snapshot);
        let again = (0..8).map(|id| world.predictor.add_worker(worker_id(id), None));
        world.workers = again.collect();
        let judged = world.measure_calibration(KnownFeatures::Everything, 100, 400);
        let error = judged.mean_absolute_percentage_error();
        assert!(error < 40.0, "{wrong}: {error}");
    }
}

/// Replaces every float: floats are the integers that are too large for anything else.
fn spoil(value: &mut serde_json::Value, wrong: u64) {
    match value {
        serde_json::Value::Number(number) if number.as_u64() > Some(1 << 40) => {
            *value = wrong.into();
        }
        serde_json::Value::Array(items) => items.iter_mut().for_each(|item| spoil(item, wrong)),
        serde_json::Value::Object(fields) => {
            fields.values_mut().for_each(|item| spoil(item, wrong));
        }
        _ => {}
    }
}
