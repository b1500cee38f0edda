//! How fields are decoded and encoded: byte strings as one value, lists with a bound.
//!
//! A list is refused at its count, before memory is allocated for it: the count comes from a peer.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{self, Deserialize, DeserializeOwned, Deserializer, SeqAccess, Visitor};
use serde::ser::{self, Serialize, SerializeSeq, Serializer};

use crate::codec::{read_value, write_value};

/// A byte string; serde would write each byte as a number.
pub(crate) mod bytes {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(bytes)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(reader: D) -> Result<Vec<u8>, D::Error> {
        Blob::deserialize(reader).map(|blob| blob.0)
    }
}

/// A digest as a byte string.
pub(crate) mod digest {
    use hypha_model::Digest;

    use super::*;
    use crate::bulk;

    pub(crate) fn serialize<S: Serializer>(digest: &Digest, writer: S) -> Result<S::Ok, S::Error> {
        writer.serialize_bytes(digest.as_bytes())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(reader: D) -> Result<Digest, D::Error> {
        bulk::Digest::deserialize(reader).map(|digest| Digest::from_bytes(digest.0))
    }
}

/// Values that were encoded each as a byte string of its own.
pub(crate) struct OpaqueList<T> {
    /// Those that could be decoded.
    pub(crate) read: Vec<T>,
    /// How many could not.
    pub(crate) skipped: usize,
}

/// Encodes values, each as a byte string of its own.
pub(crate) fn write_opaque_list<T: Serialize, S: Serializer>(
    values: &[T],
    writer: S,
) -> Result<S::Ok, S::Error> {
    let mut list = writer.serialize_seq(Some(values.len()))?;
    let mut bytes = Vec::new();
    for value in values {
        bytes.clear();
        write_value(&mut bytes, value).map_err(ser::Error::custom)?;
        list.serialize_element(&ByteString(&bytes))?;
    }
    list.end()
}

/// Decodes at most `MAX` of those.
pub(crate) fn read_opaque_list<'de, T: DeserializeOwned, D: Deserializer<'de>, const MAX: usize>(
    reader: D,
) -> Result<OpaqueList<T>, D::Error> {
    let list = read_list::<OpaqueItem<T>, D, MAX>(reader)?;
    let count = list.len();
    let read: Vec<T> = list.into_iter().filter_map(|part| part.0).collect();
    Ok(OpaqueList { skipped: count - read.len(), read })
}

/// Encodes several byte strings.
pub(crate) fn write_blobs<S: Serializer>(blobs: &[Vec<u8>], writer: S) -> Result<S::Ok, S::Error> {
    writer.collect_seq(blobs.iter().map(|blob| ByteString(blob)))
}

/// Decodes at most `MAX` byte strings.
pub(crate) fn read_blobs<'de, D: Deserializer<'de>, const MAX: usize>(
    reader: D,
) -> Result<Vec<Vec<u8>>, D::Error> {
    let blobs = read_list::<Blob, D, MAX>(reader)?;
    Ok(blobs.into_iter().map(|blob| blob.0).collect())
}

/// Decodes a list of at most `MAX` items.
pub(crate) fn read_list<'de, T: Deserialize<'de>, D: Deserializer<'de>, const MAX: usize>(
    reader: D,
) -> Result<Vec<T>, D::Error> {
    reader.deserialize_seq(ListVisitor::<T, MAX>(PhantomData))
}

struct ByteString<'a>(&'a [u8]);

impl Serialize for ByteString<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self.0)
    }
}

/// The value of a byte string, if it can be decoded.
struct OpaqueItem<T>(Option<T>);

impl<'de, T: DeserializeOwned> Deserialize<'de> for OpaqueItem<T> {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<OpaqueItem<T>, D::Error> {
        reader.deserialize_bytes(OpaqueItemVisitor(PhantomData))
    }
}

struct OpaqueItemVisitor<T>(PhantomData<T>);

impl<T: DeserializeOwned> Visitor<'_> for OpaqueItemVisitor<T> {
    type Value = OpaqueItem<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a byte string")
    }

    fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<OpaqueItem<T>, E> {
        Ok(OpaqueItem(read_value(bytes).ok()))
    }
}

/// A byte string that owns its bytes.
pub(crate) struct Blob(pub(crate) Vec<u8>);

impl<'de> Deserialize<'de> for Blob {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<Blob, D::Error> {
        reader.deserialize_bytes(BlobVisitor)
    }
}

struct BlobVisitor;

impl Visitor<'_> for BlobVisitor {
    type Value = Blob;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a byte string")
    }

    fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<Blob, E> {
        Ok(Blob(bytes.to_vec()))
    }
}

struct ListVisitor<T, const MAX: usize>(PhantomData<T>);

impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for ListVisitor<T, MAX> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of at most {MAX}")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Vec<T>, A::Error> {
        let count = items.size_hint().unwrap_or(0);
        if count > MAX {
            return Err(de::Error::invalid_length(count, &self));
        }
        // Grows as items are decoded: a peer can claim any count.
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            if list.len() == MAX {
                return Err(de::Error::invalid_length(MAX + 1, &self));
            }
            list.push(item);
        }
        Ok(list)
    }
}
