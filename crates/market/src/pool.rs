//! The pool of a scheduler that leases workers for its tasks at a price: when it grows, and when it shrinks.

use hypha_model::{Money, Span, Time};
use serde::{Deserialize, Serialize};

/// What an operator can set. Without a pool, a scheduler takes what is there and costs nothing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PoolSettings {
    /// The price that is offered for an hour of a worker.
    pub bid: Money,
    /// The highest price that is paid. It never leaves the scheduler.
    pub max: Money,
    /// So many workers are kept, also without tasks.
    pub min_workers: u32,
    /// No more than this.
    pub max_workers: u32,
    /// The most that an hour of all of them may cost.
    pub budget: Option<Money>,
    /// The pool grows if tasks are predicted to wait for longer than this.
    pub target_wait: Span,
    /// A worker that has had no task for this long is released.
    pub idle_after: Span,
    /// How long offers are collected.
    pub window: Span,
}

/// The tasks of one kind that wait, and what could run them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Demand {
    /// How many wait.
    pub tasks: u64,
    /// The predicted run time of one.
    pub run: Span,
    /// How many the workers of the pool could run at once.
    pub slots: u64,
    /// On how many workers.
    pub workers: u32,
    /// How long the first of them has waited.
    pub waited: Span,
}

/// The pool as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolSize {
    /// Workers that are leased, or are being leased.
    pub workers: u32,
    /// What an hour of them costs.
    pub paid: Money,
}

impl Default for PoolSettings {
    fn default() -> PoolSettings {
        PoolSettings {
            bid: Money::ZERO,
            max: Money::ZERO,
            min_workers: 0,
            max_workers: 1_000,
            budget: None,
            target_wait: Span::from_secs(5),
            idle_after: Span::from_secs(300),
            window: Span::from_millis(500),
        }
    }
}

impl Demand {
    /// How long the last of the tasks is predicted to wait, at least as long as the first has waited: the prediction may
    /// be wrong, above all for a model that is new. `None` if nothing could run them.
    pub fn wait(&self) -> Option<Span> {
        let predicted = || self.run.mul_f64(self.tasks as f64 / self.slots as f64);
        (self.slots > 0).then(|| predicted().max(self.waited))
    }
}

impl PoolSettings {
    /// How many more workers are wanted for tasks of one kind. The pool at most doubles at once: what it learns of the new
    /// workers decides about the next.
    pub fn growth(&self, size: PoolSize, demand: &Demand) -> u32 {
        if demand.tasks == 0 {
            return 0;
        }
        let wanted = match demand.wait() {
            None => 1,
            Some(wait) if wait <= self.target_wait => 0,
            Some(wait) => {
                let times = wait.as_secs_f64() / self.target_wait.as_secs_f64().max(1e-3);
                let lacking = (f64::from(demand.workers) * (times - 1.0)).ceil();
                (lacking.min(f64::from(self.max_workers)) as u32).clamp(1, demand.workers.max(1))
            }
        };
        wanted.min(self.room(size))
    }

    /// How many more workers the bounds allow.
    pub fn room(&self, size: PoolSize) -> u32 {
        let by_count = self.max_workers.saturating_sub(size.workers);
        let by_budget = self.budget.map_or(u32::MAX, |budget| {
            let left = budget.saturating_sub(size.paid).as_micros();
            // An offer may cost less than the bid, but not be expected to.
            let price = self.bid.as_micros().max(1);
            u32::try_from(left / price).unwrap_or(u32::MAX)
        });
        by_count.min(by_budget)
    }

    /// Whether a worker that has been idle since `idle_since` is released.
    pub fn releases(&self, now: Time, size: PoolSize, idle_since: Time) -> bool {
        size.workers > self.min_workers && now.since(idle_since) >= self.idle_after
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_grows_with_the_predicted_wait_within_its_bounds() {
        let units = |units: u64| Money::from_micros(units * 1_000_000);
        let settings = PoolSettings { bid: units(2), max_workers: 10, ..PoolSettings::default() };
        let budget = PoolSettings { budget: Some(units(9)), ..settings.clone() };
        let size = |workers: u32| PoolSize { workers, paid: units(2 * u64::from(workers)) };
        // Tasks of 1 s each, 4 of which each worker runs at once; the wait may be 5 s.
        let demand = |tasks: u64, workers: u32| Demand {
            tasks,
            run: Span::from_secs(1),
            slots: 4 * u64::from(workers),
            workers,
            waited: Span::ZERO,
        };
        let late = Demand { run: Span::ZERO, waited: Span::from_secs(6), ..demand(1, 2) };
        let cases = [
            ("nothing waits", &settings, 0, demand(0, 0), 0),
            ("nothing could run them", &settings, 0, demand(1, 0), 1),
            ("short enough", &settings, 2, demand(40, 2), 0),
            ("a little too long", &settings, 2, demand(42, 2), 1),
            ("the prediction is wrong", &settings, 2, late, 1),
            ("far too long: doubled", &settings, 3, demand(10_000, 3), 3),
            ("no more than the most", &settings, 8, demand(10_000, 8), 2),
            ("full", &settings, 10, demand(10_000, 10), 0),
            ("within the budget", &budget, 3, demand(10_000, 3), 1),
            ("the budget is used up", &budget, 4, demand(10_000, 4), 0),
        ];
        for (why, settings, workers, demand, wanted) in cases {
            assert_eq!(settings.growth(size(workers), &demand), wanted, "{why}");
        }
    }

    #[test]
    fn idle_workers_are_released_down_to_the_minimum() {
        let settings = PoolSettings { min_workers: 2, ..PoolSettings::default() };
        let (idle_since, size) = (Time::ZERO, |workers| PoolSize { workers, paid: Money::ZERO });
        let at = |seconds: u64| Time::from_micros(seconds * 1_000_000);
        assert!(!settings.releases(at(299), size(3), idle_since));
        assert!(settings.releases(at(300), size(3), idle_since));
        assert!(!settings.releases(at(300), size(2), idle_since));
    }
}
