//! The status of a node over HTTP: `/metrics`, `/healthz`, `/readyz` and `/peers`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use hypha_config::ObserveConfig;
use hypha_model::NodeRole;
use hypha_net::{Multiaddr, Net};
use hypha_telemetry::Metrics;
use hypha_wire::request::{Health, MAX_NOTES};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::NodeError;

pub(crate) struct Status {
    role: NodeRole,
    version: &'static str,
    since: Instant,
    net: Net,
    metrics: Metrics,
    needs_gateway: bool,
    gateways: Mutex<BTreeMap<String, bool>>,
    /// Problems that the role of the node reports.
    extra_problems: OnceLock<Box<dyn Fn() -> Vec<String> + Send + Sync>>,
    /// What the operator should know, although the node is ready.
    notes: OnceLock<Vec<String>>,
}

impl Status {
    pub(crate) fn new(
        role: NodeRole,
        version: &'static str,
        net: Net,
        metrics: Metrics,
        needs_gateway: bool,
    ) -> Status {
        let since = Instant::now();
        Status {
            role,
            version,
            since,
            net,
            metrics,
            needs_gateway,
            gateways: Mutex::default(),
            extra_problems: OnceLock::new(),
            notes: OnceLock::new(),
        }
    }

    /// Adds the problems that the role of the node reports. Only the first call has an effect.
    pub(crate) fn set_extra_problems(
        &self,
        problems: impl Fn() -> Vec<String> + Send + Sync + 'static,
    ) {
        let _ = self.extra_problems.set(Box::new(problems));
    }

    /// Sets what the operator should know although the node is ready. Only the first call has an effect.
    pub(crate) fn set_notes(&self, notes: Vec<String>) {
        let _ = self.notes.set(notes);
    }

    /// Records whether a gateway is connected.
    pub(crate) fn set_gateway_connected(&self, address: Multiaddr, connected: bool) {
        let mut gateways = self.gateways.lock().unwrap_or_else(PoisonError::into_inner);
        gateways.insert(address.to_string(), connected);
    }

    pub(crate) async fn health(&self) -> Health {
        let problems = self.problems();
        Health {
            role: self.role.to_string(),
            version: self.version.to_owned(),
            uptime_ms: u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX),
            peers: u32::try_from(self.net.peers().await.len()).unwrap_or(u32::MAX),
            ready: problems.is_empty(),
            problems,
            notes: self.notes.get().into_iter().flatten().take(MAX_NOTES).cloned().collect(),
        }
    }

    fn problems(&self) -> Vec<String> {
        let gateways = self.gateways.lock().unwrap_or_else(PoisonError::into_inner);
        let mut problems =
            self.extra_problems.get().map(|extra_problems| extra_problems()).unwrap_or_default();
        if self.needs_gateway && !gateways.values().any(|connected| *connected) {
            problems.push("no gateway is connected".to_owned());
        }
        problems
    }
}

/// Starts to serve. If another node on this machine has taken the default port, any free one is used. A configured port
/// must be free.
pub(crate) async fn serve(status: Arc<Status>, observe: &ObserveConfig) -> Result<(), NodeError> {
    let wanted = observe.metrics_address;
    let listener = match TcpListener::bind(wanted).await {
        Ok(listener) => listener,
        Err(error) if observe.metrics_address_given => {
            return Err(NodeError::failed(format!(
                "cannot listen on metrics_address {wanted}: {error}; choose another, or port 0 for any"
            )));
        }
        Err(_) => TcpListener::bind((wanted.ip(), 0)).await.map_err(|error| {
            NodeError::failed(format!("cannot listen for metrics on {}: {error}", wanted.ip()))
        })?,
    };
    if let Ok(address) = listener.local_addr() {
        tracing::info!("metrics at http://{address}/metrics, peers at http://{address}/peers");
    }
    let router = Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(ready))
        .route("/peers", get(peers))
        .with_state(status);
    tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, router).await {
            tracing::error!("metrics are no longer served: {error}");
        }
    });
    Ok(())
}

async fn metrics(State(status): State<Arc<Status>>) -> Response {
    ([(header::CONTENT_TYPE, Metrics::CONTENT_TYPE)], status.metrics.encode()).into_response()
}

async fn ready(State(status): State<Arc<Status>>) -> Response {
    let health = status.health().await;
    let code = if health.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let mut body = json!({ "ready": health.ready, "problems": health.problems });
    if !health.notes.is_empty() {
        body["notes"] = json!(health.notes);
    }
    (code, Json(body)).into_response()
}

async fn peers(State(status): State<Arc<Status>>) -> Json<Value> {
    let mut peers = status.net.peers().await;
    peers.sort_by_key(|peer| (peer.role, peer.id));
    let shown = peers.iter().map(|peer| {
        json!({
            "peer": peer.id.to_string(),
            "role": peer.role,
            "organisation": peer.organisation,
            "link": peer.link.to_string(),
            "rtt_ms": peer.rtt.map(|rtt| rtt.as_secs_f64() * 1_000.0),
            "address": peer.address.to_string(),
        })
    });
    Json(Value::Array(shown.collect()))
}
