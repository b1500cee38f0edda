//! Writes changes of tasks to the tables `tasks`, `open` and `ends`.

use hypha_engine::record::{AcceptedTask, FinishedTask, StoredAttempt};
use hypha_model::{Payload, TaskId, TaskResult, Time};
use rusqlite::{CachedStatement, Connection, Params, params};

use crate::error::StoreError;
use crate::fold::TaskChange;
use crate::row_keys;
use crate::rows::{encode_failed, encode_into, micros, owner, state_number};

/// The statements that a group uses repeatedly, and a buffer for their parameters: a lookup of a statement or an
/// allocation costs about as much as a row.
///
/// Columns that are null in nearly every row have statements with a literal NULL: binding them costs a sixth of a row.
pub(crate) struct TaskTables<'c> {
    connection: &'c Connection,
    insert_task: Prepared<'c>,
    insert_plain_task: Prepared<'c>,
    insert_open: Prepared<'c>,
    insert_waiting: Prepared<'c>,
    insert_attempted: Prepared<'c>,
    update_open: Prepared<'c>,
    update_began: Prepared<'c>,
    delete_open: Prepared<'c>,
    insert_end: Prepared<'c>,
    insert_completed: Prepared<'c>,
    /// Whether row keys have to be looked up.
    any_moved: bool,
    spec: Vec<u8>,
}

/// A statement that is prepared on first use.
struct Prepared<'c> {
    sql: &'static str,
    statement: Option<CachedStatement<'c>>,
}

impl<'c> Prepared<'c> {
    const fn new(sql: &'static str) -> Prepared<'c> {
        Prepared { sql, statement: None }
    }

    fn execute(
        &mut self,
        connection: &'c Connection,
        params: impl Params,
    ) -> Result<usize, StoreError> {
        let statement = match &mut self.statement {
            Some(statement) => statement,
            none => none.insert(connection.prepare_cached(self.sql)?),
        };
        Ok(statement.execute(params)?)
    }
}

impl<'c> TaskTables<'c> {
    pub(crate) fn of(connection: &'c Connection) -> Result<TaskTables<'c>, StoreError> {
        Ok(TaskTables {
            connection,
            insert_task: Prepared::new(
                "INSERT OR IGNORE INTO tasks VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
            ),
            insert_plain_task: Prepared::new(
                "INSERT OR IGNORE INTO tasks VALUES (?1, ?2, ?3, NULL, ?4, ?5, NULL, ?6, NULL)",
            ),
            insert_open: Prepared::new(
                "INSERT INTO open VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
            ),
            insert_waiting: Prepared::new(
                "INSERT INTO open VALUES (?1, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL)",
            ),
            insert_attempted: Prepared::new(
                "INSERT INTO open VALUES (?1, ?2, 0, 0, ?3, ?4, ?5, NULL, NULL, NULL)",
            ),
            update_open: Prepared::new(
                "UPDATE open SET attempts = coalesce(?2, attempts), \
                 failures = coalesce(?3, failures), not_before = coalesce(?4, not_before), \
                 fence = ?5, worker = ?6, given = ?7, failed = coalesce(?8, failed), \
                 started = ?9, handle = ?10 WHERE place = ?1",
            ),
            update_began: Prepared::new(
                "UPDATE open SET started = coalesce(started, ?3), handle = coalesce(handle, ?4) \
                 WHERE place = ?1 AND fence = ?2",
            ),
            delete_open: Prepared::new("DELETE FROM open WHERE place = ?1"),
            insert_end: Prepared::new(
                "INSERT INTO ends VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)",
            ),
            insert_completed: Prepared::new(
                "INSERT INTO ends VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, NULL, NULL, NULL, NULL, \
                 NULL)",
            ),
            any_moved: row_keys::any_moved(connection)?,
            spec: Vec::new(),
        })
    }

    /// Writes the changes of one task.
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
        // A task without a row in `open` is unknown or has ended, and does not change any more.
        if let Some(finished) = &change.finished {
            return match self.delete_open.execute(self.connection, [place])? {
                0 => Ok(()),
                _ => self.insert_end(place, finished),
            };
        }
        if change.has_progress() {
            return self.update_open(place, change);
        }
        for (fence, started, handle) in &change.began {
            let fence = fence.0.cast_signed();
            let params = params![place, fence, started.map(micros), handle];
            self.update_began.execute(self.connection, params)?;
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

    /// The row key of the inserted task; `None` if the task existed already.
    fn insert_task(&mut self, task: &AcceptedTask) -> Result<Option<i64>, StoreError> {
        let place = self.place(task.id)?;
        if self.insert_at(place, task)? {
            return Ok(Some(place));
        }
        let sql = "SELECT id FROM tasks WHERE place = ?1";
        let existing: [u8; 16] =
            self.connection.prepare_cached(sql)?.query_row([place], |row| row.get(0))?;
        if existing == *task.id.uuid().as_bytes() {
            return Ok(None);
        }
        let place = row_keys::assign_last(self.connection, task.id)?;
        self.any_moved = true;
        Ok(self.insert_at(place, task)?.then_some(place))
    }

    /// Inserts a task. Returns whether the row key was free.
    fn insert_at(&mut self, place: i64, task: &AcceptedTask) -> Result<bool, StoreError> {
        let id = task.id.uuid();
        let key = task.idempotency_key.as_ref();
        let owner = key.map(|key| owner(task.spec.tenant.as_ref(), key));
        encode_into(&mut self.spec, "a task", &*task.spec)?;
        let (id, submitted) = (id.as_bytes(), micros(task.submitted));
        let model = task.spec.requirement.model.as_ref().map(|model| model.as_str());
        let tenant = task.spec.tenant.as_ref().map(|tenant| tenant.as_str());
        let (bind, spec) = (task.bind_at_once, &self.spec);
        let inserted = match (task.deadline, &owner, tenant) {
            (None, None, None) => {
                let params = params![place, id, submitted, bind, model, spec];
                self.insert_plain_task.execute(self.connection, params)?
            }
            (deadline, owner, tenant) => {
                let deadline = deadline.map(micros);
                let params =
                    params![place, id, submitted, deadline, bind, model, owner, spec, tenant];
                self.insert_task.execute(self.connection, params)?
            }
        };
        let inserted = inserted == 1;
        if inserted && let Some(owner) = owner {
            // The idempotency key may belong to another task that ended long ago.
            let sql = "INSERT OR REPLACE INTO keys (owner, task, place) VALUES (?1, ?2, ?3)";
            self.connection.prepare_cached(sql)?.execute(params![owner, id, place])?;
        }
        Ok(inserted)
    }

    fn insert_open(&mut self, place: i64, change: &TaskChange) -> Result<(), StoreError> {
        let current = match (&change.current, change.attempts) {
            (None, None) if !change.has_progress() => {
                self.insert_waiting.execute(self.connection, [place])?;
                return Ok(());
            }
            (Some(current), Some(attempts)) if is_first(change, current) => {
                let fence = current.fence.0.cast_signed();
                let worker = current.worker.uuid();
                let given = micros(current.dispatched_at);
                let params = params![place, attempts, fence, worker.as_bytes(), given];
                self.insert_attempted.execute(self.connection, params)?;
                return Ok(());
            }
            (current, _) => current.as_ref(),
        };
        let params = params![
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
        ];
        self.insert_open.execute(self.connection, params)?;
        Ok(())
    }

    fn update_open(&mut self, place: i64, change: &TaskChange) -> Result<(), StoreError> {
        let current = change.current.as_ref();
        let params = params![
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
        ];
        self.update_open.execute(self.connection, params)?;
        Ok(())
    }

    fn insert_end(&mut self, place: i64, finished: &FinishedTask) -> Result<(), StoreError> {
        let (result, error) = (finished.result.as_ref(), finished.error.as_ref());
        let object = match result {
            Some(TaskResult::Object(object)) => Some(object.bytes.cast_signed()),
            _ => None,
        };
        let (state, attempts) = (state_number(finished.state), finished.attempts);
        let worker = finished.worker.map(|worker| *worker.uuid().as_bytes());
        let (started, ended) = (finished.started.map(micros), micros(finished.finished));
        let digest = result.map(|result| *result.digest().as_bytes());
        let payload = result.and_then(TaskResult::payload).map(Payload::bytes);
        if error.is_none() && object.is_none() && finished.failed.is_empty() {
            let params = params![place, state, attempts, worker, started, ended, digest, payload];
            self.insert_completed.execute(self.connection, params)?;
            return Ok(());
        }
        let params = params![
            place,
            state,
            attempts,
            worker,
            started,
            ended,
            digest,
            payload,
            error.map(|error| &error.message),
            encode_failed(&finished.failed)?,
            error.map(|error| error.kind.as_str()),
            error.and_then(|error| error.status),
            object,
        ];
        self.insert_end.execute(self.connection, params)?;
        Ok(())
    }
}

fn failed_of(change: &TaskChange) -> Result<Option<Vec<u8>>, StoreError> {
    Ok(change.failed.as_ref().map(encode_failed).transpose()?.flatten())
}

/// Whether a new task has nothing but its first attempt, which has not started.
fn is_first(change: &TaskChange, current: &StoredAttempt) -> bool {
    let failed =
        change.failures.is_some() || change.not_before.is_some() || change.failed.is_some();
    !failed && current.started.is_none() && current.handle.is_none()
}
