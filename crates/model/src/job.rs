//! A training job, as it runs. Users write a [`JobInput`](crate::job_input::JobInput); only a checked one becomes a
//! [`JobSpec`].

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::money::Money;
use crate::name::Name;
use crate::requirement::Requirement;
use crate::training::{GptSize, RateSchedule, Training};

/// A job whose every value was checked. It is stored in this form, not the user's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobSpec {
    /// The source of the model.
    pub model: ModelSource,
    /// The type of the model.
    pub model_type: ModelType,
    /// The source of the preprocessor, if there is one.
    pub preprocessor: Option<Source>,
    /// The data set, by the name that data nodes advertise.
    pub dataset: Name,
    /// The optimizer of each worker.
    pub inner_optimizer: AdamW,
    /// The optimizer of the parameter server.
    pub outer_optimizer: Nesterov,
    /// The workers that it needs.
    pub resources: JobResources,
    /// How it trains.
    pub training: Training,
}

/// Where the model comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ModelSource {
    /// Files of a repository.
    Repository(Source),
    /// A new model of the native trainer.
    Gpt(GptSize),
}

/// The workers that a job needs, and what it pays for them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobResources {
    /// How many workers are wanted.
    pub num_workers: u32,
    /// How many workers there must be.
    pub min_workers: u32,
    /// The requirement of each worker.
    pub worker: Requirement,
    /// The requirement of the parameter server, if there is one.
    pub parameter_server: Option<Requirement>,
    /// The price range of a worker, if the user states one.
    pub worker_price: Option<PriceRange>,
    /// The price range of the parameter server, if the user states one.
    pub parameter_server_price: Option<PriceRange>,
}

/// Files of a model repository.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// The repository, `owner/repo`.
    pub repository: Name,
    /// A branch or tag.
    pub revision: Option<Name>,
    /// The files, by paths that stay inside the repository.
    pub filenames: Vec<Name>,
    /// The token for a private repository.
    pub token: Option<Secret>,
}

/// The class that a training executor loads the files as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ModelType {
    /// `AutoModelForImageClassification`.
    VisionClassification,
    /// `AutoModelForCausalLM`.
    CausalLm,
    /// Any PyTorch model.
    Torch,
}

/// The inner optimizer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdamW {
    /// The size of a step.
    pub learning_rate: f64,
    /// The decay of the first and the second moment, each in `[0, 1)`.
    pub betas: [f64; 2],
    /// Keeps the division away from zero.
    pub epsilon: f64,
    /// How much of each weight is taken off in a step, times the rate; in `[0, 1)`.
    pub weight_decay: f64,
    /// How the rate changes over the job.
    pub schedule: RateSchedule,
}

/// The outer optimizer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Nesterov {
    /// The size of a step.
    pub learning_rate: f64,
    /// How much of the last step is kept, in `[0, 1)`.
    pub momentum: f64,
}

/// The price that a scheduler pays for an hour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PriceRange {
    /// The price that workers are shown.
    pub bid: Money,
    /// The price that offers are filtered by; it never leaves the scheduler. At least the bid.
    pub max: Money,
}

/// A text that is not shown. It *is* serialised, because a job outlives its process: code that shows a job to a user
/// must leave it out.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl AdamW {
    /// The usual decays.
    pub const BETAS: [f64; 2] = [0.9, 0.999];
    /// The usual epsilon.
    pub const EPSILON: f64 = 1e-8;
    /// The usual weight decay, which is also PyTorch's.
    pub const WEIGHT_DECAY: f64 = 0.01;
}

impl Secret {
    /// Hides `text`.
    pub fn new(text: String) -> Secret {
        Secret(text)
    }

    /// The text itself, for the one request that needs it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}
