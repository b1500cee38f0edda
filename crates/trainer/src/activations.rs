//! The buffers of one thread: what the forward pass keeps for the backward pass, and the gradients on their way down.

use crate::config::Config;
use crate::layers::norm::Moments;
use crate::real::Real;

/// How many sequences of how many tokens a pass works on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) sequences: usize,
    pub(crate) length: usize,
}

impl Shape {
    /// Rows of every buffer: one for each token.
    pub(crate) fn rows(self) -> usize {
        self.sequences * self.length
    }
}

/// Buffers for passes of one shape. They are allocated when the shape changes and reused otherwise.
#[derive(Debug, Default)]
pub(crate) struct Activations<R> {
    shape: Shape,
    pub(crate) embedded: Vec<R>,
    pub(crate) blocks: Vec<BlockActivations<R>>,
    pub(crate) final_norm: Vec<R>,
    pub(crate) final_moments: Vec<Moments<R>>,
    /// Logits, then probabilities, then the gradient by the logits.
    pub(crate) logits: Vec<R>,
    pub(crate) gradients: Gradients<R>,
}

/// What one block keeps.
#[derive(Debug, Default)]
pub(crate) struct BlockActivations<R> {
    pub(crate) norm_1: Vec<R>,
    pub(crate) moments_1: Vec<Moments<R>>,
    /// Query, key and value of each token.
    pub(crate) mixed: Vec<R>,
    pub(crate) weights: Vec<R>,
    pub(crate) attended: Vec<R>,
    /// The residual stream between attention and feed-forward layer.
    pub(crate) middle: Vec<R>,
    pub(crate) norm_2: Vec<R>,
    pub(crate) moments_2: Vec<Moments<R>>,
    pub(crate) hidden: Vec<R>,
    pub(crate) activated: Vec<R>,
    /// The residual stream after the block.
    pub(crate) output: Vec<R>,
}

/// Gradients by activations: one buffer of each width, used by all blocks in turn.
#[derive(Debug, Default)]
pub(crate) struct Gradients<R> {
    pub(crate) residual: Vec<R>,
    pub(crate) narrow: Vec<R>,
    pub(crate) mixed: Vec<R>,
    pub(crate) wide: Vec<R>,
    pub(crate) weights: Vec<R>,
}

impl<R: Real> Activations<R> {
    /// Makes the buffers fit `shape`. Their contents are unspecified.
    pub(crate) fn fit(&mut self, config: &Config, shape: Shape) {
        if self.shape == shape && self.blocks.len() == config.layers {
            return;
        }
        let (rows, width) = (shape.rows(), config.width);
        let square = shape.length * shape.length;
        self.shape = shape;
        self.blocks.resize_with(config.layers, BlockActivations::default);
        for block in &mut self.blocks {
            for buffer in [
                &mut block.norm_1,
                &mut block.attended,
                &mut block.middle,
                &mut block.norm_2,
                &mut block.output,
            ] {
                resize(buffer, rows * width);
            }
            resize(&mut block.moments_1, rows);
            resize(&mut block.moments_2, rows);
            resize(&mut block.mixed, rows * 3 * width);
            resize(&mut block.weights, shape.sequences * config.heads * square);
            resize(&mut block.hidden, rows * config.inner_width());
            resize(&mut block.activated, rows * config.inner_width());
        }
        resize(&mut self.embedded, rows * width);
        resize(&mut self.final_norm, rows * width);
        resize(&mut self.final_moments, rows);
        resize(&mut self.logits, rows * config.vocabulary);
        resize(&mut self.gradients.residual, rows * width);
        resize(&mut self.gradients.narrow, rows * width);
        resize(&mut self.gradients.mixed, rows * 3 * width);
        resize(&mut self.gradients.wide, rows * config.inner_width());
        resize(&mut self.gradients.weights, square);
    }

    /// What the last block gives to the final norm.
    pub(crate) fn last_output(&self) -> &[R] {
        self.blocks.last().map_or(&self.embedded, |block| &block.output)
    }
}

fn resize<T: Clone + Default>(buffer: &mut Vec<T>, len: usize) {
    buffer.resize(len, T::default());
}
