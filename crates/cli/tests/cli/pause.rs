//! `hypha worker pause` and `resume`: what the owner of a worker decides, and what users of the scheduler see of it.

use rustix::process::Signal;
use serde_json::json;

use crate::cluster::{Cluster, builtin};
use crate::command::done;
use crate::process::{WAIT_TIMEOUT, wait_until};

#[test]
fn a_paused_worker_finishes_what_runs_and_takes_tasks_again_when_resumed() {
    let mut cluster = Cluster::start("pause", &[&builtin(1)]);
    let config = cluster.workers[0].0.config.clone();
    let runs = cluster.submit("sleep", &json!({"ms": 3_600_000}));
    cluster.wait_for(&runs, "running");
    let paused = done(&["worker", "pause", "-c", &config]);
    assert!(paused.starts_with("paused: the worker takes no new tasks"), "{paused}");
    let again = done(&["worker", "pause", "-c", &config]);
    assert!(again.starts_with("the worker is paused already"), "{again}");
    wait_for_reason(&cluster);
    assert_eq!(cluster.get(&format!("/api/v1/tasks/{runs}"))["status"], "running");
    cluster.hypha(&["cancel", &runs]);

    let waits = cluster.submit("echo", &json!("hi"));
    let explained = cluster.hypha(&["explain", &waits]);
    assert!(explained.contains("paused by its owner"), "{explained}");
    let workers = cluster.hypha(&["workers"]);
    assert!(workers.contains("paused by its owner since "), "{workers}");

    // The pause holds over a restart of the worker: it grants no lease.
    cluster.workers[0].1.signal(Signal::TERM);
    cluster.workers[0].1.wait(WAIT_TIMEOUT);
    cluster.workers[0].1 = cluster.workers[0].0.start();
    cluster.workers[0].1.wait_for_line("takes no new tasks: {}", WAIT_TIMEOUT);
    wait_for_reason(&cluster);
    assert_eq!(cluster.get(&format!("/api/v1/tasks/{waits}"))["status"], "queued");

    let resumed = done(&["worker", "resume", "-c", &config]);
    assert_eq!(resumed, "resumed: the worker takes tasks again\n");
    let task = cluster.ended(&waits);
    assert_eq!((&task["result"], &task["status"]), (&json!("hi"), &json!("completed")));
    let again = done(&["worker", "resume", "-c", &config]);
    assert_eq!(again, "the worker is not paused\n");
}

/// The scheduler knows that the worker is paused.
#[track_caller]
fn wait_for_reason(cluster: &Cluster) {
    wait_until("paused", WAIT_TIMEOUT, || {
        let known = cluster.get("/api/v1/workers");
        let reason = known["workers"][0]["reason"].as_str()?;
        reason.starts_with("paused by its owner since ").then_some(())
    });
}
