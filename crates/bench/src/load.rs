//! The load generator: connections that each repeat a request as soon as its response arrives. It is the same for every
//! target, and runs on one thread.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use tokio::task::JoinSet;

use crate::histogram::Histogram;
use crate::http::HttpConnection;

/// A server under load, and the request to send.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) name: &'static str,
    pub(crate) address: SocketAddr,
    pub(crate) request: Arc<[u8]>,
}

/// The result of a load.
#[derive(Default)]
pub(crate) struct LoadResult {
    pub(crate) times: Histogram,
    pub(crate) elapsed: Duration,
}

/// When to stop.
#[derive(Clone, Copy)]
pub(crate) enum Until {
    Elapsed(Duration),
    /// After so many requests of each connection.
    Count(u64),
}

impl LoadResult {
    pub(crate) fn rate(&self) -> f64 {
        self.times.count() as f64 / self.elapsed.as_secs_f64()
    }
}

/// Loads `target`. Any response without a success status fails the measurement.
pub(crate) async fn run(
    target: &Target,
    connections: usize,
    until: Until,
) -> anyhow::Result<LoadResult> {
    let mut connected = Vec::with_capacity(connections);
    for _ in 0..connections {
        let connection = HttpConnection::connect(target.address).await;
        connected.push(connection.with_context(|| format!("cannot connect to {}", target.name))?);
    }
    let began = Instant::now();
    let mut running = JoinSet::new();
    for connection in connected {
        running.spawn(repeat(connection, target.request.clone(), began, until));
    }
    let mut done = LoadResult::default();
    while let Some(ended) = running.join_next().await {
        let times = ended.context("a connection was lost")?;
        done.times.merge(&times.with_context(|| format!("{} failed", target.name))?);
    }
    done.elapsed = began.elapsed();
    Ok(done)
}

async fn repeat(
    mut connection: HttpConnection,
    request: Arc<[u8]>,
    began: Instant,
    until: Until,
) -> anyhow::Result<Histogram> {
    let mut times = Histogram::default();
    let mut sent = began;
    let on = |now: Instant, count: u64| match until {
        Until::Elapsed(time) => now - began < time,
        Until::Count(most) => count < most,
    };
    while on(sent, times.count()) {
        let response = connection.exchange(&request).await?;
        let status = connection.status();
        ensure!(
            (200..300).contains(&status),
            "it returned {status}: {}",
            String::from_utf8_lossy(connection.body(&response))
                .chars()
                .take(300)
                .collect::<String>()
        );
        let now = Instant::now();
        times.add(now - sent);
        sent = now;
    }
    Ok(times)
}
