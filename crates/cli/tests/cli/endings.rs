//! How workers and schedulers end and begin again, and what tasks notice of it.

use serde_json::{Value, json};

use crate::crew::{Crew, api, builtin, worker_id};
use crate::http;
use crate::lab;
use crate::process::PATIENCE;

/// Longer than any test takes: a task that takes this long ends only if it is ended.
const FOREVER_MS: u64 = 600_000;

/// A worker that is left alone is left alone for longer than the test takes, and a task that fails once has failed.
const STRICT: &str = "[scheduler.fault_tolerance]\nquarantine = 3600\n\
                      [scheduler.retry]\nmax_attempts = 1\n";

#[test]
fn a_worker_that_was_killed_with_many_tasks_is_used_again_at_once() {
    let quarantine = "[scheduler.fault_tolerance]\nquarantine = 3600\n";
    let mut crew = Crew::start_with("ending-killed", quarantine, &[&builtin(8)]);
    let tasks: Vec<String> =
        (0..8).map(|_| crew.submit("sleep", &json!({"ms": FOREVER_MS}))).collect();
    tasks.iter().for_each(|id| drop(crew.wait_for(id, "running")));
    let (member, node) = crew.workers.remove(0);
    lab::kill(node);
    tasks.iter().for_each(|id| drop(crew.wait_for(id, "queued")));
    tasks.iter().for_each(|id| drop(crew.hypha(&["cancel", id])));
    let node = member.start();
    crew.workers.push((member, node));

    let next = crew.submit("echo", &json!("next"));
    assert_eq!(crew.ended(&next)["result"], "next");
    let (_, figures) = http::get(api(&crew.scheduler.1), "/metrics").unwrap();
    assert!(figures.lines().any(|line| line == "hypha_scheduler_quarantines_total 0"), "{figures}");
}

#[test]
fn a_worker_that_is_stopped_costs_its_tasks_no_attempt() {
    let mut crew = Crew::start_with("ending-stopped", STRICT, &[&builtin(2), &builtin(2)]);
    let tasks: Vec<String> =
        (0..4).map(|number| crew.submit("sleep", &json!({"ms": 5_000 + number}))).collect();
    let workers: Vec<Value> =
        tasks.iter().map(|id| crew.wait_for(id, "running")["worker"].clone()).collect();
    let (_, mut node) = crew.workers.remove(0);
    let stopped = worker_id(&node);
    assert!(workers.contains(&json!(stopped)), "{workers:?}");
    assert!(node.terminate(PATIENCE).success());
    let rest = worker_id(&crew.workers[0].1);
    for (id, first) in tasks.iter().zip(&workers) {
        let task = crew.ended(id);
        assert_eq!(
            (&task["status"], &task["worker"]),
            (&json!("completed"), &json!(rest)),
            "{task}"
        );
        if *first == stopped {
            assert_eq!(task["attempts"], 2, "{task}");
            assert_eq!(task["failures"][0]["worker"], stopped, "{task}");
            assert_eq!(task["failures"][0]["reason"], "the worker was stopped, and gave it back");
        } else {
            assert_eq!((&task["attempts"], &task["failures"]), (&json!(1), &Value::Null), "{task}");
        }
    }
}

/// As `hypha up` does it, or a machine that goes down: the scheduler may be gone first.
#[test]
fn whoever_is_stopped_first_no_task_pays_for_it() {
    let mut crew = Crew::start_with("ending-both", STRICT, &[&builtin(1)]);
    let id = crew.submit("sleep", &json!({"ms": 3_000}));
    crew.wait_for(&id, "running");
    let (scheduler, workers) = (&mut crew.scheduler, &mut crew.workers);
    assert!(scheduler.1.terminate(PATIENCE).success());
    assert!(workers[0].1.terminate(PATIENCE).success());
    scheduler.1 = scheduler.0.start();
    workers[0].1 = workers[0].0.start();
    let task = crew.ended(&id);
    assert_eq!((&task["status"], &task["attempts"]), (&json!("completed"), &json!(2)), "{task}");
}

#[test]
fn what_runs_over_a_restart_of_the_scheduler_runs_since_it_began() {
    let mut crew = Crew::start("ending-running", &[&builtin(1)]);
    let id = crew.submit("sleep", &json!({"ms": FOREVER_MS}));
    crew.wait_for(&id, "running");
    let later = crew.submit("echo", &json!("later"));
    let later = crew.get(&format!("/api/v1/tasks/{later}"))["submitted_at"].clone();
    crew.restart_scheduler();
    let task = crew.wait_for(&id, "running");
    let (began, later) = (task["started_at"].as_str().unwrap(), later.as_str().unwrap());
    assert!(began <= later, "{began} is not before {later}");
    crew.hypha(&["cancel", &id]);
    assert_eq!(crew.ended(&id)["started_at"], *began);
}

#[test]
fn a_removed_worker_stays_away_until_it_is_wanted_again() {
    let mut crew = Crew::start("ending-removed", &[&builtin(1), &builtin(1)]);
    let removed = worker_id(&crew.workers[0].1);
    crew.call(&format!("DELETE /api/v1/workers/{removed}"), &Value::Null);
    let mark = crew.workers[0].1.mark();
    crew.restart_scheduler();
    let opened = "a scheduler has opened a channel";
    crew.workers[0].1.wait_for_line_after(mark, opened, PATIENCE);
    let tasks: Vec<String> = (0..4).map(|n| crew.submit("echo", &json!(n))).collect();
    for id in &tasks {
        assert_eq!(crew.ended(id)["worker"], worker_id(&crew.workers[1].1));
    }
    let known = crew.get("/api/v1/workers");
    assert_eq!(known["workers"].as_array().unwrap().len(), 1, "{known}");

    crew.call(&format!("PUT /api/v1/workers/{removed}"), &Value::Null);
    crew.wait_for_workers();
}
