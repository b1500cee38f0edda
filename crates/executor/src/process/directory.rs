//! The work directory of an attempt, removed after it.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use hypha_model::Payload;
use thiserror::Error;

use crate::bridge::MAX_SOCKET_PATH_BYTES;

/// The prefix of work directories, before a random part. Not named after the attempt: an attempt may return
/// while its last run is still being killed, and the path of a socket must be short.
const PREFIX: &str = "run-";
/// The prefix in earlier versions, whose directories are removed as well.
const OLD_PREFIX: &str = "job-";
/// Enough that no two directories of one worker collide.
const RANDOM_BYTES: usize = 8;
/// The socket of the bridge in it.
const BRIDGE: &str = "bridge";
/// The longest path of the directory of work directories, so that the sockets in them have valid names.
pub(super) const MAX_ROOT_BYTES: usize =
    MAX_SOCKET_PATH_BYTES - 1 - PREFIX.len() - 2 * RANDOM_BYTES - 1 - BRIDGE.len();
/// The file that is locked while an executor uses the directory.
const LOCK: &str = "lock";
/// For its owner alone.
const DIRECTORY_MODE: u32 = 0o700;
/// For its owner alone.
const FILE_MODE: u32 = 0o600;

/// Removed when it is dropped.
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    removed: bool,
}

/// Why a directory of work directories cannot be used.
#[derive(Debug, Error)]
pub(super) enum RootError {
    #[error("it is in use")]
    InUse,
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Creates the directory of work directories, locks it, and removes those that an earlier incarnation of this
/// worker left: only those with the prefix. The lock is released when the returned file is closed.
pub(super) fn open_root(root: &Path) -> Result<(PathBuf, File), RootError> {
    std::fs::DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(root)?;
    let root = root.canonicalize()?;
    let mut options = File::options();
    let lock = options.write(true).create(true).mode(FILE_MODE).open(root.join(LOCK))?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(RootError::InUse),
        Err(TryLockError::Error(error)) => return Err(error.into()),
    }
    for entry in std::fs::read_dir(&root)? {
        let entry = entry?;
        if entry.file_name().to_str().is_some_and(is_ours) && entry.file_type()?.is_dir() {
            remove(&entry.path());
        }
    }
    Ok((root, lock))
}

impl Directory {
    /// A new directory with the input in it.
    pub(super) async fn make(root: &Path, input: &Payload) -> io::Result<Directory> {
        let random = data_encoding::HEXLOWER.encode(&rand::random::<[u8; RANDOM_BYTES]>());
        let (path, input) = (root.join(format!("{PREFIX}{random}")), input.clone());
        let made = tokio::task::spawn_blocking(move || {
            std::fs::DirBuilder::new().mode(DIRECTORY_MODE).create(&path)?;
            let directory = Directory { path, removed: false };
            let mut file = std::fs::OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(FILE_MODE)
                .open(directory.input())?;
            io::Write::write_all(&mut file, input.bytes())?;
            Ok(directory)
        });
        made.await.map_err(io::Error::other)?
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The input of the attempt.
    pub(super) fn input(&self) -> PathBuf {
        self.path.join("input")
    }

    /// The socket of its bridge.
    pub(crate) fn bridge(&self) -> PathBuf {
        self.path.join(BRIDGE)
    }

    pub(super) async fn remove(mut self) {
        self.removed = true;
        let path = std::mem::take(&mut self.path);
        // A blocking task ends without its result only if the runtime ends.
        let _ = tokio::task::spawn_blocking(move || remove(&path)).await;
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if !self.removed {
            remove(&self.path);
        }
    }
}

fn is_ours(name: &str) -> bool {
    let random = name
        .strip_prefix(PREFIX)
        .or_else(|| name.strip_prefix(OLD_PREFIX))
        .and_then(|random| data_encoding::HEXLOWER.decode(random.as_bytes()).ok());
    random.is_some_and(|random| random.len() == RANDOM_BYTES)
}

fn remove(path: &Path) {
    if let Err(error) = std::fs::remove_dir_all(path) {
        tracing::warn!(path = %path.display(), %error, "a work directory could not be removed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_work_directories_are_swept() {
        let root = tempfile::tempdir().unwrap();
        let left_over =
            ["run-0123456789abcdef", "job-0123456789abcdef"].map(|it| root.path().join(it));
        left_over.iter().for_each(|it| std::fs::create_dir_all(it.join("deep")).unwrap());
        std::fs::create_dir(root.path().join("run-offers")).unwrap();
        std::fs::write(root.path().join("notes"), "mine").unwrap();
        let (_, lock) = open_root(root.path()).unwrap();
        assert!(!left_over.iter().any(|it| it.exists()));
        assert!(root.path().join("run-offers").exists() && root.path().join("notes").exists());
        assert!(matches!(open_root(root.path()), Err(RootError::InUse)));
        drop(lock);
        open_root(root.path()).unwrap();
    }
}
