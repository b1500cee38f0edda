//! The trainer: a model, its optimiser and the threads that share out a batch.
//!
//! A step has three phases, each over all threads: every thread computes the gradient of some of the sequences; every
//! thread sums a part of these gradients; every thread moves a part of the parameters. What a thread does depends on the
//! batch and the number of threads alone, so that a run repeats exactly for a seed and a number of threads.

use std::iter::zip;

use thiserror::Error;

use crate::activations::Activations;
use crate::adamw::{AdamW, AdamWSettings, Part};
use crate::config::{Config, ConfigError};
use crate::generate::Generator;
use crate::model::{Batch, Model};
use crate::params::Layout;

/// Each thread has a gradient of the size of the model: more threads than any one machine has cores are a mistake.
pub const MAX_THREADS: usize = 1024;

/// Trains one model. All methods are synchronous and compute on their own threads.
#[derive(Debug)]
pub struct Trainer {
    pub(crate) model: Model,
    pub(crate) settings: AdamWSettings,
    pub(crate) parameters: Vec<f32>,
    pub(crate) optimizer: AdamW,
    lanes: Vec<Lane>,
}

/// Why a batch or a set of parameters is refused. The trainer is as it was before.
#[derive(Clone, Copy, Debug, Error, PartialEq)]
pub enum TrainError {
    /// The tokens are not sequences of equal length.
    #[error(
        "{tokens} tokens are not {batch_size} sequences of equal length: pass one row after the other"
    )]
    UnevenBatch {
        /// Tokens in the batch.
        tokens: usize,
        /// Sequences that the caller asked for.
        batch_size: usize,
    },
    /// A sequence is too short to predict anything, or longer than the model sees.
    #[error("a sequence has {tokens} tokens: pass 2 to {max}, the context and the token after it")]
    SequenceLength {
        /// Tokens in each sequence.
        tokens: usize,
        /// The most that the model takes.
        max: usize,
    },
    /// A token is outside the vocabulary.
    #[error(
        "token {token} is not in the vocabulary of {vocabulary}: check how the text was encoded"
    )]
    UnknownToken {
        /// The first such token.
        token: u32,
        /// Tokens that the model knows.
        vocabulary: usize,
    },
    /// The parameters do not fit the model.
    #[error(
        "{actual} parameters for a model with {expected}: they come from a model of another size"
    )]
    ParameterCount {
        /// Values passed.
        actual: usize,
        /// Values of the model.
        expected: usize,
    },
    /// The learning rate is negative, infinite or not a number.
    #[error("learning rate {0} is not a positive number: pass one such as 0.001")]
    LearningRate(f64),
    /// The loss or the gradient is infinite or not a number.
    #[error(
        "loss {loss} and gradient norm {gradient_norm} are not both finite: lower the learning rate or restore a state"
    )]
    Diverged {
        /// The batch's mean loss.
        loss: f64,
        /// The length of its gradient.
        gradient_norm: f64,
    },
}

/// The buffers of one thread.
#[derive(Debug, Default)]
struct Lane {
    activations: Activations<f32>,
    gradient: Vec<f32>,
}

impl Trainer {
    /// A trainer of a new model, whose values depend on `seed` alone. `threads` counts the caller's; zero counts as one.
    pub fn new(config: Config, seed: u64, threads: usize) -> Result<Self, ConfigError> {
        config.validate()?;
        let model = Model::new(config);
        let parameters = model.layout.initial_values(seed);
        let optimizer = AdamW::new(parameters.len());
        let mut lanes = Vec::new();
        lanes.resize_with(threads.clamp(1, MAX_THREADS), Lane::default);
        Ok(Self { model, settings: AdamWSettings::default(), parameters, optimizer, lanes })
    }

    /// The same trainer with other settings of its optimiser.
    pub fn with_settings(mut self, settings: AdamWSettings) -> Self {
        self.settings = settings;
        self
    }

    /// The model's size.
    pub fn config(&self) -> &Config {
        &self.model.config
    }

    /// Names, shapes and places of the parameters.
    pub fn layout(&self) -> &Layout {
        &self.model.layout
    }

    /// All parameters, laid out as [`Trainer::layout`] says.
    pub fn parameters(&self) -> &[f32] {
        &self.parameters
    }

    /// Steps taken since the beginning, across restored states.
    pub fn steps(&self) -> u64 {
        self.optimizer.steps
    }

    /// Replaces the parameters. The optimiser keeps its moments, as a worker wants between two rounds.
    pub fn load_parameters(&mut self, parameters: &[f32]) -> Result<(), TrainError> {
        let (actual, expected) = (parameters.len(), self.parameters.len());
        if actual != expected {
            return Err(TrainError::ParameterCount { actual, expected });
        }
        self.parameters.copy_from_slice(parameters);
        Ok(())
    }

    /// Takes one step and returns the mean loss a token, in nats, before it. `batch` holds `batch_size` sequences of equal
    /// length, one after the other; each may have one token more than the context, since its last is only predicted.
    pub fn step(
        &mut self,
        batch: &[u32],
        batch_size: usize,
        learning_rate: f64,
    ) -> Result<f64, TrainError> {
        let batch = self.check(batch, batch_size)?;
        if !learning_rate.is_finite() || learning_rate < 0.0 {
            return Err(TrainError::LearningRate(learning_rate));
        }
        let predictions = batch.shape().rows() as f64;
        let (model, parameters) = (&self.model, &self.parameters[..]);
        let parts = share_out(batch, self.lanes.len());
        let losses = on_threads(zip(&mut self.lanes, parts), |(lane, part)| {
            lane.gradient.clear();
            lane.gradient.resize(parameters.len(), 0.0);
            let loss = model.forward(parameters, &mut lane.activations, part);
            let Lane { activations, gradient } = lane;
            model.backward(gradient, parameters, activations, part, 1.0 / predictions);
            loss
        });
        let loss = losses.iter().sum::<f64>() / predictions;
        let gradient_norm = self.sum_gradients(losses.len());
        if !loss.is_finite() || !gradient_norm.is_finite() {
            return Err(TrainError::Diverged { loss, gradient_norm });
        }
        self.update(learning_rate, gradient_norm);
        Ok(loss)
    }

    /// The mean loss a token of `batch`, in nats, without learning from it.
    pub fn evaluate(&mut self, batch: &[u32], batch_size: usize) -> Result<f64, TrainError> {
        let batch = self.check(batch, batch_size)?;
        let (model, parameters) = (&self.model, &self.parameters[..]);
        let parts = share_out(batch, self.lanes.len());
        let losses = on_threads(zip(&mut self.lanes, parts), |(lane, part)| {
            model.forward(parameters, &mut lane.activations, part)
        });
        Ok(losses.iter().sum::<f64>() / batch.shape().rows() as f64)
    }

    /// A generator of text that uses the parameters as they are now.
    pub fn generator(&self) -> Generator<'_> {
        Generator::new(&self.model, &self.parameters)
    }

    fn check<'a>(&self, tokens: &'a [u32], batch_size: usize) -> Result<Batch<'a>, TrainError> {
        let count = tokens.len();
        if batch_size == 0 || !count.is_multiple_of(batch_size) {
            return Err(TrainError::UnevenBatch { tokens: count, batch_size });
        }
        let (length, max) = (count / batch_size, self.model.config.context + 1);
        if !(2..=max).contains(&length) {
            return Err(TrainError::SequenceLength { tokens: length, max });
        }
        let vocabulary = self.model.config.vocabulary;
        match tokens.iter().find(|token| **token as usize >= vocabulary) {
            Some(&token) => Err(TrainError::UnknownToken { token, vocabulary }),
            None => Ok(Batch { tokens, sequences: batch_size }),
        }
    }

    /// Adds the gradients of the first `used` lanes into the first one; returns the length of the sum.
    fn sum_gradients(&mut self, used: usize) -> f64 {
        let part_len = self.part_len();
        let Some((first, others)) = self.lanes[..used].split_first_mut() else {
            return 0.0;
        };
        let parts = first.gradient.chunks_mut(part_len).enumerate();
        let squares = on_threads(parts, |(i, part)| {
            for other in &*others {
                let start = i * part_len;
                let other = &other.gradient[start..start + part.len()];
                for (sum, value) in zip(&mut *part, other) {
                    *sum += *value;
                }
            }
            square_norm(part)
        });
        squares.iter().sum::<f64>().sqrt()
    }

    fn update(&mut self, learning_rate: f64, gradient_norm: f64) {
        let part_len = self.part_len();
        let update = self.optimizer.begin(&self.settings, learning_rate, gradient_norm);
        let layout = &self.model.layout;
        let moments = zip(
            self.optimizer.first_moment.chunks_mut(part_len),
            self.optimizer.second_moment.chunks_mut(part_len),
        );
        let gradient = &self.lanes[0].gradient;
        let values = zip(self.parameters.chunks_mut(part_len), gradient.chunks(part_len));
        let parts = zip(values, moments).enumerate();
        on_threads(parts, |(i, ((parameters, gradient), (first_moment, second_moment)))| {
            let start = i * part_len;
            update.apply(Part { start, parameters, gradient, first_moment, second_moment }, layout);
        });
    }

    /// A thread's part of a buffer of the model's size.
    fn part_len(&self) -> usize {
        self.parameters.len().div_ceil(self.lanes.len())
    }
}

/// The sequences of each thread. There are fewer parts than threads where there are fewer sequences.
fn share_out(batch: Batch<'_>, threads: usize) -> impl Iterator<Item = Batch<'_>> {
    let row = batch.tokens.len() / batch.sequences;
    let threads = threads.min(batch.sequences);
    (0..threads).map(move |i| {
        let start = i * batch.sequences / threads;
        let end = (i + 1) * batch.sequences / threads;
        Batch { tokens: &batch.tokens[start * row..end * row], sequences: end - start }
    })
}

/// Runs every job at once, the first on the caller's thread; returns the results in the order of the jobs.
fn on_threads<J: Send, T: Send>(
    jobs: impl Iterator<Item = J>,
    run: impl Fn(J) -> T + Sync,
) -> Vec<T> {
    let mut jobs = jobs;
    let Some(first) = jobs.next() else {
        return Vec::new();
    };
    let run = &run;
    std::thread::scope(|scope| {
        let others: Vec<_> = jobs.map(|job| scope.spawn(move || run(job))).collect();
        let mut results = vec![run(first)];
        for other in others {
            results.push(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        results
    })
}

/// The sum of squares, in single precision a block at a time and in double precision over the blocks.
fn square_norm(values: &[f32]) -> f64 {
    const BLOCK: usize = 1024;
    values.chunks(BLOCK).map(|block| f64::from(crate::real::dot(block, block))).sum()
}

#[cfg(test)]
mod tests;
