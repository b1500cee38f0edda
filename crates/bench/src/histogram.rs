//! How long things took: a histogram of fixed size, and what is told of several rounds.

use std::time::Duration;

/// Steps within each doubling: a value is known to within 1 %.
const STEPS: u64 = 128;

/// Doublings up to a quarter of an hour in nanoseconds; what takes longer counts as that.
const DOUBLINGS: u64 = 34;

/// Times, each in the step that it belongs to.
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

    /// The time that this part (0 to 1) of all took at most, in microseconds.
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

/// Below `STEPS` nanoseconds each has its own step; above, `STEPS` of them for each doubling.
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

/// What is told of a figure that was measured several times.
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
    fn each_time_is_known_to_within_one_percent() {
        for nanos in [0, 1, 127, 128, 129, 255, 256, 1_000, 12_345, 999_999, 5_000_000_000] {
            let told = middle(step(nanos) as u64);
            assert!((told - nanos as f64).abs() <= nanos as f64 / 100.0, "{nanos}: {told}");
        }
        assert_eq!(step(u64::MAX), step(u64::MAX / 2));
    }

    #[test]
    fn quantiles_count_what_was_added() {
        let mut times = Histogram::default();
        (1..=100).for_each(|micros| times.add(Duration::from_micros(micros)));
        for (part, micros) in [(0.5, 50.0), (0.9, 90.0), (0.99, 99.0), (1.0, 100.0)] {
            let told = times.quantile_us(part);
            assert!((told - micros).abs() <= micros / 100.0, "{part}: {told}");
        }
        let mut both = Histogram::default();
        both.merge(&times);
        both.merge(&times);
        assert_eq!((both.count(), both.quantile_us(0.5)), (200, times.quantile_us(0.5)));
        assert_eq!(Histogram::default().quantile_us(0.5), 0.0);
    }

    #[test]
    fn the_median_stands_in_the_middle() {
        let told = |values: &[f64]| {
            let rounds = RoundStatistics::of(values.iter().copied());
            (rounds.median, rounds.low, rounds.high)
        };
        assert_eq!(told(&[3.0, 1.0, 2.0]), (2.0, 1.0, 3.0));
        assert_eq!(told(&[4.0, 1.0]), (2.5, 1.0, 4.0));
        assert!(told(&[]).0.is_nan());
    }
}
