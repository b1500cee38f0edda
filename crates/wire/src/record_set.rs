//! The response of a directory server for one key: the records of several authors.

use serde::{Deserialize, Deserializer, Serialize, Serializer, ser};

use crate::check::{at_most, within};
use crate::codec::{InvalidField, Message, decode, encode};
use crate::field::{Blob, bytes, read_list};
use crate::record::{MAX_TTL_MS, SignedRecord};

/// Authors under one key: five times the hundred that must work, so that a key fills up late.
pub const MAX_ENTRIES: usize = 512;

/// The records under one key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordSet {
    /// In any order. Decoding skips the entries whose record this build cannot decode: one author's mistake,
    /// or a newer kind of record, must not hide the others.
    #[serde(deserialize_with = "read_entries")]
    pub entries: Vec<RecordSetEntry>,
}

/// One record, and how much longer it is valid.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RecordSetEntry {
    /// How long the server would still return it: a duration, since clocks differ.
    pub remaining_ms: u32,
    /// The record, encoded as bytes of its own version.
    #[serde(serialize_with = "write_signed")]
    pub signed: SignedRecord,
}

/// Bytes that an entry takes beside its record, at most: two names, a number and three headers.
const ENTRY_OVERHEAD: usize = 32;
/// Bytes that the list takes beside its entries, at most: the version, its name and two headers.
const LIST_OVERHEAD: usize = 16;

impl RecordSet {
    /// A record set of as many `entries`, from the first on, as one message holds; a record that cannot be encoded is
    /// skipped.
    pub fn from_entries(entries: impl IntoIterator<Item = RecordSetEntry>) -> RecordSet {
        let mut room = RecordSet::MAX_BYTES - LIST_OVERHEAD;
        let mut record_set = RecordSet::default();
        for entry in entries {
            let Ok(bytes) = encode(&entry.signed) else { continue };
            let Some(left) = room.checked_sub(ENTRY_OVERHEAD + bytes.len()) else { break };
            if record_set.entries.len() == MAX_ENTRIES {
                break;
            }
            room = left;
            let remaining_ms = entry.remaining_ms.min(MAX_TTL_MS);
            record_set.entries.push(RecordSetEntry { remaining_ms, ..entry });
        }
        record_set
    }
}

impl Message for RecordSet {
    const NAME: &'static str = "record set";
    /// Some 500 records of ordinary size; fewer if they are large.
    const MAX_BYTES: usize = 1 << 20;

    fn validate(&self) -> Result<(), InvalidField> {
        at_most("entries", self.entries.len(), MAX_ENTRIES)?;
        for entry in &self.entries {
            within("remaining_ms", entry.remaining_ms, 0..=u64::from(MAX_TTL_MS))?;
            entry.signed.validate()?;
        }
        Ok(())
    }
}

#[derive(Deserialize)]
struct RawEntry {
    remaining_ms: u32,
    signed: Blob,
}

fn read_entries<'de, D: Deserializer<'de>>(reader: D) -> Result<Vec<RecordSetEntry>, D::Error> {
    let raw = read_list::<RawEntry, D, MAX_ENTRIES>(reader)?;
    let read = |entry: RawEntry| {
        let signed = decode(&entry.signed.0).ok()?;
        Some(RecordSetEntry { remaining_ms: entry.remaining_ms, signed })
    };
    Ok(raw.into_iter().filter_map(read).collect())
}

fn write_signed<S: Serializer>(signed: &SignedRecord, writer: S) -> Result<S::Ok, S::Error> {
    bytes::serialize(&encode(signed).map_err(ser::Error::custom)?, writer)
}
