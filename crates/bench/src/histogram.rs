//! Durations: a histogram of fixed size, and the statistics of several rounds.

use std::time::Duration;

/// Steps within each doubling: a value is known to within 1 %.
const STEPS: u64 = 128;

/// Doublings of nanoseconds, up to a quarter of an hour; longer durations count as that.
const DOUBLINGS: u64 = 34;

/// Counts of durations per step.
#[derive(Clone)]
pub(crate) struct Histogram {
    counts: Vec<u64>,
    total: u64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { counts: vec![0; (STEPS * DOUBLINGS) as usize], total: 0 }
    }
}

impl Histogram {
    pub(crate) fn add(&mut self, time: Duration) {
        let at = step(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        self.counts[at] += 1;
        self.total += 1;
    }

    pub(crate) fn merge(&mut self, other: &Histogram) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(own, other)| *own += other);
        self.total += other.total;
    }

    pub(crate) fn count(&self) -> u64 {
        self.total
    }

    /// The quantile of `part` (0 to 1), in microseconds.
    pub(crate) fn quantile_us(&self, part: f64) -> f64 {
        let wanted = (part * self.total as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (at, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return middle(at as u64) / 1e3;
            }
        }
        0.0
    }
}

/// Below `STEPS` nanoseconds each nanosecond has its own step; above, each doubling has `STEPS` of them.
fn step(nanos: u64) -> usize {
    let doublings = u64::from(nanos.max(STEPS).ilog2() - STEPS.ilog2());
    let at = doublings * STEPS + (nanos >> doublings);
    at.min(STEPS * DOUBLINGS - 1) as usize
}

fn middle(at: u64) -> f64 {
    // The first two rows of steps are one nanosecond wide.
    let doublings = (at / STEPS).saturating_sub(1);
    let from = (at - doublings * STEPS) << doublings;
    from as f64 + ((1_u64 << doublings) - 1) as f64 / 2.0
}

/// The statistics of a figure that was measured several times.
#[derive(Clone, Copy)]
pub(crate) struct RoundStatistics {
    pub(crate) median: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

impl RoundStatistics {
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> RoundStatistics {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let at = |place: usize| values.get(place).copied().unwrap_or(f64::NAN);
        let half = values.len() / 2;
        let median = match values.len() % 2 {
            0 if half > 0 => (at(half - 1) + at(half)) / 2.0,
            _ => at(half),
        };
        RoundStatistics { median, low: at(0), high: at(values.len().saturating_sub(1)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_known_to_within_one_percent() {
        for nanos in [0, 1, 127, 128, 129, 255, 256, 1_000, 12_345, 999_999, 5_000_000_000] {
            let got = middle(step(nanos) as u64);
            assert!((got - nanos as f64).abs() <= nanos as f64 / 100.0, "{nanos}: {got}");
        }
        assert_eq!(step(u64::MAX), step(u64::MAX / 2));
    }

    #[test]
    fn quantiles_are_those_of_the_added_durations() {
        let mut times = Histogram::default();
        (1..=100).for_each(|micros| times.add(Duration::from_micros(micros)));
        for (part, micros) in [(0.5, 50.0), (0.9, 90.0), (0.99, 99.0), (1.0, 100.0)] {
            let got = times.quantile_us(part);
            assert!((got - micros).abs() <= micros / 100.0, "{part}: {got}");
        }
        let mut both = Histogram::default();
        both.merge(&times);
        both.merge(&times);
        assert_eq!((both.count(), both.quantile_us(0.5)), (200, times.quantile_us(0.5)));
        assert_eq!(Histogram::default().quantile_us(0.5), 0.0);
    }

    #[test]
    fn median_is_the_middle_value() {
        let got = |values: &[f64]| {
            let rounds = RoundStatistics::of(values.iter().copied());
            (rounds.median, rounds.low, rounds.high)
        };
        assert_eq!(got(&[3.0, 1.0, 2.0]), (2.0, 1.0, 3.0));
        assert_eq!(got(&[4.0, 1.0]), (2.5, 1.0, 4.0));
        assert!(got(&[]).0.is_nan());
    }
}
