//! The names of the swarm's workers in their certificates, for display.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use hypha_model::WorkerId;

/// Far more workers than one scheduler has; further workers get no name.
const MAX_NAMES: usize = 100_000;

/// The names. They outlive the connection, so that a task still shows where it ran, and are removed when the scheduler
/// forgets the worker.
#[derive(Default)]
pub(super) struct WorkerNames(Mutex<HashMap<WorkerId, String>>);

impl WorkerNames {
    pub(super) fn put(&self, worker: WorkerId, name: &str) {
        let mut names = self.lock();
        if names.len() < MAX_NAMES || names.contains_key(&worker) {
            names.insert(worker, name.to_owned());
        }
    }

    pub(super) fn of(&self, worker: WorkerId) -> Option<String> {
        self.lock().get(&worker).cloned()
    }

    pub(super) fn forget(&self, worker: WorkerId) {
        self.lock().remove(&worker);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<WorkerId, String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
