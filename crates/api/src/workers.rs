//! `/api/v1/workers`: workers in use, their statistics, removed workers, and back ends as further workers.

mod removed;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::{delete, get};
use hypha_engine::scheduler::{LeaseView, Unavailability};
use hypha_engine::{Command, Reply, Scheduler};
use hypha_model::ledger::Utilisation;
use hypha_model::{Capacity, Executor, Name, Time, Worker, WorkerId};
use hypha_placement::{Health, WorkerView};
use serde::{Deserialize, Serialize};
use utoipa::{OpenApi, ToSchema};

use crate::app_state::AppState;
use crate::caller::Caller;
use crate::error::Error;
use crate::json::Json;
use crate::params::{NoParams, QueryParams, WorkerPath};
use crate::parts;
use crate::response;
use crate::service::{NewBackEnd, RegisterError};
use crate::timestamp::Timestamp;
use crate::unavailability;
use removed::RemovedBody;

/// Requests that a back end gets at once by default: as many as one GPU with batching takes without slowing
/// down much.
const DEFAULT_CONCURRENCY: u32 = 8;
/// More than any back end accepts at once.
const MAX_CONCURRENCY: u32 = 65_536;
/// Models of one server.
const MAX_MODELS: usize = 1_000;
/// Longer than any address or key.
const MAX_TEXT: usize = 4_096;

/// The routes.
pub(crate) fn routes() -> Router<AppState> {
    Router::new()
        .route("/api/v1/workers", get(list).post(register))
        .route("/api/v1/workers/{id}", delete(drain).put(readmit))
}

/// The schemas of the routes.
pub(crate) fn openapi() -> utoipa::openapi::OpenApi {
    #[derive(OpenApi)]
    #[openapi(
        paths(list, register, drain, readmit),
        tags((name = "workers", description = "Machines that run tasks"))
    )]
    struct Document;
    Document::openapi()
}

/// All workers.
#[derive(Serialize, ToSchema)]
#[schema(as = Workers)]
pub(crate) struct WorkersBody {
    /// Workers in use, and draining workers.
    workers: Vec<WorkerBody>,
    /// Workers that were removed and not readmitted, the latest first.
    removed: Vec<RemovedBody>,
}

/// A worker.
#[derive(Serialize, ToSchema)]
#[schema(as = Worker)]
pub(crate) struct WorkerBody {
    #[schema(value_type = String, format = "uuid")]
    id: WorkerId,
    /// The name in its certificate, where it is known; for a back end its host and port.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// `available`, `busy` (it runs as much as it can at once) or `unavailable` (not leased, failing, being drained).
    status: &'static str,
    /// Why it is not available.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// When it was removed, if it is draining.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    removed_at: Option<Timestamp>,
    /// The models that it serves; none if it accepts any.
    #[schema(value_type = Vec<String>)]
    models: Vec<Name>,
    executors: Vec<ExecutorBody>,
    capacity: CapacityBody,
    health: HealthBody,
    /// The measured round trip.
    rtt_ms: f64,
    /// Tasks queued for it, at the scheduler or at the worker.
    queued: u32,
    /// Tasks that are running.
    running: u32,
    /// How long a new task is expected to wait for it.
    waiting_ms: f64,
    /// The standard deviation of that.
    waiting_error_ms: f64,
    #[schema(value_type = Option<String>, required)]
    region: Option<Name>,
    #[schema(value_type = Option<String>, required)]
    hardware: Option<Name>,
    /// The price of an hour.
    price: f64,
    /// Run time relative to its hardware: 2 is twice as slow.
    slowness: f64,
    /// The booked share of each resource, from 0 to 1.
    #[schema(value_type = Object)]
    utilisation: Utilisation,
    /// The used share of its machine, as measured with the last heartbeat; none if it does not report that.
    #[schema(required)]
    usage: Option<UsageBody>,
    /// The lease that the scheduler holds on it.
    #[schema(required)]
    lease: Option<LeaseBody>,
}

/// An executor of a worker.
#[derive(Serialize, ToSchema)]
#[schema(as = Executor)]
pub(crate) struct ExecutorBody {
    class: String,
    #[schema(value_type = String)]
    name: Name,
    #[schema(value_type = Vec<String>)]
    models: Vec<Name>,
    concurrency: u32,
    /// Why it gets no tasks although its worker is available: it has failed too often in a row.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

/// The resources of a worker.
#[derive(Serialize, ToSchema)]
#[schema(as = Capacity)]
pub(crate) struct CapacityBody {
    cpu_cores: f64,
    memory_bytes: u64,
    storage_bytes: u64,
    gpus: Vec<GpuBody>,
}

/// A GPU.
#[derive(Serialize, ToSchema)]
#[schema(as = Gpu)]
pub(crate) struct GpuBody {
    #[schema(value_type = String)]
    model: Name,
    memory_bytes: u64,
    /// The offered share of it, up to 1.
    share: f64,
}

/// How much of a machine is in use, from 0 to 1, by whatever runs on it.
#[derive(Serialize, ToSchema)]
#[schema(as = Usage)]
pub(crate) struct UsageBody {
    cpu: f64,
    memory: f64,
}

/// Statistics of a worker.
#[derive(Serialize, ToSchema)]
#[schema(as = WorkerHealth)]
pub(crate) struct HealthBody {
    /// Moving share of attempts that succeeded.
    success_rate: f64,
    /// Moving average of run times, in seconds.
    avg_completion_time: f64,
    /// When it was last heard from.
    #[schema(value_type = Option<String>, format = DateTime, required)]
    last_seen: Option<Timestamp>,
    /// Failures since the last success.
    consecutive_failures: u32,
    /// Attempts that succeeded.
    completed: u64,
    /// Attempts that failed.
    failed: u64,
}

/// A lease.
#[derive(Serialize, ToSchema)]
#[schema(as = Lease)]
pub(crate) struct LeaseBody {
    id: String,
    epoch: u64,
    #[schema(value_type = String, format = DateTime)]
    until: Timestamp,
    /// The part of the worker that it covers, if other schedulers hold a part too; without it, all of the
    /// worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    portion: Option<PortionBody>,
}

/// A part of a worker.
#[derive(Serialize, ToSchema)]
#[schema(as = Portion)]
pub(crate) struct PortionBody {
    capacity: CapacityBody,
    /// How many tasks each executor runs at once for this scheduler, in the order of `executors`.
    slots: Vec<u32>,
}

/// A back end that serves some models.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewBackEnd)]
pub(crate) struct BackEndForm {
    /// Its base address.
    #[schema(example = "http://127.0.0.1:8000", max_length = 4096)]
    url: String,
    /// The models that it serves; if empty, the back end is queried for them.
    #[serde(default)]
    #[schema(value_type = Vec<String>)]
    models: Vec<Name>,
    /// `openai` if it speaks that protocol, `json` if it accepts any JSON.
    #[serde(default)]
    format: Format,
    /// How many requests it gets at once.
    #[serde(default = "default_concurrency")]
    #[schema(minimum = 1, maximum = 65_536)]
    concurrency: u32,
    /// The bearer token that it requires.
    #[schema(max_length = 4096)]
    api_key: Option<String>,
}

/// The protocol of a back end.
#[derive(Clone, Copy, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Format {
    #[default]
    Openai,
    Json,
}

/// A registered worker.
#[derive(Serialize, ToSchema)]
#[schema(as = WorkerRegistered)]
pub(crate) struct RegisteredBody {
    #[schema(value_type = String, format = "uuid")]
    id: WorkerId,
}

/// A draining worker.
#[derive(Serialize, ToSchema)]
#[schema(as = WorkerDraining)]
pub(crate) struct DrainingBody {
    #[schema(value_type = String, format = "uuid")]
    id: WorkerId,
    /// `draining`
    status: &'static str,
}

fn default_concurrency() -> u32 {
    DEFAULT_CONCURRENCY
}

/// All workers with their resources, their statistics and the expected wait of a new task; and removed
/// workers.
#[utoipa::path(
    get, path = "/api/v1/workers", tag = "workers",
    responses(
        (status = 200, description = "All workers", body = WorkersBody),
        (status = 400, description = "This route takes no parameters", body = crate::error::ErrorBody),
    )
)]
async fn list(State(app): State<AppState>, caller: Caller, _: QueryParams<NoParams>) -> Response {
    let look = |scheduler: &Scheduler, view: WorkerView, lease: Option<LeaseView>| {
        let id = view.worker.id;
        let executors = 0..view.worker.executors.len();
        WorkerSnapshot {
            reason: scheduler.unavailability_of(id, None),
            executor_reasons: executors
                .map(|at| scheduler.executor_unavailability_of(id, at))
                .collect(),
            removed_at: scheduler.removed_at(id),
            view,
            lease,
        }
    };
    let snapshots = parts::read_workers(&*app.service, look).await;
    let mut removed = Vec::new();
    app.service.read(&mut |scheduler, _| removed = scheduler.removed_workers());
    let name = |id| app.service.worker_name(id);
    let workers = snapshots.into_iter().map(|snapshot| snapshot.body(&name, &caller)).collect();
    let removed = removed.into_iter().map(|view| RemovedBody::of(&view, name(view.id))).collect();
    response::json(StatusCode::OK, &WorkersBody { workers, removed })
}

/// A worker as the scheduler sees it; converted into its body after the scheduler's lock is released.
struct WorkerSnapshot {
    view: WorkerView,
    lease: Option<LeaseView>,
    reason: Option<Unavailability>,
    executor_reasons: Vec<Option<Unavailability>>,
    removed_at: Option<Time>,
}

impl WorkerSnapshot {
    fn body(self, name: &dyn Fn(WorkerId) -> Option<String>, caller: &Caller) -> WorkerBody {
        let describe = |reason: &Unavailability| unavailability::describe(reason, caller);
        let mut body = WorkerBody::of(&self.view, self.lease);
        body.name = name(body.id);
        body.reason = self.reason.as_ref().map(describe);
        body.removed_at = self.removed_at.map(Timestamp);
        for (executor, reason) in body.executors.iter_mut().zip(self.executor_reasons) {
            executor.reason = reason.as_ref().map(describe);
        }
        body
    }
}

/// Registers a back end as a worker, once it has answered.
#[utoipa::path(
    post, path = "/api/v1/workers", tag = "workers", request_body = BackEndForm,
    responses(
        (status = 201, description = "It is registered, or was before", body = RegisteredBody),
        (status = 413, description = "The body is too large", body = crate::error::ErrorBody),
        (status = 415, description = "The body is not JSON", body = crate::error::ErrorBody),
        (status = 422, description = "The registration is invalid, or no healthy back end answers", body = crate::error::ErrorBody),
    )
)]
async fn register(
    State(app): State<AppState>,
    caller: Caller,
    Json(form): Json<BackEndForm>,
) -> Result<Response, Error> {
    caller.require_admin()?;
    let id = app.service.register_back_end(form.read()?).await.map_err(register_error)?;
    Ok(response::json(StatusCode::CREATED, &RegisteredBody { id }))
}

/// Drains a worker: it gets no new tasks, and is removed when its tasks have ended.
#[utoipa::path(
    delete, path = "/api/v1/workers/{id}", tag = "workers",
    params(("id" = String, Path, format = "uuid", description = "The worker")),
    responses(
        (status = 200, description = "It is draining", body = DrainingBody),
        (status = 404, description = "There is no such worker, or it is already removed", body = crate::error::ErrorBody),
    )
)]
async fn drain(
    State(app): State<AppState>,
    caller: Caller,
    WorkerPath(id): WorkerPath,
) -> Result<Response, Error> {
    caller.require_admin()?;
    match app.service.execute(Command::RemoveWorker(id)).await? {
        Reply::WorkerRemoved(true) => {
            Ok(response::json(StatusCode::OK, &DrainingBody { id, status: "draining" }))
        }
        Reply::WorkerRemoved(false) => Err(not_found_error(&app, id)),
        _ => Err(Error::internal()),
    }
}

/// Why there is nothing to drain.
fn not_found_error(app: &AppState, id: WorkerId) -> Error {
    let mut gone = None;
    app.service.read(&mut |scheduler, _| gone = scheduler.removed_at(id));
    Error::not_found(match gone {
        Some(at) => format!(
            "worker {id} was removed at {}; PUT /api/v1/workers/{id} readmits it",
            Timestamp(at)
        ),
        None => format!("there is no worker {id}"),
    })
}

/// Readmits a removed worker.
#[utoipa::path(
    put, path = "/api/v1/workers/{id}", tag = "workers",
    params(("id" = String, Path, format = "uuid", description = "The worker")),
    responses(
        (status = 200, description = "It is readmitted, and used as soon as it is available", body = RegisteredBody),
        (status = 404, description = "No such worker was removed", body = crate::error::ErrorBody),
    )
)]
async fn readmit(
    State(app): State<AppState>,
    caller: Caller,
    WorkerPath(id): WorkerPath,
) -> Result<Response, Error> {
    caller.require_admin()?;
    match app.service.execute(Command::ReadmitWorker(id)).await? {
        Reply::WorkerReadmitted(true) => Ok(response::json(StatusCode::OK, &RegisteredBody { id })),
        Reply::WorkerReadmitted(false) => {
            Err(Error::not_found(format!("no worker {id} was removed")))
        }
        _ => Err(Error::internal()),
    }
}

impl BackEndForm {
    fn read(self) -> Result<NewBackEnd, Error> {
        let refuse = |problem: String| Err(Error::unprocessable(problem));
        if self.url.len() > MAX_TEXT || self.api_key.as_ref().is_some_and(|k| k.len() > MAX_TEXT) {
            return refuse(format!("url and api_key must not exceed {MAX_TEXT} bytes"));
        }
        if !(1..=MAX_CONCURRENCY).contains(&self.concurrency) {
            return refuse(format!("concurrency: give 1 to {MAX_CONCURRENCY}"));
        }
        if self.models.len() > MAX_MODELS {
            return refuse(format!("models: at most {MAX_MODELS} are accepted"));
        }
        Ok(NewBackEnd {
            url: self.url,
            models: self.models,
            openai: self.format == Format::Openai,
            concurrency: self.concurrency,
            api_key: self.api_key,
        })
    }
}

fn register_error(error: RegisterError) -> Error {
    match error {
        RegisterError::NotAllowed(_) => Error::forbidden(error.to_string()),
        RegisterError::Invalid(problem) => Error::unprocessable(problem),
        // The client named it, so it is the client's error: a 5xx status would mean a fault of the scheduler.
        RegisterError::Unhealthy(problem) => {
            Error::new(StatusCode::UNPROCESSABLE_ENTITY, "unhealthy", problem)
        }
        RegisterError::Unavailable(unavailable) => unavailable.into(),
    }
}

impl WorkerBody {
    fn of(view: &WorkerView, lease: Option<LeaseView>) -> WorkerBody {
        let worker = &view.worker;
        WorkerBody {
            id: worker.id,
            name: None,
            reason: None,
            removed_at: None,
            status: match view.available {
                false => "unavailable",
                true if view.in_flight >= view.slots => "busy",
                true => "available",
            },
            models: models(worker),
            executors: worker.executors.iter().map(ExecutorBody::of).collect(),
            capacity: CapacityBody::of(&worker.capacity),
            health: HealthBody::of(&view.health),
            rtt_ms: view.rtt.as_millis_f64(),
            queued: view.queued + view.in_flight.saturating_sub(view.running),
            running: view.running,
            waiting_ms: view.waiting_mean_s * 1e3,
            waiting_error_ms: view.waiting_error_s * 1e3,
            region: worker.region.clone(),
            hardware: worker.hardware.clone(),
            price: worker.price.as_f64(),
            slowness: view.factor,
            utilisation: view.utilisation,
            usage: view.usage.map(|usage| UsageBody {
                cpu: f64::from(usage.cpu_permille) / 1e3,
                memory: f64::from(usage.memory_permille) / 1e3,
            }),
            lease: lease.map(|lease| LeaseBody {
                id: lease.lease.to_string(),
                epoch: lease.epoch.0,
                until: Timestamp(lease.until),
                portion: lease.portion.map(|portion| PortionBody {
                    capacity: CapacityBody::of(&portion.capacity(worker)),
                    slots: portion.slots.clone(),
                }),
            }),
        }
    }
}

/// The models that a worker serves; none if it accepts any.
fn models(worker: &Worker) -> Vec<Name> {
    if worker.executors.iter().any(|executor| executor.models.is_empty()) {
        return Vec::new();
    }
    let mut models: Vec<Name> = worker.executors.iter().flat_map(|it| it.models.clone()).collect();
    models.sort();
    models.dedup();
    models
}

impl ExecutorBody {
    fn of(executor: &Executor) -> ExecutorBody {
        ExecutorBody {
            class: executor.class.to_string(),
            name: executor.name.clone(),
            models: executor.models.clone(),
            concurrency: executor.concurrency,
            reason: None,
        }
    }
}

impl CapacityBody {
    fn of(capacity: &Capacity) -> CapacityBody {
        let gpus = capacity.devices.iter().map(|device| GpuBody {
            model: device.model.clone(),
            memory_bytes: device.memory_bytes,
            share: f64::from(device.milli_gpu) / 1_000.0,
        });
        CapacityBody {
            cpu_cores: capacity.cpu_milli as f64 / 1_000.0,
            memory_bytes: capacity.memory_bytes,
            storage_bytes: capacity.storage_bytes,
            gpus: gpus.collect(),
        }
    }
}

impl HealthBody {
    pub(crate) fn of(health: &Health) -> HealthBody {
        let seen = health.last_seen;
        HealthBody {
            success_rate: health.success_rate,
            avg_completion_time: health.avg_completion_time.as_secs_f64(),
            last_seen: (seen > hypha_model::Time::ZERO).then_some(Timestamp(seen)),
            consecutive_failures: health.consecutive_failures,
            completed: health.completed,
            failed: health.failed,
        }
    }
}
