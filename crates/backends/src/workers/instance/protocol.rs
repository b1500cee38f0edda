//! The requests to a task instance and its responses, in JSON. Instances are programs of many authors: their responses
//! are parsed leniently, and bounded.
//!
//! There are two dialects. Instances of the first report themselves at `/status` and take tasks at `/queue/enqueue`;
//! those of the second, which SwarmPilot has today, at `/info` and `/queue/submit`. Results are the same in both.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use hyper::{Method, Uri};
use hypha_engine::back_end::{EnqueueOutcome, FetchOutcome, InstanceReport as Verdict};
use hypha_engine::{Dispatch, Outcome};
use hypha_model::{Executor, FailureKind, Name, Payload, Span, TaskError, Worker};
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_json::value::RawValue;
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
    /// Whether it takes tasks at `/queue/submit`, as far as known.
    pub(super) is_submit: Arc<AtomicBool>,
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
        let deployed = &value["deployed_model"];
        let replicas = value["replicas_running"].as_u64().or_else(|| deployed["replicas"].as_u64());
        let replicas = replicas.unwrap_or(1);
        InstanceStatus {
            instance: text(&value["instance_id"]),
            model: text(&value["model_type"]).or_else(|| text(&deployed["model_name"])),
            replicas: u32::try_from(replicas).unwrap_or(u32::MAX).min(MAX_REPLICAS),
            // Where both are given, `status` is only that of the response.
            word: text(&value["instance_status"]).or_else(|| text(&value["status"])),
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

/// A report, before its fields are parsed: a field of another type than expected must not hide the others, and the
/// result is kept as it is.
#[derive(Deserialize)]
struct RawReport<'a> {
    #[serde(borrow, default)]
    status: Option<&'a RawValue>,
    /// `null` is a valid result of a task that is done.
    #[serde(borrow, default, deserialize_with = "even_null")]
    result: Option<&'a RawValue>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
    #[serde(borrow, default)]
    execution_time: Option<&'a RawValue>,
}

fn even_null<'de: 'a, 'a, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<&'a RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

/// The value of a raw one, if it has the expected type.
fn parsed<'a, T: Deserialize<'a>>(raw: Option<&'a RawValue>) -> Option<T> {
    serde_json::from_str(raw?.get()).ok()
}

impl InstanceReport {
    fn read(body: &[u8]) -> serde_json::Result<InstanceReport> {
        let raw: RawReport<'_> = serde_json::from_slice(body)?;
        let text = |raw: &RawValue| parsed(Some(raw)).unwrap_or_else(|| raw.get().to_owned());
        Ok(InstanceReport {
            status: parsed(raw.status),
            result: raw.result.map(|result| Payload::from(result.get().as_bytes())),
            error: raw.error.map(text),
            execution_time_ms: parsed(raw.execution_time),
        })
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
    pub(super) async fn enqueue(
        &self,
        dispatch: &Dispatch,
        model: Option<&Name>,
        secret: &str,
    ) -> EnqueueResponse {
        let response = |enqueued| EnqueueResponse { enqueued, unreachable: None };
        let failed = |error| EnqueueOutcome::Failed(Outcome::Failed(error));
        if let Err(error) = serde_json::from_slice::<IgnoredAny>(dispatch.spec.input.bytes()) {
            let error = format!("the input is not JSON, which task instances require ({error})");
            return response(failed(TaskError::new(FailureKind::InvalidInput, error)));
        }
        let request = async {
            let is_submit = self.is_submit.load(Ordering::Relaxed);
            match self.post_task(dispatch, model, secret, is_submit).await {
                // It may have the other route.
                Err(HttpError::Status { status: 404 | 405, .. }) => {
                    let posted = self.post_task(dispatch, model, secret, !is_submit).await;
                    if posted.is_ok() {
                        self.is_submit.store(!is_submit, Ordering::Relaxed);
                    }
                    posted
                }
                posted => posted,
            }
        };
        match timeout(self.timeout, request).await.unwrap_or(Err(HttpError::TimedOut(self.timeout)))
        {
            Ok(body) => response(match error_in(&body) {
                Some(error) => failed(TaskError::new(FailureKind::BackendError, error)),
                None => EnqueueOutcome::Accepted(assigned_id(&body).map(Arc::from)),
            }),
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

    async fn post_task(
        &self,
        dispatch: &Dispatch,
        model: Option<&Name>,
        secret: &str,
        is_submit: bool,
    ) -> Result<Bytes, HttpError> {
        let path = if is_submit { "/queue/submit" } else { "/queue/enqueue" };
        let body = self.body(dispatch, model, secret, is_submit);
        let exchange = self.origin.send(Method::POST, Uri::from_static(path), None, body).await?;
        read_success(exchange, MAX_ENQUEUED_BYTES).await
    }

    fn body(
        &self,
        dispatch: &Dispatch,
        model: Option<&Name>,
        secret: &str,
        is_submit: bool,
    ) -> Bytes {
        let callback = self.public_url.as_ref().map(|url| {
            format!("{}/notify/task_complete?secret={secret}", url.trim_end_matches('/'))
        });
        let mut fields = serde_json::json!({
            "task_id": dispatch.attempt.task,
            "metadata": dispatch.spec.metadata,
            "callback_url": callback,
        });
        if is_submit {
            fields["model_name"] = model.map(Name::as_str).into();
        }
        // The input is inserted as it is, neither parsed nor serialized again: numbers keep their digits.
        let mut body = fields.to_string().into_bytes();
        body.pop();
        let name: &[u8] = if is_submit { b",\"task_input\":" } else { b",\"input_data\":" };
        body.extend_from_slice(name);
        body.extend_from_slice(dispatch.spec.input.bytes());
        body.push(b'}');
        Bytes::from(body)
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
            Ok(body) => match InstanceReport::read(&body) {
                Ok(report) => FetchOutcome::Report(report.verdict()),
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

/// Why a task was not accepted, if a response with a status of success says so in its body.
fn error_in(body: &[u8]) -> Option<String> {
    let value: Value = serde_json::from_slice(body).ok()?;
    let shown = |value: &Value| value.as_str().map(|text| text.chars().take(500).collect());
    (value["status"] == "error").then(|| {
        let reason = shown(&value["message"]).or_else(|| shown(&value["error"]));
        let reason: String = reason.unwrap_or_else(|| "it gave no reason".to_owned());
        format!("the task instance did not accept it: {reason}")
    })
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
        let info = json!({"status": "success", "instance_status": "running", "uptime": 1.5,
                          "deployed_model": {"model_name": "m", "replicas": 2},
                          "queue_info": {"length_of_queue": 0}});
        check(info, Some("m"), 2, true);
        let starting = json!({"status": "success", "instance_status": "initializing",
                              "deployed_model": {"model_name": "m", "replicas": 2}});
        check(starting, Some("m"), 2, false);
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
            let report = InstanceReport::read(value.to_string().as_bytes()).unwrap();
            let shown = match report.verdict() {
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
        assert!(InstanceReport::read(b"\"completed\"").is_err());
    }

    #[test]
    fn result_is_kept_as_it_is() {
        let odd = r#"{"z": 18446744073709551616, "a": 1.10,  "b": 1e400}"#;
        let body = format!(r#"{{"result": {odd}, "status": "completed"}}"#);
        let report = InstanceReport::read(body.as_bytes()).unwrap();
        assert_eq!(report.result, Some(Payload::from(odd.as_bytes())));
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
