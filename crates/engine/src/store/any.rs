//! A store of a type that a node chooses when it starts: its errors are text.

use std::fmt;
use std::sync::Arc;

use hypha_machine::{BoxFuture, CommitCallback, Journal, Recover};
use hypha_model::{Name, TaskId, Time};

use super::{Filter, Page, SchedulerStore};
use crate::record::{Image, Record, StoredTask};

/// Any implementation.
pub type AnyStore = Arc<dyn SchedulerStore<Error = StoreFailure>>;

/// Why a store failed, as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreFailure(pub Arc<str>);

impl fmt::Display for StoreFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for StoreFailure {}

impl StoreFailure {
    fn of(error: impl fmt::Display) -> StoreFailure {
        StoreFailure(error.to_string().into())
    }
}

/// Erases the type of a store.
pub fn erase_store<S>(store: S) -> AnyStore
where
    S: SchedulerStore<Error: fmt::Display> + 'static,
{
    Arc::new(Any(store))
}

struct Any<S>(S);

impl<S: SchedulerStore<Error: fmt::Display>> Journal<Record> for Any<S> {
    type Error = StoreFailure;

    fn commit(&self, records: Vec<Record>, done: CommitCallback<StoreFailure>) {
        let done = move |result: Result<(), S::Error>| done(result.map_err(StoreFailure::of));
        self.0.commit(records, Box::new(done));
    }
}

impl<S: SchedulerStore<Error: fmt::Display>> Recover<Record> for Any<S> {
    type Image = Image;

    fn healthy(&self) -> Result<(), StoreFailure> {
        self.0.healthy().map_err(StoreFailure::of)
    }

    fn recover(&self) -> BoxFuture<'_, Result<Image, StoreFailure>> {
        Box::pin(async { self.0.recover().await.map_err(StoreFailure::of) })
    }
}

impl<S: SchedulerStore<Error: fmt::Display>> SchedulerStore for Any<S> {
    fn task(&self, id: TaskId) -> BoxFuture<'_, Result<Option<StoredTask>, StoreFailure>> {
        Box::pin(async move { self.0.task(id).await.map_err(StoreFailure::of) })
    }

    fn by_idempotency_key(
        &self,
        tenant: Option<Name>,
        key: Arc<str>,
    ) -> BoxFuture<'_, Result<Option<StoredTask>, StoreFailure>> {
        Box::pin(
            async move { self.0.by_idempotency_key(tenant, key).await.map_err(StoreFailure::of) },
        )
    }

    fn list(
        &self,
        filter: Filter,
        behind: Option<TaskId>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Page, StoreFailure>> {
        Box::pin(async move { self.0.list(filter, behind, limit).await.map_err(StoreFailure::of) })
    }

    fn forget_finished_before(&self, time: Time) -> BoxFuture<'_, Result<u64, StoreFailure>> {
        Box::pin(async move { self.0.forget_finished_before(time).await.map_err(StoreFailure::of) })
    }
}
