//! `GET` and `DELETE /api/v1/tasks/{id}`, and the list `GET /api/v1/tasks`.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use data_encoding::BASE64URL_NOPAD;
use hypha_engine::record::StoredTask;
use hypha_engine::{Command, Reply};
use hypha_model::{TaskId, TaskState};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use super::look::{self, Seen};
use super::submit::WaitParams;
use super::view::TaskBody;
use crate::backend::{Backend, Filter, Page, Unavailable};
use crate::caller::Caller;
use crate::error::Error;
use crate::params::{self, Params, TaskPath};
use crate::reply;
use crate::stamp::Stamp;
use crate::surface::Surface;

/// Tasks in one answer if the client does not say.
const DEFAULT_LIMIT: usize = 100;
/// At about half a kilobyte each.
const MAX_LIMIT: usize = 1_000;
/// Pages that are looked at for one answer; when all of it was filtered out, the client asks for the rest.
const MAX_PAGES: usize = 16;

/// Which tasks.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListParams {
    /// In this state.
    #[param(value_type = Option<String>, pattern = "^(queued|scheduled|running|completed|failed|cancelled|expired)$")]
    status: Option<String>,
    /// For this model.
    #[param(min_length = 1, max_length = 256, pattern = "^[!-~]+$")]
    model: Option<String>,
    /// With this worker at present, or at the end.
    #[param(format = "uuid")]
    worker: Option<String>,
    /// Submitted then or later: RFC 3339, or seconds since 1970.
    #[param(pattern = "^[12][0-9]{9}$", example = "1700000000")]
    since: Option<String>,
    /// At most so many.
    #[param(minimum = 1, maximum = 1_000)]
    limit: Option<usize>,
    /// `next` of the answer before.
    #[param(pattern = "^[A-Za-z0-9_-]{21}[AQgw]$")]
    cursor: Option<String>,
}

/// Some tasks, the latest first.
#[derive(Serialize, ToSchema)]
#[schema(as = Tasks)]
pub(crate) struct ListBody<'a> {
    tasks: Vec<TaskBody<'a>>,
    /// The `cursor` for more; null if there are no more.
    #[schema(required)]
    next: Option<String>,
}

/// A task.
#[utoipa::path(
    get, path = "/api/v1/tasks/{id}", tag = "tasks",
    params(("id" = String, Path, description = "The task", pattern = "^task-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"), WaitParams),
    responses(
        (status = 200, description = "The task", body = TaskBody),
        (status = 404, description = "It is not known", body = crate::error::ErrorBody),
    )
)]
pub(crate) async fn get(
    State(surface): State<Surface>,
    caller: Caller,
    TaskPath(id): TaskPath,
    Params(params): Params<WaitParams>,
) -> Result<Response, Error> {
    let wait = params::wait(params.wait)?;
    let seen = look::find_ended(&*surface.backend, &caller, id, wait).await?;
    Ok(reply::json(StatusCode::OK, &seen.body().with_input(seen.spec())))
}

/// Cancels a task. One that has ended stays as it is.
#[utoipa::path(
    delete, path = "/api/v1/tasks/{id}", tag = "tasks",
    params(("id" = String, Path, description = "The task", pattern = "^task-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")),
    responses(
        (status = 200, description = "The task, cancelled or as it ended before", body = TaskBody),
        (status = 404, description = "It is not known", body = crate::error::ErrorBody),
    )
)]
pub(crate) async fn cancel(
    State(surface): State<Surface>,
    caller: Caller,
    TaskPath(id): TaskPath,
) -> Result<Response, Error> {
    let backend = &*surface.backend;
    let before = look::find(backend, &caller, id).await?;
    if before.finished().is_some() {
        return Ok(reply::json(StatusCode::OK, &before.body()));
    }
    let Reply::Cancelled(state) = backend.ask(Command::CancelTask(id)).await? else {
        return Err(Error::internal());
    };
    match look::look(backend, id).await? {
        Some(after) => Ok(reply::json(StatusCode::OK, &after.body())),
        // A request that is not stored leaves nothing behind.
        None => {
            let status = state.unwrap_or(TaskState::Cancelled);
            Ok(reply::json(StatusCode::OK, &TaskBody { status, ..before.body() }))
        }
    }
}

/// Tasks, the latest first.
#[utoipa::path(
    get, path = "/api/v1/tasks", tag = "tasks", params(ListParams),
    responses((status = 200, description = "Some tasks", body = ListBody))
)]
pub(crate) async fn list(
    State(surface): State<Surface>,
    caller: Caller,
    Params(params): Params<ListParams>,
) -> Result<Response, Error> {
    let (wanted, mut cursor, limit) = params.read()?;
    let mut found: Vec<Seen> = Vec::new();
    let mut pages = 0;
    loop {
        let page = wanted.page(&*surface.backend, cursor, limit - found.len()).await?;
        cursor = page.next;
        found.extend(wanted.overlaid(&*surface.backend, &caller, page.tasks));
        pages += 1;
        if found.len() >= limit || cursor.is_none() || pages >= MAX_PAGES {
            break;
        }
    }
    let tasks = found.iter().map(Seen::body).collect();
    let next = cursor.map(|task| BASE64URL_NOPAD.encode(task.uuid().as_bytes()));
    Ok(reply::json(StatusCode::OK, &ListBody { tasks, next }))
}

/// What is looked for.
struct Wanted {
    filter: Filter,
    /// Of which the disk knows less than the machine.
    state: Option<TaskState>,
}

impl ListParams {
    fn read(self) -> Result<(Wanted, Option<TaskId>, usize), Error> {
        let refuse =
            |field: &str, problem: String| Error::bad_request(format!("{field}: {problem}"));
        let state = self.status.map(|text| text.parse()).transpose();
        let model = self.model.map(|text| text.parse()).transpose();
        let worker = self.worker.map(|text| text.parse()).transpose();
        let since = self.since.as_deref().map(|text| Stamp::parse(text).ok_or(text)).transpose();
        let filter = Filter {
            state: None,
            model: model.map_err(|error| refuse("model", format!("{error}")))?,
            worker: worker.map_err(|error| refuse("worker", format!("{error}")))?,
            since: since.map_err(|_| {
                refuse("since", "give a time such as 2026-11-16T02:03:04Z, or seconds".to_owned())
            })?,
        };
        let state = state.map_err(|error| refuse("status", format!("{error}")))?;
        let limit = self.limit.unwrap_or(DEFAULT_LIMIT);
        if !(1..=MAX_LIMIT).contains(&limit) {
            return Err(refuse("limit", format!("give 1 to {MAX_LIMIT}")));
        }
        let cursor =
            self.cursor.map(|text| cursor(&text).ok_or(text)).transpose().map_err(|_| {
                refuse("cursor", "give `next` of the answer before, unchanged".to_owned())
            })?;
        Ok((Wanted { filter, state }, cursor, limit))
    }
}

fn cursor(text: &str) -> Option<TaskId> {
    let bytes = BASE64URL_NOPAD.decode(text.as_bytes()).ok()?;
    Some(TaskId::from_uuid(Uuid::from_slice(&bytes).ok()?))
}

impl Wanted {
    /// The next tasks on the disk that may be wanted.
    async fn page(
        &self,
        backend: &dyn Backend,
        behind: Option<TaskId>,
        limit: usize,
    ) -> Result<Page, Unavailable> {
        let of = |state| Filter { state, ..self.filter.clone() };
        match self.state {
            // The disk takes what runs for scheduled, and what is only bound to a worker for queued.
            Some(TaskState::Running) => {
                backend.list(of(Some(TaskState::Scheduled)), behind, limit).await
            }
            Some(TaskState::Scheduled) => {
                let queued = backend.list(of(Some(TaskState::Queued)), behind, limit).await?;
                let given = backend.list(of(Some(TaskState::Scheduled)), behind, limit).await?;
                Ok(merged(queued, given, limit))
            }
            state => backend.list(of(state), behind, limit).await,
        }
    }

    /// The tasks that are wanted, with what the machine knows of those that have not ended.
    fn overlaid(
        &self,
        backend: &dyn Backend,
        caller: &Caller,
        tasks: Vec<StoredTask>,
    ) -> Vec<Seen> {
        let mut seen = Vec::with_capacity(tasks.len());
        let mut tasks = Some(tasks);
        backend.read(&mut |scheduler, now| {
            for stored in tasks.take().into_iter().flatten() {
                let open = stored.finished.is_none();
                let view = open.then(|| scheduler.task_view(stored.accepted.id, now)).flatten();
                seen.push(match view {
                    Some(view) => Seen::Open(Box::new(view), now),
                    None => Seen::Stored(Box::new(stored)),
                });
            }
        });
        seen.retain(|seen| {
            caller.may_see(seen.spec()) && self.state.is_none_or(|state| seen.state() == state)
        });
        seen
    }
}

/// Two pages as one. Behind the earlier end of the two, one of them has said nothing.
fn merged(a: Page, b: Page, limit: usize) -> Page {
    let known_to = a.next.max(b.next);
    let mut tasks: Vec<StoredTask> = a.tasks.into_iter().chain(b.tasks).collect();
    tasks.retain(|task| known_to.is_none_or(|end| task.accepted.id >= end));
    tasks.sort_by_key(|task| std::cmp::Reverse(task.accepted.id));
    let cut = tasks.len() > limit;
    tasks.truncate(limit);
    let next = if cut { tasks.last().map(|task| task.accepted.id) } else { known_to };
    Page { tasks, next }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use hypha_engine::record::AcceptedTask;
    use hypha_model::{TaskSpec, Time};

    use super::*;

    fn id(n: u8) -> TaskId {
        TaskId::from_uuid(Uuid::from_u128(n.into()))
    }

    fn page(ids: &[u8], next: Option<u8>) -> Page {
        let stored = |n: &u8| StoredTask {
            accepted: Arc::new(AcceptedTask {
                id: id(*n),
                spec: Arc::new(TaskSpec::default()),
                submitted: Time::ZERO,
                deadline: None,
                idempotency_key: None,
                bind_at_once: false,
            }),
            attempts: 0,
            failures: 0,
            current: None,
            not_before: Time::ZERO,
            failed: Default::default(),
            finished: None,
        };
        Page { tasks: ids.iter().map(stored).collect(), next: next.map(id) }
    }

    #[test]
    fn merged_pages_leave_nothing_out() {
        let check =
            |a: (&[u8], Option<u8>), b: (&[u8], Option<u8>), ids: &[u8], next: Option<u8>| {
                let merged = merged(page(a.0, a.1), page(b.0, b.1), 4);
                let got: Vec<TaskId> = merged.tasks.iter().map(|task| task.accepted.id).collect();
                assert_eq!(got, ids.iter().map(|n| id(*n)).collect::<Vec<_>>());
                assert_eq!(merged.next, next.map(id));
            };
        check((&[9, 7], None), (&[8], None), &[9, 8, 7], None);
        // The first page ends at 5: of what is behind, only the second has told.
        check((&[9, 5], Some(5)), (&[8, 3], None), &[9, 8, 5], Some(5));
        check((&[9, 5], Some(5)), (&[8, 7], Some(7)), &[9, 8, 7], Some(7));
        check((&[9, 8, 7], None), (&[6, 5], None), &[9, 8, 7, 6], Some(6));
        check((&[], Some(4)), (&[3], None), &[], Some(4));
        check((&[], None), (&[], None), &[], None);
    }

    #[test]
    fn cursors_come_back() {
        let text = BASE64URL_NOPAD.encode(id(7).uuid().as_bytes());
        assert_eq!(cursor(&text), Some(id(7)));
        for odd in ["", "x", "!", &text[1..]] {
            assert_eq!(cursor(odd), None);
        }
    }
}
