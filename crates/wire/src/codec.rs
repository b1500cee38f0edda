//! Messages to bytes and back: one byte of version, then MessagePack with named fields.
//!
//! Fields have names so that a newer peer may add some: an older one skips what it does not know, and takes the
//! default for what it misses (`#[serde(default)]`). A change that older peers would misread gets a new version.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::check::sanitize;

/// The version that this build writes, and the only one it reads.
pub const VERSION: u8 = 1;

/// How deep a message may nest. Ours reach about eight; without a limit a peer could exhaust the stack.
const MAX_DEPTH: usize = 32;

/// How much is said about bytes that cannot be read: enough to find the field, too little to flood a log.
const MAX_PROBLEM_BYTES: usize = 200;

/// Something that travels between peers.
pub trait Message: Serialize + DeserializeOwned {
    /// What it is, for people: "capability record".
    const NAME: &'static str;
    /// The most bytes that one may take, version byte included.
    const MAX_BYTES: usize;

    /// Checks what the types cannot say: bounds of amounts, lengths and counts.
    fn validate(&self) -> Result<(), InvalidField>;

    /// How many of its parts were left out because this build cannot read them.
    fn skipped(&self) -> usize {
        0
    }
}

/// What is wrong with a message whose bytes could be read.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("{field}: {problem}")]
pub struct InvalidField {
    /// Which part.
    pub field: &'static str,
    /// What is wrong with it.
    pub problem: String,
}

/// Why a message could not be written.
#[derive(Debug, Error)]
pub enum EncodeError {
    /// Larger than a peer would take.
    #[error("a {name} of {bytes} bytes is too large: at most {max} are sent")]
    TooLarge {
        /// What it is.
        name: &'static str,
        /// Its size.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// A value that a peer would refuse.
    #[error("{name}: {source}")]
    Invalid {
        /// What it is.
        name: &'static str,
        /// What is wrong.
        source: InvalidField,
    },
    /// A type that the format cannot hold; a fault of this program.
    #[error("cannot write a {name}: {problem}")]
    Unwritable {
        /// What it is.
        name: &'static str,
        /// What the format says.
        problem: String,
    },
}

/// Why bytes are not a message.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum DecodeError {
    /// More bytes than such a message may have.
    #[error("{bytes} bytes are too many for a {name}: at most {max} are read")]
    TooLarge {
        /// What was expected.
        name: &'static str,
        /// How many came.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// Written by a version that this build does not know.
    #[error(
        "version {got} of {name} is not known here (this build reads version {VERSION}); use the same release on both sides"
    )]
    Version {
        /// What was expected.
        name: &'static str,
        /// The version byte.
        got: u8,
    },
    /// Not the format, or not this message.
    #[error("not a {name}: {problem}")]
    Malformed {
        /// What was expected.
        name: &'static str,
        /// Where reading stopped.
        problem: String,
    },
    /// Readable, with a value that makes no sense.
    #[error("{name}: {source}")]
    Invalid {
        /// What was expected.
        name: &'static str,
        /// What is wrong.
        source: InvalidField,
    },
}

/// The bytes of a message.
pub fn encode<M: Message>(message: &M) -> Result<Vec<u8>, EncodeError> {
    let mut bytes = Vec::new();
    encode_onto(&mut bytes, message)?;
    Ok(bytes)
}

/// The message that `bytes` hold, checked.
pub fn decode<M: Message>(bytes: &[u8]) -> Result<M, DecodeError> {
    let name = M::NAME;
    // What the reader says may quote what the peer sent.
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

/// Appends the bytes of a message. After an error the buffer is as it was.
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

/// The value that is all of `bytes`.
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
