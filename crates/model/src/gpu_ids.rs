//! The GPUs that a client names for a task.

use serde::{Deserialize, Serialize};

/// GPUs of a worker by their numbers on that machine, from 0 on. None: the ledger chooses them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GpuIds(u64);

impl GpuIds {
    /// The greatest number that can be named: one bit each, and no machine has more GPUs.
    pub const MAX: u32 = 63;

    /// The set with one more; `None` if it is in it already, or greater than [`GpuIds::MAX`].
    pub fn with(self, id: u32) -> Option<GpuIds> {
        let bit = (id <= GpuIds::MAX).then(|| 1 << id)?;
        (self.0 & bit == 0).then_some(GpuIds(self.0 | bit))
    }

    /// Whether none is named.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// How many are named.
    pub const fn count(self) -> u32 {
        self.0.count_ones()
    }

    /// Whether a task may use this GPU: it is named, or none is.
    pub const fn allow(self, id: u32) -> bool {
        self.0 == 0 || (id <= GpuIds::MAX && self.0 >> id & 1 == 1)
    }

    /// How many GPUs a worker must have so that it has all that are named.
    pub const fn least_gpus(self) -> u32 {
        u64::BITS - self.0.leading_zeros()
    }

    /// The numbers as one value, to compare requirements by.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// The numbers in ascending order.
    pub fn iter(self) -> impl Iterator<Item = u32> {
        (0..=GpuIds::MAX).filter(move |id| self.0 >> id & 1 == 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_each_number_once() {
        let set = GpuIds::default().with(3).and_then(|set| set.with(0)).unwrap();
        assert_eq!((set.count(), set.least_gpus()), (2, 4));
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 3]);
        assert_eq!([0, 1, 3, 64].map(|id| set.allow(id)), [true, false, true, false]);
        assert_eq!((set.with(3), set.with(64)), (None, None));
        assert!(GpuIds::default().allow(77) && GpuIds::default().is_empty());
        assert_eq!(set.with(63).unwrap().least_gpus(), 64);
    }
}
