//! What can go wrong with a store.

use std::path::PathBuf;
use std::sync::Arc;

use thiserror::Error;

/// Why the store did not do what it was asked. Cheap to clone: one failed transaction is the answer to
/// many commits.
#[derive(Clone, Debug, Error)]
pub enum StoreError {
    /// Somebody else has it open.
    #[error(
        "another scheduler is using `{}`; stop it, or give this one a data_dir of its own",
        .0.display()
    )]
    InUse(PathBuf),
    /// It was written by a later version.
    #[error(
        "`{}` has schema version {found}, and this program knows versions up to {known}; run the \
         program that wrote it, or a later one",
        path.display()
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// What it says.
        found: i64,
        /// What we know.
        known: i64,
    },
    /// It is a database, and not ours.
    #[error(
        "`{}` is not the database of a scheduler; move it away, or choose another data_dir",
        .0.display()
    )]
    Foreign(PathBuf),
    /// There is no room.
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
    /// Something cannot be written as, or read from, a row.
    #[error(
        "{what} in the scheduler's database cannot be converted: {cause}; restore the file from a \
         copy, or move it away to start empty"
    )]
    Row {
        /// What.
        what: &'static str,
        /// Why.
        cause: String,
    },
    /// An earlier transaction failed, and what was asked since may depend on it.
    #[error("commits are refused since an earlier write failed: {0}")]
    Stopped(Arc<StoreError>),
    /// More is to be stored than the disk takes.
    #[error(
        "too many commits are pending for the scheduler's database; check how busy its disk is"
    )]
    Busy,
    /// The writer has ended.
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
