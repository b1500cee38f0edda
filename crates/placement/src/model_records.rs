//! The record of a worker with each model: a worker that is fast with one may be slow with another.

use hypha_model::{Name, Span};
use serde::{Deserialize, Serialize};

use crate::reliability::extra_attempts_for;

/// Models whose records are kept for a worker: more than one machine serves. The record that was used longest ago is
/// replaced.
const MAX_RECORDS: usize = 32;

/// The record of a worker with one model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ModelRecord {
    model: Name,
    /// Moving average of run times relative to their prediction.
    relative_time: f64,
    /// Moving average of run times, in seconds.
    run_s: f64,
    /// Moving share of attempts that succeeded.
    success_rate: f64,
    completed: u64,
}

/// The records of a worker, the last used first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct ModelRecords(Vec<ModelRecord>);

/// What past runs tell about the next one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct PastRuns {
    /// The run time relative to its prediction, with the attempts that a success is expected to take.
    pub(crate) relative_time: f64,
    /// The run time; zero if there was none.
    pub(crate) run_s: f64,
}

impl ModelRecords {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The runs of one model, if there are any.
    pub(crate) fn of(&self, model: &Name) -> Option<PastRuns> {
        self.0.iter().find(|record| record.model == *model).map(ModelRecord::past_runs)
    }

    /// The runs of each model.
    pub(crate) fn iter(&self) -> impl Iterator<Item = PastRuns> {
        self.0.iter().map(ModelRecord::past_runs)
    }

    pub(crate) fn succeeded(&mut self, model: &Name, run: Span, relative_time: f64, weight: f64) {
        let record = self.record(model);
        let run_s = run.as_secs_f64();
        let weight_of_run = if record.completed == 0 { 1.0 } else { weight };
        record.completed += 1;
        record.run_s += weight_of_run * (run_s - record.run_s);
        record.relative_time += weight_of_run * (relative_time - record.relative_time);
        record.success_rate += weight * (1.0 - record.success_rate);
    }

    pub(crate) fn failed(&mut self, model: &Name, weight: f64) {
        let record = self.record(model);
        record.success_rate -= weight * record.success_rate;
    }

    fn record(&mut self, model: &Name) -> &mut ModelRecord {
        let at = match self.0.iter().position(|record| record.model == *model) {
            Some(at) => at,
            None => {
                self.0.truncate(MAX_RECORDS - 1);
                self.0.push(ModelRecord {
                    model: model.clone(),
                    relative_time: 1.0,
                    run_s: 0.0,
                    success_rate: 1.0,
                    completed: 0,
                });
                self.0.len() - 1
            }
        };
        self.0[..=at].rotate_right(1);
        &mut self.0[0]
    }
}

impl ModelRecord {
    fn past_runs(&self) -> PastRuns {
        PastRuns {
            relative_time: self.relative_time * (1.0 + extra_attempts_for(self.success_rate)),
            run_s: self.run_s,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_records_used_last_are_kept() {
        let mut records = ModelRecords::default();
        let name = |n: usize| format!("m{n}").parse::<Name>().unwrap();
        for n in 0..MAX_RECORDS {
            records.succeeded(&name(n), Span::from_secs(1), 1.0, 0.1);
        }
        records.failed(&name(0), 0.1);
        records.succeeded(&name(MAX_RECORDS), Span::from_secs(2), 3.0, 0.1);
        assert_eq!(records.iter().count(), MAX_RECORDS);
        assert!(records.of(&name(0)).is_some() && records.of(&name(1)).is_none());
        let newest = PastRuns { relative_time: 3.0, run_s: 2.0 };
        assert_eq!(records.of(&name(MAX_RECORDS)), Some(newest));
    }
}
