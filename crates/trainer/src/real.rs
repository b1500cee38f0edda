//! The numbers that the layers compute with: `f32` in training, `f64` where tests check the gradients.

use std::fmt::Debug;
use std::iter::zip;
use std::ops::{Add, AddAssign, Div, Mul, MulAssign, Neg, Sub};

use crate::gemm::{self, Matrix, MatrixMut, Write};

/// A floating-point number.
pub(crate) trait Real:
    Copy
    + Debug
    + Default
    + PartialOrd
    + Send
    + Sync
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + AddAssign
    + MulAssign
{
    const ZERO: Self;
    const ONE: Self;

    fn from_f64(value: f64) -> Self;
    fn to_f64(self) -> f64;
    fn sqrt(self) -> Self;
    fn exp(self) -> Self;

    /// Writes `scale * left * right`.
    fn multiply(
        out: MatrixMut<'_, Self>,
        write: Write,
        scale: Self,
        left: Matrix<'_, Self>,
        right: Matrix<'_, Self>,
    );
}

impl Real for f32 {
    const ZERO: f32 = 0.0;
    const ONE: f32 = 1.0;

    fn from_f64(value: f64) -> f32 {
        value as f32
    }

    fn to_f64(self) -> f64 {
        f64::from(self)
    }

    fn sqrt(self) -> f32 {
        f32::sqrt(self)
    }

    #[inline(always)]
    fn exp(self) -> f32 {
        exp(self)
    }

    fn multiply(
        out: MatrixMut<'_, f32>,
        write: Write,
        scale: f32,
        left: Matrix<'_, f32>,
        right: Matrix<'_, f32>,
    ) {
        gemm::multiply(out, write, scale, left, right);
    }
}

#[cfg(test)]
impl Real for f64 {
    const ZERO: f64 = 0.0;
    const ONE: f64 = 1.0;

    fn from_f64(value: f64) -> f64 {
        value
    }

    fn to_f64(self) -> f64 {
        self
    }

    fn sqrt(self) -> f64 {
        f64::sqrt(self)
    }

    fn exp(self) -> f64 {
        f64::exp(self)
    }

    fn multiply(
        out: MatrixMut<'_, f64>,
        write: Write,
        scale: f64,
        left: Matrix<'_, f64>,
        right: Matrix<'_, f64>,
    ) {
        gemm::multiply_naively(out, write, scale, left, right);
    }
}

/// Partial sums that a vector unit computes at once. The order of additions is fixed, and with it every rounding.
const LANES: usize = 16;

/// The sum of `values`.
pub(crate) fn sum<R: Real>(values: &[R]) -> R {
    let (chunks, rest) = values.as_chunks::<LANES>();
    let mut lanes = [R::ZERO; LANES];
    for chunk in chunks {
        for (lane, value) in zip(&mut lanes, chunk) {
            *lane += *value;
        }
    }
    fold(lanes, rest.iter().copied())
}

/// The sum of the products of `a` and `b`.
pub(crate) fn dot<R: Real>(a: &[R], b: &[R]) -> R {
    assert_eq!(a.len(), b.len(), "a product of vectors of different lengths");
    let ((a_chunks, a_rest), (b_chunks, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    let mut lanes = [R::ZERO; LANES];
    for (a, b) in zip(a_chunks, b_chunks) {
        for (lane, (a, b)) in zip(&mut lanes, zip(a, b)) {
            *lane += *a * *b;
        }
    }
    fold(lanes, zip(a_rest, b_rest).map(|(a, b)| *a * *b))
}

/// The largest of `values`; not a number where one of the first of them is not.
pub(crate) fn max<R: Real>(values: &[R]) -> R {
    let larger = |a: R, b: R| if b > a { b } else { a };
    let first = values.first().copied().unwrap_or_default();
    let (chunks, rest) = values.as_chunks::<LANES>();
    let mut lanes = [first; LANES];
    for chunk in chunks {
        for (lane, value) in zip(&mut lanes, chunk) {
            *lane = larger(*lane, *value);
        }
    }
    lanes.iter().chain(rest).fold(first, |a, b| larger(a, *b))
}

/// Turns `values` into probabilities in proportion to their exponentials; returns the logarithm of the exponentials' sum.
pub(crate) fn softmax<R: Real>(values: &mut [R]) -> f64 {
    let largest = max(values);
    for value in values.iter_mut() {
        *value = (*value - largest).exp();
    }
    let total = sum(values);
    let share = R::ONE / total;
    for value in values.iter_mut() {
        *value *= share;
    }
    total.to_f64().ln() + largest.to_f64()
}

fn fold<R: Real>(lanes: [R; LANES], rest: impl Iterator<Item = R>) -> R {
    let mut total = R::ZERO;
    for value in lanes.into_iter().chain(rest) {
        total += value;
    }
    total
}

/// `e^x` to 1e-7 of its value, without a branch or a call, so that a loop of it becomes vector instructions. Arguments
/// beyond those whose result is a normal number count as the nearest of them.
#[inline(always)]
fn exp(x: f32) -> f32 {
    // x = n ln 2 + r with |r| <= ln 2 / 2. Adding 1.5 * 2^23 rounds to an integer and leaves it in the lowest bits.
    const ROUND: f32 = 12_582_912.0;
    // ln 2 in two parts. The first has few enough bits that its product with n is exact.
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = (std::f64::consts::LN_2 - LN_2_HIGH as f64) as f32;
    let x = x.clamp(-87.3, 88.3);
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (x - n * LN_2_HIGH) - n * LN_2_LOW;
    // The series of e^r up to r^7 / 7!: the next term is below 6e-9.
    let tail = 1.0 / 120.0 + r * (1.0 / 720.0 + r * (1.0 / 5040.0));
    let tail = 0.5 + r * (1.0 / 6.0 + r * (1.0 / 24.0 + r * tail));
    let power = f32::from_bits(shifted.to_bits().wrapping_add(127) << 23);
    (1.0 + (r + r * r * tail)) * power
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponential_is_accurate_over_its_range() {
        let mut worst = 0.0f64;
        let steps = 3_000_000;
        for i in 0..=steps {
            let x = -87.3 + 175.6 * i as f32 / steps as f32;
            let exact = f64::from(x).exp();
            worst = worst.max((f64::from(exp(x)) / exact - 1.0).abs());
        }
        assert!(worst <= 1e-7, "{worst:e}");
    }

    #[test]
    fn exponential_saturates_and_keeps_what_is_not_a_number() {
        assert!(exp(f32::NEG_INFINITY) < 1e-37 && exp(f32::NEG_INFINITY) >= 0.0);
        assert!(exp(f32::INFINITY) > 1e38 && exp(1e9).is_finite());
        assert!(exp(f32::NAN).is_nan());
        assert_eq!(exp(0.0), 1.0);
    }

    #[test]
    fn reductions_take_every_value_at_any_length() {
        for len in 1..70usize {
            let values: Vec<f64> = (0..len).map(|i| ((i * 7) % len) as f64 - 3.0).collect();
            let expected: f64 = values.iter().sum();
            assert_eq!(sum(&values), expected, "{len}");
            assert_eq!(dot(&values, &vec![2.0; len]), 2.0 * expected, "{len}");
            let largest = values.iter().copied().fold(f64::MIN, f64::max);
            assert_eq!(max(&values), largest, "{len}");
            let mut shares = values.clone();
            let log_total = softmax(&mut shares);
            let total: f64 = values.iter().map(|value| value.exp()).sum();
            assert!((log_total - total.ln()).abs() < 1e-12, "{len}");
            assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-12, "{len}");
        }
    }
}
