//! `GET /api/v1/jobs`: jobs in pages, the latest first.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use data_encoding::BASE64URL_NOPAD;
use hypha_engine::job::JobState;
use hypha_model::JobId;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use super::view::JobBody;
use crate::app_state::AppState;
use crate::caller::Caller;
use crate::error::Error;
use crate::params::{QueryFields, QueryParams};
use crate::response;

/// Jobs in one response by default, and at most.
const LIMITS: (usize, usize) = (100, 1_000);
/// Jobs that are read while all other requests wait for the machine: each may have thousands of members.
const JOBS_PER_READ: usize = 8;

/// Which jobs to list.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListParams {
    /// Jobs in this state.
    #[param(value_type = Option<String>, pattern = "^(waiting|running|completed|failed|cancelled)$")]
    status: Option<JobState>,
    /// How many jobs at most.
    #[param(minimum = 1, maximum = 1_000)]
    limit: Option<usize>,
    /// `next` of the previous response.
    #[param(pattern = "^[A-Za-z0-9_-]{21}[AQgw]$")]
    cursor: Option<String>,
}

impl QueryFields for ListParams {
    const EXPECTED: &'static [(&'static str, &'static str)] = &[
        ("status", "waiting, running, completed, failed or cancelled"),
        ("limit", "a number from 1 to 1000"),
        ("cursor", "`next` of the previous response"),
    ];
}

/// Some jobs, the latest first.
#[derive(Serialize, ToSchema)]
#[schema(as = Jobs)]
pub(crate) struct ListBody {
    jobs: Vec<JobBody>,
    /// The `cursor` for more; null if there are no more.
    #[schema(required)]
    next: Option<String>,
}

/// Jobs, the latest first, without their members.
#[utoipa::path(
    get, path = "/api/v1/jobs", tag = "jobs", params(ListParams),
    responses((status = 200, description = "Some jobs", body = ListBody))
)]
pub(crate) async fn list(
    State(app): State<AppState>,
    caller: Caller,
    QueryParams(params): QueryParams<ListParams>,
) -> Result<Response, Error> {
    let limit = params.limit.unwrap_or(LIMITS.0);
    if !(1..=LIMITS.1).contains(&limit) {
        return Err(Error::bad_request(format!("limit: give 1 to {}", LIMITS.1)));
    }
    let mut before = match params.cursor.as_deref() {
        None => None,
        Some(text) => Some(cursor(text).ok_or_else(|| {
            Error::bad_request("cursor: give `next` of the previous response, unchanged")
        })?),
    };
    let mut jobs = Vec::new();
    let mut has_more = true;
    while has_more && jobs.len() < limit {
        let mut page = Vec::new();
        app.service.read(&mut |scheduler, _| page = scheduler.jobs(before, JOBS_PER_READ));
        has_more = page.len() == JOBS_PER_READ;
        for view in page {
            if jobs.len() == limit {
                has_more = true;
                break;
            }
            before = Some(view.id);
            let is_wanted = caller.may_see_tenant(view.tenant.as_ref())
                && params.status.is_none_or(|status| status == view.state);
            if is_wanted {
                jobs.push(JobBody::summary(view));
            }
        }
        tokio::task::yield_now().await;
    }
    let next = before.filter(|_| has_more).map(|id| BASE64URL_NOPAD.encode(id.uuid().as_bytes()));
    Ok(response::json(StatusCode::OK, &ListBody { jobs, next }))
}

fn cursor(text: &str) -> Option<JobId> {
    let bytes = BASE64URL_NOPAD.decode(text.as_bytes()).ok()?;
    Some(JobId::from_uuid(Uuid::from_slice(&bytes).ok()?))
}
