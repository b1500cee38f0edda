//! Floats in snapshots as their bits: the nearest decimal is not enough for identical predictions, and text formats
//! cannot write values that are not finite.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub(crate) fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    value.to_bits().serialize(serializer)
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    u64::deserialize(deserializer).map(f64::from_bits)
}

/// The same for an array.
pub(crate) mod array {
    use super::*;
    use serde::de::DeserializeOwned;

    pub(crate) fn serialize<S: Serializer, const N: usize>(
        values: &[f64; N],
        serializer: S,
    ) -> Result<S::Ok, S::Error>
    where
        [u64; N]: Serialize,
    {
        values.map(f64::to_bits).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>, const N: usize>(
        deserializer: D,
    ) -> Result<[f64; N], D::Error>
    where
        [u64; N]: DeserializeOwned,
    {
        <[u64; N]>::deserialize(deserializer).map(|bits| bits.map(f64::from_bits))
    }
}

/// The same for a vector.
pub(crate) mod vector {
    use nalgebra::SVector;
    use serde::de::DeserializeOwned;
    use serde::{Deserializer, Serialize, Serializer};

    use super::array;

    pub(crate) fn serialize<S: Serializer, const N: usize>(
        value: &SVector<f64, N>,
        serializer: S,
    ) -> Result<S::Ok, S::Error>
    where
        [u64; N]: Serialize,
    {
        array::serialize(&value.data.0[0], serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>, const N: usize>(
        deserializer: D,
    ) -> Result<SVector<f64, N>, D::Error>
    where
        [u64; N]: DeserializeOwned,
    {
        array::deserialize(deserializer).map(SVector::<f64, N>::from)
    }
}

/// The same for a square matrix, column by column.
pub(crate) mod matrix {
    use nalgebra::SMatrix;
    use serde::de::DeserializeOwned;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(crate) fn serialize<S: Serializer, const N: usize>(
        value: &SMatrix<f64, N, N>,
        serializer: S,
    ) -> Result<S::Ok, S::Error>
    where
        [[u64; N]; N]: Serialize,
    {
        value.data.0.map(|column| column.map(f64::to_bits)).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>, const N: usize>(
        deserializer: D,
    ) -> Result<SMatrix<f64, N, N>, D::Error>
    where
        [[u64; N]; N]: DeserializeOwned,
    {
        let columns = <[[u64; N]; N]>::deserialize(deserializer)?;
        Ok(SMatrix::from(columns.map(|column| column.map(f64::from_bits))))
    }
}
