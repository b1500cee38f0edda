//! The journal of a machine whose records are rows by key.

use hypha_machine::{BoxFuture, CommitCallback, Journal, Recover, RowRecord, Rows};
use hypha_model::Name;
use tokio::sync::{mpsc, oneshot};

use crate::error::StoreError;
use crate::gate::CommitGate;
use crate::writer::{Commit, Records, WriterRequest, submit};

/// The journal that [`Store::machine`](crate::Store::machine) returns. Its commits share transactions with those of the
/// scheduler and of other machines. They fail once the store is dropped.
#[derive(Debug)]
pub struct MachineStore {
    pub(crate) machine: Name,
    pub(crate) requests: mpsc::WeakSender<WriterRequest>,
    pub(crate) gate: CommitGate,
}

impl<R: RowRecord> Journal<R> for MachineStore {
    type Error = StoreError;

    fn commit(&self, records: Vec<R>, done: CommitCallback<StoreError>) {
        let mut changes = Vec::with_capacity(records.len());
        records.iter().for_each(|record| record.add_changes(&mut changes));
        let records = Records::Rows { machine: self.machine.clone(), changes };
        let commit = Commit { records, gate: self.gate.clone(), done };
        submit(self.requests.upgrade().as_ref(), commit);
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
            let requests = self.requests.upgrade().ok_or(StoreError::Closed)?;
            let request = WriterRequest::RecoverRows { machine, gate, done };
            requests.send(request).await.map_err(|_| StoreError::Closed)?;
            drop(requests);
            recovered.await.map_err(|_| StoreError::Closed)?
        })
    }
}
