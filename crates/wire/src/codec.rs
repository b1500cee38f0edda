//! Messages to bytes and back: one byte of version, then MessagePack with named fields.
//!
//! Fields have names so that a newer peer may add some: an older one skips unknown fields, and uses the
//! default for missing ones (`#[serde(default)]`). A change that older peers would misread gets a new version.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::check::sanitize;

/// The version that this build writes, and the only one it reads.
pub const VERSION: u8 = 1;

/// How deep a message may nest. Ours reach about eight; without a limit a peer could exhaust the stack.
const MAX_DEPTH: usize = 32;

/// How much is reported about bytes that cannot be decoded: enough to find the field, too little to flood a log.
const MAX_PROBLEM_BYTES: usize = 200;

/// A message between peers.
pub trait Message: Serialize + DeserializeOwned {
    /// Its name for people: "capability record".
    const NAME: &'static str;
    /// The most bytes that one may take, version byte included.
    const MAX_BYTES: usize;

    /// Checks what the types cannot express: bounds of amounts, lengths and counts.
    fn validate(&self) -> Result<(), InvalidField>;

    /// How many of its parts were skipped because this build cannot decode them.
    fn skipped(&self) -> usize {
        0
    }
}

/// What is wrong with a message whose bytes could be decoded.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("{field}: {problem}")]
pub struct InvalidField {
    /// The field.
    pub field: &'static str,
    /// What is wrong with it.
    pub problem: String,
}

/// Why a message could not be encoded.
#[derive(Debug, Error)]
pub enum EncodeError {
    /// Larger than a peer would accept.
    #[error("a {name} of {bytes} bytes is too large: at most {max} are sent")]
    TooLarge {
        /// The name of the message.
        name: &'static str,
        /// Its size.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// A value that a peer would refuse.
    #[error("{name}: {source}")]
    Invalid {
        /// The name of the message.
        name: &'static str,
        /// What is wrong.
        source: InvalidField,
    },
    /// A type that the format cannot hold; a bug in this program.
    #[error("cannot write a {name}: {problem}")]
    Unwritable {
        /// The name of the message.
        name: &'static str,
        /// The encoder's error.
        problem: String,
    },
}

/// Why bytes are not a message.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum DecodeError {
    /// More bytes than such a message may have.
    #[error("{bytes} bytes are too many for a {name}: at most {max} are read")]
    TooLarge {
        /// The expected message.
        name: &'static str,
        /// How many were received.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// Written in a version that this build does not support.
    #[error(
        "version {got} of {name} is not known here (this build reads version {VERSION}); use the same release on both sides"
    )]
    Version {
        /// The expected message.
        name: &'static str,
        /// The version byte.
        got: u8,
    },
    /// Not the format, or not this message.
    #[error("not a {name}: {problem}")]
    Malformed {
        /// The expected message.
        name: &'static str,
        /// The decoder's error.
        problem: String,
    },
    /// Decoded, but with an invalid value.
    #[error("{name}: {source}")]
    Invalid {
        /// The expected message.
        name: &'static str,
        /// What is wrong.
        source: InvalidField,
    },
}

/// Encodes a message.
pub fn encode<M: Message>(message: &M) -> Result<Vec<u8>, EncodeError> {
    let mut bytes = Vec::new();
    encode_onto(&mut bytes, message)?;
    Ok(bytes)
}

/// Decodes and validates the message in `bytes`.
pub fn decode<M: Message>(bytes: &[u8]) -> Result<M, DecodeError> {
    let name = M::NAME;
    // The decoder's error may quote what the peer sent.
    let malformed = |problem: &str| DecodeError::Malformed {
        name,
        problem: sanitize(problem, MAX_PROBLEM_BYTES),
    };
    if bytes.len() > M::MAX_BYTES {
        return Err(DecodeError::TooLarge { name, bytes: bytes.len(), max: M::MAX_BYTES });
    }
    let (version, body) = bytes.split_first().ok_or_else(|| malformed("no bytes"))?;
    if *version != VERSION {
        return Err(DecodeError::Version { name, got: *version });
    }
    let message: M = read_value(body).map_err(|error| malformed(&error.to_string()))?;
    message.validate().map_err(|source| DecodeError::Invalid { name, source })?;
    Ok(message)
}

/// Appends the encoded message. After an error the buffer is unchanged.
pub(crate) fn encode_onto<M: Message>(
    buffer: &mut Vec<u8>,
    message: &M,
) -> Result<(), EncodeError> {
    let (name, before) = (M::NAME, buffer.len());
    message.validate().map_err(|source| EncodeError::Invalid { name, source })?;
    buffer.push(VERSION);
    let written = match write_value(buffer, message) {
        Ok(()) => match buffer.len() - before {
            bytes if bytes > M::MAX_BYTES => {
                Err(EncodeError::TooLarge { name, bytes, max: M::MAX_BYTES })
            }
            _ => Ok(()),
        },
        Err(error) => Err(EncodeError::Unwritable { name, problem: error.to_string() }),
    };
    if written.is_err() {
        buffer.truncate(before);
    }
    written
}

/// Appends a value in the format of messages, without a version.
pub(crate) fn write_value<T: Serialize>(
    buffer: &mut Vec<u8>,
    value: &T,
) -> Result<(), rmp_serde::encode::Error> {
    value.serialize(&mut rmp_serde::Serializer::new(buffer).with_struct_map())
}

/// Decodes the value that is all of `bytes`.
pub(crate) fn read_value<'de, T: Deserialize<'de>>(
    bytes: &'de [u8],
) -> Result<T, rmp_serde::decode::Error> {
    let mut reader = rmp_serde::Deserializer::from_read_ref(bytes);
    reader.set_max_depth(MAX_DEPTH);
    let value = T::deserialize(&mut reader)?;
    // A marker can be read only if bytes are left; the kind of value does not matter.
    match bool::deserialize(&mut reader) {
        Err(rmp_serde::decode::Error::InvalidMarkerRead(_)) => Ok(value),
        _ => Err(serde::de::Error::custom("bytes follow its end")),
    }
}
