//! How wide the intervals must be: learned from the errors of past predictions.

use serde::{Deserialize, Serialize};

use crate::bits;

/// The coverages that are tracked.
const COVERAGE: [f64; 3] = [0.5, 0.9, 0.99];
/// Their half widths for a normal distribution, in standard deviations.
const NORMAL: [f64; 3] =
    [0.674_489_750_196_081_7, 1.644_853_626_951_472_2, 2.575_829_303_548_900_4];
/// Widths stay within these factors of the normal's, whatever is observed.
const BOUNDS: (f64, f64) = (0.2, 5.0);
/// The steps shrink with the number of observations down to this, and then follow changes.
const MIN_STEP: f64 = 0.03;
const FIRST_STEP_COUNT: f64 = 8.0;

/// The half widths, in standard deviations, of the intervals that hold 50, 90 and 99 % of outcomes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct IntervalWidths(#[serde(with = "bits::array")] [f64; 3]);

impl IntervalWidths {
    pub(crate) const NORMAL: IntervalWidths = IntervalWidths(NORMAL);

    /// Records an outcome `deviations` standard deviations away, the `count`th.
    pub(crate) fn observe(&mut self, deviations: f64, count: u32) {
        let distance = deviations.abs();
        let step = (1.0 / (FIRST_STEP_COUNT + f64::from(count))).max(MIN_STEP);
        for i in 0..3 {
            // In equilibrium the steps up and down balance exactly when the coverage is right. Steps in
            // the logarithm, because a width is a scale.
            let outside = if distance > self.0[i] { 1.0 } else { 0.0 };
            let width = self.0[i] * (step * (outside - (1.0 - COVERAGE[i]))).exp();
            self.0[i] = width.clamp(NORMAL[i] * BOUNDS.0, NORMAL[i] * BOUNDS.1);
        }
    }

    /// Where `z` standard deviations of a normal lie on the calibrated scale: linear between the tracked
    /// widths, odd, and never falling.
    pub(crate) fn calibrated(&self, z: f64) -> f64 {
        let (mut from, mut to) = ((0.0, 0.0), (0.0, 0.0));
        for (normal, width) in NORMAL.into_iter().zip(self.0) {
            // Each width is tracked by itself, so the smaller coverage may briefly have the larger width.
            (from, to) = (to, (normal, width.max(to.1)));
            if z.abs() <= normal {
                break;
            }
        }
        let slope = (to.1 - from.1) / (to.0 - from.0);
        (to.1 + slope * (z.abs() - to.0)).copysign(z)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hypha_model::Rng;

    #[test]
    fn widths_converge_to_their_coverage_for_any_distribution() {
        // Exponential distances: far heavier tails than a normal's.
        let mut rng = Rng::new(4);
        let mut widths = IntervalWidths::NORMAL;
        let mut inside = [0u32; 3];
        for count in 0..20_000 {
            let distance = rng.exponential();
            for (inside, normal) in inside.iter_mut().zip(NORMAL) {
                *inside += u32::from(distance <= widths.calibrated(normal));
            }
            widths.observe(distance, count);
        }
        for (inside, coverage) in inside.iter().zip(COVERAGE) {
            let found = f64::from(*inside) / 20_000.0;
            assert!((found - coverage).abs() < 0.005, "{found} instead of {coverage}");
        }
        // 99 % of exponentials are below ln 100 = 4.6, of normals below 2.6.
        assert!(widths.calibrated(NORMAL[2]) > 3.8, "{widths:?}");
    }

    #[test]
    fn the_calibrated_scale_is_odd_and_never_falls() {
        // The second is narrower than the first, as it may be for a while.
        let widths = IntervalWidths([1.5, 1.0, 4.0]);
        let scale: Vec<f64> = (-50..=50).map(|i| widths.calibrated(f64::from(i) / 10.0)).collect();
        assert!(scale.is_sorted(), "{scale:?}");
        assert!(scale.iter().zip(scale.iter().rev()).all(|(a, b)| (a + b).abs() < 1e-12));
        assert!((IntervalWidths::NORMAL.calibrated(1.3) - 1.3).abs() < 1e-12);
        assert!((IntervalWidths::NORMAL.calibrated(5.0) - 5.0).abs() < 1e-12);
    }
}
