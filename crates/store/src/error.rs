//! Errors of a store.

use std::path::PathBuf;
use std::sync::Arc;

use thiserror::Error;

/// Why a request to the store failed. Cheap to clone: one failed transaction fails many commits.
#[derive(Clone, Debug, Error)]
pub enum StoreError {
    /// Another process has the file open.
    #[error(
        "another scheduler is using `{}`; stop it, or give this one a data_dir of its own",
        .0.display()
    )]
    InUse(PathBuf),
    /// A later version wrote the file.
    #[error(
        "`{}` has schema version {found}, and this program knows versions up to {known}; run the \
         program that wrote it, or a later one",
        path.display()
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// The version in the file.
        found: i64,
        /// The latest version that this program knows.
        known: i64,
    },
    /// The file is not a database of a scheduler.
    #[error(
        "`{}` is not the database of a scheduler; move it away, or choose another data_dir",
        .0.display()
    )]
    Foreign(PathBuf),
    /// The disk, or the limit in [`crate::Options`], is full.
    #[error("there is no room for the scheduler's database ({0}); make room on its disk")]
    Full(Arc<rusqlite::Error>),
    /// The file cannot be created or locked.
    #[error("cannot open `{}`: {cause}; check data_dir and its permissions", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Why.
        cause: Arc<std::io::Error>,
    },
    /// SQLite failed.
    #[error("the scheduler's database failed: {0}; check its disk")]
    Database(Arc<rusqlite::Error>),
    /// A value cannot be converted to or from a row.
    #[error(
        "{what} in the scheduler's database cannot be converted: {cause}; restore the file from a \
         copy, or move it away to start empty"
    )]
    Row {
        /// The value.
        what: &'static str,
        /// Why.
        cause: String,
    },
    /// An earlier transaction failed, and this commit may depend on it.
    #[error("commits are refused since an earlier write failed: {0}")]
    Stopped(Arc<StoreError>),
    /// Commits arrive faster than the disk can write them.
    #[error(
        "too many commits are pending for the scheduler's database; check how busy its disk is"
    )]
    Busy,
    /// The writer thread has ended.
    #[error("the store is closed; restart the scheduler")]
    Closed,
}

impl StoreError {
    pub(crate) fn row(what: &'static str, cause: impl std::fmt::Display) -> StoreError {
        StoreError::Row { what, cause: cause.to_string() }
    }
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> StoreError {
        match error.sqlite_error_code() {
            Some(rusqlite::ErrorCode::DiskFull) => StoreError::Full(Arc::new(error)),
            _ => StoreError::Database(Arc::new(error)),
        }
    }
}
