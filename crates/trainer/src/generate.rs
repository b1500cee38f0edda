//! Generation: one token at a time, with the keys and values of the tokens before it kept.

use hypha_model::Rng;
use thiserror::Error;

use crate::gemm::{Matrix, MatrixMut, Write};
use crate::layers::attention::Sides;
use crate::layers::norm::Moments;
use crate::layers::{attention, embedding, gelu, linear, norm};
use crate::model::Model;
use crate::params::Block;
use crate::real::Real;

/// How the next token is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Above 1 for more variety, below for less; at 0 the most likely token is taken.
    pub temperature: f64,
    /// Only this many of the most likely tokens are considered; 0 for all.
    pub top_k: usize,
}

/// Why tokens cannot be continued.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum GenerateError {
    /// There is nothing to continue.
    #[error("the prompt is empty: pass at least one token")]
    EmptyPrompt,
    /// A token is outside the vocabulary.
    #[error("token {0} is not in the vocabulary: check how the prompt was encoded")]
    UnknownToken(u32),
}

/// A model that reads and continues a text.
#[derive(Debug)]
pub struct Generator<'a> {
    model: &'a Model,
    parameters: &'a [f32],
    /// The tokens whose keys and values are kept.
    seen: Vec<u32>,
    /// For each block, a key and a value for each position.
    cache: Vec<(Vec<f32>, Vec<f32>)>,
    buffers: Buffers,
}

/// One row of each width.
#[derive(Debug)]
struct Buffers {
    residual: Vec<f32>,
    normal: Vec<f32>,
    mixed: Vec<f32>,
    weights: Vec<f32>,
    attended: Vec<f32>,
    middle: Vec<f32>,
    hidden: Vec<f32>,
    activated: Vec<f32>,
    logits: Vec<f32>,
    order: Vec<u32>,
}

impl<'a> Generator<'a> {
    pub(crate) fn new(model: &'a Model, parameters: &'a [f32]) -> Self {
        let config = &model.config;
        let narrow = || vec![0.0; config.width];
        let rows = || vec![0.0; config.context * config.width];
        let buffers = Buffers {
            residual: narrow(),
            normal: narrow(),
            mixed: vec![0.0; 3 * config.width],
            weights: vec![0.0; config.context],
            attended: narrow(),
            middle: narrow(),
            hidden: vec![0.0; config.inner_width()],
            activated: vec![0.0; config.inner_width()],
            logits: vec![0.0; config.vocabulary],
            order: Vec::with_capacity(config.vocabulary),
        };
        let cache = (0..config.layers).map(|_| (rows(), rows())).collect();
        Self { model, parameters, seen: Vec::with_capacity(config.context), cache, buffers }
    }

    /// Continues `prompt` by `count` tokens and returns these. Earlier calls have no influence.
    pub fn generate(
        &mut self,
        prompt: &[u32],
        count: usize,
        sampling: Sampling,
        seed: u64,
    ) -> Result<Vec<u32>, GenerateError> {
        let Some((last, before)) = prompt.split_last() else {
            return Err(GenerateError::EmptyPrompt);
        };
        let vocabulary = self.model.config.vocabulary;
        if let Some(token) = prompt.iter().find(|token| **token as usize >= vocabulary) {
            return Err(GenerateError::UnknownToken(*token));
        }
        let mut rng = Rng::new(seed);
        self.seen.clear();
        // Of a long prompt, only what the first new token can see.
        let visible = before.len().min(self.model.config.context - 1);
        for token in &before[before.len() - visible..] {
            self.feed(*token);
        }
        let mut token = *last;
        let generated = (0..count).map(|_| {
            self.feed(token);
            token = self.choose(sampling, &mut rng);
            token
        });
        Ok(generated.collect())
    }

    /// Reads one token; returns the logits of the next. When the context is full, the older half of it is forgotten,
    /// which costs a pass over the rest: positions are counted from its start, so that nothing kept is still valid.
    fn feed(&mut self, token: u32) -> &[f32] {
        let context = self.model.config.context;
        if self.seen.len() == context {
            let kept = self.seen.split_off(context - context / 2);
            self.seen.clear();
            for token in kept {
                self.read(token);
            }
        }
        self.read(token);
        self.compute_logits();
        &self.buffers.logits
    }

    /// Runs the blocks for one token at the next position.
    fn read(&mut self, token: u32) {
        let (layout, position) = (&self.model.layout, self.seen.len());
        let width = self.model.config.width;
        self.seen.push(token);
        let rows = &self.parameters[layout.position_embedding.clone()];
        let rows = (
            &self.parameters[layout.token_embedding.clone()],
            &rows[position * width..(position + 1) * width],
        );
        let token = std::iter::once(token as usize);
        embedding::forward(&mut self.buffers.residual, token, (1, width), rows);
        let sides = Sides {
            length: position + 1,
            heads: self.model.config.heads,
            head_width: self.model.config.head_width(),
        };
        for (places, cache) in layout.blocks.iter().zip(&mut self.cache) {
            self.buffers.run_block(self.parameters, places, cache, sides);
        }
    }

    fn compute_logits(&mut self) {
        let width = self.model.config.width;
        let Buffers { residual, normal, logits, .. } = &mut self.buffers;
        let affine = self.model.layout.final_norm.of(self.parameters);
        norm::forward(normal, &mut [Moments::default()], residual, affine);
        let rows = &self.parameters[self.model.layout.token_embedding.clone()];
        // A column, not a row: the product reads the embedding as it is stored.
        let (rows, normal) = (Matrix::new(rows, width), Matrix::new(normal, 1));
        f32::multiply(MatrixMut::new(logits, 1), Write::Replace, 1.0, rows, normal);
    }

    /// Draws a token from the logits, which are used up.
    fn choose(&mut self, sampling: Sampling, rng: &mut Rng) -> u32 {
        let Buffers { logits, order, .. } = &mut self.buffers;
        order.clear();
        order.extend(0..logits.len() as u32);
        // Equal logits in the order of their tokens, so that the choice is the same on every run.
        order.sort_unstable_by(|a, b| {
            logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b))
        });
        if sampling.temperature <= 0.0 {
            return order[0];
        }
        let considered = if sampling.top_k == 0 { order.len() } else { sampling.top_k };
        order.truncate(considered);
        let logit = |token: u32| f64::from(logits[token as usize]);
        let best = logit(order[0]);
        let weights =
            order.iter().map(|token| ((logit(*token) - best) / sampling.temperature).exp());
        let total: f64 = weights.clone().sum();
        let mut left = rng.unit() * total;
        for (token, weight) in order.iter().zip(weights) {
            left -= weight;
            if left < 0.0 {
                return *token;
            }
        }
        order[0]
    }
}

impl Buffers {
    /// One block for one token, whose key and value are added to `cache`.
    fn run_block(
        &mut self,
        parameters: &[f32],
        places: &Block,
        (keys, values): &mut (Vec<f32>, Vec<f32>),
        sides: Sides,
    ) {
        let Buffers {
            residual, normal, mixed, weights, attended, middle, hidden, activated, ..
        } = self;
        let width = residual.len();
        let moments = &mut [Moments::default()];
        norm::forward(normal, moments, residual, places.norm_1.of(parameters));
        linear::forward(mixed, normal, places.attention_in.of(parameters));
        let (query, rest) = mixed.split_at(width);
        let (key, value) = rest.split_at(width);
        let (start, end) = ((sides.length - 1) * width, sides.length * width);
        keys[start..end].copy_from_slice(key);
        values[start..end].copy_from_slice(value);
        attention::forward_one(attended, weights, query, (&keys[..end], &values[..end]), sides);
        let affine = places.attention_out.of(parameters);
        linear::forward_with_residual(middle, residual, attended, affine);
        norm::forward(normal, moments, middle, places.norm_2.of(parameters));
        linear::forward(hidden, normal, places.feed_in.of(parameters));
        gelu::forward(activated, hidden);
        let affine = places.feed_out.of(parameters);
        linear::forward_with_residual(residual, middle, activated, affine);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::activations::Activations;
    use crate::config::Config;
    use crate::model::Batch;
    use crate::real::softmax;

    const CONFIG: Config = Config { layers: 2, width: 12, heads: 3, context: 8, vocabulary: 20 };

    /// Values large enough that tokens differ in their logits.
    fn model_and_parameters() -> (Model, Vec<f32>) {
        let model = Model::new(CONFIG);
        let mut rng = Rng::new(5);
        let mut parameters = model.layout.initial_values(5);
        parameters.iter_mut().for_each(|value| *value += 0.3 * rng.normal() as f32);
        (model, parameters)
    }

    fn full_logits(model: &Model, parameters: &[f32], tokens: &[u32]) -> Vec<f32> {
        // The last token of a batch is only a target.
        let mut tokens = tokens.to_vec();
        tokens.push(0);
        let mut activations = Activations::default();
        let batch = Batch { tokens: &tokens, sequences: 1 };
        model.compute_logits(parameters, &mut activations, batch);
        activations.logits[(tokens.len() - 2) * CONFIG.vocabulary..].to_vec()
    }

    #[test]
    fn cached_logits_are_those_of_the_full_pass_at_every_position() {
        let (model, parameters) = model_and_parameters();
        let mut generator = Generator::new(&model, &parameters);
        let mut rng = Rng::new(6);
        let tokens: Vec<u32> = (0..30).map(|_| rng.below(20) as u32).collect();
        let mut start = 0;
        for i in 0..tokens.len() {
            if i - start == CONFIG.context {
                start += CONFIG.context / 2;
            }
            let expected = full_logits(&model, &parameters, &tokens[start..=i]);
            let actual = generator.feed(tokens[i]);
            for (actual, expected) in actual.iter().zip(&expected) {
                assert!((actual - expected).abs() < 2e-5, "at {i}: {actual} is not {expected}");
            }
        }
    }

    #[test]
    fn generated_tokens_are_the_likeliest_of_the_full_pass() {
        let (model, parameters) = model_and_parameters();
        let mut generator = Generator::new(&model, &parameters);
        let greedy = Sampling { temperature: 0.0, top_k: 0 };
        let prompt = [3, 1, 4];
        let generated = generator.generate(&prompt, 5, greedy, 0).unwrap();
        let mut tokens = prompt.to_vec();
        for token in generated {
            let logits = full_logits(&model, &parameters, &tokens);
            let best = (0..CONFIG.vocabulary).max_by(|a, b| logits[*a].total_cmp(&logits[*b]));
            assert_eq!(Some(token as usize), best, "after {tokens:?}");
            tokens.push(token);
        }
    }

    #[test]
    fn sampling_repeats_for_a_seed_and_keeps_to_the_top_tokens() {
        let (model, parameters) = model_and_parameters();
        let mut generator = Generator::new(&model, &parameters);
        let sampling = Sampling { temperature: 1.5, top_k: 3 };
        let mut draw = |seed| generator.generate(&[7], 40, sampling, seed).unwrap();
        let first = draw(1);
        assert_eq!(first, draw(1));
        assert_ne!(first, draw(2));
        let logits = full_logits(&model, &parameters, &[7]);
        let mut order: Vec<u32> = (0..20).collect();
        order.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]));
        let drawn: std::collections::BTreeSet<u32> = (0..200).map(|seed| draw(seed)[0]).collect();
        assert_eq!(drawn, order[..3].iter().copied().collect());
    }

    #[test]
    fn sampled_frequencies_are_the_probabilities() {
        let (model, parameters) = model_and_parameters();
        let mut generator = Generator::new(&model, &parameters);
        let sampling = Sampling { temperature: 2.0, top_k: 0 };
        let draws = 20_000;
        let mut counts = [0.0; CONFIG.vocabulary];
        for seed in 0..draws {
            counts[generator.generate(&[7], 1, sampling, seed).unwrap()[0] as usize] += 1.0;
        }
        let mut expected: Vec<f32> =
            full_logits(&model, &parameters, &[7]).iter().map(|logit| logit / 2.0).collect();
        softmax(&mut expected);
        for (count, expected) in counts.iter().zip(expected) {
            assert!((count / draws as f64 - f64::from(expected)).abs() < 0.015, "{count}");
        }
    }

    #[test]
    fn invalid_prompts_are_refused() {
        let (model, parameters) = model_and_parameters();
        let mut generator = Generator::new(&model, &parameters);
        let sampling = Sampling { temperature: 1.0, top_k: 0 };
        let mut check = |prompt: &[u32]| generator.generate(prompt, 1, sampling, 0).unwrap_err();
        assert_eq!(check(&[]), GenerateError::EmptyPrompt);
        assert_eq!(check(&[19, 20]), GenerateError::UnknownToken(20));
    }
}
