//! Token buckets: rate limits by key.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Instant;

/// A bucket for each key, all of one size.
pub(crate) struct RateLimiter<K> {
    per_second: f64,
    burst: f64,
    /// The most keys that are remembered. The fullest bucket, which matters least, is dropped first.
    max_keys: usize,
    buckets: HashMap<K, (f64, Instant)>,
}

impl<K: Eq + Hash + Copy> RateLimiter<K> {
    pub(crate) fn new(per_second: u32, burst: u32, max_keys: usize) -> RateLimiter<K> {
        RateLimiter {
            per_second: f64::from(per_second),
            burst: f64::from(burst),
            max_keys,
            buckets: HashMap::new(),
        }
    }

    /// Takes a token of `key`, if there is one.
    pub(crate) fn take(&mut self, key: K, now: Instant) -> bool {
        if self.buckets.len() >= self.max_keys && !self.buckets.contains_key(&key) {
            self.make_room(now);
        }
        let bucket = self.buckets.entry(key).or_insert((self.burst, now));
        let elapsed = now.saturating_duration_since(bucket.1).as_secs_f64();
        *bucket = ((bucket.0 + elapsed * self.per_second).min(self.burst), now);
        let enough = bucket.0 >= 1.0;
        if enough {
            bucket.0 -= 1.0;
        }
        enough
    }

    fn make_room(&mut self, now: Instant) {
        let (rate, burst) = (self.per_second, self.burst);
        let level = |(level, at): &(f64, Instant)| {
            level + now.saturating_duration_since(*at).as_secs_f64() * rate
        };
        self.buckets.retain(|_, bucket| level(bucket) < burst);
        if self.buckets.len() >= self.max_keys {
            let fullest = self.buckets.iter().max_by(|a, b| level(a.1).total_cmp(&level(b.1)));
            if let Some(key) = fullest.map(|(key, _)| *key) {
                self.buckets.remove(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_bucket_empties_and_fills_again_for_each_key_alone() {
        let mut buckets = RateLimiter::new(2, 3, 8);
        let start = Instant::now();
        let taken = |buckets: &mut RateLimiter<u8>, key, at| {
            (0..10).filter(|_| buckets.take(key, at)).count()
        };
        assert_eq!(taken(&mut buckets, 1, start), 3);
        assert_eq!(taken(&mut buckets, 2, start), 3);
        assert_eq!(taken(&mut buckets, 1, start + Duration::from_secs(1)), 2);
        assert_eq!(taken(&mut buckets, 1, start + Duration::from_secs(60)), 3);
    }

    #[test]
    fn the_number_of_keys_is_bounded_and_the_busiest_stay_limited() {
        let mut buckets = RateLimiter::new(1, 2, 4);
        let now = Instant::now();
        assert!(buckets.take(0_u32, now) && buckets.take(0, now) && !buckets.take(0, now));
        for key in 1..100 {
            assert!(buckets.take(key, now));
        }
        assert!(buckets.buckets.len() <= 4);
        assert!(!buckets.take(0, now));
    }
}
