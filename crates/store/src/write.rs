//! Writes groups of changes into the tables, within a transaction that the caller has begun.

use hypha_engine::record::{AcceptedTask, FinishedTask, Record};
use hypha_model::{TaskId, TaskState, Time};
use rusqlite::{Connection, OptionalExtension, params};
use serde::{Deserialize, Serialize};

use crate::error::StoreError;
use crate::fold::{Change, Group};
use crate::rows::{
    decode, encode, encode_failed, first_id, micros, owner, state, state_number, task_id,
};

/// How many tasks are stored, by how they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredCounts {
    /// Have not ended.
    pub open: u64,
    /// Ended with a result.
    pub completed: u64,
    /// Ended without one.
    pub failed: u64,
    /// Were cancelled.
    pub cancelled: u64,
    /// Passed their deadline.
    pub expired: u64,
}

pub(crate) const EPOCH: &str = "epoch";
pub(crate) const STRATEGY: &str = "strategy";
pub(crate) const MODE: &str = "mode";
pub(crate) const PREDICTOR: &str = "predictor";
const COUNTS: &str = "counts";
const ROOM: &str = "room";

/// Room that there must be before a scheduler begins anew: about a large group. With less it would find out in
/// the next moment that its new life ends as the last one did.
const PROBE_BYTES: i64 = 1 << 20;

/// Rows of `ends` that one transaction looks at for what is to be forgotten: about ten milliseconds, for
/// which commits wait.
const FORGET_ROWS: i64 = 1_000;

/// Applies the records in order.
pub(crate) fn apply(
    connection: &Connection,
    records: impl Iterator<Item = Record>,
) -> Result<(), StoreError> {
    let before = counts(connection)?;
    let mut counts = before;
    let mut group = Group::default();
    for record in records {
        if !group.takes(&record) {
            write(connection, std::mem::take(&mut group), &mut counts)?;
        }
        group.add(record);
    }
    write(connection, group, &mut counts)?;
    if counts != before {
        put(connection, COUNTS, &counts)?;
    }
    Ok(())
}

pub(crate) fn counts(connection: &Connection) -> Result<StoredCounts, StoreError> {
    Ok(meta(connection, COUNTS)?.unwrap_or_default())
}

/// What `meta` has under `name`.
pub(crate) fn meta<T: serde::de::DeserializeOwned>(
    connection: &Connection,
    name: &'static str,
) -> Result<Option<T>, StoreError> {
    let mut statement = connection.prepare_cached("SELECT value FROM meta WHERE name = ?1")?;
    let value: Option<Vec<u8>> = statement.query_row([name], |row| row.get(0)).optional()?;
    value.map(|value| decode(name, &value)).transpose()
}

/// Takes room, to see whether there is some. [`unprobe`] gives it back, to be committed after this.
pub(crate) fn probe(connection: &Connection) -> Result<(), StoreError> {
    let sql = "INSERT OR REPLACE INTO meta VALUES (?1, zeroblob(?2))";
    connection.prepare_cached(sql)?.execute(params![ROOM, PROBE_BYTES])?;
    Ok(())
}

pub(crate) fn unprobe(connection: &Connection) -> Result<(), StoreError> {
    connection.prepare_cached("DELETE FROM meta WHERE name = ?1")?.execute([ROOM])?;
    Ok(())
}

/// What a transaction of forgetting has done.
pub(crate) struct Forgotten {
    pub(crate) tasks: u64,
    /// Where the next one goes on; `None` if there is nothing more.
    pub(crate) next: Option<TaskId>,
}

/// Forgets tasks that ended before `before`, of those behind `after`, at most so many.
pub(crate) fn forget(
    connection: &Connection,
    before: Time,
    after: Option<TaskId>,
) -> Result<Forgotten, StoreError> {
    // A task ends after its id was made: later ids need not be looked at.
    let sql =
        "SELECT id, finished, state FROM ends WHERE id > ?1 AND id <= ?2 ORDER BY id LIMIT ?3";
    let mut statement = connection.prepare_cached(sql)?;
    let from = after.map_or([0; 16], |id| *id.uuid().as_bytes());
    let mut until = first_id(before);
    // Ids of the same millisecond.
    until[6..].fill(0xff);
    let mut rows = statement.query(params![from, until, FORGET_ROWS])?;
    let (mut seen, mut last, mut old) = (0, None, Vec::new());
    while let Some(row) = rows.next()? {
        let id: [u8; 16] = row.get(0)?;
        (seen, last) = (seen + 1, Some(task_id(id)));
        if row.get::<_, i64>(1)? < micros(before) {
            old.push((id, state(row.get(2)?)?));
        }
    }
    drop(rows);
    let mut counts = counts(connection)?;
    for (id, state) in &old {
        connection
            .prepare_cached(
                "DELETE FROM keys WHERE task = ?1 \
                 AND owner = (SELECT owner FROM tasks WHERE id = ?1)",
            )?
            .execute([id])?;
        connection.prepare_cached("DELETE FROM tasks WHERE id = ?1")?.execute([id])?;
        connection.prepare_cached("DELETE FROM ends WHERE id = ?1")?.execute([id])?;
        let count = counts.of(*state);
        *count = count.saturating_sub(1);
    }
    if !old.is_empty() {
        put(connection, COUNTS, &counts)?;
    }
    Ok(Forgotten { tasks: old.len() as u64, next: last.filter(|_| seen == FORGET_ROWS) })
}

fn write(
    connection: &Connection,
    group: Group,
    counts: &mut StoredCounts,
) -> Result<(), StoreError> {
    for (id, change) in &group.tasks {
        write_task(connection, *id, change, counts)?;
    }
    for (id, worker) in &group.workers {
        let id = id.uuid();
        match worker {
            Some(worker) => connection
                .prepare_cached("INSERT OR REPLACE INTO workers VALUES (?1, ?2)")?
                .execute(params![id.as_bytes(), encode("a worker", worker)?])?,
            None => connection
                .prepare_cached("DELETE FROM workers WHERE id = ?1")?
                .execute([id.as_bytes()])?,
        };
    }
    for (id, removed) in &group.removed {
        let id = id.uuid();
        match removed {
            Some(at) => connection
                .prepare_cached("INSERT OR REPLACE INTO removed VALUES (?1, ?2)")?
                .execute(params![id.as_bytes(), micros(*at)])?,
            None => connection
                .prepare_cached("DELETE FROM removed WHERE id = ?1")?
                .execute([id.as_bytes()])?,
        };
    }
    if let Some(epoch) = &group.epoch {
        put(connection, EPOCH, epoch)?;
    }
    if let Some(strategy) = &group.strategy {
        put(connection, STRATEGY, strategy)?;
    }
    if let Some(mode) = &group.mode {
        put(connection, MODE, mode)?;
    }
    if let Some(predictor) = &group.predictor {
        put(connection, PREDICTOR, predictor)?;
    }
    Ok(())
}

fn write_task(
    connection: &Connection,
    id: TaskId,
    change: &Change,
    counts: &mut StoredCounts,
) -> Result<(), StoreError> {
    if let Some(accepted) = &change.accepted
        && insert_task(connection, accepted)?
    {
        match &change.finished {
            Some(finished) => insert_end(connection, finished, counts)?,
            None => {
                insert_open(connection, id, change)?;
                counts.open += 1;
            }
        }
        return Ok(());
    }
    // Of a task that has no row in `open`, nothing is known or nothing changes any more.
    match &change.finished {
        Some(finished) => {
            let mut statement = connection.prepare_cached("DELETE FROM open WHERE id = ?1")?;
            if statement.execute([id.uuid().as_bytes()])? == 1 {
                counts.open = counts.open.saturating_sub(1);
                insert_end(connection, finished, counts)?;
            }
        }
        None if change.goes_on() => update_open(connection, id, change)?,
        None => {}
    }
    Ok(())
}

/// Whether it was new.
fn insert_task(connection: &Connection, task: &AcceptedTask) -> Result<bool, StoreError> {
    let id = task.id.uuid();
    let key = task.idempotency_key.as_ref();
    let owner = key.map(|key| owner(task.spec.tenant.as_ref(), key));
    let sql = "INSERT OR IGNORE INTO tasks VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
    let inserted = connection.prepare_cached(sql)?.execute(params![
        id.as_bytes(),
        micros(task.submitted),
        task.deadline.map(micros),
        task.bind_at_once,
        task.spec.requirement.model.as_ref().map(|model| model.as_str()),
        owner,
        encode("a task", &*task.spec)?,
        task.spec.tenant.as_ref().map(|tenant| tenant.as_str()),
    ])? == 1;
    if inserted && let Some(owner) = owner {
        // The key may have been another task's, which has ended long ago.
        let sql = "INSERT OR REPLACE INTO keys (owner, task) VALUES (?1, ?2)";
        connection.prepare_cached(sql)?.execute(params![owner, id.as_bytes()])?;
    }
    Ok(inserted)
}

fn insert_open(connection: &Connection, id: TaskId, change: &Change) -> Result<(), StoreError> {
    let sql = "INSERT INTO open VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
    connection.prepare_cached(sql)?.execute(params![
        id.uuid().as_bytes(),
        change.attempts.unwrap_or(0),
        change.failures.unwrap_or(0),
        micros(change.not_before.unwrap_or(Time::ZERO)),
        change.current.map(|(fence, ..)| fence.0.cast_signed()),
        change.current.map(|(_, worker, _)| *worker.uuid().as_bytes()),
        change.current.map(|(.., given)| micros(given)),
        failed_of(change)?,
    ])?;
    Ok(())
}

fn update_open(connection: &Connection, id: TaskId, change: &Change) -> Result<(), StoreError> {
    let sql = "UPDATE open SET attempts = coalesce(?2, attempts), \
               failures = coalesce(?3, failures), not_before = coalesce(?4, not_before), \
               fence = ?5, worker = ?6, given = ?7, \
               failed = coalesce(?8, failed) WHERE id = ?1";
    connection.prepare_cached(sql)?.execute(params![
        id.uuid().as_bytes(),
        change.attempts,
        change.failures,
        change.not_before.map(micros),
        change.current.map(|(fence, ..)| fence.0.cast_signed()),
        change.current.map(|(_, worker, _)| *worker.uuid().as_bytes()),
        change.current.map(|(.., given)| micros(given)),
        failed_of(change)?,
    ])?;
    Ok(())
}

fn failed_of(change: &Change) -> Result<Option<Vec<u8>>, StoreError> {
    Ok(change.failed.as_ref().map(encode_failed).transpose()?.flatten())
}

fn insert_end(
    connection: &Connection,
    finished: &FinishedTask,
    counts: &mut StoredCounts,
) -> Result<(), StoreError> {
    let sql = "INSERT INTO ends VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)";
    connection.prepare_cached(sql)?.execute(params![
        finished.task.uuid().as_bytes(),
        state_number(finished.state),
        finished.attempts,
        finished.worker.map(|worker| *worker.uuid().as_bytes()),
        finished.started.map(micros),
        micros(finished.finished),
        finished.result.as_ref().map(|(_, digest)| digest.as_bytes()),
        finished.result.as_ref().map(|(result, _)| result.bytes()),
        finished.error,
        encode_failed(&finished.failed)?,
    ])?;
    *counts.of(finished.state) += 1;
    Ok(())
}

fn put<T: Serialize>(
    connection: &Connection,
    name: &'static str,
    value: &T,
) -> Result<(), StoreError> {
    let mut statement = connection.prepare_cached("INSERT OR REPLACE INTO meta VALUES (?1, ?2)")?;
    statement.execute(params![name, encode(name, value)?])?;
    Ok(())
}

impl StoredCounts {
    fn of(&mut self, state: TaskState) -> &mut u64 {
        match state {
            TaskState::Queued | TaskState::Scheduled | TaskState::Running => &mut self.open,
            TaskState::Completed => &mut self.completed,
            TaskState::Failed => &mut self.failed,
            TaskState::Cancelled => &mut self.cancelled,
            TaskState::Expired => &mut self.expired,
        }
    }
}
