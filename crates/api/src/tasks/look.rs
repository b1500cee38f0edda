//! Finds a task, wherever it is kept, and waits for its end.

use std::sync::Arc;
use std::time::Duration;

use hypha_engine::Notice;
use hypha_engine::record::{AcceptedTask, FinishedTask, StoredTask};
use hypha_engine::scheduler::TaskView;
use hypha_model::{TaskId, TaskSpec, Time};
use tokio::time::{Instant, timeout_at};

use super::view::TaskBody;
use crate::backend::{Backend, Unavailable};
use crate::caller::Caller;
use crate::error::Error;
use crate::watch::Watch;

/// A task, from whoever knows most of it.
pub(crate) enum Seen {
    /// It has not ended; the machine's view, and when that was.
    Open(Box<TaskView>, Time),
    /// As it is on the disk.
    Stored(Box<StoredTask>),
    /// It ended while somebody watched.
    Ended(Arc<AcceptedTask>, Arc<FinishedTask>),
}

impl Seen {
    pub(crate) fn accepted(&self) -> &Arc<AcceptedTask> {
        match self {
            Seen::Open(view, _) => &view.accepted,
            Seen::Stored(stored) => &stored.accepted,
            Seen::Ended(accepted, _) => accepted,
        }
    }

    pub(crate) fn spec(&self) -> &TaskSpec {
        &self.accepted().spec
    }

    pub(crate) fn finished(&self) -> Option<&FinishedTask> {
        match self {
            Seen::Open(..) => None,
            Seen::Stored(stored) => stored.finished.as_deref(),
            Seen::Ended(_, finished) => Some(finished),
        }
    }

    pub(crate) fn body(&self) -> TaskBody<'_> {
        match self {
            Seen::Open(view, now) => TaskBody::open(view, *now),
            Seen::Stored(stored) => TaskBody::stored(stored),
            Seen::Ended(accepted, finished) => TaskBody::ended(accepted, finished),
        }
    }
}

/// The task, if it is known and any business of `caller`.
pub(crate) async fn find(
    backend: &dyn Backend,
    caller: &Caller,
    id: TaskId,
) -> Result<Seen, Error> {
    let seen = look(backend, id).await?.filter(|seen| caller.may_see(seen.spec()));
    seen.ok_or_else(|| unknown(id))
}

/// The same; if it has not ended, `wait` for that.
pub(crate) async fn find_ended(
    backend: &dyn Backend,
    caller: &Caller,
    id: TaskId,
    wait: Option<Duration>,
) -> Result<Seen, Error> {
    let seen = find(backend, caller, id).await?;
    let Some(wait) = wait.filter(|_| seen.finished().is_none()) else { return Ok(seen) };
    let until = Instant::now() + wait;
    // Nobody is told of what happened before the watch: look again.
    let watch = backend.watch(id);
    let seen = find(backend, caller, id).await?;
    if seen.finished().is_some() {
        return Ok(seen);
    }
    match end_of(watch, until).await {
        Some(ended) => Ok(ended),
        None => find(backend, caller, id).await,
    }
}

/// The end of a watched task, if it comes in time.
pub(crate) async fn end_of(mut watch: Watch, until: Instant) -> Option<Seen> {
    loop {
        if let Notice::Ended { accepted, finished } =
            timeout_at(until, watch.next()).await.ok()??
        {
            return Some(Seen::Ended(accepted, finished));
        }
    }
}

/// The task as it is now.
pub(crate) async fn look(backend: &dyn Backend, id: TaskId) -> Result<Option<Seen>, Unavailable> {
    let mut open = None;
    backend.read(&mut |scheduler, now| {
        open = scheduler.task_view(id, now).map(|view| Seen::Open(Box::new(view), now));
    });
    match open {
        Some(open) => Ok(Some(open)),
        None => Ok(backend.stored(id).await?.map(|stored| Seen::Stored(Box::new(stored)))),
    }
}

pub(crate) fn unknown(id: TaskId) -> Error {
    Error::not_found(format!("there is no task {id}, or it ended so long ago that it is not kept"))
}
