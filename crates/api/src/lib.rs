//! The HTTP APIs of a scheduler and a worker: separate types for each surface, one set of commands below
//! them.

mod admission;
mod app_state;
mod body;
mod caller;
mod document;
mod error;
mod health;
mod instance;
mod instances;
mod jobs;
mod json;
mod market;
mod object;
mod openai;
mod params;
mod parts;
mod pools;
mod reactors;
mod resources;
mod response;
mod scheduler;
mod serve;
mod service;
mod settings;
mod tasks;
mod timestamp;
mod tokens;
mod unavailability;
mod watch;
mod web_access;
mod workers;

use axum::Router;

pub use caller::Role;
pub use instance::{
    EnqueueError, EnqueueRequest, EnqueueResponse, Instance, InstanceHealth, InstanceResult,
    InstanceSettings, InstanceStatus, InstanceTaskState, serve_instance,
};
pub use serve::{ServeError, ServingThreads, serve};
pub use service::{
    JobChanges, NewBackEnd, Object, ObjectError, ObjectFuture, RegisterError, RegisterFuture,
    SchedulerApi, ServiceFuture, ServiceUnavailable, SubmitResult,
};
pub use settings::{Settings, TlsFiles};
pub use tokens::{NewToken, TOKEN_PREFIX, Tokens, TokensError};
pub use watch::{Watch, WatchSender, watch_channel};
pub use web_access::WebAccess;

use app_state::AppState;

/// All routes of a scheduler, without admission: see [`admission::admit`].
fn routes(app: AppState) -> Router {
    Router::new()
        .merge(tasks::routes())
        .merge(jobs::routes())
        .merge(market::routes())
        .merge(pools::routes())
        .merge(workers::routes())
        .merge(scheduler::routes())
        .merge(health::routes())
        .merge(instances::routes())
        .merge(openai::routes())
        .fallback(error::no_such_route)
        .method_not_allowed_fallback(error::no_such_method)
        .with_state(app)
}
