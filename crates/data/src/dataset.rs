//! A data set on the disk: opened, verified, and read by ranges of bytes.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};

use hypha_model::Name;
use thiserror::Error;

use crate::manifest::{HOLDOUT_DIRECTORY, MANIFEST_FILE, MAX_MANIFEST_BYTES};
use crate::{Digest, Manifest, ManifestError, SampleError, SliceEntry, SliceFile, SliceIndex};

/// A directory with a valid manifest, all of whose slices are there with the right size.
#[derive(Clone, Debug)]
pub struct Dataset {
    root: PathBuf,
    manifest: Manifest,
}

/// Some bytes of a slice.
#[derive(Debug)]
pub struct SliceReader {
    file: io::Take<File>,
}

/// Why a data set or a part of it cannot be read.
#[derive(Debug, Error)]
pub enum DatasetError {
    /// A file cannot be read.
    #[error("cannot read {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The manifest is invalid.
    #[error("{path}: {source}")]
    Manifest {
        /// The manifest.
        path: PathBuf,
        /// What is wrong.
        source: ManifestError,
    },
    /// The file leads out of the data set's directory, or is no regular file.
    #[error("{0} is not a regular file inside the data set's directory")]
    Outside(PathBuf),
    /// The file is not the one that the manifest describes.
    #[error("{path} is damaged: {reason}; prepare the data set again or restore the file")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// How it differs.
        reason: String,
    },
    /// There is no such data set.
    #[error("unknown data set `{0}`")]
    UnknownDataset(String),
    /// Two data sets have one name.
    #[error("the data set `{0}` is there twice")]
    DuplicateDataset(Name),
    /// There is no such slice.
    #[error("the data set has {slices} slices, so there is no slice {index}")]
    UnknownSlice {
        /// The slice that was asked for.
        index: SliceIndex,
        /// How many there are.
        slices: usize,
    },
    /// The range ends after the last byte, or before it begins.
    #[error("bytes {start} to {end} are outside the slice, which has {bytes}")]
    OutOfRange {
        /// The first byte.
        start: u64,
        /// The end, exclusive.
        end: u64,
        /// The slice's size.
        bytes: u64,
    },
    /// The slice's header does not match the manifest.
    #[error(transparent)]
    Samples(#[from] SampleError),
}

impl Dataset {
    /// Opens a directory. Compares the sizes of all slices with the manifest, not their digests: that is
    /// [`verify`](Dataset::verify).
    pub fn open(directory: &Path) -> Result<Dataset, DatasetError> {
        // Resolved once: a symbolic link to the directory is the operator's choice, one inside it is not.
        let root = directory.canonicalize().map_err(|source| io_error(directory, source))?;
        let path = root.join(MANIFEST_FILE);
        let manifest = read_manifest(&root, &path)?;
        let dataset = Dataset { root, manifest };
        for slice in &dataset.manifest.slices {
            dataset.open_file(slice)?;
        }
        Ok(dataset)
    }

    /// The held-out samples, if some were set apart.
    pub fn open_holdout(&self) -> Result<Option<Dataset>, DatasetError> {
        let directory = self.root.join(HOLDOUT_DIRECTORY);
        match directory.symlink_metadata() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(io_error(&directory, source)),
            Ok(metadata) if metadata.is_dir() => Dataset::open(&directory).map(Some),
            Ok(_) => Err(DatasetError::Outside(directory)),
        }
    }

    /// What the data set contains.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Opens a range of the bytes of a slice.
    pub fn read(&self, index: SliceIndex, range: Range<u64>) -> Result<SliceReader, DatasetError> {
        let slice = self.slice(index)?;
        let Range { start, end } = range;
        if start > end || end > slice.bytes {
            return Err(DatasetError::OutOfRange { start, end, bytes: slice.bytes });
        }
        let (mut file, path) = self.open_file(slice)?;
        file.seek(SeekFrom::Start(start)).map_err(|source| io_error(&path, source))?;
        Ok(SliceReader { file: file.take(end - start) })
    }

    /// Opens the samples of a slice.
    pub fn samples(&self, index: SliceIndex) -> Result<SliceFile, DatasetError> {
        let (_, path) = self.open_file(self.slice(index)?)?;
        Ok(SliceFile::open(path)?)
    }

    /// Reads a whole slice and compares it with the manifest.
    pub fn verify(&self, index: SliceIndex) -> Result<(), DatasetError> {
        let slice = self.slice(index)?;
        let (file, path) = self.open_file(slice)?;
        let (digest, _) = Digest::of_reader(file).map_err(|source| io_error(&path, source))?;
        if digest != slice.blake3 {
            return Err(DatasetError::Damaged { path, reason: "its digest differs".into() });
        }
        let samples = SliceFile::open(&path)?;
        let mut tensors = self.manifest.tensors.clone();
        tensors.sort_by(|a, b| a.name.cmp(&b.name));
        if samples.samples() != slice.samples || !samples.tensors().eq(&tensors) {
            let reason = "it has other samples or tensors than the manifest says".into();
            return Err(DatasetError::Damaged { path, reason });
        }
        Ok(())
    }

    fn slice(&self, index: SliceIndex) -> Result<&SliceEntry, DatasetError> {
        let slices = self.manifest.slices.len();
        self.manifest.slice(index).ok_or(DatasetError::UnknownSlice { index, slices })
    }

    fn open_file(&self, slice: &SliceEntry) -> Result<(File, PathBuf), DatasetError> {
        let (file, path, bytes) = open_inside(&self.root, &self.root.join(&slice.file))?;
        if bytes != slice.bytes {
            let reason = format!("it has {bytes} bytes instead of {}", slice.bytes);
            return Err(DatasetError::Damaged { path, reason });
        }
        Ok((file, path))
    }
}

impl SliceReader {
    /// Bytes that are still to be read.
    pub fn remaining(&self) -> u64 {
        self.file.limit()
    }

    /// The file at the first byte of the range, for a caller that reads it another way; it must stop after
    /// [`remaining`](SliceReader::remaining) bytes.
    pub fn into_file(self) -> File {
        self.file.into_inner()
    }
}

impl Read for SliceReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buffer)?;
        if read == 0 && !buffer.is_empty() && self.remaining() > 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the slice was truncated"));
        }
        Ok(read)
    }
}

fn read_manifest(root: &Path, path: &Path) -> Result<Manifest, DatasetError> {
    let (file, path, bytes) = open_inside(root, path)?;
    if bytes > MAX_MANIFEST_BYTES {
        let reason = format!("a manifest has at most {MAX_MANIFEST_BYTES} bytes");
        return Err(DatasetError::Damaged { path, reason });
    }
    let mut json = Vec::new();
    let read = file.take(MAX_MANIFEST_BYTES).read_to_end(&mut json);
    read.map_err(|source| io_error(&path, source))?;
    Manifest::from_json(&json).map_err(|source| DatasetError::Manifest { path, source })
}

/// Opens a regular file whose real path is below `root`, and returns that path and the file's size.
fn open_inside(root: &Path, path: &Path) -> Result<(File, PathBuf, u64), DatasetError> {
    let real = path.canonicalize().map_err(|source| io_error(path, source))?;
    // Before it is opened: opening a FIFO blocks.
    let is_file = real.metadata().map_err(|source| io_error(path, source))?.is_file();
    if !is_file || !real.starts_with(root) {
        return Err(DatasetError::Outside(path.into()));
    }
    let file = File::open(&real).map_err(|source| io_error(path, source))?;
    let bytes = file.metadata().map_err(|source| io_error(path, source))?.len();
    Ok((file, real, bytes))
}

fn io_error(path: &Path, source: io::Error) -> DatasetError {
    DatasetError::Io { path: path.into(), source }
}

#[cfg(test)]
mod tests;
