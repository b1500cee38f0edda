//! Reads the state that a scheduler restarts from.

use std::sync::Arc;

use hypha_engine::Image;
use hypha_model::Worker;
use hypha_placement::Health;
use rusqlite::Connection;

use crate::error::StoreError;
use crate::intern::Interner;
use crate::machine_rows;
use crate::rows::{TASK_COLUMNS, decode, ended_key, task_with, time, worker_id};
use crate::write::{EPOCH, MODE, PREDICTOR, STRATEGY, jobs_machine, last_id, meta};

/// The state of a store after it was opened or recovered.
#[derive(Debug)]
pub struct Recovered {
    /// All open tasks, the workers, the strategy, the mode and the predictor's snapshot. Of ended tasks, only those
    /// with an idempotency key, with only the key, the tenant, the state and the end time: enough to answer a repeated
    /// submit. Everything else is queried from the store.
    pub image: Image,
}

/// As many idempotency keys of ended tasks as a scheduler keeps.
const MAX_KEYS: i64 = 1_000_000;

/// Reads the state.
pub(crate) fn read(connection: &Connection) -> Result<Recovered, StoreError> {
    let mut image = Image {
        epoch: meta(connection, EPOCH)?.unwrap_or_default(),
        strategy: meta(connection, STRATEGY)?,
        mode: meta(connection, MODE)?,
        ..Image::default()
    };
    image.predictor = meta(connection, PREDICTOR).unwrap_or_else(|error| {
        // The predictor can learn again. Tasks cannot be replaced, so errors in their rows are returned.
        tracing::warn!(%error, "the predictor's snapshot cannot be read; dropped");
        None
    });

    image.last_id = last_id(connection)?;
    image.jobs = machine_rows::read(connection, &jobs_machine())?;

    let mut statement = connection.prepare("SELECT value FROM workers")?;
    let mut rows = statement.query(())?;
    while let Some(row) = rows.next()? {
        let value: Vec<u8> = row.get(0)?;
        let (worker, health): (Worker, Health) = decode("a worker", &value)?;
        image.workers.insert(worker.id, (Arc::new(worker), health));
    }

    let mut statement = connection.prepare("SELECT id, at FROM removed")?;
    let mut rows = statement.query(())?;
    while let Some(row) = rows.next()? {
        image.removed.insert(worker_id(row.get(0)?), time(row.get(1)?));
    }

    // From the small table to the large one: CROSS JOIN keeps SQLite from swapping them.
    let sql = format!(
        "SELECT {TASK_COLUMNS} FROM open o CROSS JOIN tasks t ON t.place = o.place \
         LEFT JOIN ends e ON FALSE ORDER BY o.place"
    );
    let mut statement = connection.prepare(&sql)?;
    let mut rows = statement.query(())?;
    let (mut names, mut tasks) = (Interner::default(), Vec::new());
    while let Some(row) = rows.next()? {
        let task = task_with(row, |spec| names.intern(spec))?;
        tasks.push((task.accepted.id, task));
    }

    let sql = "SELECT k.owner, k.task, e.state, e.finished FROM keys k \
               CROSS JOIN ends e ON e.place = k.place ORDER BY k.seq DESC LIMIT ?1";
    let mut statement = connection.prepare(sql)?;
    let mut rows = statement.query([MAX_KEYS])?;
    while let Some(row) = rows.next()? {
        let task = ended_key(row, |tenant| names.ended_spec(tenant))?;
        tasks.push((task.accepted.id, task));
    }
    drop(rows);
    // All at once: inserted one by one in order, they would leave every node of the tree half empty.
    image.tasks = tasks.into_iter().collect();
    // The pages in the cache will not be read again soon.
    connection.execute_batch("PRAGMA shrink_memory")?;
    Ok(Recovered { image })
}
