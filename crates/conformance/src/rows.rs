//! The rows of other machines, beside the scheduler's records.

use hypha_engine::Record;
use hypha_machine::{Apply, Recover, Rows};
use hypha_model::{Epoch, Rng};

use crate::samples::{accepted, id};
use crate::{Harness, Transfer, commit, start_commit};

const SEEDS: u64 = 16;

/// The last change of a key counts, in a commit and across commits; removed rows are gone.
pub async fn rows_are_what_the_records_add_up_to<H: Harness>(_: H) {
    for seed in 0..SEEDS {
        let rng = &mut Rng::new(seed);
        let mut harness = H::default();
        let (mut store, _) = harness.open();
        let mut expected = Rows::default();
        for _ in 0..3 {
            let (machine, found) = harness.machine(&store, "ledger").await;
            assert_eq!(found, expected, "seed {seed}");
            let mut in_flight = Vec::new();
            for _ in 0..rng.below(6) {
                let records: Vec<_> = (0..rng.below(5)).map(|_| Transfer::any(rng)).collect();
                records.iter().for_each(|record| expected.apply(record));
                in_flight.push(start_commit(&machine, records));
            }
            in_flight.into_iter().for_each(|committing| committing.wait().unwrap());
            assert_eq!(machine.recover().await.unwrap(), expected, "seed {seed}");
            drop(machine);
            (store, _) = harness.crash(store);
        }
    }
}

/// The same keys under other names are other rows.
pub async fn machines_have_rows_of_their_own<H: Harness>(mut harness: H) {
    let (store, _) = harness.open();
    let names = ["ledger", "ledger-2", "Ledger"];
    let mut journals = Vec::new();
    for (name, amount) in names.into_iter().zip(1..) {
        let (machine, rows) = harness.machine(&store, name).await;
        assert_eq!(rows, Rows::default());
        commit(&machine, vec![Transfer::all(1, 2, amount)]).unwrap();
        journals.push(machine);
    }
    commit(&journals[1], vec![Transfer::all(2, 3, 9)]).unwrap();
    drop(journals);
    let (store, _) = harness.crash(store);
    for (name, expected) in names.into_iter().zip([(2, 1), (3, 9), (2, 3)]) {
        let (_, rows) = harness.machine(&store, name).await;
        let (account, amount): (u8, u64) = expected;
        let expected = [(vec![account], amount.to_be_bytes().to_vec())];
        assert_eq!(rows, Rows(expected.into()), "{name}");
    }
}

/// Commits are in flight at the same time, and all are durable after a crash.
pub async fn rows_and_tasks_are_committed_side_by_side<H: Harness>(mut harness: H) {
    const COMMITS: u64 = 30;
    let (store, _) = harness.open();
    let (machine, _) = harness.machine(&store, "ledger").await;
    let mut in_flight = Vec::new();
    for number in 0..COMMITS {
        in_flight.push(start_commit(&store, vec![accepted(number)]));
        in_flight.push(start_commit(&machine, vec![Transfer::all(0, 1, number + 1)]));
    }
    in_flight.into_iter().for_each(|committing| committing.wait().unwrap());
    drop(machine);
    let (store, image) = harness.crash(store);
    assert_eq!(
        image.tasks.keys().copied().collect::<Vec<_>>(),
        (0..COMMITS).map(id).collect::<Vec<_>>()
    );
    let (_, rows) = harness.machine(&store, "ledger").await;
    assert_eq!(rows.0[&vec![1]], COMMITS.to_be_bytes());
}

/// The rule of the scheduler's commits holds for each machine. The recovery of one machine does not resume the others:
/// they have lost records of their own.
pub async fn failed_rows_stop_their_machine_until_it_recovers<H: Harness>(mut harness: H) {
    let (store, _) = harness.open();
    let (machine, _) = harness.machine(&store, "ledger").await;
    commit(&machine, vec![Transfer::all(1, 2, 10)]).unwrap();
    let durable = machine.recover().await.unwrap();
    harness.fail_writes(true);
    commit(&machine, vec![Transfer::all(2, 3, 10)]).unwrap_err();
    commit(&store, vec![accepted(1), Record::Started { epoch: Epoch(2) }]).unwrap_err();
    machine.healthy().unwrap_err();
    machine.recover().await.unwrap_err();
    harness.fail_writes(false);
    commit(&machine, vec![Transfer::all(3, 4, 10)]).expect_err("it may depend on lost records");
    assert_eq!(machine.recover().await.unwrap(), durable);
    machine.healthy().unwrap();
    store.healthy().expect_err("the scheduler has not recovered");
    commit(&store, vec![accepted(2)]).unwrap_err();
    commit(&machine, vec![Transfer::all(2, 5, 10)]).unwrap();
    store.recover().await.unwrap();
    commit(&store, vec![accepted(3)]).unwrap();
    drop(machine);
    let (store, image) = harness.crash(store);
    assert_eq!(image.tasks.keys().copied().collect::<Vec<_>>(), [id(3)]);
    let (_, rows) = harness.machine(&store, "ledger").await;
    let account_5 = (vec![5], 10_u64.to_be_bytes().to_vec());
    assert_eq!(rows, Rows([account_5].into()));
}
