//! Writes groups of changes into the tables, within a transaction that the caller has begun.

use hypha_engine::Record;
use hypha_model::{Span, TaskId, Time};
use rusqlite::{Connection, OptionalExtension, params};
use serde::Serialize;

use crate::error::StoreError;
use crate::fold::RecordGroup;
use crate::row_keys;
use crate::rows::{decode, encode, micros, task_id};
use crate::tasks::TaskTables;

pub(crate) const EPOCH: &str = "epoch";
pub(crate) const STRATEGY: &str = "strategy";
pub(crate) const MODE: &str = "mode";
pub(crate) const PREDICTOR: &str = "predictor";
/// The id of the latest task, if it has been forgotten: later ids must be larger.
const LAST_ID: &str = "last_id";
const PROBE_KEY: &str = "room";

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
    let mut group = RecordGroup::default();
    for record in records {
        if !group.accepts(&record) {
            write(connection, std::mem::take(&mut group))?;
        }
        group.add(record);
    }
    write(connection, group)
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

/// Takes room, to see whether there is some. [`release_probe`] gives it back, to be committed after this.
pub(crate) fn reserve_probe(connection: &Connection) -> Result<(), StoreError> {
    let sql = "INSERT OR REPLACE INTO meta VALUES (?1, zeroblob(?2))";
    connection.prepare_cached(sql)?.execute(params![PROBE_KEY, PROBE_BYTES])?;
    Ok(())
}

pub(crate) fn release_probe(connection: &Connection) -> Result<(), StoreError> {
    connection.prepare_cached("DELETE FROM meta WHERE name = ?1")?.execute([PROBE_KEY])?;
    Ok(())
}

/// What a transaction of forgetting has done.
pub(crate) struct Forgotten {
    pub(crate) tasks: u64,
    /// Where the next one goes on; `None` if there is nothing more.
    pub(crate) next: Option<i64>,
}

/// Forgets tasks that ended before `before`, of those behind the place `after`, at most so many.
pub(crate) fn forget(
    connection: &Connection,
    before: Time,
    after: Option<i64>,
) -> Result<Forgotten, StoreError> {
    // A task ends after its id was made: later ids need not be looked at.
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
    // Only then: forgetting may be what makes room, and should need none.
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

/// The id of the latest task, forgotten ones included.
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
