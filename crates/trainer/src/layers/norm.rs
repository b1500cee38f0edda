//! Layer normalisation: each row gets mean 0 and variance 1, then a learned scale and shift.

use std::iter::zip;

use crate::real::{Real, dot, sum};

/// Added to the variance, so that a constant row is no division by zero; GPT-2's value.
pub(crate) const EPSILON: f64 = 1e-5;

/// What `forward` keeps of a row for `backward`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Moments<R> {
    mean: R,
    /// One over the standard deviation.
    scale: R,
}

/// Computes `output`, and the moments of each row.
pub(crate) fn forward<R: Real>(
    output: &mut [R],
    moments: &mut [Moments<R>],
    input: &[R],
    (weight, bias): (&[R], &[R]),
) {
    let width = weight.len();
    let share = R::from_f64(1.0 / width as f64);
    let rows = zip(output.chunks_exact_mut(width), input.chunks_exact(width));
    for ((output, input), moments) in zip(rows, moments) {
        let mean = sum(input) * share;
        for (output, input) in zip(&mut *output, input) {
            *output = *input - mean;
        }
        let variance = dot(output, output) * share;
        let scale = R::ONE / (variance + R::from_f64(EPSILON)).sqrt();
        for (output, (weight, bias)) in zip(output, zip(weight, bias)) {
            *output = *output * scale * *weight + *bias;
        }
        *moments = Moments { mean, scale };
    }
}

/// Adds the gradients by input, weight and bias. `output_gradient` is used up.
pub(crate) fn backward<R: Real>(
    input_gradient: &mut [R],
    (weight_gradient, bias_gradient): (&mut [R], &mut [R]),
    output_gradient: &mut [R],
    moments: &[Moments<R>],
    input: &[R],
    weight: &[R],
) {
    let width = weight.len();
    let share = R::from_f64(1.0 / width as f64);
    let rows = zip(
        zip(input_gradient.chunks_exact_mut(width), output_gradient.chunks_exact_mut(width)),
        zip(input.chunks_exact(width), moments),
    );
    for ((input_gradient, gradient), (input, moments)) in rows {
        let Moments { mean, scale } = *moments;
        for i in 0..width {
            let normal = (input[i] - mean) * scale;
            weight_gradient[i] += gradient[i] * normal;
            bias_gradient[i] += gradient[i];
            gradient[i] *= weight[i];
        }
        // The row's mean and its variance depend on every input: their parts of the gradient.
        let total = sum(gradient);
        let by_mean = total * share;
        let by_scale = (dot(gradient, input) - mean * total) * scale * share;
        for i in 0..width {
            let normal = (input[i] - mean) * scale;
            input_gradient[i] += scale * (gradient[i] - by_mean - normal * by_scale);
        }
    }
}
