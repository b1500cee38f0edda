//! Whether the commits of one machine can succeed. After one was lost, all fail until the machine restarts.
//!
//! Each machine has its own gate. A failed transaction closes the gates of the machines that took part in it; the
//! others have lost nothing.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::StoreError;

/// See the module documentation. Shared by a machine's journal and its commits.
#[derive(Clone, Debug, Default)]
pub(crate) struct CommitGate(Arc<Mutex<Option<StoreError>>>);

impl CommitGate {
    /// Why commits fail, if they do.
    pub(crate) fn failure(&self) -> Option<StoreError> {
        self.lock().clone()
    }

    /// A commit was lost. The first reason is kept.
    pub(crate) fn close(&self, why: &StoreError) {
        self.lock().get_or_insert_with(|| why.clone());
    }

    /// The machine restarts from its durable state.
    pub(crate) fn open(&self) {
        *self.lock() = None;
    }

    fn lock(&self) -> MutexGuard<'_, Option<StoreError>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
