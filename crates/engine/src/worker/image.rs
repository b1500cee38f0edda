//! The durable state of a worker.

use hypha_machine::Apply;
use hypha_model::Epoch;

use super::{Leaving, WorkerRecord};

/// What a worker's records add up to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkerImage {
    /// The last incarnation that began.
    pub epoch: Epoch,
    /// The last incarnation that stopped gracefully.
    pub left: Option<Leaving>,
}

impl Apply<WorkerRecord> for WorkerImage {
    fn apply(&mut self, record: &WorkerRecord) {
        match record {
            WorkerRecord::Started(epoch) => self.epoch = *epoch,
            WorkerRecord::Left(left) => self.left = Some(left.clone()),
        }
    }
}
