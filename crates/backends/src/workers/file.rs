//! `http-workers.json`: the locations of the registered workers, so that they are restored after a restart.
//!
//! Keys are not written: a back end that needs one is registered again, by the configuration or by its client.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use hypha_model::Worker;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::back_end::Format;
use crate::transport::{HttpError, Target};

const FILE: &str = "http-workers.json";
const NEW_FILE: &str = "http-workers.json.new";
/// A worker takes some hundred bytes: room for as many as can be registered, with long names.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// Why the list of workers could not be read.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The file cannot be read.
    #[error(
        "{path} could not be read ({source}): make it readable, or move it away to begin without HTTP workers"
    )]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The content of the file is invalid.
    #[error("{path} is damaged ({reason}): move it away and register the HTTP workers again")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

/// A worker that is restored after a restart.
#[derive(Serialize, Deserialize)]
pub(super) struct SavedWorker {
    pub(super) worker: Worker,
    #[serde(rename = "place")]
    pub(super) location: Location,
}

/// Where a worker is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Location {
    Instance { host: String, port: u16 },
    Server { url: String, format: Format, health_path: Option<String> },
}

impl Location {
    pub(super) fn target(&self) -> Result<Target, HttpError> {
        match self {
            Location::Instance { host, port } => Target::new(host, *port, "/".to_owned()),
            Location::Server { url, .. } => Target::parse(url),
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Document<R> {
    workers: R,
}

pub(super) fn read(directory: &Path) -> Result<Vec<SavedWorker>, OpenError> {
    let path = directory.join(FILE);
    let failed = |source| OpenError::Read { path: path.clone(), source };
    let size = match std::fs::metadata(&path) {
        Ok(metadata) => metadata.len(),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let damaged = |reason: String| OpenError::Damaged { path: path.clone(), reason };
    if size > MAX_FILE_BYTES {
        return Err(damaged(format!(
            "it has {size} bytes, more than the limit of {MAX_FILE_BYTES}"
        )));
    }
    let text = std::fs::read(&path).map_err(failed)?;
    let document: Document<Vec<SavedWorker>> =
        serde_json::from_slice(&text).map_err(|error| damaged(error.to_string()))?;
    Ok(document.workers)
}

/// Writes a new file beside the old one, and then replaces the old one.
pub(super) fn write(directory: &Path, rows: &[SavedWorker]) -> std::io::Result<()> {
    let text = serde_json::to_vec_pretty(&Document { workers: rows })?;
    std::fs::create_dir_all(directory)?;
    let new = directory.join(NEW_FILE);
    // An address may hold secrets.
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    file.write_all(&text)?;
    file.sync_all()?;
    std::fs::rename(&new, directory.join(FILE))?;
    std::fs::File::open(directory)?.sync_all()
}
