//! BLAKE3 digests of slices.

use std::fmt;
use std::io::{self, Read};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A BLAKE3 digest; 64 hexadecimal digits as text.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Digest(blake3::Hash);

impl Digest {
    /// The digest of everything that the reader gives, and how many bytes that is.
    pub fn of_reader(reader: impl Read) -> io::Result<(Digest, u64)> {
        let mut hasher = blake3::Hasher::new();
        hasher.update_reader(reader)?;
        Ok((Digest::of_hasher(&hasher), hasher.count()))
    }

    pub(crate) fn of_hasher(hasher: &blake3::Hasher) -> Digest {
        Digest(hasher.finalize())
    }

    /// The digest that this text writes, if it is one.
    pub fn from_hex(text: &str) -> Option<Digest> {
        // Upper case is another text for the same digest: file names and manifests have one.
        let is_lower = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        blake3::Hash::from_hex(text).ok().filter(|_| is_lower).map(Digest)
    }

    /// The raw bytes, for messages between peers.
    pub fn as_bytes(&self) -> &[u8; 32] {
        self.0.as_bytes()
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.to_hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({self})")
    }
}

impl PartialOrd for Digest {
    fn partial_cmp(&self, other: &Digest) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Digest {
    fn cmp(&self, other: &Digest) -> std::cmp::Ordering {
        self.as_bytes().cmp(other.as_bytes())
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Digest, D::Error> {
        let text = String::deserialize(deserializer)?;
        Digest::from_hex(&text)
            .ok_or_else(|| de::Error::custom("expected 64 lower-case hex digits"))
    }
}
