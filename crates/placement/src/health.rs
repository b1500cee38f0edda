//! The record of a worker so far.

use hypha_model::{Name, Span, Time};
use serde::{Deserialize, Serialize};

use crate::model_records::{ModelRecords, PastRuns};
use crate::reliability;

/// The record of a worker, with the fields that the seed lists.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Health {
    /// Moving share of attempts that succeeded.
    pub success_rate: f64,
    /// Moving average of run times.
    pub avg_completion_time: Span,
    /// When the last message from it arrived.
    pub last_seen: Time,
    /// Failures since the last success.
    pub consecutive_failures: u32,
    /// Moving average of run time relative to what the reference hardware was predicted to need.
    pub relative_time: f64,
    /// Attempts that succeeded.
    pub completed: u64,
    /// Attempts that failed.
    pub failed: u64,
    /// The remaining penalty for failures, at `last_failure`.
    penalty: f64,
    last_failure: Time,
    /// The success rate of each executor that has not always succeeded. While a worker is in the pool, `Reliability`
    /// counts it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) executors: Vec<(Name, f64)>,
    /// The record with each model.
    #[serde(default, skip_serializing_if = "ModelRecords::is_empty")]
    pub(crate) models: ModelRecords,
}

impl Default for Health {
    fn default() -> Health {
        Health {
            success_rate: 1.0,
            avg_completion_time: Span::ZERO,
            last_seen: Time::ZERO,
            consecutive_failures: 0,
            relative_time: 1.0,
            completed: 0,
            failed: 0,
            penalty: 0.0,
            last_failure: Time::ZERO,
            executors: Vec::new(),
            models: ModelRecords::default(),
        }
    }
}

impl Health {
    /// The weight of the newest attempt where the strategy states none.
    pub const DEFAULT_WEIGHT: f64 = 0.1;

    pub(crate) fn succeeded(
        &mut self,
        run: Span,
        relative_time: f64,
        weight: f64,
        model: Option<&Name>,
    ) {
        if let Some(model) = model {
            self.models.succeeded(model, run, relative_time, weight);
        }
        self.completed += 1;
        self.consecutive_failures = 0;
        self.success_rate += weight * (1.0 - self.success_rate);
        if self.completed == 1 {
            self.avg_completion_time = run;
            self.relative_time = relative_time;
        } else {
            let average = self.avg_completion_time.as_secs_f64();
            self.avg_completion_time =
                Span::from_secs_f64(average + weight * (run.as_secs_f64() - average));
            self.relative_time += weight * (relative_time - self.relative_time);
        }
    }

    pub(crate) fn failed(
        &mut self,
        now: Time,
        weight: f64,
        half_life_s: f64,
        model: Option<&Name>,
    ) {
        if let Some(model) = model {
            self.models.failed(model, weight);
        }
        self.failed += 1;
        self.consecutive_failures = self.consecutive_failures.saturating_add(1);
        self.success_rate -= weight * self.success_rate;
        self.penalty = self.penalty(now, half_life_s) + 1.0;
        self.last_failure = now;
    }

    pub(crate) fn penalty(&self, now: Time, half_life_s: f64) -> f64 {
        if self.penalty == 0.0 {
            return 0.0;
        }
        self.penalty * (-now.since(self.last_failure).as_secs_f64() / half_life_s).exp2()
    }

    /// The runs of whatever model.
    fn all_runs(&self) -> PastRuns {
        let attempts = 1.0 + reliability::extra_attempts_for(self.success_rate);
        PastRuns {
            relative_time: self.relative_time * attempts,
            run_s: self.avg_completion_time.as_secs_f64(),
        }
    }

    /// What is known about the next run of a model: its own runs, or those of all models if it has not run here.
    pub(crate) fn past_runs(&self, model: Option<&Name>) -> PastRuns {
        model.and_then(|model| self.models.of(model)).unwrap_or_else(|| self.all_runs())
    }

    /// The same for each model that has run here, and for any other.
    pub(crate) fn each_past_runs(&self) -> impl Iterator<Item = PastRuns> {
        self.models.iter().chain([self.all_runs()])
    }
}
