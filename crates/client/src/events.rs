//! What happens to a task, as it happens.

use std::collections::VecDeque;

use futures::Stream;
use hypha_model::{TaskState, WorkerId};
use serde_json::Value;

use crate::error::ClientError;
use crate::http::{Body, MAX_ANSWER_BYTES};
use crate::sse::{Frame, Parser};
use crate::status::TaskStatus;
use crate::timestamp::Timestamp;

/// Something has happened to a task.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// What.
    pub kind: EventKind,
    /// What the scheduler says of it.
    pub data: Value,
}

/// What can happen to a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// It is in this state now; after one that is final nothing follows.
    State(TaskState),
    /// It is further than it was.
    Progress,
    /// A piece of its result has come.
    Output,
    /// An attempt failed, and the next is made later.
    Delayed,
    /// Something that this client does not know.
    Other(String),
}

impl Event {
    /// The worker that it is about.
    pub fn worker(&self) -> Option<WorkerId> {
        self.data.get("worker")?.as_str()?.parse().ok()
    }

    /// How far the task is, from 0 to 1.
    pub fn progress(&self) -> Option<f64> {
        self.data.get("progress")?.as_f64()
    }

    /// Why the task waits, or is delayed.
    pub fn reason(&self) -> Option<&str> {
        ["reason", "last_error", "error"].iter().find_map(|key| self.data.get(key)?.as_str())
    }

    /// Until when the task is delayed.
    pub fn until(&self) -> Option<Timestamp> {
        self.data.get("delayed_until")?.as_str()?.parse().ok()
    }

    /// A piece of the result, if this is one and it is text.
    pub fn output(&self) -> Option<&str> {
        self.data.get("output").filter(|_| self.kind == EventKind::Output)?.as_str()
    }

    /// The task: the first event and the last have all of it, the others what is new.
    pub fn task(&self) -> Option<TaskStatus> {
        serde_json::from_value(self.data.clone()).ok()
    }

    /// Whether this is the last event of the task.
    pub fn is_last(&self) -> bool {
        matches!(self.kind, EventKind::State(state) if state.is_final())
    }
}

/// The events of a task. Dropping it ends the connection and leaves the task alone.
pub struct Events {
    body: Body,
    parser: Parser,
    ready: VecDeque<Frame>,
    ended: bool,
}

impl Events {
    pub(crate) fn new(body: Body) -> Events {
        Events { body, parser: Parser::default(), ready: VecDeque::new(), ended: false }
    }

    /// The next event; `None` after the last. After an error nothing more comes: what the task has become
    /// since then is in [`crate::Scheduler::task`].
    pub async fn next(&mut self) -> Option<Result<Event, ClientError>> {
        if self.ended {
            return None;
        }
        let next = self.receive().await;
        self.ended = next.as_ref().map_or(true, Event::is_last);
        Some(next)
    }

    /// The events as a stream.
    pub fn into_stream(self) -> impl Stream<Item = Result<Event, ClientError>> {
        futures::stream::unfold(self, async |mut events| {
            let next = events.next().await?;
            Some((next, events))
        })
    }

    async fn receive(&mut self) -> Result<Event, ClientError> {
        loop {
            if let Some(frame) = self.ready.pop_front() {
                return Ok(read(frame));
            }
            let Some(chunk) = self.body.chunk().await? else {
                return Err(self.body.lost("the events ended before the task".to_owned()));
            };
            self.parser
                .push(&chunk, MAX_ANSWER_BYTES, &mut self.ready)
                .map_err(|_| ClientError::TooLarge { limit: MAX_ANSWER_BYTES })?;
        }
    }
}

fn read(frame: Frame) -> Event {
    let kind = match frame.event.as_str() {
        "progress" => EventKind::Progress,
        "output" => EventKind::Output,
        "delayed" => EventKind::Delayed,
        other => match other.parse() {
            Ok(state) => EventKind::State(state),
            Err(_) => EventKind::Other(frame.event),
        },
    };
    // What is not JSON is a text.
    let data = serde_json::from_str(&frame.data).unwrap_or(Value::String(frame.data));
    Event { kind, data }
}
