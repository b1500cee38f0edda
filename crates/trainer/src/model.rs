//! The model: its layers in order, forwards and backwards.
//!
//! ```text
//! tokens -> embedding -+-> norm -> attention ----> + -+-> norm -> linear -> GELU -> linear -> + -> ... -> norm -> logits
//!                      +---------- residual -------+  +----------------- residual ------------+
//! ```
//!
//! The logits are the products with the rows of the token embedding, which is therefore learned in two places.

use crate::activations::{Activations, BlockActivations, Gradients, Shape};
use crate::config::Config;
use crate::gemm::{Matrix, MatrixMut, Write};
use crate::layers::attention::Sides;
use crate::layers::norm::Moments;
use crate::layers::{attention, embedding, gelu, linear, loss, norm};
use crate::params::{Affine, Block, Layout};
use crate::real::Real;

/// The dimensions of a model and the places of its parameters.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) config: Config,
    pub(crate) layout: Layout,
}

/// Sequences of one length. Each has one token more than the model sees at once: every token but the first is also what
/// the model should have predicted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batch<'a> {
    pub(crate) tokens: &'a [u32],
    pub(crate) sequences: usize,
}

impl<'a> Batch<'a> {
    pub(crate) fn shape(self) -> Shape {
        let length = self.tokens.len().checked_div(self.sequences).unwrap_or(1) - 1;
        Shape { sequences: self.sequences, length }
    }

    fn inputs(self) -> impl Iterator<Item = usize> + 'a {
        self.rows().flat_map(|row| row[..row.len() - 1].iter().map(|token| *token as usize))
    }

    fn targets(self) -> impl Iterator<Item = usize> + 'a {
        self.rows().flat_map(|row| row[1..].iter().map(|token| *token as usize))
    }

    fn rows(self) -> impl Iterator<Item = &'a [u32]> + 'a {
        self.tokens.chunks_exact(self.shape().length + 1)
    }
}

impl Model {
    /// A model of a valid size.
    pub(crate) fn new(config: Config) -> Self {
        Self { config, layout: Layout::new(&config) }
    }

    /// The sum of the losses of all predictions of `batch`. Leaves the probabilities in the activations.
    pub(crate) fn forward<R: Real>(
        &self,
        parameters: &[R],
        activations: &mut Activations<R>,
        batch: Batch<'_>,
    ) -> f64 {
        self.compute_logits(parameters, activations, batch);
        loss::forward(&mut activations.logits, batch.targets(), self.config.vocabulary)
    }

    /// Runs the model up to the logits of every position of `batch`.
    pub(crate) fn compute_logits<R: Real>(
        &self,
        parameters: &[R],
        activations: &mut Activations<R>,
        batch: Batch<'_>,
    ) {
        let (shape, width) = (batch.shape(), self.config.width);
        activations.fit(&self.config, shape);
        let token_rows = &parameters[self.layout.token_embedding.clone()];
        let position_rows = &parameters[self.layout.position_embedding.clone()];
        embedding::forward(
            &mut activations.embedded,
            batch.inputs(),
            (shape.length, width),
            (token_rows, position_rows),
        );
        for (i, places) in self.layout.blocks.iter().enumerate() {
            let (before, rest) = activations.blocks.split_at_mut(i);
            let input = before.last().map_or(&activations.embedded, |block| &block.output);
            block_forward(&mut rest[0], input, parameters, places, self.sides(shape.length));
        }
        let mut normal = std::mem::take(&mut activations.final_norm);
        let mut moments = std::mem::take(&mut activations.final_moments);
        let affine = self.layout.final_norm.of(parameters);
        norm::forward(&mut normal, &mut moments, activations.last_output(), affine);
        R::multiply(
            MatrixMut::new(&mut activations.logits, self.config.vocabulary),
            Write::Replace,
            R::ONE,
            Matrix::new(&normal, width),
            Matrix::new(token_rows, width).transposed(),
        );
        (activations.final_norm, activations.final_moments) = (normal, moments);
    }

    /// Adds to `gradient` the gradient of `scale` times the loss that [`Model::forward`] has just computed.
    pub(crate) fn backward<R: Real>(
        &self,
        gradient: &mut [R],
        parameters: &[R],
        activations: &mut Activations<R>,
        batch: Batch<'_>,
        scale: f64,
    ) {
        let (width, vocabulary) = (self.config.width, self.config.vocabulary);
        let shape = batch.shape();
        loss::backward(&mut activations.logits, batch.targets(), vocabulary, R::from_f64(scale));
        let mut passing = std::mem::take(&mut activations.gradients);
        self.head_backward(gradient, &mut passing, parameters, activations);
        for (i, places) in self.layout.blocks.iter().enumerate().rev() {
            let (before, rest) = activations.blocks.split_at(i);
            let input = before.last().map_or(&activations.embedded, |block| &block.output);
            let sides = self.sides(shape.length);
            block_backward(gradient, &mut passing, &rest[0], input, parameters, places, sides);
        }
        let rows = &mut gradient[self.layout.token_embedding.clone()];
        embedding::backward(rows, batch.inputs(), &passing.residual, width);
        let rows = &mut gradient[self.layout.position_embedding.clone()];
        let positions = (0..shape.rows()).map(|row| row % shape.length);
        embedding::backward(rows, positions, &passing.residual, width);
        activations.gradients = passing;
    }

    /// From the gradient by the logits to the one by the last block's output.
    fn head_backward<R: Real>(
        &self,
        gradient: &mut [R],
        passing: &mut Gradients<R>,
        parameters: &[R],
        activations: &Activations<R>,
    ) {
        let width = self.config.width;
        let logits = Matrix::new(&activations.logits, self.config.vocabulary);
        let rows = &mut gradient[self.layout.token_embedding.clone()];
        let normal = Matrix::new(&activations.final_norm, width);
        R::multiply(MatrixMut::new(rows, width), Write::Add, R::ONE, logits.transposed(), normal);
        let rows = Matrix::new(&parameters[self.layout.token_embedding.clone()], width);
        let out = MatrixMut::new(&mut passing.narrow, width);
        R::multiply(out, Write::Replace, R::ONE, logits, rows);
        passing.residual.fill(R::ZERO);
        let mut pass = Pass { gradient, parameters };
        let input = (activations.last_output(), &activations.final_moments[..]);
        pass.norm(&mut passing.residual, &mut passing.narrow, input, &self.layout.final_norm);
    }

    fn sides(&self, length: usize) -> Sides {
        Sides { length, heads: self.config.heads, head_width: self.config.head_width() }
    }
}

fn block_forward<R: Real>(
    block: &mut BlockActivations<R>,
    input: &[R],
    parameters: &[R],
    places: &Block,
    sides: Sides,
) {
    norm::forward(&mut block.norm_1, &mut block.moments_1, input, places.norm_1.of(parameters));
    linear::forward(&mut block.mixed, &block.norm_1, places.attention_in.of(parameters));
    attention::forward(&mut block.attended, &mut block.weights, &block.mixed, sides);
    let affine = places.attention_out.of(parameters);
    linear::forward_with_residual(&mut block.middle, input, &block.attended, affine);
    let affine = places.norm_2.of(parameters);
    norm::forward(&mut block.norm_2, &mut block.moments_2, &block.middle, affine);
    linear::forward(&mut block.hidden, &block.norm_2, places.feed_in.of(parameters));
    gelu::forward(&mut block.activated, &block.hidden);
    let affine = places.feed_out.of(parameters);
    linear::forward_with_residual(&mut block.output, &block.middle, &block.activated, affine);
}

/// `block_forward` in reverse. `passing.residual` is the gradient by the block's output before and by its input after.
fn block_backward<R: Real>(
    gradient: &mut [R],
    passing: &mut Gradients<R>,
    block: &BlockActivations<R>,
    input: &[R],
    parameters: &[R],
    places: &Block,
    sides: Sides,
) {
    let Gradients { residual, narrow, mixed, wide, weights } = passing;
    let mut pass = Pass { gradient, parameters };
    pass.linear(wide, residual, &block.activated, &places.feed_out);
    gelu::backward(wide, &block.hidden);
    pass.linear(narrow, wide, &block.norm_2, &places.feed_in);
    pass.norm(residual, narrow, (&block.middle, &block.moments_2), &places.norm_2);

    pass.linear(narrow, residual, &block.attended, &places.attention_out);
    attention::backward(mixed, weights, narrow, &block.weights, &block.mixed, sides);
    pass.linear(narrow, mixed, &block.norm_1, &places.attention_in);
    pass.norm(residual, narrow, (input, &block.moments_1), &places.norm_1);
}

/// The gradient by all parameters, being summed, and the parameters.
struct Pass<'a, R> {
    gradient: &'a mut [R],
    parameters: &'a [R],
}

impl<R: Real> Pass<'_, R> {
    fn linear(&mut self, by_input: &mut [R], by_output: &[R], input: &[R], place: &Affine) {
        let by_affine = place.of_mut(self.gradient);
        linear::backward(by_input, by_affine, by_output, input, place.of(self.parameters));
    }

    fn norm(
        &mut self,
        by_input: &mut [R],
        by_output: &mut [R],
        (input, moments): (&[R], &[Moments<R>]),
        place: &Affine,
    ) {
        let (weight, _) = place.of(self.parameters);
        let by_affine = place.of_mut(self.gradient);
        norm::backward(by_input, by_affine, by_output, moments, input, weight);
    }
}
