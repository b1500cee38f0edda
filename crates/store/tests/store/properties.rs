//! Any sequence of records means to the store what it means to an image in memory.

use hypha_engine::{Image, Record};
use hypha_model::TaskState;
use hypha_store::Store;
use proptest::prelude::*;

use crate::samples::{accepted, attempted, finished, hand_over, id, removed, requeued, worker_id};

const TASKS: u64 = 6;

/// Also what a scheduler never does: changes of unknown tasks, repeats, changes after the end.
fn record() -> impl Strategy<Value = Record> {
    let task = 0..TASKS;
    let state = prop::sample::select(vec![
        TaskState::Completed,
        TaskState::Failed,
        TaskState::Cancelled,
        TaskState::Expired,
    ]);
    prop_oneof![
        3 => task.clone().prop_map(accepted),
        3 => (task.clone(), 1..4_u32, 0..3_u64).prop_map(|(task, n, w)| attempted(task, n, w)),
        2 => (task.clone(), 0..3_u32).prop_map(|(task, failures)| requeued(task, failures)),
        1 => (0..3_u64).prop_map(removed),
        1 => (0..3_u64).prop_map(|worker| Record::WorkerReadmitted(worker_id(worker))),
        2 => (task, state).prop_map(|(task, state)| finished(task, state)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn rows_follow_the_image(
        commits in prop::collection::vec(prop::collection::vec(record(), 0..8), 0..12),
        reopen_at in 0..12_usize,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tasks.db");
        let mut image = Image::default();
        let (mut store, _) = Store::open(&path).unwrap();
        let store = runtime.block_on(async {
            let mut waiting = Vec::new();
            for (at, records) in commits.into_iter().enumerate() {
                if at == reopen_at {
                    drop(store);
                    store = Store::open(&path).unwrap().0;
                }
                records.iter().for_each(|record| image.apply(record));
                waiting.push(hand_over(&store, records));
            }
            for committing in waiting {
                committing.await.unwrap().unwrap();
            }
            for number in 0..TASKS {
                let stored = store.task(id(number)).await.unwrap();
                let expected = image.tasks.get(&id(number));
                let end = expected.and_then(|task| task.finished.as_ref());
                if let Some(end) = end {
                    let stored = stored.unwrap();
                    assert_eq!(stored.finished.as_ref(), Some(end));
                    assert_eq!(stored.accepted, expected.unwrap().accepted);
                } else {
                    assert_eq!(stored.as_ref(), expected);
                }
            }
            store
        });
        drop(store);
        let (_store, found) = Store::open(&path).unwrap();
        let open = |image: &Image| {
            let tasks = image.tasks.values().filter(|task| task.finished.is_none());
            tasks.cloned().collect::<Vec<_>>()
        };
        prop_assert_eq!(open(&found.image), open(&image));
        prop_assert_eq!(found.image.removed, image.removed);
    }
}
