//! Data sets: preparing them as slice files, serving byte ranges of them, and the worker's cache of slices.
//!
//! A data set is a directory: `manifest.json` describes it, and each slice is a safetensors file of samples.
//! [`prepare`](prepare::prepare) writes one, a [`Dataset`] reads it, a [`Library`] holds several by name, and a
//! [`SliceCache`] keeps slices that a worker has fetched. [`plan_fetches`] decides which slice comes from which
//! provider, and a [`SliceFile`] gives a trainer its samples.
//!
//! Everything here is blocking `std::io`, and nothing knows the network: the node moves the bytes.

mod cache;
mod dataset;
mod digest;
mod library;
mod manifest;
mod plan;
pub mod prepare;
mod slice_file;

pub use cache::{CacheError, CachedSlice, Download, SliceCache};
pub use dataset::{Dataset, DatasetError, SliceReader};
pub use digest::Digest;
pub use library::Library;
pub use manifest::{
    HOLDOUT_DIRECTORY, Kind, MANIFEST_FILE, Manifest, ManifestError, SliceEntry, SliceIndex,
    TensorSpec,
};
pub use plan::{Fetch, FetchPlan, Needs, Provider, Waiting, WaitingReason, plan_fetches};
pub use safetensors::Dtype;
pub use slice_file::{SampleError, SliceFile, Tokens};
