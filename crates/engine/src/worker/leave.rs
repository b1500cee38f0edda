//! The end of a worker's life in order: what it has not finished is given back, so that it costs nobody an attempt.

use hypha_model::SchedulerId;

use super::{Leaving, Phase, RunId, WorkerMachine, WorkerRecord, WorkerStep, say};
use crate::message::FromWorker;

impl WorkerMachine {
    /// Whom the worker is leaving, as long as that scheduler has not let go of it.
    pub fn leaves(&self) -> Option<SchedulerId> {
        self.lease.filter(|_| self.is_leaving).map(|lease| lease.holder)
    }

    /// Stops everything, and says so. Results that were not recorded go before, so that they still count.
    pub(super) fn leave(&mut self, step: &mut WorkerStep) {
        if std::mem::replace(&mut self.is_leaving, true) {
            return;
        }
        if let Some(lease) = self.lease {
            let leaving = Leaving { epoch: self.epoch, holder: lease.holder };
            step.persist(WorkerRecord::Left(leaving));
        }
        let runs: Vec<RunId> = self.runs.keys().copied().collect();
        for id in runs {
            match self.runs.get(&id).map(|run| &run.phase) {
                Some(Phase::Ended { .. }) => self.report_end(id, step),
                _ => self.stop(id, false, step),
            }
        }
        self.say_left(step);
    }

    /// Says to the holder of the lease that this life ends.
    pub(super) fn say_left(&self, step: &mut WorkerStep) {
        if let Some(lease) = self.lease {
            let message = FromWorker::Left { epoch: self.epoch, lease: Some(lease.id) };
            say(step, lease.holder, message);
        }
    }

    /// Says to the holder of the last life's lease that it ended in order: it may have been down then.
    pub(super) fn say_last_left(&self, to: SchedulerId, step: &mut WorkerStep) {
        if let Some(Leaving { epoch, .. }) = self.left.filter(|left| left.holder == to) {
            say(step, to, FromWorker::Left { epoch, lease: None });
        }
    }
}
