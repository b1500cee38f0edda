//! `GET /api/v1/tasks`: tasks in pages, the latest first.
//!
//! The disk has every task, but knows less than the machine about those that have not ended: there, a task
//! that is bound to a worker and not dispatched yet is queued. So where it matters which worker has a task,
//! the machine is read too, and the two lists are merged.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use data_encoding::BASE64URL_NOPAD;
use hypha_engine::record::{AcceptedTask, StoredTask};
use hypha_engine::store::Filter;
use hypha_model::{TaskId, TaskState, WorkerId};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use super::lookup::TaskSnapshot;
use super::view::TaskBody;
use crate::app_state::AppState;
use crate::caller::Caller;
use crate::error::Error;
use crate::params::{QueryFields, QueryParams};
use crate::parts;
use crate::response;
use crate::service::{SchedulerApi, ServiceUnavailable};
use crate::timestamp::Timestamp;

/// Tasks in one response by default.
const DEFAULT_LIMIT: usize = 100;
/// At about half a kilobyte each.
const MAX_LIMIT: usize = 1_000;
/// Pages of the disk that are read for one response; if most tasks were filtered out, the client requests the
/// rest.
const MAX_PAGES: usize = 16;
/// Tasks that are examined while all other requests wait for the machine: about a millisecond.
const MAX_READ_PER_LOCK: usize = 10_000;

/// Which tasks to list.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListParams {
    /// Tasks in this state.
    #[param(value_type = Option<String>, pattern = "^(queued|scheduled|running|completed|failed|cancelled|expired)$")]
    status: Option<String>,
    /// Tasks for this model.
    #[param(min_length = 1, max_length = 256, pattern = "^[!-~]+$")]
    model: Option<String>,
    /// Tasks on this worker, at present or at the end.
    #[param(format = "uuid")]
    worker: Option<String>,
    /// Tasks submitted at this time or later: RFC 3339, or seconds since 1970.
    #[param(pattern = "^[12][0-9]{9}$", example = "1700000000")]
    since: Option<String>,
    /// How many tasks at most.
    #[param(minimum = 1, maximum = 1_000)]
    limit: Option<usize>,
    /// `next` of the previous response.
    #[param(pattern = "^[A-Za-z0-9_-]{21}[AQgw]$")]
    cursor: Option<String>,
}

impl QueryFields for ListParams {
    const EXPECTED: &'static [(&'static str, &'static str)] = &[
        ("status", "a state such as queued"),
        ("model", "the name of a model"),
        ("worker", "the id of a worker"),
        ("since", "a time such as 2026-11-16T02:03:04Z, or seconds"),
        ("limit", "a number from 1 to 1000"),
        ("cursor", "`next` of the previous response"),
    ];
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

/// Tasks, the latest first.
#[utoipa::path(
    get, path = "/api/v1/tasks", tag = "tasks", params(ListParams),
    responses((status = 200, description = "Some tasks", body = ListBody))
)]
pub(crate) async fn list(
    State(app): State<AppState>,
    caller: Caller,
    QueryParams(params): QueryParams<ListParams>,
) -> Result<Response, Error> {
    let (query, behind, limit) = params.read(&caller)?;
    let service = &*app.service;
    // The machine first: tasks that move on meanwhile are on the disk then.
    let placed = query.placed_page(service, behind, limit).await;
    let stored = query.stored_page(service, behind, limit).await?;
    let page = merge_pages(placed, stored, limit);
    let tasks = page.tasks.iter().map(TaskSnapshot::body).collect();
    let next = page.next.map(|task| BASE64URL_NOPAD.encode(task.uuid().as_bytes()));
    Ok(response::json(StatusCode::OK, &ListBody { tasks, next }))
}

/// The filter.
struct ListQuery {
    /// All filters but the state.
    filter: Filter,
    state: Option<TaskState>,
}

/// A page.
#[derive(Default)]
struct ListPage {
    /// The latest first.
    tasks: Vec<TaskSnapshot>,
    /// All matching tasks down to this one are included; `None` if there are no more.
    next: Option<TaskId>,
}

impl ListParams {
    fn read(self, caller: &Caller) -> Result<(ListQuery, Option<TaskId>, usize), Error> {
        let refuse =
            |field: &str, problem: String| Error::bad_request(format!("{field}: {problem}"));
        let state = self.status.map(|text| text.parse()).transpose();
        let model = self.model.map(|text| text.parse()).transpose();
        let worker = self.worker.map(|text| text.parse()).transpose();
        let since =
            self.since.as_deref().map(|text| Timestamp::parse(text).ok_or(text)).transpose();
        let filter = Filter {
            state: None,
            model: model.map_err(|error| refuse("model", format!("{error}")))?,
            worker: worker.map_err(|error| refuse("worker", format!("{error}")))?,
            since: since.map_err(|_| {
                refuse("since", "give a time such as 2026-11-16T02:03:04Z, or seconds".to_owned())
            })?,
            tenant: caller.visible_tenant(),
        };
        let state = state.map_err(|error| refuse("status", format!("{error}")))?;
        let limit = self.limit.unwrap_or(DEFAULT_LIMIT);
        if !(1..=MAX_LIMIT).contains(&limit) {
            return Err(refuse("limit", format!("give 1 to {MAX_LIMIT}")));
        }
        let cursor =
            self.cursor.map(|text| cursor(&text).ok_or(text)).transpose().map_err(|_| {
                refuse("cursor", "give `next` of the previous response, unchanged".to_owned())
            })?;
        Ok((ListQuery { filter, state }, cursor, limit))
    }
}

fn cursor(text: &str) -> Option<TaskId> {
    let bytes = BASE64URL_NOPAD.decode(text.as_bytes()).ok()?;
    Some(TaskId::from_uuid(Uuid::from_slice(&bytes).ok()?))
}

impl ListQuery {
    fn matches(&self, task: &AcceptedTask, worker: Option<WorkerId>, state: TaskState) -> bool {
        let Filter { model, worker: with, since, tenant, .. } = &self.filter;
        self.state.is_none_or(|wanted| wanted == state)
            && with.is_none_or(|with| worker == Some(with))
            && model
                .as_ref()
                .is_none_or(|model| task.spec.requirement.model.as_ref() == Some(model))
            && since.is_none_or(|since| task.submitted >= since)
            && tenant.as_ref().is_none_or(|tenant| task.spec.tenant == *tenant)
    }

    /// The tasks that have a worker, if the filter depends on that.
    async fn placed_page(
        &self,
        service: &dyn SchedulerApi,
        behind: Option<TaskId>,
        limit: usize,
    ) -> ListPage {
        let matters = match self.state {
            Some(state) => matches!(state, TaskState::Scheduled | TaskState::Running),
            None => self.filter.worker.is_some(),
        };
        if !matters {
            return ListPage::default();
        }
        let mut candidates = Vec::new();
        parts::read_in_parts(service, |scheduler, from, _| {
            let part = scheduler.placed_part(self.filter.worker, from);
            candidates.extend(part.items);
            part.next
        })
        .await;
        let mut latest = BinaryHeap::new();
        for part in candidates.chunks(MAX_READ_PER_LOCK) {
            service.read(&mut |scheduler, _| {
                for candidate in part {
                    let Some((task, worker, state)) = scheduler.placed(*candidate) else {
                        continue;
                    };
                    let before = behind.is_none_or(|behind| task.id < behind);
                    if before && self.matches(task, Some(worker), state) {
                        latest.push(Reverse(task.id));
                    }
                    // One more than requested shows whether there are more.
                    if latest.len() > limit + 1 {
                        latest.pop();
                    }
                }
            });
            tokio::task::yield_now().await;
        }
        let ids = latest.into_sorted_vec();
        let next = (ids.len() > limit).then(|| ids[limit - 1].0);
        let ids: Vec<TaskId> = ids.into_iter().take(limit).map(|Reverse(id)| id).collect();
        let views = parts::read_tasks(service, &ids).await.into_iter().flatten();
        let mut tasks = views.map(|(view, now)| TaskSnapshot::Open(Box::new(view), now)).collect();
        self.retain_matching(&mut tasks);
        ListPage { tasks, next }
    }

    /// The tasks on the disk, completed with the machine's state.
    async fn stored_page(
        &self,
        service: &dyn SchedulerApi,
        mut behind: Option<TaskId>,
        limit: usize,
    ) -> Result<ListPage, ServiceUnavailable> {
        let state = match self.state {
            // On the disk, a running task counts as scheduled, and one that is only bound to a worker as
            // queued.
            Some(TaskState::Running) => Some(TaskState::Scheduled),
            state => state,
        };
        let mut tasks: Vec<TaskSnapshot> = Vec::new();
        for _ in 0..MAX_PAGES {
            let filter = Filter { state, ..self.filter.clone() };
            // Where the machine decides, many may be filtered out.
            let open = state.is_some_and(|state| !state.is_final());
            let most = if open { MAX_LIMIT } else { limit - tasks.len() };
            let page = service.list(filter, behind, most).await?;
            tasks.extend(self.with_live_state(service, page.tasks).await);
            behind = page.next;
            if tasks.len() >= limit || behind.is_none() {
                break;
            }
        }
        if tasks.len() > limit {
            tasks.truncate(limit);
            behind = tasks.last().map(|last| last.accepted().id);
        }
        Ok(ListPage { tasks, next: behind })
    }

    async fn with_live_state(
        &self,
        service: &dyn SchedulerApi,
        tasks: Vec<StoredTask>,
    ) -> Vec<TaskSnapshot> {
        let open = |stored: &&StoredTask| stored.finished.is_none();
        let ids: Vec<TaskId> = tasks.iter().filter(open).map(|it| it.accepted.id).collect();
        let mut views = parts::read_tasks(service, &ids).await.into_iter();
        let overlay = |stored: StoredTask| {
            let view = if stored.finished.is_none() { views.next().flatten() } else { None };
            match view {
                Some((view, now)) => TaskSnapshot::Open(Box::new(view), now),
                None => TaskSnapshot::Stored(Box::new(stored)),
            }
        };
        let mut snapshots = tasks.into_iter().map(overlay).collect();
        self.retain_matching(&mut snapshots);
        snapshots
    }

    fn retain_matching(&self, tasks: &mut Vec<TaskSnapshot>) {
        tasks.retain(|snapshot| {
            let body = snapshot.body();
            self.matches(snapshot.accepted(), body.worker, body.status)
        });
    }
}

/// Merges two pages. The result ends where the shorter page does; a task in both is taken from the first.
fn merge_pages(a: ListPage, b: ListPage, limit: usize) -> ListPage {
    let complete_to = a.next.max(b.next);
    let id = |snapshot: &TaskSnapshot| snapshot.accepted().id;
    let mut tasks: Vec<TaskSnapshot> = a.tasks.into_iter().chain(b.tasks).collect();
    tasks.retain(|snapshot| complete_to.is_none_or(|end| id(snapshot) >= end));
    tasks.sort_by_key(|snapshot| Reverse(id(snapshot)));
    tasks.dedup_by_key(|snapshot| id(snapshot));
    let cut = tasks.len() > limit;
    tasks.truncate(limit);
    let next = if cut { tasks.last().map(id) } else { complete_to };
    ListPage { tasks, next }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use hypha_model::{TaskSpec, Time};

    use super::*;

    fn id(n: u8) -> TaskId {
        TaskId::from_uuid(Uuid::from_u128(n.into()))
    }

    fn found((ids, next): (&[u8], Option<u8>), attempts: u32) -> ListPage {
        let stored = |n: &u8| StoredTask {
            accepted: Arc::new(AcceptedTask {
                id: id(*n),
                spec: Arc::new(TaskSpec::default()),
                submitted: Time::ZERO,
                deadline: None,
                idempotency_key: None,
                bind_at_once: false,
            }),
            attempts,
            failures: 0,
            current: None,
            not_before: Time::ZERO,
            failed: Default::default(),
            finished: None,
        };
        let tasks = ids.iter().map(|n| TaskSnapshot::Stored(Box::new(stored(n)))).collect();
        ListPage { tasks, next: next.map(id) }
    }

    #[test]
    fn merged_pages_have_every_task_exactly_once() {
        let check = |a: (&[u8], Option<u8>),
                     b: (&[u8], Option<u8>),
                     ids: &[u8],
                     next: Option<u8>| {
            let merged = merge_pages(found(a, 1), found(b, 0), 4);
            let got: Vec<TaskId> =
                merged.tasks.iter().map(|snapshot| snapshot.accepted().id).collect();
            assert_eq!(got, ids.iter().map(|n| id(*n)).collect::<Vec<_>>());
            assert_eq!(merged.next, next.map(id));
            for (snapshot, n) in merged.tasks.iter().zip(ids) {
                assert_eq!(snapshot.body().attempts == 1, a.0.contains(n), "{n}: the first counts");
            }
        };
        check((&[9, 7], None), (&[8], None), &[9, 8, 7], None);
        check((&[9, 8, 6], None), (&[8, 7], None), &[9, 8, 7, 6], None);
        // The first page ends at 5: after that, only the second has tasks.
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
