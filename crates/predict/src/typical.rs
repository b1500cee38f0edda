//! The usual run time of all tasks, for scales and for tasks of which nothing else is known.

use serde::{Deserialize, Serialize};

use crate::bits;

/// The average remembers about 100 run times.
const MIN_STEP: f64 = 0.01;

/// A moving average of run times.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct TypicalRunTime {
    #[serde(with = "bits")]
    mean_s: f64,
    count: u32,
}

impl TypicalRunTime {
    pub(crate) fn observe(&mut self, seconds: f64) {
        self.count = self.count.saturating_add(1);
        self.mean_s += (seconds - self.mean_s) * (1.0 / f64::from(self.count)).max(MIN_STEP);
    }

    /// The average, or `first` before there is one.
    pub(crate) fn mean_s(&self, first: f64) -> f64 {
        if self.count > 0 { self.mean_s } else { first }
    }

    pub(crate) fn is_valid(&self) -> bool {
        self.mean_s.is_finite() && self.mean_s >= 0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_average_begins_with_the_first_time_and_follows() {
        let mut typical = TypicalRunTime::default();
        assert_eq!(typical.mean_s(7.0), 7.0);
        typical.observe(3.0);
        assert_eq!(typical.mean_s(7.0), 3.0);
        (0..1_000).for_each(|_| typical.observe(5.0));
        assert!((typical.mean_s(7.0) - 5.0).abs() < 0.01);
    }
}
