//! Questions: one task, lists, keys, and forgetting.

use std::sync::Arc;

use hypha_engine::Record;
use hypha_model::{Span, TaskId, TaskState, Time};
use hypha_store::{Filter, Store};

use crate::samples::{
    accepted, at, attempted, commit, failed, finished, id, requeued, rows, worker_id,
};

/// Tasks 0 to 29: the first ten have completed, the second ten are with worker 1, the last ten wait.
async fn thirty() -> (tempfile::TempDir, Store) {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = Store::open(&dir.path().join("tasks.db")).unwrap();
    let mut records: Vec<Record> = (0..30).map(accepted).collect();
    records.extend((0..10).map(|number| finished(number, TaskState::Completed)));
    records.extend((10..20).map(|number| attempted(number, 1, 1)));
    commit(&store, records).await.unwrap();
    (dir, store)
}

/// All pages, and how many there were.
async fn all(store: &Store, filter: Filter, limit: usize) -> (Vec<TaskId>, usize) {
    let (mut found, mut pages, mut behind) = (Vec::new(), 0, None);
    loop {
        let page = store.list(filter.clone(), behind, limit).await.unwrap();
        assert!(page.tasks.len() <= limit);
        found.extend(page.tasks.iter().map(|task| task.accepted.id));
        pages += 1;
        behind = page.next;
        if behind.is_none() {
            return (found, pages);
        }
    }
}

#[tokio::test]
async fn lists_are_filtered_and_come_in_pages() {
    let (_dir, store) = thirty().await;
    let ids = |numbers: &mut dyn Iterator<Item = u64>| numbers.map(id).collect::<Vec<_>>();
    let every = Filter::default();
    assert_eq!(all(&store, every.clone(), 7).await, (ids(&mut (0..30).rev()), 5));
    assert_eq!(all(&store, every, 1_000).await, (ids(&mut (0..30).rev()), 1));
    let state = |state| Filter { state: Some(state), ..Filter::default() };
    for (filter, expected) in [
        (state(TaskState::Queued), ids(&mut (20..30).rev())),
        (state(TaskState::Scheduled), ids(&mut (10..20).rev())),
        (state(TaskState::Running), ids(&mut (10..20).rev())),
        (state(TaskState::Completed), ids(&mut (0..10).rev())),
        (state(TaskState::Failed), vec![]),
        (
            Filter { model: Some("model-1".parse().unwrap()), ..Filter::default() },
            ids(&mut (0..30).rev().filter(|number| number % 3 == 1)),
        ),
        (
            Filter { worker: Some(worker_id(1)), ..Filter::default() },
            ids(&mut (0..20).rev().filter(|number| *number >= 10 || number % 4 == 1)),
        ),
        (
            Filter { tenant: Some("acme".parse().ok()), ..state(TaskState::Scheduled) },
            ids(&mut (10..20).rev().filter(|number| number % 2 == 0)),
        ),
        (Filter { since: Some(at(25)), ..state(TaskState::Queued) }, ids(&mut (25..30).rev())),
        (
            // Within the millisecond of an id.
            Filter { since: Some(at(25) + Span::from_micros(1)), ..state(TaskState::Queued) },
            ids(&mut (26..30).rev()),
        ),
    ] {
        for limit in [1, 4, 100] {
            assert_eq!(all(&store, filter.clone(), limit).await.0, expected, "{filter:?}");
        }
    }
}

#[tokio::test]
async fn a_task_is_found_by_its_id_and_by_its_key() {
    let (_dir, store) = thirty().await;
    assert_eq!(store.task(id(99)).await.unwrap(), None);
    let task = store.task(id(6)).await.unwrap().unwrap();
    assert_eq!(task.finished.as_ref().unwrap().state, TaskState::Completed);
    let key = |tenant: Option<&str>, key: &str| {
        let tenant = tenant.map(|name| name.parse().unwrap());
        store.by_idempotency_key(tenant, Arc::from(key))
    };
    assert_eq!(key(Some("acme"), "key-6").await.unwrap(), Some(task));
    assert_eq!(key(None, "key-6").await.unwrap(), None);
    assert_eq!(key(None, "key-9").await.unwrap().unwrap().accepted.id, id(9));
}

#[tokio::test]
async fn what_ended_long_ago_is_forgotten_whole() {
    let (dir, store) = thirty().await;
    // Task n ends at n + 2.
    assert_eq!(store.forget_finished_before(at(7)).await.unwrap(), 5);
    assert_eq!(all(&store, Filter::default(), 100).await.0.len(), 25);
    let gone = store.by_idempotency_key(None, Arc::from("key-3"));
    assert_eq!(gone.await.unwrap(), None);
    assert_eq!(store.forget_finished_before(Time::MAX).await.unwrap(), 5);
    assert_eq!(store.forget_finished_before(Time::MAX).await.unwrap(), 0);
    // No row is left behind; every third of those that are open has a key.
    for (table, expected) in [("tasks", 20), ("open", 20), ("ends", 0), ("keys", 6)] {
        assert_eq!(rows(&dir.path().join("tasks.db"), table), expected, "{table}");
    }
}

#[tokio::test]
async fn forgetting_goes_through_many_transactions() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = Store::open(&dir.path().join("tasks.db")).unwrap();
    let ended = |number| [accepted(number), finished(number, TaskState::Completed)];
    commit(&store, (0..2_500).flat_map(ended).collect()).await.unwrap();
    assert_eq!(store.forget_finished_before(at(2_402)).await.unwrap(), 2_400);
    assert_eq!(rows(&dir.path().join("tasks.db"), "ends"), 100);
}

/// A task that ends in the millisecond before which all is forgotten, in an id order of chance.
#[tokio::test]
async fn forgetting_is_exact_within_a_millisecond() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = Store::open(&dir.path().join("tasks.db")).unwrap();
    let Record::Finished(mut end) = finished(5, TaskState::Completed) else { unreachable!() };
    Arc::make_mut(&mut end).finished = at(5) + Span::from_micros(10);
    commit(&store, vec![accepted(5), Record::Finished(end.clone())]).await.unwrap();
    assert_eq!(store.forget_finished_before(end.finished).await.unwrap(), 0);
    let later = end.finished + Span::from_micros(1);
    assert_eq!(store.forget_finished_before(later).await.unwrap(), 1);
}

/// Each in a transaction of its own, so that rows are changed and not only written.
#[tokio::test]
async fn failed_attempts_are_those_of_the_last_word() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = Store::open(&dir.path().join("tasks.db")).unwrap();
    commit(&store, vec![accepted(1)]).await.unwrap();
    assert!(store.task(id(1)).await.unwrap().unwrap().failed.is_empty());
    for failures in 0..3 {
        commit(&store, vec![attempted(1, failures + 1, 1)]).await.unwrap();
        commit(&store, vec![requeued(1, failures)]).await.unwrap();
        let task = store.task(id(1)).await.unwrap().unwrap();
        assert_eq!(task.failed, failed(failures + 1));
    }
    commit(&store, vec![attempted(1, 4, 1)]).await.unwrap();
    assert_eq!(store.task(id(1)).await.unwrap().unwrap().failed, failed(3), "they stay");
    commit(&store, vec![finished(1, TaskState::Failed)]).await.unwrap();
    let ended = store.task(id(1)).await.unwrap().unwrap().finished.unwrap();
    assert_eq!(ended.failed, failed(1), "what the end says");
}
