//! Forgotten tasks leave no rows behind.

use std::sync::Arc;

use hypha_conformance::commit;
use hypha_conformance::samples::{accepted, at, attempted, finished};
use hypha_engine::Record;
use hypha_engine::record::{AcceptedTask, FinishedTask};
use hypha_model::{Rng, TaskId, TaskState, Time};
use hypha_store::Store;

use crate::rows::rows;

#[tokio::test]
async fn forgotten_tasks_leave_no_row_behind() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tasks.db");
    let (store, _) = Store::open(&path).unwrap();
    let mut records: Vec<Record> = (0..30).map(accepted).collect();
    records.extend((0..10).map(|number| finished(number, TaskState::Completed)));
    records.extend((10..20).map(|number| attempted(number, 1, 1)));
    commit(&store, records).unwrap();
    assert_eq!(store.forget_finished_before(Time::MAX).await.unwrap(), 10);
    // Every third open task has a key.
    for (table, expected) in [("tasks", 20), ("open", 20), ("ends", 0), ("keys", 6)] {
        assert_eq!(rows(&path, table), expected, "{table}");
    }
}

/// The ids differ only in their random part, so all tasks but the first are moved.
#[tokio::test]
async fn forgotten_tasks_of_the_same_moment_leave_no_row_behind() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tasks.db");
    let (store, _) = Store::open(&path).unwrap();
    for number in 0..4 {
        let twin = TaskId::new(at(0), &mut Rng::new(number));
        let Record::Accepted(task) = accepted(number) else { unreachable!() };
        let task = AcceptedTask { id: twin, ..(*task).clone() };
        let Record::Finished(end) = finished(number, TaskState::Completed) else { unreachable!() };
        let end = FinishedTask { task: twin, ..(*end).clone() };
        let records = vec![Record::Accepted(Arc::new(task)), Record::Finished(Arc::new(end))];
        commit(&store, records).unwrap();
    }
    assert_eq!(rows(&path, "moved"), 3);
    assert_eq!(store.forget_finished_before(at(1_000)).await.unwrap(), 4);
    for table in ["tasks", "open", "ends", "keys", "moved"] {
        assert_eq!(rows(&path, table), 0, "{table}");
    }
}
