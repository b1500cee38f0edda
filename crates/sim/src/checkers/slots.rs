//! HTTP workers: an attempt handed over runs once at a time, and no slot stays in use when everything has ended.

use hypha_engine::{RunId, WorkerMachine};

use super::{Checkers, Promise, Violation};
use crate::world::host::Host;

impl Checkers {
    /// An attempt is handed to an instance, which runs it already or not.
    pub(crate) fn handed_over(&self, run: RunId, runs_already: bool) -> Result<(), Violation> {
        match runs_already {
            true => {
                let what = format!("{:?} is handed to an instance that runs it", run.fence);
                Err(Violation { promise: Promise::NotRunTwice, what })
            }
            false => Ok(()),
        }
    }

    /// All runs have had time to end: checks that no worker has one in a slot.
    pub(crate) fn check_slots_free(&self, node: &Host<WorkerMachine>) -> Result<(), Violation> {
        let slots = node.machine.as_ref().map_or(0, WorkerMachine::slots_in_use);
        match slots {
            0 => Ok(()),
            _ => {
                let id = node.setup.worker.id;
                let what = format!("{slots} slots of worker {id} stay in use");
                Err(Violation { promise: Promise::BackToZero, what })
            }
        }
    }
}
