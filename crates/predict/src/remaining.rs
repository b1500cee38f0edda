//! The remaining time of runs that have begun, as a sum that need not be added up again for each read.
//!
//! A run's expected end is predicted once. It is valid until half of the remaining time has passed, or for as long as
//! it is as likely as before; then it is predicted again. So a sum over many runs is two integers, and the remaining
//! time at any moment is the sum of the ends less the time.

use hypha_model::{Span, Time};

use crate::estimate::Estimate;

const MICROS_PER_SECOND: f64 = 1e6;
const SQUARE_MICROS_PER_SQUARE_SECOND: f64 = 1e12;
/// An end is predicted again when this share of the remaining time has passed. With less, a run is predicted more
/// often than decisions need; with more, an end that has become unlikely is believed for longer.
const VALID_SHARE: f64 = 0.5;
/// Nor before the run is within a standard deviation of its expected end: that it has not ended earlier tells little,
/// a new prediction would differ by no more than 0.3 of a standard deviation.
const LIKELY_SIGMAS: f64 = 1.0;
/// As a share of the mean: no prediction is better than this.
const MIN_RELATIVE_DEVIATION: f64 = 0.05;
/// A prediction is valid for at least this long: a message on one machine varies by as much.
const MIN_VALIDITY: Span = Span::from_micros(100);
/// An overdue run is expected to continue for this share of the time that it is overdue. Otherwise the small error of
/// a good predictor would promise for ever that a hung task is about to end.
const OVERDUE_SHARE: f64 = 0.5;

/// When one run is expected to end, as predicted at some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remaining {
    ends: Time,
    variance_us2: u128,
    valid_until: Time,
}

/// A sum over runs: expected ends add, variances add. Removing runs, in any order, leaves exactly the sum of the
/// others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemainingSum {
    count: u32,
    ends_us: u128,
    variance_us2: u128,
}

impl Remaining {
    /// Predicts at `now` the end of a run that began at `since`. Later predictions never move the end earlier.
    pub fn of(estimate: &Estimate, since: Time, now: Time) -> Remaining {
        let elapsed_s = now.since(since).as_secs_f64();
        let (left_s, error_s) = expected(estimate, elapsed_s);
        let left = Span::from_secs_f64(left_s);
        let deviation_s = estimate.error_s.max(MIN_RELATIVE_DEVIATION * estimate.mean_s);
        let likely_s = estimate.mean_s - LIKELY_SIGMAS * deviation_s - elapsed_s;
        let valid_s = (left_s * VALID_SHARE).max(likely_s);
        let valid_until = now + Span::from_secs_f64(valid_s).max(MIN_VALIDITY);
        let variance = (error_s * error_s * SQUARE_MICROS_PER_SQUARE_SECOND).round();
        Remaining {
            ends: (now + left).max(valid_until),
            variance_us2: variance as u128,
            valid_until,
        }
    }

    /// When the run is expected to end.
    pub fn expected_end(&self) -> Time {
        self.ends
    }

    /// When it is to be predicted again.
    pub fn valid_until(&self) -> Time {
        self.valid_until
    }
}

/// How long a run continues: mean and standard deviation.
fn expected(estimate: &Estimate, elapsed_s: f64) -> (f64, f64) {
    let overdue_s = OVERDUE_SHARE * (elapsed_s - estimate.mean_s);
    // Runs of microseconds are overdue for most of the time that their messages travel. Their prediction was wrong, so
    // the rest is uncertain by as much as it is long.
    if estimate.remains_at_most(elapsed_s, overdue_s) {
        return (overdue_s, overdue_s);
    }
    let (mean_s, error_s) = estimate.remaining_after(elapsed_s);
    (mean_s.max(overdue_s), error_s)
}

impl RemainingSum {
    /// Adds a run.
    pub fn add(&mut self, remaining: &Remaining) {
        self.count = self.count.saturating_add(1);
        self.ends_us = self.ends_us.saturating_add(u128::from(remaining.ends.as_micros()));
        self.variance_us2 = self.variance_us2.saturating_add(remaining.variance_us2);
    }

    /// Removes the same run.
    pub fn remove(&mut self, remaining: &Remaining) {
        self.count = self.count.saturating_sub(1);
        if self.count == 0 {
            *self = RemainingSum::default();
            return;
        }
        self.ends_us = self.ends_us.saturating_sub(u128::from(remaining.ends.as_micros()));
        self.variance_us2 = self.variance_us2.saturating_sub(remaining.variance_us2);
    }

    /// The sum of the remaining times at `now`: mean in seconds, and variance. Holds while the prediction of each run
    /// is valid.
    pub fn remaining_at(&self, now: Time) -> (f64, f64) {
        let passed = u128::from(self.count) * u128::from(now.as_micros());
        let left_s = self.ends_us.saturating_sub(passed) as f64 / MICROS_PER_SECOND;
        (left_s, self.variance_us2 as f64 / SQUARE_MICROS_PER_SQUARE_SECOND)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{prop_assert, prop_assert_eq, proptest};

    const START: Time = Time::from_micros(1_700_000_000_000_000);

    fn exact_s(estimate: &Estimate, elapsed_s: f64) -> f64 {
        let left_s = estimate.remaining(elapsed_s).mean_s;
        left_s.max(OVERDUE_SHARE * (elapsed_s - estimate.mean_s))
    }

    #[test]
    fn hung_run_is_predicted_later_and_less_often() {
        let estimate = Estimate::new(1.0, 0.05);
        let (mut now, mut predictions, mut before) = (START, 0, START);
        while now.since(START).as_secs_f64() < 1_000.0 {
            let remaining = Remaining::of(&estimate, START, now);
            assert!(remaining.expected_end() >= before && remaining.valid_until() > now);
            (before, now, predictions) =
                (remaining.expected_end(), remaining.valid_until(), predictions + 1);
        }
        assert!(predictions < 80, "{predictions} times");
    }

    proptest! {
        /// While a prediction is valid, its remaining time is no more than a fresh one's, and at least a third of it.
        #[test]
        fn a_valid_prediction_is_near_a_fresh_one(
            mean_s in 1e-3..1e4f64,
            relative_error in 0.0..2.0f64,
            elapsed in 0.0..3.0f64,
            later in 0.0..1.0f64,
        ) {
            let estimate = Estimate::new(mean_s, relative_error * mean_s);
            let told_at = START + Span::from_secs_f64(elapsed * mean_s);
            let remaining = Remaining::of(&estimate, START, told_at);
            let valid_s = remaining.valid_until().since(told_at).as_secs_f64();
            let now = told_at + Span::from_secs_f64(valid_s * later);
            let mut sum = RemainingSum::default();
            sum.add(&remaining);
            let left_s = sum.remaining_at(now).0;
            let exact_s = exact_s(&estimate, now.since(START).as_secs_f64());
            let slack_s = 1e-4 + 1e-6 * mean_s;
            prop_assert!(left_s <= exact_s + slack_s, "{left_s} instead of {exact_s}");
            prop_assert!(exact_s <= 3.0 * left_s + slack_s, "{left_s} instead of {exact_s}");
        }

        /// The bound that saves most predictions of overdue runs holds, and tells for long overdue ones.
        #[test]
        fn long_overdue_runs_need_no_exact_prediction(
            mean_s in 1e-6..1e4f64,
            relative_error in 0.01..1.0f64,
            elapsed in 1.0..100.0f64,
        ) {
            let estimate = Estimate::new(mean_s, relative_error * mean_s);
            let elapsed_s = elapsed * mean_s;
            let overdue_s = OVERDUE_SHARE * (elapsed_s - mean_s);
            let is_bounded = estimate.remains_at_most(elapsed_s, overdue_s);
            if is_bounded {
                let mean_s = estimate.remaining_after(elapsed_s).0;
                prop_assert!(mean_s <= overdue_s * (1.0 + 1e-9), "{mean_s} instead of {overdue_s}");
            }
            prop_assert!(is_bounded || elapsed < 40.0 || relative_error > 0.9);
        }

        #[test]
        fn removal_in_any_order_leaves_the_sum_of_the_rest(
            times in proptest::collection::vec((1e-6..1e6f64, 0.0..1e6f64, 0.0..1e6f64), 1..20),
            keep in 0usize..20,
        ) {
            let predict = |(mean_s, error_s, elapsed_s): &(f64, f64, f64)| {
                let now = START + Span::from_secs_f64(*elapsed_s);
                Remaining::of(&Estimate::new(*mean_s, *error_s), START, now)
            };
            let all: Vec<Remaining> = times.iter().map(predict).collect();
            let (kept, taken) = all.split_at(keep.min(all.len()));
            let sum = |parts: &[Remaining]| {
                let mut sum = RemainingSum::default();
                parts.iter().for_each(|part| sum.add(part));
                sum
            };
            let mut left = sum(&all);
            taken.iter().for_each(|remaining| left.remove(remaining));
            prop_assert_eq!(left, sum(kept));
            if kept.is_empty() {
                prop_assert_eq!(left.remaining_at(START), (0.0, 0.0));
            }
        }
    }
}
