//! On a synthetic token workload the intervals have the coverage that they claim.

use crate::world::{KnownFeatures, World};

fn check(known: KnownFeatures, most_error_percent: Option<f64>) {
    for seed in 1..=5 {
        let judged = World::new(seed).measure_calibration(known, 200, 2_200);
        let [half, most, nearly_all] = judged.coverage_percent();
        let shown = format!("{known:?}, seed {seed}: {:.1?}", judged.coverage_percent());
        assert!((45.0..=55.0).contains(&half), "{shown}");
        assert!((85.0..=95.0).contains(&most), "{shown}");
        assert!((98.0..=100.0).contains(&nearly_all), "{shown}");
        let error = judged.mean_absolute_percentage_error();
        assert!(most_error_percent.is_none_or(|most| error < most), "{known:?}: {error}");
    }
}

#[test]
fn with_both_token_counts() {
    check(KnownFeatures::Everything, Some(25.0));
}

#[test]
fn with_the_input_alone() {
    check(KnownFeatures::InputOnly, None);
}

#[test]
fn with_nothing() {
    check(KnownFeatures::Nothing, None);
}
