//! The journal of any machine, whose records are rows by key.

use hypha_machine::{BoxFuture, Done, Journal, Recover, RowRecord, Rows};
use hypha_model::Name;
use tokio::sync::{mpsc, oneshot};

use crate::error::StoreError;
use crate::gate::Gate;
use crate::writer::{Commit, Job, Records, hand_over};

/// What [`Store::machine`](crate::Store::machine) returns. Its commits share transactions with those of the scheduler
/// and of other machines. It fails once the store is dropped.
#[derive(Debug)]
pub struct MachineStore {
    pub(crate) machine: Name,
    pub(crate) jobs: mpsc::WeakSender<Job>,
    pub(crate) gate: Gate,
}

impl<R: RowRecord> Journal<R> for MachineStore {
    type Error = StoreError;

    fn commit(&self, records: Vec<R>, done: Done<StoreError>) {
        let mut changes = Vec::with_capacity(records.len());
        records.iter().for_each(|record| record.add_changes(&mut changes));
        let records = Records::Rows { machine: self.machine.clone(), changes };
        let commit = Commit { records, gate: self.gate.clone(), done };
        hand_over(self.jobs.upgrade().as_ref(), commit);
    }
}

impl<R: RowRecord> Recover<R> for MachineStore {
    type Image = Rows;

    fn healthy(&self) -> Result<(), StoreError> {
        self.gate.failure().map_or(Ok(()), Err)
    }

    fn recover(&self) -> BoxFuture<'_, Result<Rows, StoreError>> {
        Box::pin(async {
            let (done, recovered) = oneshot::channel();
            let (machine, gate) = (self.machine.clone(), self.gate.clone());
            let jobs = self.jobs.upgrade().ok_or(StoreError::Closed)?;
            let job = Job::RecoverRows { machine, gate, done };
            jobs.send(job).await.map_err(|_| StoreError::Closed)?;
            drop(jobs);
            recovered.await.map_err(|_| StoreError::Closed)?
        })
    }
}
