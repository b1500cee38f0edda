//! How fields are read and written: byte strings as one piece, lists with an end.
//!
//! A list is refused at its count, before room is made for it: the count is a peer's word.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{self, Deserialize, Deserializer, SeqAccess, Visitor};
use serde::ser::Serializer;

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

/// Several byte strings, written.
pub(crate) fn write_blobs<S: Serializer>(blobs: &[Vec<u8>], writer: S) -> Result<S::Ok, S::Error> {
    writer.collect_seq(blobs.iter().map(|blob| Piece(blob)))
}

/// At most `MAX` byte strings.
pub(crate) fn read_blobs<'de, D: Deserializer<'de>, const MAX: usize>(
    reader: D,
) -> Result<Vec<Vec<u8>>, D::Error> {
    let blobs = read_list::<Blob, D, MAX>(reader)?;
    Ok(blobs.into_iter().map(|blob| blob.0).collect())
}

/// At most `MAX` of anything.
pub(crate) fn read_list<'de, T: Deserialize<'de>, D: Deserializer<'de>, const MAX: usize>(
    reader: D,
) -> Result<Vec<T>, D::Error> {
    reader.deserialize_seq(ListVisitor::<T, MAX>(PhantomData))
}

struct Piece<'a>(&'a [u8]);

impl serde::Serialize for Piece<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self.0)
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
        // Grows as items really come: a count costs a peer nothing.
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
