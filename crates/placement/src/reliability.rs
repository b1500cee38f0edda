//! How often each executor of a worker has succeeded: a program that fails tells little about the others.

use hypha_model::{Executor, Name};

use crate::health::Health;

/// A share counts as at least this: with less, the executor would get no further attempts.
const MIN_SUCCESS_SHARE: f64 = 0.05;

/// For each executor, the moving share of attempts that succeeded.
#[derive(Clone, Debug)]
pub(crate) struct Reliability(Vec<f64>);

impl Reliability {
    /// The reliability of a worker with these executors. The record of the worker is that of its only executor; with
    /// several, only recorded shares tell which of them failed.
    pub(crate) fn new(executors: &[Executor], health: &Health) -> Reliability {
        let usual = if executors.len() == 1 { health.success_rate } else { 1.0 };
        let share = |executor: &Executor| {
            let noted = health.executors.iter().find(|(name, _)| *name == executor.name);
            noted.map_or(usual, |(_, share)| *share)
        };
        Reliability(executors.iter().map(share).collect())
    }

    /// The shares to be saved.
    pub(crate) fn recorded(&self, executors: &[Executor]) -> Vec<(Name, f64)> {
        let known =
            executors.iter().map(|executor| executor.name.clone()).zip(self.0.iter().copied());
        known.filter(|(_, share)| *share != 1.0).collect()
    }

    pub(crate) fn succeeded(&mut self, executor: Option<usize>, weight: f64) {
        if let Some(share) = executor.and_then(|at| self.0.get_mut(at)) {
            *share += weight * (1.0 - *share);
        }
    }

    pub(crate) fn failed(&mut self, executor: Option<usize>, weight: f64) {
        if let Some(share) = executor.and_then(|at| self.0.get_mut(at)) {
            *share -= weight * *share;
        }
    }

    /// The worker lost its attempts, whichever executor ran them.
    pub(crate) fn lost(&mut self, weight: f64) {
        self.0.iter_mut().for_each(|share| *share -= weight * *share);
    }

    /// How many attempts a success is expected to take, less one, of the executor that `which` finds.
    pub(crate) fn extra_attempts(&self, which: impl FnOnce() -> Option<usize>) -> f64 {
        match self.0[..] {
            [] => 0.0,
            [share] => extra_attempts_for(share),
            // Most never fail.
            _ if self.0.iter().all(|share| *share == 1.0) => 0.0,
            _ => which()
                .and_then(|at| self.0.get(at))
                .map_or(0.0, |share| extra_attempts_for(*share)),
        }
    }

    /// The same for the best executor.
    pub(crate) fn min_extra_attempts(&self) -> f64 {
        let best = self.0.iter().copied().fold(None, |best: Option<f64>, share| {
            Some(best.map_or(share, |best| best.max(share)))
        });
        best.map_or(0.0, extra_attempts_for)
    }
}

/// How many attempts a success is expected to take, less one, where this share of them succeeds.
pub(crate) fn extra_attempts_for(share: f64) -> f64 {
    1.0 / share.max(MIN_SUCCESS_SHARE) - 1.0
}
