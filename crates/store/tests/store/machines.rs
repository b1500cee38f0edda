//! The journal of a machine, and its store.

use hypha_conformance::commit;
use hypha_machine::{Journal, Recover, RowChange, RowRecord};
use hypha_store::{MachineStore, Store, StoreError};

struct Written;

impl RowRecord for Written {
    fn add_changes(&self, changes: &mut Vec<RowChange>) {
        changes.push(RowChange { key: vec![1], value: Some(vec![2]) });
    }
}

/// Dropping the store waits for commits, not for machines that could make some.
#[tokio::test]
async fn a_machine_that_outlives_its_store_cannot_commit() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tasks.db");
    let (store, _) = Store::open(&path).unwrap();
    let (machine, _) = store.machine("ledger".parse().unwrap()).await.unwrap();
    let (done, committed) = std::sync::mpsc::sync_channel(1);
    machine.commit(vec![Written], Box::new(move |result| drop(done.send(result))));
    drop(store);
    committed.try_recv().unwrap().unwrap();
    let refused = commit(&machine, vec![Written]).unwrap_err();
    assert!(matches!(refused, StoreError::Closed), "{refused}");
    let refused = Recover::<Written>::recover(&machine).await.unwrap_err();
    assert!(matches!(refused, StoreError::Closed), "{refused}");
    let (store, _) = Store::open(&path).unwrap();
    let (_, rows): (MachineStore, _) = store.machine("ledger".parse().unwrap()).await.unwrap();
    assert_eq!(rows.0, [(vec![1], vec![2])].into());
}
