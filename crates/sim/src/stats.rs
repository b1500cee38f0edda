//! The statistics of a run: latency quantiles, fairness, and confidence over seeds.

use std::fmt;

use hypha_model::Span;

/// Latencies of one run. The quantiles are exact: values that occurred, by the nearest-rank rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// How many latencies there were; at least one.
    pub count: usize,
    /// The mean, to the nearest microsecond.
    pub mean: Span,
    /// The least value that half of them do not exceed.
    pub p50: Span,
    /// The least value that 95 % of them do not exceed.
    pub p95: Span,
    /// The least value that 99 % of them do not exceed.
    pub p99: Span,
    /// The least value that 99.9 % of them do not exceed.
    pub p999: Span,
    /// The longest.
    pub max: Span,
}

impl Summary {
    /// Summarises `latencies`, in any order; `None` if there are none, since no number would be true.
    pub fn of(mut latencies: Vec<Span>) -> Option<Summary> {
        latencies.sort_unstable();
        let count = latencies.len();
        let max = *latencies.last()?;
        let sum: u128 = latencies.iter().map(|span| u128::from(span.as_micros())).sum();
        let mean = (sum + count as u128 / 2) / count as u128;
        let quantile = |permille: usize| latencies[(count * permille).div_ceil(1_000).max(1) - 1];
        Some(Summary {
            count,
            mean: Span::from_micros(u64::try_from(mean).unwrap_or(u64::MAX)),
            p50: quantile(500),
            p95: quantile(950),
            p99: quantile(990),
            p999: quantile(999),
            max,
        })
    }
}

/// Jain's fairness of shares that are not negative: 1 when all are equal, 1/n when one has everything.
/// It is 1 if all shares are zero.
pub fn jain_index(values: &[f64]) -> f64 {
    let largest = values.iter().copied().fold(0.0, f64::max);
    if largest <= 0.0 {
        return 1.0;
    }
    // Scaled, so that the squares of very large or small shares stay within range.
    let sum: f64 = values.iter().map(|value| value / largest).sum();
    let squares: f64 = values.iter().map(|value| (value / largest).powi(2)).sum();
    sum * sum / (values.len() as f64 * squares)
}

/// A mean over seeds, and how far it may be from the true mean.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// The mean of the seeds.
    pub mean: f64,
    /// Half the width of the 95 % confidence interval (Student's t); none from a single seed.
    pub half_width: Option<f64>,
}

impl Interval {
    /// The interval from one value for each seed; `None` if there are no values.
    pub fn of(values: &[f64]) -> Option<Interval> {
        let n = values.len() as f64;
        if values.is_empty() {
            return None;
        }
        let mean = values.iter().sum::<f64>() / n;
        if values.len() == 1 {
            return Some(Interval { mean, half_width: None });
        }
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (n - 1.0);
        let t = T_975.get(values.len() - 2).copied().unwrap_or(Z_975);
        Some(Interval { mean, half_width: Some(t * (variance / n).sqrt()) })
    }
}

/// The 97.5 % quantile of Student's t with 1 to 29 degrees of freedom: 2 to 30 values.
const T_975: [f64; 29] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045,
];
/// The same of the normal distribution, which t is within 5 % of from there on.
const Z_975: f64 = 1.96;

impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let decimals = f.precision().unwrap_or(2);
        write!(f, "{:.decimals$}", self.mean)?;
        match self.half_width {
            Some(half_width) => write!(f, " ± {half_width:.decimals$}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_summary(micros: impl IntoIterator<Item = u64>, expected: [u64; 6]) {
        let summary = Summary::of(micros.into_iter().map(Span::from_micros).collect());
        let shown =
            summary.map(|s| [s.mean, s.p50, s.p95, s.p99, s.p999, s.max].map(Span::as_micros));
        assert_eq!(shown, Some(expected));
    }

    #[test]
    fn quantiles_are_values_that_occurred() {
        check_summary([7], [7, 7, 7, 7, 7, 7]);
        check_summary([4, 1], [3, 1, 4, 4, 4, 4]);
        check_summary([30, 10, 20], [20, 20, 30, 30, 30, 30]);
        check_summary((1..=100).rev(), [51, 50, 95, 99, 100, 100]);
        check_summary(1..=101, [51, 51, 96, 100, 101, 101]);
        check_summary(1..=1000, [501, 500, 950, 990, 999, 1000]);
        check_summary(1..=10_000, [5_001, 5_000, 9_500, 9_900, 9_990, 10_000]);
        check_summary([u64::MAX, u64::MAX], [u64::MAX; 6]);
        assert_eq!(Summary::of(Vec::new()), None);
    }

    #[test]
    fn fairness_is_between_one_nth_and_one() {
        let check = |values: &[f64], expected: f64| {
            let fairness = jain_index(values);
            assert!((fairness - expected).abs() < 1e-12, "{values:?}: {fairness}");
        };
        check(&[3.0, 3.0, 3.0], 1.0);
        check(&[0.0, 0.0, 5.0, 0.0], 0.25);
        check(&[1.0, 2.0, 3.0], 36.0 / 42.0);
        check(&[1e300, 1e300], 1.0);
        check(&[1e-300, 0.0], 0.5);
        check(&[0.0, 0.0], 1.0);
        check(&[], 1.0);
    }

    #[test]
    fn intervals_widen_with_spread_and_narrow_with_seeds() {
        let check = |values: &[f64], expected: &str| {
            let shown = Interval::of(values).map(|interval| format!("{interval:.3}"));
            assert_eq!(shown.as_deref(), Some(expected), "{values:?}");
        };
        check(&[5.0], "5.000");
        check(&[5.0, 5.0], "5.000 ± 0.000");
        // By hand: t·s/√n = 12.706·√2/√2, then 4.303·1/√3.
        check(&[4.0, 6.0], "5.000 ± 12.706");
        check(&[1.0, 2.0, 3.0], "2.000 ± 2.484");
        let alternating = |n: usize| (0..n).map(|i| (i % 2) as f64).collect::<Vec<_>>();
        check(&alternating(30), "0.500 ± 0.190");
        check(&alternating(100), "0.500 ± 0.098");
        assert_eq!(Interval::of(&[]), None);
    }
}
