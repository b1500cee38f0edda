//! Keeps the file of SQLite's log longer than its contents.
//!
//! A commit that extends its file waits for the data, and then again for the file system to make the new length
//! durable. A commit that overwrites zeros waits once. SQLite reads a log up to the first frame that does not belong to
//! it, and zeros are never a valid frame, so they do not change what is read after a crash. Once the log has been
//! copied into the database, SQLite overwrites it from the start of the file, so the file is extended only up to some
//! 32 MiB.

use std::fs::{File, OpenOptions, metadata};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// The file grows by its own length, within these bounds. Smaller extensions would make more commits wait, larger ones
/// would make one of them wait longer.
const MIN_EXTENSION_BYTES: u64 = 1 << 20;
const MAX_EXTENSION_BYTES: u64 = 4 << 20;

/// See the module documentation.
pub(crate) struct Log {
    path: PathBuf,
    /// The length that we gave the file. If it is longer, SQLite has written past it.
    length: u64,
    /// The file does not need to be longer than this.
    enough: u64,
}

impl Log {
    /// The log of this database, which SQLite overwrites from the start once it has `enough` bytes.
    pub(crate) fn of(database: &Path, enough: u64) -> Log {
        let mut path = database.as_os_str().to_owned();
        path.push("-wal");
        Log { path: PathBuf::from(path), length: 0, enough }
    }

    /// Extends the file if SQLite has reached its end. Only the writer thread may call it, after it has acknowledged
    /// its commits.
    pub(crate) fn keep_ahead(&mut self) {
        if self.length >= self.enough {
            return;
        }
        if let Err(error) = self.extend() {
            // Commits do not depend on it. On a full disk it would only fail again.
            tracing::debug!(%error, "the log is not extended any more");
            self.length = u64::MAX;
        }
    }

    fn extend(&mut self) -> io::Result<()> {
        let length = metadata(&self.path)?.len();
        if length <= self.length {
            return Ok(());
        }
        let file = OpenOptions::new().write(true).open(&self.path)?;
        let more = length.clamp(MIN_EXTENSION_BYTES, MAX_EXTENSION_BYTES);
        if let Err(error) = write_zeros(&file, length, more) {
            // The remaining space is for commits.
            file.set_len(length)?;
            return Err(error);
        }
        self.length = length + more;
        Ok(())
    }
}

fn write_zeros(file: &File, from: u64, bytes: u64) -> io::Result<()> {
    static ZEROS: [u8; 1 << 16] = [0; 1 << 16];
    let mut left = bytes;
    while left > 0 {
        let now = left.min(ZEROS.len() as u64);
        file.write_all_at(&ZEROS[..now as usize], from + bytes - left)?;
        left -= now;
    }
    file.sync_data()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Extends the log of a database, as SQLite would.
    fn grown(database: &Path, bytes: u64) {
        let path = Log::of(database, 0).path;
        let file = OpenOptions::new().create(true).append(true).open(path).unwrap();
        let length = file.metadata().unwrap().len();
        file.write_all_at(&vec![1; bytes as usize], length).unwrap();
    }

    #[test]
    fn file_is_extended_when_its_end_is_reached_and_only_up_to_its_limit() {
        let dir = tempfile::tempdir().unwrap();
        let database = dir.path().join("a.db");
        let mut log = Log::of(&database, 3 << 20);
        let path = log.path.clone();
        let length = || std::fs::metadata(&path).unwrap().len();
        grown(&database, 100);
        log.keep_ahead();
        assert_eq!(length(), 100 + (1 << 20));
        log.keep_ahead();
        assert_eq!(length(), 100 + (1 << 20), "its end was not reached");
        grown(&database, 10);
        log.keep_ahead();
        assert_eq!(length(), 2 * (110 + (1 << 20)));
        grown(&database, 1 << 20);
        log.keep_ahead();
        grown(&database, 1);
        let enough = length();
        log.keep_ahead();
        assert_eq!(length(), enough);
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(bytes.iter().filter(|byte| **byte == 1).count(), 111 + (1 << 20));
    }

    #[test]
    fn a_file_that_cannot_be_extended_is_not_changed() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = Log::of(&dir.path().join("missing.db"), 1 << 20);
        log.keep_ahead();
        assert!(!log.path.exists());
        grown(&dir.path().join("missing.db"), 100);
        log.keep_ahead();
        assert_eq!(std::fs::metadata(&log.path).unwrap().len(), 100, "extending it was retried");
    }
}
