//! The total predicted time of everything in front of a new task.

use crate::estimate::Estimate;

const NANOS_PER_SECOND: f64 = 1e9;
const SQUARE_MICROS_PER_SQUARE_SECOND: f64 = 1e12;

/// A sum of independent run times: means add, variances add. The sums are integers, so that removing run times, in any
/// order, leaves exactly the sum of the rest, and zero when none is left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    count: u32,
    mean_ns: u128,
    variance_us2: u128,
}

impl Backlog {
    /// Nothing in front.
    pub const EMPTY: Backlog = Backlog { count: 0, mean_ns: 0, variance_us2: 0 };

    /// How many run times are in the sum.
    pub const fn count(&self) -> u32 {
        self.count
    }

    /// Adds a run time.
    pub fn add(&mut self, estimate: &Estimate) {
        let (mean, variance) = parts(estimate);
        self.count = self.count.saturating_add(1);
        self.mean_ns = self.mean_ns.saturating_add(mean);
        self.variance_us2 = self.variance_us2.saturating_add(variance);
    }

    /// Removes the same run time. If it cannot have been in the sum, the caller has lost count: returns false, and the
    /// sum is as near as it can be.
    pub fn remove(&mut self, estimate: &Estimate) -> bool {
        let (mean, variance) = parts(estimate);
        let was_in = self.count > 0 && self.mean_ns >= mean && self.variance_us2 >= variance;
        self.count = self.count.saturating_sub(1);
        if self.count == 0 {
            let exact = was_in && self.mean_ns == mean && self.variance_us2 == variance;
            *self = Backlog::EMPTY;
            return exact;
        }
        self.mean_ns = self.mean_ns.saturating_sub(mean);
        self.variance_us2 = self.variance_us2.saturating_sub(variance);
        was_in
    }

    /// The expected sum and its standard deviation, in seconds.
    pub fn estimate(&self) -> (f64, f64) {
        let mean_s = self.mean_ns as f64 / NANOS_PER_SECOND;
        (mean_s, (self.variance_us2 as f64 / SQUARE_MICROS_PER_SQUARE_SECOND).sqrt())
    }
}

fn parts(estimate: &Estimate) -> (u128, u128) {
    let mean = (estimate.mean_s * NANOS_PER_SECOND).round();
    let variance = (estimate.variance() * SQUARE_MICROS_PER_SQUARE_SECOND).round();
    // A cast saturates and turns NaN into zero.
    (mean as u128, variance as u128)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{prop_assert, prop_assert_eq, proptest};

    #[test]
    fn means_add_and_variances_add() {
        let mut backlog = Backlog::EMPTY;
        for _ in 0..4 {
            backlog.add(&Estimate::new(1.5, 0.5));
        }
        // Four independent errors of 0.5 make one of 1.0, not of 2.0.
        assert_eq!((backlog.estimate(), backlog.count()), ((6.0, 1.0), 4));
    }

    #[test]
    fn removing_what_was_never_added_is_reported() {
        let (small, large) = (Estimate::new(1.0, 0.1), Estimate::new(2.0, 0.1));
        let mut backlog = Backlog::EMPTY;
        assert!(!backlog.remove(&small));
        backlog.add(&small);
        assert!(!backlog.remove(&large));
        assert_eq!(backlog, Backlog::EMPTY);
        backlog.add(&small);
        backlog.add(&small);
        assert!(!backlog.remove(&Estimate::new(5.0, 0.1)));
        backlog = Backlog::EMPTY;
        backlog.add(&small);
        assert!(backlog.remove(&small));
    }

    proptest! {
        #[test]
        fn removal_in_any_order_leaves_the_sum_of_the_rest(
            times in proptest::collection::vec((1e-6..1e6f64, 0.0..1e6f64), 1..20),
            keep in 0usize..20,
        ) {
            let times: Vec<Estimate> = times.iter().map(|(m, e)| Estimate::new(*m, *e)).collect();
            let (kept, taken) = times.split_at(keep.min(times.len()));
            let sum = |parts: &[Estimate]| {
                let mut backlog = Backlog::EMPTY;
                parts.iter().for_each(|part| backlog.add(part));
                backlog
            };
            let mut backlog = sum(&times);
            for estimate in taken {
                prop_assert!(backlog.remove(estimate));
            }
            prop_assert_eq!(backlog, sum(kept));
            if kept.is_empty() {
                prop_assert_eq!(backlog.estimate(), (0.0, 0.0));
            }
        }
    }
}
