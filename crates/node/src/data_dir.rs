//! The lock on a node's `data_dir`: one process at a time.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::NodeError;

const FILE: &str = "lock";

/// How long a start waits for the lock: the kernel may still be ending a process that was killed.
const GRACE: Duration = Duration::from_secs(3);
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// The lock; the kernel releases it when the process ends, however it ends.
#[derive(Debug)]
pub(crate) struct DataDirLock {
    _file: Option<File>,
}

/// Creates the directory if it does not exist, and locks it.
pub(crate) async fn lock(directory: &Path) -> Result<DataDirLock, NodeError> {
    lock_within(directory, GRACE).await
}

async fn lock_within(directory: &Path, grace: Duration) -> Result<DataDirLock, NodeError> {
    let unusable = |error: io::Error| {
        NodeError::failed(format!("cannot use data_dir {}: {error}", directory.display()))
    };
    std::fs::create_dir_all(directory).map_err(unusable)?;
    let path = directory.join(FILE);
    let mut options = OpenOptions::new();
    let mut file = options
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .map_err(unusable)?;
    let until = Instant::now() + grace;
    loop {
        match file.try_lock() {
            Ok(()) => break,
            Err(TryLockError::WouldBlock) if Instant::now() < until => {
                tokio::time::sleep(RETRY_INTERVAL).await;
            }
            Err(TryLockError::WouldBlock) => return Err(in_use(directory, &path)),
            Err(TryLockError::Error(error)) => {
                tracing::warn!(
                    path = %path.display(),
                    "cannot lock data_dir, so a second process that uses it would not be noticed: {error}"
                );
                return Ok(DataDirLock { _file: None });
            }
        }
    }
    // For the message that a second process prints.
    let written = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
    written.map_err(unusable)?;
    Ok(DataDirLock { _file: Some(file) })
}

fn in_use(directory: &Path, path: &Path) -> NodeError {
    let pid = std::fs::read_to_string(path).ok().and_then(|text| text.trim().parse::<u32>().ok());
    let holder = match pid {
        Some(pid) => format!("another process, with the process id {pid},"),
        None => "another process".to_owned(),
    };
    NodeError::failed(format!(
        "{holder} uses data_dir {}: stop it, or give this node a data_dir of its own",
        directory.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn second_process_is_refused_with_the_id_of_the_first() {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("new/data");
        let first = lock(&directory).await.unwrap();
        let refused = lock_within(&directory, Duration::ZERO).await.unwrap_err().to_string();
        let expected = format!("with the process id {}, uses data_dir ", std::process::id());
        assert!(refused.contains(&expected), "{refused}");
        std::fs::write(directory.join(FILE), "").unwrap();
        let refused = lock_within(&directory, Duration::ZERO).await.unwrap_err().to_string();
        assert!(refused.starts_with("another process uses data_dir "), "{refused}");
        // One that is about to end is waited for.
        let (second, ()) = tokio::join!(lock_within(&directory, Duration::from_secs(20)), async {
            tokio::task::yield_now().await;
            drop(first);
        });
        second.unwrap();
    }
}
