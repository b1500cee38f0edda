//! The stored counts, and the tolerance.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::path::Path;

use anyhow::Context;

/// Their file, from the root.
pub(super) const COUNTS_FILE: &str = "xtask/counts.toml";

/// How much a count may exceed its stored value, in permille.
///
/// Two runs of one build do not differ, except that those of `commit` differ by up to 8 permille: its two
/// threads do not always interleave in the same way. The rest is for another release of the C library, whose
/// allocator and functions are part of the counts. Another compiler may need more: that is a reason to renew.
pub(super) const TOLERANCE_PERMILLE: u64 = 20;

/// The most that a scenario may cost relative to another, in percent, independent of the stored counts.
pub(super) const RATIOS: [Ratio; 2] = [
    // A cycle under the default strategy reaches 0.8 of one under `fifo`.
    Ratio { name: "crowd", of: "crowd_fifo", most_percent: 125 },
    // Unschedulable tasks cost the others next to nothing.
    Ratio { name: "place_unserved", of: "place", most_percent: 120 },
];

/// A scenario relative to another.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Ratio {
    pub(super) name: &'static str,
    pub(super) of: &'static str,
    pub(super) most_percent: u64,
}

impl Ratio {
    /// The first as a percentage of the second, if both were counted.
    pub(super) fn percent(&self, counted: &InstructionCounts) -> Option<u64> {
        let [first, second] = [self.name, self.of].map(|name| counted.0.get(name).copied());
        Some(first? * 100 / second?.max(1))
    }

    pub(super) fn passes(&self, counted: &InstructionCounts) -> bool {
        self.percent(counted).is_some_and(|percent| percent <= self.most_percent)
    }
}

const HEAD: &str = "\
# Instructions of one round of each scenario in crates/counts, by callgrind. `cargo xtask counts` compares with them and
# `cargo xtask counts --renew` writes them: on purpose, with the reason in the commit.

";

/// Instructions a round, by scenario.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct InstructionCounts(pub(super) BTreeMap<String, u64>);

impl InstructionCounts {
    pub(super) fn read(root: &Path) -> anyhow::Result<InstructionCounts> {
        let advice = || format!("cannot use {COUNTS_FILE}; `cargo xtask counts --renew` writes it");
        let text = fs::read_to_string(root.join(COUNTS_FILE)).with_context(advice)?;
        Ok(InstructionCounts(toml::from_str(&text).with_context(advice)?))
    }

    pub(super) fn write(&self, root: &Path) -> anyhow::Result<()> {
        let text = HEAD.to_owned() + &toml::to_string(&self.0)?;
        fs::write(root.join(COUNTS_FILE), text)
            .with_context(|| format!("cannot write {COUNTS_FILE}"))
    }
}

/// Every scenario of either, with its count in both.
pub(super) fn pairs<'a>(
    stored: &'a InstructionCounts,
    counted: &'a InstructionCounts,
) -> impl Iterator<Item = (&'a str, Option<u64>, Option<u64>)> {
    let names: BTreeSet<_> = stored.0.keys().chain(counted.0.keys()).collect();
    let of = |figures: &InstructionCounts, name: &String| figures.0.get(name).copied();
    names.into_iter().map(move |name| (name.as_str(), of(stored, name), of(counted, name)))
}

/// A count compared with its stored value.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CountChange {
    /// Within the tolerance; the change in permille.
    Same(i64),
    /// Less than before by more than the tolerance.
    Better(i64),
    Worse(i64),
    /// Only one of the two has it.
    Unmatched,
}

impl CountChange {
    pub(super) fn of(before: Option<u64>, now: Option<u64>) -> CountChange {
        let (Some(before), Some(now)) = (before, now) else { return CountChange::Unmatched };
        let change = (now as i64 - before as i64) * 1_000 / before.max(1) as i64;
        match change.unsigned_abs() > TOLERANCE_PERMILLE {
            false => CountChange::Same(change),
            true if change < 0 => CountChange::Better(change),
            true => CountChange::Worse(change),
        }
    }

    pub(super) fn passes(&self) -> bool {
        matches!(self, CountChange::Same(_) | CountChange::Better(_))
    }
}

impl fmt::Display for CountChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |change: &i64| *change as f64 / 10.0;
        match self {
            CountChange::Same(change) => write!(f, "{:+.1} %", percent(change)),
            CountChange::Better(change) => {
                write!(f, "{:+.1} %: keep this gain with --renew", percent(change))
            }
            CountChange::Worse(change) => {
                let allowed = percent(&(TOLERANCE_PERMILLE as i64));
                write!(f, "{:+.1} %: FAILED, more than {allowed} % above", percent(change))
            }
            CountChange::Unmatched => f.write_str("FAILED: in one of the two only; use --renew"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_counts_above_the_tolerance_fail() {
        let limit = 1_000 + TOLERANCE_PERMILLE;
        for (before, now, passes) in [
            (Some(1_000), Some(1_000), true),
            (Some(1_000), Some(limit), true),
            (Some(1_000), Some(limit + 1), false),
            (Some(1_000), Some(500), true),
            (Some(1_000), None, false),
            (None, Some(1_000), false),
        ] {
            assert_eq!(CountChange::of(before, now).passes(), passes, "{before:?} {now:?}");
        }
        assert_eq!(CountChange::of(Some(1_000), Some(500)), CountChange::Better(-500));
    }

    #[test]
    fn a_ratio_fails_above_its_goal_and_without_its_figures() {
        let ratio = Ratio { name: "one", of: "other", most_percent: 120 };
        let figures = |one: u64, other: u64| {
            InstructionCounts(BTreeMap::from([
                ("one".to_owned(), one),
                ("other".to_owned(), other),
            ]))
        };
        for (one, other, passes) in [(100, 100, true), (120, 100, true), (121, 100, false)] {
            assert_eq!(ratio.passes(&figures(one, other)), passes, "{one} of {other}");
        }
        assert!(!ratio.passes(&InstructionCounts(BTreeMap::from([("one".to_owned(), 1)]))));
    }

    #[test]
    fn figures_are_written_and_read() {
        let folder = std::env::temp_dir().join(format!("hypha-figures-{}", std::process::id()));
        fs::create_dir_all(folder.join("xtask")).expect("a folder");
        let figures = InstructionCounts(BTreeMap::from([("place".to_owned(), 12_345)]));
        figures.write(&folder).expect("written");
        assert_eq!(InstructionCounts::read(&folder).expect("read"), figures);
        fs::remove_dir_all(folder).expect("removed");
    }

    #[test]
    fn a_scenario_of_either_side_is_shown() {
        let figures = |name: &str| InstructionCounts(BTreeMap::from([(name.to_owned(), 1)]));
        let (stored, counted) = (figures("gone"), figures("new"));
        let pairs: Vec<_> = pairs(&stored, &counted).collect();
        assert_eq!(pairs, [("gone", Some(1), None), ("new", None, Some(1))]);
    }
}
