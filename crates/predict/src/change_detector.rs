//! Detects a change: residuals that keep to one side.

use serde::{Deserialize, Serialize};

use crate::bits;

/// The moving average remembers about 14 residuals.
const STEP: f64 = 0.07;
/// In standard deviations of a residual: 4.5 of the average's own, so that false alarms are rare. Times that double
/// against a noise of 20 % reach it within 5 tasks.
const LIMIT: f64 = 0.85;
/// After a change, beliefs are this much less certain, in units of the noise's variance.
const CHANGE_VARIANCE: f64 = 4.0;

/// How much every learned quantity drifts with each task, as a variance of the logarithm: one sigma is half a percent.
/// Faster changes show as a trend.
pub(crate) const RANDOM_WALK_VARIANCE: f64 = 0.005 * 0.005;

/// A moving average of clipped residuals in standard deviations; about zero as long as nothing changes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct ChangeDetector(#[serde(with = "bits")] f64);

impl ChangeDetector {
    pub(crate) const ZERO: ChangeDetector = ChangeDetector(0.0);

    /// Records a residual. Returns the variance to add to beliefs: none, or much after a change.
    pub(crate) fn added_variance(&mut self, deviations: f64, noise: f64) -> f64 {
        self.0 += STEP * (deviations - self.0);
        if self.0.abs() <= LIMIT {
            return 0.0;
        }
        self.0 = 0.0;
        CHANGE_VARIANCE * noise
    }

    pub(crate) fn is_valid(&self) -> bool {
        self.0.is_finite()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hypha_model::Rng;

    #[test]
    fn noise_rarely_looks_like_a_change_and_a_shift_soon_does() {
        let mut rng = Rng::new(9);
        let mut trend = ChangeDetector::ZERO;
        let alarms = (0..20_000).filter(|_| trend.added_variance(rng.normal(), 1.0) > 0.0).count();
        assert!(alarms <= 2, "{alarms}");
        let mut trend = ChangeDetector::ZERO;
        let after = (1..100).find(|_| trend.added_variance(3.0, 1.0) > 0.0);
        assert_eq!(after, Some(5));
    }
}
