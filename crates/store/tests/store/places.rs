//! Tasks whose ids were made in the same moment.

use std::sync::Arc;

use hypha_engine::Record;
use hypha_engine::record::{AcceptedTask, FinishedTask};
use hypha_model::{AttemptId, Fence, Rng, TaskId, TaskState};
use hypha_store::{Filter, Store};

use crate::samples::{accepted, at, commit, finished, rows, worker_id};

const TWINS: u64 = 4;

/// The ids differ in their randomness alone.
fn twin(number: u64) -> TaskId {
    TaskId::new(at(0), &mut Rng::new(number))
}

fn twin_accepted(number: u64) -> Record {
    let Record::Accepted(task) = accepted(number) else { unreachable!() };
    Record::Accepted(Arc::new(AcceptedTask { id: twin(number), ..(*task).clone() }))
}

fn twin_finished(number: u64) -> Record {
    let Record::Finished(task) = finished(number, TaskState::Completed) else { unreachable!() };
    Record::Finished(Arc::new(FinishedTask { task: twin(number), ..(*task).clone() }))
}

#[tokio::test]
async fn tasks_of_the_same_moment_are_all_kept_apart() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tasks.db");
    let (mut store, _) = Store::open(&path).unwrap();
    for number in 0..TWINS {
        commit(&store, vec![twin_accepted(number)]).await.unwrap();
    }
    let attempted = Record::Attempted {
        attempt: AttemptId { task: twin(2), number: 1 },
        fence: Fence(7),
        worker: worker_id(1),
        at: at(1),
    };
    // A repeat changes nothing.
    commit(&store, vec![twin_finished(1), attempted, twin_accepted(1)]).await.unwrap();
    for reopened in [false, true] {
        if reopened {
            drop(store);
            let recovered;
            (store, recovered) = Store::open(&path).unwrap();
            let open = recovered.image.tasks.values().filter(|task| task.finished.is_none());
            let mut open: Vec<_> = open.map(|task| (task.accepted.id, task.attempts)).collect();
            open.sort_unstable_by_key(|(_, attempts)| *attempts);
            assert_eq!(open.len(), 3);
            assert_eq!(open[2], (twin(2), 1));
        }
        for number in 0..TWINS {
            let task = store.task(twin(number)).await.unwrap().unwrap();
            let Record::Accepted(expected) = twin_accepted(number) else { unreachable!() };
            assert_eq!(task.accepted, expected);
            assert_eq!(task.finished.is_some(), number == 1, "{number}");
            assert_eq!(task.current.is_some(), number == 2, "{number}");
        }
        assert_eq!(store.task(twin(TWINS)).await.unwrap(), None, "it was never accepted");
        let of_key = store.by_idempotency_key(None, "key-3".into()).await.unwrap().unwrap();
        assert_eq!(of_key.accepted.id, twin(3));
        let (mut found, mut behind) = (Vec::new(), None);
        while found.len() < TWINS as usize {
            let page = store.list(Filter::default(), behind, 1).await.unwrap();
            found.extend(page.tasks.iter().map(|task| task.accepted.id));
            behind = page.next;
        }
        found.sort_unstable();
        found.dedup();
        assert_eq!(found.len(), TWINS as usize, "each is on one page");
    }
    commit(&store, (0..TWINS).map(twin_finished).collect()).await.unwrap();
    assert_eq!(store.forget_finished_before(at(1_000)).await.unwrap(), TWINS);
    for table in ["tasks", "open", "ends", "keys", "moved"] {
        assert_eq!(rows(&path, table), 0, "{table}");
    }
}
