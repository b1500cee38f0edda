//! The writer thread: it takes all pending commits and makes them durable in one transaction.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hypha_engine::Record;
use hypha_machine::{CommitCallback, RowChange, Rows};
use hypha_model::{Name, Time};
use rusqlite::Connection;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};

use crate::error::StoreError;
use crate::gate::CommitGate;
use crate::log::Log;
use crate::machine_rows::{self, RowChanges};
use crate::read::Readers;
use crate::recover::{self, Recovered};
use crate::write::{self, Forgotten};
use crate::{Options, schema};

/// Records in one transaction; the last commit may exceed it. They take some tens of milliseconds to write, much longer
/// than the wait for the disk. A higher limit would only make the first of them wait longer.
const MAX_GROUP_RECORDS: usize = 8_192;

/// The caches are released after this time without a request: longer than a pause between bursts, and short enough that
/// the memory of a long queue is gone when its last task is.
const IDLE_TIMEOUT: Duration = Duration::from_secs(2);

/// Requests to the writer thread.
pub(crate) enum WriterRequest {
    Commit(Commit),
    Forget {
        before: Time,
        after: Option<i64>,
        done: oneshot::Sender<Result<Forgotten, StoreError>>,
    },
    Recover {
        gate: CommitGate,
        done: oneshot::Sender<Result<Recovered, StoreError>>,
    },
    RecoverRows {
        machine: Name,
        gate: CommitGate,
        done: oneshot::Sender<Result<Rows, StoreError>>,
    },
}

/// Records that are committed together, and the callback that waits for them.
pub(crate) struct Commit {
    pub(crate) records: Records,
    pub(crate) gate: CommitGate,
    pub(crate) done: CommitCallback<StoreError>,
}

/// The records of a commit.
pub(crate) enum Records {
    Scheduler(Vec<Record>),
    Rows { machine: Name, changes: Vec<RowChange> },
}

impl Records {
    fn len(&self) -> usize {
        match self {
            Records::Scheduler(records) => records.len(),
            Records::Rows { changes, .. } => changes.len(),
        }
    }
}

/// Sends a commit to the writer thread, or refuses it.
pub(crate) fn submit(requests: Option<&mpsc::Sender<WriterRequest>>, commit: Commit) {
    let (commit, error) = match requests {
        None => (commit, StoreError::Closed),
        Some(requests) => match requests.try_send(WriterRequest::Commit(commit)) {
            Err(TrySendError::Full(WriterRequest::Commit(commit))) => (commit, StoreError::Busy),
            Err(TrySendError::Closed(WriterRequest::Commit(commit))) => {
                (commit, StoreError::Closed)
            }
            _ => return,
        },
    };
    // Later commits may depend on it.
    commit.gate.close(&error);
    (commit.done)(Err(error));
}

/// See the module documentation.
pub(crate) struct Writer {
    pub(crate) path: PathBuf,
    pub(crate) options: Options,
    pub(crate) connection: Connection,
    pub(crate) log: Log,
    pub(crate) readers: Arc<Readers>,
    /// Only for its timer, while the thread waits for requests.
    pub(crate) runtime: Runtime,
    /// Released when the thread ends, after the last transaction.
    pub(crate) lock: File,
}

impl Writer {
    /// Opens the database and reads the state that a scheduler starts from. Called on the writer thread: memory that
    /// another thread allocates for SQLite would not be used again.
    pub(crate) fn open(
        path: PathBuf,
        options: Options,
        readers: Arc<Readers>,
        lock: File,
    ) -> Result<(Writer, Recovered), StoreError> {
        let connection = schema::writer(&path, &options)?;
        let recovered = recover::read(&connection)?;
        let log = schema::log(&path);
        let runtime = Builder::new_current_thread()
            .enable_time()
            .build()
            .map_err(|cause| StoreError::row("the writer's timer", cause))?;
        Ok((Writer { path, options, connection, log, readers, runtime, lock }, recovered))
    }

    /// Runs until all senders are dropped and all requests are done.
    pub(crate) fn run(mut self, mut requests: mpsc::Receiver<WriterRequest>) {
        while let Some(request) = self.next_request(&mut requests) {
            let WriterRequest::Commit(first) = request else {
                self.work(request);
                continue;
            };
            let mut size = first.records.len();
            let mut group = vec![first];
            let mut next = None;
            while size < MAX_GROUP_RECORDS
                && let Ok(request) = requests.try_recv()
            {
                match request {
                    WriterRequest::Commit(commit) => {
                        size += commit.records.len();
                        group.push(commit);
                    }
                    other => {
                        next = Some(other);
                        break;
                    }
                }
            }
            self.commit(group);
            next.into_iter().for_each(|request| self.work(request));
        }
        drop(self.connection);
        drop(self.lock);
    }

    /// Waits for a request, and releases the caches if none comes for a while.
    fn next_request(&self, requests: &mut mpsc::Receiver<WriterRequest>) -> Option<WriterRequest> {
        if let Ok(request) = requests.try_recv() {
            return Some(request);
        }
        let next = async { tokio::time::timeout(IDLE_TIMEOUT, requests.recv()).await };
        if let Ok(request) = self.runtime.block_on(next) {
            return request;
        }
        self.release_caches();
        requests.blocking_recv()
    }

    fn release_caches(&self) {
        // Without it, the store only keeps the memory.
        if let Err(error) = self.connection.execute_batch("PRAGMA shrink_memory") {
            tracing::debug!(%error, "the cache of the database was not released");
        }
        self.readers.close_idle();
    }

    fn work(&mut self, request: WriterRequest) {
        // A requester that no longer waits needs no reply.
        match request {
            WriterRequest::Commit(commit) => self.commit(vec![commit]),
            WriterRequest::Forget { before, after, done } => {
                let _ = done.send(self.forget(before, after));
            }
            WriterRequest::Recover { gate, done } => {
                let _ = done.send(self.recover(&gate, recover::read));
            }
            WriterRequest::RecoverRows { machine, gate, done } => {
                let rows = |connection: &Connection| machine_rows::read(connection, &machine);
                let _ = done.send(self.recover(&gate, rows));
            }
        }
    }

    fn commit(&mut self, group: Vec<Commit>) {
        let (mut records, mut waiting) = (Vec::new(), Vec::new());
        for commit in group {
            let refused = commit.gate.failure();
            if refused.is_none() {
                records.push(commit.records);
            }
            waiting.push((commit.gate, refused, commit.done));
        }
        let result = match records.is_empty() {
            true => Ok(()),
            false => transaction(&mut self.connection, |connection| write(connection, records)),
        };
        if let Err(error) = &result {
            tracing::error!(%error, "a transaction failed; commits are refused until recovery");
            waiting.iter().for_each(|(gate, ..)| gate.close(error));
        }
        for (_, refused, done) in waiting {
            match refused {
                Some(cause) => done(Err(StoreError::Stopped(Arc::new(cause)))),
                None => done(result.clone()),
            }
        }
        if result.is_ok() {
            self.log.keep_ahead();
        }
    }

    /// Runs even if commits are refused: it may be what makes room on a full disk.
    fn forget(&mut self, before: Time, after: Option<i64>) -> Result<Forgotten, StoreError> {
        transaction(&mut self.connection, |connection| write::forget(connection, before, after))
    }

    fn recover<T>(
        &mut self,
        gate: &CommitGate,
        read: impl FnOnce(&Connection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        // After a failed write only the contents of the disk count, not the cache of a connection.
        self.connection = schema::writer(&self.path, &self.options)?;
        self.log = schema::log(&self.path);
        transaction(&mut self.connection, write::reserve_probe)?;
        transaction(&mut self.connection, write::release_probe)?;
        let recovered = read(&self.connection)?;
        gate.open();
        Ok(recovered)
    }
}

/// Writes commits in order. Tasks and rows are in different tables, so each kind may be written in one go.
fn write(connection: &Connection, commits: Vec<Records>) -> Result<(), StoreError> {
    let (mut records, mut rows) = (Vec::with_capacity(commits.len()), RowChanges::default());
    for commit in commits {
        match commit {
            Records::Scheduler(commit) => records.push(commit),
            Records::Rows { machine, changes } => rows.add(&machine, changes),
        }
    }
    write::apply(connection, records.into_iter().flatten())?;
    rows.write(connection)
}

/// Runs `work` in a transaction.
fn transaction<T>(
    connection: &mut Connection,
    work: impl FnOnce(&Connection) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    // A cached statement is compiled once, unlike the one of a `rusqlite` transaction.
    connection.prepare_cached("BEGIN IMMEDIATE")?.execute(())?;
    let done = work(connection).and_then(|done| {
        connection.prepare_cached("COMMIT")?.execute(())?;
        Ok(done)
    });
    if done.is_err() && !connection.is_autocommit() {
        // An error of the rollback adds nothing to the first one: nothing is committed either way.
        let _ = connection.execute_batch("ROLLBACK");
    }
    done
}
