//! A set of numbers as sorted ranges that do not touch.

use serde::{Deserialize, Serialize};

/// See the module documentation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct RangeSet(Vec<(u32, u32)>);

impl RangeSet {
    /// `start..end`.
    pub(super) fn new(start: u32, end: u32) -> RangeSet {
        RangeSet(if start < end { vec![(start, end)] } else { Vec::new() })
    }

    /// The ranges, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.0.iter().copied()
    }

    /// How many numbers it has.
    pub(super) fn len(&self) -> u64 {
        self.0.iter().map(|(start, end)| u64::from(end - start)).sum()
    }

    /// Adds `start..end`, none of which it has.
    pub(super) fn insert(&mut self, start: u32, end: u32) {
        let at = self.0.partition_point(|range| range.0 < start);
        self.0.insert(at, (start, end));
        self.0.dedup_by(|next, last| {
            let touches = last.1 == next.0;
            if touches {
                last.1 = next.1;
            }
            touches
        });
    }

    /// Removes what it has of `start..end`; returns how many numbers that was.
    pub(super) fn remove(&mut self, start: u32, end: u32) -> u64 {
        let before = self.len();
        let outside = |(from, to): (u32, u32)| {
            let parts = [(from, to.min(start)), (from.max(end), to)];
            parts.into_iter().filter(|(from, to)| from < to)
        };
        self.0 = self.0.iter().copied().flat_map(outside).collect();
        before - self.len()
    }
}
