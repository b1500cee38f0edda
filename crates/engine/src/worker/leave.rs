//! The end of a worker's life in order: what it has not finished is given back, so that it costs nobody an attempt.

use hypha_model::SchedulerId;

use super::{Leaving, Phase, RunId, WorkerMachine, WorkerRecord, WorkerStep, say};
use crate::message::FromWorker;

impl WorkerMachine {
    /// Whom the worker is leaving: those that have not released their leases.
    pub fn leaves(&self) -> impl Iterator<Item = SchedulerId> {
        self.book.holders().filter(|_| self.is_leaving)
    }

    /// Stops everything, and says so. Results that were not recorded go before, so that they still count.
    pub(super) fn leave(&mut self, step: &mut WorkerStep) {
        if std::mem::replace(&mut self.is_leaving, true) {
            return;
        }
        let holders: Vec<SchedulerId> = self.book.holders().collect();
        if !holders.is_empty() {
            let leaving = Leaving { epoch: self.epoch, holders: holders.clone() };
            step.persist(WorkerRecord::Left(leaving));
        }
        let runs: Vec<RunId> = self.runs.keys().copied().collect();
        for id in runs {
            match self.runs.get(&id).map(|run| &run.phase) {
                Some(Phase::Ended { .. }) => self.report_end(id, step),
                _ => self.stop(id, false, step),
            }
        }
        for holder in holders {
            self.say_left(holder, step);
        }
    }

    /// Says to the holder of a lease that this life ends.
    pub(super) fn say_left(&self, to: SchedulerId, step: &mut WorkerStep) {
        if let Some((lease, _)) = self.book.lease_of(to) {
            say(step, to, FromWorker::Left { epoch: self.epoch, lease: Some(lease) });
        }
    }

    /// Says to a holder of a lease of the last life that it ended in order: it may have been down then.
    pub(super) fn say_last_left(&self, to: SchedulerId, step: &mut WorkerStep) {
        if let Some(Leaving { epoch, holders }) = &self.left
            && holders.contains(&to)
        {
            say(step, to, FromWorker::Left { epoch: *epoch, lease: None });
        }
    }

    /// A scheduler relies on a lease of this life: it has heard how the last one ended.
    pub(super) fn has_heard(&mut self, holder: SchedulerId) {
        if let Some(left) = &mut self.left {
            left.holders.retain(|other| *other != holder);
        }
        self.left.take_if(|left| left.holders.is_empty());
    }
}
