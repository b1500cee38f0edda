//! A task as the API shows it.

use std::collections::BTreeMap;

use hypha_model::{FailureKind, TaskId, TaskState, WorkerId};
use serde::de::{DeserializeOwned, Deserializer, Error};
use serde::ser::{SerializeMap, Serializer};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::json::Json;
use crate::timestamp::Timestamp;

/// A task in its present state. Fields that this client does not know are kept in `more`.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskStatus {
    /// The id that the scheduler assigned.
    pub id: TaskId,
    /// Its state.
    pub status: TaskState,
    /// Its model.
    pub model: Option<String>,
    /// The worker that has it, or had it last.
    pub worker: Option<WorkerId>,
    /// When it was submitted.
    pub submitted_at: Option<Timestamp>,
    /// When its last attempt began.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
    /// How many attempts have begun.
    pub attempts: u32,
    /// Its progress, from 0 to 1.
    pub progress: Option<f64>,
    /// The result, once it has completed.
    pub result: Json,
    /// The error, if it ended otherwise.
    pub error: Option<String>,
    /// The kind of failure; `None` if the scheduler does not report it.
    pub error_kind: Option<FailureKind>,
    /// The input of the model; not in lists.
    pub input: Option<Json>,
    /// Further fields.
    pub more: Map<String, Value>,
}

impl TaskStatus {
    /// Whether its state is final.
    pub fn has_ended(&self) -> bool {
        self.status.is_final()
    }

    /// Why it waits, in a few words.
    pub fn reason(&self) -> Option<&str> {
        self.more.get("reason")?.as_str()
    }

    /// Why its last attempt failed, while it waits for the next.
    pub fn last_error(&self) -> Option<&str> {
        self.more.get("last_error")?.as_str()
    }

    /// When the next attempt may start, after a failed attempt.
    pub fn delayed_until(&self) -> Option<Timestamp> {
        self.more.get("delayed_until")?.as_str()?.parse().ok()
    }

    /// The failed attempts that the scheduler still reports.
    pub fn failures(&self) -> Vec<FailedAttempt> {
        failures(&self.more)
    }

    /// The size of the result in bytes, if it is an object, too large to be kept with its task:
    /// [`crate::Scheduler::result`] returns the bytes.
    pub fn large_result(&self) -> Option<u64> {
        self.more.get("result_object")?.get("bytes")?.as_u64()
    }

    /// Whether the result may stand for bytes that are not JSON: [`crate::Scheduler::result`] returns the
    /// bytes, and their content type.
    pub fn may_be_bytes(&self) -> bool {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Encoded {
            #[serde(rename = "base64")]
            _bytes: String,
        }
        self.result.as_str().starts_with('{') && self.result.read::<Encoded>().is_some()
    }
}

/// By hand: serde cannot combine raw JSON with flattened fields.
impl<'de> Deserialize<'de> for TaskStatus {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<TaskStatus, D::Error> {
        let mut fields = Fields(BTreeMap::deserialize(deserializer)?);
        let missing = D::Error::missing_field;
        Ok(TaskStatus {
            id: fields.take("id")?.ok_or_else(|| missing("id"))?,
            status: fields.take("status")?.ok_or_else(|| missing("status"))?,
            model: fields.take("model")?,
            worker: fields.take("worker")?,
            submitted_at: fields.take("submitted_at")?,
            started_at: fields.take("started_at")?,
            finished_at: fields.take("finished_at")?,
            attempts: fields.take("attempts")?.unwrap_or_default(),
            progress: fields.take("progress")?,
            result: fields.0.remove("result").unwrap_or_default(),
            error: fields.take("error")?,
            error_kind: fields.take("error_kind")?,
            input: fields.0.remove("input"),
            more: fields.0.into_iter().map(|(name, json)| (name, json.to_value())).collect(),
        })
    }
}

/// The fields of an object that have not been read.
struct Fields(BTreeMap<String, Json>);

impl Fields {
    /// Nothing if it is missing, or `null`.
    fn take<T: DeserializeOwned, E: Error>(&mut self, name: &str) -> Result<Option<T>, E> {
        let Some(json) = self.0.remove(name).filter(|json| !json.is_null()) else {
            return Ok(None);
        };
        let read = serde_json::from_str(json.as_str());
        read.map(Some).map_err(|error| E::custom(format!("{name}: {error}")))
    }
}

impl Serialize for TaskStatus {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("id", &self.id)?;
        map.serialize_entry("status", &self.status)?;
        map.serialize_entry("model", &self.model)?;
        map.serialize_entry("worker", &self.worker)?;
        map.serialize_entry("submitted_at", &self.submitted_at)?;
        map.serialize_entry("started_at", &self.started_at)?;
        map.serialize_entry("finished_at", &self.finished_at)?;
        map.serialize_entry("attempts", &self.attempts)?;
        map.serialize_entry("progress", &self.progress)?;
        map.serialize_entry("result", &self.result)?;
        map.serialize_entry("error", &self.error)?;
        if let Some(kind) = &self.error_kind {
            map.serialize_entry("error_kind", kind)?;
        }
        if let Some(input) = &self.input {
            map.serialize_entry("input", input)?;
        }
        for (name, value) in &self.more {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

/// An attempt that failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FailedAttempt {
    /// Which attempt, from 1.
    #[serde(default)]
    pub attempt: u32,
    /// The worker that had it.
    #[serde(default)]
    pub worker: Option<WorkerId>,
    /// Why it failed.
    #[serde(default)]
    pub reason: String,
    /// The kind of failure.
    #[serde(default)]
    pub kind: FailureKind,
    /// When it failed.
    #[serde(default)]
    pub at: Option<Timestamp>,
}

/// An unreadable field is left out: the rest is worth showing without it.
pub(crate) fn failures(more: &Map<String, Value>) -> Vec<FailedAttempt> {
    let Some(Value::Array(all)) = more.get("failures") else { return Vec::new() };
    all.iter().filter_map(|one| serde_json::from_value(one.clone()).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn failed_attempts_are_read_as_far_as_they_can_be() {
        let task = |failures: Value| -> TaskStatus {
            let id = "task-01890000-0000-7000-8000-000000000001";
            serde_json::from_value(json!({"id": id, "status": "queued", "failures": failures}))
                .unwrap()
        };
        for none in [json!(null), json!([]), json!("many"), json!([1, "two"])] {
            assert_eq!(task(none).failures(), []);
        }
        let worker = "01890000-0000-7000-8000-000000000002";
        let told = json!([
            {"attempt": 1, "worker": worker, "reason": "it was lost", "at": "2026-01-01T00:00:00.000Z"},
            {"attempt": 2, "worker": null, "reason": "no", "more": 1},
        ]);
        let read = task(told).failures();
        assert_eq!((read.len(), read[0].attempt, read[1].attempt), (2, 1, 2));
        assert_eq!(read[0].worker, worker.parse().ok());
        assert_eq!((read[1].worker, &read[1].at, read[1].reason.as_str()), (None, &None, "no"));
    }

    #[test]
    fn not_a_digit_of_a_result_is_changed_and_nothing_is_lost() {
        let id = "task-01890000-0000-7000-8000-000000000001";
        let text = format!(
            r#"{{"id":"{id}","status":"completed","model":null,"worker":null,"submitted_at":null,"started_at":null,"finished_at":null,"attempts":1,"progress":1.0,"result":{{"n": 0.1000}},"error":null,"input":12345678901234567890123,"tenant":"us"}}"#
        );
        let task: TaskStatus = serde_json::from_str(&text).unwrap();
        assert_eq!(
            (task.result.as_str(), &task.more["tenant"]),
            (r#"{"n": 0.1000}"#, &json!("us"))
        );
        assert_eq!(serde_json::to_string(&task).unwrap(), text);
        assert!(task.large_result().is_none() && !task.may_be_bytes());
        for (wrong, says) in [
            (json!({"status": "queued"}), "missing field `id`"),
            (json!({"id": id, "status": 7}), "status: "),
            (json!({"id": id, "status": "queued", "attempts": "x"}), "attempts: "),
            (json!([]), "invalid type"),
        ] {
            let error = serde_json::from_str::<TaskStatus>(&wrong.to_string()).unwrap_err();
            assert!(error.to_string().contains(says), "{error}");
        }
    }

    #[test]
    fn placeholders_are_distinguished_from_results() {
        let task = |result: Value| -> TaskStatus {
            let id = "task-01890000-0000-7000-8000-000000000001";
            serde_json::from_value(json!({"id": id, "status": "completed", "result": result}))
                .unwrap()
        };
        let reference = json!({"object": "0".repeat(64), "bytes": 7});
        let mut large = task(reference.clone());
        assert_eq!(large.large_result(), None, "it only looks like one");
        large.more.insert("result_object".to_owned(), json!({"digest": "x", "bytes": 7}));
        assert_eq!(large.large_result(), Some(7));
        assert!(task(json!({"base64": "aGk="})).may_be_bytes());
        assert!(!task(json!({"base64": "aGk=", "x": 1})).may_be_bytes());
    }
}
