//! The durable state of a worker.

use hypha_machine::Apply;
use hypha_model::{Epoch, LeaseId};

use std::collections::BTreeMap;

use super::{Leaving, StoredReceipts, WorkerRecord};

/// What a worker's records add up to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WorkerImage {
    /// The last incarnation that began.
    pub epoch: Epoch,
    /// The last incarnation that stopped gracefully.
    pub left: Option<Leaving>,
    /// The receipts of each lease.
    pub receipts: BTreeMap<LeaseId, StoredReceipts>,
}

impl Apply<WorkerRecord> for WorkerImage {
    fn apply(&mut self, record: &WorkerRecord) {
        match record {
            WorkerRecord::Started(epoch) => self.epoch = *epoch,
            WorkerRecord::Left(left) => self.left = Some(left.clone()),
            WorkerRecord::Receipt(receipts) => {
                self.receipts.insert(receipts.lease(), receipts.clone());
            }
        }
    }
}
