//! The locks. They stand apart so that a test can put others in their place: `tests/interleavings.rs`.

pub(crate) use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, Ordering},
};

/// Locks, whatever became of a thread that held the lock before.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
