//! Makes a scheduler's state durable: rows in SQLite, many changes in one transaction.
//!
//! [`Store`] is the [`SchedulerStore`] of one file. It also stores the records of other machines, as rows by key:
//! [`Store::machine`].
//!
//! One thread writes. It takes all pending commits, makes them durable in one transaction with one wait for the disk,
//! and then acknowledges each. Queries run on other connections and never wait for it.
//!
//! **Acknowledged commits are on the disk, and no commit is acknowledged that may depend on one that is not.**
//! After a failed transaction, every commit of the machines that took part in it fails until the machine restarts from
//! the state on the disk: [`Store::recover`].

mod error;
mod fold;
mod gate;
mod intern;
mod list;
mod log;
mod machine;
mod machine_rows;
mod read;
mod recover;
mod row_keys;
mod rows;
mod schema;
mod tasks;
mod write;
mod writer;

use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use hypha_engine::record::StoredTask;
use hypha_engine::{Image, Record, SchedulerStore};
use hypha_machine::{BoxFuture, CommitCallback, Journal, Recover, Rows};
use hypha_model::{Name, TaskId, Time};
use tokio::sync::{mpsc, oneshot};

pub use error::StoreError;
pub use hypha_engine::store::{Filter, MAX_PAGE, Page};
pub use machine::MachineStore;
pub use recover::Recovered;

use gate::CommitGate;
use read::Readers;
use writer::{Commit, Records, Writer, WriterRequest, submit};

/// Pending commits in the writer's queue. A driver has few in flight, each of many records.
const MAX_WAITING: usize = 1_024;

/// Options of a store.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// The maximum size of the database without its log, at least some megabytes; `None` if only the disk limits it.
    pub max_bytes: Option<u64>,
}

/// See the crate documentation. Dropping it waits until all requests are done.
#[derive(Debug)]
pub struct Store {
    /// `None` only during the drop.
    requests: Option<mpsc::Sender<WriterRequest>>,
    readers: Arc<Readers>,
    gate: CommitGate,
    writer: Option<JoinHandle<()>>,
}

impl Store {
    /// Opens the store at `path`, or creates it, and reads the state that a scheduler starts from. Takes some
    /// seconds for a million open tasks. Refuses a file that another scheduler uses.
    pub fn open(path: &Path) -> Result<(Store, Recovered), StoreError> {
        Store::open_with(path, Options::default())
    }

    /// The same with options.
    pub fn open_with(path: &Path, options: Options) -> Result<(Store, Recovered), StoreError> {
        let lock = schema::lock(path)?;
        let path = path.to_owned();
        let readers = Readers::new(path.clone());
        let (requests, received) = mpsc::channel(MAX_WAITING);
        let (opened, is_open) = std::sync::mpsc::sync_channel(1);
        let named = std::thread::Builder::new().name("store".to_owned());
        let shared = Arc::clone(&readers);
        let writer = named
            .spawn(move || match Writer::open(path, options, shared, lock) {
                // If `open_with` no longer waits, the channel of requests is closed, too.
                Ok((writer, recovered)) => {
                    let _ = opened.send(Ok(recovered));
                    writer.run(received);
                }
                Err(error) => {
                    let _ = opened.send(Err(error));
                }
            })
            .map_err(|cause| StoreError::row("the writer's thread", cause))?;
        // The thread ends without a message only if it panics.
        let recovered = is_open.recv().map_err(|_| StoreError::Closed)??;
        let gate = CommitGate::default();
        Ok((Store { requests: Some(requests), readers, gate, writer: Some(writer) }, recovered))
    }

    /// The journal of the machine with this name, and its rows. The name is stored in the file, so it must never
    /// change. Only one machine may use it at a time.
    pub async fn machine(&self, name: Name) -> Result<(MachineStore, Rows), StoreError> {
        let requests = self.requests.as_ref().ok_or(StoreError::Closed)?.downgrade();
        let machine = name.clone();
        let rows =
            self.readers.query(move |connection| machine_rows::read(connection, &name)).await?;
        Ok((MachineStore { machine, requests, gate: CommitGate::default() }, rows))
    }

    /// Whether commits can succeed, and if not, why.
    pub fn healthy(&self) -> Result<(), StoreError> {
        self.gate.failure().map_or(Ok(()), Err)
    }

    /// After a failure: checks whether the disk has room again, and reads the durable state. If both succeed,
    /// commits are accepted again. They must come from a scheduler that starts from the returned state: the previous
    /// one has seen changes that are lost.
    pub async fn recover(&self) -> Result<Recovered, StoreError> {
        let (done, recovered) = oneshot::channel();
        self.send_request(WriterRequest::Recover { gate: self.gate.clone(), done }).await?;
        recovered.await.map_err(|_| StoreError::Closed)?
    }

    /// A task, whether it has ended or not.
    pub async fn task(&self, id: TaskId) -> Result<Option<StoredTask>, StoreError> {
        self.readers.query(move |connection| read::by_id(connection, id)).await
    }

    /// The latest task of this tenant with this key.
    pub async fn by_idempotency_key(
        &self,
        tenant: Option<Name>,
        key: Arc<str>,
    ) -> Result<Option<StoredTask>, StoreError> {
        self.readers.query(move |connection| read::by_key(connection, tenant.as_ref(), &key)).await
    }

    /// Tasks that match `filter`, the latest first, at most `limit` and at most [`MAX_PAGE`] of them, starting after
    /// the task `behind`.
    pub async fn list(
        &self,
        filter: Filter,
        behind: Option<TaskId>,
        limit: usize,
    ) -> Result<Page, StoreError> {
        self.readers.query(move |connection| list::list(connection, &filter, behind, limit)).await
    }

    /// Deletes tasks that ended before `time`, with their results and keys, and returns how many. Uses small
    /// transactions, so that commits run in between.
    pub async fn forget_finished_before(&self, time: Time) -> Result<u64, StoreError> {
        let (mut tasks, mut after) = (0, None);
        loop {
            let (done, forgotten) = oneshot::channel();
            self.send_request(WriterRequest::Forget { before: time, after, done }).await?;
            let forgotten = forgotten.await.map_err(|_| StoreError::Closed)??;
            tasks += forgotten.tasks;
            after = forgotten.next;
            if after.is_none() {
                return Ok(tasks);
            }
        }
    }

    async fn send_request(&self, request: WriterRequest) -> Result<(), StoreError> {
        let requests = self.requests.as_ref().ok_or(StoreError::Closed)?;
        requests.send(request).await.map_err(|_| StoreError::Closed)
    }
}

impl Journal<Record> for Store {
    type Error = StoreError;

    /// `done` is called on the writer thread, and later commits wait until it returns. If too many commits are
    /// pending, it is called immediately, on the caller's thread.
    fn commit(&self, records: Vec<Record>, done: CommitCallback<StoreError>) {
        let records = Records::Scheduler(records);
        submit(self.requests.as_ref(), Commit { records, gate: self.gate.clone(), done });
    }
}

impl Recover<Record> for Store {
    type Image = Image;

    fn healthy(&self) -> Result<(), StoreError> {
        self.healthy()
    }

    fn recover(&self) -> BoxFuture<'_, Result<Image, StoreError>> {
        Box::pin(async { Ok(self.recover().await?.image) })
    }
}

impl SchedulerStore for Store {
    fn task(&self, id: TaskId) -> BoxFuture<'_, Result<Option<StoredTask>, StoreError>> {
        Box::pin(self.task(id))
    }

    fn by_idempotency_key(
        &self,
        tenant: Option<Name>,
        key: Arc<str>,
    ) -> BoxFuture<'_, Result<Option<StoredTask>, StoreError>> {
        Box::pin(self.by_idempotency_key(tenant, key))
    }

    fn list(
        &self,
        filter: Filter,
        behind: Option<TaskId>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Page, StoreError>> {
        Box::pin(self.list(filter, behind, limit))
    }

    fn forget_finished_before(&self, time: Time) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(self.forget_finished_before(time))
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.requests = None;
        let Some(writer) = self.writer.take() else { return };
        // A commit's callback may hold the last reference to the store: the writer thread must not join itself.
        if writer.thread().id() != std::thread::current().id() {
            // After a panic there is nothing left to wait for.
            let _ = writer.join();
        }
    }
}
