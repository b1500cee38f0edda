//! Opening: what is refused, and what a restart finds.

use hypha_conformance::commit;
use hypha_conformance::samples::{accepted, at, attempted, finished, id};
use hypha_model::TaskState;
use hypha_store::{Store, StoreError};

#[tokio::test]
async fn one_scheduler_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tasks.db");
    let (first, _) = Store::open(&path).unwrap();
    let refused = Store::open(&path).unwrap_err();
    assert!(matches!(refused, StoreError::InUse(_)), "{refused}");
    assert!(refused.to_string().starts_with("another scheduler is using `"), "{refused}");
    drop(first);
    Store::open(&path).unwrap();
}

#[tokio::test]
async fn newer_schema_is_refused_and_not_modified() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tasks.db");
    drop(Store::open(&path).unwrap());
    let connection = rusqlite::Connection::open(&path).unwrap();
    connection.pragma_update(None, "user_version", 99).unwrap();
    drop(connection);
    let refused = Store::open(&path).unwrap_err();
    assert!(matches!(refused, StoreError::Newer { found: 99, .. }), "{refused}");
}

#[tokio::test]
async fn foreign_database_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let theirs = dir.path().join("theirs.db");
    let connection = rusqlite::Connection::open(&theirs).unwrap();
    connection.execute_batch("CREATE TABLE photos (id INTEGER)").unwrap();
    drop(connection);
    let text = dir.path().join("notes.txt");
    std::fs::write(&text, "not a database at all, but long enough to be looked at".repeat(20))
        .unwrap();
    for path in [theirs, text] {
        let before = std::fs::read(&path).unwrap();
        let refused = Store::open(&path).unwrap_err();
        assert!(matches!(refused, StoreError::Foreign(_)), "{refused}");
        assert_eq!(std::fs::read(&path).unwrap(), before, "the file was changed");
    }
    let nowhere = dir.path().join("no/such/directory/tasks.db");
    let refused = Store::open(&nowhere).unwrap_err();
    assert!(matches!(refused, StoreError::Open { .. }), "{refused}");
}

#[cfg(unix)]
#[tokio::test]
async fn database_file_is_private() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = Store::open(&dir.path().join("tasks.db")).unwrap();
    commit(&store, vec![accepted(1)]).unwrap();
    for entry in std::fs::read_dir(dir.path()).unwrap() {
        let entry = entry.unwrap();
        let mode = entry.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{:?} {mode:o}", entry.file_name());
    }
}

#[tokio::test]
async fn only_the_key_of_an_ended_task_is_recovered() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tasks.db");
    let (store, _) = Store::open(&path).unwrap();
    // Task 6 has a key and a tenant, task 4 has no key.
    let records = vec![
        accepted(4),
        accepted(6),
        attempted(6, 1, 1),
        finished(6, TaskState::Completed),
        finished(4, TaskState::Failed),
    ];
    commit(&store, records).unwrap();
    drop(store);
    let (store, found) = Store::open(&path).unwrap();
    assert_eq!(found.image.tasks.keys().copied().collect::<Vec<_>>(), [id(6)]);
    let task = &found.image.tasks[&id(6)];
    assert_eq!(task.accepted.idempotency_key.as_deref(), Some("key-6"));
    assert_eq!(task.accepted.spec.tenant, Some("acme".parse().unwrap()));
    assert!(task.accepted.spec.input.bytes().is_empty());
    let finished = task.finished.as_ref().unwrap();
    assert_eq!(finished.finished, at(8));
    assert!(finished.result.is_none());
    let stored = store.task(id(6)).await.unwrap().unwrap();
    assert_eq!(
        stored.finished.unwrap().result.as_ref().unwrap().payload().unwrap().bytes(),
        b"result 6"
    );
}
