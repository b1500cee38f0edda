//! Whether the owner uses the machine: the load of processes that are not the worker's, with hysteresis so that a short
//! peak or a short lull changes nothing.

use hypha_model::{Span, Time};

/// When a machine counts as used by its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct YieldTerms {
    /// The share of the cores that other processes must use, in thousandths; `None` is any.
    pub cpu_above_permille: Option<u16>,
    /// The same of any one GPU.
    pub gpu_above_permille: Option<u16>,
    /// For how long they must use more of either, and then for how long less than half of both.
    pub lasting: Span,
}

/// What processes that are not the worker's use of a machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OtherUse {
    /// The share of the cores, in thousandths.
    pub cpu_permille: u16,
    /// The share of the GPU that they use most, in thousandths.
    pub gpu_permille: u16,
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
    pub fn measured(&mut self, now: Time, other: OtherUse, terms: &YieldTerms) -> bool {
        let is_opposed = match self.is_used {
            true => terms.limits(other).all(|(used, above)| used < above / 2),
            false => terms.limits(other).any(|(used, above)| used > above),
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

impl YieldTerms {
    /// What is used and the limit, for each that there is a limit for.
    fn limits(&self, other: OtherUse) -> impl Iterator<Item = (u16, u16)> {
        let cpu = self.cpu_above_permille.map(|above| (other.cpu_permille, above));
        let gpu = self.gpu_above_permille.map(|above| (other.gpu_permille, above));
        cpu.into_iter().chain(gpu)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LASTING: Span = Span::from_secs(30);

    fn at(seconds: u64) -> Time {
        Time::from_micros(seconds * 1_000_000)
    }

    #[test]
    fn short_peaks_and_lulls_change_nothing() {
        let terms = YieldTerms {
            cpu_above_permille: Some(200),
            gpu_above_permille: None,
            lasting: LASTING,
        };
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
            let other = OtherUse { cpu_permille: permille, gpu_permille: 1_000 };
            assert_eq!(owner.measured(at(seconds), other, &terms), expected, "after {seconds} s");
        }
    }

    #[test]
    fn either_resource_is_enough_and_both_must_be_free_again() {
        let terms = YieldTerms {
            cpu_above_permille: Some(500),
            gpu_above_permille: Some(100),
            lasting: LASTING,
        };
        let mut owner = OwnerUse::default();
        let cases = [
            (0, (0, 101), false),
            (30, (501, 0), true),
            (40, (0, 50), true),
            (80, (250, 0), true),
            (90, (0, 0), true),
            (120, (0, 0), false),
        ];
        for (seconds, (cpu_permille, gpu_permille), expected) in cases {
            let other = OtherUse { cpu_permille, gpu_permille };
            assert_eq!(owner.measured(at(seconds), other, &terms), expected, "after {seconds} s");
        }
    }
}
