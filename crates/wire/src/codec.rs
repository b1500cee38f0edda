//! Messages to bytes and back: one byte of version, then MessagePack with named fields.
//!
//! Fields have names so that a newer peer may add some: an older one skips what it does not know, and takes the
//! default for what it misses (`#[serde(default)]`). A change that older peers would misread gets a new version.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::check::fit;

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
    fn validate(&self) -> Result<(), Invalid>;
}

/// What is wrong with a message whose bytes could be read.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("{field}: {problem}")]
pub struct Invalid {
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
        source: Invalid,
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
        source: Invalid,
    },
}

/// The bytes of a message.
pub fn encode<M: Message>(message: &M) -> Result<Vec<u8>, EncodeError> {
    let name = M::NAME;
    message.validate().map_err(|source| EncodeError::Invalid { name, source })?;
    let mut bytes = vec![VERSION];
    let mut writer = rmp_serde::Serializer::new(&mut bytes).with_struct_map();
    message
        .serialize(&mut writer)
        .map_err(|error| EncodeError::Unwritable { name, problem: error.to_string() })?;
    match bytes.len() {
        len if len > M::MAX_BYTES => {
            Err(EncodeError::TooLarge { name, bytes: len, max: M::MAX_BYTES })
        }
        _ => Ok(bytes),
    }
}

/// The message that `bytes` hold, checked.
pub fn decode<M: Message>(bytes: &[u8]) -> Result<M, DecodeError> {
    let name = M::NAME;
    // What the reader says may quote what the peer sent.
    let malformed =
        |problem: &str| DecodeError::Malformed { name, problem: fit(problem, MAX_PROBLEM_BYTES) };
    if bytes.len() > M::MAX_BYTES {
        return Err(DecodeError::TooLarge { name, bytes: bytes.len(), max: M::MAX_BYTES });
    }
    let (version, body) = bytes.split_first().ok_or_else(|| malformed("no bytes"))?;
    if *version != VERSION {
        return Err(DecodeError::Version { name, got: *version });
    }
    let mut reader = rmp_serde::Deserializer::from_read_ref(body);
    reader.set_max_depth(MAX_DEPTH);
    let message = M::deserialize(&mut reader).map_err(|error| malformed(&error.to_string()))?;
    // A marker can be read only if bytes are left; the kind of value does not matter.
    match bool::deserialize(&mut reader) {
        Err(rmp_serde::decode::Error::InvalidMarkerRead(_)) => {}
        _ => return Err(malformed("bytes follow its end")),
    }
    message.validate().map_err(|source| DecodeError::Invalid { name, source })?;
    Ok(message)
}
