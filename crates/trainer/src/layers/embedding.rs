//! The embedding: a token's row plus its position's row.

use std::iter::zip;

use crate::real::Real;

/// Computes one row of `output` for each token; each sequence has `length` tokens.
pub(crate) fn forward<R: Real>(
    output: &mut [R],
    tokens: impl Iterator<Item = usize>,
    (length, width): (usize, usize),
    (token_rows, position_rows): (&[R], &[R]),
) {
    for (i, (output, token)) in zip(output.chunks_exact_mut(width), tokens).enumerate() {
        let token = row(token_rows, token, width);
        let position = row(position_rows, i % length, width);
        for (output, (token, position)) in zip(output, zip(token, position)) {
            *output = *token + *position;
        }
    }
}

/// Adds `gradient`'s rows to those of the tokens or positions that they came from.
pub(crate) fn backward<R: Real>(
    row_gradients: &mut [R],
    rows: impl Iterator<Item = usize>,
    gradient: &[R],
    width: usize,
) {
    for (gradient, index) in zip(gradient.chunks_exact(width), rows) {
        let sums = &mut row_gradients[index * width..(index + 1) * width];
        for (sum, gradient) in zip(sums, gradient) {
            *sum += *gradient;
        }
    }
}

fn row<R>(rows: &[R], index: usize, width: usize) -> &[R] {
    &rows[index * width..(index + 1) * width]
}
