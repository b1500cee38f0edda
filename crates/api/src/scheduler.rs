//! `/api/v1/scheduler`: the strategy, the predictor, and their statistics.

use std::collections::BTreeMap;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::get;
use hypha_engine::scheduler::Counts;
use hypha_engine::{Command, Reply, Scheduler};
use hypha_model::{SchedulerId, WorkerId};
use hypha_placement::{Statistics, Strategy, TenantView, WorkerView};
use hypha_predict::Mode;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::{OpenApi, ToSchema};

use crate::app_state::AppState;
use crate::caller::Caller;
use crate::error::Error;
use crate::json::{self, Json};
use crate::parts;
use crate::resources::ResourcesBody;
use crate::response;
use crate::workers::HealthBody;

/// The routes.
pub(crate) fn routes() -> Router<AppState> {
    Router::new().route("/api/v1/scheduler", get(show).put(change))
}

/// The schemas of the routes.
pub(crate) fn openapi() -> utoipa::openapi::OpenApi {
    #[derive(OpenApi)]
    #[openapi(
        paths(show, change),
        tags((name = "scheduler", description = "How tasks are placed"))
    )]
    struct Document;
    Document::openapi()
}

/// The scheduler.
#[derive(Serialize, ToSchema)]
#[schema(as = Scheduler)]
pub(crate) struct SchedulerBody {
    #[schema(value_type = String, format = "uuid")]
    id: SchedulerId,
    version: &'static str,
    /// The incarnation of the scheduler: grows by one with each start.
    epoch: u64,
    /// The strategy in use with its parameters, such as `{"name": "weighted", "weight": 1.0}`.
    #[schema(value_type = Object)]
    strategy: Strategy,
    /// The names of all strategies.
    strategies: Vec<&'static str>,
    /// `default` or `lookup_table`.
    predictor_mode: &'static str,
    statistics: StatisticsBody,
    /// Counts since the start.
    #[schema(value_type = Object)]
    counts: Counts,
    tasks: TaskCounts,
    workers: WorkerCounts,
    resources: ResourcesBody,
    /// The tenants that have tasks: `tenant`, `weight`, `dominant_share`, `running` and `queued`. Administrators see
    /// all, others their own.
    #[schema(value_type = Vec<Object>)]
    tenants: Vec<TenantView>,
}

/// Statistics of the strategy since it was chosen.
#[derive(Serialize, ToSchema)]
#[schema(as = Statistics)]
pub(crate) struct StatisticsBody {
    /// `assigned`, `completed`, `failed`, `waited`, `held_back`, `explored`, `steals` and `refusals` by reason.
    #[serde(flatten)]
    #[schema(value_type = Object)]
    counts: Statistics,
    /// Statistics of each worker.
    #[schema(value_type = std::collections::HashMap<String, HealthBody>)]
    worker_performance: BTreeMap<WorkerId, HealthBody>,
}

/// Tasks that have not ended.
#[derive(Default, Serialize, ToSchema)]
pub(crate) struct TaskCounts {
    /// All of them.
    open: usize,
    /// Tasks that have not started, with a worker or without.
    queued: usize,
    /// Tasks without a worker.
    waiting: usize,
}

/// Workers.
#[derive(Default, Serialize, ToSchema)]
pub(crate) struct WorkerCounts {
    known: usize,
    /// Workers that accept tasks.
    available: usize,
}

/// The settings to change. Settings that are left out stay.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = SchedulerChange)]
pub(crate) struct ChangeForm {
    /// A name, or an object with a name and parameters.
    #[serde(default)]
    #[schema(value_type = Option<String>, pattern = "^(fifo|random|weighted|predictive|shortest_queue)$")]
    strategy: Option<Box<RawValue>>,
    /// `default` or `lookup_table`.
    #[serde(default)]
    #[schema(pattern = "^default$")]
    predictor_mode: Option<String>,
}

/// The strategy, the predictor's mode, and their statistics.
#[utoipa::path(
    get, path = "/api/v1/scheduler", tag = "scheduler",
    responses((status = 200, description = "The scheduler", body = SchedulerBody))
)]
async fn show(State(app): State<AppState>, caller: Caller) -> Result<Response, Error> {
    scheduler_response(&app, &caller).await
}

/// Chooses another strategy or another predictor. No task is lost: waiting tasks are decided again.
#[utoipa::path(
    put, path = "/api/v1/scheduler", tag = "scheduler", request_body = ChangeForm,
    responses(
        (status = 200, description = "The scheduler, changed", body = SchedulerBody),
        (status = 409, description = "There is no lookup table", body = crate::error::ErrorBody),
        (status = 413, description = "The body is too large", body = crate::error::ErrorBody),
        (status = 415, description = "The body is not JSON", body = crate::error::ErrorBody),
        (status = 422, description = "There is no such strategy or mode", body = crate::error::ErrorBody),
    )
)]
async fn change(
    State(app): State<AppState>,
    caller: Caller,
    Json(form): Json<ChangeForm>,
) -> Result<Response, Error> {
    caller.require_admin()?;
    let strategy = form.strategy.as_deref().map(strategy).transpose()?;
    let mode = form.predictor_mode.as_deref().map(mode).transpose()?;
    // The mode first: it may still be refused.
    if let Some(mode) = mode {
        match app.service.execute(Command::SetMode(mode)).await? {
            Reply::ModeSet(set) => set.map_err(|error| Error::conflict(error.to_string()))?,
            _ => return Err(Error::internal()),
        }
    }
    if let Some(strategy) = strategy {
        match app.service.execute(Command::SetStrategy(strategy)).await? {
            Reply::StrategySet(set) => set.map_err(|e| Error::unprocessable(e.to_string()))?,
            _ => return Err(Error::internal()),
        }
    }
    scheduler_response(&app, &caller).await
}

/// A strategy as a name, or as an object with parameters.
pub(crate) fn strategy(raw: &RawValue) -> Result<Strategy, Error> {
    let refused =
        |error: &dyn std::fmt::Display| Error::unprocessable(format!("strategy: {error}"));
    let strategy = match serde_json::from_str::<String>(raw.get()) {
        Ok(name) => name.parse::<Strategy>().map_err(|error| refused(&error))?,
        Err(_) => json::parse(raw.get().as_bytes()).map_err(|error| refused(&error.message))?,
    };
    strategy.validate().map_err(|error| refused(&error))?;
    Ok(strategy)
}

fn mode(text: &str) -> Result<Mode, Error> {
    text.parse().map_err(|error| Error::unprocessable(format!("predictor_mode: {error}")))
}

async fn scheduler_response(app: &AppState, caller: &Caller) -> Result<Response, Error> {
    let workers = parts::read_workers(&*app.service, |_, view, _| view).await;
    let mut body = None;
    app.service.read(&mut |scheduler, _| {
        body = Some(SchedulerBody::of(scheduler, &workers, app.settings.version));
    });
    let mut body = body.ok_or_else(Error::internal)?;
    if let Some(own) = caller.visible_tenant() {
        body.tenants.retain(|view| view.tenant == own);
    }
    Ok(response::json(StatusCode::OK, &body))
}

impl SchedulerBody {
    fn of(scheduler: &Scheduler, workers: &[WorkerView], version: &'static str) -> SchedulerBody {
        let (strategy, statistics) = scheduler.strategy();
        let running = workers.iter().map(|it| it.running as usize).sum();
        let performance = workers.iter().map(|it| (it.worker.id, HealthBody::of(&it.health)));
        SchedulerBody {
            id: scheduler.id(),
            version,
            epoch: scheduler.epoch().0,
            strategy: *strategy,
            strategies: Strategy::all().iter().map(Strategy::name).collect(),
            predictor_mode: scheduler.mode().as_str(),
            statistics: StatisticsBody {
                counts: *statistics,
                worker_performance: performance.collect(),
            },
            counts: *scheduler.counts(),
            tasks: TaskCounts {
                open: scheduler.open_tasks(),
                queued: scheduler.queued_tasks(running),
                waiting: scheduler.waiting_tasks(),
            },
            workers: WorkerCounts {
                known: workers.len(),
                available: workers.iter().filter(|it| it.available).count(),
            },
            resources: ResourcesBody::of(workers.iter().filter(|it| it.available)),
            tenants: scheduler.tenants(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_strategy_is_a_name_or_an_object() {
        let read = |text: &str| {
            let raw = serde_json::from_str::<&RawValue>(text).unwrap();
            strategy(raw).map_err(|error| (error.status.as_u16(), error.message))
        };
        assert_eq!(read("\"fifo\""), Ok(Strategy::Fifo));
        assert_eq!(read("\"round-robin\""), Ok(Strategy::RoundRobin));
        assert_eq!(
            read(r#"{"name":"weighted","weight":2}"#),
            Ok(Strategy::Weighted { weight: 2.0 })
        );
        assert_eq!(read(r#"{"name":"round-robin"}"#), Ok(Strategy::RoundRobin));
        for bad in [
            "\"best\"",
            "7",
            "{}",
            r#"{"name":"weighted","weight":-1}"#,
            "null",
            "[]",
            r#"{"name":"weighted","wieght":1}"#,
        ] {
            let (status, message) = read(bad).unwrap_err();
            assert_eq!(status, 422, "{bad}");
            assert!(message.starts_with("strategy: "), "{message}");
        }
    }
}
