//! The row keys of tasks, in the column `place`. A task's key is an integer, the moment of its id: tables with integer
//! keys grow at their ends a page at a time, and a row is found without comparing ids.
//!
//! A scheduler makes no two ids with the same moment. If there are two nevertheless, the second task gets another key,
//! which is recorded in the table `moved`.

use hypha_model::{TaskId, Time};
use rusqlite::{Connection, OptionalExtension};

use crate::error::StoreError;

/// The key of a task that was not moved.
pub(crate) fn default_key(id: TaskId) -> i64 {
    // It has 60 bits.
    id.moment().cast_signed()
}

/// The lowest key of ids that are made in the millisecond of `time`, or later.
pub(crate) fn first_key(time: Time) -> i64 {
    TaskId::first_moment(time).cast_signed()
}

/// The key of a task, if the task exists.
pub(crate) fn find(connection: &Connection, id: TaskId) -> Result<i64, StoreError> {
    let mut statement = connection.prepare_cached("SELECT place FROM moved WHERE id = ?1")?;
    let moved = statement.query_row([id.uuid().as_bytes()], |row| row.get(0)).optional()?;
    Ok(moved.unwrap_or_else(|| default_key(id)))
}

/// Whether any task was moved.
pub(crate) fn any_moved(connection: &Connection) -> Result<bool, StoreError> {
    let mut statement = connection.prepare_cached("SELECT EXISTS (SELECT 1 FROM moved)")?;
    Ok(statement.query_row((), |row| row.get(0))?)
}

/// Gives a task the next key after all others, because another task has its default key.
pub(crate) fn assign_last(connection: &Connection, id: TaskId) -> Result<i64, StoreError> {
    let last = "SELECT coalesce(max(place), 0) FROM tasks";
    let place = 1 + connection.query_row(last, (), |row| row.get::<_, i64>(0))?;
    record_moved(connection, id, place)?;
    Ok(place)
}

/// Records that a task has the key `place`.
pub(crate) fn record_moved(
    connection: &Connection,
    id: TaskId,
    place: i64,
) -> Result<(), StoreError> {
    let mut statement = connection.prepare_cached("INSERT INTO moved VALUES (?1, ?2)")?;
    statement.execute((id.uuid().as_bytes(), place))?;
    Ok(())
}
