//! Follows a task until it ends. Progress goes to standard error: the result alone is the output.

use std::time::Duration;

use hypha_client::{
    ClientError, Event, EventKind, Events, Json, MAX_WAIT, Scheduler, Task, TaskId, TaskState,
    TaskStatus,
};
use serde::Serialize;

use super::connection::{failure, retry_while_unavailable};
use super::pieces::Pieces;
use super::roster::Roster;
use super::text::{clean, cut};
use super::waiting;
use crate::usage::{Failure, print, print_bytes};

/// Most tasks have ended by then; for the others a person wants to know why not.
const FIRST_WAIT: Duration = Duration::from_secs(2);

/// A piece of a result is abbreviated where it is not the output itself.
const MAX_SHOWN_CHARS: usize = 200;

/// Waits for the end of a task, however long that takes, and reports why it waits.
pub(super) async fn wait_for_end(scheduler: &Scheduler, id: TaskId) -> Result<TaskStatus, Failure> {
    let mut wait = FIRST_WAIT;
    let mut said = StatusReporter::default();
    loop {
        let task = retry_while_unavailable(async || scheduler.wait(id, wait).await)
            .await
            .map_err(failure)?;
        if task.has_ended() {
            return Ok(task);
        }
        said.report(scheduler, &task).await;
        wait = MAX_WAIT;
    }
}

/// The last report about a task that is waited for: nothing is repeated.
#[derive(Default)]
struct StatusReporter {
    line: String,
    advised: bool,
}

impl StatusReporter {
    async fn report(&mut self, scheduler: &Scheduler, task: &TaskStatus) {
        let line = waiting::line(scheduler, task).await;
        if line != self.line {
            eprintln!("{} is {line}", task.id);
            self.line = line;
        }
        // The backoff of a retry needs no explanation.
        let stuck = task.status == TaskState::Queued && task.delayed_until().is_none();
        if stuck && !std::mem::replace(&mut self.advised, true) {
            eprintln!("{}", waiting::advice(task));
        }
    }
}

/// Receives the events of a task.
pub(super) trait EventViewer {
    /// An event has occurred.
    fn see(&mut self, event: &Event) -> Result<(), Failure>;

    /// No more events until the end: the connection was lost, and the task continues without us.
    fn lost(&mut self) -> Result<(), Failure> {
        eprintln!("hypha: {LOST}");
        Ok(())
    }
}

const LOST: &str = "connection lost, reconnecting";

/// Submits a task and shows its events from the beginning. Returns the ended task.
pub(super) async fn submit_and_follow(
    scheduler: &Scheduler,
    task: Task,
    viewer: &mut dyn EventViewer,
) -> Result<TaskStatus, Failure> {
    let mut events = scheduler.submit_and_follow(task.clone()).await.map_err(failure)?;
    let first = events.next().await.and_then(Result::ok);
    if let Some(first) = first
        && let Some(id) = first.task().map(|task| task.id)
    {
        return follow_to_end(scheduler, id, (events, Some(first)), viewer).await;
    }
    // Under the same key it is the same task, if it was accepted at all.
    viewer.lost()?;
    let task = retry_while_unavailable(async || scheduler.submit_task(task.clone()).await).await;
    wait_without_events(scheduler, task.map_err(failure)?.id, viewer).await
}

/// Shows the events of a task from now on. Returns the ended task.
pub(super) async fn follow_events(
    scheduler: &Scheduler,
    id: TaskId,
    viewer: &mut dyn EventViewer,
) -> Result<TaskStatus, Failure> {
    let events =
        retry_while_unavailable(async || scheduler.events(id).await).await.map_err(failure)?;
    follow_to_end(scheduler, id, (events, None), viewer).await
}

async fn follow_to_end(
    scheduler: &Scheduler,
    id: TaskId,
    (mut events, mut first): (Events, Option<Event>),
    viewer: &mut dyn EventViewer,
) -> Result<TaskStatus, Failure> {
    let mut queued = false;
    loop {
        let event = match first.take() {
            Some(first) => Some(Ok(first)),
            None => next(scheduler, id, &mut events, &mut queued).await,
        };
        let Some(Ok(event)) = event else { break };
        queued = event.kind == EventKind::State(TaskState::Queued);
        viewer.see(&event)?;
        if let Some(task) = event.is_last().then(|| event.task()).flatten() {
            return Ok(task);
        }
    }
    viewer.lost()?;
    wait_without_events(scheduler, id, viewer).await
}

/// The next event. A task that no worker can take has no events: its silence is explained, once.
async fn next(
    scheduler: &Scheduler,
    id: TaskId,
    events: &mut Events,
    queued: &mut bool,
) -> Option<Result<Event, ClientError>> {
    let mut next = std::pin::pin!(events.next());
    if let Ok(event) = tokio::time::timeout(FIRST_WAIT, next.as_mut()).await {
        return event;
    }
    if std::mem::take(queued)
        && let Ok(task) = scheduler.task(id).await
        && task.status == TaskState::Queued
    {
        StatusReporter::default().report(scheduler, &task).await;
    }
    next.await
}

/// The end of a task whose events were lost, shown as its last event.
async fn wait_without_events(
    scheduler: &Scheduler,
    id: TaskId,
    viewer: &mut dyn EventViewer,
) -> Result<TaskStatus, Failure> {
    let task = wait_for_end(scheduler, id).await?;
    viewer.see(&Event { kind: EventKind::State(task.status), data: Json::of(&task) })?;
    Ok(task)
}

/// A person: pieces of the result go to standard output, the rest to standard error.
pub(super) struct TerminalViewer {
    roster: Roster,
    /// Of the attempt in flight.
    pieces: Pieces,
    /// Whether pieces of it were missed: then the whole result is printed at its end.
    missed: bool,
    begun: bool,
}

impl TerminalViewer {
    pub(super) fn new(roster: Roster) -> TerminalViewer {
        TerminalViewer { roster, pieces: Pieces::default(), missed: false, begun: false }
    }

    /// Ends the output of pieces; returns whether they were the whole result.
    pub(super) fn finish(&mut self) -> Result<bool, Failure> {
        print_bytes(&self.pieces.finish())?;
        Ok(self.pieces.any() && !self.missed)
    }

    fn begin(&mut self, event: &Event) {
        if let Some(task) = event.task() {
            eprintln!("{} submitted", task.id);
        }
        // A task that was submitted earlier may already have sent pieces.
        self.missed = event.kind == EventKind::State(TaskState::Running);
    }

    /// The attempt that the pieces belong to has failed.
    fn start_over(&mut self) -> Result<bool, Failure> {
        self.missed = false;
        let any = self.finish()?;
        self.pieces = Pieces::default();
        Ok(any)
    }
}

impl EventViewer for TerminalViewer {
    fn see(&mut self, event: &Event) -> Result<(), Failure> {
        if !std::mem::replace(&mut self.begun, true) {
            self.begin(event);
        }
        if event.is_last() {
            return Ok(());
        }
        if event.kind == EventKind::Output {
            return match event.output().filter(|_| !self.missed) {
                Some(piece) => print_bytes(&self.pieces.take(&piece)).map(|_| ()),
                None => {
                    self.missed = true;
                    Ok(())
                }
            };
        }
        let again = event.kind == EventKind::Delayed && self.start_over()?;
        let note = if again { "; the result starts over" } else { "" };
        eprintln!("{}{note}", line(&self.roster, event));
        Ok(())
    }

    fn lost(&mut self) -> Result<(), Failure> {
        let note = match self.finish()? {
            true => "; the whole result is printed at its end",
            false => "",
        };
        eprintln!("hypha: {LOST}{note}");
        self.missed = true;
        Ok(())
    }
}

/// A program: each event is a line of JSON.
pub(super) struct JsonViewer;

impl EventViewer for JsonViewer {
    fn see(&mut self, event: &Event) -> Result<(), Failure> {
        #[derive(Serialize)]
        struct Line<'a> {
            event: &'a str,
            data: &'a Json,
        }
        let line = Line { event: name(&event.kind), data: &event.data };
        print(&format!("{}\n", Json::of(&line)))
    }
}

/// An event as a line.
pub(super) fn line(roster: &Roster, event: &Event) -> String {
    let mut line = match (&event.kind, event.progress()) {
        (EventKind::Progress, Some(progress)) => format!("{:.0} %", progress * 100.0),
        (EventKind::Output, _) => {
            let piece = event.output().unwrap_or_default();
            format!("output: {}", cut(&clean(&String::from_utf8_lossy(&piece)), MAX_SHOWN_CHARS))
        }
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
    // The reason why a task is queued is looked up and shown if it stays queued.
    if let Some(reason) = event.reason().filter(|_| state != Some(TaskState::Queued)) {
        line += &format!(": {}", roster.named(&reason));
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
    use serde_json::json;

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
            let event = Event { kind, data: data.into() };
            assert_eq!(line(&Roster::default(), &event), expected);
        }
    }

    #[test]
    fn a_result_is_whole_unless_pieces_were_missed() {
        let event = |kind: EventKind, data: serde_json::Value| Event { kind, data: data.into() };
        let state = |state| event(EventKind::State(state), json!({}));
        let piece = || event(EventKind::Output, json!({"output": ""}));
        let broken = || event(EventKind::Output, json!({"base64": "?"}));
        let delayed = || event(EventKind::Delayed, json!({}));
        let text = || event(EventKind::Output, json!({"output": "\n"}));
        for (events, whole) in [
            (vec![state(TaskState::Queued), text()], true),
            (vec![state(TaskState::Queued), piece()], false),
            (vec![state(TaskState::Running), text()], false),
            (vec![state(TaskState::Queued), text(), broken(), text()], false),
            (vec![state(TaskState::Queued), text(), delayed()], false),
            (vec![state(TaskState::Running), text(), delayed(), text()], true),
        ] {
            let mut people = TerminalViewer::new(Roster::default());
            events.iter().for_each(|event| people.see(event).unwrap());
            assert_eq!(people.finish().unwrap(), whole, "{events:?}");
            if whole {
                people.lost().unwrap();
                assert!(!people.finish().unwrap(), "pieces after the loss are missing");
            }
        }
    }
}
