//! Why a task waits, as the command line words it.

use hypha_client::{Scheduler, TaskState, TaskStatus};

use super::roster::Roster;
use super::show::status;
use super::text::clean;

/// Why it waits; `None` if it does not.
pub(super) async fn why(
    scheduler: &Scheduler,
    task: &TaskStatus,
    roster: &Roster,
) -> Option<String> {
    if task.status != TaskState::Queued {
        return None;
    }
    let own = task.reason().map(clean);
    if task.delayed_until().is_some() {
        return own;
    }
    if let Some(unserved) = task.model.as_deref().and_then(|model| roster.unserved(model)) {
        return Some(unserved);
    }
    // The task itself only reports that no worker fits.
    match scheduler.explain(task.id).await {
        Ok(found) if found.status == TaskState::Queued && !found.summary.is_empty() => {
            Some(roster.named(&found.summary))
        }
        _ => own,
    }
}

/// The state of a task that has not ended, with the reason if it waits.
pub(super) async fn line(scheduler: &Scheduler, task: &TaskStatus) -> String {
    let roster = match task.status {
        TaskState::Queued => Roster::fetch(scheduler).await,
        _ => Roster::default(),
    };
    // Earlier failures say nothing about an attempt in flight.
    let before = || task.last_error().filter(|_| task.status == TaskState::Queued).map(clean);
    let why = why(scheduler, task, &roster).await.or_else(before);
    match why {
        Some(why) => format!("{}: {why}", status(task)),
        None => status(task),
    }
}

/// What a user who waits for a queued task can do.
pub(super) fn advice(task: &TaskStatus) -> String {
    let id = task.id;
    format!(
        "still waiting; Ctrl-C stops waiting and keeps the task, `hypha cancel {id}` cancels the task"
    )
}
