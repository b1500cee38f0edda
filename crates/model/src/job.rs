//! A training job, as it runs. What a user writes is a [`JobInput`](crate::job_input::JobInput); only one that
//! was checked becomes a [`JobSpec`].

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::money::Money;
use crate::name::Name;
use crate::requirement::Requirement;

/// A job whose every value was checked. The form that it is stored in is this one, not the user's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobSpec {
    /// Where the model comes from.
    pub model: Source,
    /// What kind of model it is.
    pub model_type: ModelType,
    /// Where the preprocessor comes from, if there is one.
    pub preprocessor: Option<Source>,
    /// The data set, by the name that data nodes advertise.
    pub dataset: Name,
    /// What each worker steps with.
    pub inner_optimizer: AdamW,
    /// What the parameter server steps with.
    pub outer_optimizer: Nesterov,
    /// How many workers train.
    pub num_workers: u32,
    /// What each of them must have.
    pub worker: Requirement,
    /// What the parameter server must have.
    pub parameter_server: Requirement,
    /// What a worker may cost, if the user says.
    pub worker_price: Option<PriceRange>,
    /// What the parameter server may cost, if the user says.
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
    /// What opens a private repository.
    pub token: Option<Secret>,
}

/// What a training executor loads the files as.
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
    /// What keeps the division from zero.
    pub epsilon: f64,
}

/// The outer optimizer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Nesterov {
    /// The size of a step.
    pub learning_rate: f64,
    /// How much of the last step stays, in `[0, 1)`.
    pub momentum: f64,
}

/// What a scheduler pays for an hour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PriceRange {
    /// What workers are told.
    pub bid: Money,
    /// What offers are filtered by; it never leaves the scheduler. At least the bid.
    pub max: Money,
}

/// A text that is not shown. It *is* serialised, because a job outlives its process: whoever shows a job to
/// somebody must leave it out.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl AdamW {
    /// The usual decays.
    pub const BETAS: [f64; 2] = [0.9, 0.999];
    /// The usual epsilon.
    pub const EPSILON: f64 = 1e-8;
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
