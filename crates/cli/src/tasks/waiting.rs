//! Why a task waits, in the words of the command line.

use hypha_client::{Scheduler, TaskState, TaskStatus};

use super::roster::Roster;
use super::show::status;
use super::text::clean;

/// Why it waits; nothing if it does not.
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
    // The task itself says no more than that nobody fits.
    match scheduler.explain(task.id).await {
        Ok(found) if found.status == TaskState::Queued && !found.summary.is_empty() => {
            Some(roster.named(&found.summary))
        }
        _ => own,
    }
}

/// How a task is that has not ended, with the reason if it waits.
pub(super) async fn line(scheduler: &Scheduler, task: &TaskStatus) -> String {
    let roster = match task.status {
        TaskState::Queued => Roster::fetch(scheduler).await,
        _ => Roster::default(),
    };
    // What went wrong before says nothing of a try that is under way.
    let before = || task.last_error().filter(|_| task.status == TaskState::Queued).map(clean);
    let why = why(scheduler, task, &roster).await.or_else(before);
    match why {
        Some(why) => format!("{}: {why}", status(task)),
        None => status(task),
    }
}

/// What whoever waits for a task that is queued can do.
pub(super) fn advice(task: &TaskStatus) -> String {
    let id = task.id;
    format!(
        "waiting goes on; Ctrl-C ends it and leaves the task, `hypha cancel {id}` cancels the task"
    )
}
