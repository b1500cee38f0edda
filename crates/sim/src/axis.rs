//! From numbers to coordinates on a drawing: an axis and its ticks.

/// An axis from `low` to `high`, which is always more than `low`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Axis {
    low: f64,
    high: f64,
}

impl Axis {
    /// From zero, for bars: their length is the value.
    pub(crate) fn from_zero(high: f64) -> Axis {
        Axis { low: 0.0, high: if high > 0.0 { high } else { 1.0 } }
    }

    /// Around points, with a margin.
    pub(crate) fn around(values: impl Iterator<Item = f64> + Clone) -> Axis {
        const MARGIN: f64 = 0.12;
        let least = values.clone().fold(f64::INFINITY, f64::min);
        let most = values.fold(0.0, f64::max);
        if least > most || most <= 0.0 {
            return Axis::from_zero(1.0);
        }
        let margin = MARGIN * if most > least { most - least } else { most };
        Axis { low: (least - margin).max(0.0), high: most + margin }
    }

    /// The largest value on the axis.
    pub(crate) fn high(&self) -> f64 {
        self.high
    }

    /// The position of `value`: 0 at the low end, 1 at the high end, and never outside.
    pub(crate) fn at(&self, value: f64) -> f64 {
        ((value - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
    }

    /// About five round values within the axis.
    pub(crate) fn ticks(&self) -> Vec<f64> {
        let rough = (self.high - self.low) / 5.0;
        let power = 10f64.powf(rough.log10().floor());
        let round = [1.0, 2.0, 5.0].map(|digit| digit * power);
        let step = round.into_iter().find(|step| *step >= rough).unwrap_or(10.0 * power);
        let first = (self.low / step).ceil();
        // At most six fit by the choice of the step; the bound is for rounding.
        let ticks = (0..8).map(|index| (first + f64::from(index)) * step);
        ticks.take_while(|tick| *tick <= self.high).collect()
    }
}

/// A latency in three digits and a fitting unit.
pub(crate) fn duration(ms: f64) -> String {
    // The bounds are where rounding would add a digit.
    let (value, unit) = if ms < 999.5 { (ms, "ms") } else { (ms / 1000.0, "s") };
    match value {
        value if !value.is_finite() => "-".to_owned(),
        value if value >= 99.95 => format!("{value:.0} {unit}"),
        value if value >= 9.995 => format!("{value:.1} {unit}"),
        value => format!("{value:.2} {unit}"),
    }
}

/// The same for a tick, which is round: no trailing zeros.
pub(crate) fn round_duration(ms: f64) -> String {
    let (value, unit) = if ms < 1000.0 { (ms, "ms") } else { (ms / 1000.0, "s") };
    let digits = format!("{value:.3}");
    let digits = digits.trim_end_matches('0').trim_end_matches('.');
    if digits == "0" { "0".to_owned() } else { format!("{digits} {unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(axis: Axis, expected: &str) {
        let tick = |tick: f64| format!("{}@{:.2}", round_duration(tick), axis.at(tick));
        let shown: Vec<String> = axis.ticks().into_iter().map(tick).collect();
        assert_eq!(shown.join(", "), expected);
    }

    #[test]
    fn ticks_are_round_and_in_their_place() {
        check(
            Axis::from_zero(10.0),
            "0@0.00, 2 ms@0.20, 4 ms@0.40, 6 ms@0.60, 8 ms@0.80, 10 ms@1.00",
        );
        check(Axis::from_zero(6300.0), "0@0.00, 2 s@0.32, 4 s@0.63, 6 s@0.95");
        check(
            Axis::from_zero(0.0),
            "0@0.00, 0.2 ms@0.20, 0.4 ms@0.40, 0.6 ms@0.60, 0.8 ms@0.80, 1 ms@1.00",
        );
        check(
            Axis::around([100.0, 400.0].into_iter()),
            "100 ms@0.10, 200 ms@0.37, 300 ms@0.63, 400 ms@0.90",
        );
    }

    #[test]
    fn degenerate_points_still_make_an_axis() {
        let odd: [&[f64]; 4] = [&[], &[0.0], &[5.0], &[0.0, 100.0]];
        for values in odd {
            let axis = Axis::around(values.iter().copied());
            assert!(axis.high > axis.low && axis.low >= 0.0, "{values:?}: {axis:?}");
            assert!((2..=8).contains(&axis.ticks().len()), "{values:?}: {:?}", axis.ticks());
        }
        assert_eq!(Axis::from_zero(2.0).at(9.0), 1.0);
        assert_eq!(Axis::from_zero(2.0).at(-1.0), 0.0);
    }

    #[test]
    fn latencies_have_three_digits() {
        let check = |ms, expected| assert_eq!(duration(ms), expected);
        check(0.0, "0.00 ms");
        check(3.456, "3.46 ms");
        check(9.996, "10.0 ms");
        check(34.56, "34.6 ms");
        check(99.96, "100 ms");
        check(345.6, "346 ms");
        check(999.6, "1.00 s");
        check(3456.0, "3.46 s");
        check(3_456_000.0, "3456 s");
        check(f64::NAN, "-");
        check(f64::INFINITY, "-");
    }
}
