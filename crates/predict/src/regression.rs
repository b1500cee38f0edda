//! Run time as a sum of costs (`t = c + a * input + b * output`), fitted to relative errors.
//!
//! Costs of a request add up, but their errors grow with them. So the model is `log t = log(beta . f)`,
//! updated recursively around the present `beta` (gradient `f / beta . f`): a Kalman filter whose state
//! is `beta`. The level follows a random walk, everything else is forgotten slowly.

use nalgebra::{SMatrix, SVector};
use serde::{Deserialize, Serialize};

use crate::bits;
use crate::change_detector::{ChangeDetector, RANDOM_WALK_VARIANCE};
use crate::estimate::MAX_S;
use crate::widths::IntervalWidths;

/// A constant and up to seven numeric features. Fixed, so that nothing is allocated; seven, because no known request
/// needs more numbers to be described.
pub(crate) const D: usize = 8;

type Vector = SVector<f64, D>;
type Matrix = SMatrix<f64, D, D>;

/// Before anything is known: one sigma is a factor of 1.6.
const FIRST_NOISE: f64 = 0.25;
/// Noise is never believed to be smaller than 1 %, nor larger than a factor of 7.
const NOISE_BOUNDS: (f64, f64) = (1e-4, 4.0);
/// How many observations the first noise counts for.
const FIRST_NOISE_COUNT: f64 = 4.0;
/// Moving averages remember about 50 observations.
const MIN_STEP: f64 = 0.02;
/// How much of the costs is forgotten with each observation.
const FORGETTING: f64 = 0.998;
/// For this many observations a feature can only add to the time; after that it may also turn out to save time.
const NON_NEGATIVE_COUNT: u32 = 100;
/// Residuals beyond this many standard deviations teach no more than this many: one absurd time must not wreck what
/// was learned.
pub(crate) const RESIDUAL_CLIP: f64 = 3.0;
/// No prediction is below this share of the usual time.
const MIN_SHARE_OF_LEVEL: f64 = 0.02;
/// When the mean is corrected, a time counts as at most this many standard deviations, and at most this many times,
/// above its prediction: more than elsewhere, because the tail makes the mean of a skewed error.
const RATIO_CLIP: f64 = 4.0;
const MAX_RATIO: f64 = 20.0;

/// What is known of the run times of one model on one hardware.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Regression {
    #[serde(with = "bits::vector")]
    beta: Vector,
    #[serde(with = "bits::matrix")]
    covariance: Matrix,
    /// The variance of the logarithm that no feature explains.
    #[serde(with = "bits")]
    noise: f64,
    /// The mean of time / predicted median: skewed errors must not bias the mean.
    #[serde(with = "bits")]
    smear: f64,
    /// The usual time.
    #[serde(with = "bits")]
    level_s: f64,
    trend: ChangeDetector,
    widths: IntervalWidths,
    count: u32,
}

/// A prediction of the logarithm of a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogPrediction {
    pub(crate) log: f64,
    /// From uncertain costs; it excludes the noise.
    pub(crate) variance: f64,
}

impl Regression {
    /// From one known time: the constant and each present feature are assumed to cost the same.
    pub(crate) fn first(features: &[f64; D], seconds: f64) -> Regression {
        let present = features.iter().filter(|f| **f != 0.0).count().max(1) as f64;
        let size = |f: f64| f.abs().clamp(1e-3, 1e3);
        let beta = Vector::from_fn(|i, _| match features[i] {
            0.0 => 0.0,
            f => seconds / present / size(f).copysign(f),
        });
        let spread = Vector::from_fn(|i, _| match features[i] {
            0.0 => seconds,
            f => seconds / size(f),
        });
        Regression {
            beta,
            covariance: Matrix::from_diagonal(&spread.component_mul(&spread)),
            noise: FIRST_NOISE,
            smear: (0.5 * FIRST_NOISE).exp(),
            level_s: seconds,
            trend: ChangeDetector::ZERO,
            widths: IntervalWidths::NORMAL,
            count: 0,
        }
    }

    /// The same costs on hardware that takes `factor` times as long; the level is uncertain by `variance`.
    pub(crate) fn transferred(&self, factor: f64, variance: f64) -> Regression {
        let beta = self.beta * factor;
        Regression {
            beta,
            covariance: self.covariance * (factor * factor) + beta * beta.transpose() * variance,
            level_s: self.level_s * factor,
            trend: ChangeDetector::ZERO,
            count: 0,
            ..self.clone()
        }
    }

    pub(crate) fn predict(&self, features: &[f64; D]) -> LogPrediction {
        let f = Vector::from_column_slice(features);
        let seconds = self.seconds(&f);
        let variance = (self.covariance * f).dot(&f) / (seconds * seconds);
        LogPrediction { log: seconds.ln(), variance: variance.max(0.0) }
    }

    /// Records a time whose logarithm was `residual` away from a prediction of that `variance` (the noise and all
    /// other uncertainty in it), before it is clipped.
    pub(crate) fn calibrate(&mut self, residual: f64, variance: f64) {
        if self.count == 0 {
            return;
        }
        let deviations = residual / variance.sqrt();
        self.widths.observe(deviations, self.count);
        let step = self.step();
        // Only noise belongs to the mean; what is still to be learned would bias it.
        let unexplained = residual * (self.noise / variance).sqrt();
        let ratio = unexplained.min(RATIO_CLIP * self.noise.sqrt()).exp().min(MAX_RATIO);
        self.smear += step * (ratio - self.smear);
    }

    /// Moves the costs, the noise and the level by a clipped `residual`.
    pub(crate) fn learn(&mut self, features: &[f64; D], residual: f64, variance: f64) {
        let f = Vector::from_column_slice(features);
        let seconds = self.seconds(&f);
        let gradient = f / seconds;
        let direction = self.covariance * gradient;
        let own = direction.dot(&gradient);
        if own > 0.0 {
            // The linear step would be `gain * residual`; this one moves the logarithm by just that.
            let moved = (own / variance * residual).exp_m1();
            self.beta += direction * (moved / own);
            if self.count < NON_NEGATIVE_COUNT {
                self.beta = self.beta.map(|cost| cost.max(0.0));
            }
            self.covariance -= direction * direction.transpose() / variance;
        }
        let step = self.step();
        // A residual is noise only in the part that the update left unexplained.
        let noise = residual * residual * self.noise / variance;
        self.noise =
            (self.noise + step * (noise - self.noise)).clamp(NOISE_BOUNDS.0, NOISE_BOUNDS.1);
        self.level_s += step * (seconds * residual.exp() - self.level_s);
        self.level_s = self.level_s.clamp(1.0 / MAX_S, MAX_S);
        self.forget(residual / variance.sqrt());
        self.count = self.count.saturating_add(1);
        if !self.is_valid() {
            *self = Regression::first(features, self.level_s.max(1.0 / MAX_S));
        }
    }

    fn forget(&mut self, deviations: f64) {
        let walk = RANDOM_WALK_VARIANCE + self.trend.added_variance(deviations, self.noise);
        // Directions that no task excites would otherwise become unboundedly uncertain.
        if self.covariance.trace() < D as f64 * self.level_s * self.level_s {
            self.covariance /= FORGETTING;
        }
        self.covariance += (self.beta * self.beta.transpose()) * walk;
    }

    fn seconds(&self, features: &Vector) -> f64 {
        self.beta.dot(features).clamp(self.level_s * MIN_SHARE_OF_LEVEL, MAX_S)
    }

    fn step(&self) -> f64 {
        (1.0 / (FIRST_NOISE_COUNT + f64::from(self.count))).max(MIN_STEP)
    }

    pub(crate) fn noise(&self) -> f64 {
        self.noise
    }

    pub(crate) fn smear(&self) -> f64 {
        self.smear
    }

    pub(crate) fn level_s(&self) -> f64 {
        self.level_s
    }

    pub(crate) fn widths(&self) -> IntervalWidths {
        self.widths
    }

    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// Whether every number is valid for predictions.
    pub(crate) fn is_valid(&self) -> bool {
        all_finite(&[self.noise, self.smear, self.level_s])
            && all_finite(self.beta.as_slice())
            && all_finite(self.covariance.as_slice())
            && self.trend.is_valid()
            && self.noise > 0.0
            && self.smear > 0.0
            && self.level_s > 0.0
            && self.covariance.diagonal().iter().all(|x| *x >= 0.0)
    }
}

/// Zero times a number is zero, unless the number is infinite or NaN. Without a branch for each number: it runs with
/// every observation.
fn all_finite(numbers: &[f64]) -> bool {
    numbers.iter().fold(0.0, |sum, number| sum + 0.0 * number) == 0.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use hypha_model::Rng;

    /// Learns from a time, clipping as the predictor does.
    fn learn(regression: &mut Regression, features: &[f64; D], seconds: f64) {
        let fit = regression.predict(features);
        let variance = fit.variance + regression.noise();
        let limit = RESIDUAL_CLIP * variance.sqrt();
        regression.learn(features, (seconds.ln() - fit.log).clamp(-limit, limit), variance);
    }

    fn features(numbers: &[f64]) -> [f64; D] {
        std::array::from_fn(|i| if i == 0 { 1.0 } else { *numbers.get(i - 1).unwrap_or(&0.0) })
    }

    /// Learns `count` times of `cost` with a noise of 10 %.
    fn learned(count: usize, cost: impl Fn(f64, f64) -> f64) -> Regression {
        let mut rng = Rng::new(6);
        let mut regression: Option<Regression> = None;
        for _ in 0..count {
            let (a, b) = (rng.exponential() * 3.0, rng.exponential() * 3.0);
            let (f, seconds) = (features(&[a, b]), cost(a, b) * (0.1 * rng.normal()).exp());
            learn(regression.get_or_insert_with(|| Regression::first(&f, seconds)), &f, seconds);
        }
        regression.unwrap()
    }

    fn check(regression: &Regression, cost: impl Fn(f64, f64) -> f64, tolerance: f64) {
        for (a, b) in [(0.0, 0.0), (1.0, 1.0), (0.1, 9.0), (9.0, 0.1), (6.0, 6.0)] {
            let found = regression.predict(&features(&[a, b])).log.exp();
            let off = (found / cost(a, b)).ln().abs();
            assert!(off < tolerance, "({a}, {b}): {found} instead of {}", cost(a, b));
        }
    }

    #[test]
    fn additive_costs_are_found_also_for_unseen_features() {
        let cost = |a: f64, b: f64| 0.2 + 0.5 * a + 2.0 * b;
        check(&learned(60, cost), cost, 0.2);
        check(&learned(1_000, cost), cost, 0.1);
    }

    #[test]
    fn a_feature_may_save_time() {
        let cost = |a: f64, _: f64| 10.0 / (1.0 + 0.2 * a);
        let regression = learned(1_000, cost);
        let at = |a: f64| regression.predict(&features(&[a, 1.0])).log.exp();
        assert!(at(0.0) > 7.5 && at(4.0) < 6.5, "{} {}", at(0.0), at(4.0));
    }

    #[test]
    fn one_absurd_time_changes_little() {
        let mut regression = learned(300, |a, b| 0.2 + 0.5 * a + 2.0 * b);
        let before = regression.clone();
        learn(&mut regression, &features(&[1.0, 1.0]), 1e9);
        learn(&mut regression, &features(&[2.0, 2.0]), 1e-6);
        check(&regression, |a, b| before.predict(&features(&[a, b])).log.exp(), 0.1);
        assert!(regression.noise().sqrt() < 0.15, "{}", regression.noise());
    }

    #[test]
    fn unexcited_directions_do_not_become_unboundedly_uncertain() {
        let mut rng = Rng::new(8);
        let first = features(&[1.0, 1.0]);
        let mut regression = Regression::first(&first, 1.0);
        for _ in 0..100_000 {
            learn(&mut regression, &first, (0.1 * rng.normal()).exp());
        }
        assert!(regression.predict(&first).variance < 0.01);
        assert!(
            regression.covariance.trace() < 2.0 * D as f64,
            "{}",
            regression.covariance.trace()
        );
        let other = regression.predict(&features(&[1.0, 3.0]));
        assert!(other.variance.sqrt() > 0.1 && other.variance.sqrt() < 3.0, "{other:?}");
    }

    #[test]
    fn noise_is_measured_and_the_mean_corrected_for_it() {
        let mut rng = Rng::new(7);
        let f = features(&[]);
        let mut regression = Regression::first(&f, 1.0);
        for _ in 0..2_000 {
            let seconds = (0.5 * rng.normal()).exp();
            let fit = regression.predict(&f);
            let variance = fit.variance + regression.noise();
            regression.calibrate(seconds.ln() - fit.log, variance);
            learn(&mut regression, &f, seconds);
        }
        assert!((regression.noise().sqrt() - 0.5).abs() < 0.1, "{}", regression.noise());
        // The mean of a lognormal is exp(sigma² / 2) of its median.
        assert!((regression.smear() - 0.125_f64.exp()).abs() < 0.1, "{}", regression.smear());
    }

    #[test]
    fn invalid_numbers_are_detected() {
        let sound = learned(10, |a, b| a + b);
        assert!(sound.is_valid());
        let spoilers: [fn(&mut Regression); 6] = [
            |regression| regression.beta[3] = f64::INFINITY,
            |regression| regression.covariance[(1, 2)] = f64::NAN,
            |regression| regression.covariance[(2, 2)] = -1.0,
            |regression| regression.noise = -1.0,
            |regression| regression.smear = 0.0,
            |regression| regression.level_s = -1.0,
        ];
        for (at, spoil) in spoilers.iter().enumerate() {
            let mut damaged = sound.clone();
            spoil(&mut damaged);
            assert!(!damaged.is_valid(), "{at}");
        }
    }
}
