//! `GET /api/v1/tasks/{id}/events`: the events of a task, as server-sent events.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, HeaderValue};
use axum::response::Response;
use bytes::Bytes;
use futures::{Stream, StreamExt, stream};
use hypha_engine::Notice;
use hypha_model::{Payload, TaskId, TaskState, WorkerId};
use serde::Serialize;
use utoipa::ToSchema;

use super::lookup::{self, TaskSnapshot};
use super::view::TaskBody;
use crate::app_state::AppState;
use crate::caller::Caller;
use crate::error::Error;
use crate::params::TaskPath;
use crate::response;
use crate::timestamp::Timestamp;
use crate::watch::Watch;

/// The interval of keep-alive comments: proxies close connections that are silent for a minute.
pub(crate) const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// An event of a task. The first event and the last have the whole task instead.
#[derive(Serialize, ToSchema)]
#[schema(as = TaskEvent)]
pub(crate) struct EventBody<'a> {
    #[schema(value_type = String)]
    id: TaskId,
    #[schema(value_type = String)]
    status: TaskState,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    worker: Option<WorkerId>,
    /// With `progress`: the progress, from 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    progress: Option<f64>,
    /// With `output`: a piece of the result, if it is text.
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<&'a str>,
    /// With `output`: a piece of the result, if it is not text.
    #[serde(skip_serializing_if = "Option::is_none")]
    base64: Option<String>,
    /// With `delayed`: when it is retried.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    delayed_until: Option<Timestamp>,
    /// With `delayed`: why.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
}

/// The events of a task: `queued`, `scheduled`, `running`, `progress`, `output`, `delayed`, and at the end
/// `completed`, `failed`, `cancelled` or `expired`. After `delayed` the result starts over: earlier pieces of
/// it belong to an attempt that failed.
#[utoipa::path(
    get, path = "/api/v1/tasks/{id}/events", tag = "tasks",
    params(("id" = String, Path, description = "The task", pattern = "^task-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")),
    responses(
        (status = 200, description = "Events up to the end of the task", content_type = "text/event-stream", body = String),
        (status = 404, description = "The task is unknown", body = crate::error::ErrorBody),
    )
)]
pub(crate) async fn events(
    State(app): State<AppState>,
    caller: Caller,
    TaskPath(id): TaskPath,
) -> Result<Response, Error> {
    stream_task(&app, &caller, id).await
}

/// The events of a task, from its present state to its end.
pub(super) async fn stream_task(
    app: &AppState,
    caller: &Caller,
    id: TaskId,
) -> Result<Response, Error> {
    let service = &*app.service;
    let mut snapshot = lookup::find(service, caller, id).await?;
    let mut watch = None;
    if snapshot.finished().is_none() {
        // The watch does not deliver earlier notices: look again.
        watch = Some(service.watch(id));
        snapshot = lookup::find(service, caller, id).await?;
    }
    if snapshot.finished().is_some() {
        watch = None;
    }
    Ok(stream_response(app, &snapshot.body(), watch))
}

/// The same from `first` on, for a task that has been watched since then.
pub(super) fn stream_response(
    app: &AppState,
    first: &TaskBody<'_>,
    watch: Option<Watch>,
) -> Response {
    let events = EventStream {
        app: app.clone(),
        id: first.id,
        state: first.status,
        worker: first.worker,
        watch,
    };
    let first = event(first.status.as_str(), first);
    let later = stream::unfold(events, |mut events| async { Some((events.next().await?, events)) });
    event_stream(first, later)
}

/// A response with events.
pub(crate) fn event_stream(
    first: Bytes,
    later: impl Stream<Item = Bytes> + Send + 'static,
) -> Response {
    let all = stream::iter([first]).chain(later).map(Ok::<Bytes, Infallible>);
    let kind = HeaderValue::from_static("text/event-stream");
    let mut response = response::with_type(StatusCode::OK, kind, Body::from_stream(all));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

struct EventStream {
    app: AppState,
    id: TaskId,
    /// The last state that was sent.
    state: TaskState,
    worker: Option<WorkerId>,
    /// `None` after the end.
    watch: Option<Watch>,
}

impl EventStream {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            let watch = self.watch.as_mut()?;
            match tokio::time::timeout(KEEP_ALIVE, watch.next()).await {
                Err(_) => return Some(Bytes::from_static(b": still here\n\n")),
                Ok(None) => {
                    // No more notices will come: the outcome is on the disk, if anywhere.
                    self.watch = None;
                    let snapshot = lookup::fetch(&*self.app.service, self.id).await.ok()??;
                    return snapshot.finished().is_some().then(|| end_event(&snapshot));
                }
                Ok(Some(notice)) => {
                    if let Some(event) = self.event_for(notice) {
                        return Some(event);
                    }
                }
            }
        }
    }

    fn event_for(&mut self, notice: Notice) -> Option<Bytes> {
        match notice {
            // The first event may have been newer than these.
            Notice::Scheduled(worker)
                if self.worker == Some(worker) && self.state != TaskState::Queued =>
            {
                None
            }
            Notice::Running if self.state == TaskState::Running => None,
            Notice::Scheduled(worker) => {
                (self.state, self.worker) = (TaskState::Scheduled, Some(worker));
                Some(event("scheduled", &self.body()))
            }
            Notice::Running => {
                self.state = TaskState::Running;
                Some(event("running", &self.body()))
            }
            Notice::Progress(permille) => {
                let progress = Some(f64::from(permille) / 1_000.0);
                Some(event("progress", &EventBody { progress, ..self.body() }))
            }
            Notice::Output(piece) => Some(self.output(&piece)),
            Notice::Delayed { until, reason } => {
                (self.state, self.worker) = (TaskState::Queued, None);
                let delayed_until = Some(Timestamp(until));
                let body = EventBody { delayed_until, reason: Some(&reason), ..self.body() };
                Some(event("delayed", &body))
            }
            Notice::Ended { accepted, finished } => {
                self.watch = None;
                Some(end_event(&TaskSnapshot::Ended(accepted, finished)))
            }
        }
    }

    fn output(&self, piece: &Payload) -> Bytes {
        let (output, base64) = match std::str::from_utf8(piece.bytes()) {
            Ok(text) => (Some(text), None),
            Err(_) => (None, Some(data_encoding::BASE64.encode(piece.bytes()))),
        };
        event("output", &EventBody { output, base64, ..self.body() })
    }

    fn body(&self) -> EventBody<'_> {
        EventBody {
            id: self.id,
            status: self.state,
            worker: self.worker,
            progress: None,
            output: None,
            base64: None,
            delayed_until: None,
            reason: None,
        }
    }
}

fn end_event(snapshot: &TaskSnapshot) -> Bytes {
    let body = snapshot.body();
    event(body.status.as_str(), &body)
}

/// An event with JSON as its data, on one line.
pub(crate) fn event<T: Serialize>(name: &str, body: &T) -> Bytes {
    let mut text = format!("event: {name}\ndata: ").into_bytes();
    let from = text.len();
    if serde_json::to_writer(&mut text, body).is_err() {
        text.truncate(from);
        text.extend_from_slice(b"{}");
    }
    // A result may have line breaks between its parts, never within a string: there they are escaped.
    for byte in &mut text[from..] {
        if matches!(byte, b'\n' | b'\r') {
            *byte = b' ';
        }
    }
    text.extend_from_slice(b"\n\n");
    text.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_two_lines_whatever_the_data() {
        let raw =
            serde_json::from_str::<&serde_json::value::RawValue>("{\r\n\"a\":\n\"\\n\"}").unwrap();
        assert_eq!(event("x", &raw), "event: x\ndata: {  \"a\": \"\\n\"}\n\n");
    }
}
