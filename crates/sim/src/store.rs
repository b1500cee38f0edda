//! A store on a simulated disk: the same interface as the node's, with injected failures.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hypha_engine::record::StoredTask;
use hypha_engine::store::{Filter, MAX_PAGE, Page};
use hypha_engine::{Image, Record, SchedulerStore};
use hypha_machine::{Apply, BoxFuture, CommitCallback, Disk, Journal, Recover};
use hypha_model::{Name, TaskId, Time};
use thiserror::Error;

use crate::disk::{DiskFull, FaultDisk};

/// A disk that outlives the stores that are opened on it.
pub type SharedDisk<R, I> = Arc<Mutex<FaultDisk<R, I>>>;

/// The store of one process and one machine. Dropping it is a crash: acknowledged writes are on the disk.
#[derive(Debug)]
pub struct SimulatedStore<R, I> {
    disk: SharedDisk<R, I>,
    /// Whether a commit was lost and the machine has not been recovered since.
    is_stopped: Mutex<bool>,
}

/// Why a commit or a recovery failed.
#[derive(Clone, Copy, Debug, Error)]
pub enum SimulatedStoreError {
    /// The disk is full.
    #[error(transparent)]
    Full(#[from] DiskFull),
    /// An earlier write failed, and later commits may depend on it.
    #[error("commits are refused since an earlier write failed; recover first")]
    Stopped,
}

impl<R, I: Clone> SimulatedStore<R, I> {
    /// Opens the store on `disk`, and returns what is durable.
    pub fn open(disk: &SharedDisk<R, I>) -> (SimulatedStore<R, I>, I) {
        let store = SimulatedStore { disk: Arc::clone(disk), is_stopped: Mutex::new(false) };
        let image = lock(disk).image().clone();
        (store, image)
    }
}

impl<R: Clone, I: Apply<R>> Journal<R> for SimulatedStore<R, I> {
    type Error = SimulatedStoreError;

    fn commit(&self, records: Vec<R>, done: CommitCallback<SimulatedStoreError>) {
        let mut is_stopped = lock(&self.is_stopped);
        let written = match *is_stopped {
            true => Err(SimulatedStoreError::Stopped),
            false => lock(&self.disk).write(records).map_err(SimulatedStoreError::from),
        };
        *is_stopped = written.is_err();
        drop(is_stopped);
        done(written);
    }
}

impl<R: Clone + Send, I: Apply<R> + Clone + Send> Recover<R> for SimulatedStore<R, I> {
    type Image = I;

    fn healthy(&self) -> Result<(), SimulatedStoreError> {
        if *lock(&self.is_stopped) { Err(SimulatedStoreError::Stopped) } else { Ok(()) }
    }

    fn recover(&self) -> BoxFuture<'_, Result<I, SimulatedStoreError>> {
        Box::pin(async {
            let mut is_stopped = lock(&self.is_stopped);
            let disk = lock(&self.disk);
            if disk.is_full {
                return Err(DiskFull.into());
            }
            *is_stopped = false;
            Ok(disk.image().clone())
        })
    }
}

impl SchedulerStore for SimulatedStore<Record, Image> {
    fn task(&self, id: TaskId) -> BoxFuture<'_, Result<Option<StoredTask>, SimulatedStoreError>> {
        Box::pin(async move { Ok(lock(&self.disk).image().tasks.get(&id).cloned()) })
    }

    fn by_idempotency_key(
        &self,
        tenant: Option<Name>,
        key: Arc<str>,
    ) -> BoxFuture<'_, Result<Option<StoredTask>, SimulatedStoreError>> {
        Box::pin(async move {
            let disk = lock(&self.disk);
            let mut latest_first = disk.image().tasks.values().rev();
            let found = latest_first.find(|task| {
                task.accepted.spec.tenant == tenant
                    && task.accepted.idempotency_key.as_ref() == Some(&key)
            });
            Ok(found.cloned())
        })
    }

    fn list(
        &self,
        filter: Filter,
        behind: Option<TaskId>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Page, SimulatedStoreError>> {
        Box::pin(async move {
            let limit = limit.clamp(1, MAX_PAGE);
            let disk = lock(&self.disk);
            let latest_first = disk.image().tasks.values().rev();
            let tasks: Vec<StoredTask> = latest_first
                .skip_while(|task| behind.is_some_and(|behind| task.accepted.id >= behind))
                .filter(|task| filter.matches(task))
                .take(limit)
                .cloned()
                .collect();
            let is_full = tasks.len() == limit;
            let next = tasks.last().filter(|_| is_full).map(|task| task.accepted.id);
            Ok(Page { tasks, next })
        })
    }

    fn forget_finished_before(
        &self,
        time: Time,
    ) -> BoxFuture<'_, Result<u64, SimulatedStoreError>> {
        Box::pin(async move {
            let mut disk = lock(&self.disk);
            let tasks = &mut disk.image_mut().tasks;
            let before = tasks.len();
            tasks.retain(|_, task| task.finished.as_ref().is_none_or(|end| end.finished >= time));
            Ok((before - tasks.len()) as u64)
        })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
