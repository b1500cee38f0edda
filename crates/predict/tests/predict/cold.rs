//! Predictions before anything was measured.

use hypha_model::{Requirement, Span, TaskSpec};
use hypha_predict::{Predictor, Settings};

use crate::world::{name, spec, worker_id};

#[test]
fn next_best_knowledge_is_used_with_more_uncertainty() {
    let mut predictor = Predictor::new(Settings::default());
    let (old, new) = (name("A100"), name("H100"));
    let worker = predictor.add_worker(worker_id(1), Some(&old));
    let (old, new) = (predictor.hardware(Some(&old)), predictor.hardware(Some(&new)));
    assert_eq!(predictor.typical_s(), 1.0);

    // Nothing is known.
    let plain = predictor.query(&spec("m", &[("tokens", 10.0)]));
    assert_eq!(predictor.hardware_estimate(&plain, old).mean_s, 1.0);
    assert!(predictor.hardware_estimate(&plain, old).error_s >= 0.5);

    // The client's estimate.
    let mut stated = spec("m", &[("tokens", 10.0)]);
    stated.requirement.estimated_time = Some(Span::from_secs(40));
    let stated = predictor.query(&stated);
    assert_eq!(predictor.hardware_estimate(&stated, old).mean_s, 40.0);

    for _ in 0..30 {
        predictor.observe(&plain, worker, Span::from_secs(6));
    }
    let learned = predictor.hardware_estimate(&plain, old);
    assert!((learned.mean_s * predictor.factor(worker) / 6.0 - 1.0).abs() < 0.1);

    // The same model elsewhere, with its features, and less certain.
    let elsewhere = predictor.hardware_estimate(&plain, new);
    assert!((elsewhere.mean_s / learned.mean_s - 1.0).abs() < 1e-9);
    assert!(elsewhere.error_s > 3.0 * learned.error_s);

    // Another model: the usual time of all.
    let other = predictor.query(&spec("other", &[]));
    assert!((predictor.hardware_estimate(&other, new).mean_s / 6.0 - 1.0).abs() < 0.1);
    assert!((predictor.typical_s() - 6.0).abs() < 1e-9);

    // The same model, but no features: its usual time.
    let bare = predictor.query(&spec("m", &[]));
    assert!((predictor.hardware_estimate(&bare, old).mean_s / learned.mean_s).ln().abs() < 0.4);
    assert!(predictor.hardware_estimate(&bare, old).error_s > 3.0);
}

#[test]
fn unseen_features_fall_back_to_the_models_usual_time() {
    let mut predictor = Predictor::new(Settings::default());
    let worker = predictor.add_worker(worker_id(1), None);
    let (short, long) = (spec("short", &[("n", 1.0)]), spec("long", &[("n", 1.0)]));
    let (short, long) = (predictor.query(&short), predictor.query(&long));
    for _ in 0..30 {
        predictor.observe(&short, worker, Span::from_secs(2));
        predictor.observe(&long, worker, Span::from_secs(200));
    }
    for (model, expected_s) in [("short", 2.0), ("long", 200.0)] {
        let bare = predictor.query(&spec(model, &[]));
        let estimate = predictor.estimate(&bare, worker);
        assert!((estimate.mean_s / expected_s).ln().abs() < 0.5, "{model}: {estimate:?}");
        assert!(estimate.error_s > 0.5 * estimate.mean_s);
    }
}

#[test]
fn measurements_replace_the_clients_estimate_and_are_scaled_by_it() {
    let mut predictor = Predictor::new(Settings::default());
    let worker = predictor.add_worker(worker_id(1), None);
    let of = |seconds| TaskSpec {
        requirement: Requirement {
            estimated_time: Some(Span::from_secs(seconds)),
            ..spec("m", &[]).requirement
        },
        ..TaskSpec::default()
    };
    // Clients state half of the run time.
    for i in 0..60 {
        let seconds = 1 + i * 7 % 20;
        let query = predictor.query(&of(seconds));
        predictor.observe(&query, worker, Span::from_secs(2 * seconds));
    }
    for seconds in [2, 10, 20] {
        let query = predictor.query(&of(seconds));
        let found = predictor.estimate(&query, worker).mean_s;
        assert!((found / (2.0 * seconds as f64)).ln().abs() < 0.15, "{seconds}: {found}");
    }
}

#[test]
fn knowledge_of_other_hardware_is_transferred_between_usual_workers() {
    let mut predictor = Predictor::new(Settings::default());
    let (a100, h100) = (name("A100"), name("H100"));
    let (here, there) = (predictor.hardware(Some(&a100)), predictor.hardware(Some(&h100)));
    let on =
        |predictor: &mut Predictor, id, hardware| predictor.add_worker(worker_id(id), hardware);
    let first = on(&mut predictor, 1, Some(&a100));
    let others = [2, 3, 4].map(|id| on(&mut predictor, id, Some(&h100)));
    let known = predictor.query(&spec("known", &[]));
    let other = predictor.query(&spec("other", &[]));
    for _ in 0..40 {
        predictor.observe(&known, first, Span::from_secs(6));
    }
    // The factors there settle away from one: the first worker that ran is unlike the others.
    for round in 0..40 {
        for (i, worker) in others.iter().enumerate() {
            if i == 0 || round > 10 {
                predictor.observe(&other, *worker, Span::from_secs(if i == 0 { 2 } else { 4 }));
            }
        }
    }
    assert!(predictor.usual_factor(there) > 1.1, "{}", predictor.usual_factor(there));
    let usual = |predictor: &Predictor, hardware| {
        predictor.hardware_estimate(&known, hardware).mean_s * predictor.usual_factor(hardware)
    };
    assert!((usual(&predictor, there) / usual(&predictor, here) - 1.0).abs() < 1e-9);
    predictor.observe(&known, others[1], Span::from_secs(6));
    assert!((usual(&predictor, there) / 6.0).ln().abs() < 0.3);
}
