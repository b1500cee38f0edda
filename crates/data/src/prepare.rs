//! Turns text, tables, images and tensors into a data set. The same input gives the same bytes.
//!
//! Input is streamed: memory is bounded by one slice, and a second one if samples are held out. The output directory
//! appears complete or not at all.

mod encode;
#[cfg(feature = "images")]
mod images;
mod records;
mod tables;
mod tensors;
mod text;
mod writer;

use std::fs::{self, File};
use std::io;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use hypha_model::Name;
use thiserror::Error;

use crate::Manifest;
use writer::Writer;

/// What to prepare.
#[derive(Clone, Debug)]
pub enum Input {
    /// Text files, in this order. Samples are sequences of `context + 1` tokens, each beginning with the last token of
    /// the one before, so that every token but the first is predicted once.
    Text {
        /// The files.
        files: Vec<PathBuf>,
        /// How text becomes tokens.
        encoding: Encoding,
        /// Tokens that a model sees at once.
        context: NonZeroU32,
    },
    /// A column of text of CSV files with a header (`.csv`), or of files with a JSON object in each line (`.jsonl`).
    TextColumn {
        /// The files.
        files: Vec<PathBuf>,
        /// The column.
        column: String,
        /// How text becomes tokens.
        encoding: Encoding,
        /// Tokens that a model sees at once.
        context: NonZeroU32,
    },
    /// Columns of numbers of such files. A sample is a row.
    NumberColumns {
        /// The files.
        files: Vec<PathBuf>,
        /// The columns, in the order of a sample's values.
        columns: Vec<String>,
    },
    /// PNG and JPEG files in one folder for each class. The order is fixed but mixes the classes.
    #[cfg(feature = "images")]
    Images {
        /// The folder of the classes' folders.
        folder: PathBuf,
        /// Images are resized to this width.
        width: NonZeroU32,
        /// Images are resized to this height.
        height: NonZeroU32,
        /// Grey or colour.
        colour: Colour,
    },
    /// Safetensors files with equal tensors, whose first dimension is the sample.
    Tensors {
        /// The files.
        files: Vec<PathBuf>,
    },
}

/// How text becomes tokens. Documents, which are files or fields, are separated.
#[derive(Clone, Debug)]
pub enum Encoding {
    /// Each byte is a token. A newline separates documents that do not end in one.
    Bytes,
    /// A Hugging Face tokenizer. Text is encoded in pieces of whole lines.
    #[cfg(feature = "tokenizers")]
    Tokenizer {
        /// Its `tokenizer.json`.
        file: PathBuf,
        /// The token after each document, such as `<|endoftext|>`.
        end_of_text: Option<String>,
    },
}

/// The channels of prepared images.
#[cfg(feature = "images")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    /// One channel.
    Grey,
    /// Red, green and blue.
    Rgb,
}

/// How to divide the samples.
#[derive(Clone, Debug)]
pub struct Options {
    /// The data set's name.
    pub name: Name,
    /// Samples in each slice but the last.
    pub samples_per_slice: NonZeroU32,
    /// Hold out every n-th sample.
    pub holdout_every: Option<NonZeroU32>,
}

/// How far the work has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of input that were read.
    pub input_bytes: u64,
    /// Bytes of input in all.
    pub total_bytes: u64,
    /// Samples so far.
    pub samples: u64,
}

/// What was prepared.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// The data set.
    pub manifest: Manifest,
    /// The held-out samples, if there are some.
    pub holdout: Option<Manifest>,
}

/// Why a data set cannot be prepared.
#[derive(Debug, Error)]
pub enum PrepareError {
    /// The output directory has something in it.
    #[error("{0} is not empty; name a new directory, or empty this one")]
    OutputNotEmpty(PathBuf),
    /// The output cannot be written.
    #[error("cannot write {path}: {source}")]
    Write {
        /// The file or directory.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The input cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file or directory.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A line of the input is invalid.
    #[error("{path}: line {line}: {reason}")]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: u64,
        /// What is wrong with it.
        reason: String,
    },
    /// A file of the input is invalid.
    #[error("{path}: {reason}")]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The options or the input as a whole do not work.
    #[error("{0}")]
    Invalid(String),
}

/// Prepares a data set in the directory `output`, which must not exist or be empty. `progress` is called about once a
/// mebibyte of input.
pub fn prepare(
    input: &Input,
    options: &Options,
    output: &Path,
    progress: &mut dyn FnMut(Progress),
) -> Result<Prepared, PrepareError> {
    refuse_if_occupied(output)?;
    let parent = match output.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    fs::create_dir_all(parent).map_err(|source| write_error(parent, source))?;
    // On the same file system, so that it can be renamed; removed again if anything fails.
    let staging = tempfile::Builder::new()
        .prefix(".hypha-prepare-")
        .permissions(directory_permissions())
        .tempdir_in(parent)
        .map_err(|source| write_error(parent, source))?;
    let mut writer = Writer::new(staging.path(), options, progress)?;
    match input {
        Input::Text { files, encoding, context } => {
            text::prepare_files(files, encoding, *context, &mut writer)
        }
        Input::TextColumn { files, column, encoding, context } => {
            text::prepare_column(files, column, encoding, *context, &mut writer)
        }
        Input::NumberColumns { files, columns } => tables::prepare(files, columns, &mut writer),
        #[cfg(feature = "images")]
        Input::Images { folder, width, height, colour } => {
            images::prepare(folder, *width, *height, *colour, &mut writer)
        }
        Input::Tensors { files } => tensors::prepare(files, &mut writer),
    }?;
    let prepared = writer.finish()?;
    sync_directory(staging.path())?;
    // Fails if the directory has been filled meanwhile.
    fs::rename(staging.path(), output).map_err(|source| match source.kind() {
        io::ErrorKind::DirectoryNotEmpty => PrepareError::OutputNotEmpty(output.into()),
        _ => write_error(output, source),
    })?;
    let _ = staging.keep();
    sync_directory(parent)?;
    Ok(prepared)
}

fn refuse_if_occupied(output: &Path) -> Result<(), PrepareError> {
    match fs::read_dir(output).map(|mut files| files.next().is_some()) {
        Ok(true) => Err(PrepareError::OutputNotEmpty(output.into())),
        Ok(false) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(source) => Err(write_error(output, source)),
    }
}

/// As for any directory that the user creates; a temporary one would be the user's alone.
fn directory_permissions() -> fs::Permissions {
    use std::os::unix::fs::PermissionsExt;
    fs::Permissions::from_mode(0o777)
}

fn sync_directory(path: &Path) -> Result<(), PrepareError> {
    File::open(path).and_then(|file| file.sync_all()).map_err(|source| write_error(path, source))
}

fn write_error(path: &Path, source: io::Error) -> PrepareError {
    PrepareError::Write { path: path.into(), source }
}

fn read_error(path: &Path, source: io::Error) -> PrepareError {
    PrepareError::Read { path: path.into(), source }
}

fn file_error(path: &Path, reason: impl ToString) -> PrepareError {
    PrepareError::File { path: path.into(), reason: reason.to_string() }
}

fn line_error(path: &Path, line: u64, reason: impl ToString) -> PrepareError {
    PrepareError::Line { path: path.into(), line, reason: reason.to_string() }
}

/// The size of all files, for the progress; refuses an empty list.
fn total_bytes(files: &[PathBuf]) -> Result<u64, PrepareError> {
    if files.is_empty() {
        return Err(PrepareError::Invalid("there are no input files; name at least one".into()));
    }
    let size = |path: &PathBuf| path.metadata().map_err(|source| read_error(path, source));
    files.iter().try_fold(0u64, |sum, path| Ok(sum.saturating_add(size(path)?.len())))
}

#[cfg(test)]
mod tests;
