//! Stays with a task until it ends. What is said on the way goes to standard error: the result alone is the
//! output.

use std::time::Duration;

use hypha_client::{Event, EventKind, MAX_WAIT, Scheduler, TaskId, TaskStatus};
use serde_json::json;

use super::reach::{failure, patiently};
use super::show::status;
use super::text::{clean, cut};
use crate::usage::{Failure, print};

/// Most tasks have ended by then, and of the others a person wants to know why not.
const FIRST_WAIT: Duration = Duration::from_secs(2);

/// A piece of a result is shown to be recognised where it is not the output itself.
const MAX_SHOWN_CHARS: usize = 200;

/// Waits for the end of a task, however long that takes, and says what it waits for.
pub(super) async fn to_its_end(
    scheduler: &Scheduler,
    id: TaskId,
    quiet: bool,
) -> Result<TaskStatus, Failure> {
    let mut wait = FIRST_WAIT;
    let mut said = String::new();
    loop {
        let task = patiently(async || scheduler.wait(id, wait).await).await.map_err(failure)?;
        if task.has_ended() {
            return Ok(task);
        }
        let line = match task.last_error().or(task.reason()) {
            Some(why) => format!("{}: {}", status(&task), clean(why)),
            None => status(&task),
        };
        if !quiet && line != said {
            eprintln!("{id} is {line}");
            said = line;
        }
        wait = MAX_WAIT;
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
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => {
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
    let task = to_its_end(scheduler, id, false).await?;
    show(&Event { kind: EventKind::State(task.status), data: json!(task) })?;
    Ok((task, pieces))
}

/// An event for a person: pieces of the result to standard output, the rest to standard error.
pub(super) fn for_people(id: TaskId, event: &Event) -> Result<bool, Failure> {
    if let Some(text) = event.output() {
        return print(text).map(|()| true);
    }
    if !event.is_last() {
        eprintln!("{id} {}", line(event));
    }
    Ok(false)
}

/// An event for a program: a line of JSON.
pub(super) fn for_programs(event: &Event) -> Result<bool, Failure> {
    print(&format!("{}\n", json!({ "event": name(&event.kind), "data": event.data })))?;
    Ok(true)
}

/// An event as a line.
pub(super) fn line(event: &Event) -> String {
    let mut line = match (&event.kind, event.progress()) {
        (EventKind::Progress, Some(progress)) => format!("{:.0} %", progress * 100.0),
        (EventKind::Output, _) => match event.output() {
            Some(text) => format!("output: {}", cut(&clean(text), MAX_SHOWN_CHARS)),
            None => "output that is no text; `hypha tasks ID --result` has all of it".to_owned(),
        },
        (kind, _) => clean(name(kind)),
    };
    if event.kind == EventKind::State(hypha_client::TaskState::Scheduled)
        && let Some(worker) = event.worker()
    {
        line += &format!(" on {worker}");
    }
    if let Some(until) = event.until() {
        line += &format!(" until {until}");
    }
    if let Some(reason) = event.reason() {
        line += &format!(": {}", clean(reason));
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
    use hypha_client::TaskState;

    #[test]
    fn an_event_is_one_line() {
        let id = "01890000-0000-7000-8000-000000000002";
        for (kind, data, expected) in [
            (EventKind::State(TaskState::Queued), json!({"reason": "a\nb"}), "queued: a b"),
            (
                EventKind::State(TaskState::Scheduled),
                json!({"worker": id}),
                "scheduled on 01890000-0000-7000-8000-000000000002",
            ),
            (EventKind::Progress, json!({"progress": 0.25}), "25 %"),
            (
                EventKind::Delayed,
                json!({"delayed_until": "2026-01-01T00:00:00Z", "reason": "it broke"}),
                "delayed until 2026-01-01T00:00:00Z: it broke",
            ),
            (EventKind::Output, json!({"output": "a\nb"}), "output: a b"),
            (EventKind::Other("new".to_owned()), json!(1), "new"),
        ] {
            assert_eq!(line(&Event { kind, data }), expected);
        }
    }
}
