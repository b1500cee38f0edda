//! Random numbers from a seed, so that a run's plan can be repeated.

use std::ops::RangeInclusive;
use std::time::Duration;

/// Adds a large odd step and mixes the bits of each number. Good enough for choices, and short.
pub(crate) struct Random(u64);

impl Random {
    /// Independent numbers for each `stream` of a seed.
    pub(crate) fn new(seed: u64, stream: u64) -> Random {
        let mut random = Random(seed);
        random.0 = random.next() ^ stream;
        random.0 = random.next();
        random
    }

    /// A number in the range; the bias of a remainder does not matter here.
    pub(crate) fn in_range(&mut self, range: RangeInclusive<u64>) -> u64 {
        let (first, last) = (*range.start(), *range.end());
        first + self.next() % (last - first).saturating_add(1)
    }

    /// A random index below `count`.
    pub(crate) fn index(&mut self, count: usize) -> usize {
        (self.next() % (count.max(1) as u64)) as usize
    }

    /// True once in `times`.
    pub(crate) fn once_in(&mut self, times: u64) -> bool {
        self.in_range(1..=times) == 1
    }

    pub(crate) fn millis(&mut self, range: RangeInclusive<u64>) -> Duration {
        Duration::from_millis(self.in_range(range))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0xA24B_AED4_963E_E407);
        let mut mixed = self.0;
        for multiplier in [0x9FB2_1C65_1E98_DF25, 0xD6E8_FEB8_6659_FD93] {
            mixed = (mixed ^ (mixed >> 32)).wrapping_mul(multiplier);
        }
        mixed ^ (mixed >> 32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_numbers_and_a_stream_others() {
        let take = |seed, stream| {
            let mut random = Random::new(seed, stream);
            (0..8).map(|_| random.in_range(0..=u64::MAX - 1)).collect::<Vec<_>>()
        };
        assert_eq!(take(7, 1), take(7, 1));
        assert_ne!(take(7, 1), take(7, 2));
        assert_ne!(take(7, 1), take(8, 1));
    }

    #[test]
    fn numbers_stay_in_their_range_and_reach_all_of_it() {
        let mut random = Random::new(1, 0);
        let drawn: Vec<u64> = (0..1_000).map(|_| random.in_range(3..=6)).collect();
        assert!(drawn.iter().all(|number| (3..=6).contains(number)));
        assert!((3..=6).all(|number| drawn.contains(&number)));
        assert_eq!(random.in_range(5..=5), 5);
        assert_eq!(random.index(0), 0);
    }
}
