//! The learning rate over time: a linear warm-up, then half a cosine down to a floor.

use serde::{Deserialize, Serialize};

/// A learning rate for each step of a training run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Schedule {
    /// The highest rate, reached after the warm-up.
    pub peak: f64,
    /// The rate at the end, and ever after.
    pub floor: f64,
    /// Steps of the warm-up.
    pub warmup_steps: u64,
    /// Steps of the run, the warm-up included.
    pub total_steps: u64,
}

impl Schedule {
    /// The rate of a step, counted from 0.
    pub fn learning_rate(&self, step: u64) -> f64 {
        if step < self.warmup_steps {
            return self.peak * (step + 1) as f64 / self.warmup_steps as f64;
        }
        if step >= self.total_steps {
            return self.floor;
        }
        let done =
            (step - self.warmup_steps) as f64 / (self.total_steps - self.warmup_steps) as f64;
        let height = 0.5 * (1.0 + (std::f64::consts::PI * done).cos());
        self.floor + height * (self.peak - self.floor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_warms_up_and_falls_to_the_floor() {
        let schedule = Schedule { peak: 1.0, floor: 0.1, warmup_steps: 4, total_steps: 12 };
        let cases = [
            (0, 0.25),
            (3, 1.0),
            (4, 1.0),
            (6, 0.1 + 0.9 * 0.853_553_390_593),
            (8, 0.55),
            (12, 0.1),
            (u64::MAX, 0.1),
        ];
        for (step, expected) in cases {
            let rate = schedule.learning_rate(step);
            assert!((rate - expected).abs() < 1e-9, "{step}: {rate}");
        }
    }

    #[test]
    fn schedules_without_steps_are_constant() {
        let none = Schedule { peak: 1.0, floor: 0.5, warmup_steps: 0, total_steps: 0 };
        assert_eq!(none.learning_rate(0), 0.5);
        let only_warmup = Schedule { peak: 1.0, floor: 0.5, warmup_steps: 2, total_steps: 2 };
        assert_eq!(only_warmup.learning_rate(1), 1.0);
        assert_eq!(only_warmup.learning_rate(2), 0.5);
    }
}
