//! Clients may send any names: memory stays bounded, and nothing panics.

use hypha_model::Span;
use hypha_predict::{
    HardwareKey, MAX_HARDWARE, MAX_MODELS, MAX_NEW_MODELS, MAX_REGRESSIONS, Predictor, Query,
    Settings,
};

use crate::world::{name, spec, worker_id};

#[test]
fn hardware_beyond_the_bound_shares_an_entry() {
    let mut predictor = Predictor::new(Settings::default());
    let hardware: Vec<HardwareKey> = (0..=MAX_HARDWARE + 1)
        .map(|i| predictor.hardware(Some(&name(&format!("hardware-{i}")))))
        .collect();
    assert_eq!(hardware[MAX_HARDWARE - 1], HardwareKey(MAX_HARDWARE as u16));
    assert_eq!(hardware[MAX_HARDWARE], HardwareKey(0));
}

fn assert_near(found: f64, expected: f64) {
    assert!((found / expected).ln().abs() < 0.5, "{found} instead of {expected}");
}

/// Clients may name models that no worker serves.
#[test]
fn models_that_complete_nothing_take_no_room_from_others() {
    let mut predictor = Predictor::new(Settings::default());
    let worker = predictor.add_worker(worker_id(1), None);
    let made_up = |predictor: &mut Predictor, batch: usize| {
        for i in 0..2 * MAX_MODELS {
            predictor.query(&spec(&format!("made-up-{batch}-{i}"), &[("n", 1.0)]));
        }
    };
    made_up(&mut predictor, 1);
    let waiting = predictor.query(&spec("real", &[("n", 1.0)]));
    for _ in 0..50 {
        let query = predictor.query(&spec("real", &[("n", 1.0)]));
        predictor.observe(&query, worker, Span::from_secs(40));
        let other = predictor.query(&spec("other", &[("n", 1.0)]));
        predictor.observe(&other, worker, Span::from_secs(2));
    }
    assert_near(predictor.estimate(&waiting, worker).mean_s, 40.0);
    made_up(&mut predictor, 2);
    assert!(predictor.knows_model(&waiting), "a model that is in use is not forgotten");
    let query = predictor.query(&spec("real", &[("n", 1.0)]));
    assert_near(predictor.estimate(&query, worker).mean_s, 40.0);
    let snapshot = serde_json::to_value(predictor.snapshot()).unwrap();
    let kept = snapshot["model_names"].as_array().unwrap().len();
    assert!(kept <= MAX_NEW_MODELS + 2, "{kept}");
}

#[test]
fn least_used_models_make_room_for_others() {
    let mut predictor = Predictor::new(Settings::default());
    let add_workers = |predictor: &mut Predictor| {
        [1, 2, 3].map(|n| predictor.add_worker(worker_id(n), Some(&name(&format!("hardware-{n}")))))
    };
    let workers = add_workers(&mut predictor);
    let complete = |predictor: &mut Predictor, model: &str, seconds: u64| -> Query {
        let query = predictor.query(&spec(model, &[("n", 1.0)]));
        for worker in workers {
            predictor.observe(&query, worker, Span::from_secs(seconds));
        }
        query
    };
    let used = complete(&mut predictor, "used", 40);
    complete(&mut predictor, "used", 40);
    let first = complete(&mut predictor, "once-0", 3);
    for i in 1..2 * MAX_MODELS {
        complete(&mut predictor, &format!("once-{i}"), 3);
    }
    let last = complete(&mut predictor, "last", 500);
    assert!(predictor.knows_model(&used) && !predictor.knows_model(&first));
    assert_near(predictor.estimate(&used, workers[0]).mean_s, 40.0);
    assert_near(predictor.estimate(&last, workers[0]).mean_s, 500.0);
    let snapshot = serde_json::to_value(predictor.snapshot()).unwrap();
    assert_eq!(snapshot["regressions"].as_array().unwrap().len(), MAX_REGRESSIONS);
    let mut restored =
        Predictor::restore(Settings::default(), serde_json::from_value(snapshot).unwrap());
    assert_eq!(add_workers(&mut restored), workers);
    // What comes next is the same, whichever model has to make room for it.
    for i in 0..10 {
        for predictor in [&mut predictor, &mut restored] {
            complete(predictor, &format!("later-{i}"), 7);
        }
    }
    let both = [&predictor, &restored].map(|one| serde_json::to_value(one.snapshot()).unwrap());
    assert_eq!(both[0]["model_usages"], both[1]["model_usages"]);
    assert_eq!(both[0]["regressions"], both[1]["regressions"]);
}

#[test]
fn query_is_small_enough_to_keep_with_each_task() {
    assert!(size_of::<Query>() <= 112, "{}", size_of::<Query>());
}
