//! Submits many tasks, each with a distinct input, in batches over several connections.

use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Context, ensure};
use serde::Deserialize;
use serde_json::Value;
use tokio::task::JoinSet;

use crate::http::{HttpConnection, request};
use crate::submit::PATH;

/// The tasks to submit.
#[derive(Clone)]
pub(crate) struct Batches {
    pub(crate) api: SocketAddr,
    pub(crate) model: &'static str,
    pub(crate) tasks: u64,
    pub(crate) batch: u64,
    pub(crate) connections: usize,
}

/// A batch that was acknowledged.
pub(crate) struct AcknowledgedBatch {
    /// The number of its first task.
    pub(crate) first: u64,
    pub(crate) tasks: u64,
    pub(crate) at: Instant,
    /// The response, if it is kept.
    response: Option<Vec<u8>>,
}

/// Every so many batches, starting with the first, the response is kept and checked afterwards.
const KEEP_EVERY: u64 = 64;

#[derive(Deserialize)]
struct BatchResponse {
    tasks: Vec<Task>,
}

/// A task as the scheduler shows it.
#[derive(Deserialize)]
pub(crate) struct Task {
    pub(crate) id: String,
    #[serde(default)]
    pub(crate) status: String,
    #[serde(default)]
    pub(crate) result: Value,
    #[serde(default)]
    pub(crate) error: Value,
}

impl Batches {
    /// Submits them all, and returns when all are acknowledged.
    pub(crate) async fn submit(self) -> anyhow::Result<Vec<AcknowledgedBatch>> {
        let next = Arc::new(AtomicU64::new(0));
        let mut running = JoinSet::new();
        for _ in 0..self.connections {
            running.spawn(self.clone().feed(next.clone()));
        }
        let mut sent = Vec::new();
        while let Some(ended) = running.join_next().await {
            sent.extend(ended.context("a connection was lost")??);
        }
        sent.sort_by_key(|sent| sent.at);
        let tasks: u64 = sent.iter().map(|sent| sent.tasks).sum();
        ensure!(tasks == self.tasks, "{tasks} tasks were acknowledged, not {}", self.tasks);
        Ok(sent)
    }

    async fn feed(self, next: Arc<AtomicU64>) -> anyhow::Result<Vec<AcknowledgedBatch>> {
        let mut connection =
            HttpConnection::connect(self.api).await.context("cannot connect to the scheduler")?;
        let mut sent = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let first = number * self.batch;
            if first >= self.tasks {
                return Ok(sent);
            }
            let tasks = self.batch.min(self.tasks - first);
            let body = body(self.model, first, tasks);
            let response = connection.exchange(&request("POST", PATH, body.as_bytes())).await?;
            let (status, body) = (connection.status(), connection.body(&response));
            ensure!(
                status == 202 || status == 200,
                "a batch got the response {status}: {}",
                String::from_utf8_lossy(body).chars().take(300).collect::<String>()
            );
            let kept = number.is_multiple_of(KEEP_EVERY).then(|| body.to_vec());
            sent.push(AcknowledgedBatch { first, tasks, at: Instant::now(), response: kept });
        }
    }
}

impl AcknowledgedBatch {
    #[cfg(test)]
    pub(crate) fn at(at: Instant, tasks: u64) -> AcknowledgedBatch {
        AcknowledgedBatch { first: 0, tasks, at, response: None }
    }

    /// The number and the id of some of its tasks, if its response was kept.
    pub(crate) fn some_ids(&self) -> anyhow::Result<Vec<(u64, String)>> {
        let Some(response) = &self.response else { return Ok(Vec::new()) };
        let response: BatchResponse =
            serde_json::from_slice(response).context("not the response to a batch")?;
        ensure!(
            response.tasks.len() as u64 == self.tasks,
            "the response does not list all tasks of a batch"
        );
        let ids: Vec<_> =
            (self.first..).zip(response.tasks.into_iter().map(|task| task.id)).collect();
        // The first, the last, and one between.
        let places = [0, ids.len() / 2, ids.len().saturating_sub(1)];
        Ok(places.iter().filter_map(|place| ids.get(*place).cloned()).collect())
    }
}

/// An array of tasks whose inputs are their numbers.
fn body(model: &str, first: u64, tasks: u64) -> String {
    let mut body = String::with_capacity(64 * tasks as usize);
    for number in first..first + tasks {
        let before = if number == first { '[' } else { ',' };
        // Writing to a string does not fail.
        let _ = write!(body, r#"{before}{{"model":"{model}","input":{number}}}"#);
    }
    body + "]"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_an_array_of_numbered_tasks() {
        let tasks: Value = serde_json::from_str(&body("echo", 7, 3)).unwrap();
        assert_eq!(tasks.as_array().unwrap().len(), 3);
        assert_eq!(tasks[2], serde_json::json!({ "model": "echo", "input": 9 }));
    }
}
