//! Hash maps for pure code: look-ups only. Their order would differ between runs or versions, so they cannot be
//! iterated; code that needs an order keeps a `BTreeMap` or a `Vec` as well.

#![expect(clippy::disallowed_types, reason = "wrapped here so that it cannot be iterated")]

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};

/// A map that only supports look-ups by key.
#[derive(Clone, Debug)]
pub struct Map<K, V>(HashMap<K, V, BuildHasherDefault<FixedHasher>>);

/// A set that only supports membership tests.
#[derive(Clone, Debug)]
pub struct Set<K>(Map<K, ()>);

impl<K, V> Default for Map<K, V> {
    fn default() -> Self {
        Map(HashMap::default())
    }
}

impl<K> Default for Set<K> {
    fn default() -> Self {
        Set(Map::default())
    }
}

impl<K: Eq + Hash, V> Map<K, V> {
    /// The value under `key`.
    pub fn get<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.0.get(key)
    }

    /// The value under `key`, to change it.
    pub fn get_mut<Q: Eq + Hash + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        self.0.get_mut(key)
    }

    /// The value under `key`, made by `value` if there is none.
    pub fn get_or_insert_with(&mut self, key: K, value: impl FnOnce() -> V) -> &mut V {
        self.0.entry(key).or_insert_with(value)
    }

    /// Puts `value` under `key`; returns the previous value.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        self.0.insert(key, value)
    }

    /// Removes the value under `key`. Memory that was for many more keys is freed.
    pub fn remove<Q: Eq + Hash + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let gone = self.0.remove(key)?;
        if self.0.capacity() > MIN_CAPACITY.max(SPARSE * self.0.len()) {
            self.0.shrink_to(2 * self.0.len());
        }
        Some(gone)
    }

    /// Whether there is a value under `key`.
    pub fn contains<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.0.contains_key(key)
    }

    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many keys it has memory for.
    pub fn capacity(&self) -> usize {
        self.0.capacity()
    }
}

/// A map shrinks when it has memory for this many times its keys. It shrinks to twice its keys, so that it is long
/// until it shrinks again or has to grow.
const SPARSE: usize = 8;
/// A map this small is not worth shrinking.
const MIN_CAPACITY: usize = 32;

/// A map of very many keys, in shards: one shard at a time grows and shrinks, so no caller waits until a million keys
/// have moved to a larger table.
#[derive(Clone, Debug)]
pub struct ShardedMap<K, V> {
    shards: Vec<Map<K, V>>,
    len: usize,
}

/// With a million keys, a shard moves 4,000 when it grows: a tenth of a millisecond.
const SHARDS: usize = 256;

impl<K, V> Default for ShardedMap<K, V> {
    fn default() -> Self {
        ShardedMap { shards: (0..SHARDS).map(|_| Map::default()).collect(), len: 0 }
    }
}

impl<K: Eq + Hash, V> ShardedMap<K, V> {
    /// The value under `key`.
    pub fn get(&self, key: &K) -> Option<&V> {
        self.shards[shard_of(key)].get(key)
    }

    /// Puts `value` under `key`; returns the previous value.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        let before = self.shards[shard_of(&key)].insert(key, value);
        self.len += usize::from(before.is_none());
        before
    }

    /// Removes the value under `key`.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        let gone = self.shards[shard_of(key)].remove(key)?;
        self.len -= 1;
        Some(gone)
    }

    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many keys it has memory for.
    pub fn capacity(&self) -> usize {
        self.shards.iter().map(Map::capacity).sum()
    }
}

/// By other bits of the hash than a table uses: a table uses the highest seven and the lowest.
fn shard_of(key: &impl Hash) -> usize {
    let mut mix = FixedHasher::default();
    key.hash(&mut mix);
    (mix.finish() >> 32) as usize % SHARDS
}

impl<K: Eq + Hash> Set<K> {
    /// Adds `key`; true if it is new.
    pub fn insert(&mut self, key: K) -> bool {
        self.0.insert(key, ()).is_none()
    }

    /// Removes `key`; true if it was in the set.
    pub fn remove<Q: Eq + Hash + ?Sized>(&mut self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.0.remove(key).is_some()
    }

    /// Whether `key` is in the set.
    pub fn contains<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.0.contains(key)
    }

    /// How many members there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A fixed hash: one wide multiply for each eight bytes. Fast because it is predictable, so it is for keys that Hypha
/// makes itself (ids, indices). Keys that a client chooses go into a `BTreeMap`.
#[derive(Clone, Copy, Debug, Default)]
pub struct FixedHasher(u64);

impl FixedHasher {
    fn add(&mut self, word: u64) {
        let mixed = self.0.rotate_left(5) ^ word ^ 0x2545_F491_4F6C_DD1D;
        let product = u128::from(mixed) * u128::from(0x9E37_79B9_7F4A_7C15_u64);
        self.0 = (product as u64) ^ ((product >> 64) as u64);
    }
}

impl Hasher for FixedHasher {
    fn write(&mut self, bytes: &[u8]) {
        let mut chunks = bytes.chunks_exact(8);
        for chunk in &mut chunks {
            let mut word = [0; 8];
            word.copy_from_slice(chunk);
            self.add(u64::from_le_bytes(word));
        }
        let rest = chunks.remainder();
        if !rest.is_empty() {
            let mut word = [0; 8];
            word[..rest.len()].copy_from_slice(rest);
            self.add(u64::from_le_bytes(word));
        }
        self.add(bytes.len() as u64);
    }

    fn write_u8(&mut self, value: u8) {
        self.add(u64::from(value));
    }

    fn write_u32(&mut self, value: u32) {
        self.add(u64::from(value));
    }

    fn write_u64(&mut self, value: u64) {
        self.add(value);
    }

    fn write_usize(&mut self, value: usize) {
        self.add(value as u64);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_found_and_spread() {
        let mut map = Map::default();
        for i in 0u64..10_000 {
            map.insert(format!("key-{i}"), i);
        }
        assert!((0u64..10_000).all(|i| map.get(format!("key-{i}").as_str()) == Some(&i)));
        let mut low_bits = [0u32; 64];
        for i in 0u64..6_400 {
            let mut mix = FixedHasher::default();
            i.hash(&mut mix);
            low_bits[(mix.finish() % 64) as usize] += 1;
        }
        assert!(low_bits.iter().all(|count| (50..200).contains(count)), "{low_bits:?}");
    }

    #[test]
    fn memory_follows_the_number_of_keys() {
        const MANY: u64 = 200_000;
        let (mut map, mut large) = (Map::default(), ShardedMap::default());
        for key in 0..MANY {
            map.insert(key, key);
            assert!(large.insert(key, key).is_none());
        }
        for key in 0..MANY {
            assert_eq!((map.remove(&key), large.remove(&key)), (Some(key), Some(key)));
            if key == MANY / 2 {
                assert!(large.get(&key).is_none() && large.get(&(key + 1)) == Some(&(key + 1)));
                assert_eq!(large.len() as u64, MANY / 2 - 1);
            }
        }
        assert!(map.is_empty() && map.capacity() <= MIN_CAPACITY, "{}", map.capacity());
        assert!(large.is_empty() && large.capacity() <= SHARDS * MIN_CAPACITY);
    }

    #[test]
    fn shards_are_balanced() {
        let mut large = ShardedMap::default();
        (0u64..256_000).for_each(|key| assert!(large.insert(key, ()).is_none()));
        let parts = large.shards.iter().map(Map::len);
        assert!(parts.clone().all(|len| (800..1_200).contains(&len)), "{:?}", parts.max());
    }
}
