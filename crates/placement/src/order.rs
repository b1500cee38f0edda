//! The order stage: which waiting task is looked at first.
//!
//! The position of a task is fixed when it begins to wait, so a tree keeps the order and waiting alone makes a task
//! older: a later task must be that much shorter to overtake it.

use hypha_model::{Priority, Time};

use crate::Task;
use crate::strategy::Order;
use crate::waiting::QueuePosition;

/// A priority of 1.0 lets a task overtake those that were submitted up to this long before it.
const PRIORITY_HEAD_START_US: f64 = 60e6;
/// The same under an order by priority, so that tasks without priority also run at some time.
const PRIORITY_ORDER_HEAD_START_US: f64 = 600e6;
/// Sizes count with this power: the few longest tasks are put back far, instead of many a little. That spares the p99,
/// which a linear order cannot.
const SIZE_POWER: f64 = 2.0;
/// Larger sizes are not put back further, so that no task waits for ever.
const MAX_SIZE: f64 = 16.0;
/// The running mean of sizes remembers about this many tasks.
const RUNNING_MEAN_WINDOW: f64 = 1_000.0;

/// The rank of tasks that cannot be in time: behind all others.
pub(crate) const UNREACHABLE_RANK: i64 = i64::MAX;

/// A running mean of predicted run times.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RunningMean {
    count: f64,
    mean_s: f64,
}

impl RunningMean {
    pub(crate) fn add(&mut self, predicted_s: f64) {
        self.count = (self.count + 1.0).min(RUNNING_MEAN_WINDOW);
        self.mean_s += (predicted_s - self.mean_s) / self.count;
    }

    pub(crate) fn mean(&self) -> f64 {
        self.mean_s.max(1e-9)
    }

    /// Whether nothing was added yet.
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0.0
    }
}

/// The position of `task`; a task of twice the usual size is put back by three times `size_penalty_us`.
pub(crate) fn queue_position_of(order: Order, task: &Task, size_penalty_us: f64) -> QueuePosition {
    let requirement = &task.request.spec.requirement;
    let submitted_us = task.request.submitted.as_micros();
    let rank = match order {
        Order::Arrival => 0,
        Order::Priority => {
            let head_start_us = requirement.priority.as_f64() * PRIORITY_ORDER_HEAD_START_US;
            rank_of(submitted_us as f64 - head_start_us)
        }
        Order::Predicted { .. } => {
            // The less a prediction can be trusted, the less it counts.
            let power = SIZE_POWER / (1.0 + task.log_variance * task.log_variance);
            let size = task.size.min(MAX_SIZE).powf(power) - 1.0;
            let head_start_us = requirement.priority.as_f64() * PRIORITY_HEAD_START_US;
            rank_of(submitted_us as f64 + size_penalty_us * size - head_start_us)
        }
    };
    task.position(rank)
}

/// The rank of an urgent task among the urgent ones: the earliest deadline first, with the head start of its priority.
pub(crate) fn urgent_rank(order: Order, priority: Priority, deadline: Time) -> i64 {
    let head_start_us = match order {
        Order::Arrival => 0.0,
        Order::Priority => PRIORITY_ORDER_HEAD_START_US,
        Order::Predicted { .. } => PRIORITY_HEAD_START_US,
    };
    rank_of(deadline.as_micros() as f64 - priority.as_f64() * head_start_us)
}

/// A rank that orders as `time_us` does, also where priorities put it far beyond the range of a number of
/// microseconds.
fn rank_of(time_us: f64) -> i64 {
    let bits = time_us.to_bits().cast_signed();
    // The order of the bits of negative floats is reversed.
    if bits < 0 { bits ^ i64::MAX } else { bits }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_in_the_order_of_times() {
        let ascending =
            [f64::NEG_INFINITY, -1e300, -6e28, -1.0, 0.0, 0.5, 1.7e15, 1.7e15 + 1.0, 1e300];
        for pair in ascending.windows(2) {
            assert!(rank_of(pair[0]) < rank_of(pair[1]), "{pair:?}");
        }
    }
}
