//! `GET /api/v1/jobs/{id}/events`: the changes of a job, as server-sent events.

use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use bytes::Bytes;
use futures::stream;
use hypha_engine::job::JobState;
use hypha_model::JobId;

use super::query;
use super::view::JobBody;
use crate::app_state::AppState;
use crate::caller::Caller;
use crate::error::Error;
use crate::params::JobPath;
use crate::service::JobChanges;
use crate::tasks::events::{KEEP_ALIVE, event, event_stream};

/// The least time between two events: a large job changes with every report of every member.
const MIN_INTERVAL: Duration = Duration::from_millis(200);

/// The changes of a job. Each event has the whole job; its name is the state if that has changed, else `changed`. The
/// last is `completed`, `failed` or `cancelled`.
#[utoipa::path(
    get, path = "/api/v1/jobs/{id}/events", tag = "jobs",
    params(("id" = String, Path, description = "The job", pattern = "^job-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")),
    responses(
        (status = 200, description = "Events up to the end of the job", content_type = "text/event-stream", body = String),
        (status = 404, description = "The job is unknown", body = crate::error::ErrorBody),
    )
)]
pub(crate) async fn events(
    State(app): State<AppState>,
    caller: Caller,
    JobPath(id): JobPath,
) -> Result<Response, Error> {
    // Before the first look: a change in between is not missed.
    let changes = app.service.job_changes();
    let job = JobBody::whole(&*app.service, query::find(&*app.service, &caller, id)?);
    let first = event(state_name(job.status), &job);
    let events = EventStream { app, caller, id, last: job, changes };
    let later = stream::unfold(events, |mut events| async { Some((events.next().await?, events)) });
    Ok(event_stream(first, later))
}

struct EventStream {
    app: AppState,
    caller: Caller,
    id: JobId,
    /// What was sent last.
    last: JobBody,
    changes: JobChanges,
}

impl EventStream {
    async fn next(&mut self) -> Option<Bytes> {
        if self.last.status.is_final() {
            return None;
        }
        loop {
            tokio::time::sleep(MIN_INTERVAL).await;
            match tokio::time::timeout(KEEP_ALIVE, self.changes.changed()).await {
                Err(_) => return Some(Bytes::from_static(b": still here\n\n")),
                // The scheduler stops.
                Ok(Err(_)) => return None,
                Ok(Ok(())) => {}
            }
            let view = query::find(&*self.app.service, &self.caller, self.id).ok()?;
            let job = JobBody::whole(&*self.app.service, view);
            if job == self.last {
                continue;
            }
            let name = match job.status == self.last.status {
                true => "changed",
                false => state_name(job.status),
            };
            self.last = job;
            return Some(event(name, &self.last));
        }
    }
}

fn state_name(state: JobState) -> &'static str {
    match state {
        JobState::Waiting => "waiting",
        JobState::Running => "running",
        JobState::Completed => "completed",
        JobState::Failed => "failed",
        JobState::Cancelled => "cancelled",
    }
}
