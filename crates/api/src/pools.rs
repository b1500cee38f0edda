//! `/api/v1/pools`: the workers that are leased for tasks at a price.

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::get;
use hypha_engine::scheduler::PoolView;
use hypha_model::{ExecutorClass, WorkerId};
use serde::Serialize;
use utoipa::{OpenApi, ToSchema};

use crate::app_state::AppState;
use crate::caller::Caller;
use crate::error::Error;
use crate::response;

/// The routes.
pub(crate) fn routes() -> Router<AppState> {
    Router::new().route("/api/v1/pools", get(show))
}

/// The schemas of the routes.
pub(crate) fn openapi() -> utoipa::openapi::OpenApi {
    #[derive(OpenApi)]
    #[openapi(paths(show))]
    struct Document;
    Document::openapi()
}

/// The pool.
#[derive(Serialize, ToSchema)]
#[schema(as = Pools)]
pub(crate) struct PoolsBody {
    /// The pool as a whole, then for each kind of task that waits. Empty if the scheduler has no pool: then every worker
    /// that is found is used, at no price.
    pools: Vec<PoolBody>,
}

/// The pool, or the part of it that could run one kind of task.
#[derive(Serialize, ToSchema)]
#[schema(as = Pool)]
pub(crate) struct PoolBody {
    /// The class of the executors; absent for the pool as a whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    class: Option<ExecutorClass>,
    /// The executor that the tasks name.
    #[serde(skip_serializing_if = "Option::is_none")]
    executor: Option<String>,
    /// The model that the tasks name.
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<String>,
    /// The workers of the pool that could run it.
    #[schema(value_type = Vec<String>)]
    workers: Vec<WorkerId>,
    /// What an hour of them costs.
    price_per_hour: f64,
    /// Tasks in the queue.
    waiting: u64,
    /// How long the last of them is predicted to wait, in seconds; null if no worker of the pool could run them.
    #[schema(required)]
    predicted_wait: Option<f64>,
    /// Whether more workers are being leased.
    is_growing: bool,
}

impl From<PoolView> for PoolBody {
    fn from(view: PoolView) -> PoolBody {
        let kind = view.kind.as_ref();
        PoolBody {
            class: kind.map(|kind| kind.class),
            executor: kind.and_then(|kind| kind.executor.as_ref()).map(ToString::to_string),
            model: kind.and_then(|kind| kind.model.as_ref()).map(ToString::to_string),
            workers: view.workers,
            price_per_hour: view.price.as_f64(),
            waiting: view.waiting,
            predicted_wait: view.predicted_wait.map(hypha_model::Span::as_secs_f64),
            is_growing: view.is_growing,
        }
    }
}

/// The workers that are leased for tasks at a price
#[utoipa::path(
    get,
    path = "/api/v1/pools",
    tag = "market",
    responses((status = 200, description = "the pool", body = PoolsBody))
)]
async fn show(State(app): State<AppState>, caller: Caller) -> Result<Response, Error> {
    let _ = caller;
    let mut views = Vec::new();
    app.service.read(&mut |scheduler, now| views = scheduler.pools(now));
    let pools = views.into_iter().map(PoolBody::from).collect();
    Ok(response::json(StatusCode::OK, &PoolsBody { pools }))
}
