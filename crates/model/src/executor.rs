//! Executors: what a worker can run.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::name::Name;

/// The kind of work that an executor does.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum ExecutorClass {
    /// Answers requests to a model.
    #[default]
    Inference,
    /// Runs the inner steps of a training job.
    Train,
    /// Averages the updates of trainers: a parameter server.
    Aggregate,
}

/// One program that a worker can run, how many at once, and for which models.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Executor {
    /// The kind of work.
    pub class: ExecutorClass,
    /// The name that a requirement may name, e.g. `diloco-transformer`.
    pub name: Name,
    /// The models it serves, in order; empty means any model.
    pub models: Vec<Name>,
    /// How many tasks it runs at once, at least 1.
    pub concurrency: u32,
}

impl Executor {
    /// Whether it serves `model`.
    pub fn serves(&self, model: &Name) -> bool {
        self.models.is_empty() || self.models.contains(model)
    }
}

/// A class that does not exist.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("`{0}` is not an executor class: use `inference`, `train` or `aggregate`")]
pub struct UnknownExecutorClass(String);

impl FromStr for ExecutorClass {
    type Err = UnknownExecutorClass;
    fn from_str(text: &str) -> Result<ExecutorClass, UnknownExecutorClass> {
        match text {
            "inference" => Ok(ExecutorClass::Inference),
            "train" => Ok(ExecutorClass::Train),
            "aggregate" => Ok(ExecutorClass::Aggregate),
            other => Err(UnknownExecutorClass(other.chars().take(64).collect())),
        }
    }
}

impl fmt::Display for ExecutorClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ExecutorClass::Inference => "inference",
            ExecutorClass::Train => "train",
            ExecutorClass::Aggregate => "aggregate",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn class_is_one_word_everywhere() {
        for class in [ExecutorClass::Inference, ExecutorClass::Train, ExecutorClass::Aggregate] {
            assert_eq!(class.to_string().parse(), Ok(class));
            assert_eq!(serde_json::to_string(&class).unwrap(), format!("\"{class}\""));
        }
        let error = "Train".parse::<ExecutorClass>().unwrap_err().to_string();
        assert_eq!(
            error,
            "`Train` is not an executor class: use `inference`, `train` or `aggregate`"
        );
        assert!("x".repeat(10_000).parse::<ExecutorClass>().unwrap_err().to_string().len() < 200);
    }

    #[test]
    fn executor_without_models_serves_any() {
        let name = |text: &str| text.parse::<Name>().unwrap();
        let serving = |models: &[&str]| Executor {
            class: ExecutorClass::Inference,
            name: name("vllm"),
            models: models.iter().map(|model| name(model)).collect(),
            concurrency: 1,
        };
        assert!(serving(&[]).serves(&name("llama")));
        assert!(serving(&["gpt", "llama"]).serves(&name("llama")));
        assert!(!serving(&["gpt"]).serves(&name("llama")));
    }
}
