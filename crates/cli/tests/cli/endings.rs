//! How workers and schedulers stop and restart, and how that affects tasks.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::cluster::{Cluster, api, builtin, worker_id};
use crate::http;
use crate::lab;
use crate::process::WAIT_TIMEOUT;

/// Longer than any test takes: a task that takes this long ends only if it is ended.
const FOREVER_MS: u64 = 600_000;

/// A quarantine lasts longer than the test, and a task has one attempt.
const STRICT: &str = "[scheduler.fault_tolerance]\nquarantine = 3600\n\
                      [scheduler.retry]\nmax_attempts = 1\n";

#[test]
fn a_worker_that_was_killed_with_many_tasks_is_used_again_at_once() {
    let quarantine = "[scheduler.fault_tolerance]\nquarantine = 3600\n";
    let mut cluster = Cluster::start_with("ending-killed", quarantine, &[&builtin(8)]);
    let tasks: Vec<String> =
        (0..8).map(|_| cluster.submit("sleep", &json!({"ms": FOREVER_MS}))).collect();
    tasks.iter().for_each(|id| drop(cluster.wait_for(id, "running")));
    let (member, node) = cluster.workers.remove(0);
    lab::kill(node);
    tasks.iter().for_each(|id| drop(cluster.wait_for(id, "queued")));
    tasks.iter().for_each(|id| drop(cluster.hypha(&["cancel", id])));
    let node = member.start();
    cluster.workers.push((member, node));

    let next = cluster.submit("echo", &json!("next"));
    assert_eq!(cluster.ended(&next)["result"], "next");
    let (_, figures) = http::get(api(&cluster.scheduler.1), "/metrics").unwrap();
    assert!(figures.lines().any(|line| line == "hypha_scheduler_quarantines_total 0"), "{figures}");
}

#[test]
fn stopping_a_worker_uses_up_no_attempt() {
    let mut cluster = Cluster::start_with("ending-stopped", STRICT, &[&builtin(2), &builtin(2)]);
    let tasks: Vec<String> =
        (0..4).map(|number| cluster.submit("sleep", &json!({"ms": 5_000 + number}))).collect();
    let workers: Vec<Value> =
        tasks.iter().map(|id| cluster.wait_for(id, "running")["worker"].clone()).collect();
    let (_, mut node) = cluster.workers.remove(0);
    let stopped = worker_id(&node);
    assert!(workers.contains(&json!(stopped)), "{workers:?}");
    assert!(node.terminate(WAIT_TIMEOUT).success());
    let rest = worker_id(&cluster.workers[0].1);
    for (id, first) in tasks.iter().zip(&workers) {
        let task = cluster.ended(id);
        assert_eq!(
            (&task["status"], &task["worker"]),
            (&json!("completed"), &json!(rest)),
            "{task}"
        );
        if *first == stopped {
            assert_eq!(task["attempts"], 2, "{task}");
            assert_eq!(task["failures"][0]["worker"], stopped, "{task}");
            assert_eq!(
                task["failures"][0]["reason"],
                "the worker stopped and returned the attempt"
            );
        } else {
            assert_eq!((&task["attempts"], &task["failures"]), (&json!(1), &Value::Null), "{task}");
        }
    }
}

/// As with `hypha up`, or a machine that shuts down: the scheduler may be gone first.
#[test]
fn stopping_nodes_in_any_order_uses_up_no_attempt() {
    let mut cluster = Cluster::start_with("ending-both", STRICT, &[&builtin(1)]);
    let id = cluster.submit("sleep", &json!({"ms": 3_000}));
    cluster.wait_for(&id, "running");
    let (scheduler, workers) = (&mut cluster.scheduler, &mut cluster.workers);
    assert!(scheduler.1.terminate(WAIT_TIMEOUT).success());
    assert!(workers[0].1.terminate(WAIT_TIMEOUT).success());
    scheduler.1 = scheduler.0.start();
    workers[0].1 = workers[0].0.start();
    let task = cluster.ended(&id);
    assert_eq!((&task["status"], &task["attempts"]), (&json!("completed"), &json!(2)), "{task}");
}

/// The clients keep their connections open for as long as the scheduler lets them.
#[test]
fn clients_on_an_open_stream_and_a_long_poll_cost_no_attempt_when_the_scheduler_stops() {
    let mut cluster = Cluster::start_with("ending-stream", STRICT, &[&builtin(1)]);
    let id = cluster.submit("sleep", &json!({"ms": 15_000}));
    cluster.wait_for(&id, "running");
    let mut stream = TcpStream::connect(api(&cluster.scheduler.1)).unwrap();
    let request = format!("GET /api/v1/tasks/{id}/events HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut first = [0; 256];
    assert!(stream.read(&mut first).unwrap() > 0, "the stream has begun");
    let mut poll = TcpStream::connect(api(&cluster.scheduler.1)).unwrap();
    let request = format!("GET /api/v1/tasks/{id}?wait=50 HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n");
    poll.write_all(request.as_bytes()).unwrap();
    let mark = cluster.scheduler.1.mark();
    assert!(cluster.scheduler.1.terminate(WAIT_TIMEOUT).success());
    cluster.scheduler.1.wait_for_line_after(mark, "stopped", WAIT_TIMEOUT);
    cluster.scheduler.1 = cluster.scheduler.0.start();
    let task = cluster.ended(&id);
    assert_eq!((&task["status"], &task["attempts"]), (&json!("completed"), &json!(1)), "{task}");
    assert_eq!(task["failures"], Value::Null, "{task}");
}

#[test]
fn start_times_survive_a_scheduler_restart() {
    let mut cluster = Cluster::start("ending-running", &[&builtin(1)]);
    let id = cluster.submit("sleep", &json!({"ms": FOREVER_MS}));
    cluster.wait_for(&id, "running");
    let later = cluster.submit("echo", &json!("later"));
    let later = cluster.get(&format!("/api/v1/tasks/{later}"))["submitted_at"].clone();
    cluster.restart_scheduler();
    let task = cluster.wait_for(&id, "running");
    let (began, later) = (task["started_at"].as_str().unwrap(), later.as_str().unwrap());
    assert!(began <= later, "{began} is not before {later}");
    cluster.hypha(&["cancel", &id]);
    assert_eq!(cluster.ended(&id)["started_at"], *began);
}

#[test]
fn a_removed_worker_stays_removed_until_readmitted() {
    let mut cluster = Cluster::start("ending-removed", &[&builtin(1), &builtin(1)]);
    let removed = worker_id(&cluster.workers[0].1);
    cluster.call(&format!("DELETE /api/v1/workers/{removed}"), &Value::Null);
    let mark = cluster.workers[0].1.mark();
    cluster.restart_scheduler();
    let opened = "a scheduler has opened a channel";
    cluster.workers[0].1.wait_for_line_after(mark, opened, WAIT_TIMEOUT);
    let tasks: Vec<String> = (0..4).map(|n| cluster.submit("echo", &json!(n))).collect();
    for id in &tasks {
        assert_eq!(cluster.ended(id)["worker"], worker_id(&cluster.workers[1].1));
    }
    let known = cluster.get("/api/v1/workers");
    assert_eq!(known["workers"].as_array().unwrap().len(), 1, "{known}");

    cluster.call(&format!("PUT /api/v1/workers/{removed}"), &Value::Null);
    cluster.wait_for_workers();
}
