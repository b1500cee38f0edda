//! The one thread that writes: it takes all that waits, and makes it durable in one transaction.

use std::fs::File;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use hypha_engine::Record;
use hypha_model::Time;
use rusqlite::{Connection, TransactionBehavior};
use tokio::sync::{mpsc, oneshot};

use crate::error::StoreError;
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
    Recover(oneshot::Sender<Result<Recovered, StoreError>>),
}

/// Records that belong together, and who waits for them.
pub(crate) struct Commit {
    pub(crate) records: Vec<Record>,
    pub(crate) done: Box<dyn FnOnce(Result<(), StoreError>) + Send>,
}

/// Why nothing is written at present; shared with whoever asks.
pub(crate) type Failure = Arc<Mutex<Option<StoreError>>>;

/// See the head of this file.
pub(crate) struct Writer {
    pub(crate) path: PathBuf,
    pub(crate) options: Options,
    pub(crate) connection: Connection,
    pub(crate) failure: Failure,
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
            Job::Recover(done) => {
                let _ = done.send(self.recover());
            }
        }
    }

    fn commit(&mut self, group: Vec<Commit>) {
        let failure = self.failure();
        let (records, waiting): (Vec<_>, Vec<_>) =
            group.into_iter().map(|commit| (commit.records, commit.done)).unzip();
        let answer = match failure {
            Some(cause) => Err(StoreError::Stopped(Arc::new(cause))),
            None => {
                let result = transaction(&mut self.connection, |connection| {
                    write::apply(connection, records.into_iter().flatten())
                });
                if let Err(error) = &result {
                    tracing::error!(%error, "nothing is stored any more");
                    self.set_failure(Some(error.clone()));
                }
                result
            }
        };
        for done in waiting {
            done(answer.clone());
        }
    }

    /// Also while nothing else is written: it may be what makes room.
    fn forget(&mut self, before: Time, after: Option<i64>) -> Result<Forgotten, StoreError> {
        transaction(&mut self.connection, |connection| write::forget(connection, before, after))
    }

    fn recover(&mut self) -> Result<Recovered, StoreError> {
        // After a failed write only what is on the disk counts, not what a connection remembers.
        self.connection = schema::writer(&self.path, &self.options)?;
        transaction(&mut self.connection, write::probe)?;
        transaction(&mut self.connection, write::unprobe)?;
        let recovered = recover::read(&self.connection)?;
        self.set_failure(None);
        Ok(recovered)
    }

    fn failure(&self) -> Option<StoreError> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_failure(&self, failure: Option<StoreError>) {
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = failure;
    }
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
