//! Clients may send any names: memory stays bounded, and nothing panics.

use hypha_model::Span;
use hypha_predict::{
    HardwareKey, MAX_HARDWARE, MAX_MODELS, MAX_REGRESSIONS, ModelKey, Predictor, Query, Settings,
};

use crate::world::{name, spec, worker_id};

#[test]
fn models_hardware_and_regressions_beyond_the_bound_share_an_entry() {
    let mut predictor = Predictor::new(Settings::default());
    let hardware: Vec<HardwareKey> = (0..=MAX_HARDWARE + 1)
        .map(|i| predictor.hardware(Some(&name(&format!("hardware-{i}")))))
        .collect();
    assert_eq!(hardware[MAX_HARDWARE - 1], HardwareKey(MAX_HARDWARE as u16));
    assert_eq!(hardware[MAX_HARDWARE], HardwareKey(0));

    let worker = predictor.add_worker(worker_id(1), None);
    let other = predictor.add_worker(worker_id(2), Some(&name("hardware-1")));
    let third = predictor.add_worker(worker_id(3), Some(&name("hardware-2")));
    let models: Vec<Query> = (0..MAX_MODELS + 10)
        .map(|i| {
            let query = predictor.query(&spec(&format!("model-{i}"), &[("n", 1.0 + i as f64)]));
            for worker in [worker, other, third] {
                predictor.observe(&query, worker, Span::from_secs(3));
            }
            query
        })
        .collect();
    assert_eq!(models[MAX_MODELS].model, ModelKey(0));
    let snapshot = serde_json::to_value(predictor.snapshot()).unwrap();
    let regressions = snapshot["regressions"].as_array().map(Vec::len);
    assert_eq!(regressions, Some(MAX_REGRESSIONS));

    // The last models found no room, and share one prediction.
    for _ in 0..200 {
        predictor.observe(&models[MAX_MODELS - 1], worker, Span::from_secs(500));
    }
    for _ in 0..200 {
        predictor.observe(&models[0], other, Span::from_secs(3));
    }
    for (model, worker, expected_s) in [(0, other, 3.0), (MAX_MODELS - 2, worker, 500.0)] {
        let found = predictor.estimate(&models[model], worker).mean_s;
        assert!((found / expected_s).ln().abs() < 0.5, "model {model}: {found}");
    }
}

#[test]
fn query_is_small_enough_to_keep_with_each_task() {
    assert!(size_of::<Query>() <= 112, "{}", size_of::<Query>());
}
