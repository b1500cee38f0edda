//! Forgetting tasks that ended long ago.

use std::sync::Arc;

use hypha_engine::store::Filter;
use hypha_engine::{Record, SchedulerStore};
use hypha_model::{Epoch, Span, TaskState, Time};

use crate::queries::{accepted_with_key, all_ids, thirty_tasks};
use crate::samples::{accepted, at, finished, id};
use crate::{Harness, commit};

/// With results and keys, and permanently; tasks that have not ended stay, and so does a key that a later task reuses.
pub async fn finished_tasks_are_forgotten_with_their_keys<H: Harness>(mut harness: H) {
    let (store, _) = harness.open();
    commit(&store, thirty_tasks()).unwrap();
    // Its key is that of task 3.
    commit(&store, vec![accepted_with_key(40, None, "key-3")]).unwrap();
    // Task n ends at n + 2.
    assert_eq!(store.forget_finished_before(at(7)).await.unwrap(), 5);
    assert_eq!(store.task(id(4)).await.unwrap(), None);
    assert!(store.task(id(5)).await.unwrap().is_some());
    let acme = "acme".parse().ok();
    assert_eq!(store.by_idempotency_key(acme, "key-0".into()).await.unwrap(), None);
    let taken_over = store.by_idempotency_key(None, "key-3".into()).await.unwrap();
    assert_eq!(taken_over.unwrap().accepted.id, id(40));
    assert_eq!(store.forget_finished_before(Time::MAX).await.unwrap(), 5);
    assert_eq!(store.forget_finished_before(Time::MAX).await.unwrap(), 0);
    let (store, image) = harness.crash(store);
    let expected: Vec<_> = (10..30).chain([40]).map(id).collect();
    assert_eq!(image.tasks.keys().copied().collect::<Vec<_>>(), expected);
    let listed = all_ids(&store, Filter::default(), 100).await;
    assert_eq!(listed.into_iter().rev().collect::<Vec<_>>(), expected);
}

/// More than a store may want to forget in one transaction.
pub async fn many_tasks_are_forgotten<H: Harness>(mut harness: H) {
    let (store, _) = harness.open();
    let ended = |number| [accepted(number), finished(number, TaskState::Completed)];
    commit(&store, (0..2_500).flat_map(ended).collect()).unwrap();
    assert_eq!(store.forget_finished_before(at(2_402)).await.unwrap(), 2_400);
    assert_eq!(all_ids(&store, Filter::default(), 1_000).await.len(), 100);
}

/// A task that ends within the millisecond of the limit.
pub async fn forgetting_is_exact_within_a_millisecond<H: Harness>(mut harness: H) {
    let (store, _) = harness.open();
    let Record::Finished(mut end) = finished(5, TaskState::Completed) else { unreachable!() };
    Arc::make_mut(&mut end).finished = at(5) + Span::from_micros(10);
    commit(&store, vec![accepted(5), Record::Finished(end.clone())]).unwrap();
    assert_eq!(store.forget_finished_before(end.finished).await.unwrap(), 0);
    let later = end.finished + Span::from_micros(1);
    assert_eq!(store.forget_finished_before(later).await.unwrap(), 1);
}

/// Ids grow from one incarnation to the next, also if the task with the last id is forgotten.
pub async fn the_last_id_outlives_its_task<H: Harness>(mut harness: H) {
    let (store, _) = harness.open();
    let ended = |number| vec![accepted(number), finished(number, TaskState::Completed)];
    commit(&store, [ended(1), ended(2)].concat()).unwrap();
    assert_eq!(store.forget_finished_before(Time::MAX).await.unwrap(), 2);
    let (store, image) = harness.crash(store);
    assert_eq!((image.tasks.len(), image.last_id), (0, Some(id(2))));
    // Forgetting a task that is not the latest changes nothing.
    commit(&store, [ended(3), vec![accepted(4)]].concat()).unwrap();
    assert_eq!(store.forget_finished_before(Time::MAX).await.unwrap(), 1);
    let (_, image) = harness.crash(store);
    assert_eq!(image.last_id, Some(id(4)));
}

/// It may free disk space; but lost records stay lost, and commits still fail.
pub async fn forgetting_works_while_commits_fail<H: Harness>(mut harness: H) {
    let (store, _) = harness.open();
    commit(&store, thirty_tasks()).unwrap();
    // Its reply shows that the work of the commit before it is over.
    commit(&store, vec![]).unwrap();
    harness.fail_writes(true);
    commit(&store, vec![accepted(50), Record::Started { epoch: Epoch(2) }]).unwrap_err();
    assert_eq!(store.forget_finished_before(at(7)).await.unwrap(), 5);
    harness.fail_writes(false);
    commit(&store, vec![accepted(51)]).unwrap_err();
    assert_eq!(all_ids(&store, Filter::default(), 100).await.len(), 25);
}
