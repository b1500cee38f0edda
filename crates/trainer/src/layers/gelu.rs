//! The activation function: GELU in the form with a hyperbolic tangent, as in GPT-2.
//!
//! `x * (1 + tanh(u)) / 2` is `x * s` with the logistic function `s = 1 / (1 + e^-2u)`: one exponential and one division.

use std::iter::zip;

use crate::real::Real;

/// `2u = TWICE * (x + CUBIC * x^3)`, with `TWICE` twice the square root of 2 / π.
const TWICE: f64 = std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::SQRT_2;
const CUBIC: f64 = 0.044715;

/// Computes `output`.
pub(crate) fn forward<R: Real>(output: &mut [R], input: &[R]) {
    for (output, input) in zip(output, input) {
        *output = *input * logistic(*input);
    }
}

/// Turns the gradient by the output into the gradient by the input.
pub(crate) fn backward<R: Real>(gradient: &mut [R], input: &[R]) {
    let (twice, triple) = (R::from_f64(TWICE), R::from_f64(3.0 * CUBIC));
    for (gradient, x) in zip(gradient, input) {
        let x = *x;
        let s = logistic(x);
        let inner = twice * (R::ONE + triple * x * x);
        *gradient *= s + x * s * (R::ONE - s) * inner;
    }
}

#[inline(always)]
fn logistic<R: Real>(x: R) -> R {
    let double = R::from_f64(TWICE) * x * (R::ONE + R::from_f64(CUBIC) * x * x);
    R::ONE / (R::ONE + (-double).exp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_precision_follows_the_definition() {
        let inputs: Vec<f32> = (-4_000..=4_000).map(|i| i as f32 / 400.0).collect();
        let mut outputs = vec![0.0f32; inputs.len()];
        forward(&mut outputs, &inputs);
        for (x, output) in zip(inputs, outputs) {
            let x = f64::from(x);
            let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
            let exact = 0.5 * x * (1.0 + u.tanh());
            let error = (f64::from(output) - exact).abs();
            // The exponential multiplies the rounding of its argument, 2u.
            let bound = 2e-7 * (1.0 + 2.0 * u.abs()) * exact.abs() + 1e-15;
            assert!(error <= bound, "{x}: {output} is not {exact}");
        }
    }
}
