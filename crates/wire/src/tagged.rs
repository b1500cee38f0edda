//! Extensible enums: a variant that only newer peers know is decoded as "unknown", whatever its content.
//!
//! A variant is encoded as its name, or as a map from its name to its content. Derived code cannot skip the
//! content of a variant that it does not know, so decoding is done here.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{self, Deserializer, IgnoredAny, MapAccess, Visitor};

/// An enum with a variant for values that this build does not know.
pub(crate) trait Tagged: Sized {
    /// Its name for people: "a request".
    const EXPECTED: &'static str;

    /// The variant without content that `tag` names; the unknown variant for an unknown tag. `None` if
    /// the variant requires content.
    fn unit_variant(tag: &str) -> Option<Self>;

    /// The variant that `tag` names, its content decoded from `content`; `None` if `tag` names none with content.
    fn content_variant<'de, A: MapAccess<'de>>(
        tag: &str,
        content: &mut A,
    ) -> Result<Option<Self>, A::Error> {
        let _ = (tag, content);
        Ok(None)
    }
}

/// Decodes a [`Tagged`].
pub(crate) fn read<'de, T: Tagged, D: Deserializer<'de>>(reader: D) -> Result<T, D::Error> {
    reader.deserialize_any(TaggedVisitor(PhantomData))
}

struct TaggedVisitor<T>(PhantomData<T>);

impl<'de, T: Tagged> Visitor<'de> for TaggedVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: a name, or one name with its content", T::EXPECTED)
    }

    fn visit_str<E: de::Error>(self, tag: &str) -> Result<T, E> {
        T::unit_variant(tag)
            .ok_or_else(|| E::custom(format_args!("{}: content is missing", T::EXPECTED)))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<T, A::Error> {
        if map.size_hint().is_some_and(|count| count != 1) {
            return Err(de::Error::invalid_length(map.size_hint().unwrap_or(0), &self));
        }
        let Some(tag) = map.next_key::<String>()? else {
            return Err(de::Error::invalid_length(0, &self));
        };
        if let Some(variant) = T::content_variant(&tag, &mut map)? {
            return Ok(variant);
        }
        // Content that a newer peer added to a variant without content is skipped like any unknown field.
        map.next_value::<IgnoredAny>()?;
        self.visit_str(&tag)
    }
}
