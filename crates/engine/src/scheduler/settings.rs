//! What an operator can set.

use hypha_market::PoolSettings;
use hypha_model::{Name, Span};
use hypha_placement::{Preferences, Strategy};

use crate::mutant::Mutant;

/// The scheduler's settings; the defaults are the seed's.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The strategy, until another is chosen at run time.
    pub strategy: Strategy,
    /// What holds for all strategies.
    pub preferences: Preferences,
    /// Tasks that have not ended; more are refused.
    pub max_queue: usize,
    /// The timeout of an attempt if the task has none.
    pub task_timeout: Span,
    /// How failed attempts are retried.
    pub retry: RetryPolicy,
    /// The interval of heartbeats to a worker.
    pub health_check_interval: Span,
    /// How long an answer may take.
    pub health_check_timeout: Span,
    /// After how many consecutive failures an executor is quarantined, or a worker after how many losses.
    pub max_consecutive_failures: u32,
    /// For how long, the first time; doubled each time, up to 16 times.
    pub quarantine: Span,
    /// For how long a lease is requested.
    pub lease_ttl: Span,
    /// How long a lost worker is remembered before it is forgotten.
    pub forget_worker_after: Span,
    /// How long an idempotency key is remembered after its task has ended.
    pub key_ttl: Span,
    /// How often what was learned is saved.
    pub save_interval: Span,
    /// The least interval between two plans that only the passing of time triggers.
    pub min_plan_interval: Span,
    /// The most items of one kind that a step handles, such as attempts of a lost worker: at up to ten microseconds
    /// each, other events wait for a few milliseconds at most. At least 1; steps that follow at once do the rest.
    pub items_per_step: usize,
    /// Lease workers for tasks at a price, as needed; without it, every worker that is found is used, at no price.
    pub pool: Option<PoolSettings>,
    /// The scheduler's organisation, as its certificate says. Receipts name it.
    pub organisation: Option<Name>,
    /// A planted fault; has no effect without the `mutants` feature.
    pub mutant: Option<Mutant>,
}

/// How failed attempts are retried.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RetryPolicy {
    /// Attempts in all, at least 1.
    pub max_attempts: u32,
    /// The backoff after the first failure; doubled after each further one.
    pub backoff_base: Span,
    /// The longest backoff.
    pub backoff_max: Span,
    /// Whether an attempt that timed out is retried.
    pub retry_on_timeout: bool,
    /// Whether an attempt whose worker failed is retried.
    pub retry_on_worker_failure: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            strategy: Strategy::default(),
            preferences: Preferences::default(),
            max_queue: 1_000_000,
            task_timeout: Span::from_secs(300),
            retry: RetryPolicy::default(),
            health_check_interval: Span::from_secs(30),
            health_check_timeout: Span::from_secs(5),
            max_consecutive_failures: 3,
            quarantine: Span::from_secs(30),
            lease_ttl: Span::from_secs(120),
            forget_worker_after: Span::from_secs(3_600),
            key_ttl: Span::from_secs(24 * 3_600),
            save_interval: Span::from_secs(30),
            min_plan_interval: Span::from_millis(1),
            items_per_step: 256,
            pool: None,
            organisation: None,
            mutant: None,
        }
    }
}

impl Settings {
    /// The same settings, with spans of at least a millisecond where zero would keep the machine busy
    /// without time passing, and workers not forgotten before they can be lost.
    pub(super) fn bounded(mut self) -> Settings {
        let least = Span::from_millis(1);
        self.health_check_interval = self.health_check_interval.max(least);
        self.health_check_timeout = self.health_check_timeout.max(least);
        self.lease_ttl = self.lease_ttl.max(least);
        self.save_interval = self.save_interval.max(least);
        self.min_plan_interval = self.min_plan_interval.max(least);
        self.items_per_step = self.items_per_step.max(1);
        self.forget_worker_after = self.forget_worker_after.max(self.lease_ttl);
        self
    }
}

impl Default for RetryPolicy {
    fn default() -> RetryPolicy {
        RetryPolicy {
            max_attempts: 3,
            backoff_base: Span::from_secs(2),
            backoff_max: Span::from_secs(60),
            retry_on_timeout: true,
            retry_on_worker_failure: true,
        }
    }
}

impl RetryPolicy {
    /// The backoff after `failures` failures: doubled each time, bounded, and between half and all of that
    /// by `jitter` (0 to 1), so that tasks which failed together are not retried together.
    pub(super) fn backoff(&self, failures: u32, jitter: f64) -> Span {
        let doublings = failures.saturating_sub(1).min(32);
        let pause = self.backoff_base.times(1 << doublings).min(self.backoff_max);
        pause.mul_f64(0.5 + 0.5 * jitter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_up_to_the_bound_with_jitter() {
        let policy = RetryPolicy::default();
        let longest: Vec<u64> =
            (1..8).map(|n| policy.backoff(n, 1.0).as_micros() / 1_000_000).collect();
        assert_eq!(longest, [2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(policy.backoff(3, 0.0), Span::from_secs(4));
        assert_eq!(policy.backoff(u32::MAX, 1.0), Span::from_secs(60));
    }
}
