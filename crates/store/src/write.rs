//! Writes groups of changes to the tables, within a transaction that the caller has begun.

use hypha_engine::Record;
use hypha_model::{Name, Span, TaskId, Time};
use rusqlite::{Connection, OptionalExtension, params};
use serde::Serialize;

use crate::error::StoreError;
use crate::fold::RecordGroup;
use crate::machine_rows::RowChanges;
use crate::row_keys;
use crate::rows::{decode, encode, micros, task_id};
use crate::tasks::TaskTables;

pub(crate) const EPOCH: &str = "epoch";
pub(crate) const STRATEGY: &str = "strategy";
pub(crate) const MODE: &str = "mode";
pub(crate) const PREDICTOR: &str = "predictor";
/// The id of the latest task, if its row was deleted: later ids must be larger.
const LAST_ID: &str = "last_id";
const PROBE_KEY: &str = "room";

/// Free space that is required before a scheduler restarts: about the size of a large group. With less, its first
/// commits would fail for the same reason as before.
const PROBE_BYTES: i64 = 1 << 20;

/// Rows of `ends` that one transaction scans for tasks to delete: about ten milliseconds, for which commits wait.
const FORGET_ROWS: i64 = 1_000;

/// Under which name the rows of jobs are stored.
pub(crate) fn jobs_machine() -> Name {
    Name::literal("jobs")
}

/// Applies the records in order.
pub(crate) fn apply(
    connection: &Connection,
    records: impl Iterator<Item = Record>,
) -> Result<(), StoreError> {
    let mut group = RecordGroup::default();
    for record in records {
        if !group.accepts(&record) {
            write(connection, std::mem::take(&mut group))?;
        }
        group.add(record);
    }
    write(connection, group)
}

/// The value of `name` in `meta`.
pub(crate) fn meta<T: serde::de::DeserializeOwned>(
    connection: &Connection,
    name: &'static str,
) -> Result<Option<T>, StoreError> {
    let mut statement = connection.prepare_cached("SELECT value FROM meta WHERE name = ?1")?;
    let value: Option<Vec<u8>> = statement.query_row([name], |row| row.get(0)).optional()?;
    value.map(|value| decode(name, &value)).transpose()
}

/// Takes space, to check that there is some. [`release_probe`] frees it, in a transaction of its own after this one.
pub(crate) fn reserve_probe(connection: &Connection) -> Result<(), StoreError> {
    let sql = "INSERT OR REPLACE INTO meta VALUES (?1, zeroblob(?2))";
    connection.prepare_cached(sql)?.execute(params![PROBE_KEY, PROBE_BYTES])?;
    Ok(())
}

pub(crate) fn release_probe(connection: &Connection) -> Result<(), StoreError> {
    connection.prepare_cached("DELETE FROM meta WHERE name = ?1")?.execute([PROBE_KEY])?;
    Ok(())
}

/// The result of one transaction of [`forget`].
pub(crate) struct Forgotten {
    pub(crate) tasks: u64,
    /// The row key after which the next transaction continues; `None` if this was the last.
    pub(crate) next: Option<i64>,
}

/// Deletes tasks that ended before `before`, among the next [`FORGET_ROWS`] rows after the row key `after`.
pub(crate) fn forget(
    connection: &Connection,
    before: Time,
    after: Option<i64>,
) -> Result<Forgotten, StoreError> {
    // A task ends after its id was made, so later ids need not be scanned.
    let sql = "SELECT place, finished FROM ends WHERE place > ?1 AND place < ?2 \
               ORDER BY place LIMIT ?3";
    let mut statement = connection.prepare_cached(sql)?;
    let until = row_keys::first_key(before + Span::from_millis(1));
    let mut rows = statement.query(params![after.unwrap_or(-1), until, FORGET_ROWS])?;
    let (mut seen, mut last, mut old) = (0, None, Vec::new());
    while let Some(row) = rows.next()? {
        let place: i64 = row.get(0)?;
        (seen, last) = (seen + 1, Some(place));
        if row.get::<_, i64>(1)? < micros(before) {
            old.push(place);
        }
    }
    drop(rows);
    // Written only if necessary: deleting may be what makes room on a full disk, and should need none itself.
    let latest = "SELECT max(place) FROM tasks";
    let latest: Option<i64> = connection.prepare_cached(latest)?.query_row((), |row| row.get(0))?;
    if !old.is_empty()
        && old.last() == latest.as_ref()
        && let Some(last) = last_id(connection)?
    {
        put(connection, LAST_ID, &last)?;
    }
    for place in &old {
        for sql in [
            "DELETE FROM keys WHERE place = ?1 \
             AND owner = (SELECT owner FROM tasks WHERE place = ?1)",
            "DELETE FROM moved WHERE id = (SELECT id FROM tasks WHERE place = ?1)",
            "DELETE FROM tasks WHERE place = ?1",
            "DELETE FROM ends WHERE place = ?1",
        ] {
            connection.prepare_cached(sql)?.execute([place])?;
        }
    }
    Ok(Forgotten { tasks: old.len() as u64, next: last.filter(|_| seen == FORGET_ROWS) })
}

/// The id of the latest task, including deleted ones.
pub(crate) fn last_id(connection: &Connection) -> Result<Option<TaskId>, StoreError> {
    let sql = "SELECT id FROM tasks ORDER BY place DESC LIMIT 1";
    let mut statement = connection.prepare_cached(sql)?;
    let latest = statement.query_row((), |row| row.get(0)).optional()?.map(task_id);
    Ok(latest.max(meta(connection, LAST_ID)?))
}

fn write(connection: &Connection, group: RecordGroup) -> Result<(), StoreError> {
    if !group.tasks.is_empty() {
        let mut tables = TaskTables::of(connection)?;
        for (id, change) in &group.tasks {
            tables.write(*id, change)?;
        }
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
    if !group.jobs.is_empty() {
        let mut changes = RowChanges::default();
        changes.add(&jobs_machine(), group.jobs);
        changes.write(connection)?;
    }
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
