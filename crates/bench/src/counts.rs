//! Reads a scheduler's counters over its HTTP API.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::http::{HttpConnection, request};
use crate::lab::Process;

/// How often the scheduler is polled for a condition.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The tasks and workers in the response of `/api/v1/scheduler`.
#[derive(Deserialize)]
pub(crate) struct Counts {
    pub(crate) counts: EndedCounts,
    pub(crate) tasks: Tasks,
    pub(crate) workers: Workers,
}

#[derive(Deserialize)]
pub(crate) struct EndedCounts {
    pub(crate) submitted: u64,
    pub(crate) completed: u64,
    pub(crate) failed: u64,
}

#[derive(Deserialize)]
pub(crate) struct Tasks {
    pub(crate) open: u64,
}

#[derive(Deserialize)]
pub(crate) struct Workers {
    pub(crate) available: usize,
}

/// A client of the scheduler's API.
pub(crate) struct ApiClient {
    connection: HttpConnection,
}

impl ApiClient {
    pub(crate) async fn connect(api: SocketAddr) -> anyhow::Result<ApiClient> {
        let connection =
            HttpConnection::connect(api).await.context("cannot connect to the scheduler")?;
        Ok(ApiClient { connection })
    }

    pub(crate) async fn get<T: DeserializeOwned>(&mut self, path: &str) -> anyhow::Result<T> {
        let body = self.bytes(path).await?;
        serde_json::from_slice(&body)
            .with_context(|| format!("GET {path} returned: {}", shorten(&body)))
    }

    async fn bytes(&mut self, path: &str) -> anyhow::Result<Vec<u8>> {
        let response = self.connection.exchange(&request("GET", path, b"")).await;
        let response = response.context("the scheduler does not respond")?;
        let (status, body) = (self.connection.status(), self.connection.body(&response));
        ensure!(status == 200, "GET {path} returned {status}: {}", shorten(body));
        Ok(body.to_vec())
    }

    pub(crate) async fn counts(&mut self) -> anyhow::Result<Counts> {
        self.get("/api/v1/scheduler").await
    }

    /// How many tasks have completed durably. [`Counts`] also include tasks whose end is being committed.
    pub(crate) async fn durably_completed(&mut self) -> anyhow::Result<u64> {
        let text = self.bytes("/metrics").await?;
        durably_completed(&String::from_utf8_lossy(&text))
            .context("/metrics has no latency of tasks")
    }
}

/// The number of observed latencies: each is observed when the end of its task is committed.
fn durably_completed(metrics: &str) -> Option<u64> {
    let prefix = "hypha_scheduler_task_latency_seconds_count ";
    metrics.lines().find_map(|line| line.strip_prefix(prefix)?.trim().parse().ok())
}

fn shorten(body: &[u8]) -> String {
    String::from_utf8_lossy(body).chars().take(MAX_SHOWN).collect()
}

/// The part of a response that an error message includes.
const MAX_SHOWN: usize = 300;

/// Waits until the scheduler is ready and its counts satisfy `wanted`, for up to `timeout`.
pub(crate) async fn wait_until(
    api: SocketAddr,
    scheduler: &mut Process,
    timeout: Duration,
    what: &str,
    wanted: impl Fn(&Counts) -> bool,
) -> anyhow::Result<()> {
    let until = Instant::now() + timeout;
    loop {
        scheduler.check()?;
        if let Ok(counts) = look(api).await
            && wanted(&counts)
        {
            return Ok(());
        }
        let log = scheduler.tail();
        ensure!(Instant::now() < until, "not {what} after {timeout:?}; the scheduler's log: {log}");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

async fn look(api: SocketAddr) -> anyhow::Result<Counts> {
    let mut client = ApiClient::connect(api).await?;
    let _: serde_json::Value = client.get("/readyz").await?;
    client.counts().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durable_completions_are_found_among_the_metrics() {
        let text = "# HELP x\nhypha_scheduler_task_latency_seconds_sum 1.5\n\
                    hypha_scheduler_task_latency_seconds_count 42\n";
        assert_eq!(durably_completed(text), Some(42));
        assert_eq!(durably_completed("x 1\n"), None);
    }
}
