//! The keys of a job that say how it trains.

use serde::Deserialize;

use super::Problems;
use crate::amount::{FieldError, parse_count, parse_seconds};
use crate::input_value::InputValue;
use crate::time::Span;
use crate::training::{
    Checkpoint, Codec, GptSize, Length, RateSchedule, Training, UnknownCodec, WarmStart,
};

/// A round is at most a day, so that a lost machine costs at most that.
const MAX_ROUND: Span = Span::from_secs(24 * 3_600);
/// The sum of a round's samples is exact below this (`hypha-params`).
const MAX_ROUND_SAMPLES: u32 = (1 << 23) - 1;
/// Larger than any batch of one machine.
const MAX_BATCH: u32 = 65_536;
/// More rounds than there are seconds in a century.
const MAX_ROUNDS: u32 = u32::MAX;
/// The largest dimension of a model; four of them multiplied stay far below the range of 64 bits.
const MAX_DIMENSION: u32 = 65_536;
/// The largest vocabulary: several times that of any tokenizer.
const MAX_VOCABULARY: u32 = 1 << 20;

/// The keys beside `model`, `dataset`, the optimizers and `resources`, as they were given.
pub(super) struct TrainingInput {
    pub(super) rounds: Option<InputValue>,
    pub(super) samples: Option<InputValue>,
    pub(super) epochs: Option<InputValue>,
    pub(super) round_time: Option<InputValue>,
    pub(super) samples_per_round: Option<InputValue>,
    pub(super) batch_size: Option<InputValue>,
    pub(super) codec: Option<InputValue>,
    pub(super) quorum: Option<InputValue>,
    pub(super) collection_timeout: Option<InputValue>,
    pub(super) warm_start: Option<WarmStartInput>,
    pub(super) checkpoint: Option<CheckpointInput>,
    pub(super) export: Option<InputValue>,
    pub(super) seed: Option<InputValue>,
    pub(super) fixed_steps: Option<InputValue>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WarmStartInput {
    share: InputValue,
    steps: Option<InputValue>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CheckpointInput {
    every: Option<InputValue>,
    keep: Option<InputValue>,
    url: Option<InputValue>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GptInput {
    layers: InputValue,
    width: InputValue,
    heads: InputValue,
    context: InputValue,
    vocabulary: Option<InputValue>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RateScheduleInput {
    warm_up: Option<InputValue>,
    end: Option<InputValue>,
}

/// A token is a byte unless the job says otherwise.
const BYTES: u32 = 256;

impl Problems {
    pub(super) fn training(&mut self, input: &TrainingInput) -> Option<Training> {
        let or = Training::default();
        let length = self.length(input);
        let round_time = self.optional("round_time", &input.round_time, round_length);
        let samples_per_round =
            self.optional("samples_per_round", &input.samples_per_round, |field, given| {
                at_least_one(field, given, MAX_ROUND_SAMPLES).map(u64::from)
            });
        let batch_size = self.optional("batch_size", &input.batch_size, |field, given| {
            at_least_one(field, given, MAX_BATCH)
        });
        let codec = self.optional("codec", &input.codec, codec);
        let quorum = self.optional("quorum", &input.quorum, |field, given| match given {
            InputValue::Text(text) if text == "all" => Ok(1_000),
            given => share(field, given).and_then(|milli| match milli {
                0 => Err(FieldError::new(field, given, "is invalid: give more than 0")),
                milli => Ok(milli),
            }),
        });
        let timeout = self.optional("collection_timeout", &input.collection_timeout, round_length);
        let warm_start = input.warm_start.as_ref().map(|input| self.warm_start(input));
        let checkpoint = input.checkpoint.as_ref().map(|input| self.checkpoint(input));
        let export = self.optional("export", &input.export, |field, given| given.as_name(field));
        let seed = self.optional("seed", &input.seed, |field, given| {
            parse_count(field, given.as_str(), u32::MAX).map(u64::from)
        });
        let fixed_steps = self.optional("fixed_steps", &input.fixed_steps, |field, given| {
            at_least_one(field, given, MAX_ROUND_SAMPLES)
        });
        Some(Training {
            length: length?,
            round_time: round_time.unwrap_or(or.round_time),
            samples_per_round,
            batch_size: batch_size.unwrap_or(or.batch_size),
            codec: codec.unwrap_or(or.codec),
            quorum_milli: quorum.unwrap_or(or.quorum_milli),
            collection_timeout: timeout.unwrap_or(or.collection_timeout),
            warm_start: warm_start.unwrap_or(Some(or.warm_start))?,
            checkpoint: checkpoint.unwrap_or(Some(or.checkpoint))?,
            export,
            seed: seed.unwrap_or(or.seed),
            fixed_steps,
        })
    }

    fn length(&mut self, input: &TrainingInput) -> Option<Length> {
        let read = |field: &str, given: &InputValue| at_least_one(field, given, MAX_ROUNDS);
        match (&input.rounds, &input.samples, &input.epochs) {
            (None, None, None) => Some(Training::default().length),
            (Some(given), None, None) => {
                self.note(read("rounds", given)).map(|count| Length::Rounds(count.into()))
            }
            (None, Some(given), None) => {
                self.note(read("samples", given)).map(|count| Length::Samples(count.into()))
            }
            (None, None, Some(given)) => self.note(read("epochs", given)).map(Length::Epochs),
            (rounds, samples, _) => {
                let (field, given) = match (rounds, samples) {
                    (Some(given), _) => ("rounds", given),
                    (_, given) => ("samples", given.as_ref()?),
                };
                let problem = "is not the only length: give `rounds`, `samples` or `epochs`";
                self.0.push(FieldError::new(field, given, problem));
                None
            }
        }
    }

    fn warm_start(&mut self, input: &WarmStartInput) -> Option<WarmStart> {
        let milli = self.note(share("warm_start.share", &input.share));
        let steps = self.optional("warm_start.steps", &input.steps, |field, given| {
            at_least_one(field, given, MAX_ROUND_SAMPLES)
        });
        Some(WarmStart { milli: milli?, steps: steps.unwrap_or(1) })
    }

    fn checkpoint(&mut self, input: &CheckpointInput) -> Option<Checkpoint> {
        let or = Training::default().checkpoint;
        let count = |field: &str, given: &InputValue| at_least_one(field, given, MAX_ROUNDS);
        let every = self.optional("checkpoint.every", &input.every, count);
        let keep = self.optional("checkpoint.keep", &input.keep, count);
        let url = self.optional("checkpoint.url", &input.url, |field, given| {
            let url = given.as_name(field)?;
            if url.as_str().starts_with("file:///") || url.as_str().starts_with("s3://") {
                return Ok(url);
            }
            let problem = "is not a place for checkpoints: give `file:///…` or `s3://…`";
            Err(FieldError::new(field, given, problem))
        });
        Some(Checkpoint { every: every.unwrap_or(or.every), keep: keep.unwrap_or(or.keep), url })
    }

    pub(super) fn gpt(&mut self, input: &GptInput) -> Option<GptSize> {
        let dimension = |problems: &mut Problems, name: &str, given: &InputValue| {
            problems.note(at_least_one(&format!("model.gpt.{name}"), given, MAX_DIMENSION))
        };
        let layers = dimension(self, "layers", &input.layers);
        let width = dimension(self, "width", &input.width);
        let heads = dimension(self, "heads", &input.heads);
        let context = dimension(self, "context", &input.context);
        let vocabulary =
            self.optional("model.gpt.vocabulary", &input.vocabulary, |field, given| {
                at_least_one(field, given, MAX_VOCABULARY)
            });
        if let (Some(width), Some(heads)) = (width, heads)
            && width % heads != 0
        {
            let problem = format!("is not a multiple of heads = {heads}: change one of them");
            self.0.push(FieldError::new("model.gpt.width", width, problem));
        }
        let vocabulary = vocabulary.unwrap_or(BYTES);
        Some(GptSize {
            layers: layers?,
            width: width?,
            heads: heads?,
            context: context?,
            vocabulary,
        })
    }

    pub(super) fn rate_schedule(&mut self, input: &RateScheduleInput) -> RateSchedule {
        let or = RateSchedule::default();
        let part =
            |field: &str, given: &InputValue| share(field, given).map(|m| f64::from(m) / 1e3);
        let at = "inner_optimizer.schedule";
        let warm_up = self.optional(&format!("{at}.warm_up"), &input.warm_up, part);
        let end = self.optional(&format!("{at}.end"), &input.end, part);
        RateSchedule { warm_up: warm_up.unwrap_or(or.warm_up), end: end.unwrap_or(or.end) }
    }

    /// What was given, if it is valid.
    pub(super) fn optional<T>(
        &mut self,
        field: &str,
        given: &Option<InputValue>,
        read: impl Fn(&str, &InputValue) -> Result<T, FieldError>,
    ) -> Option<T> {
        given.as_ref().and_then(|given| self.note(read(field, given)))
    }
}

fn at_least_one(field: &str, given: &InputValue, max: u32) -> Result<u32, FieldError> {
    match parse_count(field, given.as_str(), max)? {
        0 => Err(FieldError::new(field, given, "is invalid: give at least 1")),
        count => Ok(count),
    }
}

fn round_length(field: &str, given: &InputValue) -> Result<Span, FieldError> {
    let span = parse_seconds(field, given.as_str())?;
    if span == Span::ZERO || span > MAX_ROUND {
        return Err(FieldError::new(field, given, "is invalid: give more than 0s, at most 24h"));
    }
    Ok(span)
}

/// A part of a whole, in thousandths.
fn share(field: &str, given: &InputValue) -> Result<u32, FieldError> {
    match given.as_str().parse::<f64>() {
        Ok(part) if (0.0..=1.0).contains(&part) => Ok((part * 1_000.0).round() as u32),
        _ => Err(FieldError::new(field, given, "is not from 0 to 1: give one such as 0.25")),
    }
}

fn codec(field: &str, given: &InputValue) -> Result<Codec, FieldError> {
    given
        .as_str()
        .parse()
        .map_err(|problem: UnknownCodec| FieldError::new(field, given, problem.to_string()))
}
