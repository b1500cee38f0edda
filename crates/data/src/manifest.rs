//! `manifest.json`: what a data set contains, and the rules that a valid one follows.

use std::collections::BTreeSet;
use std::fmt;

use hypha_model::Name;
use safetensors::Dtype;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::Digest;

/// The manifest's file name in a data set's directory.
pub const MANIFEST_FILE: &str = "manifest.json";

/// The directory of the held-out samples, inside the data set's: a data set of its own.
pub const HOLDOUT_DIRECTORY: &str = "holdout";

/// The version that this crate writes and reads.
const VERSION: u32 = 1;

/// About 400,000 slices, at 160 bytes each: with slices of 64 MiB, 25 TiB of data.
pub(crate) const MAX_MANIFEST_BYTES: u64 = 64 << 20;

/// A slice is prepared in memory and is the unit of transfer: larger ones serve nobody.
pub(crate) const MAX_SLICE_BYTES: u64 = 1 << 30;

/// More than any model's inputs. Bounds the header of a slice with [`MAX_NAME_BYTES`].
pub(crate) const MAX_TENSORS: usize = 64;

/// Of a tensor's name.
pub(crate) const MAX_NAME_BYTES: usize = 128;

/// Of a tensor's shape; no framework has more dimensions.
pub(crate) const MAX_DIMENSIONS: usize = 16;

/// The position of a slice in its data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SliceIndex(pub u32);

impl fmt::Display for SliceIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What a data set contains.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The version of the format.
    pub version: u32,
    /// The data set's name.
    pub name: Name,
    /// What a sample is.
    pub kind: Kind,
    /// Samples in every slice but the last, which may have fewer.
    pub samples_per_slice: u32,
    /// The tensors of each slice.
    pub tensors: Vec<TensorSpec>,
    /// The slices, in order.
    pub slices: Vec<SliceEntry>,
}

/// What a sample is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum Kind {
    /// A sequence of tokens, in the tensor `tokens`.
    Tokens {
        /// Tokens are below this.
        vocabulary: u32,
        /// Tokens that a model sees at once; a sequence has one more.
        context: u32,
    },
    /// A row of numbers, in the tensor `values`.
    Numbers {
        /// The columns, in the order of the values.
        columns: Vec<String>,
    },
    /// An image in `images` and its class in `labels`.
    Images {
        /// The names of the classes; a label is an index into them.
        classes: Vec<String>,
    },
    /// Tensors from other files, whose meaning is the user's.
    Tensors,
}

/// One tensor of every slice. In the file its first dimension is the sample, followed by `shape`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TensorSpec {
    /// The tensor's name.
    pub name: String,
    /// The type of its elements.
    pub dtype: Dtype,
    /// The shape of one sample.
    pub shape: Vec<u64>,
}

/// One slice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SliceEntry {
    /// The file's name in the data set's directory.
    pub file: String,
    /// How many samples it has.
    pub samples: u32,
    /// The file's size.
    pub bytes: u64,
    /// The file's digest.
    pub blake3: Digest,
}

/// Why a manifest is invalid.
#[derive(Debug, Error)]
pub enum ManifestError {
    /// Not JSON, or not of this shape.
    #[error("invalid manifest: {0}")]
    Syntax(#[from] serde_json::Error),
    /// Written by a newer version.
    #[error(
        "the manifest has version {0}, this program reads version {VERSION}; prepare the data again or update"
    )]
    Version(u32),
    /// A rule is broken.
    #[error("invalid manifest: {0}")]
    Invalid(String),
}

impl Manifest {
    pub(crate) fn new(
        name: Name,
        kind: Kind,
        samples_per_slice: u32,
        tensors: Vec<TensorSpec>,
    ) -> Manifest {
        Manifest { version: VERSION, name, kind, samples_per_slice, tensors, slices: Vec::new() }
    }

    /// Reads and checks a manifest.
    pub fn from_json(json: &[u8]) -> Result<Manifest, ManifestError> {
        // The version first: the fields of another version may be others.
        let VersionOnly { version } = serde_json::from_slice(json)?;
        if version != VERSION {
            return Err(ManifestError::Version(version));
        }
        let manifest: Manifest = serde_json::from_slice(json)?;
        manifest.check().map_err(ManifestError::Invalid)?;
        Ok(manifest)
    }

    /// The text of `manifest.json`.
    pub fn to_json(&self) -> Result<Vec<u8>, serde_json::Error> {
        let mut json = serde_json::to_vec_pretty(self)?;
        json.push(b'\n');
        Ok(json)
    }

    /// The entry of a slice, if there is one.
    pub fn slice(&self, index: SliceIndex) -> Option<&SliceEntry> {
        self.slices.get(usize::try_from(index.0).ok()?)
    }

    /// All samples.
    pub fn samples(&self) -> u64 {
        self.slices.iter().map(|slice| u64::from(slice.samples)).sum()
    }

    /// The size of all slices.
    pub fn bytes(&self) -> u64 {
        self.slices.iter().fold(0, |sum, slice| sum.saturating_add(slice.bytes))
    }

    fn check(&self) -> Result<(), String> {
        check_tensors(&self.tensors)?;
        if self.samples_per_slice == 0 {
            return Err("samples_per_slice must not be 0".into());
        }
        if self.slices.is_empty() {
            return Err("it has no slices".into());
        }
        let mut files = BTreeSet::new();
        for (index, slice) in self.slices.iter().enumerate() {
            let is_last = index + 1 == self.slices.len();
            let short = slice.samples < self.samples_per_slice && is_last && slice.samples > 0;
            if !is_plain_file_name(&slice.file) {
                return Err(format!("slice {index}: `{}` is not a plain file name", slice.file));
            } else if !files.insert(&slice.file) {
                return Err(format!("slice {index}: `{}` is there twice", slice.file));
            } else if slice.samples != self.samples_per_slice && !short {
                return Err(format!("slice {index}: {} samples do not fit", slice.samples));
            } else if slice.bytes > MAX_FILE_BYTES {
                return Err(format!("slice {index}: {} bytes are too many", slice.bytes));
            }
        }
        Ok(())
    }
}

/// A full slice with its header.
const MAX_FILE_BYTES: u64 = MAX_SLICE_BYTES + crate::slice_file::MAX_HEADER_BYTES + 8;

#[derive(Deserialize)]
struct VersionOnly {
    version: u32,
}

/// Whether the specifications are unique, bounded and of whole bytes.
pub(crate) fn check_tensors(tensors: &[TensorSpec]) -> Result<(), String> {
    if tensors.is_empty() || tensors.len() > MAX_TENSORS {
        return Err(format!("a slice has 1 to {MAX_TENSORS} tensors, not {}", tensors.len()));
    }
    let mut names = BTreeSet::new();
    for TensorSpec { name, shape, .. } in tensors {
        // `__metadata__` is the format's own key.
        if name.is_empty() || name.len() > MAX_NAME_BYTES || name == "__metadata__" {
            return Err(format!("a tensor cannot be called `{name}`"));
        } else if !names.insert(name) {
            return Err(format!("the tensor `{name}` is there twice"));
        } else if shape.len() > MAX_DIMENSIONS {
            return Err(format!("the tensor `{name}` has more than {MAX_DIMENSIONS} dimensions"));
        }
    }
    sample_bytes(tensors).map(|_| ())
}

/// The bytes of one sample, over all tensors.
pub(crate) fn sample_bytes(tensors: &[TensorSpec]) -> Result<u64, String> {
    let mut sum: u64 = 0;
    for tensor in tensors {
        let too_large = || format!("a sample of the tensor `{}` is too large", tensor.name);
        sum = tensor
            .sample_bytes()
            .ok_or_else(|| {
                format!("the tensor `{}` is empty, too large or not of whole bytes", tensor.name)
            })?
            .checked_add(sum)
            .filter(|sum| *sum <= MAX_SLICE_BYTES)
            .ok_or_else(too_large)?;
    }
    Ok(sum)
}

impl TensorSpec {
    /// The bytes of one sample; none if that is no positive number of whole bytes.
    pub fn sample_bytes(&self) -> Option<u64> {
        let bits = u64::try_from(self.dtype.bitsize()).ok().filter(|bits| bits % 8 == 0)?;
        let elements = self.shape.iter().try_fold(1u64, |sum, size| sum.checked_mul(*size))?;
        elements.checked_mul(bits / 8).filter(|bytes| *bytes > 0)
    }
}

/// Names come from manifests, which come from anywhere: one file in the directory, and not a hidden one.
fn is_plain_file_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    !name.is_empty()
        && name.len() <= 255
        && !name.starts_with('.')
        && name != MANIFEST_FILE
        && name.bytes().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALID: &str = r#"{
        "version": 1, "name": "corpus", "kind": {"type": "tokens", "vocabulary": 256, "context": 3},
        "samples_per_slice": 2, "tensors": [{"name": "tokens", "dtype": "U8", "shape": [4]}],
        "slices": [
            {"file": "a", "samples": 2, "bytes": 100, "blake3": "DIGEST"},
            {"file": "b", "samples": 1, "bytes": 90, "blake3": "DIGEST"}
        ]}"#;

    fn parse(json: &str) -> Result<Manifest, String> {
        let json = json.replace("DIGEST", &"0a".repeat(32));
        Manifest::from_json(json.as_bytes()).map_err(|error| error.to_string())
    }

    #[test]
    fn valid_manifest_survives_a_round_trip() {
        let manifest = parse(VALID).unwrap();
        assert_eq!(Manifest::from_json(&manifest.to_json().unwrap()).unwrap(), manifest);
        assert_eq!((manifest.samples(), manifest.bytes()), (3, 190));
    }

    #[test]
    fn invalid_manifests_are_refused_with_a_reason() {
        for (from, to, expected) in [
            ("\"version\": 1", "\"version\": 2", "has version 2"),
            ("\"name\": \"corpus\"", "\"name\": \"\"", "must not be empty"),
            ("\"samples_per_slice\": 2", "\"samples_per_slice\": 0", "must not be 0"),
            ("\"file\": \"b\"", "\"file\": \"../b\"", "not a plain file name"),
            ("\"file\": \"b\"", "\"file\": \"/etc/passwd\"", "not a plain file name"),
            ("\"file\": \"b\"", "\"file\": \"..\"", "not a plain file name"),
            ("\"file\": \"b\"", "\"file\": \"\"", "not a plain file name"),
            ("\"file\": \"b\"", "\"file\": \"manifest.json\"", "not a plain file name"),
            ("\"file\": \"b\"", "\"file\": \"a\"", "`a` is there twice"),
            ("\"samples\": 1", "\"samples\": 3", "3 samples do not fit"),
            ("\"samples\": 1", "\"samples\": 0", "0 samples do not fit"),
            ("\"samples\": 2", "\"samples\": 1", "slice 0: 1 samples do not fit"),
            ("\"bytes\": 90", "\"bytes\": 99999999999", "are too many"),
            ("\"shape\": [4]", "\"shape\": [0]", "empty, too large"),
            ("\"shape\": [4]", "\"shape\": [4294967296, 4294967296]", "empty, too large"),
            ("\"dtype\": \"U8\"", "\"dtype\": \"F4\"", "not of whole bytes"),
            ("\"name\": \"tokens\"", "\"name\": \"__metadata__\"", "cannot be called"),
            ("\"shape\": [4]", &format!("\"shape\": {:?}", [1; 17]), "more than 16 dimensions"),
            (
                "\"tensors\": [",
                "\"tensors\": [{\"name\": \"tokens\", \"dtype\": \"I8\", \"shape\": []}, ",
                "`tokens` is there twice",
            ),
            ("\"DIGEST\"", "\"0A\"", "64 lower-case hex digits"),
            ("\"bytes\": 90", "\"bytes\": 90, \"path\": \"x\"", "unknown field `path`"),
        ] {
            assert!(VALID.contains(from), "{from}");
            let error = parse(&VALID.replacen(from, to, 1)).unwrap_err();
            assert!(error.contains(expected), "{to}: {error}");
            assert!(!error.contains('\n'), "{error}");
        }
    }
}
