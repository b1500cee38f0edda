//! A requirement as users write it in JSON or TOML, and its conversion to a [`Requirement`].

use std::str::FromStr;

use serde::Deserialize;

use crate::amount::{
    FieldError, parse_bytes, parse_count, parse_milli, parse_priority, parse_seconds,
};
use crate::executor::ExecutorClass;
use crate::gpu_ids::GpuIds;
use crate::input_value::InputValue;
use crate::preference::{DeadlinePolicy, UnknownPreference};
use crate::requirement::Requirement;
use crate::resource::WHOLE_GPU;
use crate::time::Span;

/// More GPUs than any one worker has.
pub const MAX_GPUS: u32 = 4_096;
/// A bare number of bytes below this was meant in gigabytes (both occur in practice), and would silently require next
/// to nothing.
pub const MIN_BARE_BYTES: u64 = 1_000_000;

/// What a user requires of a worker. Amounts are numbers or texts with a unit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "an object of requirements")]
pub struct RequirementInput {
    /// Main memory.
    pub min_memory: Option<InputValue>,
    /// Whether a GPU is needed at all.
    pub gpu_required: Option<InputValue>,
    /// Cores.
    #[serde(alias = "min_cpu_cores")]
    pub cpu_cores: Option<InputValue>,
    /// How many GPUs.
    pub min_gpus: Option<InputValue>,
    /// Memory on each of them.
    pub min_gpu_memory: Option<InputValue>,
    /// The GPUs to use, by their numbers on the worker.
    pub gpu_ids: Option<Vec<InputValue>>,
    /// Disk.
    pub min_storage: Option<InputValue>,
    /// The share taken of each GPU, up to 1.
    pub gpu_share: Option<InputValue>,
    /// The estimated run time, in seconds or with a unit.
    pub estimated_time: Option<InputValue>,
    /// Higher goes first.
    pub priority: Option<InputValue>,
    /// How long after submission the result is still wanted, in seconds or with a unit.
    pub deadline: Option<InputValue>,
    /// Whether the submission is refused if no worker can meet the deadline.
    pub deadline_policy: Option<InputValue>,
    /// What counts when a worker is chosen: `speed`, `cost` or `balance`.
    pub maximise: Option<InputValue>,
    /// The class of executor, `inference` by default.
    pub executor_class: Option<InputValue>,
    /// The executor by name.
    pub executor: Option<InputValue>,
    /// The model that must be served.
    pub model: Option<InputValue>,
}

impl TryFrom<RequirementInput> for Requirement {
    type Error = FieldError;

    fn try_from(input: RequirementInput) -> Result<Requirement, FieldError> {
        let gpus = Gpus::of(&input)?;
        let class = match &input.executor_class {
            Some(class) => class
                .as_str()
                .parse()
                .map_err(|_| FieldError::new("executor_class", class, NOT_A_CLASS))?,
            None => ExecutorClass::default(),
        };
        let deadline = optional(&input.deadline, "deadline", parse_seconds)?;
        if let (Some(Span::ZERO), Some(given)) = (deadline, &input.deadline) {
            let problem = "is invalid: give the seconds for which the result is wanted";
            return Err(FieldError::new("deadline", given, problem));
        }
        Ok(Requirement {
            model: input.model.map(|name| name.as_name("model")).transpose()?,
            class,
            executor: input.executor.map(|name| name.as_name("executor")).transpose()?,
            cpu_milli: optional(&input.cpu_cores, "cpu_cores", parse_milli)?.unwrap_or(0),
            memory_bytes: optional_bytes(&input.min_memory, "min_memory")?,
            storage_bytes: optional_bytes(&input.min_storage, "min_storage")?,
            min_gpus: gpus.count,
            gpu_memory_bytes: gpus.memory_bytes,
            milli_gpu: gpus.milli_gpu,
            gpu_ids: gpus.ids,
            estimated_time: optional(&input.estimated_time, "estimated_time", parse_seconds)?,
            priority: optional(&input.priority, "priority", parse_priority)?.unwrap_or_default(),
            deadline,
            deadline_policy: deadline_policy(&input.deadline_policy, deadline)?,
            maximise: optional(&input.maximise, "maximise", parse_word)?,
        })
    }
}

const NOT_A_CLASS: &str = "is not an executor class: use `inference`, `train` or `aggregate`";

/// The five GPU fields combined.
struct Gpus {
    ids: GpuIds,
    count: u32,
    memory_bytes: u64,
    milli_gpu: u32,
}

impl Gpus {
    fn of(input: &RequirementInput) -> Result<Gpus, FieldError> {
        let required = match &input.gpu_required {
            Some(given) => Some(given.as_bool("gpu_required")?),
            None => None,
        };
        let count = optional(&input.min_gpus, "min_gpus", |field, text| {
            parse_count(field, text, MAX_GPUS)
        })?;
        let memory_bytes = optional_bytes(&input.min_gpu_memory, "min_gpu_memory")?;
        let milli_gpu = optional(&input.gpu_share, "gpu_share", parse_share)?;

        // Memory or a share of a GPU implies one GPU.
        let implied = match (memory_bytes, milli_gpu) {
            (0, None) => None,
            (0, Some(_)) => Some("gpu_share"),
            _ => Some("min_gpu_memory"),
        };
        let ids = gpu_ids(input.gpu_ids.as_deref().unwrap_or_default())?;
        let requested = match count {
            _ if !ids.is_empty() => Some("gpu_ids"),
            Some(1..) => Some("min_gpus"),
            _ => implied,
        };
        let contradicts = |field: &str, given: &str, other: &str| {
            let problem = format!("contradicts `{other}`: leave one of them out");
            Err(FieldError::new(field, given, problem))
        };
        if let (Some(false), Some(other)) = (required, requested) {
            return contradicts("gpu_required", "false", other);
        }
        if let (Some(0), Some(other)) = (count, implied) {
            return contradicts("min_gpus", "0", other);
        }
        if let Some(count) = count.filter(|count| !ids.is_empty() && *count != ids.count()) {
            return contradicts("min_gpus", &count.to_string(), "gpu_ids");
        }
        let least = u32::from(required == Some(true) || implied.is_some()).max(ids.count());
        Ok(Gpus {
            ids,
            count: count.unwrap_or(0).max(least),
            memory_bytes,
            milli_gpu: milli_gpu.unwrap_or(WHOLE_GPU),
        })
    }
}

fn gpu_ids(given: &[InputValue]) -> Result<GpuIds, FieldError> {
    given.iter().try_fold(GpuIds::default(), |ids, given| {
        let id = parse_count("gpu_ids", given.as_str(), GpuIds::MAX)?;
        let twice = || FieldError::new("gpu_ids", given, "is given twice: name each GPU once");
        ids.with(id).ok_or_else(twice)
    })
}

fn parse_share(field: &str, text: &str) -> Result<u32, FieldError> {
    match u32::try_from(parse_milli(field, text)?) {
        Ok(share @ 1..=WHOLE_GPU) => Ok(share),
        _ => {
            let problem = "is not a share of a GPU: give more than 0 and at most 1, \
                           and use `min_gpus` for several";
            Err(FieldError::new(field, text, problem))
        }
    }
}

fn deadline_policy(
    given: &Option<InputValue>,
    deadline: Option<Span>,
) -> Result<DeadlinePolicy, FieldError> {
    let policy = optional(given, "deadline_policy", parse_word)?.unwrap_or_default();
    match given.as_ref().filter(|_| deadline.is_none()) {
        Some(given) => {
            let problem = "has no effect without a deadline: give `deadline` too";
            Err(FieldError::new("deadline_policy", given, problem))
        }
        None => Ok(policy),
    }
}

fn parse_word<T: FromStr<Err = UnknownPreference>>(
    field: &str,
    text: &str,
) -> Result<T, FieldError> {
    text.parse().map_err(|error: UnknownPreference| FieldError::new(field, text, error.to_string()))
}

fn optional<T>(
    given: &Option<InputValue>,
    field: &str,
    parse: impl Fn(&str, &str) -> Result<T, FieldError>,
) -> Result<Option<T>, FieldError> {
    given.as_ref().map(|given| parse(field, given.as_str())).transpose()
}

fn optional_bytes(given: &Option<InputValue>, field: &str) -> Result<u64, FieldError> {
    let Some(given) = given else { return Ok(0) };
    let bytes = parse_bytes(field, given.as_str())?;
    let bare = given.as_str().trim().ends_with(|last: char| last.is_ascii_digit() || last == '.');
    if bare && (1..MIN_BARE_BYTES).contains(&bytes) {
        let problem =
            format!("is {bytes} bytes: write \"{bytes}GB\" for gigabytes, \"{bytes}B\" for bytes");
        return Err(FieldError::new(field, given, problem));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::priority::Priority;

    fn read(json: &str) -> Result<Requirement, String> {
        let input: RequirementInput =
            serde_json::from_str(json).map_err(|error| error.to_string())?;
        Requirement::try_from(input).map_err(|error| error.to_string())
    }

    #[test]
    fn examples_of_the_seeds_are_read() {
        let none = Requirement::default();
        assert_eq!(read("{}"), Ok(none.clone()));
        let seed_000 = Requirement { memory_bytes: 16_000_000_000, min_gpus: 1, ..none.clone() };
        assert_eq!(
            read(r#"{"min_memory": 16000000000, "gpu_required": true, "cpu_cores": 4}"#),
            Ok(Requirement { cpu_milli: 4_000, ..seed_000 })
        );
        let seed_004 = Requirement {
            cpu_milli: 4_000,
            memory_bytes: 16_000_000_000,
            min_gpus: 2,
            gpu_memory_bytes: 8_000_000_000,
            estimated_time: Some(Span::from_secs(300)),
            priority: Priority::from_milli(900),
            ..none
        };
        assert_eq!(
            read(
                r#"{"min_gpus": 2, "min_gpu_memory": "8.0GB", "min_cpu_cores": 4,
                    "min_memory": "16.0 GB", "estimated_time": 300.0, "priority": 0.9}"#
            ),
            Ok(seed_004)
        );
    }

    #[test]
    fn every_field_is_read() {
        let input: RequirementInput = toml::from_str(
            r#"
            min_memory = "1GiB"
            gpu_required = true
            cpu_cores = 0.5
            min_gpus = 0
            min_storage = "2GB"
            estimated_time = "500ms"
            priority = -5
            deadline = "2h"
            deadline_policy = "refuse"
            maximise = "cost"
            executor_class = "train"
            executor = "diloco-transformer"
            model = "llama-2-7b"
            "#,
        )
        .unwrap();
        let expected = Requirement {
            model: Some("llama-2-7b".parse().unwrap()),
            class: ExecutorClass::Train,
            executor: Some("diloco-transformer".parse().unwrap()),
            cpu_milli: 500,
            memory_bytes: 1 << 30,
            storage_bytes: 2_000_000_000,
            min_gpus: 1,
            gpu_memory_bytes: 0,
            milli_gpu: WHOLE_GPU,
            gpu_ids: GpuIds::default(),
            estimated_time: Some(Span::from_millis(500)),
            priority: Priority::from_milli(-5_000),
            deadline: Some(Span::from_secs(7_200)),
            deadline_policy: DeadlinePolicy::Refuse,
            maximise: Some(crate::Maximise::Cost),
        };
        assert_eq!(Requirement::try_from(input), Ok(expected));
    }

    #[test]
    fn gpu_fields_agree_or_are_refused() {
        // The input, then the number of GPUs, and the bytes and thousandths of each.
        let good = [
            (r#"{"min_gpu_memory": "8GB"}"#, (1, 8_000_000_000, 1_000)),
            (r#"{"gpu_share": 0.25}"#, (1, 0, 250)),
            (r#"{"gpu_share": "250m", "min_gpus": 3}"#, (3, 0, 250)),
            (r#"{"gpu_required": true, "min_gpus": 0}"#, (1, 0, 1_000)),
            (r#"{"gpu_required": true, "min_gpus": 2}"#, (2, 0, 1_000)),
            (r#"{"gpu_required": false, "min_gpus": 0, "min_gpu_memory": 0}"#, (0, 0, 1_000)),
            (r#"{"gpu_required": null}"#, (0, 0, 1_000)),
            (r#"{"gpu_ids": [0, 3]}"#, (2, 0, 1_000)),
            (r#"{"gpu_ids": [5], "min_gpus": 1, "gpu_required": true}"#, (1, 0, 1_000)),
            (r#"{"gpu_ids": [], "min_gpus": 0}"#, (0, 0, 1_000)),
        ];
        for (json, expected) in good {
            let read = read(json).map(|r| (r.min_gpus, r.gpu_memory_bytes, r.milli_gpu));
            assert_eq!(read, Ok(expected), "{json}");
        }
    }

    #[test]
    fn refusals_name_the_field() {
        let bad = [
            (
                r#"{"min_memory": -5}"#,
                "min_memory: `-5` is negative: \
                 give a number of bytes such as 16000000000 or \"16GB\"",
            ),
            (
                r#"{"min_memory": 16.0}"#,
                "min_memory: `16` is 16 bytes: write \"16GB\" for gigabytes",
            ),
            (r#"{"min_memory": [1, [2]]}"#, "min_memory: `[…]` is not a number"),
            (r#"{"min_memory": {"gb": 1}}"#, "min_memory: `{…}` is not a number"),
            (r#"{"min_memory": true}"#, "min_memory: `true` is not a number"),
            (r#"{"min_storage": 1e300}"#, "min_storage: `1000"),
            (r#"{"cpu_cores": "four"}"#, "cpu_cores: `four` is not a number"),
            (r#"{"min_gpus": 1.5}"#, "min_gpus: `1.5` is finer than one"),
            (r#"{"min_gpus": 5000}"#, "min_gpus: `5000` is too large: the most is 4096"),
            (r#"{"gpu_required": "yes"}"#, "gpu_required: `yes` is not a boolean"),
            (
                r#"{"gpu_required": false, "min_gpus": 1}"#,
                "gpu_required: `false` contradicts `min_gpus`",
            ),
            (
                r#"{"gpu_required": false, "min_gpu_memory": "1GB"}"#,
                "gpu_required: `false` contradicts `min_gpu_memory`",
            ),
            (r#"{"min_gpus": 0, "gpu_share": 1}"#, "min_gpus: `0` contradicts `gpu_share`"),
            (r#"{"gpu_ids": [1, 1]}"#, "gpu_ids: `1` is given twice"),
            (r#"{"gpu_ids": [64]}"#, "gpu_ids: `64` is too large: the most is 63"),
            (r#"{"gpu_ids": ["a"]}"#, "gpu_ids: `a` is not a number"),
            (r#"{"gpu_ids": [0], "min_gpus": 2}"#, "min_gpus: `2` contradicts `gpu_ids`"),
            (
                r#"{"gpu_ids": [0], "gpu_required": false}"#,
                "gpu_required: `false` contradicts `gpu_ids`",
            ),
            (r#"{"gpu_share": 0}"#, "gpu_share: `0` is not a share of a GPU"),
            (r#"{"gpu_share": 1.5}"#, "gpu_share: `1.5` is not a share of a GPU"),
            (r#"{"priority": "1e999"}"#, "priority: `1e999` is not finite"),
            (r#"{"deadline": 0}"#, "deadline: `0` is invalid"),
            (
                r#"{"deadline": 1, "deadline_policy": "drop"}"#,
                "deadline_policy: `drop` is unknown: use `accept` or `refuse`",
            ),
            (
                r#"{"deadline_policy": "refuse"}"#,
                "deadline_policy: `refuse` has no effect without a deadline",
            ),
            (r#"{"maximise": 1}"#, "maximise: `1` is unknown: use `speed`, `cost` or `balance`"),
            (r#"{"estimated_time": "-1s"}"#, "estimated_time: `-1s` is negative"),
            (r#"{"executor_class": "gpu"}"#, "executor_class: `gpu` is not an executor class"),
            (r#"{"executor": ""}"#, "executor: `` is refused: a name must not be empty"),
            (r#"{"model": 7}"#, "model: `7` is not a text"),
            (r#"{"min_mem": 7}"#, "unknown field `min_mem`, expected one of `min_memory`"),
            (r#"{"cpu_cores": 1, "min_cpu_cores": 2}"#, "duplicate field `cpu_cores`"),
        ];
        for (json, expected) in bad {
            let error = read(json).expect_err(json);
            assert!(error.starts_with(expected), "{json} gave: {error}");
        }
        let error = toml::from_str::<RequirementInput>("cpu_cores = nan").unwrap();
        let error = Requirement::try_from(error).unwrap_err().to_string();
        assert!(error.starts_with("cpu_cores: `NaN` is not finite"), "{error}");
    }
}
