//! The events of a task, as they occur.

use std::collections::{BTreeMap, VecDeque};

use data_encoding::BASE64;
use futures::Stream;
use hypha_model::{TaskState, WorkerId};
use serde::de::DeserializeOwned;

use crate::download::StreamedBody;
use crate::error::ClientError;
use crate::http::MAX_RESPONSE_BYTES;
use crate::json::Json;
use crate::sse::{Frame, Parser};
use crate::task_status::TaskStatus;
use crate::timestamp::Timestamp;

/// An event of a task.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Its kind.
    pub kind: EventKind,
    /// Its data, as the scheduler sent it.
    pub data: Json,
}

/// The kinds of events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// It is in this state now; no event follows a final one.
    State(TaskState),
    /// Its progress has changed.
    Progress,
    /// A piece of its result has arrived.
    Output,
    /// An attempt failed, and is retried later.
    Delayed,
    /// A kind that this client does not know.
    Other(String),
}

impl Event {
    /// The worker that it is about.
    pub fn worker(&self) -> Option<WorkerId> {
        self.field::<String>("worker")?.parse().ok()
    }

    /// The progress of the task, from 0 to 1.
    pub fn progress(&self) -> Option<f64> {
        self.field("progress")
    }

    /// Why the task waits, or is delayed.
    pub fn reason(&self) -> Option<String> {
        ["reason", "last_error", "error"].iter().find_map(|key| self.field(key))
    }

    /// Until when the task is delayed.
    pub fn until(&self) -> Option<Timestamp> {
        self.field::<String>("delayed_until")?.parse().ok()
    }

    /// A piece of the result, if this is one. A character may be cut at its end, and continue in the next.
    pub fn output(&self) -> Option<Vec<u8>> {
        if self.kind != EventKind::Output {
            return None;
        }
        match self.field::<String>("output") {
            Some(text) => Some(text.into_bytes()),
            None => BASE64.decode(self.field::<String>("base64")?.as_bytes()).ok(),
        }
    }

    /// The task: the first event and the last have all of it, the others only what has changed.
    pub fn task(&self) -> Option<TaskStatus> {
        self.data.read()
    }

    /// Whether this is the last event of the task.
    pub fn is_last(&self) -> bool {
        matches!(self.kind, EventKind::State(state) if state.is_final())
    }

    fn field<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        self.data.read::<BTreeMap<String, Json>>()?.get(name)?.read()
    }
}

/// The events of a task. Dropping it closes the connection and does not affect the task.
pub struct Events {
    frames: Frames,
    ended: bool,
}

/// The frames of a stream of events.
pub(crate) struct Frames {
    body: StreamedBody,
    parser: Parser,
    ready: VecDeque<Frame>,
}

impl Frames {
    pub(crate) fn new(body: StreamedBody) -> Frames {
        Frames { body, parser: Parser::default(), ready: VecDeque::new() }
    }

    /// The next frame. A stream that ends is an error, with this reason.
    pub(crate) async fn next(&mut self, ended: &str) -> Result<Frame, ClientError> {
        loop {
            if let Some(frame) = self.ready.pop_front() {
                return Ok(frame);
            }
            let Some(chunk) = self.body.chunk().await? else {
                return Err(self.body.lost(ended.to_owned()));
            };
            self.parser
                .push(&chunk, MAX_RESPONSE_BYTES, &mut self.ready)
                .map_err(|_| ClientError::TooLarge { limit: MAX_RESPONSE_BYTES })?;
        }
    }
}

impl Events {
    pub(crate) fn new(body: StreamedBody) -> Events {
        Events { frames: Frames::new(body), ended: false }
    }

    /// The next event; `None` after the last. After an error no more events come: [`crate::Scheduler::task`]
    /// returns the task's present state.
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
        self.frames.next("the events ended before the task").await.map(parse_event)
    }
}

fn parse_event(frame: Frame) -> Event {
    let kind = match frame.event.as_str() {
        "progress" => EventKind::Progress,
        "output" => EventKind::Output,
        "delayed" => EventKind::Delayed,
        other => match other.parse() {
            Ok(state) => EventKind::State(state),
            Err(_) => EventKind::Other(frame.event),
        },
    };
    // Data that is not JSON is a string.
    let data = frame.data.parse().unwrap_or_else(|_| Json::of(&frame.data));
    Event { kind, data }
}
