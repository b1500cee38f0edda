//! The requirements of a task, as the API takes them.

use hypha_model::amount::FieldError;
use hypha_model::{DeadlinePolicy, Maximise, Requirement, RequirementInput};
use serde_json::{Map, Value, json};

/// What a worker must have. Fields that are zero, `false` or empty are not required.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Requirements {
    /// Main memory, in bytes.
    pub min_memory: u64,
    /// Whether a GPU is needed at all.
    pub gpu_required: bool,
    /// Cores.
    pub cpu_cores: u32,
    /// How many GPUs.
    pub min_gpus: u32,
    /// Memory on each of them, in bytes.
    pub min_gpu_memory: u64,
    /// Disk, in bytes.
    pub min_storage: u64,
    /// Tasks with a higher priority go first.
    pub priority: f64,
    /// For how many seconds after submission the result is still useful.
    pub deadline: Option<f64>,
    /// Whether a task whose deadline no worker can meet is accepted or refused.
    pub deadline_policy: DeadlinePolicy,
    /// What counts when a worker is chosen; the scheduler's default if `None`.
    pub maximise: Option<Maximise>,
    /// Any other key that the API knows, or one of the above in another form: `"cpu_cores": 0.5`,
    /// `"min_memory": "16GB"`. These win.
    pub more: Map<String, Value>,
}

impl Requirements {
    /// The requirements in JSON, if a scheduler accepts them.
    pub fn from_json(json: Map<String, Value>) -> Result<Requirements, String> {
        check(json.clone())?;
        Ok(Requirements { more: json, ..Requirements::default() })
    }

    /// As the API takes them.
    pub fn to_json(&self) -> Map<String, Value> {
        let mut json = Map::new();
        let mut put = |key: &str, given: bool, value: Value| {
            if given {
                json.insert(key.to_owned(), value);
            }
        };
        put("min_memory", self.min_memory > 0, json!(self.min_memory));
        put("gpu_required", self.gpu_required, json!(true));
        put("cpu_cores", self.cpu_cores > 0, json!(self.cpu_cores));
        put("min_gpus", self.min_gpus > 0, json!(self.min_gpus));
        put("min_gpu_memory", self.min_gpu_memory > 0, json!(self.min_gpu_memory));
        put("min_storage", self.min_storage > 0, json!(self.min_storage));
        put("priority", self.priority != 0.0, json!(self.priority));
        put("deadline", self.deadline.is_some(), json!(self.deadline));
        let refuses = self.deadline_policy == DeadlinePolicy::Refuse;
        put("deadline_policy", refuses, json!(self.deadline_policy));
        put("maximise", self.maximise.is_some(), json!(self.maximise));
        json.extend(self.more.clone());
        json
    }
}

/// Parses requirements as the scheduler does.
fn check(json: Map<String, Value>) -> Result<(), String> {
    let input: RequirementInput =
        serde_json::from_value(Value::Object(json)).map_err(|error| error.to_string())?;
    Requirement::try_from(input).map_err(|error: FieldError| error.to_string())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serialized_requirements_are_read_by_a_scheduler() {
        let requirements = Requirements {
            min_memory: 16_000_000_000,
            gpu_required: true,
            cpu_cores: 4,
            min_gpus: 2,
            min_gpu_memory: 8_000_000_000,
            min_storage: 2_000_000,
            priority: 0.9,
            deadline: Some(1.5),
            deadline_policy: DeadlinePolicy::Refuse,
            maximise: Some(Maximise::Balance),
            more: Map::new(),
        };
        let json = requirements.to_json();
        let input: RequirementInput = serde_json::from_value(Value::Object(json.clone())).unwrap();
        let read = Requirement::try_from(input).unwrap();
        assert_eq!(
            (read.memory_bytes, read.cpu_milli, read.min_gpus, read.gpu_memory_bytes),
            (16_000_000_000, 4_000, 2, 8_000_000_000)
        );
        assert_eq!((read.storage_bytes, read.priority.as_f64()), (2_000_000, 0.9));
        assert_eq!(read.deadline, Some(hypha_model::Span::from_millis(1_500)));
        assert_eq!(read.deadline_policy, DeadlinePolicy::Refuse);
        assert_eq!(read.maximise, Some(Maximise::Balance));
        assert!(Requirements::default().to_json().is_empty());
        assert_eq!(Requirements::from_json(json.clone()).unwrap().to_json(), json);
    }

    #[test]
    fn invalid_requirements_are_refused_by_the_client() {
        let read = |json: Value| Requirements::from_json(json.as_object().unwrap().clone());
        assert!(read(json!({"min_mem": 1})).unwrap_err().contains("min_mem"));
        assert!(read(json!({"min_memory": 16})).unwrap_err().contains("16GB"));
        let half = Requirements {
            cpu_cores: 4,
            more: read(json!({"cpu_cores": 0.5})).unwrap().more,
            ..Requirements::default()
        };
        assert_eq!(half.to_json()["cpu_cores"], 0.5);
    }
}
