//! A worker that is a task instance too, for a scheduler that reaches it over HTTP.

use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::crew::{Crew, api, builtin, call, get};
use crate::process::{Node, PATIENCE, wait_until};

/// One task at once, whoever asks.
fn instance() -> String {
    format!("{}[task_instance]\nbind = \"127.0.0.1:0\"\nmodel = \"sleep\"\n", builtin(1))
}

/// A scheduler that knows of the crew's worker only by its registration.
fn other_scheduler(crew: &Crew) -> (Node, SocketAddr) {
    let scheduler = crew.lab.member("scheduler", "other", &[], "").start();
    let worker = &crew.workers[0].1;
    let instance: SocketAddr =
        worker.wait_for_line("a task instance at http://{}", PATIENCE).parse().unwrap();
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
    wait_until("completed", PATIENCE, || {
        let task = get(other, &format!("/task/query?task_id={id}"));
        (task["task_status"] == "completed").then_some(task)
    })
}

#[test]
fn a_worker_runs_tasks_for_a_scheduler_that_registered_it() {
    let crew = Crew::start("instance-task", &[&instance()]);
    let (_other, own) = other_scheduler(&crew);
    let id = enqueue(own, 10);
    let task = completed(own, &id);
    assert_eq!(task["result"], json!({"ms": 10}), "{task}");
    assert_eq!(get(own, &format!("/api/v1/tasks/{id}"))["attempts"], 1);
}

/// Whoever comes second waits, although neither scheduler knows of the other's task.
#[test]
fn the_swarm_and_the_instance_share_one_capacity() {
    let crew = Crew::start("instance-shared", &[&instance()]);
    let (_other, own) = other_scheduler(&crew);
    let finished = |task: &Value| {
        assert_eq!(task["status"], "completed", "{task}");
        task["finished_at"].as_str().unwrap().to_owned()
    };
    let there_finished = |id: &str| finished(&get(own, &format!("/api/v1/tasks/{id}?wait=50")));
    let here = crew.submit("sleep", &json!({"ms": 3_000}));
    crew.wait_for(&here, "running");
    let there = there_finished(&enqueue(own, 300));
    let here = finished(&crew.ended(&here));
    assert!(there > here, "the instance's ended at {there}, before the swarm's at {here}");

    let there = enqueue(own, 3_000);
    wait_until("running", PATIENCE, || {
        let task = get(own, &format!("/api/v1/tasks/{there}"));
        (task["status"] == "running").then_some(())
    });
    let here = finished(&crew.ended(&crew.submit("sleep", &json!({"ms": 300}))));
    let there = there_finished(&there);
    assert!(here > there, "the swarm's ended at {here}, before the instance's at {there}");
}
