//! Causal self-attention: each token takes a weighted mean of the values of the tokens up to itself.
//!
//! A row of `mixed` is a token's query, key and value, each `width` wide and divided among the heads. The weights of a
//! head are a square with a row for each token; to the right of the diagonal, where the future is, they are zero.

use std::iter::zip;

use crate::gemm::{Matrix, MatrixMut, Write};
use crate::real::{Real, dot, softmax};

/// The sides of the matrices.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sides {
    /// Tokens in a sequence.
    pub(crate) length: usize,
    pub(crate) heads: usize,
    pub(crate) head_width: usize,
}

impl Sides {
    fn width(&self) -> usize {
        self.heads * self.head_width
    }

    fn scale<R: Real>(&self) -> R {
        R::from_f64(1.0 / (self.head_width as f64).sqrt())
    }

    /// One head's columns of a sequence, from `offset` on, in rows of `stride`.
    fn part<'a, R>(&self, rows: &'a [R], offset: usize, stride: usize) -> Matrix<'a, R> {
        Matrix::strided(&rows[offset..], self.length, self.head_width, stride)
    }

    fn part_mut<'a, R>(&self, rows: &'a mut [R], offset: usize, stride: usize) -> MatrixMut<'a, R> {
        MatrixMut::strided(&mut rows[offset..], self.length, self.head_width, stride)
    }
}

/// Computes `output`, and the `weights` of each sequence and head.
pub(crate) fn forward<R: Real>(output: &mut [R], weights: &mut [R], mixed: &[R], sides: Sides) {
    let (length, width) = (sides.length, sides.width());
    let sequences = zip(
        zip(output.chunks_exact_mut(length * width), mixed.chunks_exact(3 * length * width)),
        weights.chunks_exact_mut(sides.heads * length * length),
    );
    for ((output, mixed), weights) in sequences {
        for (head, weights) in weights.chunks_exact_mut(length * length).enumerate() {
            let offset = head * sides.head_width;
            let query = sides.part(mixed, offset, 3 * width);
            let key = sides.part(mixed, width + offset, 3 * width);
            let value = sides.part(mixed, 2 * width + offset, 3 * width);
            let scores = MatrixMut::new(&mut *weights, length);
            R::multiply(scores, Write::Replace, sides.scale(), query, key.transposed());
            for (i, row) in weights.chunks_exact_mut(length).enumerate() {
                let (past, future) = row.split_at_mut(i + 1);
                softmax(past);
                future.fill(R::ZERO);
            }
            let output = sides.part_mut(output, offset, width);
            R::multiply(output, Write::Replace, R::ONE, Matrix::new(weights, length), value);
        }
    }
}

/// Writes the gradient by `mixed`. `scratch` holds one head's weights.
pub(crate) fn backward<R: Real>(
    mixed_gradient: &mut [R],
    scratch: &mut [R],
    output_gradient: &[R],
    weights: &[R],
    mixed: &[R],
    sides: Sides,
) {
    let (length, width) = (sides.length, sides.width());
    let row = 3 * width;
    let sequences = zip(
        zip(mixed_gradient.chunks_exact_mut(length * row), mixed.chunks_exact(length * row)),
        zip(
            output_gradient.chunks_exact(length * width),
            weights.chunks_exact(sides.heads * length * length),
        ),
    );
    for ((mixed_gradient, mixed), (gradient, weights)) in sequences {
        for (head, weights) in weights.chunks_exact(length * length).enumerate() {
            let offset = head * sides.head_width;
            let query = sides.part(mixed, offset, row);
            let key = sides.part(mixed, width + offset, row);
            let value = sides.part(mixed, 2 * width + offset, row);
            let gradient = sides.part(gradient, offset, width);

            let out = sides.part_mut(mixed_gradient, 2 * width + offset, row);
            let shares = Matrix::new(weights, length).transposed();
            R::multiply(out, Write::Replace, R::ONE, shares, gradient);

            let out = MatrixMut::new(&mut *scratch, length);
            R::multiply(out, Write::Replace, R::ONE, gradient, value.transposed());
            softmax_backward(scratch, weights, length);
            let scores = Matrix::new(scratch, length);

            let out = sides.part_mut(mixed_gradient, offset, row);
            R::multiply(out, Write::Replace, sides.scale(), scores, key);
            let out = sides.part_mut(mixed_gradient, width + offset, row);
            R::multiply(out, Write::Replace, sides.scale(), scores.transposed(), query);
        }
    }
}

/// Attention of one new token, whose key and value are the last rows of `keys` and `values`. `scratch` has room for one
/// weight a row.
pub(crate) fn forward_one<R: Real>(
    output: &mut [R],
    scratch: &mut [R],
    query: &[R],
    (keys, values): (&[R], &[R]),
    sides: Sides,
) {
    let (width, head_width) = (sides.width(), sides.head_width);
    output.fill(R::ZERO);
    for (head, output) in output.chunks_exact_mut(head_width).enumerate() {
        let columns = head * head_width..(head + 1) * head_width;
        let query = &query[columns.clone()];
        let weights = &mut scratch[..sides.length];
        for (weight, key) in zip(&mut *weights, keys.chunks_exact(width)) {
            *weight = dot(query, &key[columns.clone()]) * sides.scale();
        }
        softmax(weights);
        for (weight, value) in zip(weights, values.chunks_exact(width)) {
            for (output, value) in zip(&mut *output, &value[columns.clone()]) {
                *output += *weight * *value;
            }
        }
    }
}

/// Turns the gradient by the weights into the gradient by the scores.
fn softmax_backward<R: Real>(gradient: &mut [R], weights: &[R], length: usize) {
    let rows = zip(gradient.chunks_exact_mut(length), weights.chunks_exact(length));
    for (i, (row, weights)) in rows.enumerate() {
        let (past, future) = row.split_at_mut(i + 1);
        let weights = &weights[..=i];
        let mean = dot(past, weights);
        for (gradient, weight) in zip(past, weights) {
            *gradient = *weight * (*gradient - mean);
        }
        future.fill(R::ZERO);
    }
}
