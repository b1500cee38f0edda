//! What a scheduler needs from its store. `hypha-conformance` has the tests that every implementation passes.

mod any;

use std::sync::Arc;

use hypha_machine::{BoxFuture, Recover};
use hypha_model::{Name, TaskId, TaskState, Time, WorkerId};

use crate::record::{Image, Record, StoredTask};

pub use any::{AnyStore, StoreFailure, erase_store};

/// Makes a scheduler's records durable and answers queries about its tasks, including ended ones.
///
/// The image that [`Recover::recover`] returns has every task that has not ended, and at least those ended tasks that
/// an idempotency key refers to: their id, key, tenant, state and time of the end, which is enough to answer a repeated
/// submit.
pub trait SchedulerStore: Recover<Record, Image = Image> + Send + Sync {
    /// A task, whether it has ended or not.
    fn task(&self, id: TaskId) -> BoxFuture<'_, Result<Option<StoredTask>, Self::Error>>;

    /// The latest task of this tenant with this key.
    fn by_idempotency_key(
        &self,
        tenant: Option<Name>,
        key: Arc<str>,
    ) -> BoxFuture<'_, Result<Option<StoredTask>, Self::Error>>;

    /// Tasks that pass `filter`, the latest first, from behind `behind` on: at most `limit` of them, which counts as 1
    /// if it is 0, and at most [`MAX_PAGE`].
    fn list(
        &self,
        filter: Filter,
        behind: Option<TaskId>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Page, Self::Error>>;

    /// Forgets tasks that ended before `time`, with their results and keys, and returns how many. Also works while
    /// commits fail: it may be what frees disk space.
    fn forget_finished_before(&self, time: Time) -> BoxFuture<'_, Result<u64, Self::Error>>;
}

/// The most tasks of a page.
pub const MAX_PAGE: usize = 1_000;

/// Which tasks are wanted; a field that is `None` matches all.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// In this state. The filter does not see whether a worker has started a task: `Running` finds what
    /// `Scheduled` finds, every task that has been dispatched to a worker.
    pub state: Option<TaskState>,
    /// For this model.
    pub model: Option<Name>,
    /// With this worker at present, or at the end.
    pub worker: Option<WorkerId>,
    /// Submitted then or later.
    pub since: Option<Time>,
    /// Of this tenant; `Some(None)` are tasks without a tenant.
    pub tenant: Option<Option<Name>>,
}

/// Some tasks, the latest first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Page {
    /// The tasks.
    pub tasks: Vec<StoredTask>,
    /// The next page begins behind this task; `None` if this was the last page. A page may be short or
    /// empty and not the last: if its tasks are large, or few tasks match.
    pub next: Option<TaskId>,
}

impl Filter {
    /// Whether `task` is wanted: defines the filter, for stores that scan tasks.
    pub fn matches(&self, task: &StoredTask) -> bool {
        let spec = &task.accepted.spec;
        let (state, worker) = match (&task.finished, &task.current) {
            (Some(finished), _) => (finished.state, finished.worker),
            (None, Some(current)) => (TaskState::Scheduled, Some(current.worker)),
            (None, None) => (TaskState::Queued, None),
        };
        let wanted_state = match self.state {
            Some(TaskState::Running) => Some(TaskState::Scheduled),
            wanted => wanted,
        };
        wanted_state.is_none_or(|wanted| wanted == state)
            && (self.model.is_none() || self.model == spec.requirement.model)
            && (self.worker.is_none() || self.worker == worker)
            && self.since.is_none_or(|since| task.accepted.submitted >= since)
            && self.tenant.as_ref().is_none_or(|tenant| *tenant == spec.tenant)
    }
}
