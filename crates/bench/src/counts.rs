//! What a scheduler says of itself, over HTTP as for anybody.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::lab::Process;
use crate::wire::{Wire, request};

/// How often a scheduler is asked whether something has come about.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// What `/api/v1/scheduler` tells of its tasks and workers.
#[derive(Deserialize)]
pub(crate) struct Counts {
    pub(crate) counts: Ended,
    pub(crate) tasks: Tasks,
    pub(crate) workers: Workers,
}

#[derive(Deserialize)]
pub(crate) struct Ended {
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

/// Somebody who asks.
pub(crate) struct Asker {
    wire: Wire,
}

impl Asker {
    pub(crate) async fn connect(api: SocketAddr) -> anyhow::Result<Asker> {
        let wire = Wire::connect(api).await.context("cannot connect to the scheduler")?;
        Ok(Asker { wire })
    }

    pub(crate) async fn get<T: DeserializeOwned>(&mut self, path: &str) -> anyhow::Result<T> {
        let body = self.bytes(path).await?;
        serde_json::from_slice(&body)
            .with_context(|| format!("GET {path} was answered: {}", shorten(&body)))
    }

    async fn bytes(&mut self, path: &str) -> anyhow::Result<Vec<u8>> {
        let answer = self.wire.ask(&request("GET", path, b"")).await;
        let answer = answer.context("the scheduler does not answer")?;
        let (status, body) = (self.wire.status(), self.wire.body(&answer));
        ensure!(status == 200, "GET {path} was answered with {status}: {}", shorten(body));
        Ok(body.to_vec())
    }

    pub(crate) async fn counts(&mut self) -> anyhow::Result<Counts> {
        self.get("/api/v1/scheduler").await
    }

    /// How many tasks have completed durably. [`Counts`] are ahead of that by what is being committed.
    pub(crate) async fn durably_completed(&mut self) -> anyhow::Result<u64> {
        let text = self.bytes("/metrics").await?;
        durably_completed(&String::from_utf8_lossy(&text))
            .context("/metrics lack the latency of tasks")
    }
}

/// The number of latencies that were observed: each when its task's end was committed.
fn durably_completed(metrics: &str) -> Option<u64> {
    let prefix = "hypha_scheduler_task_latency_seconds_count ";
    metrics.lines().find_map(|line| line.strip_prefix(prefix)?.trim().parse().ok())
}

fn shorten(body: &[u8]) -> String {
    String::from_utf8_lossy(body).chars().take(MAX_SHOWN).collect()
}

/// As much of an answer as fits a line of complaint.
const MAX_SHOWN: usize = 300;

/// Waits until the scheduler is ready and its counts are as wanted, for up to `patience`.
pub(crate) async fn wait_until(
    api: SocketAddr,
    scheduler: &mut Process,
    patience: Duration,
    what: &str,
    wanted: impl Fn(&Counts) -> bool,
) -> anyhow::Result<()> {
    let until = Instant::now() + patience;
    loop {
        scheduler.check()?;
        if let Ok(counts) = look(api).await
            && wanted(&counts)
        {
            return Ok(());
        }
        let said = scheduler.tail();
        ensure!(
            Instant::now() < until,
            "not {what} after {patience:?}; the scheduler says: {said}"
        );
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

async fn look(api: SocketAddr) -> anyhow::Result<Counts> {
    let mut asker = Asker::connect(api).await?;
    let _: serde_json::Value = asker.get("/readyz").await?;
    asker.counts().await
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
