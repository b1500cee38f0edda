//! The one thread that writes: it takes all that waits, and makes it durable in one transaction.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

use hypha_engine::Record;
use hypha_machine::{Done, RowChange, Rows};
use hypha_model::{Name, Time};
use rusqlite::{Connection, TransactionBehavior};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};

use crate::error::StoreError;
use crate::gate::Gate;
use crate::machine_rows::{self, RowChanges};
use crate::recover::{self, Recovered};
use crate::write::{self, Forgotten};
use crate::{Options, schema};

/// Records in one transaction, or a little more: some tens of milliseconds of writing, beside which the wait
/// for the disk is small. More would only make the first of them wait longer.
const MAX_GROUP_RECORDS: usize = 8_192;

/// What the thread is asked.
pub(crate) enum Job {
    Commit(Commit),
    Forget {
        before: Time,
        after: Option<i64>,
        done: oneshot::Sender<Result<Forgotten, StoreError>>,
    },
    Recover {
        gate: Gate,
        done: oneshot::Sender<Result<Recovered, StoreError>>,
    },
    RecoverRows {
        machine: Name,
        gate: Gate,
        done: oneshot::Sender<Result<Rows, StoreError>>,
    },
}

/// Records that belong together, and who waits for them.
pub(crate) struct Commit {
    pub(crate) records: Records,
    pub(crate) gate: Gate,
    pub(crate) done: Done<StoreError>,
}

/// What a commit makes durable.
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

/// Hands a commit to the thread, or refuses it.
pub(crate) fn hand_over(jobs: Option<&mpsc::Sender<Job>>, commit: Commit) {
    let (commit, error) = match jobs {
        None => (commit, StoreError::Closed),
        Some(jobs) => match jobs.try_send(Job::Commit(commit)) {
            Err(TrySendError::Full(Job::Commit(commit))) => (commit, StoreError::Busy),
            Err(TrySendError::Closed(Job::Commit(commit))) => (commit, StoreError::Closed),
            _ => return,
        },
    };
    // What comes later may depend on it.
    commit.gate.close(&error);
    (commit.done)(Err(error));
}

/// See the head of this file.
pub(crate) struct Writer {
    pub(crate) path: PathBuf,
    pub(crate) options: Options,
    pub(crate) connection: Connection,
    /// Let go when the thread ends, after the last transaction.
    pub(crate) lock: File,
}

impl Writer {
    /// Works until nobody can ask any more, and everything that was asked is done.
    pub(crate) fn run(mut self, mut jobs: mpsc::Receiver<Job>) {
        while let Some(job) = jobs.blocking_recv() {
            let Job::Commit(first) = job else {
                self.work(job);
                continue;
            };
            let mut size = first.records.len();
            let mut group = vec![first];
            let mut next = None;
            while size < MAX_GROUP_RECORDS
                && let Ok(job) = jobs.try_recv()
            {
                match job {
                    Job::Commit(commit) => {
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
            next.into_iter().for_each(|job| self.work(job));
        }
        drop(self.connection);
        drop(self.lock);
    }

    fn work(&mut self, job: Job) {
        // Whoever no longer waits for an answer needs none.
        match job {
            Job::Commit(commit) => self.commit(vec![commit]),
            Job::Forget { before, after, done } => {
                let _ = done.send(self.forget(before, after));
            }
            Job::Recover { gate, done } => {
                let _ = done.send(self.recover(&gate, recover::read));
            }
            Job::RecoverRows { machine, gate, done } => {
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
            tracing::error!(%error, "nothing is stored any more");
            waiting.iter().for_each(|(gate, ..)| gate.close(error));
        }
        for (_, refused, done) in waiting {
            match refused {
                Some(cause) => done(Err(StoreError::Stopped(Arc::new(cause)))),
                None => done(result.clone()),
            }
        }
    }

    /// Also while nothing else is written: it may be what makes room.
    fn forget(&mut self, before: Time, after: Option<i64>) -> Result<Forgotten, StoreError> {
        transaction(&mut self.connection, |connection| write::forget(connection, before, after))
    }

    fn recover<T>(
        &mut self,
        gate: &Gate,
        read: impl FnOnce(&Connection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        // After a failed write only what is on the disk counts, not what a connection remembers.
        self.connection = schema::writer(&self.path, &self.options)?;
        transaction(&mut self.connection, write::probe)?;
        transaction(&mut self.connection, write::unprobe)?;
        let recovered = read(&self.connection)?;
        gate.open();
        Ok(recovered)
    }
}

/// Writes commits in order. Tasks and rows are in different tables, so each kind may be written at once.
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

/// What `work` does, wholly or not at all. Dropped before its commit, a transaction is rolled back.
fn transaction<T>(
    connection: &mut Connection,
    work: impl FnOnce(&Connection) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let done = work(&transaction)?;
    transaction.commit()?;
    Ok(done)
}
