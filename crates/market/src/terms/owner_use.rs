//! Whether the owner uses the machine: the load of processes that are not the worker's, with hysteresis so that a short
//! peak or a short lull changes nothing.

use hypha_model::{Span, Time};

/// When a machine counts as used by its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct YieldTerms {
    /// The share of the processor or of a GPU that other processes must use, in thousandths.
    pub above_permille: u16,
    /// For how long they must use more, and then for how long less than half of it.
    pub lasting: Span,
}

/// See the module documentation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnerUse {
    is_used: bool,
    /// Since when the measurements speak for the opposite of `is_used`.
    opposed_since: Option<Time>,
}

impl OwnerUse {
    /// Takes a measurement of what other processes use, and returns whether the machine is used by its owner.
    pub fn measured(&mut self, now: Time, permille: u16, terms: &YieldTerms) -> bool {
        let is_opposed = match self.is_used {
            true => permille < terms.above_permille / 2,
            false => permille > terms.above_permille,
        };
        if !is_opposed {
            self.opposed_since = None;
            return self.is_used;
        }
        let since = *self.opposed_since.get_or_insert(now);
        if now.since(since) >= terms.lasting {
            (self.is_used, self.opposed_since) = (!self.is_used, None);
        }
        self.is_used
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_peaks_and_lulls_change_nothing() {
        let terms = YieldTerms { above_permille: 200, lasting: Span::from_secs(30) };
        let mut owner = OwnerUse::default();
        // Seconds, the share that others use, and whether the machine is then used by its owner.
        let cases = [
            (0, 900, false),
            (20, 900, false),
            (25, 200, false),
            (30, 900, false),
            (59, 900, false),
            (60, 900, true),
            (70, 150, true),
            (200, 150, true),
            (210, 99, true),
            (230, 100, true),
            (235, 0, true),
            (264, 0, true),
            (265, 0, false),
            (270, 150, false),
        ];
        for (seconds, permille, expected) in cases {
            let now = Time::from_micros(seconds * 1_000_000);
            assert_eq!(owner.measured(now, permille, &terms), expected, "after {seconds} s");
        }
    }
}
