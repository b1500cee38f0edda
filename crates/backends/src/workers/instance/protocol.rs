//! The requests to a task instance and its responses, in JSON. Instances are programs of many authors: their responses
//! are parsed leniently, and bounded.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::{Method, Uri};
use hypha_engine::back_end::{EnqueueOutcome, FetchOutcome, InstanceReport as Verdict};
use hypha_engine::{Dispatch, Outcome};
use hypha_model::{Executor, FailureKind, Payload, Span, TaskError, Worker};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use tokio::time::timeout;

use crate::back_end::{get, read_success};
use crate::transport::{HttpError, Origin};

/// The longest id that an instance may assign to a task.
const MAX_ID_BYTES: usize = 256;
/// The longest response to an enqueue that is read: an id, a number and a time.
const MAX_ENQUEUED_BYTES: usize = 64 << 10;
/// Statuses of an instance that mean that it cannot work.
const UNHEALTHY_STATUSES: [&str; 9] = [
    "error",
    "failed",
    "stopped",
    "stopping",
    "unhealthy",
    "down",
    "initializing",
    "starting",
    "loading",
];

/// The status that an instance reports.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::workers) struct InstanceStatus {
    pub(super) instance: Option<String>,
    pub(in crate::workers) model: Option<String>,
    /// How many tasks it runs at once; 1 if it does not report it.
    pub(in crate::workers) replicas: u32,
    word: Option<String>,
}

/// The report of an instance about a task.
#[derive(Debug, Default)]
pub(in crate::workers) struct InstanceReport {
    pub(in crate::workers) status: Option<String>,
    /// As JSON.
    pub(in crate::workers) result: Option<Payload>,
    pub(in crate::workers) error: Option<String>,
    pub(in crate::workers) execution_time_ms: Option<f64>,
}

/// The response to an enqueue.
pub(super) struct EnqueueResponse {
    pub(super) enqueued: EnqueueOutcome,
    /// Why it is unreachable, if it did not respond at all.
    pub(super) unreachable: Option<String>,
}

/// Calls a task instance.
#[derive(Clone)]
pub(super) struct InstanceClient {
    pub(super) origin: Arc<Origin>,
    pub(super) public_url: Option<String>,
    pub(super) timeout: Duration,
    pub(super) limit_bytes: usize,
}

/// Requests the status of an instance: at `/status`, or at `/info` where that is missing.
pub(in crate::workers) async fn probe(
    origin: &Arc<Origin>,
    within: Duration,
) -> Result<InstanceStatus, HttpError> {
    let request = async {
        match get(origin, Uri::from_static("/status"), None, within).await {
            Err(HttpError::Status { status: 404 | 405 | 501, .. }) => {
                get(origin, Uri::from_static("/info"), None, within).await
            }
            other => other,
        }
    };
    let body = timeout(within, request).await.map_err(|_| HttpError::TimedOut(within))??;
    let value: Value = serde_json::from_slice(&body)
        .map_err(|error| HttpError::Broken(format!("its status is not JSON ({error})")))?;
    Ok(InstanceStatus::read(&value))
}

impl InstanceStatus {
    fn read(value: &Value) -> InstanceStatus {
        let text = |value: &Value| match value {
            Value::String(text) if !text.is_empty() => Some(text.clone()),
            Value::Number(number) => Some(number.to_string()),
            _ => None,
        };
        let replicas = value["replicas_running"].as_u64().unwrap_or(1);
        InstanceStatus {
            instance: text(&value["instance_id"]),
            model: text(&value["model_type"])
                .or_else(|| text(&value["deployed_model"]["model_name"])),
            replicas: u32::try_from(replicas).unwrap_or(u32::MAX).min(MAX_REPLICAS),
            word: text(&value["status"]),
        }
    }

    /// Why it cannot work at present, if it reports that.
    pub(in crate::workers) fn problem(&self) -> Option<String> {
        if self.replicas == 0 {
            return Some("the task instance runs no replica of its model".to_owned());
        }
        let word = self.word.as_ref()?;
        let is_unhealthy = UNHEALTHY_STATUSES.iter().any(|other| other.eq_ignore_ascii_case(word));
        let shown: String = word.chars().take(64).collect();
        is_unhealthy.then(|| format!("the task instance reports the status `{shown}`"))
    }
}

impl InstanceStatus {
    /// The registered model is gone if the instance reports another one.
    pub(super) fn model_mismatch(&self, worker: &Worker) -> Option<String> {
        let model = self.model.as_deref()?;
        let serves =
            |executor: &Executor| executor.models.iter().any(|name| name.as_str() == model);
        (!worker.executors.iter().any(serves))
            .then(|| "it has another model now: register it again".to_owned())
    }
}

/// The largest concurrency of an instance: each of its tasks is polled for.
const MAX_REPLICAS: u32 = 256;

impl InstanceReport {
    fn read(value: &Value) -> InstanceReport {
        let result = value.get("result").map(|it| Payload::from(it.to_string().into_bytes()));
        let error = match &value["error"] {
            Value::Null => None,
            Value::String(text) => Some(text.clone()),
            other => Some(other.to_string()),
        };
        InstanceReport {
            status: value["status"].as_str().map(str::to_owned),
            // Of a task that is done, `null` is a valid result when the instance itself returns it.
            result,
            error,
            execution_time_ms: value["execution_time"].as_f64(),
        }
    }

    /// The meaning of the report for the task.
    pub(super) fn verdict(self) -> Verdict {
        let word = self.status.unwrap_or_default().to_ascii_lowercase();
        let run = self
            .execution_time_ms
            .filter(|ms| ms.is_finite() && *ms > 0.0)
            .map(|ms| Span::from_secs_f64(ms / 1_000.0));
        match (word.as_str(), self.result) {
            ("completed" | "success" | "succeeded" | "done" | "finished", Some(result)) => {
                Verdict::Ended(Outcome::Completed { result: result.into() }, run)
            }
            ("completed" | "success" | "succeeded" | "done" | "finished", None) => {
                Verdict::NoResult
            }
            ("failed" | "error" | "failure", _) => {
                let error = self.error.unwrap_or_else(|| "the task instance gave no reason".into());
                let error = format!("the task instance failed: {error}");
                let error = TaskError::new(FailureKind::BackendFailed, error);
                Verdict::Ended(Outcome::Failed(error), run)
            }
            _ => Verdict::Pending,
        }
    }
}

impl InstanceClient {
    /// Enqueues a task.
    pub(super) async fn enqueue(&self, dispatch: &Dispatch, secret: &str) -> EnqueueResponse {
        let response = |enqueued| EnqueueResponse { enqueued, unreachable: None };
        let failed = |error| EnqueueOutcome::Failed(Outcome::Failed(error));
        let body = match self.body(dispatch, secret) {
            Ok(body) => body,
            Err(error) => {
                return response(failed(TaskError::new(FailureKind::InvalidInput, error)));
            }
        };
        let path = Uri::from_static("/queue/enqueue");
        let request = async {
            let exchange = self.origin.send(Method::POST, path, None, body).await?;
            read_success(exchange, MAX_ENQUEUED_BYTES).await
        };
        match timeout(self.timeout, request).await.unwrap_or(Err(HttpError::TimedOut(self.timeout)))
        {
            Ok(body) => response(EnqueueOutcome::Accepted(assigned_id(&body).map(Arc::from))),
            Err(HttpError::Status { status: 429 | 503, .. }) => response(EnqueueOutcome::Busy),
            Err(error @ (HttpError::Status { .. } | HttpError::TooLarge { .. })) => {
                response(failed(error.into()))
            }
            Err(problem) => {
                let error = format!("the task instance did not accept it: {problem}");
                let unreachable = Some(error.clone());
                let enqueued = match problem.is_unreachable() {
                    true => EnqueueOutcome::Failed(Outcome::Unreachable { error }),
                    false => failed(TaskError::new(problem.kind(), error)),
                };
                EnqueueResponse { enqueued, unreachable }
            }
        }
    }

    fn body(&self, dispatch: &Dispatch, secret: &str) -> Result<Bytes, String> {
        let input = dispatch.spec.input.bytes();
        serde_json::from_slice::<IgnoredAny>(input).map_err(|error| {
            format!("the input is not JSON, which task instances require ({error})")
        })?;
        let callback = self.public_url.as_ref().map(|url| {
            format!("{}/notify/task_complete?secret={secret}", url.trim_end_matches('/'))
        });
        let fields = serde_json::json!({
            "task_id": dispatch.attempt.task,
            "metadata": dispatch.spec.metadata,
            "callback_url": callback,
        });
        // The input is inserted as it is, neither parsed nor serialized again: numbers keep their digits.
        let mut body = fields.to_string().into_bytes();
        body.pop();
        body.extend_from_slice(b",\"input_data\":");
        body.extend_from_slice(input);
        body.push(b'}');
        Ok(Bytes::from(body))
    }

    /// Requests the result of a task.
    pub(super) async fn fetch(&self, id: &str) -> FetchOutcome {
        let request = async {
            let path = format!("/results/{}", percent_encoded(id));
            let path =
                path.parse::<Uri>().map_err(|error| HttpError::Address(error.to_string()))?;
            let exchange = self.origin.send(Method::GET, path, None, Bytes::new()).await?;
            read_success(exchange, self.limit_bytes).await
        };
        match timeout(self.timeout, request).await.unwrap_or(Err(HttpError::TimedOut(self.timeout)))
        {
            Ok(body) => match serde_json::from_slice::<Value>(&body) {
                Ok(value) => FetchOutcome::Report(InstanceReport::read(&value).verdict()),
                Err(_) => FetchOutcome::NoAnswer,
            },
            Err(HttpError::Status { status: 404, .. }) => FetchOutcome::Unknown,
            Err(error @ HttpError::TooLarge { .. }) => {
                FetchOutcome::Unusable(Outcome::Failed(error.into()))
            }
            Err(_) => FetchOutcome::NoAnswer,
        }
    }
}

/// The id that an instance assigned to a task, if it is usable.
fn assigned_id(body: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Enqueued {
        task_id: Value,
    }
    let id = match serde_json::from_slice::<Enqueued>(body).ok()?.task_id {
        Value::String(id) => id,
        Value::Number(id) => id.to_string(),
        _ => return None,
    };
    (!id.is_empty() && id.len() <= MAX_ID_BYTES).then_some(id)
}

/// An id as a part of a path: a malicious instance must not choose the path that is requested.
fn percent_encoded(id: &str) -> String {
    let mut path = String::with_capacity(id.len());
    for byte in id.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'~' => path.push(byte.into()),
            _ => path.push_str(&format!("%{byte:02X}")),
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn statuses_are_parsed_leniently() {
        let check = |value: Value, model: Option<&str>, replicas: u32, healthy: bool| {
            let status = InstanceStatus::read(&value);
            assert_eq!(status.model.as_deref(), model, "{value}");
            assert_eq!(status.replicas, replicas, "{value}");
            assert_eq!(status.problem().is_none(), healthy, "{value}");
        };
        let full = json!({"instance_id": "i", "model_type": "m", "replicas_running": 3,
                          "queue_size": 1, "status": "running"});
        check(full, Some("m"), 3, true);
        check(json!({"deployed_model": {"model_name": "m"}}), Some("m"), 1, true);
        check(json!({"model_type": "m", "replicas_running": 0}), Some("m"), 0, false);
        check(json!({"model_type": "m", "replicas_running": u64::MAX}), Some("m"), 256, true);
        check(
            json!({"model_type": "m", "replicas_running": "x", "status": "ERROR"}),
            Some("m"),
            1,
            false,
        );
        check(json!([1, 2]), None, 1, true);
        check(json!({"model_type": "", "deployed_model": null}), None, 1, true);
    }

    #[test]
    fn reports_decide_the_outcome_of_tasks() {
        let check = |value: Value, expected: &str| {
            let shown = match InstanceReport::read(&value).verdict() {
                Verdict::Pending => "not yet".to_owned(),
                Verdict::NoResult => "no result".to_owned(),
                Verdict::Ended(Outcome::Completed { result }, run) => {
                    let payload = result.payload().unwrap();
                    format!("{} {run:?}", String::from_utf8_lossy(payload.bytes()))
                }
                Verdict::Ended(outcome, _) => format!("{outcome:?}"),
            };
            assert!(shown.contains(expected), "{value}: {shown}");
        };
        check(
            json!({"status": "completed", "result": {"a": 1}, "execution_time": 20}),
            "{\"a\":1} Some(",
        );
        check(json!({"status": "completed", "result": 1, "execution_time": -1}), "1 None");
        check(json!({"status": "completed", "result": 1, "execution_time": "x"}), "1 None");
        check(json!({"status": "completed", "result": null}), "null");
        check(json!({"status": "completed"}), "no result");
        check(json!({"status": "running"}), "not yet");
        check(json!({"status": "failed", "error": {"code": 7}}), "failed: {\\\"code\\\":7}");
        check(json!({"status": 7}), "not yet");
        check(json!("completed"), "not yet");
    }

    #[test]
    fn instance_id_stays_one_segment_of_the_path() {
        assert_eq!(percent_encoded("../a b?c#d/é"), "%2E%2E%2Fa%20b%3Fc%23d%2F%C3%A9");
        assert_eq!(assigned_id(br#"{"task_id": 7}"#), Some("7".to_owned()));
        for none in ["", "[]", "{}", r#"{"task_id": ""}"#, r#"{"task_id": {}}"#] {
            assert_eq!(assigned_id(none.as_bytes()), None, "{none}");
        }
        let long = format!("{{\"task_id\": \"{}\"}}", "x".repeat(300));
        assert_eq!(assigned_id(long.as_bytes()), None);
    }
}
