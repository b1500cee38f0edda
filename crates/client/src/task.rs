//! A task as a client submits it.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use hypha_model::amount::parse_seconds;
use hypha_model::input_value::InputValue;
use hypha_model::{Metadata, Name, Rng, TaskId, Time};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use thiserror::Error;

use crate::json::Json;
use crate::requirements::Requirements;

/// A task to be run. A default has its own key.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Task {
    /// Identifies this submission: submitting twice under one key creates one task.
    pub key: TaskKey,
    /// The model to run.
    pub model: String,
    /// Its input.
    pub input: TaskInput,
    /// What the worker must have.
    pub requirements: Requirements,
    /// Features for predicting the run time: numbers and categories such as `input_tokens`.
    pub metadata: Metadata,
    /// How long one attempt may take; by default the scheduler's `task_timeout`.
    pub timeout: Option<Duration>,
    /// Whether pieces of the result are sent as they arrive; [`crate::Events`] has them.
    pub stream: bool,
}

/// The input of a model.
#[derive(Clone, Debug, PartialEq)]
pub enum TaskInput {
    /// A string, such as a prompt.
    Text(String),
    /// Any JSON; passed to the model as written.
    Json(Json),
}

/// Identifies a submission.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct TaskKey(Option<String>);

/// An invalid task.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum TaskError {
    /// It is JSON, but not of the right form.
    #[error("not a task: {0}")]
    Form(String),
    /// A field has an invalid value.
    #[error("{field}: {problem}")]
    Field {
        /// The field.
        field: &'static str,
        /// What is wrong.
        problem: String,
    },
    /// An invalid key.
    #[error("a key has 1 to {max} visible ASCII characters", max = TaskKey::MAX_CHARS)]
    Key,
}

impl Task {
    /// A task for `model` with its own key.
    pub fn new(model: impl Into<String>, input: TaskInput) -> Task {
        Task { model: model.into(), input, ..Task::default() }
    }

    /// Parses a task as `POST /api/v1/tasks` takes it, with its key as `key` if it has one. A form that the
    /// scheduler would refuse is refused here.
    pub fn from_json(json: &str) -> Result<Task, TaskError> {
        // The fields of a type could be read from an array, too.
        if !json.trim_start().starts_with('{') {
            return Err(TaskError::Form(
                "expected an object, with its fields in braces".to_owned(),
            ));
        }
        let form: TaskForm =
            serde_json::from_str(json).map_err(|error| TaskError::Form(error.to_string()))?;
        let wrong = |field| move |problem: String| TaskError::Field { field, problem };
        form.model.parse::<Name>().map_err(|error| wrong("model")(error.to_string()))?;
        let timeout = match form.timeout {
            None => None,
            Some(given) => {
                let span = parse_seconds("timeout", given.as_str())
                    .map_err(|error| TaskError::Form(error.to_string()))?;
                Some(Duration::from_micros(span.as_micros()))
            }
        };
        let mut requirements = form.requirements.unwrap_or_default();
        for (field, outer) in [
            ("priority", form.priority),
            ("deadline", form.deadline),
            ("deadline_policy", form.deadline_policy),
            ("maximise", form.maximise),
        ] {
            let Some(outer) = outer else { continue };
            if requirements.insert(field.to_owned(), outer).is_some_and(|inner| !inner.is_null()) {
                let problem = "is given twice; leave it out of `requirements`".to_owned();
                return Err(wrong(field)(problem));
            }
        }
        Ok(Task {
            key: match form.key {
                Some(key) => TaskKey::from_text(key)?,
                None => TaskKey::new(),
            },
            model: form.model,
            input: match form.input.text() {
                Some(text) => TaskInput::Text(text),
                None => TaskInput::Json(form.input),
            },
            requirements: Requirements::from_json(requirements).map_err(wrong("requirements"))?,
            metadata: metadata(form.metadata.unwrap_or_default()).map_err(wrong("metadata"))?,
            timeout,
            stream: form.stream.unwrap_or_default(),
        })
    }

    /// As the API takes it.
    pub(crate) fn into_json(self) -> String {
        let body = TaskBody {
            model: &self.model,
            input: match self.input {
                TaskInput::Text(text) => Json::of(&text),
                TaskInput::Json(json) => json,
            },
            requirements: self.requirements.to_json(),
            metadata: self.metadata,
            timeout: self.timeout.map(|timeout| timeout.as_secs_f64()),
            stream: self.stream,
        };
        Json::of(&body).to_string()
    }
}

/// Fields that are not given are left out.
#[derive(Serialize)]
struct TaskBody<'a> {
    model: &'a str,
    input: Json,
    #[serde(skip_serializing_if = "Map::is_empty")]
    requirements: Map<String, Value>,
    #[serde(skip_serializing_if = "Metadata::is_empty")]
    metadata: Metadata,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout: Option<f64>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    stream: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TaskForm {
    key: Option<String>,
    model: String,
    #[serde(default)]
    input: Json,
    requirements: Option<Map<String, Value>>,
    metadata: Option<Map<String, Value>>,
    timeout: Option<InputValue>,
    priority: Option<Value>,
    deadline: Option<Value>,
    deadline_policy: Option<Value>,
    maximise: Option<Value>,
    stream: Option<bool>,
}

/// A boolean is a category with two values.
fn metadata(json: Map<String, Value>) -> Result<Metadata, String> {
    let entry = |(key, value): (String, Value)| {
        let value = match value {
            Value::Bool(on) => Value::String(on.to_string()),
            other => other,
        };
        let value = serde_json::from_value(value);
        let value = value.map_err(|_| format!("`{key}` is neither a number nor a string"))?;
        Ok((Arc::from(key), value))
    };
    let entries: Vec<_> = json.into_iter().map(entry).collect::<Result<_, String>>()?;
    Metadata::new(entries).map_err(|error| error.to_string())
}

impl Default for TaskInput {
    fn default() -> TaskInput {
        TaskInput::Text(String::new())
    }
}

impl From<&str> for TaskInput {
    fn from(text: &str) -> TaskInput {
        TaskInput::Text(text.to_owned())
    }
}

impl From<String> for TaskInput {
    fn from(text: String) -> TaskInput {
        TaskInput::Text(text)
    }
}

impl From<Value> for TaskInput {
    fn from(json: Value) -> TaskInput {
        TaskInput::Json(json.into())
    }
}

impl From<Json> for TaskInput {
    fn from(json: Json) -> TaskInput {
        TaskInput::Json(json)
    }
}

impl TaskKey {
    /// The form that the API takes.
    pub const MAX_CHARS: usize = 255;

    /// A new, unique key.
    pub fn new() -> TaskKey {
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let micros = since_epoch.map_or(0, |since| since.as_micros() as u64);
        let id = TaskId::new(Time::from_micros(micros), &mut Rng::new(rand::random()));
        TaskKey(Some(id.uuid().to_string()))
    }

    /// No key: an interrupted submission is not retried, and its outcome is reported as unknown.
    pub const fn none() -> TaskKey {
        TaskKey(None)
    }

    /// A key of the caller's choice.
    pub fn from_text(text: impl Into<String>) -> Result<TaskKey, TaskError> {
        let text = text.into();
        let visible = text.bytes().all(|byte| byte.is_ascii_graphic());
        match visible && (1..=TaskKey::MAX_CHARS).contains(&text.len()) {
            true => Ok(TaskKey(Some(text))),
            false => Err(TaskError::Key),
        }
    }

    /// The key, if there is one.
    pub fn as_str(&self) -> Option<&str> {
        self.0.as_deref()
    }
}

/// A new key each time.
impl Default for TaskKey {
    fn default() -> TaskKey {
        TaskKey::new()
    }
}

impl fmt::Debug for TaskKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str().unwrap_or("none"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(json: &Value) -> Result<Task, TaskError> {
        Task::from_json(&json.to_string())
    }

    fn written(task: Task) -> Value {
        serde_json::from_str(&task.into_json()).unwrap()
    }

    #[test]
    fn a_task_is_written_as_it_was_read() {
        let json = json!({
            "model": "echo",
            "input": {"ms": 5},
            "requirements": {"min_memory": "16GB", "cpu_cores": 0.5},
            "metadata": {"input_tokens": 100.0, "hardware": "A100"},
            "timeout": 1.5,
            "stream": true,
        });
        assert_eq!(written(read(&json).unwrap()), json);
        let text = read(&json!({"model": "echo", "input": "hi", "key": "k"})).unwrap();
        assert_eq!((text.key.as_str(), &text.input), (Some("k"), &TaskInput::from("hi")));
        assert_eq!(written(text), json!({"model": "echo", "input": "hi"}));
        let outer = json!({"model": "m", "priority": 1, "deadline": "2h", "maximise": "cost",
                           "deadline_policy": "refuse", "metadata": {"a": true}});
        assert_eq!(
            written(read(&outer).unwrap()),
            json!({"model": "m", "input": null, "metadata": {"a": "true"},
                   "requirements": {"priority": 1, "deadline": "2h", "maximise": "cost",
                                    "deadline_policy": "refuse"}})
        );
    }

    #[test]
    fn not_a_digit_of_an_input_is_changed() {
        let input = r#"{"b": 0.1000, "a":[12345678901234567890123, 1E5]}"#;
        let task = Task::from_json(&format!(r#"{{"model": "m", "input": {input}}}"#)).unwrap();
        assert_eq!(task.into_json(), format!(r#"{{"model":"m","input":{input}}}"#));
    }

    #[test]
    fn invalid_task_names_the_field() {
        for (json, says) in [
            (json!([]), "not a task"),
            (json!({"input": 1}), "missing field `model`"),
            (json!({"model": "m", "metadata": {"a": []}}), "metadata: `a` is neither"),
            (
                json!({"model": "m", "priority": 1, "requirements": {"priority": 2}}),
                "priority: is given twice",
            ),
            (json!({"model": "", "input": 1}), "model: a name must not be empty"),
            (json!({"model": "m", "input": 1, "prioritty": 1}), "unknown field `prioritty`"),
            (json!({"model": "m", "input": 1, "timeout": "-1s"}), "timeout: `-1s` is negative"),
            (
                json!({"model": "m", "input": 1, "requirements": {"cpu_cores": -1}}),
                "requirements: cpu_cores: `-1` is negative",
            ),
            (json!({"model": "m", "input": 1, "key": "a b"}), "visible ASCII"),
            (json!({"model": "m", "input": 1, "key": ""}), "visible ASCII"),
        ] {
            let error = read(&json).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn keys_differ() {
        assert_ne!(TaskKey::new(), TaskKey::new());
        assert_ne!(Task::default().key, Task::default().key);
        assert_eq!(TaskKey::none().as_str(), None);
        assert!(TaskKey::from_text("x".repeat(255)).is_ok());
        assert!(TaskKey::from_text("x".repeat(256)).is_err());
    }
}
