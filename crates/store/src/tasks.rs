//! What happens to tasks, as rows of `tasks`, `open` and `ends`.

use hypha_engine::record::{AcceptedTask, FinishedTask};
use hypha_model::{Payload, TaskId, TaskResult, Time};
use rusqlite::{CachedStatement, Connection, params};

use crate::error::StoreError;
use crate::fold::TaskChange;
use crate::row_keys;
use crate::rows::{encode_failed, encode_into, micros, owner, state_number};

/// The statements that a group needs again and again, and room for what they are given: to look for a statement
/// or for memory costs about as much as a row.
pub(crate) struct TaskTables<'c> {
    connection: &'c Connection,
    insert_task: CachedStatement<'c>,
    insert_open: CachedStatement<'c>,
    update_open: CachedStatement<'c>,
    update_began: CachedStatement<'c>,
    delete_open: CachedStatement<'c>,
    insert_end: CachedStatement<'c>,
    /// Whether a place has to be looked for.
    any_moved: bool,
    spec: Vec<u8>,
}

impl<'c> TaskTables<'c> {
    pub(crate) fn of(connection: &'c Connection) -> Result<TaskTables<'c>, StoreError> {
        let prepare = |sql| connection.prepare_cached(sql);
        Ok(TaskTables {
            connection,
            insert_task: prepare(
                "INSERT OR IGNORE INTO tasks VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
            )?,
            insert_open: prepare(
                "INSERT INTO open VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
            )?,
            update_open: prepare(
                "UPDATE open SET attempts = coalesce(?2, attempts), \
                 failures = coalesce(?3, failures), not_before = coalesce(?4, not_before), \
                 fence = ?5, worker = ?6, given = ?7, failed = coalesce(?8, failed), \
                 started = ?9, handle = ?10 WHERE place = ?1",
            )?,
            update_began: prepare(
                "UPDATE open SET started = coalesce(started, ?3), handle = coalesce(handle, ?4) \
                 WHERE place = ?1 AND fence = ?2",
            )?,
            delete_open: prepare("DELETE FROM open WHERE place = ?1")?,
            insert_end: prepare(
                "INSERT INTO ends VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)",
            )?,
            any_moved: row_keys::any_moved(connection)?,
            spec: Vec::new(),
        })
    }

    /// Writes what happens to one task.
    pub(crate) fn write(&mut self, id: TaskId, change: &TaskChange) -> Result<(), StoreError> {
        if let Some(accepted) = &change.accepted
            && let Some(place) = self.insert_task(accepted)?
        {
            return match &change.finished {
                Some(finished) => self.insert_end(place, finished),
                None => self.insert_open(place, change),
            };
        }
        let place = self.place(id)?;
        // Of a task that has no row in `open`, nothing is known or nothing changes any more.
        if let Some(finished) = &change.finished {
            return match self.delete_open.execute([place])? {
                0 => Ok(()),
                _ => self.insert_end(place, finished),
            };
        }
        if change.has_progress() {
            return self.update_open(place, change);
        }
        for (fence, started, handle) in &change.began {
            let fence = fence.0.cast_signed();
            self.update_began.execute(params![place, fence, started.map(micros), handle])?;
        }
        Ok(())
    }

    fn place(&self, id: TaskId) -> Result<i64, StoreError> {
        if self.any_moved {
            row_keys::find(self.connection, id)
        } else {
            Ok(row_keys::default_key(id))
        }
    }

    /// Where it is now; `None` if it was there before.
    fn insert_task(&mut self, task: &AcceptedTask) -> Result<Option<i64>, StoreError> {
        let place = self.place(task.id)?;
        if self.insert_at(place, task)? {
            return Ok(Some(place));
        }
        let sql = "SELECT id FROM tasks WHERE place = ?1";
        let there: [u8; 16] =
            self.connection.prepare_cached(sql)?.query_row([place], |row| row.get(0))?;
        if there == *task.id.uuid().as_bytes() {
            return Ok(None);
        }
        let place = row_keys::assign_last(self.connection, task.id)?;
        self.any_moved = true;
        Ok(self.insert_at(place, task)?.then_some(place))
    }

    /// Whether the place was free.
    fn insert_at(&mut self, place: i64, task: &AcceptedTask) -> Result<bool, StoreError> {
        let id = task.id.uuid();
        let key = task.idempotency_key.as_ref();
        let owner = key.map(|key| owner(task.spec.tenant.as_ref(), key));
        encode_into(&mut self.spec, "a task", &*task.spec)?;
        let inserted = self.insert_task.execute(params![
            place,
            id.as_bytes(),
            micros(task.submitted),
            task.deadline.map(micros),
            task.bind_at_once,
            task.spec.requirement.model.as_ref().map(|model| model.as_str()),
            owner,
            self.spec,
            task.spec.tenant.as_ref().map(|tenant| tenant.as_str()),
        ])? == 1;
        if inserted && let Some(owner) = owner {
            // The key may have been another task's, which has ended long ago.
            let sql = "INSERT OR REPLACE INTO keys (owner, task, place) VALUES (?1, ?2, ?3)";
            self.connection.prepare_cached(sql)?.execute(params![owner, id.as_bytes(), place])?;
        }
        Ok(inserted)
    }

    fn insert_open(&mut self, place: i64, change: &TaskChange) -> Result<(), StoreError> {
        let current = change.current.as_ref();
        self.insert_open.execute(params![
            place,
            change.attempts.unwrap_or(0),
            change.failures.unwrap_or(0),
            micros(change.not_before.unwrap_or(Time::ZERO)),
            current.map(|current| current.fence.0.cast_signed()),
            current.map(|current| *current.worker.uuid().as_bytes()),
            current.map(|current| micros(current.dispatched_at)),
            failed_of(change)?,
            current.and_then(|current| current.started).map(micros),
            current.and_then(|current| current.handle.as_deref()),
        ])?;
        Ok(())
    }

    fn update_open(&mut self, place: i64, change: &TaskChange) -> Result<(), StoreError> {
        let current = change.current.as_ref();
        self.update_open.execute(params![
            place,
            change.attempts,
            change.failures,
            change.not_before.map(micros),
            current.map(|current| current.fence.0.cast_signed()),
            current.map(|current| *current.worker.uuid().as_bytes()),
            current.map(|current| micros(current.dispatched_at)),
            failed_of(change)?,
            current.and_then(|current| current.started).map(micros),
            current.and_then(|current| current.handle.as_deref()),
        ])?;
        Ok(())
    }

    fn insert_end(&mut self, place: i64, finished: &FinishedTask) -> Result<(), StoreError> {
        let (result, error) = (finished.result.as_ref(), finished.error.as_ref());
        let object = match result {
            Some(TaskResult::Object(object)) => Some(object.bytes.cast_signed()),
            _ => None,
        };
        self.insert_end.execute(params![
            place,
            state_number(finished.state),
            finished.attempts,
            finished.worker.map(|worker| *worker.uuid().as_bytes()),
            finished.started.map(micros),
            micros(finished.finished),
            result.map(|result| *result.digest().as_bytes()),
            result.and_then(TaskResult::payload).map(Payload::bytes),
            error.map(|error| &error.message),
            encode_failed(&finished.failed)?,
            error.map(|error| error.kind.as_str()),
            error.and_then(|error| error.status),
            object,
        ])?;
        Ok(())
    }
}

fn failed_of(change: &TaskChange) -> Result<Option<Vec<u8>>, StoreError> {
    Ok(change.failed.as_ref().map(encode_failed).transpose()?.flatten())
}
