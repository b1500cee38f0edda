//! The terms of a worker's owner: whom it serves and when, and what users of the scheduler see of it.

use std::process::{Child, Command};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::process::Signal;
use serde_json::json;

use crate::cluster::{Cluster, builtin};
use crate::process::{Node, WAIT_TIMEOUT, wait_until};

/// A worker with these variables for its terms gets no tasks, with this reason in the list of workers and, in short, in the
/// explanation of a task. Without them it runs the task.
#[track_caller]
fn check(test: &str, variables: &[(&str, &str)], reason: &str, in_short: &str) {
    let cluster = Cluster::start(test, &[]);
    let gateway = cluster.gateway_address();
    let worker = cluster.lab.member("worker", "worker", &[&gateway], &builtin(1));
    let mut node = worker.start_among(variables);
    wait_until(reason, WAIT_TIMEOUT, || {
        let known = cluster.get("/api/v1/workers");
        known["workers"][0]["reason"].as_str()?.starts_with(reason).then_some(())
    });
    let listed = cluster.hypha(&["workers"]);
    assert!(listed.contains(reason), "{listed}");
    let task = cluster.submit("echo", &json!("hi"));
    let explained = cluster.hypha(&["explain", &task]);
    assert!(explained.contains(reason) && explained.contains(in_short), "{explained}");
    assert_eq!(cluster.get(&format!("/api/v1/tasks/{task}"))["status"], "queued");

    stop(&mut node);
    let _node = worker.start();
    let task = cluster.ended(&task);
    assert_eq!((&task["result"], &task["status"]), (&json!("hi"), &json!("completed")));
}

fn stop(node: &mut Node) {
    node.signal(Signal::TERM);
    node.wait(WAIT_TIMEOUT);
}

#[test]
fn worker_serves_only_the_organisations_of_its_terms() {
    let reason = "no lease: its owner serves other organisations only";
    let terms = [("HYPHA_OFFER__ORGANISATIONS", "another,lab2")];
    check("organisations", &terms, reason, "serves other organisations only");
}

#[test]
fn worker_that_is_offered_to_an_organisation_runs_its_tasks() {
    let offer = "[offer]\nprice = 2\norganisations = [\"another\", \"lab\"]\n";
    let cluster = Cluster::start("served", &[&format!("{}{offer}", builtin(1))]);
    assert_eq!(cluster.get("/api/v1/workers")["workers"][0]["price"], json!(2.0));
    let task = cluster.ended(&cluster.submit("echo", &json!("hi")));
    assert_eq!(task["status"], "completed");
}

#[test]
fn worker_with_a_floor_takes_no_tasks_for_nothing() {
    let reason = "no lease: its owner asks for a price, and tasks bid none";
    check("floor", &[("HYPHA_OFFER__FLOOR", "1.5")], reason, "asks for a price");
}

#[test]
fn worker_takes_no_tasks_outside_its_hours() {
    let days = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    // The first of January 1970 was a Thursday.
    let today = (now.as_secs() / 86_400 + 3) % 7;
    let another = days[(today as usize + 3) % 7];
    let terms = [("HYPHA_OFFER__HOURS", another), ("HYPHA_OFFER__TIME_ZONE", "+00:00")];
    check("hours", &terms, "outside its hours since ", "outside its hours");
}

/// Processes that use a quarter of the cores, at least one core.
struct Busy(Vec<Child>);

impl Busy {
    fn start() -> Busy {
        let cores = std::thread::available_parallelism().unwrap().get();
        let busy = |_| Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        Busy((0..cores.div_ceil(4)).map(busy).collect())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        for process in &mut self.0 {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// Other tests may use the machine too, so the worker is not expected to take tasks again before it is restarted without
/// these terms.
#[test]
fn worker_yields_to_other_processes_of_the_machine() {
    let _busy = Busy::start();
    let terms = [("HYPHA_OFFER__YIELD__LOAD", "0.1"), ("HYPHA_OFFER__YIELD__FOR", "1")];
    check("yield", &terms, "in use by its owner since ", "in use by its owner");
}
