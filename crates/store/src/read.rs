//! Queries, on connections of their own so that they do not delay the writer; lists are in `list.rs`.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use hypha_engine::record::StoredTask;
use hypha_model::{Name, TaskId};
use rusqlite::{Connection, params};
use tokio::sync::Semaphore;

use crate::error::StoreError;
use crate::rows::{TASK_COLUMNS, owner, task, task_id};
use crate::{row_keys, schema};

/// Concurrent queries. Each takes a thread and a core; further ones wait.
const READERS: usize = 2;

/// Connections for queries.
#[derive(Debug)]
pub(crate) struct Readers {
    path: PathBuf,
    permits: Semaphore,
    idle: Mutex<Vec<Connection>>,
}

impl Readers {
    pub(crate) fn new(path: PathBuf) -> Arc<Readers> {
        Arc::new(Readers {
            path,
            permits: Semaphore::new(READERS),
            idle: Mutex::new(Vec::with_capacity(READERS)),
        })
    }

    /// Runs a query on a thread that may block on the disk.
    pub(crate) async fn query<T: Send + 'static>(
        self: &Arc<Self>,
        query: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let _permit = self.permits.acquire().await.map_err(|_| StoreError::Closed)?;
        let readers = Arc::clone(self);
        let queried = tokio::task::spawn_blocking(move || {
            let idle = readers.idle().pop();
            let connection = match idle {
                Some(connection) => connection,
                None => schema::reader(&readers.path)?,
            };
            let result = query(&connection);
            readers.idle().push(connection);
            result
        });
        queried.await.map_err(|_| StoreError::Closed)?
    }

    /// Closes the connections that no query uses; the next query opens one.
    pub(crate) fn close_idle(&self) {
        self.idle().clear();
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) fn by_id(connection: &Connection, id: TaskId) -> Result<Option<StoredTask>, StoreError> {
    let sql = format!(
        "SELECT {TASK_COLUMNS} FROM tasks t LEFT JOIN open o ON o.place = t.place \
         LEFT JOIN ends e ON e.place = t.place WHERE t.place = ?1 AND t.id = ?2"
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let place = row_keys::find(connection, id)?;
    let mut rows = statement.query(params![place, id.uuid().as_bytes()])?;
    rows.next()?.map(task).transpose()
}

pub(crate) fn by_key(
    connection: &Connection,
    tenant: Option<&Name>,
    key: &str,
) -> Result<Option<StoredTask>, StoreError> {
    let mut statement = connection.prepare_cached("SELECT task FROM keys WHERE owner = ?1")?;
    let mut rows = statement.query([owner(tenant, key)])?;
    match rows.next()? {
        Some(row) => by_id(connection, task_id(row.get(0)?)),
        None => Ok(None),
    }
}
