//! A linear layer: `output = input * weight + bias`, on top of a residual where there is one.

use std::iter::zip;

use crate::gemm::{Matrix, MatrixMut, Write};
use crate::real::Real;

/// Computes `output`; the bias has its width.
pub(crate) fn forward<R: Real>(output: &mut [R], input: &[R], (weight, bias): (&[R], &[R])) {
    for row in output.chunks_exact_mut(bias.len()) {
        row.copy_from_slice(bias);
    }
    add_product(output, input, weight, bias.len());
}

/// Computes `output` as the sum of `residual` and the layer's own output.
pub(crate) fn forward_with_residual<R: Real>(
    output: &mut [R],
    residual: &[R],
    input: &[R],
    (weight, bias): (&[R], &[R]),
) {
    let width = bias.len();
    for (row, residual) in zip(output.chunks_exact_mut(width), residual.chunks_exact(width)) {
        for (output, (residual, bias)) in zip(row, zip(residual, bias)) {
            *output = *residual + *bias;
        }
    }
    add_product(output, input, weight, width);
}

/// Writes the gradient by the input and adds those by weight and bias. A residual's gradient is `output_gradient` itself.
pub(crate) fn backward<R: Real>(
    input_gradient: &mut [R],
    (weight_gradient, bias_gradient): (&mut [R], &mut [R]),
    output_gradient: &[R],
    input: &[R],
    (weight, bias): (&[R], &[R]),
) {
    let (width, input_width) = (bias.len(), weight.len() / bias.len());
    for row in output_gradient.chunks_exact(width) {
        for (sum, gradient) in zip(bias_gradient.iter_mut(), row) {
            *sum += *gradient;
        }
    }
    let gradient = Matrix::new(output_gradient, width);
    let inputs = Matrix::new(input, input_width).transposed();
    R::multiply(MatrixMut::new(weight_gradient, width), Write::Add, R::ONE, inputs, gradient);
    let weight = Matrix::new(weight, width).transposed();
    let out = MatrixMut::new(input_gradient, input_width);
    R::multiply(out, Write::Replace, R::ONE, gradient, weight);
}

fn add_product<R: Real>(output: &mut [R], input: &[R], weight: &[R], width: usize) {
    let input = Matrix::new(input, weight.len() / width);
    let weight = Matrix::new(weight, width);
    R::multiply(MatrixMut::new(output, width), Write::Add, R::ONE, input, weight);
}
