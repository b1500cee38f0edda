//! A scheduler whose disk is full: it acknowledges nothing, loses nothing, and continues when there is room.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::cluster::{Cluster, api, builtin, worker_id};
use crate::http;
use crate::interrupted::HeldServer;
use crate::process::{Node, WAIT_TIMEOUT, wait_until};

/// Longer than the test takes.
const FOREVER_MS: u64 = 600_000;

/// The size of the disk: all of this test, and not much more.
const DISK: &str = "size=48m";

#[test]
fn scheduler_with_a_full_disk_acknowledges_nothing_and_continues_when_there_is_room() {
    let large_server = HeldServer::start();
    let keys = builtin(2) + &large_server.as_executor("large");
    let mut cluster = Cluster::start("full", &[&keys]);
    let Some(way) = way_to_mount(&cluster.lab.path("")) else {
        // A user who may create a network namespace may create one for mounts.
        let test = "full::scheduler_with_a_full_disk_acknowledges_nothing_and_continues_when_there_is_room";
        eprintln!("SKIPPED: {test}: no small disk can be mounted here [needs: netns]");
        return;
    };
    let directory = cluster.lab.path("scheduler-data");
    let (member, node) = &mut cluster.scheduler;
    assert!(node.terminate(WAIT_TIMEOUT).success());
    let run = "exec \"$PROGRAM\" scheduler run -c \"$CONFIG\"";
    let mut command = on_a_disk(way, &directory, run);
    command.env("PROGRAM", env!("CARGO_BIN_EXE_hypha")).env("CONFIG", &member.config);
    *node = Node::start("scheduler", &mut command);
    cluster.wait_for_workers();

    let forever = cluster.submit("sleep", &json!({"ms": FOREVER_MS}));
    cluster.wait_for(&forever, "running");
    let done = cluster.submit("echo", &json!("done"));
    assert_eq!(cluster.ended(&done)["result"], "done");
    let before = counters(&cluster);
    let server = HeldServer::start();
    server.register(&cluster);
    let held = cluster.submit("held", &json!("kept"));
    wait_until("asked", WAIT_TIMEOUT, || (server.asked() == 1).then_some(()));
    // Its result is an object.
    let large_input = json!("x".repeat(2 << 20));
    let large = cluster.submit("large", &large_input);
    wait_until("asked", WAIT_TIMEOUT, || (large_server.asked() == 1).then_some(()));

    // Some of them end while there is no room for their results.
    let mut acknowledged: Vec<String> =
        (0..20).map(|number| cluster.submit("sleep", &json!({"ms": 100 + number}))).collect();
    // We do not see this disk: it is reached through the process that mounted it.
    let ballast =
        PathBuf::from(format!("/proc/{}/root{directory}/ballast", cluster.scheduler.1.id()));
    fill(&ballast);
    let input = "x".repeat(10_000);
    let task = json!({"model": "echo", "input": input}).to_string();
    let submit = || http::send(api(&cluster.scheduler.1), "POST /api/v1/tasks", "", &task).unwrap();
    let refused = wait_until("full", WAIT_TIMEOUT, || {
        loop {
            match submit() {
                (200..300, body) => {
                    acknowledged.push(id_in(&body));
                }
                refused => return Some(refused),
            }
            assert!(acknowledged.len() < 10_000, "it never filled up");
        }
    });
    assert_eq!(refused.0, 503, "{}", refused.1);
    assert!(refused.1.contains("cannot store anything"), "{}", refused.1);
    assert_eq!(http::get(api(&cluster.scheduler.1), "/readyz").unwrap().0, 503);
    assert_eq!(http::get(api(&cluster.scheduler.1), "/healthz").unwrap().0, 200);
    assert_eq!(submit().0, 503, "not before there is room");
    assert_eq!(cluster.ended(&done)["result"], "done", "stored results can be read");
    // A result that cannot be stored, and a worker that joins, while there is no room.
    server.release();
    large_server.release();
    cluster.workers[0].1.wait_for_line("a large result is sent again", WAIT_TIMEOUT);
    let member = cluster.lab.member("worker", "late", &[&cluster.gateway_address()], &builtin(1));
    let late = member.start();
    late.wait_for_line("a scheduler has opened a channel", WAIT_TIMEOUT);

    std::fs::remove_file(&ballast).unwrap();
    let answer = wait_until("room again", WAIT_TIMEOUT, || Some(submit()).filter(|it| it.0 != 503));
    assert!((200..300).contains(&answer.0), "{answer:?}");
    acknowledged.push(id_in(&answer.1));
    let task = cluster.ended(&held);
    assert_eq!((&task["result"], &task["attempts"]), (&json!("kept"), &json!(1)), "{task}");
    let task = cluster.ended(&large);
    assert_eq!((&task["status"], &task["attempts"]), (&json!("completed"), &json!(1)), "{task}");
    assert_eq!(cluster.get(&format!("/api/v1/tasks/{large}/result")), large_input);
    let name = worker_id(&late);
    wait_until("the late worker is used", WAIT_TIMEOUT, || {
        let workers = cluster.get("/api/v1/workers");
        let mut workers = workers["workers"].as_array()?.iter();
        workers.find(|one| one["id"] == *name && one["status"] != "unavailable").map(drop)
    });
    for id in &acknowledged {
        let task = cluster.ended(id);
        assert_eq!((&task["status"], &task["result"]), (&json!("completed"), &task["input"]));
    }
    cluster.wait_for(&forever, "running");
    let task = cluster.get(&format!("/api/v1/tasks/{forever}"));
    assert_eq!(task["attempts"], 1, "its worker went on with it: {task}");
    let after = counters(&cluster);
    for (name, count) in before {
        assert!(after[&name] >= count, "{name} was {count} and is {}", after[&name]);
    }
    let completed = 1.0 + acknowledged.len() as f64;
    assert!(after["hypha_scheduler_tasks_completed_total"] >= completed, "{after:?}");
}

fn id_in(task: &str) -> String {
    let task: Value = serde_json::from_str(task).unwrap();
    task["id"].as_str().unwrap().to_owned()
}

/// How a disk can be mounted here, for one process.
fn way_to_mount(directory: &str) -> Option<&'static [&'static str]> {
    let ways: [&[&str]; 2] = [&[], &["--user", "--map-root-user"]];
    let works = |way: &&[&'static str]| {
        on_a_disk(way, directory, "true").output().is_ok_and(|it| it.status.success())
    };
    ways.into_iter().find(works)
}

/// Runs a script with a small disk of its own in place of `directory`.
fn on_a_disk(way: &[&str], directory: &str, script: &str) -> Command {
    let script = format!("mount -t tmpfs -o {DISK} tmpfs \"$DISK\" && {script}");
    let mut command = Command::new("unshare");
    command.args(way).args(["--mount", "sh", "-c", &script]).env("DISK", directory);
    command
}

/// Writes until nothing fits any more.
fn fill(path: &Path) {
    let mut file = std::fs::File::create(path).unwrap();
    for block in [1 << 20, 4_096] {
        while file.write_all(&vec![1; block]).is_ok() {}
    }
}

/// Every metric that only grows.
fn counters(cluster: &Cluster) -> BTreeMap<String, f64> {
    let (_, figures) = http::get(api(&cluster.scheduler.1), "/metrics").unwrap();
    let counter = |line: &str| {
        let (name, value) = line.split_once(' ')?;
        let grows = name.ends_with("_total") || name.ends_with("_count");
        (grows && name.starts_with("hypha_scheduler_"))
            .then(|| (name.to_owned(), value.parse().ok()))
    };
    let found = figures.lines().filter_map(counter);
    found.map(|(name, value)| (name, value.unwrap())).collect()
}
