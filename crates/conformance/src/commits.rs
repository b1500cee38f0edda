//! Commits are atomic, ordered, and durable once they are acknowledged; after a failed commit, all later ones fail.

use hypha_engine::{Record, SchedulerStore};
use hypha_machine::Recover;
use hypha_model::{Epoch, TaskState};

use crate::atomicity::{TASKS_PER_COMMIT, is_committed, records};
use crate::samples::{accepted, attempted, finished, id, key_of, requeued};
use crate::{Harness, PendingCommit, commit, start_commit};

/// Acknowledged commits survive a crash, and commits in flight survive whole or not at all, in order.
pub async fn acknowledged_commits_survive_a_crash<H: Harness>(mut harness: H) {
    let (mut store, image) = harness.open();
    assert!(image.tasks.is_empty() && image.last_id.is_none(), "the store is not empty");
    let mut committed = 0;
    for round in 0..4 {
        for _ in 0..5 {
            commit(&store, records(committed)).unwrap();
            committed += 1;
        }
        for number in committed..committed + 5 {
            drop(start_commit(&store, records(number)));
        }
        let image;
        (store, image) = harness.crash(store);
        for number in 0..committed {
            assert!(is_committed(&store, number).await, "round {round}: commit {number} is lost");
        }
        let acknowledged = committed;
        while is_committed(&store, committed).await {
            committed += 1;
        }
        for number in committed..acknowledged + 5 {
            assert!(!is_committed(&store, number).await, "round {round}: {number} is out of order");
        }
        let open = image.tasks.values().filter(|task| task.finished.is_none()).count();
        assert_eq!(open as u64, committed * (TASKS_PER_COMMIT - 1), "round {round}");
        let last = committed * TASKS_PER_COMMIT - 1;
        assert_eq!(image.last_id, Some(id(last)), "round {round}: new ids may repeat old ones");
    }
}

/// Commits are started without waiting for the one before: the last one wins.
pub async fn commits_in_flight_keep_their_order<H: Harness>(mut harness: H) {
    const COMMITS: u32 = 60;
    let (store, _) = harness.open();
    let mut in_flight = vec![start_commit(&store, vec![accepted(1)])];
    for number in 1..=COMMITS {
        in_flight.push(start_commit(&store, vec![attempted(1, number, 1)]));
        in_flight.push(start_commit(&store, vec![requeued(1, number % 7)]));
    }
    in_flight.push(start_commit(&store, vec![attempted(1, COMMITS + 1, 3)]));
    in_flight.into_iter().for_each(|committing| committing.wait().unwrap());
    let expected = store.task(id(1)).await.unwrap().unwrap();
    assert_eq!((expected.attempts, expected.failures), (COMMITS + 1, COMMITS % 7));
    assert!(expected.current.is_some());
    let (_store, image) = harness.crash(store);
    assert_eq!(image.tasks[&id(1)], expected);
}

/// Each thread commits changes of a task of its own.
pub async fn commits_of_several_threads_keep_the_order_of_each<H: Harness>(mut harness: H) {
    const THREADS: u64 = 4;
    const COMMITS: u32 = 40;
    let (store, _) = harness.open();
    let work = (0..THREADS).map(|task| {
        let store = &store;
        let work = move || {
            let mut in_flight = vec![start_commit(store, vec![accepted(task)])];
            in_flight
                .extend((1..=COMMITS).map(|n| start_commit(store, vec![attempted(task, n, 1)])));
            in_flight.into_iter().for_each(|committing| committing.wait().unwrap());
        };
        Box::new(work) as Box<dyn FnOnce() + Send + '_>
    });
    H::in_parallel(work.collect());
    let (store, image) = harness.crash(store);
    for task in 0..THREADS {
        assert_eq!(image.tasks[&id(task)].attempts, COMMITS, "task {task}");
        assert_eq!(store.task(id(task)).await.unwrap().unwrap().attempts, COMMITS, "task {task}");
    }
}

/// Task 1 is durable and dispatched, and a commit has failed that ends it and accepts tasks 2 and 3.
async fn fail_a_commit<H: Harness>(harness: &mut H) -> H::Store {
    let (store, _) = harness.open();
    commit(&store, vec![accepted(1), attempted(1, 1, 1)]).unwrap();
    store.healthy().unwrap();
    // Its reply shows that the work of the commit before it is over.
    commit(&store, vec![]).unwrap();
    harness.fail_writes(true);
    let lost = vec![
        accepted(2),
        finished(1, TaskState::Completed),
        Record::Started { epoch: Epoch(5) },
        accepted(3),
    ];
    commit(&store, lost).unwrap_err();
    store
}

/// Also commits that would succeed by themselves, and those that were started before the failure was known.
pub async fn failed_commit_stops_later_ones_until_recovery<H: Harness>(mut harness: H) {
    let store = fail_a_commit(&mut harness).await;
    store.healthy().unwrap_err();
    commit(&store, vec![accepted(4)]).unwrap_err();
    store.recover().await.unwrap_err();
    harness.fail_writes(false);
    store.healthy().unwrap_err();
    let later: Vec<PendingCommit<_>> = [vec![accepted(4)], vec![], vec![attempted(1, 2, 2)]]
        .map(|it| start_commit(&store, it))
        .into();
    for later in later {
        later.wait().expect_err("it may depend on lost records");
    }
    let image = store.recover().await.unwrap();
    assert_eq!(image.tasks.keys().copied().collect::<Vec<_>>(), [id(1)]);
    store.healthy().unwrap();
    commit(&store, vec![accepted(5), Record::Started { epoch: Epoch(6) }]).unwrap();
    let (_store, image) = harness.crash(store);
    assert_eq!(image.tasks.keys().copied().collect::<Vec<_>>(), [id(1), id(5)]);
    assert_eq!(image.epoch, Epoch(6));
}

/// Neither before recovery, nor after it, nor after a crash.
pub async fn failed_commit_leaves_nothing<H: Harness>(mut harness: H) {
    let store = fail_a_commit(&mut harness).await;
    commit(&store, vec![accepted(6)]).unwrap_err();
    only_task_1_is_there(&store).await;
    harness.fail_writes(false);
    let image = store.recover().await.unwrap();
    assert_eq!(image.epoch, Epoch::default());
    assert_eq!(image.last_id, Some(id(1)));
    only_task_1_is_there(&store).await;
    let (store, image) = harness.crash(store);
    assert_eq!(image.tasks[&id(1)].attempts, 1);
    only_task_1_is_there(&store).await;
}

async fn only_task_1_is_there<S: SchedulerStore<Error: std::fmt::Debug>>(store: &S) {
    let task = store.task(id(1)).await.unwrap().unwrap();
    assert!(task.finished.is_none() && task.current.is_some());
    for lost in [2, 3, 6] {
        assert_eq!(store.task(id(lost)).await.unwrap(), None, "task {lost}");
        if let Some((tenant, key)) = key_of(lost) {
            assert_eq!(store.by_idempotency_key(tenant, key).await.unwrap(), None, "task {lost}");
        }
    }
    let page = store.list(Default::default(), None, 10).await.unwrap();
    assert_eq!(page.tasks, [task]);
}
