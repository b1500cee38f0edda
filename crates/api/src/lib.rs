//! The HTTP surfaces of a scheduler and a worker: own types for each surface, one set of commands below them.

mod admission;
mod backend;
mod body;
mod caller;
mod document;
mod error;
mod health;
mod instance;
mod instances;
mod json;
mod lanes;
mod object;
mod openai;
mod params;
mod parts;
mod reply;
mod scheduler;
mod serve;
mod settings;
mod stamp;
mod surface;
mod tasks;
mod tokens;
mod unused;
mod watch;
mod workers;

use axum::Router;

pub use backend::{
    Accepted, Answer, Backend, NewServer, Object, ObjectError, ReadingObject, RegisterError,
    Registering, Unavailable,
};
pub use caller::Role;
pub use instance::{
    Enqueue, Enqueued, Instance, InstanceHealth, InstanceResult, InstanceSettings, InstanceStage,
    InstanceStatus, Refused, serve_instance,
};
pub use serve::{ServeError, serve};
pub use settings::{Settings, TlsFiles};
pub use tokens::{NewToken, TOKEN_PREFIX, Tokens, TokensError};
pub use watch::{Watch, Watched, watch};

use surface::Surface;

/// All routes of a scheduler, without the door: see [`admission::admit`].
fn routes(surface: Surface) -> Router {
    Router::new()
        .merge(tasks::routes())
        .merge(workers::routes())
        .merge(scheduler::routes())
        .merge(health::routes())
        .merge(instances::routes())
        .merge(openai::routes())
        .fallback(error::no_such_route)
        .method_not_allowed_fallback(error::no_such_method)
        .with_state(surface)
}
