//! A task instance as SwarmPilot has it today: it reports itself at `/info`, takes tasks at `/queue/submit`, and reports
//! results without a secret.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Json, body};
use hypha_engine::InstanceNotification;
use hypha_model::{Metadata, TaskSpec};
use serde_json::{Value, json};

use super::fake::{self, RecordedRequest};
use super::lab::{Lab, attempt, spec};

/// The bodies of the results, by task.
type Results = Arc<Mutex<BTreeMap<String, &'static str>>>;

async fn start() -> (SocketAddr, Arc<Mutex<Vec<RecordedRequest>>>, Results) {
    let results = Results::default();
    let shared = Arc::clone(&results);
    let respond = move |request: &RecordedRequest| -> Response {
        match request.path.as_str() {
            "/info" => Json(json!({
                "status": "success", "timestamp": 1.5, "instance_status": "running", "uptime": 3.0,
                "deployed_model": {"model_name": "m", "replicas": 2},
                "queue_info": {"length_of_queue": 0},
            }))
            .into_response(),
            "/queue/submit" => {
                let task: Value = serde_json::from_slice(&request.body).unwrap();
                match task["task_input"] == "refused" {
                    true => Json(json!({"status": "error", "message": "no such input"})),
                    false => Json(json!({"status": "success", "task_id": task["task_id"]})),
                }
                .into_response()
            }
            path => {
                let task = path.strip_prefix("/results/").unwrap_or_default();
                match shared.lock().unwrap().get(task) {
                    Some(result) => body::Body::from(*result).into_response(),
                    None => StatusCode::NOT_FOUND.into_response(),
                }
            }
        }
    };
    let (address, seen) = fake::serve_with(respond).await;
    (address, seen, results)
}

const RESULT: &str = r#"{"task_id": "x", "status": "completed", "error": null, "execution_time": 1.5,
                         "wait_time": 0.5, "result": {"z": 18446744073709551616, "a": 1}}"#;

#[tokio::test]
async fn instance_of_swarmpilot_registers_and_its_tasks_complete() {
    let (address, seen, results) = start().await;
    let mut lab = Lab::new();
    let worker = lab.workers.register_instance("127.0.0.1", address.port(), None).await.unwrap();
    assert_eq!(worker.executors[0].models[0].as_str(), "m");
    assert_eq!(worker.executors[0].concurrency, 2);
    let leased = lab.lease(&worker).await;
    let metadata = Metadata::of_numbers(&[("sleep_time", 2.0)]);
    lab.dispatch_spec(&leased, 1, TaskSpec { metadata, ..spec("{\"sleep_time\": 2}") });
    assert_eq!(lab.next_summary().await, "started 1");
    let submitted = |seen: &[RecordedRequest]| -> Vec<Value> {
        let submits = seen.iter().filter(|request| request.path == "/queue/submit");
        submits.map(|request| serde_json::from_slice(&request.body).unwrap()).collect()
    };
    let got = submitted(&seen.lock().unwrap()).remove(0);
    assert_eq!(got["task_input"], json!({"sleep_time": 2}));
    assert_eq!(got["metadata"], json!({"sleep_time": 2.0}));
    assert_eq!(got["model_name"], "m");
    assert_eq!(got["task_id"], json!(attempt(1).task));

    // Its report has no secret: the instance is asked, and what it returns is the result.
    let task = attempt(1).task.to_string();
    results.lock().unwrap().insert(task.clone(), RESULT);
    lab.workers.notified(InstanceNotification { task, ..InstanceNotification::default() });
    let end = lab.next_summary().await;
    assert_eq!(end, "completed 1: {\"z\": 18446744073709551616, \"a\": 1}");

    lab.dispatch(&leased, 2, "\"refused\"");
    let end = lab.next_summary().await;
    assert!(end.starts_with("failed 2 true") && end.ends_with("no such input"), "{end}");
    let enqueues = |path| seen.lock().unwrap().iter().filter(|it| it.path == path).count();
    assert_eq!(enqueues("/queue/enqueue"), 1, "the route is remembered");
}

#[tokio::test]
async fn instance_of_swarmpilot_is_asked_for_results_that_it_does_not_report() {
    let (address, _, results) = start().await;
    let mut lab = Lab::with(|settings| settings.poll_interval = Duration::from_millis(10));
    let worker = lab.workers.register_instance("127.0.0.1", address.port(), None).await.unwrap();
    let leased = lab.lease(&worker).await;
    lab.dispatch(&leased, 1, "1");
    assert_eq!(lab.next_summary().await, "started 1");
    results.lock().unwrap().insert(attempt(1).task.to_string(), RESULT);
    assert!(lab.next_summary().await.starts_with("completed 1: "));
}
