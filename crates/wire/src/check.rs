//! Checks that several messages share.

use std::ops::RangeInclusive;

use hypha_model::Name;

use crate::codec::InvalidField;

/// Bytes of a peer id: 38 for an Ed25519 key, 34 for a digest; twice that leaves room for other keys.
pub const MAX_PEER_BYTES: usize = 64;
/// Addresses of one node: a few interfaces, a public one, a relay slot on each of several gateways.
pub const MAX_ADDRESSES: usize = 16;
/// Bytes of one address: the longest host name (253) behind a relay, with two peer ids, takes about 350.
pub const MAX_ADDRESS_BYTES: usize = 512;

/// An error about `field`.
pub(crate) fn invalid(field: &'static str, problem: impl Into<String>) -> InvalidField {
    InvalidField { field, problem: problem.into() }
}

/// A number within its bounds.
pub(crate) fn within(
    field: &'static str,
    value: impl Into<u64>,
    bounds: RangeInclusive<u64>,
) -> Result<(), InvalidField> {
    let value = value.into();
    match bounds.contains(&value) {
        true => Ok(()),
        false => {
            let (low, high) = bounds.into_inner();
            Err(invalid(field, format!("{value} is not within {low} to {high}")))
        }
    }
}

/// A count or a length, at most `max`.
pub(crate) fn at_most(field: &'static str, len: usize, max: usize) -> Result<(), InvalidField> {
    match len <= max {
        true => Ok(()),
        false => Err(invalid(field, format!("has {len}, at most {max} are taken"))),
    }
}

/// Bytes: some, at most `max`.
pub(crate) fn blob(field: &'static str, bytes: &[u8], max: usize) -> Result<(), InvalidField> {
    match bytes.is_empty() {
        true => Err(invalid(field, "must not be empty")),
        false => at_most(field, bytes.len(), max),
    }
}

/// A peer id.
pub(crate) fn peer(bytes: &[u8]) -> Result<(), InvalidField> {
    blob("peer", bytes, MAX_PEER_BYTES)
}

/// Addresses of a node.
pub(crate) fn addresses(field: &'static str, addresses: &[Vec<u8>]) -> Result<(), InvalidField> {
    at_most(field, addresses.len(), MAX_ADDRESSES)?;
    addresses.iter().try_for_each(|address| blob(field, address, MAX_ADDRESS_BYTES))
}

/// A name by the rules of the model.
pub(crate) fn name(field: &'static str, text: &str) -> Result<Name, InvalidField> {
    text.parse().map_err(|error| invalid(field, format!("{error}")))
}

/// Text for people: short, and without control characters, which could affect a terminal or a log.
pub(crate) fn text(field: &'static str, text: &str, max: usize) -> Result<(), InvalidField> {
    at_most(field, text.len(), max)?;
    match text.chars().any(char::is_control) {
        true => Err(invalid(field, "must not contain control characters")),
        false => Ok(()),
    }
}

/// `text` made valid for [`text()`]: cut to `max` bytes, control characters as spaces.
pub(crate) fn sanitize(text: &str, max: usize) -> String {
    let mut sanitized = String::with_capacity(text.len().min(max));
    for letter in text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }) {
        if sanitized.len() + letter.len_utf8() > max {
            break;
        }
        sanitized.push(letter);
    }
    sanitized
}
