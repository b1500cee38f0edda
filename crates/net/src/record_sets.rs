//! The part of the directory that this node stores: for each key, the records of several authors.
//!
//! Kademlia stores one value per key, and providers without content. Here a key holds a record set of signed records,
//! one per author, each with its own expiry; so one lookup returns everything about all workers of a list. Records are
//! refreshed only by their authors, so holders do not replicate them.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use hypha_model::Listing;
use hypha_model::Name;
use hypha_wire::record::{MAX_TTL_MS, SignedRecord};
use hypha_wire::record_set::{MAX_ENTRIES, RecordSet, RecordSetEntry};
use libp2p::PeerId;
use libp2p::kad::store::{RecordStore, Result as StoreResult};
use libp2p::kad::{ProviderRecord, Record, RecordKey};

/// Keys that this node stores record sets for; with [`MAX_RECORDS`] it bounds the memory to some hundred megabytes.
const MAX_RECORD_SETS: usize = 65_536;
/// Records over all record sets.
const MAX_RECORDS: usize = 131_072;
/// Record sets that one author may appear in: more models than a machine serves.
pub(crate) const MAX_PER_AUTHOR: usize = 256;
/// Each list is spread over this many keys by author, so that a record set holds a quarter of a large pool.
pub(crate) const SHARDS: u8 = 4;

/// The key that `author` is listed under.
pub(crate) fn worker_key(listing: &Listing, author: &PeerId) -> RecordKey {
    key("worker", &listing.to_string(), shard_of(author))
}

/// The keys that together hold a list.
pub(crate) fn worker_keys(listing: &Listing) -> impl Iterator<Item = RecordKey> {
    let name = listing.to_string();
    (0..SHARDS).map(move |shard| key("worker", &name, shard))
}

/// The key of a data set. It has few providers, so it has no shards.
pub(crate) fn dataset_key(name: &Name) -> RecordKey {
    key("dataset", name.as_str(), 0)
}

fn shard_of(author: &PeerId) -> u8 {
    blake3::hash(&author.to_bytes()).as_bytes()[0] % SHARDS
}

fn key(kind: &str, name: &str, shard: u8) -> RecordKey {
    RecordKey::new(blake3::hash(format!("hypha/1/{kind}/{shard}/{name}").as_bytes()).as_bytes())
}

/// The record sets that this node stores.
pub(crate) struct RecordSets {
    record_sets: HashMap<RecordKey, BTreeMap<PeerId, StoredRecord>>,
    per_author: HashMap<PeerId, usize>,
    total: usize,
}

struct StoredRecord {
    signed: SignedRecord,
    sequence: u64,
    until: Instant,
}

/// The outcome of an insert.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum InsertOutcome {
    New,
    Refreshed,
    /// There is one with the same or a higher sequence number.
    Stale,
    Full,
}

impl RecordSets {
    pub(crate) fn new() -> RecordSets {
        RecordSets { record_sets: HashMap::new(), per_author: HashMap::new(), total: 0 }
    }

    /// Stores a verified record until `until`, unless there is a newer one or no room.
    pub(crate) fn insert(
        &mut self,
        key: RecordKey,
        author: PeerId,
        sequence: u64,
        until: Instant,
        signed: SignedRecord,
    ) -> InsertOutcome {
        let entry = StoredRecord { signed, sequence, until };
        if let Some(old) =
            self.record_sets.get_mut(&key).and_then(|record_set| record_set.get_mut(&author))
        {
            if old.sequence >= sequence {
                return InsertOutcome::Stale;
            }
            *old = entry;
            return InsertOutcome::Refreshed;
        }
        let set_is_full = match self.record_sets.get(&key) {
            Some(record_set) => record_set.len() >= MAX_ENTRIES,
            None => self.record_sets.len() >= MAX_RECORD_SETS,
        };
        let author_is_full =
            self.per_author.get(&author).is_some_and(|count| *count >= MAX_PER_AUTHOR);
        if set_is_full || author_is_full || self.total >= MAX_RECORDS {
            return InsertOutcome::Full;
        }
        self.record_sets.entry(key).or_default().insert(author, entry);
        *self.per_author.entry(author).or_default() += 1;
        self.total += 1;
        InsertOutcome::New
    }

    /// Drops the records of `author` before `sequence`.
    pub(crate) fn apply_farewell(&mut self, author: &PeerId, sequence: u64) {
        if self.per_author.contains_key(author) {
            self.retain(|by, entry| by != author || entry.sequence >= sequence);
        }
    }

    /// Drops expired records.
    pub(crate) fn expire(&mut self, now: Instant) {
        self.retain(|_, entry| entry.until > now);
    }

    /// Drops records that no longer verify.
    pub(crate) fn retain_verified(&mut self, mut verified: impl FnMut(&SignedRecord) -> bool) {
        self.retain(|_, entry| verified(&entry.signed));
    }

    pub(crate) fn len(&self) -> usize {
        self.total
    }

    fn retain(&mut self, mut stays: impl FnMut(&PeerId, &StoredRecord) -> bool) {
        let (per_author, total) = (&mut self.per_author, &mut self.total);
        self.record_sets.retain(|_, record_set| {
            record_set.retain(|author, entry| {
                let stays = stays(author, entry);
                if !stays {
                    *total -= 1;
                    if let Some(count) = per_author.get_mut(author) {
                        *count -= 1;
                    }
                }
                stays
            });
            !record_set.is_empty()
        });
        per_author.retain(|_, count| *count > 0);
    }

    fn entries(&self, key: &RecordKey, now: Instant) -> Vec<RecordSetEntry> {
        let entry = |entry: &StoredRecord| RecordSetEntry {
            remaining_ms: remaining_ms(entry.until, now),
            signed: entry.signed.clone(),
        };
        let record_set = self.record_sets.get(key).into_iter().flat_map(BTreeMap::values);
        record_set.filter(|entry| entry.until > now).map(entry).collect()
    }
}

fn remaining_ms(until: Instant, now: Instant) -> u32 {
    let left = until.saturating_duration_since(now).as_millis();
    u32::try_from(left).unwrap_or(MAX_TTL_MS).min(MAX_TTL_MS)
}

/// The store that Kademlia requires. Records are added only by [`RecordSets::insert`], after they were verified.
impl RecordStore for RecordSets {
    type RecordsIter<'a> = std::iter::Empty<Cow<'a, Record>>;
    type ProvidedIter<'a> = std::iter::Empty<Cow<'a, ProviderRecord>>;

    fn get(&self, key: &RecordKey) -> Option<Cow<'_, Record>> {
        let mut entries = self.entries(key, Instant::now());
        if entries.is_empty() {
            return None;
        }
        // Those that expire first are left out first, if one response cannot hold all.
        entries.sort_by_key(|entry| std::cmp::Reverse(entry.remaining_ms));
        let value = hypha_wire::encode(&RecordSet::from_entries(entries)).ok()?;
        Some(Cow::Owned(Record::new(key.clone(), value)))
    }

    fn put(&mut self, _: Record) -> StoreResult<()> {
        Ok(())
    }

    fn remove(&mut self, _: &RecordKey) {}

    fn records(&self) -> Self::RecordsIter<'_> {
        std::iter::empty()
    }

    fn add_provider(&mut self, _: ProviderRecord) -> StoreResult<()> {
        Ok(())
    }

    fn providers(&self, _: &RecordKey) -> Vec<ProviderRecord> {
        Vec::new()
    }

    fn provided(&self) -> Self::ProvidedIter<'_> {
        std::iter::empty()
    }

    fn remove_provider(&mut self, _: &RecordKey, _: &PeerId) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use hypha_wire::record::SignedKind;
    use std::time::Duration;

    fn signed(tag: u8) -> SignedRecord {
        SignedRecord {
            kind: SignedKind::Worker,
            payload: vec![tag; 300],
            chain: vec![vec![tag; 700]],
            signature: vec![tag; 64],
        }
    }

    fn found(record_sets: &RecordSets, key: &RecordKey) -> usize {
        let record = RecordStore::get(record_sets, key);
        record.map_or(0, |r| hypha_wire::decode::<RecordSet>(&r.value).unwrap().entries.len())
    }

    #[test]
    fn a_key_holds_many_authors_and_each_ones_newest() {
        let (mut record_sets, now) = (RecordSets::new(), Instant::now());
        let until = now + Duration::from_secs(60);
        let key = key("worker", "all", 0);
        let authors: Vec<_> = (0..200).map(|_| PeerId::random()).collect();
        for author in &authors {
            assert_eq!(
                record_sets.insert(key.clone(), *author, 5, until, signed(1)),
                InsertOutcome::New
            );
        }
        assert_eq!(found(&record_sets, &key), 200);
        assert_eq!(
            record_sets.insert(key.clone(), authors[0], 5, until, signed(2)),
            InsertOutcome::Stale
        );
        assert_eq!(
            record_sets.insert(key.clone(), authors[0], 4, until, signed(2)),
            InsertOutcome::Stale
        );
        assert_eq!(
            record_sets.insert(key.clone(), authors[0], 6, until, signed(2)),
            InsertOutcome::Refreshed
        );
        assert_eq!(record_sets.len(), 200);
        record_sets.apply_farewell(&authors[0], 6);
        assert_eq!(found(&record_sets, &key), 200, "a farewell voids earlier records");
        record_sets.apply_farewell(&authors[0], 7);
        assert_eq!(found(&record_sets, &key), 199);
        record_sets.expire(until + Duration::from_millis(1));
        assert_eq!(
            (record_sets.len(), record_sets.per_author.len(), record_sets.record_sets.len()),
            (0, 0, 0)
        );
    }

    #[test]
    fn records_that_no_longer_verify_are_dropped() {
        let (mut record_sets, until) =
            (RecordSets::new(), Instant::now() + Duration::from_secs(60));
        let key = key("worker", "all", 0);
        for tag in [1, 2, 3] {
            record_sets.insert(key.clone(), PeerId::random(), 1, until, signed(tag));
        }
        record_sets.retain_verified(|signed| signed.payload[0] != 2);
        assert_eq!((found(&record_sets, &key), record_sets.len()), (2, 2));
    }

    #[test]
    fn expired_records_are_not_returned_and_authors_are_limited() {
        let (mut record_sets, now) = (RecordSets::new(), Instant::now());
        let author = PeerId::random();
        let one = key("worker", "all", 0);
        record_sets.insert(one.clone(), author, 1, now, signed(1));
        assert_eq!(found(&record_sets, &one), 0);
        let until = now + Duration::from_secs(60);
        let kept = (0..MAX_PER_AUTHOR + 10)
            .filter(|n| {
                let key = key("worker", &n.to_string(), 0);
                record_sets.insert(key, author, 1, until, signed(1)) == InsertOutcome::New
            })
            .count();
        assert_eq!(kept, MAX_PER_AUTHOR - 1);
    }

    #[test]
    fn a_record_set_too_large_for_one_response_is_cut() {
        let (mut record_sets, until) =
            (RecordSets::new(), Instant::now() + Duration::from_secs(60));
        let key = key("worker", "all", 0);
        for _ in 0..MAX_ENTRIES {
            let mut large = signed(1);
            large.payload = vec![1; 4_000];
            record_sets.insert(key.clone(), PeerId::random(), 1, until, large);
        }
        assert!(found(&record_sets, &key) > 100);
    }

    #[test]
    fn an_author_is_listed_under_exactly_one_shard() {
        for _ in 0..50 {
            let author = PeerId::random();
            let listed = worker_key(&Listing::All, &author);
            assert_eq!(worker_keys(&Listing::All).filter(|key| *key == listed).count(), 1);
        }
    }
}
