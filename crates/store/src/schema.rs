//! The tables, and connections to them.
//!
//! A task's row in `tasks` is written once and never changed, since inputs may be large. The state that changes while
//! the task is open is a small row of `open`, which is replaced by a row of `ends` when the task ends. So a restart
//! reads the open tasks only, however many have ended. All three tables are keyed by `place` (`row_keys.rs`), so they
//! grow at their ends. There are indices of tasks that ended without a result and of tasks that have a tenant: those
//! are searched for, and other tasks do not pay for it. The rows of machines other than the scheduler are in
//! `machine_rows`, by machine and key.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hypha_model::{Digest, ObjectRef, TaskSpec};
use rusqlite::{Connection, OpenFlags, params};

use crate::error::StoreError;
use crate::log::Log;
use crate::{Options, row_keys, rows};

/// "Hyph", in the header of the file: marks the database as Hypha's.
const APPLICATION_ID: i64 = 0x4879_7068;
/// Grows with every change of the tables or of the contents of their blobs.
const SCHEMA_VERSION: i64 = 1 + MIGRATIONS.len() as i64;

/// The tables of the first version.
const INITIAL_TABLES: &str = "
    CREATE TABLE meta (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
    CREATE TABLE workers (id BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
    CREATE TABLE tasks (
        id BLOB PRIMARY KEY,
        submitted INTEGER NOT NULL,
        deadline INTEGER,
        bind INTEGER NOT NULL,
        model TEXT,
        owner BLOB,
        spec BLOB NOT NULL
    ) WITHOUT ROWID;
    CREATE TABLE open (
        id BLOB PRIMARY KEY,
        attempts INTEGER NOT NULL,
        failures INTEGER NOT NULL,
        not_before INTEGER NOT NULL,
        fence INTEGER,
        worker BLOB,
        given INTEGER
    ) WITHOUT ROWID;
    CREATE TABLE ends (
        id BLOB PRIMARY KEY,
        state INTEGER NOT NULL,
        attempts INTEGER NOT NULL,
        worker BLOB,
        started INTEGER,
        finished INTEGER NOT NULL,
        digest BLOB,
        result BLOB,
        error TEXT
    ) WITHOUT ROWID;
    CREATE INDEX unusual_ends ON ends (state, id) WHERE state > 3;
    CREATE TABLE keys (
        seq INTEGER PRIMARY KEY,
        owner BLOB NOT NULL UNIQUE,
        task BLOB NOT NULL
    );
";

/// The changes of each version after the first. A new database runs all of them too, so that there is only one way to
/// create the tables. Existing files were made by these steps, so they must never change.
const MIGRATIONS: [&str; 8] = [
    "
    ALTER TABLE open ADD COLUMN failed BLOB;
    ALTER TABLE ends ADD COLUMN failed BLOB;
    CREATE TABLE removed (id BLOB PRIMARY KEY, at INTEGER NOT NULL) WITHOUT ROWID;
",
    "
    ALTER TABLE tasks ADD COLUMN tenant TEXT;
    CREATE INDEX tasks_of_tenant ON tasks (tenant, id) WHERE tenant IS NOT NULL;
",
    "DELETE FROM meta WHERE name = 'counts';",
    "
    DROP INDEX unusual_ends;
    DROP INDEX tasks_of_tenant;
    ALTER TABLE tasks RENAME TO old_tasks;
    ALTER TABLE open RENAME TO old_open;
    ALTER TABLE ends RENAME TO old_ends;
    ALTER TABLE keys RENAME TO old_keys;
    CREATE TABLE tasks (
        place INTEGER PRIMARY KEY,
        id BLOB NOT NULL,
        submitted INTEGER NOT NULL,
        deadline INTEGER,
        bind INTEGER NOT NULL,
        model TEXT,
        owner BLOB,
        spec BLOB NOT NULL,
        tenant TEXT
    );
    CREATE INDEX tasks_of_tenant ON tasks (tenant) WHERE tenant IS NOT NULL;
    CREATE TABLE open (
        place INTEGER PRIMARY KEY,
        attempts INTEGER NOT NULL,
        failures INTEGER NOT NULL,
        not_before INTEGER NOT NULL,
        fence INTEGER,
        worker BLOB,
        given INTEGER,
        failed BLOB
    );
    CREATE TABLE ends (
        place INTEGER PRIMARY KEY,
        state INTEGER NOT NULL,
        attempts INTEGER NOT NULL,
        worker BLOB,
        started INTEGER,
        finished INTEGER NOT NULL,
        digest BLOB,
        result BLOB,
        error TEXT,
        failed BLOB
    );
    CREATE INDEX unusual_ends ON ends (state) WHERE state > 3;
    CREATE TABLE keys (
        seq INTEGER PRIMARY KEY,
        owner BLOB NOT NULL UNIQUE,
        task BLOB NOT NULL,
        place INTEGER NOT NULL
    );
    CREATE TABLE moved (id BLOB PRIMARY KEY, place INTEGER NOT NULL) WITHOUT ROWID;
",
    "
    ALTER TABLE open ADD COLUMN started INTEGER;
    ALTER TABLE open ADD COLUMN handle TEXT;
",
    "
    CREATE TABLE machine_rows (
        machine TEXT NOT NULL,
        key BLOB NOT NULL,
        value BLOB NOT NULL,
        PRIMARY KEY (machine, key)
    ) WITHOUT ROWID;
",
    "
    ALTER TABLE ends ADD COLUMN kind TEXT;
    ALTER TABLE ends ADD COLUMN status INTEGER;
",
    // The size of a result that is an object; then `digest` is the object's, and `result` is null. If `result` is not
    // null, an earlier version wrote the row, and the object is stored under its digest alone.
    "ALTER TABLE ends ADD COLUMN object INTEGER;",
];
/// The first version with tenants in `tasks`.
const WITH_TENANTS: i64 = 3;
/// The first version whose tables are keyed by `place`.
const WITH_PLACES: i64 = 5;
/// The first version that marks results that are objects.
const WITH_OBJECTS: i64 = 9;
/// Rows that are read before their tenants are written: few enough to fit in memory, however large their inputs.
const BACKFILL_BATCH_ROWS: i64 = 100;

/// Pages of 4 KiB in the log before they are copied into the database: 32 MiB, so that pages that every transaction
/// touches are copied once for hundreds of transactions.
const CHECKPOINT_PAGES: i64 = 8_192;
/// The log is truncated to this after it was copied, so that a burst does not occupy the disk permanently.
const LOG_KEPT_BYTES: i64 = 64 << 20;
/// Holds the pages at the growing ends of the tables and the inner pages for a million tasks. In KiB, which SQLite
/// expects as a negative number. SQLite walks the whole cache when a transaction has split a page, so a larger one
/// costs time.
const WRITER_CACHE_KIB: i64 = 8 << 10;
/// Readers read one page of tasks at a time.
const READER_CACHE_KIB: i64 = 2 << 10;
/// More than there are statements in this crate, so that each is compiled once.
const STATEMENT_CACHE_SIZE: usize = 48;
const PAGE_BYTES: u64 = 4_096;
/// The header of the log, and the header before each page.
const LOG_HEADER_BYTES: u64 = 32;
const FRAME_HEADER_BYTES: u64 = 24;
/// More than the length of the JSON that names an object.
const MAX_NAMED_BYTES: i64 = 128;

/// Locks the database until the returned file is dropped. The system releases the lock when the process dies, however
/// it dies.
pub(crate) fn lock(database: &Path) -> Result<File, StoreError> {
    let mut path = database.as_os_str().to_owned();
    path.push(".lock");
    let path = PathBuf::from(path);
    let failed = |cause| StoreError::Open { path: path.clone(), cause: Arc::new(cause) };
    let file = create_private(&path).map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(StoreError::InUse(database.to_owned())),
        Err(TryLockError::Error(cause)) => Err(failed(cause)),
    }
}

/// The connection of the writer. The caller must hold the lock.
pub(crate) fn writer(path: &Path, options: &Options) -> Result<Connection, StoreError> {
    // SQLite gives its log the permissions of the database. Other users must not read inputs and results.
    create_private(path)
        .map_err(|cause| StoreError::Open { path: path.to_owned(), cause: Arc::new(cause) })?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags)?;
    prepare_tables(&mut connection, path)?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES)?;
    connection.pragma_update(None, "journal_size_limit", LOG_KEPT_BYTES)?;
    connection.pragma_update(None, "cache_size", -WRITER_CACHE_KIB)?;
    if let Some(bytes) = options.max_bytes {
        let pages = i64::try_from(bytes.div_ceil(PAGE_BYTES)).unwrap_or(i64::MAX);
        connection.pragma_update(None, "max_page_count", pages)?;
    }
    connection.set_prepared_statement_cache_capacity(STATEMENT_CACHE_SIZE);
    Ok(connection)
}

/// The log of the database at `path`.
pub(crate) fn log(path: &Path) -> Log {
    let pages = CHECKPOINT_PAGES.cast_unsigned();
    Log::of(path, LOG_HEADER_BYTES + pages * (FRAME_HEADER_BYTES + PAGE_BYTES))
}

/// A read-only connection.
pub(crate) fn reader(path: &Path) -> Result<Connection, StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.pragma_update(None, "cache_size", -READER_CACHE_KIB)?;
    connection.set_prepared_statement_cache_capacity(STATEMENT_CACHE_SIZE);
    Ok(connection)
}

fn prepare_tables(connection: &mut Connection, path: &Path) -> Result<(), StoreError> {
    let number = |connection: &Connection, name: &str| {
        connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0))
    };
    let foreign = |error: rusqlite::Error| match error.sqlite_error_code() {
        Some(rusqlite::ErrorCode::NotADatabase) => StoreError::Foreign(path.to_owned()),
        _ => error.into(),
    };
    let owner = number(connection, "application_id").map_err(foreign)?;
    let found = number(connection, "user_version")?;
    if owner == APPLICATION_ID {
        if found > SCHEMA_VERSION {
            return Err(StoreError::Newer { path: path.to_owned(), found, known: SCHEMA_VERSION });
        }
        if found == SCHEMA_VERSION {
            return Ok(());
        }
        tracing::info!(from = found, to = SCHEMA_VERSION, "migrating the database to this version");
        let transaction = connection.transaction()?;
        migrate(&transaction, found)?;
        return Ok(transaction.commit()?);
    }
    let tables: i64 =
        connection.query_row("SELECT count(*) FROM sqlite_schema", (), |row| row.get(0))?;
    if owner != 0 || found != 0 || tables != 0 {
        return Err(StoreError::Foreign(path.to_owned()));
    }
    connection.pragma_update(None, "journal_mode", "WAL")?;
    let transaction = connection.transaction()?;
    transaction.execute_batch(INITIAL_TABLES)?;
    transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
    migrate(&transaction, 1)?;
    Ok(transaction.commit()?)
}

/// Runs the migrations after version `found`.
fn migrate(connection: &Connection, found: i64) -> Result<(), StoreError> {
    for (version, step) in (2..).zip(MIGRATIONS).filter(|(version, _)| *version > found) {
        connection.execute_batch(step)?;
        match version {
            WITH_TENANTS => fill_tenants(connection)?,
            WITH_PLACES => assign_row_keys(connection)?,
            WITH_OBJECTS => find_objects(connection)?,
            _ => {}
        }
    }
    Ok(connection.pragma_update(None, "user_version", SCHEMA_VERSION)?)
}

/// Earlier versions stored the tenant of a task only in its specification.
fn fill_tenants(connection: &Connection) -> Result<(), StoreError> {
    let mut update = connection.prepare("UPDATE tasks SET tenant = ?2 WHERE id = ?1")?;
    let sql = "SELECT id, spec FROM tasks WHERE id > ?1 ORDER BY id LIMIT ?2";
    let mut select = connection.prepare(sql)?;
    let mut behind = [0; 16];
    loop {
        let mut rows = select.query(params![behind, BACKFILL_BATCH_ROWS])?;
        let mut found = Vec::new();
        while let Some(row) = rows.next()? {
            let spec: TaskSpec = rows::decode("a task", &row.get::<_, Vec<u8>>(1)?)?;
            found.push((row.get(0)?, spec.tenant));
        }
        match found.last() {
            Some((last, _)) => behind = *last,
            None => return Ok(()),
        }
        for (id, tenant) in found {
            if let Some(tenant) = tenant {
                update.execute(params![id, tenant.as_str()])?;
            }
        }
    }
}

/// Earlier versions keyed tasks by id; several ids may have the same moment.
fn assign_row_keys(connection: &Connection) -> Result<(), StoreError> {
    let rows = [
        "INSERT INTO tasks SELECT ?2, id, submitted, deadline, bind, model, owner, spec, tenant \
         FROM old_tasks WHERE id = ?1",
        "INSERT INTO open SELECT ?2, attempts, failures, not_before, fence, worker, given, failed \
         FROM old_open WHERE id = ?1",
        "INSERT INTO ends SELECT ?2, state, attempts, worker, started, finished, digest, result, \
         error, failed FROM old_ends WHERE id = ?1",
        "INSERT INTO keys SELECT seq, owner, task, ?2 FROM old_keys \
         WHERE owner = (SELECT owner FROM old_tasks WHERE id = ?1) AND task = ?1",
    ];
    let mut copies = Vec::with_capacity(rows.len());
    for sql in rows {
        copies.push(connection.prepare(sql)?);
    }
    let mut select = connection.prepare("SELECT id FROM old_tasks ORDER BY id")?;
    let mut ids = select.query(())?;
    let mut free = 0;
    while let Some(row) = ids.next()? {
        let id: [u8; 16] = row.get(0)?;
        let task = rows::task_id(id);
        let place = row_keys::default_key(task).max(free);
        if place != row_keys::default_key(task) {
            row_keys::record_moved(connection, task, place)?;
        }
        for copy in &mut copies {
            copy.execute(params![id, place])?;
        }
        free = place + 1;
    }
    drop(ids);
    drop((select, copies));
    Ok(connection.execute_batch(
        "DROP TABLE old_tasks; DROP TABLE old_open; DROP TABLE old_ends; DROP TABLE old_keys;",
    )?)
}

/// Earlier versions stored JSON that named an object as the result itself, which could not be distinguished from a
/// task's own result of the same form. A task can only copy a digest after it was published, so if several tenants have
/// results that name the same object, the object belongs to the tenant whose task ended first.
fn find_objects(connection: &Connection) -> Result<(), StoreError> {
    let sql = "SELECT e.place, e.result, t.tenant FROM ends e JOIN tasks t ON t.place = e.place \
               WHERE length(e.result) <= ?1 AND substr(e.result, 1, 1) = x'7b' \
               ORDER BY e.finished, e.place";
    let mut select = connection.prepare(sql)?;
    let mut update =
        connection.prepare("UPDATE ends SET object = ?2, digest = ?3 WHERE place = ?1")?;
    let mut rows = select.query([MAX_NAMED_BYTES])?;
    let mut owners: BTreeMap<Digest, Option<String>> = BTreeMap::new();
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        let (place, json): (i64, Vec<u8>) = (row.get(0)?, row.get(1)?);
        let Some(object) = ObjectRef::from_json(&json) else { continue };
        let tenant: Option<String> = row.get(2)?;
        if *owners.entry(object.digest).or_insert_with(|| tenant.clone()) == tenant {
            found.push((place, object));
        }
    }
    for (place, object) in found {
        let bytes = i64::try_from(object.bytes).unwrap_or(i64::MAX);
        update.execute(params![place, bytes, object.digest.as_bytes()])?;
    }
    Ok(())
}

/// Opens or creates a file that only its owner can read.
fn create_private(path: &Path) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

#[cfg(test)]
mod tests {
    use hypha_machine::RowChange;
    use hypha_model::{FailureKind, Name, Payload, TaskError, TaskResult};

    use super::*;
    use crate::Filter;
    use crate::machine_rows::RowChanges;

    /// Rows of the first version are found, and tables of later versions can be written.
    #[test]
    fn a_database_of_the_first_version_is_migrated() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tasks.db");
        let first = Connection::open(&path).unwrap();
        first.execute_batch(INITIAL_TABLES).unwrap();
        let acme: Option<Name> = "acme".parse().ok();
        for (number, tenant) in [(1_u8, &acme), (2, &None), (3, &acme)] {
            let spec = TaskSpec { tenant: tenant.clone(), ..TaskSpec::default() };
            let spec = rows::encode("a task", &spec).unwrap();
            let sql = "INSERT INTO tasks VALUES (?1, 1, NULL, 0, NULL, NULL, ?2)";
            first.execute(sql, params![[number; 16], spec]).unwrap();
        }
        let rows = "INSERT INTO open VALUES (x'01010101010101010101010101010101', 2, 1, 0, 5, x'03030303030303030303030303030303', 9); \
                    INSERT INTO ends VALUES (x'02020202020202020202020202020202', 4, 1, NULL, NULL, 7, NULL, NULL, 'no luck');";
        first.execute_batch(rows).unwrap();
        first.pragma_update(None, "application_id", APPLICATION_ID).unwrap();
        first.pragma_update(None, "user_version", 1).unwrap();
        drop(first);

        for _ in 0..2 {
            let connection = writer(&path, &Options::default()).unwrap();
            let image = crate::recover::read(&connection).unwrap().image;
            let task = &image.tasks[&crate::rows::task_id([1; 16])];
            assert_eq!((task.attempts, task.failures, task.failed.len()), (2, 1, 0));
            assert!(image.removed.is_empty());
            let ledger: Name = "ledger".parse().unwrap();
            let row = RowChange { key: vec![1], value: Some(vec![2]) };
            let mut changes = RowChanges::default();
            changes.add(&ledger, vec![row]);
            changes.write(&connection).unwrap();
            assert_eq!(crate::machine_rows::read(&connection, &ledger).unwrap().0.len(), 1);
            let ended = crate::read::by_id(&connection, crate::rows::task_id([2; 16])).unwrap();
            let ended = ended.unwrap().finished.unwrap();
            let error = TaskError::new(FailureKind::Unknown, "no luck");
            assert_eq!((ended.error.as_ref(), ended.failed.len()), (Some(&error), 0));
            for (tenant, expected) in [(&acme, &[3_u8, 1][..]), (&None, &[2])] {
                let filter = Filter { tenant: Some(tenant.clone()), ..Filter::default() };
                let page = crate::list::list(&connection, &filter, None, 10).unwrap();
                let found = page.tasks.iter().map(|task| task.accepted.id.uuid().as_bytes()[0]);
                assert_eq!(found.collect::<Vec<_>>(), expected);
            }
        }
    }

    /// The eighth version stored JSON that names the object as the result, and could not recognise a result that only
    /// looks like it.
    #[test]
    fn objects_of_version_8_belong_to_the_first_tenant_that_had_them() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tasks.db");
        let eighth = Connection::open(&path).unwrap();
        eighth.execute_batch(INITIAL_TABLES).unwrap();
        for (version, step) in (2..).zip(&MIGRATIONS[..7]) {
            eighth.execute_batch(step).unwrap();
            if version == WITH_PLACES {
                assign_row_keys(&eighth).unwrap();
            }
        }
        let digest = Payload::from(&b"large"[..]).digest();
        let name = format!("{{\"bytes\":5,\"object\":\"{digest}\"}}");
        let spaced = name.replace(':', ": ");
        let rows = [
            // The number of the task, its tenant, its end time, the result, and whether that is an object.
            (1_u8, Some("mallory"), 30, &*name, false),
            (2, Some("acme"), 10, &*name, true),
            (3, Some("acme"), 20, &*name, true),
            (4, None, 40, &*name, false),
            (5, Some("acme"), 5, &*spaced, false),
            (6, Some("acme"), 6, "[1]", false),
        ];
        let spec = rows::encode("a task", &TaskSpec::default()).unwrap();
        let id = |number: u8| rows::task_id([number; 16]);
        for (number, tenant, finished, result, _) in rows {
            let place = row_keys::default_key(id(number));
            let sql = "INSERT INTO tasks VALUES (?1, ?2, 1, NULL, 0, NULL, NULL, ?3, ?4)";
            eighth.execute(sql, params![place, [number; 16], spec, tenant]).unwrap();
            let of_json = Payload::from(result.as_bytes()).digest();
            let sql = "INSERT INTO ends VALUES (?1, 3, 1, NULL, NULL, ?2, ?3, ?4, NULL, NULL, NULL, NULL)";
            let result = params![place, finished, of_json.as_bytes(), result.as_bytes()];
            eighth.execute(sql, result).unwrap();
        }
        eighth.pragma_update(None, "application_id", APPLICATION_ID).unwrap();
        eighth.pragma_update(None, "user_version", 8).unwrap();
        drop(eighth);

        for _ in 0..2 {
            let connection = writer(&path, &Options::default()).unwrap();
            for (number, _, _, result, is_object) in rows {
                let task = crate::read::by_id(&connection, id(number)).unwrap().unwrap();
                let expected = match is_object {
                    true => TaskResult::Object(ObjectRef { digest, bytes: 5, by_digest: true }),
                    false => TaskResult::of(Payload::from(result.as_bytes())),
                };
                assert_eq!(task.finished.unwrap().result, Some(expected), "{number}");
            }
        }
    }

    /// The fourth version keyed tasks by id, and all ids of a batch had the same moment.
    #[test]
    fn tasks_of_the_fourth_version_get_row_keys() {
        const TASKS: u8 = 5;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tasks.db");
        let fourth = Connection::open(&path).unwrap();
        fourth.execute_batch(INITIAL_TABLES).unwrap();
        MIGRATIONS[..3].iter().for_each(|step| fourth.execute_batch(step).unwrap());
        // The last byte is not part of the moment.
        let id = |number: u8| {
            let mut id = [9; 16];
            id[15] = number;
            id
        };
        let spec = rows::encode("a task", &TaskSpec::default()).unwrap();
        for number in 0..TASKS {
            let owner = rows::owner(None, &format!("key {number}"));
            let sql = "INSERT INTO tasks VALUES (?1, 1, NULL, 0, NULL, ?2, ?3, NULL)";
            fourth.execute(sql, params![id(number), owner, spec]).unwrap();
            let sql = "INSERT INTO keys (owner, task) VALUES (?1, ?2)";
            fourth.execute(sql, params![owner, id(number)]).unwrap();
            let sql = match number {
                0 => "INSERT INTO ends VALUES (?1, 3, ?2, NULL, NULL, 7, NULL, NULL, NULL, NULL)",
                _ => "INSERT INTO open VALUES (?1, ?2, 0, 0, NULL, NULL, NULL, NULL)",
            };
            fourth.execute(sql, params![id(number), number]).unwrap();
        }
        fourth.pragma_update(None, "application_id", APPLICATION_ID).unwrap();
        fourth.pragma_update(None, "user_version", 4).unwrap();
        drop(fourth);

        for _ in 0..2 {
            let connection = writer(&path, &Options::default()).unwrap();
            let image = crate::recover::read(&connection).unwrap().image;
            assert_eq!(image.last_id, Some(rows::task_id(id(TASKS - 1))));
            for number in 0..TASKS {
                let task = crate::read::by_id(&connection, rows::task_id(id(number))).unwrap();
                let task = task.unwrap();
                assert_eq!(task.attempts, u32::from(number));
                assert_eq!(task.finished.is_some(), number == 0);
                let key = format!("key {number}");
                let by_key = crate::read::by_key(&connection, None, &key).unwrap();
                assert_eq!(by_key.as_ref(), Some(&task));
                assert!(image.tasks.contains_key(&task.accepted.id));
            }
            let page = crate::list::list(&connection, &Filter::default(), None, 10).unwrap();
            let found = page.tasks.iter().map(|task| task.accepted.id.uuid().as_bytes()[15]);
            assert_eq!(found.collect::<Vec<_>>(), [4, 3, 2, 1, 0], "in the order of ids");
        }
    }
}
