//! Why tasks of a batch did not complete: each reason once, with its count.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Value, json};

use crate::tasks::text::{clean, count, cut};

/// Reasons that are printed. Tasks of a batch mostly fail for the same reason.
const MAX_SHOWN: usize = 3;
/// Reasons that are distinguished: a million tasks may fail for as many.
const MAX_KEPT: usize = 1_000;
/// Enough for the cause; the results have the full text.
const MAX_REASON_CHARS: usize = 300;

/// Reasons, and how often each occurred.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Reasons {
    kept: BTreeMap<String, u64>,
    others: u64,
}

impl Reasons {
    pub(super) fn add(&mut self, reason: Option<&str>) {
        let reason = cut(&clean(reason.unwrap_or("no reason is known")), MAX_REASON_CHARS);
        match self.kept.len() < MAX_KEPT || self.kept.contains_key(&reason) {
            true => *self.kept.entry(reason).or_default() += 1,
            false => self.others += 1,
        }
    }

    /// The most frequent first, and how many tasks had others.
    fn most_frequent(&self) -> (Vec<(&str, u64)>, u64) {
        let mut all: Vec<_> = self.kept.iter().map(|(why, count)| (why.as_str(), *count)).collect();
        all.sort_by_key(|(_, count)| Reverse(*count));
        let rest = all.split_off(all.len().min(MAX_SHOWN));
        (all, self.others + rest.iter().map(|(_, count)| count).sum::<u64>())
    }

    pub(super) fn json(&self) -> Value {
        let reason = |(reason, count): (&str, u64)| json!({ "reason": reason, "count": count });
        self.most_frequent().0.into_iter().map(reason).collect()
    }
}

/// A line for each reason; nothing if there are none.
impl fmt::Display for Reasons {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (told, others) = self.most_frequent();
        for (reason, times) in told {
            writeln!(f, "{times} × {reason}")?;
        }
        match others {
            0 => Ok(()),
            others => writeln!(f, "{} for other reasons", count(others, "more task")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_listed_once_the_most_frequent_first() {
        let mut reasons = Reasons::default();
        assert_eq!(reasons.to_string(), "");
        for reason in ["b", "a\nline", "b", "c", "d", "a\nline", "b", "e"] {
            reasons.add(Some(reason));
        }
        let expected = "3 × b\n2 × a line\n1 × c\n2 more tasks for other reasons\n";
        assert_eq!(reasons.to_string(), expected);
        assert_eq!(reasons.json()[0], json!({"reason": "b", "count": 3}));
        let mut none = Reasons::default();
        none.add(None);
        assert_eq!(none.to_string(), "1 × no reason is known\n");
    }

    #[test]
    fn number_of_distinct_reasons_is_bounded() {
        let mut reasons = Reasons::default();
        (0..MAX_KEPT * 2).for_each(|n| reasons.add(Some(&format!("{n} {}", "x".repeat(1_000)))));
        assert_eq!((reasons.kept.len(), reasons.others), (MAX_KEPT, MAX_KEPT as u64));
        assert!(reasons.kept.keys().all(|reason| reason.chars().count() <= MAX_REASON_CHARS));
        assert_eq!(reasons.most_frequent().1, 2 * MAX_KEPT as u64 - MAX_SHOWN as u64);
    }
}
