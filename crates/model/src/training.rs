//! How a job trains: its length, its rounds, what travels, and what it leaves.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::name::Name;
use crate::time::Span;

/// How a job trains, apart from its model, its data and its optimizers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Training {
    /// When it ends.
    pub length: Length,
    /// How long members train before their deltas are collected.
    pub round_time: Span,
    /// The most samples of a round; `None` if only the time limits it.
    pub samples_per_round: Option<u64>,
    /// The largest batch of a step. Workers with little memory take smaller ones.
    pub batch_size: u32,
    /// How the deltas and the updates are encoded.
    pub codec: Codec,
    /// The part of the deltas, in thousandths, that a round needs to close before all are there.
    pub quorum_milli: u32,
    /// How long late deltas are waited for at most.
    pub collection_timeout: Span,
    /// How the job begins.
    pub warm_start: WarmStart,
    /// Where and how often the state is stored.
    pub checkpoint: Checkpoint,
    /// The directory, on the scheduler's machine, that the trained model is written to.
    pub export: Option<Name>,
    /// What all that is random in the job depends on.
    pub seed: u64,
    /// Every member makes exactly this many steps in each round, and a round waits for all of them: slower, but the same
    /// job gives the same model, bit for bit.
    pub fixed_steps: Option<u32>,
}

/// When a job ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Length {
    /// After this many rounds.
    Rounds(u64),
    /// After this many samples.
    Samples(u64),
    /// After this many passes over the data set.
    Epochs(u32),
}

/// How tensors are encoded on their way between a worker and the parameter server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Codec {
    /// 32-bit floating point: nothing is lost.
    Fp32,
    /// 16-bit floating point.
    Fp16,
    /// Blocks of 8-bit integers with a scale.
    #[default]
    Int8,
    /// Blocks of 4-bit integers with a scale.
    Int4,
    /// Blocks of -1, 0 and 1 with a scale.
    Ternary,
}

/// The beginning of a job, before deltas of many steps help: rounds of few steps, almost synchronous training.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WarmStart {
    /// The part of the job, in thousandths; 0 for none.
    pub milli: u32,
    /// The steps of each member in a round of the warm start.
    pub steps: u32,
}

/// Where and how often the parameter server stores the state of a job. It always keeps the last rounds on its own disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// A copy is stored after this many rounds.
    pub every: u32,
    /// As many are kept.
    pub keep: u32,
    /// Where the copies go: a directory (`file:///…`) or a bucket (`s3://…`).
    pub url: Option<Name>,
}

/// The size of a model for the native trainer, instead of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GptSize {
    /// Blocks of attention and feed-forward layers.
    pub layers: u32,
    /// Numbers that describe a token between blocks; a multiple of `heads`.
    pub width: u32,
    /// Attention heads in a block.
    pub heads: u32,
    /// Tokens that the model sees.
    pub context: u32,
    /// Different tokens; 256 where a token is a byte.
    pub vocabulary: u32,
}

/// The inner learning rate over the job: a linear rise, then a half cosine.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RateSchedule {
    /// The part of the job over which the rate rises, from 0 to 1.
    pub warm_up: f64,
    /// The rate at the end, as a part of the highest, from 0 to 1.
    pub end: f64,
}

impl Default for Training {
    fn default() -> Training {
        Training {
            length: Length::Epochs(1),
            round_time: Span::from_secs(60),
            samples_per_round: None,
            batch_size: 8,
            codec: Codec::default(),
            quorum_milli: 750,
            collection_timeout: Span::from_secs(60),
            warm_start: WarmStart { milli: 100, steps: 1 },
            checkpoint: Checkpoint { every: 10, keep: 3, url: None },
            export: None,
            seed: 0,
            fixed_steps: None,
        }
    }
}

impl Default for RateSchedule {
    /// A constant rate, as in the examples of the optimizer without a schedule.
    fn default() -> RateSchedule {
        RateSchedule { warm_up: 0.0, end: 1.0 }
    }
}

impl Codec {
    /// All codecs, from the exact one to the smallest.
    pub const ALL: [Codec; 5] =
        [Codec::Fp32, Codec::Fp16, Codec::Int8, Codec::Int4, Codec::Ternary];

    /// Its name in jobs and messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Codec::Fp32 => "fp32",
            Codec::Fp16 => "fp16",
            Codec::Int8 => "int8",
            Codec::Int4 => "int4",
            Codec::Ternary => "ternary",
        }
    }
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// There is no codec of this name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is not a codec: use `fp32`, `fp16`, `int8`, `int4` or `ternary`")]
pub struct UnknownCodec;

impl FromStr for Codec {
    type Err = UnknownCodec;

    fn from_str(name: &str) -> Result<Codec, UnknownCodec> {
        Codec::ALL.into_iter().find(|codec| codec.as_str() == name).ok_or(UnknownCodec)
    }
}

impl GptSize {
    /// The number of parameters of GPT-2 with this size, whose embeddings are tied.
    pub fn parameters(&self) -> u64 {
        let [layers, width, context, vocabulary] =
            [self.layers, self.width, self.context, self.vocabulary].map(u64::from);
        let block = 12 * width * width + 13 * width;
        layers * block + (vocabulary + context + 2) * width
    }
}
