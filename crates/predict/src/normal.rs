//! The normal distribution: quantiles, and the Mills ratio that stays accurate far out in the tail.

use std::f64::consts::{FRAC_1_SQRT_2, PI, SQRT_2};

use statrs::function::erf::{erfc, erfc_inv};

/// Probabilities nearer than this to 0 or 1 count as this: quantiles stay finite (about six sigma).
const MIN_PROBABILITY: f64 = 1e-9;

/// The standard normal quantile of `p`. Finite for every `p`; NaN counts as one half.
pub(crate) fn quantile(p: f64) -> f64 {
    let p = if p.is_nan() { 0.5 } else { p.clamp(MIN_PROBABILITY, 1.0 - MIN_PROBABILITY) };
    -SQRT_2 * erfc_inv(2.0 * p)
}

/// `1 - cdf(x)`: the probability of more than `x`.
pub(crate) fn survival(x: f64) -> f64 {
    0.5 * erfc(x * FRAC_1_SQRT_2)
}

/// `(1 - cdf(x)) / pdf(x)`: the probability above `x`, relative to the density at `x`.
pub(crate) fn mills(x: f64) -> f64 {
    // Below, the exponential is exact enough and cannot overflow; above, the fraction converges fast.
    const SWITCH: f64 = 4.0;
    if x < SWITCH {
        return (PI / 2.0).sqrt() * (x * x / 2.0).exp() * erfc(x * FRAC_1_SQRT_2);
    }
    // Laplace's continued fraction 1/(x + 1/(x + 2/(x + 3/(x + ...)))), from the inside out. It converges with the square
    // of `x`: 86 terms at the switch, 18 at ten, 5 beyond forty.
    let terms = 5 + (1_300.0 / (x * x)) as u32;
    1.0 / (1..=terms).rev().fold(x, |tail, k| x + f64::from(k) / tail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_match_the_tables_and_the_ends_are_finite() {
        for (p, z) in [(0.5, 0.0), (0.75, 0.674_489_75), (0.95, 1.644_853_63), (0.995, 2.575_829_3)]
        {
            assert!((quantile(p) - z).abs() < 1e-7, "{p}: {}", quantile(p));
            assert!((quantile(1.0 - p) + z).abs() < 1e-7);
        }
        assert!(quantile(0.0) < -5.9 && quantile(0.0).is_finite());
        assert!(quantile(2.0) > 5.9 && quantile(2.0).is_finite());
        assert_eq!(quantile(f64::NAN), 0.0);
    }

    #[test]
    fn mills_ratio_is_smooth_where_the_two_methods_meet() {
        // From 60-digit arithmetic.
        for (x, value) in [
            (-3.0, 225.334_896_220_349_12),
            (0.0, 1.253_314_137_315_500_3),
            (2.0, 0.421_369_229_288_054_5),
            (4.0, 0.236_652_382_913_560_67),
            (7.0, 0.140_104_183_453_050_24),
            (12.0, 0.082_766_286_501_369_18),
            (30.0, 0.033_296_419_072_497_21),
            (1e6, 9.999_999_999_99e-7),
        ] {
            let relative: f64 = (mills(x) - value) / value;
            assert!(relative.abs() < 1e-10, "{x}: {} instead of {value}", mills(x));
        }
        let (below, above) = (mills(4.0 - 1e-9), mills(4.0 + 1e-9));
        assert!(((below - above) / above).abs() < 1e-8);
    }
}
