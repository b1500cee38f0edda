//! A predicted run time: a distribution, not a number.

use hypha_model::Rng;

use crate::normal;
use crate::widths::IntervalWidths;

/// Times beyond this (some 30,000 years) are meaningless; the bound keeps all arithmetic finite.
pub(crate) const MAX_S: f64 = 1e12;
/// The largest spread of the logarithm that is considered: a factor of 7 for one sigma.
pub(crate) const MAX_LOG_SIGMA: f64 = 2.0;
/// The corresponding standard deviation, relative to the mean.
const MAX_RELATIVE_ERROR: f64 = 7.321_075_949_314_87;
/// No quantile is further than `e^12` from the median: more is an artefact of the shape.
const MAX_LOG_DISTANCE: f64 = 12.0;
/// The least remaining time, as a share of the mean, so that an overrun run never counts as done.
const MIN_REMAINING_SHARE: f64 = 0.01;
/// Beyond this many standard deviations probabilities are so small that only their ratios are computed.
const TAIL_SIGMAS: f64 = 4.0;
/// Spreads below this count as none when conditioning: the difference of two ratios would be noise.
const MIN_LOG_SIGMA: f64 = 1e-3;

/// A predicted run time: lognormal in shape, with interval widths calibrated on past predictions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The expected run time.
    pub mean_s: f64,
    /// The standard deviation.
    pub error_s: f64,
    median_s: f64,
    log_sigma: f64,
    widths: IntervalWidths,
    /// Whether its error holds as it was given, whatever is not known about the worker.
    is_given: bool,
}

impl Estimate {
    /// Takes no time.
    pub const ZERO: Estimate = Estimate {
        mean_s: 0.0,
        error_s: 0.0,
        median_s: 0.0,
        log_sigma: 0.0,
        widths: IntervalWidths::NORMAL,
        is_given: false,
    };

    /// Exactly `seconds`; negatives and NaN count as zero.
    pub fn exact(seconds: f64) -> Estimate {
        let seconds = bounded(seconds);
        Estimate { mean_s: seconds, median_s: seconds, ..Estimate::ZERO }
    }

    /// A lognormal time of this mean and standard deviation; negatives and NaN count as zero.
    pub fn new(mean_s: f64, error_s: f64) -> Estimate {
        Estimate::with_widths(bounded(mean_s), bounded(error_s), IntervalWidths::NORMAL)
    }

    fn with_widths(mean_s: f64, error_s: f64, widths: IntervalWidths) -> Estimate {
        if mean_s <= 0.0 {
            return Estimate::ZERO;
        }
        let log_sigma = log_sigma(mean_s, error_s);
        let median_s = mean_s * (-0.5 * log_sigma * log_sigma).exp();
        Estimate { mean_s, error_s, median_s, log_sigma, widths, is_given: false }
    }

    /// A time with this median and this variance of its logarithm, and with its own mean (a skewed error moves it away
    /// from the lognormal's).
    pub(crate) fn lognormal(
        median_s: f64,
        log_variance: f64,
        mean_s: f64,
        widths: IntervalWidths,
    ) -> Estimate {
        let (mean_s, median_s) = (bounded(mean_s), bounded(median_s));
        let log_sigma = log_variance.max(0.0).sqrt().min(MAX_LOG_SIGMA);
        let error_s = mean_s * (log_sigma * log_sigma).exp_m1().sqrt();
        Estimate { mean_s, error_s, median_s, log_sigma, widths, is_given: false }
    }

    /// The same, with an error that stays as it is.
    pub(crate) fn as_given(self) -> Estimate {
        Estimate { is_given: true, ..self }
    }

    /// The same median and mean, with this much more variance of the logarithm, unless the error is given.
    pub(crate) fn widened(&self, log_variance: f64) -> Estimate {
        if self.is_given {
            return *self;
        }
        let variance = self.log_sigma * self.log_sigma + log_variance;
        Estimate::lognormal(self.median_s, variance, self.mean_s, self.widths)
    }

    /// The time that the run takes at most with probability `p`; grows with `p`.
    pub fn quantile(&self, p: f64) -> f64 {
        self.at(normal::quantile(p))
    }

    /// The central interval that holds the run time with probability `coverage`.
    pub fn interval(&self, coverage: f64) -> (f64, f64) {
        let z = normal::quantile(0.5 + 0.5 * coverage.clamp(0.0, 1.0));
        (self.at(-z), self.at(z))
    }

    /// The same, `factor` times as slow; an invalid factor is ignored.
    pub fn scaled(&self, factor: f64) -> Estimate {
        if !(factor >= 0.0 && factor.is_finite()) {
            return *self;
        }
        let scale = |seconds: f64| bounded(seconds * factor);
        Estimate {
            mean_s: scale(self.mean_s),
            error_s: scale(self.error_s),
            median_s: scale(self.median_s),
            ..*self
        }
    }

    /// The remaining time of a run that has taken `elapsed_s` and is not done: the distribution of `T - e` given `T >
    /// e`. The longer a run exceeds its prediction, the longer it is likely to continue.
    pub fn remaining(&self, elapsed_s: f64) -> Estimate {
        if bounded(elapsed_s) <= 0.0 {
            return *self;
        }
        let (mean_s, error_s) = self.remaining_after(elapsed_s);
        Estimate::with_widths(mean_s, error_s, self.widths)
    }

    /// Mean and standard deviation of [`Estimate::remaining`].
    pub(crate) fn remaining_after(&self, elapsed_s: f64) -> (f64, f64) {
        let elapsed_s = bounded(elapsed_s);
        if elapsed_s <= 0.0 {
            return (self.mean_s, self.error_s);
        }
        let sigma = self.log_sigma;
        let least = self.mean_s * MIN_REMAINING_SHARE;
        let as_predicted = || ((self.mean_s - elapsed_s).max(least), self.error_s);
        if sigma < MIN_LOG_SIGMA {
            return as_predicted();
        }
        // For the lognormal with this mean.
        let z = (elapsed_s / self.mean_s).ln() / sigma + 0.5 * sigma;
        // So early that the condition excludes nothing.
        if z < -6.0 {
            return as_predicted();
        }
        // The first two moments of T given T > e.
        let (first, second) = if z < TAIL_SIGMAS {
            let above = normal::survival(z);
            let relative = (self.error_s / self.mean_s).min(MAX_RELATIVE_ERROR);
            let second = self.mean_s * self.mean_s * (1.0 + relative * relative);
            (
                self.mean_s * normal::survival(z - sigma) / above,
                second * normal::survival(z - 2.0 * sigma) / above,
            )
        } else {
            // Avoids tiny tail probabilities.
            let tail = normal::mills(z);
            let first = elapsed_s * normal::mills(z - sigma) / tail;
            (first, elapsed_s * elapsed_s * normal::mills(z - 2.0 * sigma) / tail)
        };
        let error_s = (second - first * first).max(0.0).sqrt();
        (bounded((first - elapsed_s).max(least)), bounded(error_s))
    }

    /// Whether a run that has taken `elapsed_s` certainly remains for at most `most_s`, in the mean. Much cheaper than
    /// [`Estimate::remaining_after`]; `false` means only that this bound does not tell.
    pub(crate) fn remains_at_most(&self, elapsed_s: f64, most_s: f64) -> bool {
        let sigma = self.log_sigma;
        if sigma < MIN_LOG_SIGMA || elapsed_s <= self.mean_s {
            return false;
        }
        let z = (elapsed_s / self.mean_s).ln() / sigma + 0.5 * sigma;
        // 1 / mills(x) is between x and (x + sqrt(x² + 4)) / 2.
        let ratio = 0.5 * (z + (z * z + 4.0).sqrt()) / (z - sigma);
        z > sigma && elapsed_s * (ratio - 1.0) <= most_s
    }

    /// A run time drawn from the distribution.
    pub fn sample(&self, rng: &mut Rng) -> f64 {
        self.at(rng.normal())
    }

    /// The variance, in seconds squared.
    pub fn variance(&self) -> f64 {
        self.error_s * self.error_s
    }

    /// The time at `z` standard deviations of a normal, widened as calibrated.
    fn at(&self, z: f64) -> f64 {
        let distance = self.log_sigma * self.widths.calibrated(z);
        bounded(self.median_s * distance.clamp(-MAX_LOG_DISTANCE, MAX_LOG_DISTANCE).exp())
    }
}

/// The spread of the logarithm of a lognormal time of this mean and standard deviation.
fn log_sigma(mean_s: f64, error_s: f64) -> f64 {
    if mean_s <= 0.0 {
        return 0.0;
    }
    let relative = error_s / mean_s;
    (relative * relative).ln_1p().sqrt().min(MAX_LOG_SIGMA)
}

fn bounded(seconds: f64) -> f64 {
    if seconds.is_nan() { 0.0 } else { seconds.clamp(0.0, MAX_S) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{prop_assert, proptest};

    fn check_near(what: &str, found: f64, expected: f64, tolerance: f64) {
        assert!(
            (found - expected).abs() <= tolerance * expected.abs(),
            "{what}: {found} instead of {expected}"
        );
    }

    #[test]
    fn a_lognormal_has_its_quantiles_and_its_samples_have_its_moments() {
        let estimate = Estimate::new(10.0, 5.0);
        // ln(1 + 0.25) = 0.223, so the median is 10 / sqrt(1.25).
        check_near("median", estimate.quantile(0.5), 10.0 / 1.25_f64.sqrt(), 1e-9);
        let high = 10.0 / 1.25_f64.sqrt() * (1.644_853_6 * 1.25_f64.ln().sqrt()).exp();
        check_near("95 %", estimate.quantile(0.95), high, 1e-6);
        assert_eq!(estimate.interval(0.9), (estimate.quantile(0.05), estimate.quantile(0.95)));
        let mut rng = Rng::new(1);
        let n = 200_000;
        let samples: Vec<f64> = (0..n).map(|_| estimate.sample(&mut rng)).collect();
        let mean = samples.iter().sum::<f64>() / f64::from(n);
        let variance = samples.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / f64::from(n);
        check_near("mean", mean, 10.0, 0.01);
        check_near("variance", variance, estimate.variance(), 0.03);
    }

    #[test]
    fn exact_estimate_has_no_width() {
        let exact = Estimate::exact(3.0);
        assert_eq!((exact.mean_s, exact.error_s, exact.interval(0.99)), (3.0, 0.0, (3.0, 3.0)));
        assert_eq!(exact.remaining(1.0).mean_s, 2.0);
        assert!(exact.remaining(5.0).mean_s > 0.0);
        assert_eq!(Estimate::exact(0.0), Estimate::ZERO);
    }

    #[test]
    fn remaining_time_is_the_conditional_distribution() {
        let estimate = Estimate::new(2.0, 1.5);
        assert_eq!(estimate.remaining(0.0), estimate);
        let skewed = Estimate::lognormal(1.0, 0.5, 2.0, IntervalWidths::NORMAL);
        assert_eq!(skewed.remaining(0.0), skewed);
        let mut rng = Rng::new(2);
        let samples: Vec<f64> = (0..400_000).map(|_| estimate.sample(&mut rng)).collect();
        for elapsed in [0.02, 0.5, 2.0, 6.0] {
            let over: Vec<f64> =
                samples.iter().filter(|t| **t > elapsed).map(|t| t - elapsed).collect();
            let n = over.len() as f64;
            let mean = over.iter().sum::<f64>() / n;
            let variance = over.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / n;
            let remaining = estimate.remaining(elapsed);
            check_near(&format!("mean after {elapsed}"), remaining.mean_s, mean, 0.03);
            check_near(&format!("error after {elapsed}"), remaining.error_s, variance.sqrt(), 0.1);
        }
    }

    #[test]
    fn remaining_time_of_an_overdue_run_grows_with_elapsed_time() {
        let estimate = Estimate::new(1.0, 0.2);
        let remaining = |elapsed: f64| estimate.remaining(elapsed).mean_s;
        assert!(remaining(1.0) < 0.3);
        assert!(remaining(100.0) > remaining(10.0));
        assert!(remaining(1e6) > remaining(100.0) && remaining(1e6) < 1e6);
    }

    proptest! {
        #[test]
        fn times_are_finite_and_quantiles_ordered_for_any_input(
            mean in proptest::num::f64::ANY,
            error in proptest::num::f64::ANY,
            factor in proptest::num::f64::ANY,
            elapsed in proptest::num::f64::ANY,
            low in 0.0..1.0f64,
            high in 0.0..1.0f64,
        ) {
            let made = Estimate::new(mean, error);
            for estimate in [made, made.scaled(factor), made.remaining(elapsed), made.widened(1.0)] {
                let (low, high) = (low.min(high), low.max(high));
                let numbers = [estimate.mean_s, estimate.error_s, estimate.variance()];
                prop_assert!(numbers.iter().all(|x| x.is_finite() && *x >= 0.0), "{estimate:?}");
                prop_assert!(estimate.quantile(low) <= estimate.quantile(high));
                prop_assert!(estimate.quantile(1.0).is_finite() && estimate.quantile(0.0) >= 0.0);
                prop_assert!(made.mean_s == 0.0 || factor < 1e-3 || estimate.mean_s > 0.0);
            }
        }
    }
}
