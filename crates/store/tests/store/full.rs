//! A full disk: no commit is acknowledged, none is stored in part, and the store continues once there is room.

use std::path::Path;
use std::process::Command;

use hypha_conformance::samples::{accepted, at, finished, id};
use hypha_conformance::{commit, start_commit};
use hypha_engine::{Image, Record};
use hypha_model::TaskState;
use hypha_store::{Options, Store, StoreError};

use crate::rows::rows;

#[tokio::test]
async fn a_full_store_stops_and_continues_when_there_is_room() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tasks.db");
    let options = Options { max_bytes: Some(4 << 20) };
    let (store, _) = Store::open_with(&path, options).unwrap();
    let ended = |number| vec![accepted(number), finished(number, TaskState::Completed)];
    let mut stored = 0;
    let full = loop {
        let group: Vec<Record> = (stored..stored + 50).flat_map(ended).collect();
        match commit(&store, group) {
            Ok(()) => stored += 50,
            Err(error) => break error,
        }
        assert!(stored < 100_000, "the store never filled up");
    };
    assert!(matches!(full, StoreError::Full(_)), "{full}");
    assert!(full.to_string().contains("make room"), "{full}");
    assert!(store.healthy().is_err());

    // A commit that would fit is refused as well: it may depend on the lost one.
    let refused = commit(&store, vec![]).unwrap_err();
    assert!(matches!(refused, StoreError::Stopped(_)), "{refused}");
    assert_eq!(rows(&path, "ends"), stored);
    assert!(store.task(id(stored)).await.unwrap().is_none(), "a part of the lost group is stored");

    assert_eq!(store.forget_finished_before(at(stored / 2)).await.unwrap(), stored / 2 - 2);
    assert!(store.healthy().is_err(), "commits are accepted before recovery");
    let found = store.recover().await.unwrap();
    store.healthy().unwrap();
    assert!(found.image.tasks.values().all(|task| task.finished.is_some()));
    commit(&store, (stored..stored + 10).flat_map(ended).collect()).unwrap();
    assert!(store.task(id(stored)).await.unwrap().is_some());
}

#[tokio::test]
async fn commits_after_a_failed_one_fail_too() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tasks.db");
    let (store, _) = Store::open_with(&path, Options { max_bytes: Some(2 << 20) }).unwrap();
    let large: Vec<Record> = (0..20_000).map(accepted).collect();
    let first = start_commit(&store, large);
    let second = start_commit(&store, vec![accepted(30_000)]);
    let third = start_commit(&store, vec![finished(30_000, TaskState::Cancelled)]);
    for failed in [first, second, third] {
        assert!(failed.wait().is_err());
    }
    let found: Image = store.recover().await.unwrap().image;
    assert!(found.tasks.is_empty());
    assert!(store.task(id(30_000)).await.unwrap().is_none());
}

/// The same with a full disk, which SQLite reports by another error, in another place, than its own limit.
#[test]
fn a_full_disk_stops_the_store_until_there_is_room() {
    let dir = tempfile::tempdir().unwrap();
    let mount = |flags: &[&str], then: &str| {
        let mut command = Command::new("unshare");
        let script = format!("mount -t tmpfs -o size=6m tmpfs \"$DISK\" && {then}");
        command.args(flags).args(["--mount", "sh", "-c", &script]);
        command.env("DISK", dir.path()).env("PROGRAM", std::env::current_exe().unwrap());
        command
    };
    let flag_sets: [&[&str]; 2] = [&[], &["--user", "--map-root-user"]];
    let works =
        |flags: &&&[&str]| mount(flags, "true").output().is_ok_and(|it| it.status.success());
    let Some(flags) = flag_sets.iter().find(works) else {
        let test = "full::a_full_disk_stops_the_store_until_there_is_room";
        // Where network namespaces can be created, mount namespaces can be as well.
        eprintln!("SKIPPED: {test}: no small disk can be mounted here [needs: netns]");
        return;
    };
    let run = "exec \"$PROGRAM\" --exact full::on_a_small_disk --ignored --nocapture";
    let output = mount(flags, run).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{printed}{errors}");
    assert!(printed.contains("1 passed"), "{printed}");
}

#[tokio::test]
#[ignore = "the child of a_full_disk_stops_the_store_until_there_is_room: it needs the disk that its parent mounts"]
async fn on_a_small_disk() {
    let disk = std::env::var_os("DISK").unwrap();
    let disk = Path::new(&disk);
    let ballast = disk.join("ballast");
    std::fs::write(&ballast, vec![1; 2 << 20]).unwrap();
    let path = disk.join("tasks.db");
    let (store, _) = Store::open(&path).unwrap();
    let mut stored = 0;
    let full = loop {
        let group: Vec<Record> = (stored..stored + 10).map(accepted).collect();
        match commit(&store, group) {
            Ok(()) => stored += 10,
            Err(error) => break error,
        }
        assert!(stored < 100_000, "the store never filled up");
    };
    assert!(matches!(full, StoreError::Full(_)), "{full}");
    assert!(store.recover().await.is_err(), "there is no room yet");
    assert!(store.healthy().is_err());

    std::fs::remove_file(&ballast).unwrap();
    let found = store.recover().await.unwrap().image;
    store.healthy().unwrap();
    assert_eq!(found.tasks.len() as u64, stored, "exactly the acknowledged tasks");
    commit(&store, vec![accepted(stored)]).unwrap();
    drop(store);
    let (store, found) = Store::open(&path).unwrap();
    assert_eq!(found.image.tasks.len() as u64, stored + 1);
    drop(store);

    // A new store on a disk that is full from the start.
    let other = disk.join("other.db");
    while std::fs::OpenOptions::new()
        .append(true)
        .create(true)
        .open(&ballast)
        .and_then(|mut file| std::io::Write::write_all(&mut file, &[1; 4_096]))
        .is_ok()
    {}
    assert!(Store::open(&other).is_err());
}
