//! Whether the commits of one machine can succeed: not after one of them was lost, until the machine begins anew.
//!
//! Each machine has a gate of its own. A transaction that fails closes those of the machines that had a part in it; the
//! others have lost nothing.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::StoreError;

/// See the head of this file. Shared by a machine's journal and its commits.
#[derive(Clone, Debug, Default)]
pub(crate) struct CommitGate(Arc<Mutex<Option<StoreError>>>);

impl CommitGate {
    /// Why commits cannot succeed, if they cannot.
    pub(crate) fn failure(&self) -> Option<StoreError> {
        self.lock().clone()
    }

    /// A commit was lost; the first reason counts.
    pub(crate) fn close(&self, why: &StoreError) {
        self.lock().get_or_insert_with(|| why.clone());
    }

    /// The machine begins anew.
    pub(crate) fn open(&self) {
        *self.lock() = None;
    }

    fn lock(&self) -> MutexGuard<'_, Option<StoreError>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
