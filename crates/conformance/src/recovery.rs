//! What a new incarnation starts with: any sequence of records has the same effect on the store as on an image in
//! memory.

use hypha_engine::record::StoredTask;
use hypha_engine::{Image, Record, SchedulerStore};
use hypha_machine::{Apply, Recover};
use hypha_model::{Epoch, Rng, TaskState};
use hypha_placement::Strategy;
use hypha_predict::{Mode, Predictor};

use crate::samples::{
    accepted, at, attempted, began, failed, finished, health, id, removed, requeued, worker,
    worker_id,
};
use crate::{Harness, commit, start_commit};

const TASKS: u64 = 6;
const SEEDS: u64 = 64;

/// Also records that a scheduler never writes: changes of unknown tasks, repeats, changes after the end.
fn any_record(rng: &mut Rng) -> Record {
    let task = rng.below(TASKS);
    match rng.below(14) {
        0..3 => accepted(task),
        3..6 => attempted(task, 1 + rng.below(3) as u32, rng.below(3)),
        6..8 => requeued(task, rng.below(3) as u32),
        8 => removed(rng.below(3)),
        9 => Record::WorkerReadmitted(worker_id(rng.below(3))),
        10..12 => {
            let attempt = 1 + rng.below(3) as u32;
            began(task, attempt, rng.chance(0.5).then_some("own/7"))
        }
        _ => {
            let ends: Vec<_> = TaskState::ALL.into_iter().filter(|it| it.is_final()).collect();
            finished(task, ends[rng.below(ends.len() as u64) as usize])
        }
    }
}

/// Random commits with a crash among them: tasks are queried one by one, recovered while the store is open, and after
/// another crash.
pub async fn recovery_gives_what_the_records_add_up_to<H: Harness>(_: H) {
    for seed in 0..SEEDS {
        let rng = &mut Rng::new(seed);
        let mut harness = H::default();
        let (mut store, mut image) = harness.open();
        let (commits, crash_at) = (rng.below(12), rng.below(12));
        let mut in_flight = Vec::new();
        for number in 0..commits {
            if number == crash_at {
                in_flight.drain(..).for_each(|it: crate::PendingCommit<_>| it.wait().unwrap());
                let found;
                (store, found) = harness.crash(store);
                check_image(&found, &image, seed);
            }
            let records: Vec<Record> = (0..rng.below(8)).map(|_| any_record(rng)).collect();
            records.iter().for_each(|record| image.apply(record));
            in_flight.push(start_commit(&store, records));
            // A commit that is awaited does not share a transaction with later ones.
            if rng.chance(0.5) {
                in_flight.drain(..).for_each(|it| it.wait().unwrap());
            }
        }
        in_flight.into_iter().for_each(|committing| committing.wait().unwrap());
        for number in 0..TASKS {
            let stored = store.task(id(number)).await.unwrap();
            let expected = image.tasks.get(&id(number));
            match expected.and_then(|task| task.finished.as_ref()) {
                // Its state before the end no longer matters.
                Some(end) => {
                    let stored = stored.unwrap();
                    assert_eq!(stored.finished.as_ref(), Some(end), "seed {seed}");
                    assert_eq!(stored.accepted, expected.unwrap().accepted, "seed {seed}");
                }
                None => assert_eq!(stored.as_ref(), expected, "seed {seed}"),
            }
        }
        check_image(&store.recover().await.unwrap(), &image, seed);
        let (_store, found) = harness.crash(store);
        check_image(&found, &image, seed);
    }
}

/// A store may omit what a scheduler does not need of ended tasks.
fn check_image(found: &Image, expected: &Image, seed: u64) {
    let open = |image: &Image| -> Vec<StoredTask> {
        image.tasks.values().filter(|task| task.finished.is_none()).cloned().collect()
    };
    assert_eq!(open(found), open(expected), "seed {seed}");
    let keys = |image: &Image| -> Vec<_> {
        let with_key = image.tasks.values().filter(|it| it.accepted.idempotency_key.is_some());
        let ended = with_key.filter_map(|task| Some((&task.accepted, task.finished.as_ref()?)));
        let parts = ended.map(|(accepted, end)| {
            let owner = (accepted.spec.tenant.clone(), accepted.idempotency_key.clone());
            (accepted.id, owner, end.state, end.finished)
        });
        parts.collect()
    };
    assert_eq!(keys(found), keys(expected), "seed {seed}");
    assert_eq!(found.last_id, expected.last_id, "seed {seed}");
    assert_eq!(found.removed, expected.removed, "seed {seed}");
}

/// The strategy, the predictor and its mode, the epoch, and workers.
pub async fn recovery_finds_settings_and_workers<H: Harness>(mut harness: H) {
    let (store, image) = harness.open();
    assert_eq!(image.epoch, Epoch(0));
    assert!(image.predictor.is_none() && image.strategy.is_none() && image.mode.is_none());
    let snapshot = Predictor::new(Default::default()).snapshot();
    let health = health();
    let records = vec![
        Record::Started { epoch: Epoch(7) },
        Record::Strategy(Strategy::RoundRobin),
        Record::Mode(Mode::LookupTable),
        Record::Predictor(Box::new(snapshot.clone())),
        Record::Worker { worker: worker(1), health: health.clone() },
        Record::Worker { worker: worker(2), health: health.clone() },
        Record::WorkerForgotten(worker_id(2)),
        removed(1),
        removed(2),
        removed(3),
        Record::WorkerReadmitted(worker_id(3)),
    ];
    commit(&store, records).unwrap();
    let recovered = store.recover().await.unwrap();
    let (_store, after_crash) = harness.crash(store);
    for image in [recovered, after_crash] {
        assert_eq!(image.epoch, Epoch(7));
        assert_eq!(image.strategy, Some(Strategy::RoundRobin));
        assert_eq!(image.mode, Some(Mode::LookupTable));
        assert_eq!(format!("{:?}", image.predictor), format!("{:?}", Some(&snapshot)));
        assert_eq!(image.workers.len(), 1);
        assert_eq!(image.workers[&worker_id(1)], (worker(1), health.clone()));
        assert_eq!(image.removed, [(worker_id(1), at(1)), (worker_id(2), at(2))].into());
    }
}

/// Each in a commit of its own, so that stored rows are updated and not only written.
pub async fn failed_attempts_are_those_of_the_last_record<H: Harness>(mut harness: H) {
    let (store, _) = harness.open();
    commit(&store, vec![accepted(1)]).unwrap();
    assert!(store.task(id(1)).await.unwrap().unwrap().failed.is_empty());
    for failures in 0..3 {
        commit(&store, vec![attempted(1, failures + 1, 1)]).unwrap();
        commit(&store, vec![requeued(1, failures)]).unwrap();
        let task = store.task(id(1)).await.unwrap().unwrap();
        assert_eq!(task.failed, failed(failures + 1));
    }
    commit(&store, vec![attempted(1, 4, 1)]).unwrap();
    assert_eq!(store.task(id(1)).await.unwrap().unwrap().failed, failed(3), "they stay");
    commit(&store, vec![finished(1, TaskState::Failed)]).unwrap();
    let ended = store.task(id(1)).await.unwrap().unwrap().finished.unwrap();
    assert_eq!(ended.failed, failed(1), "those of the last record");
}

/// Each in a commit of its own: updates add up, and updates of another attempt are ignored.
pub async fn details_of_an_attempt_add_up<H: Harness>(mut harness: H) {
    let (store, _) = harness.open();
    commit(&store, vec![accepted(1)]).unwrap();
    let named = Some("own/7");
    let (started, other) = (at(2), Some("own/8"));
    for (record, expected) in [
        (began(1, 1, named), None),
        (attempted(1, 1, 1), Some((None, None))),
        (began(1, 2, other), Some((None, None))),
        (began(1, 1, named), Some((None, named))),
        (began(1, 1, None), Some((Some(started), named))),
        (began(1, 1, other), Some((Some(started), named))),
        (attempted(1, 2, 1), Some((None, None))),
        (began(1, 2, other), Some((None, other))),
        (requeued(1, 1), None),
        (attempted(1, 3, 1), Some((None, None))),
    ] {
        let text = format!("{record:?}");
        commit(&store, vec![record]).unwrap();
        let current = store.task(id(1)).await.unwrap().unwrap().current;
        let found = current.as_ref().map(|it| (it.started, it.handle.as_deref()));
        assert_eq!(found, expected, "{text}");
    }
}
