//! The input and the result of a task: opaque bytes, and their digest.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Bytes, cheap to clone.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Payload(Arc<[u8]>);

/// The BLAKE3 digest of a payload.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Digest([u8; 32]);

impl Payload {
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// The digest of the bytes.
    pub fn digest(&self) -> Digest {
        Digest(*blake3::hash(&self.0).as_bytes())
    }
}

/// Computes the digest of bytes that arrive in pieces.
#[derive(Clone, Default)]
pub struct Digester(blake3::Hasher);

impl Digester {
    /// Adds the next piece.
    pub fn add(&mut self, piece: &[u8]) {
        self.0.update(piece);
    }

    /// The digest of all pieces.
    pub fn digest(&self) -> Digest {
        Digest(*self.0.finalize().as_bytes())
    }
}

impl From<&[u8]> for Payload {
    fn from(bytes: &[u8]) -> Payload {
        Payload(Arc::from(bytes))
    }
}

impl From<Vec<u8>> for Payload {
    fn from(bytes: Vec<u8>) -> Payload {
        Payload(Arc::from(bytes))
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Payload({} bytes)", self.0.len())
    }
}

impl Digest {
    /// The digest with these bytes, as received from a peer or a store.
    pub const fn from_bytes(bytes: [u8; 32]) -> Digest {
        Digest(bytes)
    }

    /// Parses a digest of 64 hexadecimal digits.
    pub fn from_hex(text: &str) -> Option<Digest> {
        let mut bytes = [0; 32];
        let digits = text.as_bytes();
        if digits.len() != 2 * bytes.len() {
            return None;
        }
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
            let nibble = |digit: u8| match digit {
                b'0'..=b'9' => Some(digit - b'0'),
                b'a'..=b'f' => Some(digit - b'a' + 10),
                _ => None,
            };
            *byte = nibble(pair[0])? << 4 | nibble(pair[1])?;
        }
        Some(Digest(bytes))
    }

    /// The bytes of the digest.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Payload {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Payload {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Payload, D::Error> {
        struct Bytes;
        impl<'de> serde::de::Visitor<'de> for Bytes {
            type Value = Payload;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes")
            }
            fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> Result<Payload, E> {
                Ok(Payload::from(bytes))
            }
            fn visit_byte_buf<E: serde::de::Error>(self, bytes: Vec<u8>) -> Result<Payload, E> {
                Ok(Payload::from(bytes))
            }
            fn visit_seq<A: serde::de::SeqAccess<'de>>(
                self,
                mut items: A,
            ) -> Result<Payload, A::Error> {
                let mut bytes = Vec::new();
                while let Some(byte) = items.next_element()? {
                    bytes.push(byte);
                }
                Ok(Payload::from(bytes))
            }
        }
        deserializer.deserialize_byte_buf(Bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_round_trip() {
        let payload = Payload::from(&b"\x00\xff{"[..]);
        let json = serde_json::to_string(&payload).unwrap();
        assert_eq!(serde_json::from_str::<Payload>(&json).unwrap(), payload);
    }

    #[test]
    fn digest_is_blake3_and_changes_with_the_bytes() {
        let empty = Payload::default().digest().to_string();
        assert_eq!(empty, "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262");
        assert_ne!(Payload::from(&b"a"[..]).digest(), Payload::from(&b"b"[..]).digest());
        let mut pieces = Digester::default();
        assert_eq!(pieces.digest(), Payload::default().digest());
        pieces.add(b"one ");
        pieces.add(b"two");
        let digest = Payload::from(&b"one two"[..]).digest();
        assert_eq!(pieces.digest(), digest);
        assert_eq!(Digest::from_hex(&digest.to_string()), Some(digest));
        for wrong in ["", "ab", &digest.to_string().to_uppercase(), &"g".repeat(64)] {
            assert_eq!(Digest::from_hex(wrong), None, "{wrong}");
        }
    }
}
