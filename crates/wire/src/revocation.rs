//! How nodes get revocation lists from gateways: an index of lists, then each list in parts.
//!
//! A gateway holds back its response to a request for the index until the index differs from the one that the
//! requester has seen, or the deadline is over.

use serde::{Deserialize, Serialize};

use crate::check::{at_most, blob, invalid};
use crate::codec::InvalidField;
use crate::field::read_list;

/// Lists of one network: one for each organisation, and the root's.
pub const MAX_LISTS: usize = 64;
/// Bytes of a digest.
pub const DIGEST_BYTES: usize = 32;
/// Bytes of a list in one response, which leaves room for the rest of it.
pub const MAX_PART_BYTES: usize = 48 << 10;

/// A request for the index.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RevocationQuery {
    /// The digest of the index that the requester has seen; empty at first.
    #[serde(default, with = "crate::field::bytes")]
    pub seen: Vec<u8>,
}

/// The lists of a gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RevocationIndex {
    /// Changes with the lists.
    #[serde(with = "crate::field::bytes")]
    pub digest: Vec<u8>,
    /// One for each authority.
    #[serde(deserialize_with = "read_list::<_, _, MAX_LISTS>")]
    pub lists: Vec<RevocationEntry>,
}

/// One list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RevocationEntry {
    /// The digest of the name of its authority.
    #[serde(with = "crate::field::bytes")]
    pub issuer: Vec<u8>,
    /// Grows with each edition.
    pub number: u64,
    /// The digest of its bytes.
    #[serde(with = "crate::field::bytes")]
    pub digest: Vec<u8>,
    /// How many there are.
    pub bytes: u64,
}

/// A request for a part of a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RevocationPartQuery {
    /// The digest of the list's bytes.
    #[serde(with = "crate::field::bytes")]
    pub digest: Vec<u8>,
    /// Where the part begins.
    pub offset: u64,
}

impl RevocationQuery {
    pub(crate) fn validate(&self) -> Result<(), InvalidField> {
        at_most("seen", self.seen.len(), DIGEST_BYTES)
    }
}

impl RevocationPartQuery {
    pub(crate) fn validate(&self) -> Result<(), InvalidField> {
        digest("digest", &self.digest)
    }
}

impl RevocationIndex {
    pub(crate) fn validate(&self) -> Result<(), InvalidField> {
        digest("digest", &self.digest)?;
        at_most("lists", self.lists.len(), MAX_LISTS)?;
        self.lists.iter().try_for_each(|list| {
            digest("issuer", &list.issuer)?;
            digest("digest", &list.digest)
        })
    }
}

pub(crate) fn part(bytes: &[u8]) -> Result<(), InvalidField> {
    blob("revocation_part", bytes, MAX_PART_BYTES)
}

fn digest(field: &'static str, bytes: &[u8]) -> Result<(), InvalidField> {
    match bytes.len() == DIGEST_BYTES {
        true => Ok(()),
        false => Err(invalid(field, format!("has {} bytes, not {DIGEST_BYTES}", bytes.len()))),
    }
}
