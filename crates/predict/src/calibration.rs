//! The quality of predictions: their error, and whether the intervals have the coverage that they claim.

use crate::estimate::Estimate;

/// The coverages that are counted.
const COVERAGE: [f64; 3] = [0.5, 0.9, 0.99];

/// Compares predictions, as they were made before the run, with the measured times.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Calibration {
    count: u64,
    relative_error: f64,
    inside: [u64; 3],
}

impl Calibration {
    /// Records a prediction and the measured time. Runs of zero time are left out: their relative error is undefined.
    pub fn observe(&mut self, estimate: &Estimate, seconds: f64) {
        if !(seconds > 0.0 && seconds.is_finite()) {
            return;
        }
        self.count += 1;
        self.relative_error += (estimate.mean_s - seconds).abs() / seconds;
        for (inside, coverage) in self.inside.iter_mut().zip(COVERAGE) {
            let (low, high) = estimate.interval(coverage);
            *inside += u64::from(low <= seconds && seconds <= high);
        }
    }

    /// How many predictions were compared.
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// The mean of |predicted mean - measured| / measured; zero before anything was compared.
    pub fn mean_absolute_percentage_error(&self) -> f64 {
        100.0 * self.relative_error / self.count.max(1) as f64
    }

    /// The percentage of measured times inside the intervals that claim 50, 90 and 99 %.
    pub fn coverage_percent(&self) -> [f64; 3] {
        self.inside.map(|inside| 100.0 * inside as f64 / self.count.max(1) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_and_coverage_are_counted() {
        let mut calibration = Calibration::default();
        let estimate = Estimate::new(10.0, 2.0);
        for seconds in [8.0, 10.0, 12.5, 40.0, 0.0, f64::NAN] {
            calibration.observe(&estimate, seconds);
        }
        assert_eq!(calibration.count(), 4);
        // (25 + 0 + 20 + 75) / 4
        assert!((calibration.mean_absolute_percentage_error() - 30.0).abs() < 1e-9);
        assert_eq!(calibration.coverage_percent(), [25.0, 75.0, 75.0]);
    }
}
