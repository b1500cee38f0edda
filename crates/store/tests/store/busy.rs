//! More pending commits than the queue holds.

use std::sync::mpsc;

use hypha_conformance::samples::{accepted, id};
use hypha_conformance::{commit, start_commit};
use hypha_machine::Journal;
use hypha_store::{Store, StoreError};

#[tokio::test]
async fn a_commit_refused_by_a_full_queue_stops_later_ones_until_recovery() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = Store::open(&dir.path().join("tasks.db")).unwrap();
    // The callback blocks the writer thread.
    let (release, held) = mpsc::sync_channel(1);
    store.commit(vec![accepted(0)], Box::new(move |_| held.recv().unwrap()));
    let mut pending = 0;
    let refused = loop {
        let (done, refused) = mpsc::sync_channel(1);
        store.commit(vec![accepted(1)], Box::new(move |result| drop(done.send(result))));
        match refused.try_recv() {
            Ok(result) => break result.unwrap_err(),
            Err(_) => pending += 1,
        }
        assert!(pending < 100_000, "the queue has no bound");
    };
    assert!(matches!(refused, StoreError::Busy), "{refused}");
    release.send(()).unwrap();
    let mut later = commit(&store, vec![accepted(2)]).unwrap_err();
    while matches!(later, StoreError::Busy) {
        later = commit(&store, vec![accepted(2)]).unwrap_err();
    }
    assert!(matches!(later, StoreError::Stopped(_)), "{later}");
    assert!(store.healthy().is_err());
    store.recover().await.unwrap();
    start_commit(&store, vec![accepted(3)]).wait().unwrap();
    assert!(store.task(id(2)).await.unwrap().is_none());
    assert!(store.task(id(3)).await.unwrap().is_some());
}
