//! What this node keeps of the directory: for each key, the records of several authors.
//!
//! Kademlia keeps one value a key, and providers without content. Here a key holds a shelf of signed records, one
//! an author, each with its own end; so one look-up answers with everything about all workers of a list. Records are
//! refreshed by their authors only, so nothing is copied on by those who hold them.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use hypha_model::Listing;
use hypha_model::Name;
use hypha_wire::record::{MAX_TTL_MS, Signed};
use hypha_wire::shelf::{MAX_ENTRIES, Shelf, ShelfEntry};
use libp2p::PeerId;
use libp2p::kad::store::{RecordStore, Result as StoreResult};
use libp2p::kad::{ProviderRecord, Record, RecordKey};

/// Keys that this node keeps shelves for; with [`MAX_TOTAL`] it bounds the memory to some hundred megabytes.
const MAX_SHELVES: usize = 65_536;
/// Records over all shelves.
const MAX_TOTAL: usize = 131_072;
/// Shelves that one author may stand on: more models than a machine serves.
pub(crate) const MAX_PER_AUTHOR: usize = 256;
/// Each list is spread over this many keys by author, so that a shelf holds a quarter of a large pool.
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

/// The key of a data set. Few serve the same one, so it has no shards.
pub(crate) fn dataset_key(name: &Name) -> RecordKey {
    key("dataset", name.as_str(), 0)
}

fn shard_of(author: &PeerId) -> u8 {
    blake3::hash(&author.to_bytes()).as_bytes()[0] % SHARDS
}

fn key(kind: &str, name: &str, shard: u8) -> RecordKey {
    RecordKey::new(blake3::hash(format!("hypha/1/{kind}/{shard}/{name}").as_bytes()).as_bytes())
}

/// The shelves that this node keeps.
pub(crate) struct Shelves {
    shelves: HashMap<RecordKey, BTreeMap<PeerId, Entry>>,
    per_author: HashMap<PeerId, usize>,
    total: usize,
}

struct Entry {
    signed: Signed,
    sequence: u64,
    until: Instant,
}

/// What became of a record.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Kept {
    New,
    Refreshed,
    /// There is one with the same or a higher sequence number.
    Older,
    Full,
}

impl Shelves {
    pub(crate) fn new() -> Shelves {
        Shelves { shelves: HashMap::new(), per_author: HashMap::new(), total: 0 }
    }

    /// Keeps a checked record until `until`, unless there is a newer one or no room.
    pub(crate) fn keep(
        &mut self,
        key: RecordKey,
        author: PeerId,
        sequence: u64,
        until: Instant,
        signed: Signed,
    ) -> Kept {
        let entry = Entry { signed, sequence, until };
        if let Some(old) = self.shelves.get_mut(&key).and_then(|shelf| shelf.get_mut(&author)) {
            if old.sequence >= sequence {
                return Kept::Older;
            }
            *old = entry;
            return Kept::Refreshed;
        }
        let shelf_is_full = match self.shelves.get(&key) {
            Some(shelf) => shelf.len() >= MAX_ENTRIES,
            None => self.shelves.len() >= MAX_SHELVES,
        };
        let author_is_full =
            self.per_author.get(&author).is_some_and(|count| *count >= MAX_PER_AUTHOR);
        if shelf_is_full || author_is_full || self.total >= MAX_TOTAL {
            return Kept::Full;
        }
        self.shelves.entry(key).or_default().insert(author, entry);
        *self.per_author.entry(author).or_default() += 1;
        self.total += 1;
        Kept::New
    }

    /// Drops what `author` said before `sequence`.
    pub(crate) fn say_farewell(&mut self, author: &PeerId, sequence: u64) {
        if self.per_author.contains_key(author) {
            self.retain(|by, entry| by != author || entry.sequence >= sequence);
        }
    }

    /// Drops what has ended.
    pub(crate) fn expire(&mut self, now: Instant) {
        self.retain(|_, entry| entry.until > now);
    }

    /// Drops what is no longer believed.
    pub(crate) fn keep_believed(&mut self, mut believed: impl FnMut(&Signed) -> bool) {
        self.retain(|_, entry| believed(&entry.signed));
    }

    pub(crate) fn len(&self) -> usize {
        self.total
    }

    fn retain(&mut self, mut stays: impl FnMut(&PeerId, &Entry) -> bool) {
        let (per_author, total) = (&mut self.per_author, &mut self.total);
        self.shelves.retain(|_, shelf| {
            shelf.retain(|author, entry| {
                let stays = stays(author, entry);
                if !stays {
                    *total -= 1;
                    if let Some(count) = per_author.get_mut(author) {
                        *count -= 1;
                    }
                }
                stays
            });
            !shelf.is_empty()
        });
        per_author.retain(|_, count| *count > 0);
    }

    fn entries(&self, key: &RecordKey, now: Instant) -> Vec<ShelfEntry> {
        let entry = |entry: &Entry| ShelfEntry {
            remaining_ms: remaining_ms(entry.until, now),
            signed: entry.signed.clone(),
        };
        let shelf = self.shelves.get(key).into_iter().flat_map(BTreeMap::values);
        shelf.filter(|entry| entry.until > now).map(entry).collect()
    }
}

fn remaining_ms(until: Instant, now: Instant) -> u32 {
    let left = until.saturating_duration_since(now).as_millis();
    u32::try_from(left).unwrap_or(MAX_TTL_MS).min(MAX_TTL_MS)
}

/// What Kademlia asks of a store. Records are put by [`Shelves::keep`] alone, after they were checked.
impl RecordStore for Shelves {
    type RecordsIter<'a> = std::iter::Empty<Cow<'a, Record>>;
    type ProvidedIter<'a> = std::iter::Empty<Cow<'a, ProviderRecord>>;

    fn get(&self, key: &RecordKey) -> Option<Cow<'_, Record>> {
        let mut entries = self.entries(key, Instant::now());
        if entries.is_empty() {
            return None;
        }
        // Those that end first are left out first, if one answer cannot hold all.
        entries.sort_by_key(|entry| std::cmp::Reverse(entry.remaining_ms));
        let value = hypha_wire::encode(&Shelf::filled(entries)).ok()?;
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

    fn signed(tag: u8) -> Signed {
        Signed {
            kind: SignedKind::Worker,
            payload: vec![tag; 300],
            chain: vec![vec![tag; 700]],
            signature: vec![tag; 64],
        }
    }

    fn found(shelves: &Shelves, key: &RecordKey) -> usize {
        let record = RecordStore::get(shelves, key);
        record.map_or(0, |r| hypha_wire::decode::<Shelf>(&r.value).unwrap().entries.len())
    }

    #[test]
    fn a_key_holds_many_authors_and_each_ones_newest() {
        let (mut shelves, now) = (Shelves::new(), Instant::now());
        let until = now + Duration::from_secs(60);
        let key = key("worker", "all", 0);
        let authors: Vec<_> = (0..200).map(|_| PeerId::random()).collect();
        for author in &authors {
            assert_eq!(shelves.keep(key.clone(), *author, 5, until, signed(1)), Kept::New);
        }
        assert_eq!(found(&shelves, &key), 200);
        assert_eq!(shelves.keep(key.clone(), authors[0], 5, until, signed(2)), Kept::Older);
        assert_eq!(shelves.keep(key.clone(), authors[0], 4, until, signed(2)), Kept::Older);
        assert_eq!(shelves.keep(key.clone(), authors[0], 6, until, signed(2)), Kept::Refreshed);
        assert_eq!(shelves.len(), 200);
        shelves.say_farewell(&authors[0], 6);
        assert_eq!(found(&shelves, &key), 200, "a farewell ends what was said before it");
        shelves.say_farewell(&authors[0], 7);
        assert_eq!(found(&shelves, &key), 199);
        shelves.expire(until + Duration::from_millis(1));
        assert_eq!((shelves.len(), shelves.per_author.len(), shelves.shelves.len()), (0, 0, 0));
    }

    #[test]
    fn what_is_no_longer_believed_is_dropped() {
        let (mut shelves, until) = (Shelves::new(), Instant::now() + Duration::from_secs(60));
        let key = key("worker", "all", 0);
        for tag in [1, 2, 3] {
            shelves.keep(key.clone(), PeerId::random(), 1, until, signed(tag));
        }
        shelves.keep_believed(|signed| signed.payload[0] != 2);
        assert_eq!((found(&shelves, &key), shelves.len()), (2, 2));
    }

    #[test]
    fn what_has_ended_is_not_answered_and_nobody_fills_the_store() {
        let (mut shelves, now) = (Shelves::new(), Instant::now());
        let author = PeerId::random();
        let one = key("worker", "all", 0);
        shelves.keep(one.clone(), author, 1, now, signed(1));
        assert_eq!(found(&shelves, &one), 0);
        let until = now + Duration::from_secs(60);
        let kept = (0..MAX_PER_AUTHOR + 10)
            .filter(|n| {
                let key = key("worker", &n.to_string(), 0);
                shelves.keep(key, author, 1, until, signed(1)) == Kept::New
            })
            .count();
        assert_eq!(kept, MAX_PER_AUTHOR - 1);
    }

    #[test]
    fn a_shelf_too_large_for_one_answer_still_answers() {
        let (mut shelves, until) = (Shelves::new(), Instant::now() + Duration::from_secs(60));
        let key = key("worker", "all", 0);
        for _ in 0..MAX_ENTRIES {
            let mut large = signed(1);
            large.payload = vec![1; 4_000];
            shelves.keep(key.clone(), PeerId::random(), 1, until, large);
        }
        assert!(found(&shelves, &key) > 100);
    }

    #[test]
    fn an_author_is_listed_under_one_of_the_keys_of_a_list() {
        for _ in 0..50 {
            let author = PeerId::random();
            let listed = worker_key(&Listing::All, &author);
            assert_eq!(worker_keys(&Listing::All).filter(|key| *key == listed).count(), 1);
        }
    }
}
