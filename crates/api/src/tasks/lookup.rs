//! Finds a task, wherever it is kept, and waits for its end.

use std::sync::Arc;

use hypha_engine::Notice;
use hypha_engine::record::{AcceptedTask, FinishedTask, StoredTask};
use hypha_engine::scheduler::TaskView;
use hypha_model::{TaskId, TaskSpec, Time};
use tokio::time::{Instant, timeout_at};

use super::view::TaskBody;
use crate::caller::Caller;
use crate::error::Error;
use crate::service::{SchedulerApi, ServiceUnavailable};
use crate::watch::Watch;

/// A task, from the source that knows most about it.
pub(crate) enum TaskSnapshot {
    /// It has not ended; the machine's view, and the time of it.
    Open(Box<TaskView>, Time),
    /// As it is on the disk.
    Stored(Box<StoredTask>),
    /// It ended while it was watched.
    Ended(Arc<AcceptedTask>, Arc<FinishedTask>),
}

impl TaskSnapshot {
    pub(crate) fn accepted(&self) -> &Arc<AcceptedTask> {
        match self {
            TaskSnapshot::Open(view, _) => &view.accepted,
            TaskSnapshot::Stored(stored) => &stored.accepted,
            TaskSnapshot::Ended(accepted, _) => accepted,
        }
    }

    pub(crate) fn spec(&self) -> &TaskSpec {
        &self.accepted().spec
    }

    pub(crate) fn finished(&self) -> Option<&FinishedTask> {
        match self {
            TaskSnapshot::Open(..) => None,
            TaskSnapshot::Stored(stored) => stored.finished.as_deref(),
            TaskSnapshot::Ended(_, finished) => Some(finished),
        }
    }

    pub(crate) fn body(&self) -> TaskBody<'_> {
        match self {
            TaskSnapshot::Open(view, now) => TaskBody::open(view, *now),
            TaskSnapshot::Stored(stored) => TaskBody::stored(stored),
            TaskSnapshot::Ended(accepted, finished) => TaskBody::ended(accepted, finished),
        }
    }
}

/// The task, if it exists and `caller` may see it.
pub(crate) async fn find(
    service: &dyn SchedulerApi,
    caller: &Caller,
    id: TaskId,
) -> Result<TaskSnapshot, Error> {
    let snapshot = fetch(service, id).await?.filter(|snapshot| caller.may_see(snapshot.spec()));
    snapshot.ok_or_else(|| not_found(id))
}

/// The same; if it has not ended, waits for its end until `until`.
pub(crate) async fn find_and_wait(
    service: &dyn SchedulerApi,
    caller: &Caller,
    id: TaskId,
    until: Option<Instant>,
) -> Result<TaskSnapshot, Error> {
    let snapshot = find(service, caller, id).await?;
    let is_awaited = |until: &Instant| snapshot.finished().is_none() && *until > Instant::now();
    let Some(until) = until.filter(is_awaited) else { return Ok(snapshot) };
    // The watch does not deliver earlier notices: look again.
    let watch = service.watch(id);
    let snapshot = find(service, caller, id).await?;
    if snapshot.finished().is_some() {
        return Ok(snapshot);
    }
    match wait_for_end(watch, until).await {
        Some(ended) => Ok(ended),
        None => find(service, caller, id).await,
    }
}

/// The end of a watched task, if it comes in time.
pub(crate) async fn wait_for_end(watch: Watch, until: Instant) -> Option<TaskSnapshot> {
    let mut watch = watch.quietly();
    loop {
        if let Notice::Ended { accepted, finished } =
            timeout_at(until, watch.next()).await.ok()??
        {
            return Some(TaskSnapshot::Ended(accepted, finished));
        }
    }
}

/// The task in its present state.
pub(crate) async fn fetch(
    service: &dyn SchedulerApi,
    id: TaskId,
) -> Result<Option<TaskSnapshot>, ServiceUnavailable> {
    let mut open = None;
    service.read(&mut |scheduler, now| {
        open = scheduler.task_view(id, now).map(|view| TaskSnapshot::Open(Box::new(view), now));
    });
    match open {
        Some(open) => Ok(Some(open)),
        None => Ok(service.stored(id).await?.map(|stored| TaskSnapshot::Stored(Box::new(stored)))),
    }
}

pub(crate) fn not_found(id: TaskId) -> Error {
    Error::not_found(format!("there is no task {id}, or it ended so long ago that it is not kept"))
}
