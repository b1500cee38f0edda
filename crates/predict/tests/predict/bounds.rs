//! Clients may name whatever they like: memory stays bounded, and nothing panics.

use hypha_model::Span;
use hypha_predict::{HardwareKey, MAX_HARDWARE, MAX_MODELS, ModelKey, Predictor, Query, Settings};

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
    let last = predictor.base(&models[MAX_MODELS - 1], HardwareKey(1));
    assert!((last.mean_s / 3.0).ln().abs() < 1.0, "{last:?}");
    let text = serde_json::to_string(&predictor.snapshot()).unwrap();
    assert!(text.len() < 30_000_000, "{}", text.len());
}

#[test]
fn a_query_is_small_enough_to_keep_with_each_task() {
    assert!(size_of::<Query>() <= 112, "{}", size_of::<Query>());
}
