//! A task as a client writes it, and its conversion into a [`TaskSpec`].

use std::fmt;

use hypha_model::amount::{FieldError, parse_seconds};
use hypha_model::input_value::InputValue;
use hypha_model::{
    InputKind, Metadata, MetadataValue, Name, Payload, Requirement, RequirementInput, Span,
    TaskSpec,
};
use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::caller::Caller;
use crate::error::Error;
use crate::json::{self, PortableJson};

/// Tasks in one request. Each costs about a microsecond of the machine, and all other requests wait
/// meanwhile.
pub(crate) const MAX_BATCH: usize = 10_000;

/// A task to be run.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewTask)]
pub(crate) struct TaskForm<'a> {
    /// The model; only workers that serve it are considered.
    #[serde(default)]
    #[schema(value_type = String, required, example = "echo", min_length = 1, max_length = 256, pattern = "^[!-~]+$")]
    model: Option<InputValue>,
    /// Any JSON; passed to the executor unchanged.
    #[serde(borrow, default)]
    #[schema(value_type = serde_json::Value)]
    input: Option<&'a RawValue>,
    /// What the worker must have.
    #[serde(default)]
    #[schema(value_type = Option<Requirements>)]
    requirements: Option<RequirementInput>,
    /// Features for the predictor: numbers and short strings.
    #[serde(default)]
    #[schema(value_type = Option<std::collections::HashMap<String, f64>>)]
    metadata: Option<UniqueMetadata>,
    /// How long one attempt may take, in seconds or with a unit.
    #[serde(default)]
    #[schema(value_type = Option<f64>, exclusive_minimum = 0.0, maximum = 315360000.0, multiple_of = 0.5)]
    timeout: Option<InputValue>,
    /// As in the requirements.
    #[serde(default)]
    #[schema(value_type = Option<f64>)]
    priority: Option<InputValue>,
    /// As in the requirements.
    #[serde(default)]
    #[schema(value_type = Option<f64>, minimum = 1.0, maximum = 315360000.0, multiple_of = 0.5)]
    deadline: Option<InputValue>,
    /// As in the requirements.
    #[serde(default)]
    #[schema(value_type = Option<String>, pattern = "^(accept|refuse)$")]
    deadline_policy: Option<InputValue>,
    /// As in the requirements.
    #[serde(default)]
    #[schema(value_type = Option<String>, pattern = "^(speed|cost|balance)$")]
    maximise: Option<InputValue>,
    /// Whether pieces of the result are sent as they arrive, as `output` events.
    #[serde(default)]
    stream: Option<bool>,
}

/// The requirements of a task. Amounts may also be strings with a unit: `"16GB"`, `"90s"`.
#[derive(ToSchema)]
#[expect(dead_code, reason = "the schema of what the model reads")]
pub(crate) struct Requirements {
    /// Main memory in bytes.
    #[schema(minimum = 1_000_000, maximum = 1_152_921_504_606_846_976_u64)]
    min_memory: Option<u64>,
    /// Whether a GPU is needed at all.
    gpu_required: Option<bool>,
    /// Cores.
    #[schema(minimum = 0, maximum = 1_000_000)]
    cpu_cores: Option<u32>,
    /// How many GPUs.
    #[schema(minimum = 1, maximum = 4096)]
    min_gpus: Option<u32>,
    /// Memory on each of them in bytes.
    #[schema(minimum = 1_000_000, maximum = 1_152_921_504_606_846_976_u64)]
    min_gpu_memory: Option<u64>,
    /// Exactly these GPUs, by their numbers on the worker. Refused if no worker has them free.
    #[schema(max_items = 64)]
    gpu_ids: Option<Vec<u32>>,
    /// Disk in bytes.
    #[schema(minimum = 1_000_000, maximum = 1_152_921_504_606_846_976_u64)]
    min_storage: Option<u64>,
    /// The share taken of each GPU.
    #[schema(minimum = 0.25, maximum = 1.0, multiple_of = 0.25)]
    gpu_share: Option<f64>,
    /// The estimated run time, in seconds.
    #[schema(minimum = 0.0, maximum = 315360000.0, multiple_of = 0.5)]
    estimated_time: Option<f64>,
    /// Tasks with a higher priority go first. Any number.
    priority: Option<f64>,
    /// How long after submission the result is still useful, in seconds.
    #[schema(minimum = 1.0, maximum = 315360000.0, multiple_of = 0.5)]
    deadline: Option<f64>,
    /// With a deadline: whether the task is accepted or refused if no worker can meet it, `accept` or `refuse`.
    #[schema(pattern = "^(accept|refuse)$")]
    deadline_policy: Option<String>,
    /// What counts when a worker is chosen: `speed`, `cost` or `balance`; the scheduler's `maximise` by default.
    #[schema(pattern = "^(speed|cost|balance)$")]
    maximise: Option<String>,
    /// The class of executor: `inference`, `train` or `aggregate`.
    #[schema(pattern = "^(inference|train|aggregate)$")]
    executor_class: Option<String>,
    /// The executor by name.
    #[schema(min_length = 1, max_length = 256, pattern = "^[!-~]+$")]
    executor: Option<String>,
}

impl TaskForm<'_> {
    /// The specification, on behalf of `caller`.
    pub(crate) fn into_spec(self, caller: &Caller) -> Result<TaskSpec, Error> {
        let missing = || Error::unprocessable("model: name the model, e.g. \"model\": \"echo\"");
        let model = self.model.ok_or_else(missing)?.as_name("model").map_err(field_error)?;
        let outer = RequirementInput {
            priority: self.priority,
            deadline: self.deadline,
            deadline_policy: self.deadline_policy,
            maximise: self.maximise,
            ..RequirementInput::default()
        };
        let requirement = requirement(self.requirements.unwrap_or_default(), model, outer)?;
        caller.check_priority(requirement.priority)?;
        Ok(TaskSpec {
            requirement,
            input: payload("input", self.input)?,
            metadata: self.metadata.map(|labels| labels.0).unwrap_or_default(),
            tenant: caller.tenant.clone(),
            timeout: self.timeout.as_ref().map(|it| timeout("timeout", it)).transpose()?,
            form: InputKind::Task,
            stream: self.stream.unwrap_or_default(),
        })
    }
}

/// The input of an executor: any JSON, passed on unchanged.
pub(crate) fn payload(field: &str, input: Option<&RawValue>) -> Result<Payload, Error> {
    let input = input.map_or("null", RawValue::get);
    serde_json::from_str::<PortableJson>(input).map_err(|error| Error {
        message: format!("{field}: {error}"),
        ..json::parse_error(&error)
    })?;
    Ok(Payload::from(input.as_bytes()))
}

/// The requirement, with those of its fields that may also be given beside it.
fn requirement(
    mut input: RequirementInput,
    model: Name,
    outer: RequirementInput,
) -> Result<Requirement, Error> {
    let twice = |field: &str| {
        Error::unprocessable(format!("{field}: is given twice; leave it out of `requirements`"))
    };
    for (field, outer, inner) in [
        ("priority", outer.priority, &mut input.priority),
        ("deadline", outer.deadline, &mut input.deadline),
        ("deadline_policy", outer.deadline_policy, &mut input.deadline_policy),
        ("maximise", outer.maximise, &mut input.maximise),
    ] {
        match (outer, &inner) {
            (Some(_), Some(_)) => return Err(twice(field)),
            (Some(outer), None) => *inner = Some(outer),
            (None, _) => {}
        }
    }
    let mut requirement = Requirement::try_from(input).map_err(field_error)?;
    match &requirement.model {
        Some(other) if *other != model => return Err(twice("model")),
        _ => requirement.model = Some(model),
    }
    Ok(requirement)
}

/// How long an attempt may take.
pub(crate) fn timeout(field: &str, given: &InputValue) -> Result<Span, Error> {
    match parse_seconds(field, given.as_str()).map_err(field_error)? {
        Span::ZERO => {
            Err(Error::unprocessable(format!("{field}: `0` leaves no time: give more seconds")))
        }
        span => Ok(span),
    }
}

pub(crate) fn field_error(error: FieldError) -> Error {
    Error::unprocessable(error.to_string())
}

/// Metadata without duplicate keys.
struct UniqueMetadata(Metadata);

impl<'de> Deserialize<'de> for UniqueMetadata {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<UniqueMetadata, D::Error> {
        deserializer.deserialize_map(UniqueMetadataVisitor)
    }
}

struct UniqueMetadataVisitor;

impl<'de> Visitor<'de> for UniqueMetadataVisitor {
    type Value = UniqueMetadata;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("metadata: an object of numbers and short strings")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<UniqueMetadata, A::Error> {
        let mut entries = Vec::new();
        while let Some((key, value)) = map.next_entry::<std::sync::Arc<str>, InputValue>()? {
            let shown = || key.chars().take(64).collect::<String>();
            if entries.len() >= Metadata::MAX_ENTRIES {
                let most = Metadata::MAX_ENTRIES;
                return Err(de::Error::custom(format!("metadata has more than {most} fields")));
            }
            if entries.iter().any(|(other, _)| *other == key) {
                return Err(de::Error::custom(format!("metadata has `{}` twice", shown())));
            }
            let value = match value {
                InputValue::Number(text) => {
                    MetadataValue::Number(text.parse().map_err(de::Error::custom)?)
                }
                InputValue::Text(text) => MetadataValue::Text(text.into()),
                InputValue::Bool(on) => {
                    MetadataValue::Text(if on { "true" } else { "false" }.into())
                }
                InputValue::Other(_) => {
                    let problem = "is neither a number nor a string";
                    return Err(de::Error::custom(format!("metadata: `{}` {problem}", shown())));
                }
            };
            entries.push((key, value));
        }
        Metadata::new(entries).map(UniqueMetadata).map_err(de::Error::custom)
    }
}

/// The elements of an array of tasks, unread, at most [`MAX_BATCH`].
pub(crate) struct Batch<'a>(pub(crate) Vec<&'a RawValue>);

impl<'de> Deserialize<'de> for Batch<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Batch<'de>, D::Error> {
        deserializer.deserialize_seq(BatchVisitor)
    }
}

struct BatchVisitor;

impl<'de> Visitor<'de> for BatchVisitor {
    type Value = Batch<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a task or an array of tasks")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Batch<'de>, A::Error> {
        let mut tasks = Vec::new();
        while let Some(task) = seq.next_element()? {
            if tasks.len() == MAX_BATCH {
                let problem = format!("there are more than {MAX_BATCH} tasks; send them in parts");
                return Err(de::Error::custom(problem));
            }
            tasks.push(task);
        }
        Ok(Batch(tasks))
    }
}

#[cfg(test)]
mod tests {
    use hypha_model::{DeadlinePolicy, Maximise, Priority};

    use super::*;

    fn spec(text: &str) -> Result<TaskSpec, (u16, String)> {
        let form = json::parse_object::<TaskForm>(text.as_bytes());
        form.and_then(|form| form.into_spec(&Caller::ANONYMOUS_ADMIN))
            .map_err(|error| (error.status.as_u16(), error.message))
    }

    #[test]
    fn a_task_is_understood() {
        let spec = spec(
            r#"{"model": "llama-2-7b", "input": {"b": 12345678901234567890123, "a":  1},
                "requirements": {"min_memory": 16000000000, "gpu_required": true},
                "metadata": {"tokens": 7, "kind": "chat", "flash": true},
                "timeout": "90s", "priority": 0.5123456, "deadline": 60, "deadline_policy": "refuse",
                "maximise": "cost", "stream": true}"#,
        )
        .unwrap();
        assert_eq!(spec.requirement.model.as_ref().unwrap().as_str(), "llama-2-7b");
        assert_eq!((spec.requirement.memory_bytes, spec.requirement.min_gpus), (16_000_000_000, 1));
        assert_eq!(spec.requirement.priority, Priority::new(0.5123456).unwrap());
        assert_eq!(spec.requirement.deadline, Some(Span::from_secs(60)));
        assert_eq!(spec.requirement.deadline_policy, DeadlinePolicy::Refuse);
        assert_eq!(spec.requirement.maximise, Some(Maximise::Cost));
        assert_eq!(spec.timeout, Some(Span::from_secs(90)));
        assert_eq!(spec.metadata.get("flash"), Some(&MetadataValue::Text("true".into())));
        // Every digit is kept.
        assert_eq!(spec.input.bytes(), br#"{"b": 12345678901234567890123, "a":  1}"#);
        let bare = self::spec(r#"{"model": "echo"}"#).unwrap();
        assert_eq!(bare.input.bytes(), b"null");
        assert_eq!((spec.stream, bare.stream), (true, false));
    }

    #[test]
    fn refusals_name_the_field() {
        let deep = format!(r#"{{"model": "m", "input": {}{}}}"#, "[".repeat(200), "]".repeat(200));
        let many: Vec<String> = (0..65).map(|n| format!("\"k{n}\": {n}")).collect();
        let many = format!(r#"{{"model": "m", "metadata": {{{}}}}}"#, many.join(","));
        let cases = [
            (r#"{"input": "x"}"#, 422, "model: name the model"),
            (r#"{"model": 7}"#, 422, "model: `7` is not a text"),
            (r#"{"model": ""}"#, 422, "model: `` is refused"),
            (r#"{"model": "m", "modle": "x"}"#, 422, "unknown field `modle`"),
            (r#"{"model": "m", "model": "m"}"#, 422, "duplicate field `model`"),
            (r#"{"model": "m", "input": 1, "input": 2}"#, 422, "duplicate field `input`"),
            (r#"{"model": "m", "input": NaN}"#, 400, "expected value"),
            (r#"{"model": "m", "input": 1e999}"#, 400, "input: number out of range"),
            (r#"{"model": "m", "input": "\ud800"}"#, 400, "input: "),
            (r#"{"model": "m", "requirements": 7}"#, 422, "invalid type"),
            (r#"{"model": "m", "requirements": {"min_memory": -1}}"#, 422, "min_memory: `-1`"),
            (r#"{"model": "m", "requirements": {"model": "n"}}"#, 422, "model: is given twice"),
            (
                r#"{"model": "m", "priority": 1, "requirements": {"priority": 1}}"#,
                422,
                "priority: ",
            ),
            (
                r#"{"model": "m", "maximise": "cost", "requirements": {"maximise": "cost"}}"#,
                422,
                "maximise: is given twice",
            ),
            (r#"{"model": "m", "maximise": "profit"}"#, 422, "maximise: `profit` is unknown"),
            (r#"{"model": "m", "deadline_policy": "refuse"}"#, 422, "deadline_policy: `refuse`"),
            (r#"{"model": "m", "timeout": 0}"#, 422, "timeout: `0`"),
            (r#"{"model": "m", "timeout": "x"}"#, 422, "timeout: `x`"),
            (r#"{"model": "m", "stream": "yes"}"#, 422, "expected a boolean"),
            (r#"{"model": "m", "metadata": {"a": [1]}}"#, 422, "metadata: `a` is neither"),
            (r#"{"model": "m", "metadata": {"a": 1, "a": 2}}"#, 422, "metadata has `a` twice"),
            (r#"{"model": "m", "metadata": []}"#, 422, "expected metadata"),
            (many.as_str(), 422, "more than 64 fields"),
            (deep.as_str(), 400, "input: recursion limit"),
            (r#"[]"#, 422, ""),
        ];
        for (text, status, message) in cases {
            let (got, said) = spec(text).unwrap_err();
            assert_eq!(got, status, "{text}: {said}");
            assert!(said.contains(message), "{text}: {said}");
        }
    }

    #[test]
    fn a_batch_is_bounded() {
        let of = |count: usize| format!("[{}]", vec!["1"; count].join(","));
        assert_eq!(json::parse::<Batch>(of(MAX_BATCH).as_bytes()).unwrap().0.len(), MAX_BATCH);
        assert!(json::parse::<Batch>(of(MAX_BATCH + 1).as_bytes()).is_err());
    }
}
