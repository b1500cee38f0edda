//! `POST /api/v1/tasks`: accepts one or more tasks.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::header::ACCEPT;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use hypha_engine::{NewTask, Submitted};
use hypha_model::TaskSpec;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::time::Instant;
use utoipa::{IntoParams, ToSchema};

use super::events;
use super::form::{Batch, TaskForm};
use super::lookup::{self, TaskSnapshot};
use super::view::TaskBody;
use crate::app_state::AppState;
use crate::caller::Caller;
use crate::error::{Error, ErrorDetail};
use crate::params::QueryFields;
use crate::service::SubmitResult;
use crate::watch::Watch;
use crate::{json, params, response};

/// Long enough for any id with a prefix.
const MAX_KEY_BYTES: usize = 255;
/// Tasks of a batch that the scheduler accepts in one step, at some microseconds each; a larger batch takes several.
const TASKS_PER_STEP: usize = 1_024;

/// Whether to wait.
#[derive(Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct WaitParams {
    /// Waits for the end of the task, for up to this many seconds.
    #[param(minimum = 0.0, maximum = 300.0)]
    pub(crate) wait: Option<f64>,
}

impl QueryFields for WaitParams {
    const EXPECTED: &'static [(&'static str, &'static str)] =
        &[("wait", "the seconds to wait, from 0 to 300")];
}

/// One task or several.
#[derive(ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "a schema; the first character shows which of the two it is")]
pub(crate) enum NewTasks<'a> {
    One(Box<TaskForm<'a>>),
    /// At most 10000. Each is accepted or refused on its own.
    Many(Vec<TaskForm<'a>>),
}

/// The outcome of the request.
#[derive(ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "a schema")]
pub(crate) enum SubmitResponse<'a> {
    One(Box<TaskBody<'a>>),
    Many(BatchBody<'a>),
}

/// The outcomes of several tasks, in their order.
#[derive(Serialize, ToSchema)]
#[schema(as = Batch)]
pub(crate) struct BatchBody<'a> {
    /// Why none was accepted.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<ErrorDetail<'a>>,
    tasks: Vec<OutcomeBody<'a>>,
}

/// A task, or why it was not accepted.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
#[schema(as = Outcome)]
enum OutcomeBody<'a> {
    Task(Box<TaskBody<'a>>),
    Refused { error: ErrorDetail<'a> },
}

/// The same before it is serialized.
enum TaskOutcome {
    New(Arc<TaskSpec>, Submitted),
    Found(TaskSnapshot),
    Refused(Error),
}

/// Submits a task, or an array of tasks. The response comes when they are durable.
///
/// With `Accept: text/event-stream`, the response to one task is the stream of its events, from the beginning
/// to its end, as at `/api/v1/tasks/{id}/events`.
#[utoipa::path(
    post, path = "/api/v1/tasks", tag = "tasks", request_body = NewTasks,
    params(
        WaitParams,
        ("Idempotency-Key" = Option<String>, Header,
            description = "A repeat with the same key returns the first task",
            min_length = 1, max_length = 255, pattern = "^[!-~]+$"),
    ),
    responses(
        (
            status = 200, description = "They have ended, or were submitted before; or the events of one task",
            content((SubmitResponse = "application/json"), (String = "text/event-stream"))
        ),
        (status = 202, description = "They are accepted", body = SubmitResponse),
        (status = 409, description = "Another task has the key", body = crate::error::ErrorBody),
        (status = 413, description = "The body is too large", body = crate::error::ErrorBody),
        (status = 415, description = "The body is not JSON", body = crate::error::ErrorBody),
        (status = 422, description = "The body is invalid, or no worker can meet the deadline", body = crate::error::ErrorBody),
        (status = 429, description = "The queue is full, or the quota used up", body = crate::error::ErrorBody),
    )
)]
pub(crate) async fn submit(
    State(app): State<AppState>,
    request: Request,
) -> Result<Response, Error> {
    // By hand and not by extractors, which would copy headers and parse more than is needed.
    let (mut parts, body) = request.into_parts();
    let caller = parts.extensions.remove::<Caller>().ok_or_else(Error::unauthorized)?;
    let wait = match parts.uri.query() {
        None => None,
        Some(_) => params::parse_wait(params::parse_query::<WaitParams>(&parts.uri)?.wait)?,
    };
    let key = idempotency_key(&parts.headers)?;
    json::check_type(&parts.headers)?;
    let bytes = app.bodies.read(&parts.headers, body).await?;
    let request = Submission { app, caller, key, wait };
    let first = bytes.iter().find(|byte| !byte.is_ascii_whitespace());
    if first == Some(&b'[') {
        let (new_tasks, rejections) = request.read_batch(&bytes)?;
        drop(bytes);
        return request.submit_batch(new_tasks, rejections).await;
    }
    let spec = json::parse_object::<TaskForm>(&bytes)?.into_spec(&request.caller)?;
    drop(bytes);
    match wants_events(&parts.headers) {
        true => request.submit_and_stream(Arc::new(spec)).await,
        false => request.submit_one(Arc::new(spec)).await,
    }
}

struct Submission {
    app: AppState,
    caller: Caller,
    key: Option<String>,
    wait: Option<Duration>,
}

/// For each task of a batch, why it is refused; `None` for the next of those to submit.
type Rejections = Vec<Option<Error>>;

impl Submission {
    fn new_task(&self, spec: Arc<TaskSpec>, idempotency_key: Option<Arc<str>>) -> NewTask {
        let (quota, weight) = (self.caller.quota, self.caller.weight);
        NewTask { spec, idempotency_key, bind_at_once: false, stored: true, quota, weight }
    }

    async fn submit_one(&self, spec: Arc<TaskSpec>) -> Result<Response, Error> {
        let service = &*self.app.service;
        let new = self.new_task(Arc::clone(&spec), self.key.as_deref().map(key_of_one));
        let accepted = service.submit(vec![new], self.wait.is_some()).await?;
        let (submitted, watch) = accepted.into_iter().next().ok_or_else(Error::internal)??;
        let until = self.wait.map(|wait| Instant::now() + wait);
        if submitted.repeated {
            drop(watch);
            let snapshot = self.existing_task(&spec, submitted, until).await?;
            return Ok(response::json(StatusCode::OK, &snapshot.body()));
        }
        let Some(snapshot) = self.await_end(submitted, watch, until).await else {
            let body = TaskBody::submitted(&submitted, &spec);
            return Ok(response::json(StatusCode::ACCEPTED, &body));
        };
        let ended = snapshot.finished().is_some();
        let status = if ended { StatusCode::OK } else { StatusCode::ACCEPTED };
        Ok(response::json(status, &snapshot.body()))
    }

    /// Responds with the events of the task, from the beginning: none is missed.
    async fn submit_and_stream(&self, spec: Arc<TaskSpec>) -> Result<Response, Error> {
        let new = self.new_task(Arc::clone(&spec), self.key.as_deref().map(key_of_one));
        let accepted = self.app.service.submit(vec![new], true).await?;
        let (submitted, watch) = accepted.into_iter().next().ok_or_else(Error::internal)??;
        if submitted.repeated {
            self.existing_task(&spec, submitted, None).await?;
            return events::stream_task(&self.app, &self.caller, submitted.task).await;
        }
        let body = TaskBody::submitted(&submitted, &spec);
        Ok(events::stream_response(&self.app, &body, watch))
    }

    /// The first task under a key, if it is the same.
    async fn existing_task(
        &self,
        spec: &TaskSpec,
        submitted: Submitted,
        until: Option<Instant>,
    ) -> Result<TaskSnapshot, Error> {
        let (service, id) = (&*self.app.service, submitted.task);
        // Keys belong to a tenant, so the task does, too.
        let snapshot = match lookup::find_and_wait(service, &self.caller, id, until).await {
            Err(error) if error.status == StatusCode::NOT_FOUND => {
                let message =
                    format!("the task of this key, {id}, has ended and is no longer kept");
                return Err(Error::conflict(message));
            }
            other => other?,
        };
        if *snapshot.spec() == *spec {
            return Ok(snapshot);
        }
        Err(Error::conflict(format!(
            "the key was used for another task, {id}: repeat the same body, or choose another key"
        )))
    }

    fn read_batch(&self, bytes: &[u8]) -> Result<(Vec<NewTask>, Rejections), Error> {
        let Batch(raw) = json::parse(bytes)?;
        let mut new_tasks = Vec::with_capacity(raw.len());
        let read = |task: &RawValue| {
            let form = json::parse_object::<TaskForm>(task.get().as_bytes())?;
            form.into_spec(&self.caller)
        };
        let mut rejection = |(at, task): (usize, &RawValue)| match read(task) {
            Err(error) => Some(error),
            Ok(spec) => {
                let key = self.key.as_ref().map(|key| key_in_batch(key, at));
                new_tasks.push(self.new_task(Arc::new(spec), key));
                None
            }
        };
        let rejections = raw.into_iter().enumerate().map(&mut rejection).collect();
        Ok((new_tasks, rejections))
    }

    async fn submit_batch(
        &self,
        new_tasks: Vec<NewTask>,
        rejections: Rejections,
    ) -> Result<Response, Error> {
        let service = &*self.app.service;
        let specs: Vec<Arc<TaskSpec>> = new_tasks.iter().map(|new| Arc::clone(&new.spec)).collect();
        let until = self.wait.map(|wait| Instant::now() + wait);
        let (mut accepted, mut unavailable) = (Vec::with_capacity(new_tasks.len()), None);
        let mut new_tasks = new_tasks.into_iter().peekable();
        while new_tasks.peek().is_some() && unavailable.is_none() {
            let part = new_tasks.by_ref().take(TASKS_PER_STEP).collect();
            match service.submit(part, until.is_some()).await {
                Ok(part) => accepted.extend(part),
                Err(error) if accepted.is_empty() => return Err(error.into()),
                // Accepted tasks are durable; the others can be submitted again.
                Err(error) => unavailable = Some(error),
            }
        }
        let mut submitted = specs.into_iter().zip(accepted);
        let mut outcomes = Vec::with_capacity(rejections.len());
        for rejection in rejections {
            outcomes.push(match rejection {
                Some(error) => TaskOutcome::Refused(error),
                None => match submitted.next() {
                    Some((spec, accepted)) => self.outcome(spec, accepted, until).await,
                    None => TaskOutcome::Refused(match &unavailable {
                        Some(error) => Error::from(error.clone()),
                        None => Error::internal(),
                    }),
                },
            });
        }
        Ok(batch_response(&outcomes))
    }

    async fn outcome(
        &self,
        spec: Arc<TaskSpec>,
        accepted: SubmitResult,
        until: Option<Instant>,
    ) -> TaskOutcome {
        let (submitted, watch) = match accepted {
            Ok(accepted) => accepted,
            Err(reject) => return TaskOutcome::Refused(reject.into()),
        };
        if submitted.repeated {
            drop(watch);
            return match self.existing_task(&spec, submitted, until).await {
                Ok(snapshot) => TaskOutcome::Found(snapshot),
                Err(error) => TaskOutcome::Refused(error),
            };
        }
        match self.await_end(submitted, watch, until).await {
            Some(snapshot) => TaskOutcome::Found(snapshot),
            None => TaskOutcome::New(spec, submitted),
        }
    }

    /// The task at its end, or when the time is over; `None` if it is not waited for.
    async fn await_end(
        &self,
        submitted: Submitted,
        watch: Option<Watch>,
        until: Option<Instant>,
    ) -> Option<TaskSnapshot> {
        let (watch, until) = (watch?, until?);
        match lookup::wait_for_end(watch, until).await {
            Some(ended) => Some(ended),
            None => lookup::fetch(&*self.app.service, submitted.task).await.ok().flatten(),
        }
    }
}

impl TaskOutcome {
    fn refusal(&self) -> Option<&Error> {
        match self {
            TaskOutcome::Refused(error) => Some(error),
            TaskOutcome::New(..) | TaskOutcome::Found(_) => None,
        }
    }
}

/// The response to a batch: 200 if all have ended, the first refusal's status if none was accepted, else 202.
fn batch_response(outcomes: &[TaskOutcome]) -> Response {
    let ended = |outcome: &TaskOutcome| matches!(outcome, TaskOutcome::Found(snapshot) if snapshot.finished().is_some());
    let first = outcomes.first().and_then(TaskOutcome::refusal);
    let refused = first.filter(|_| outcomes.iter().all(|it| it.refusal().is_some()));
    let status = match refused {
        Some(error) => error.status,
        None if !outcomes.is_empty() && outcomes.iter().all(ended) => StatusCode::OK,
        None => StatusCode::ACCEPTED,
    };
    let tasks = outcomes.iter().map(|outcome| match outcome {
        TaskOutcome::New(spec, submitted) => {
            OutcomeBody::Task(Box::new(TaskBody::submitted(submitted, spec)))
        }
        TaskOutcome::Found(snapshot) => OutcomeBody::Task(Box::new(snapshot.body())),
        TaskOutcome::Refused(error) => OutcomeBody::Refused { error: error.detail() },
    });
    let body = BatchBody { error: refused.map(Error::detail), tasks: tasks.collect() };
    let mut response = response::json(status, &body);
    if let Some(error) = refused {
        error.add_headers(&mut response);
    }
    response
}

/// Whether the client accepts events; if it does, it gets them even if it accepts other types too.
fn wants_events(headers: &HeaderMap) -> bool {
    let kinds = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let essence = |kind: &str| kind.split(';').next().unwrap_or_default().trim().to_owned();
    kinds
        .flat_map(|value| value.split(','))
        .any(|kind| essence(kind).eq_ignore_ascii_case("text/event-stream"))
}

/// The key of a task in a batch, as it is stored.
fn key_in_batch(key: &str, at: usize) -> Arc<str> {
    Arc::from(format!("{key}#{at}"))
}

/// The key of a single task, as it is stored. One that could be the key of a task in a batch gets a character that no
/// client's key has.
fn key_of_one(key: &str) -> Arc<str> {
    let is_number = |end: &str| !end.is_empty() && end.bytes().all(|byte| byte.is_ascii_digit());
    match key.rsplit_once('#').is_some_and(|(_, end)| is_number(end)) {
        true => Arc::from(format!("{key} ")),
        false => Arc::from(key),
    }
}

fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, Error> {
    let Some(value) = headers.get("idempotency-key") else { return Ok(None) };
    let bytes = value.as_bytes();
    let visible = bytes.iter().all(u8::is_ascii_graphic);
    match std::str::from_utf8(bytes) {
        Ok(key) if visible && (1..=MAX_KEY_BYTES).contains(&bytes.len()) => {
            Ok(Some(key.to_owned()))
        }
        _ => Err(Error::bad_request(format!(
            "Idempotency-Key: give 1 to {MAX_KEY_BYTES} visible ASCII characters"
        ))),
    }
}
