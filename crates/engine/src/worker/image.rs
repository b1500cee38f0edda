//! What is durable of a worker, as a whole.

use hypha_machine::Apply;
use hypha_model::Epoch;

use super::{Leaving, WorkerRecord};

/// What a worker's records add up to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkerImage {
    /// The last life that began.
    pub epoch: Epoch,
    /// The last life that ended in order.
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
