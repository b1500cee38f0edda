//! Queries: one task, keys, lists.

use std::fmt::Debug;
use std::sync::Arc;

use hypha_engine::record::{AcceptedTask, FinishedTask};
use hypha_engine::store::{Filter, MAX_PAGE};
use hypha_engine::{Record, SchedulerStore};
use hypha_model::{AttemptId, Fence, Rng, Span, TaskId, TaskState};

use crate::samples::{accepted, at, attempted, finished, id, worker_id};
use crate::{Harness, commit};

/// Tasks 0 to 29: the first ten have completed, the second ten are dispatched to worker 1, the last ten wait.
pub(crate) fn thirty_tasks() -> Vec<Record> {
    let mut records: Vec<Record> = (0..30).map(accepted).collect();
    records.extend((0..10).map(|number| finished(number, TaskState::Completed)));
    records.extend((10..20).map(|number| attempted(number, 1, 1)));
    records
}

/// All pages together.
pub(crate) async fn all_ids<S>(store: &S, filter: Filter, limit: usize) -> Vec<TaskId>
where
    S: SchedulerStore<Error: Debug>,
{
    let (mut found, mut pages, mut behind) = (Vec::new(), 0, None);
    loop {
        let page = store.list(filter.clone(), behind, limit).await.unwrap();
        assert!(page.tasks.len() <= limit);
        assert!(page.tasks.iter().all(|task| filter.matches(task)), "{filter:?}");
        found.extend(page.tasks.iter().map(|task| task.accepted.id));
        (behind, pages) = (page.next, pages + 1);
        assert!(pages <= 100, "the list does not end: {filter:?}");
        if behind.is_none() {
            return found;
        }
    }
}

/// Each filter, the latest first, in pages without gaps or repeats.
pub async fn lists_are_filtered_and_come_in_pages<H: Harness>(mut harness: H) {
    let (store, _) = harness.open();
    commit(&store, thirty_tasks()).unwrap();
    let ids = |numbers: &mut dyn Iterator<Item = u64>| numbers.map(id).collect::<Vec<_>>();
    let every = Filter::default();
    let state = |state| Filter { state: Some(state), ..Filter::default() };
    let tenant = |tenant: Option<&str>| Filter {
        tenant: Some(tenant.map(|name| name.parse().unwrap())),
        ..Filter::default()
    };
    for (filter, expected) in [
        (every.clone(), ids(&mut (0..30).rev())),
        (state(TaskState::Queued), ids(&mut (20..30).rev())),
        (state(TaskState::Scheduled), ids(&mut (10..20).rev())),
        (state(TaskState::Running), ids(&mut (10..20).rev())),
        (state(TaskState::Completed), ids(&mut (0..10).rev())),
        (state(TaskState::Failed), vec![]),
        (
            Filter { model: Some("model-1".parse().unwrap()), ..every.clone() },
            ids(&mut (0..30).rev().filter(|number| number % 3 == 1)),
        ),
        (
            Filter { worker: Some(worker_id(1)), ..every.clone() },
            ids(&mut (0..20).rev().filter(|number| *number >= 10 || number % 4 == 1)),
        ),
        (tenant(Some("acme")), ids(&mut (0..30).rev().filter(|number| number % 2 == 0))),
        (tenant(None), ids(&mut (0..30).rev().filter(|number| number % 2 == 1))),
        (tenant(Some("other")), vec![]),
        (
            Filter { state: Some(TaskState::Scheduled), ..tenant(Some("acme")) },
            ids(&mut (10..20).rev().filter(|number| number % 2 == 0)),
        ),
        (Filter { since: Some(at(12)), ..every }, ids(&mut (12..30).rev())),
        (Filter { since: Some(at(25)), ..state(TaskState::Queued) }, ids(&mut (25..30).rev())),
        (
            // Within the millisecond of an id.
            Filter { since: Some(at(25) + Span::from_micros(1)), ..state(TaskState::Queued) },
            ids(&mut (26..30).rev()),
        ),
    ] {
        for limit in [1, 4, 7, 1_000] {
            assert_eq!(
                all_ids(&store, filter.clone(), limit).await,
                expected,
                "{limit}, {filter:?}"
            );
        }
    }
}

/// A page has at least one task, and at most `MAX_PAGE`.
pub async fn pages_are_bounded<H: Harness>(mut harness: H) {
    let (store, _) = harness.open();
    let tasks = MAX_PAGE as u64 + 5;
    commit(&store, (0..tasks).map(accepted).collect()).unwrap();
    let page = store.list(Filter::default(), None, usize::MAX).await.unwrap();
    assert_eq!((page.tasks.len(), page.next), (MAX_PAGE, Some(id(5))));
    let page = store.list(Filter::default(), page.next, usize::MAX).await.unwrap();
    assert_eq!((page.tasks.len(), page.next), (5, None));
    let page = store.list(Filter::default(), None, 0).await.unwrap();
    assert_eq!((page.tasks.len(), page.next), (1, Some(id(tasks - 1))));
}

/// With its result, if it has ended.
pub async fn task_is_found_by_its_id_and_by_its_key<H: Harness>(mut harness: H) {
    let (store, _) = harness.open();
    commit(&store, thirty_tasks()).unwrap();
    assert_eq!(store.task(id(99)).await.unwrap(), None);
    let task = store.task(id(6)).await.unwrap().unwrap();
    let end = task.finished.as_ref().unwrap();
    assert_eq!(end.state, TaskState::Completed);
    assert_eq!(end.result.as_ref().unwrap().payload().unwrap().bytes(), b"result 6");
    let acme = "acme".parse().ok();
    assert_eq!(store.by_idempotency_key(acme, "key-6".into()).await.unwrap(), Some(task));
    assert_eq!(store.by_idempotency_key(None, "key-6".into()).await.unwrap(), None);
    let of_nobody = store.by_idempotency_key(None, "key-9".into()).await.unwrap();
    assert_eq!(of_nobody.unwrap().accepted.id, id(9));
}

/// The task, of this tenant and with this key.
pub(crate) fn accepted_with_key(number: u64, tenant: Option<&str>, key: &str) -> Record {
    let Record::Accepted(task) = accepted(number) else { unreachable!() };
    let mut task = (*task).clone();
    Arc::make_mut(&mut task.spec).tenant = tenant.map(|name| name.parse().unwrap());
    task.idempotency_key = Some(key.into());
    Record::Accepted(Arc::new(task))
}

/// The same key of several tenants is several keys; a key that is used again refers to the later task.
pub async fn key_belongs_to_its_tenant_and_its_latest_task<H: Harness>(mut harness: H) {
    let (store, _) = harness.open();
    let tenants = [None, Some("acme"), Some("umbrella")];
    for round in [0, 10] {
        for (number, tenant) in (round..).zip(tenants) {
            let records = vec![
                accepted_with_key(number, tenant, "again"),
                finished(number, TaskState::Completed),
            ];
            commit(&store, records).unwrap();
        }
        for (number, tenant) in (round..).zip(tenants) {
            let tenant = tenant.map(|name| name.parse().unwrap());
            let found = store.by_idempotency_key(tenant, "again".into()).await.unwrap();
            assert_eq!(found.unwrap().accepted.id, id(number));
        }
    }
    let stranger = store.by_idempotency_key("other".parse().ok(), "again".into()).await.unwrap();
    assert_eq!(stranger, None);
}

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

/// Tasks whose ids have the same time: each is found, listed once, and forgotten.
pub async fn tasks_of_the_same_moment_are_kept_apart<H: Harness>(mut harness: H) {
    let (mut store, _) = harness.open();
    for number in 0..TWINS {
        commit(&store, vec![twin_accepted(number)]).unwrap();
    }
    let attempted = Record::AttemptDispatched {
        attempt: AttemptId { task: twin(2), number: 1 },
        fence: Fence(7),
        worker: worker_id(1),
        at: at(1),
    };
    // A repeat changes nothing.
    commit(&store, vec![twin_finished(1), attempted, twin_accepted(1)]).unwrap();
    for crashed in [false, true] {
        if crashed {
            let image;
            (store, image) = harness.crash(store);
            let open = image.tasks.values().filter(|task| task.finished.is_none());
            let mut open: Vec<_> = open.map(|task| (task.attempts, task.accepted.id)).collect();
            open.sort_unstable();
            assert_eq!(open.len(), 3);
            assert_eq!(open[2], (1, twin(2)));
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
        let mut found = all_ids(&store, Filter::default(), 1).await;
        found.sort_unstable();
        let mut expected: Vec<TaskId> = (0..TWINS).map(twin).collect();
        expected.sort_unstable();
        assert_eq!(found, expected, "each is on one page");
    }
    commit(&store, (0..TWINS).map(twin_finished).collect()).unwrap();
    assert_eq!(store.forget_finished_before(at(1_000)).await.unwrap(), TWINS);
    assert_eq!(all_ids(&store, Filter::default(), 10).await, []);
}
