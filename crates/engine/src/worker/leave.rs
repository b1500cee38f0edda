//! A worker's graceful stop: it returns the attempts that it has not finished, so that they do not count as failures.

use std::collections::BTreeSet;

use hypha_model::SchedulerId;

use super::{Leaving, RunId, RunPhase, WorkerMachine, WorkerRecord, WorkerStep, send_message};
use crate::message::FromWorker;

impl WorkerMachine {
    /// The schedulers that have not released their leases since the worker began to leave.
    pub fn unreleased_holders(&self) -> impl Iterator<Item = SchedulerId> {
        let holders = if self.is_leaving { self.lease_holders() } else { BTreeSet::new() };
        holders.into_iter()
    }

    /// Stops all runs, and tells the holders. Results that were not recorded are sent first, so that they still count.
    pub(super) fn leave(&mut self, step: &mut WorkerStep) {
        if std::mem::replace(&mut self.is_leaving, true) {
            return;
        }
        let holders: Vec<SchedulerId> = self.lease_holders().into_iter().collect();
        if !holders.is_empty() {
            let leaving = Leaving { epoch: self.epoch, holders: holders.clone() };
            step.persist(WorkerRecord::Left(leaving));
        }
        let runs: Vec<RunId> = self.runs.keys().copied().collect();
        for id in runs {
            match self.runs.get(&id).map(|run| &run.phase) {
                Some(RunPhase::Ended { .. }) => self.report_end(id, step),
                _ => self.stop(id, false, step),
            }
        }
        for holder in holders {
            self.send_left(holder, step);
        }
    }

    /// Tells a scheduler, for each lease that it holds, that this incarnation stops.
    pub(super) fn send_left(&self, to: SchedulerId, step: &mut WorkerStep) {
        for holder in self.book.holders().filter(|holder| holder.scheduler == to) {
            if let Some((lease, _)) = self.book.lease_of(holder) {
                send_message(step, to, FromWorker::Left { epoch: self.epoch, lease: Some(lease) });
            }
        }
    }

    /// Tells a holder of a lease of the last incarnation that it stopped gracefully: the holder may have been down
    /// then.
    pub(super) fn send_last_left(&self, to: SchedulerId, step: &mut WorkerStep) {
        if let Some(Leaving { epoch, holders }) = &self.left
            && holders.contains(&to)
        {
            send_message(step, to, FromWorker::Left { epoch: *epoch, lease: None });
        }
    }

    /// A scheduler relies on a lease of this incarnation: it knows how the last one ended.
    pub(super) fn acknowledge_leave(&mut self, holder: SchedulerId) {
        if let Some(left) = &mut self.left {
            left.holders.retain(|other| *other != holder);
        }
        self.left.take_if(|left| left.holders.is_empty());
    }
}
