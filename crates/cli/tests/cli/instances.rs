//! A worker that is a task instance too, for a scheduler that reaches it over HTTP.

use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::cluster::{Cluster, api, builtin, call, get};
use crate::process::{Node, WAIT_TIMEOUT, wait_until};

/// One task at once, over both protocols together.
fn instance() -> String {
    format!("{}[task_instance]\nbind = \"127.0.0.1:0\"\nmodel = \"sleep\"\n", builtin(1))
}

/// A scheduler that knows the cluster's worker only by its registration.
fn other_scheduler(cluster: &Cluster) -> (Node, SocketAddr) {
    let scheduler = cluster.lab.member("scheduler", "other", &[], "").start();
    let worker = &cluster.workers[0].1;
    let instance: SocketAddr =
        worker.wait_for_line("a task instance at http://{}", WAIT_TIMEOUT).parse().unwrap();
    let own = api(&scheduler);
    let server = json!({"host": "127.0.0.1", "port": instance.port()});
    let registered = call(own, "POST /ti/register", &server);
    assert_eq!(registered["status"], "success", "{registered}");
    (scheduler, own)
}

/// Submits to the instance, and returns the task's id.
fn enqueue(other: SocketAddr, ms: u64) -> String {
    let task = json!({"model_name": "sleep", "task_input": {"ms": ms}, "metadata": {}});
    let submitted = call(other, "POST /queue/submit", &task);
    assert_eq!(submitted["status"], "success", "{submitted}");
    submitted["task_id"].as_str().unwrap().to_owned()
}

fn completed(other: SocketAddr, id: &str) -> Value {
    wait_until("completed", WAIT_TIMEOUT, || {
        let task = get(other, &format!("/task/query?task_id={id}"));
        (task["task_status"] == "completed").then_some(task)
    })
}

#[test]
fn a_worker_runs_tasks_for_a_scheduler_that_registered_it() {
    let cluster = Cluster::start("instance-task", &[&instance()]);
    let (_other, own) = other_scheduler(&cluster);
    let id = enqueue(own, 10);
    let task = completed(own, &id);
    assert_eq!(task["result"], json!({"ms": 10}), "{task}");
    assert_eq!(get(own, &format!("/api/v1/tasks/{id}"))["attempts"], 1);
}

/// The second task waits, although neither scheduler knows of the other's.
#[test]
fn the_swarm_and_the_instance_share_one_capacity() {
    let cluster = Cluster::start("instance-shared", &[&instance()]);
    let (_other, own) = other_scheduler(&cluster);
    let finished = |task: &Value| {
        assert_eq!(task["status"], "completed", "{task}");
        task["finished_at"].as_str().unwrap().to_owned()
    };
    let there_finished = |id: &str| finished(&get(own, &format!("/api/v1/tasks/{id}?wait=50")));
    let here = cluster.submit("sleep", &json!({"ms": 3_000}));
    cluster.wait_for(&here, "running");
    let there = there_finished(&enqueue(own, 300));
    let here = finished(&cluster.ended(&here));
    assert!(there > here, "the instance's ended at {there}, before the swarm's at {here}");

    let there = enqueue(own, 3_000);
    wait_until("running", WAIT_TIMEOUT, || {
        let task = get(own, &format!("/api/v1/tasks/{there}"));
        (task["status"] == "running").then_some(())
    });
    let here = finished(&cluster.ended(&cluster.submit("sleep", &json!({"ms": 300}))));
    let there = there_finished(&there);
    assert!(here > there, "the swarm's ended at {here}, before the instance's at {there}");
}
