//! The results of a batch: a file with one per line, in the order of their arrival.

use std::collections::BTreeMap;
use std::fs::{File, Metadata, OpenOptions, TryLockError};
use std::io::{BufRead, BufReader, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use hypha_client::{Json, TaskState, TaskStatus};
use serde::{Deserialize, Serialize};

use super::reasons::Reasons;
use crate::usage::Failure;

/// Larger than any result that is kept with its task.
const MAX_LINE_BYTES: u64 = 256 << 20;

/// The file, and its contents.
pub(super) struct Results {
    path: PathBuf,
    file: File,
    /// Whether this run created it.
    made: bool,
    done: BTreeMap<u64, FinishedLine>,
    /// Why tasks of earlier runs did not complete.
    reasons: Reasons,
}

/// A line that has its result.
pub(super) struct FinishedLine {
    pub(super) key: String,
    pub(super) status: TaskState,
}

/// The part of a result that is read back.
#[derive(Deserialize)]
struct Row {
    line: u64,
    key: String,
    status: TaskState,
    #[serde(default)]
    error: Option<String>,
}

/// What is written: the task, and its line.
#[derive(Serialize)]
struct NewRow<'a> {
    line: u64,
    key: &'a str,
    #[serde(flatten)]
    task: &'a TaskStatus,
}

impl Results {
    /// The results at `path`, which may be none yet. A torn line that a killed run left is cut off.
    pub(super) fn open(path: &Path) -> Result<Results, Failure> {
        let failed = |error| Failure::usage(format!("{}: {error}", path.display()));
        let busy = || {
            let problem = "another run writes its results there; wait for it, or use another";
            Failure::usage(format!("{}: {problem}", path.display()))
        };
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        let (file, made) = match options.clone().create_new(true).open(path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                (options.open(path).map_err(failed)?, false)
            }
            opened => (opened.map_err(failed)?, true),
        };
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(busy()),
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        // Another run that had no results has removed it meanwhile: results written here would be lost.
        let place = |metadata: Metadata| (metadata.dev(), metadata.ino());
        if std::fs::metadata(path).ok().map(place) != file.metadata().ok().map(place) {
            return Err(busy());
        }
        let mut results = Results {
            path: path.to_owned(),
            file,
            made,
            done: BTreeMap::new(),
            reasons: Reasons::default(),
        };
        let whole = results.read()?;
        results.file.set_len(whole).map_err(failed)?;
        results.file.seek(SeekFrom::Start(whole)).map_err(failed)?;
        Ok(results)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The result of a line, if it has one.
    pub(super) fn of(&self, line: u64) -> Option<&FinishedLine> {
        self.done.get(&line)
    }

    /// Why tasks of earlier runs did not complete.
    pub(super) fn reasons(&self) -> &Reasons {
        &self.reasons
    }

    /// How many lines have their result.
    pub(super) fn lines(&self) -> u64 {
        self.done.len() as u64
    }

    /// Adds the outcome of a line.
    pub(super) fn add(
        &mut self,
        line: u64,
        key: &str,
        mut task: TaskStatus,
    ) -> Result<(), Failure> {
        // The input is in the other file.
        task.input = None;
        // On one line, even if it arrived on several.
        let row =
            Json::of(&NewRow { line, key, task: &task }).to_string().replace(['\n', '\r'], " ");
        // In one write, so that a killed run leaves at most one torn line.
        let written = self.file.write_all(format!("{row}\n").as_bytes());
        written.map_err(|error| self.failed(&error))?;
        self.done.insert(line, FinishedLine { key: key.to_owned(), status: task.status });
        Ok(())
    }

    /// Makes the last writes durable.
    pub(super) fn finish(self) -> Result<(), Failure> {
        self.file.sync_all().map_err(|error| self.failed(&error))
    }

    /// Reads the existing results, and returns where the last complete line ends.
    fn read(&mut self) -> Result<u64, Failure> {
        let mut reader = BufReader::new(&self.file);
        let (mut whole, mut number) = (0, 0);
        loop {
            let mut bytes = Vec::new();
            let read = (&mut reader).take(MAX_LINE_BYTES).read_until(b'\n', &mut bytes);
            number += 1;
            let at = |problem: &dyn std::fmt::Display| {
                Failure::usage(format!("{}:{number}: {problem}", self.path.display()))
            };
            match read {
                Ok(0) => return Ok(whole),
                Ok(_) if !bytes.ends_with(b"\n") => {
                    // Only a torn line of our own is cut off: foreign files are never truncated.
                    let torn = number > 1 || bytes.starts_with(b"{");
                    let ours = torn && (bytes.len() as u64) < MAX_LINE_BYTES;
                    return if ours { Ok(whole) } else { Err(at(&NOT_A_RESULT)) };
                }
                Ok(length) => whole += length as u64,
                Err(error) => return Err(at(&error)),
            }
            let row: Row = serde_json::from_slice(&bytes).map_err(|_| at(&NOT_A_RESULT))?;
            let Row { line, key, status, error } = row;
            if status != TaskState::Completed {
                self.reasons.add(error.as_deref());
            }
            self.done.insert(line, FinishedLine { key, status });
        }
    }

    fn failed(&self, error: &dyn std::fmt::Display) -> Failure {
        Failure::work(format!(
            "{}: {error}; make room and run the same command again",
            self.path.display()
        ))
    }
}

/// A file that was created for results and got none is removed.
impl Drop for Results {
    fn drop(&mut self) {
        if self.made && self.done.is_empty() {
            // A leftover file is harmless.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

const NOT_A_RESULT: &str = "is not a result of a batch; use another --out";
