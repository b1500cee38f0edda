//! A worker's own side of the task instance protocol, for schedulers that reach it over HTTP.

mod routes;
mod types;

use std::future::Future;
use std::sync::Arc;

use futures::future::BoxFuture;
use tokio::net::TcpListener;

use crate::admission::Admission;
use crate::reactors::ReactorPool;
use crate::serve::{AdmissionRouter, accept_connections};
use crate::settings::Settings;
use crate::tokens::Tokens;

pub use types::{
    EnqueueError, EnqueueRequest, EnqueueResponse, InstanceHealth, InstanceResult, InstanceStatus,
    InstanceTaskState,
};

/// A task instance, as its routes see it. The worker implements it; the tests have an implementation in
/// memory.
pub trait Instance: Send + Sync + 'static {
    /// Its status.
    fn status(&self) -> InstanceStatus;

    /// Takes a task into the queue; does not wait for it to run. If a task with this id is queued or running,
    /// that one stays and gets the new callback; if one has ended, it is run again.
    fn enqueue(
        &self,
        task: EnqueueRequest,
    ) -> BoxFuture<'static, Result<EnqueueResponse, EnqueueError>>;

    /// The result of a task; `None` if it is unknown.
    fn result(&self, id: &str) -> BoxFuture<'static, Option<InstanceResult>>;
}

/// Settings of a task instance's API.
#[derive(Debug)]
pub struct InstanceSettings {
    /// The largest body of a request.
    pub max_request_bytes: usize,
    /// Bytes of all bodies together that have begun to arrive and have not ended.
    pub max_buffered_bytes: usize,
    /// The accepted tokens; with `None`, every request is served that names a loopback host and
    /// comes from no page of another site.
    pub tokens: Option<Tokens>,
    /// Connections at a time; more wait to be accepted.
    pub max_connections: usize,
}

impl InstanceSettings {
    /// A few schedulers with some connections each.
    pub const DEFAULT_MAX_CONNECTIONS: usize = 256;
}

impl Default for InstanceSettings {
    fn default() -> InstanceSettings {
        InstanceSettings {
            max_request_bytes: Settings::DEFAULT_MAX_REQUEST_BYTES,
            max_buffered_bytes: Settings::DEFAULT_MAX_BUFFERED_BYTES,
            tokens: None,
            max_connections: InstanceSettings::DEFAULT_MAX_CONNECTIONS,
        }
    }
}

/// Serves a task instance on `listener` until `stop`; requests in flight then get ten seconds to end.
pub async fn serve_instance(
    settings: InstanceSettings,
    listener: TcpListener,
    instance: Arc<dyn Instance>,
    stop: impl Future<Output = ()>,
) {
    let max_connections = settings.max_connections;
    let router = routes::router(instance, settings);
    // Tokens, hosts and origins are checked behind the router, which has this surface's error format.
    let handler = AdmissionRouter { router, admit: |_: &mut _| Admission::Route };
    accept_connections(listener, None, (&ReactorPool::current(), max_connections), handler, stop)
        .await;
}
