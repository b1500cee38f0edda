//! Cross entropy: how surprised the model is by the tokens that follow.

use std::iter::zip;

use crate::real::{Real, softmax};

/// Turns each row of `logits` into probabilities; returns the sum over the rows of `-log p(target)`.
pub(crate) fn forward<R: Real>(
    logits: &mut [R],
    targets: impl Iterator<Item = usize>,
    vocabulary: usize,
) -> f64 {
    let mut total = 0.0;
    for (row, target) in zip(logits.chunks_exact_mut(vocabulary), targets) {
        let logit = row[target].to_f64();
        total += softmax(row) - logit;
    }
    total
}

/// Turns the probabilities into `scale` times the gradient of the sum by the logits.
pub(crate) fn backward<R: Real>(
    probabilities: &mut [R],
    targets: impl Iterator<Item = usize>,
    vocabulary: usize,
    scale: R,
) {
    for (row, target) in zip(probabilities.chunks_exact_mut(vocabulary), targets) {
        for value in row.iter_mut() {
            *value *= scale;
        }
        row[target] = row[target] - scale;
    }
}
