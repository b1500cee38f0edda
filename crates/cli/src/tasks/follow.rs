//! Stays with a task until it ends. What is said on the way goes to standard error: the result alone is the
//! output.

use std::time::Duration;

use hypha_client::{Event, EventKind, MAX_WAIT, Scheduler, TaskId, TaskState, TaskStatus};
use serde_json::json;

use super::reach::{failure, patiently};
use super::roster::Roster;
use super::text::{clean, cut};
use super::waiting;
use crate::usage::{Failure, print};

/// Most tasks have ended by then, and of the others a person wants to know why not.
const FIRST_WAIT: Duration = Duration::from_secs(2);

/// A piece of a result is shown to be recognised where it is not the output itself.
const MAX_SHOWN_CHARS: usize = 200;

/// Waits for the end of a task, however long that takes, and says what it waits for.
pub(super) async fn to_its_end(scheduler: &Scheduler, id: TaskId) -> Result<TaskStatus, Failure> {
    let mut wait = FIRST_WAIT;
    let mut said = Said::default();
    loop {
        let task = patiently(async || scheduler.wait(id, wait).await).await.map_err(failure)?;
        if task.has_ended() {
            return Ok(task);
        }
        said.how_it_is(scheduler, &task).await;
        wait = MAX_WAIT;
    }
}

/// What was said of a task that is waited for: nothing is said twice.
#[derive(Default)]
struct Said {
    line: String,
    advised: bool,
}

impl Said {
    async fn how_it_is(&mut self, scheduler: &Scheduler, task: &TaskStatus) {
        let line = waiting::line(scheduler, task).await;
        if line != self.line {
            eprintln!("{} is {line}", task.id);
            self.line = line;
        }
        // One that is tried again moves by itself.
        let stuck = task.status == TaskState::Queued && task.delayed_until().is_none();
        if stuck && !std::mem::replace(&mut self.advised, true) {
            eprintln!("{}", waiting::advice(task));
        }
    }
}

/// Shows what happens to a task as it happens, and pieces of its result as they come. Returns the task, and
/// whether there were such pieces.
pub(super) async fn as_it_happens(
    scheduler: &Scheduler,
    id: TaskId,
    show: &dyn Fn(&Event) -> Result<bool, Failure>,
) -> Result<(TaskStatus, bool), Failure> {
    let mut events = patiently(async || scheduler.events(id).await).await.map_err(failure)?;
    let mut pieces = false;
    let mut queued = false;
    loop {
        let event = {
            let mut next = std::pin::pin!(events.next());
            match tokio::time::timeout(FIRST_WAIT, next.as_mut()).await {
                Ok(event) => event,
                Err(_) => {
                    // Nothing comes of a task that nobody takes: then its silence is explained, once.
                    if std::mem::take(&mut queued)
                        && let Ok(task) = scheduler.task(id).await
                        && task.status == TaskState::Queued
                    {
                        Said::default().how_it_is(scheduler, &task).await;
                    }
                    next.await
                }
            }
        };
        let Some(event) = event else { break };
        match event {
            Ok(event) => {
                queued = event.kind == EventKind::State(TaskState::Queued);
                pieces |= show(&event)?;
                if let Some(task) = event.is_last().then(|| event.task()).flatten() {
                    return Ok((task, pieces));
                }
            }
            Err(error) => {
                // The task goes on without us.
                let advice = format!("`hypha tasks {id} --result` has all of it");
                eprintln!("hypha: {error}; pieces of the result may be missing: {advice}");
                break;
            }
        }
    }
    let task = to_its_end(scheduler, id).await?;
    show(&Event { kind: EventKind::State(task.status), data: json!(task) })?;
    Ok((task, pieces))
}

/// An event for a person: pieces of the result to standard output, the rest to standard error.
pub(super) fn for_people(roster: &Roster, event: &Event) -> Result<bool, Failure> {
    if let Some(text) = event.output() {
        return print(text).map(|()| true);
    }
    if !event.is_last() {
        eprintln!("{}", line(roster, event));
    }
    Ok(false)
}

/// An event for a program: a line of JSON.
pub(super) fn for_programs(event: &Event) -> Result<bool, Failure> {
    print(&format!("{}\n", json!({ "event": name(&event.kind), "data": event.data })))?;
    Ok(true)
}

/// An event as a line.
pub(super) fn line(roster: &Roster, event: &Event) -> String {
    let mut line = match (&event.kind, event.progress()) {
        (EventKind::Progress, Some(progress)) => format!("{:.0} %", progress * 100.0),
        (EventKind::Output, _) => match event.output() {
            Some(text) => format!("output: {}", cut(&clean(text), MAX_SHOWN_CHARS)),
            None => "output that is no text; `hypha tasks ID --result` has all of it".to_owned(),
        },
        (kind, _) => clean(name(kind)),
    };
    let state = match event.kind {
        EventKind::State(state) => Some(state),
        _ => None,
    };
    if let (Some(TaskState::Scheduled | TaskState::Running), Some(worker)) = (state, event.worker())
    {
        line += &format!(" on {}", roster.short(worker));
    }
    if let Some(until) = event.until() {
        line += &format!(" until {until}");
    }
    // Why a task is queued is looked up and told when it stays so.
    if let Some(reason) = event.reason().filter(|_| state != Some(TaskState::Queued)) {
        line += &format!(": {}", roster.named(reason));
    }
    line
}

fn name(kind: &EventKind) -> &str {
    match kind {
        EventKind::State(state) => state.as_str(),
        EventKind::Progress => "progress",
        EventKind::Output => "output",
        EventKind::Delayed => "delayed",
        EventKind::Other(name) => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line() {
        let id = "01890000-0000-7000-8000-000000000002";
        for (kind, data, expected) in [
            (EventKind::State(TaskState::Queued), json!({"reason": "nobody fits"}), "queued"),
            (
                EventKind::State(TaskState::Scheduled),
                json!({"worker": id}),
                "scheduled on 01890000-0000-7000-8000-000000000002",
            ),
            (EventKind::Progress, json!({"progress": 0.25}), "25 %"),
            (
                EventKind::Delayed,
                json!({"delayed_until": "2026-01-01T00:00:00Z", "reason": "it\nbroke"}),
                "delayed until 2026-01-01T00:00:00Z: it broke",
            ),
            (EventKind::Output, json!({"output": "a\nb"}), "output: a b"),
            (EventKind::Other("new".to_owned()), json!(1), "new"),
        ] {
            assert_eq!(line(&Roster::default(), &Event { kind, data }), expected);
        }
    }
}
