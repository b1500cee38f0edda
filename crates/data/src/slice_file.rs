//! Slice files: safetensors whose tensors have one sample in each row; written in one pass, read by ranges of samples.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use thiserror::Error;

use crate::manifest::{MAX_DIMENSIONS, MAX_NAME_BYTES, MAX_TENSORS, TensorSpec};
use crate::{Digest, manifest};

/// Room for the largest header that [`manifest::check_tensors`] allows, with every byte of a name escaped.
pub(crate) const MAX_HEADER_BYTES: u64 =
    (MAX_TENSORS * (6 * MAX_NAME_BYTES + 21 * MAX_DIMENSIONS + 128)) as u64;

/// The name of the tensor of token sequences.
pub(crate) const TOKENS: &str = "tokens";

/// A slice file, open for reading.
#[derive(Debug)]
pub struct SliceFile {
    path: PathBuf,
    file: File,
    samples: u32,
    tensors: BTreeMap<String, Rows>,
}

/// Sequences of tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tokens {
    /// The sequences, one after the other.
    pub tokens: Vec<u32>,
    /// Tokens in each sequence.
    pub sequence_length: usize,
}

/// Why samples cannot be read.
#[derive(Debug, Error)]
pub enum SampleError {
    /// The file cannot be read.
    #[error("cannot read {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The file is no slice.
    #[error("{path} is not a slice file: {reason}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// There is no such tensor.
    #[error("{path} has no tensor `{tensor}`")]
    UnknownTensor {
        /// The file.
        path: PathBuf,
        /// Its name.
        tensor: String,
    },
    /// The range ends after the last sample, or before it begins.
    #[error("samples {start} to {end} are outside the slice, which has {samples}")]
    OutOfRange {
        /// The first sample.
        start: u32,
        /// The end, exclusive.
        end: u32,
        /// Samples in the slice.
        samples: u32,
    },
}

/// Where the rows of a tensor are.
#[derive(Clone, Debug)]
struct Rows {
    spec: TensorSpec,
    offset: u64,
    row_bytes: u64,
}

impl Tokens {
    /// Each sequence.
    pub fn sequences(&self) -> impl Iterator<Item = &[u32]> {
        self.tokens.chunks_exact(self.sequence_length.max(1))
    }
}

impl SliceFile {
    /// Opens a file and reads its header.
    pub fn open(path: impl Into<PathBuf>) -> Result<SliceFile, SampleError> {
        let path = path.into();
        let opened = File::open(&path).and_then(|mut file| Ok((read_header(&mut file)?, file)));
        let (header, file) = match opened {
            Ok((Ok(header), file)) => (header, file),
            Ok((Err(reason), _)) => return Err(SampleError::Malformed { path, reason }),
            Err(source) => return Err(SampleError::Io { path, source }),
        };
        match header.rows() {
            Ok((samples, tensors)) => Ok(SliceFile { path, file, samples, tensors }),
            Err(reason) => Err(SampleError::Malformed { path, reason }),
        }
    }

    /// How many samples the slice has.
    pub fn samples(&self) -> u32 {
        self.samples
    }

    /// The tensors, by name.
    pub fn tensors(&self) -> impl Iterator<Item = &TensorSpec> {
        self.tensors.values().map(|rows| &rows.spec)
    }

    /// The little-endian bytes of some samples of a tensor.
    pub fn read(&mut self, tensor: &str, samples: Range<u32>) -> Result<Vec<u8>, SampleError> {
        let Some(rows) = self.tensors.get(tensor) else {
            return Err(SampleError::UnknownTensor {
                path: self.path.clone(),
                tensor: tensor.into(),
            });
        };
        let Range { start, end } = samples;
        if start > end || end > self.samples {
            return Err(SampleError::OutOfRange { start, end, samples: self.samples });
        }
        // The header's offsets were compared with the file's length: neither product overflows.
        let first = rows.offset + u64::from(start) * rows.row_bytes;
        let length = u64::from(end - start) * rows.row_bytes;
        let mut bytes = Vec::new();
        let read = self
            .file
            .seek(SeekFrom::Start(first))
            .and_then(|_| (&self.file).take(length).read_to_end(&mut bytes));
        match read {
            Ok(read) if read as u64 == length => Ok(bytes),
            Ok(_) => Err(self.malformed("it was truncated while it was open")),
            Err(source) => Err(SampleError::Io { path: self.path.clone(), source }),
        }
    }

    /// Some samples as sequences of tokens, from the tensor `tokens` of unsigned integers.
    pub fn read_tokens(&mut self, samples: Range<u32>) -> Result<Tokens, SampleError> {
        let bytes = self.read(TOKENS, samples)?;
        let Some(Rows { spec, row_bytes, .. }) = self.tensors.get(TOKENS) else {
            return Err(self.malformed("it has no tokens"));
        };
        let (tokens, width): (Vec<u32>, u64) = match spec.dtype {
            Dtype::U8 => (bytes.into_iter().map(u32::from).collect(), 1),
            Dtype::U16 => {
                (bytes.as_chunks().0.iter().map(|two| u16::from_le_bytes(*two).into()).collect(), 2)
            }
            Dtype::U32 => {
                (bytes.as_chunks().0.iter().map(|four| u32::from_le_bytes(*four)).collect(), 4)
            }
            other => return Err(self.malformed(&format!("tokens of type {other:?}"))),
        };
        let sequence_length = usize::try_from(row_bytes / width).unwrap_or(usize::MAX);
        Ok(Tokens { tokens, sequence_length })
    }

    fn malformed(&self, reason: &str) -> SampleError {
        SampleError::Malformed { path: self.path.clone(), reason: reason.into() }
    }
}

/// Writes a slice and returns its size and digest. Each column has the bytes of all samples of its tensor. The same
/// samples give the same bytes.
pub(crate) fn write(
    path: &Path,
    columns: &[(&TensorSpec, &[u8])],
    samples: u32,
) -> io::Result<(u64, Digest)> {
    let mut columns = columns.to_vec();
    // Wide elements first, so that every tensor is aligned.
    columns.sort_by_key(|(spec, _)| (std::cmp::Reverse(spec.dtype.bitsize()), &spec.name));
    let mut infos = BTreeMap::new();
    let mut end = 0;
    for (spec, bytes) in &columns {
        let sizes = std::iter::once(u64::from(samples)).chain(spec.shape.iter().copied());
        let shape: Result<Vec<usize>, _> = sizes.map(usize::try_from).collect();
        let offsets = (end, end + bytes.len());
        end = offsets.1;
        let shape = shape.map_err(io::Error::other)?;
        infos.insert(&spec.name, TensorInfo { dtype: spec.dtype, shape, data_offsets: offsets });
    }
    let mut header = serde_json::to_vec(&infos)?;
    header.resize(header.len().next_multiple_of(8), b' ');

    let mut out = HashingWriter { file: File::create_new(path)?, hasher: blake3::Hasher::new() };
    let mut buffered = BufWriter::new(&mut out);
    buffered.write_all(&(header.len() as u64).to_le_bytes())?;
    buffered.write_all(&header)?;
    for (_, bytes) in &columns {
        buffered.write_all(bytes)?;
    }
    buffered.flush()?;
    drop(buffered);
    out.file.sync_all()?;
    Ok((out.hasher.count(), Digest::of_hasher(&out.hasher)))
}

struct HashingWriter {
    file: File,
    hasher: blake3::Hasher,
}

impl Write for HashingWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.hasher.update(bytes.get(..written).unwrap_or(bytes));
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// A header whose tensors fill the rest of the file exactly.
struct Header {
    metadata: Metadata,
    data_start: u64,
}

/// Reads a header without the data. The inner error says how it is malformed.
fn read_header(file: &mut File) -> io::Result<Result<Header, String>> {
    let file_bytes = file.metadata()?.len();
    let mut length = [0; 8];
    if file_bytes < 8 {
        return Ok(Err(format!("it has {file_bytes} bytes")));
    }
    file.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length);
    if length > MAX_HEADER_BYTES || length > file_bytes - 8 {
        return Ok(Err(format!("a header of {length} bytes")));
    }
    let mut json = Vec::new();
    file.take(length).read_to_end(&mut json)?;
    let metadata: Metadata = match serde_json::from_slice(&json) {
        Ok(metadata) => metadata,
        Err(error) => return Ok(Err(format!("invalid header: {error}"))),
    };
    // Conversion from JSON has checked that the offsets are contiguous and match the shapes, but not that they are
    // small: eight tensors can claim all of 64 bits.
    let expected = (metadata.data_len() as u64).saturating_add(8 + length);
    if expected != file_bytes {
        return Ok(Err(format!("it has {file_bytes} bytes instead of {expected}")));
    }
    Ok(Ok(Header { metadata, data_start: 8 + length }))
}

impl Header {
    fn rows(&self) -> Result<(u32, BTreeMap<String, Rows>), String> {
        let mut samples = None;
        let mut tensors = BTreeMap::new();
        for (name, info) in self.metadata.tensors() {
            let Some((first, shape)) = info.shape.split_first() else {
                return Err(format!("the tensor `{name}` is a scalar"));
            };
            let rows = u32::try_from(*first).map_err(|_| format!("`{name}` has {first} rows"))?;
            if *samples.get_or_insert(rows) != rows {
                return Err("its tensors differ in their number of samples".into());
            }
            let shape = shape.iter().map(|size| *size as u64).collect();
            let spec = TensorSpec { name: name.clone(), dtype: info.dtype, shape };
            let row_bytes = spec
                .sample_bytes()
                .ok_or_else(|| format!("the tensor `{name}` is empty or not of whole bytes"))?;
            let offset = self.data_start + info.data_offsets.0 as u64;
            tensors.insert(name, Rows { spec, offset, row_bytes });
        }
        let specs: Vec<TensorSpec> = tensors.values().map(|rows| rows.spec.clone()).collect();
        manifest::check_tensors(&specs)?;
        Ok((samples.unwrap_or(0), tensors))
    }
}

#[cfg(test)]
mod tests;
