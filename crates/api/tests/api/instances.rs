//! The task instance API: every response has the fields that its clients expect, and a fitting status.

use std::sync::Arc;

use hypha_api::{NewToken, Role, SchedulerApi, Settings, Tokens};
use hypha_engine::{Command, InstanceNotification, NewTask, Settings as EngineSettings};
use hypha_model::{Metadata, Payload, Requirement, Span, TaskId, TaskSpec, WorkerId};
use hypha_predict::LookupTable;
use reqwest::{Method, Response};
use serde_json::{Value, json};

use crate::memory::{Memory, START, worker_id};
use crate::server::{Server, answer};

/// A scheduler with one worker that serves `sleep`, whose attempts end when the test says so.
async fn one_sleeper() -> Server {
    let memory = Memory::with(EngineSettings::default());
    memory.add_worker(1, &["sleep"]);
    Server::with(memory, Settings::default()).await
}

async fn submit(server: &Server, model: &str) -> (u16, Value) {
    let body = json!({"model_name": model, "task_input": {"prompt": "x"}, "metadata": {}});
    server.post("/queue/submit", body.to_string()).await
}

async fn submitted(server: &Server, model: &str) -> TaskId {
    let (status, body) = submit(server, model).await;
    assert_eq!(status, 200, "{body}");
    body["task_id"].as_str().unwrap().parse().unwrap()
}

async fn query(server: &Server, task: TaskId) -> Value {
    let (status, body) = server.get(&format!("/task/query?task_id={task}")).await;
    assert_eq!(status, 200, "{body}");
    body
}

/// The names of an object's fields, in alphabetical order.
fn fields(body: &Value) -> Vec<&str> {
    let mut names: Vec<&str> = body.as_object().unwrap().keys().map(String::as_str).collect();
    names.sort_unstable();
    names
}

fn strategy_of(server: &Server) -> String {
    server.memory.with_state(|state| state.scheduler.strategy().0.to_string())
}

#[tokio::test]
async fn a_strategy_is_set_by_its_name_and_at_once() {
    let server = Server::start().await;
    for name in ["shortest_queue", "round_robin", "weighted", "probabilistic", "predictive"] {
        let answered = server.post("/scheduler/set", json!({"name": name}).to_string()).await;
        assert_eq!(answered, (200, json!({"status": "success", "message": "OK"})));
        assert_eq!(strategy_of(&server), name);
    }
    let (status, _) = server.post("/scheduler/set", r#"{"name": "round-robin"}"#).await;
    assert_eq!((status, strategy_of(&server).as_str()), (200, "round_robin"));

    let (status, body) = server.post("/scheduler/set", r#"{"name": "no-such"}"#).await;
    assert_eq!((status, &body["status"]), (422, &json!("error")));
    let message = body["message"].as_str().unwrap();
    for known in ["no-such", "shortest_queue", "round_robin", "weighted", "probabilistic"] {
        assert!(message.contains(known), "{message}");
    }
    assert_eq!(strategy_of(&server), "round_robin", "a name that is refused changes nothing");
}

#[tokio::test]
async fn lookup_table_mode_needs_a_lookup_table() {
    let server = Server::start().await;
    let set = async |mode: &str| {
        server.post("/scheduler/predict_mode", json!({"mode": mode}).to_string()).await
    };
    let mode = || server.memory.with_state(|state| state.scheduler.mode().to_string());
    let (status, body) = set("lookup_table").await;
    assert_eq!((status, &body["status"]), (409, &json!("error")));
    assert!(body["message"].as_str().unwrap().contains("no lookup table"), "{body}");

    let table = LookupTable::from_csv("model,mean_ms,error_ms\necho,20,5\n").unwrap();
    server.memory.execute(Command::SetTable(table)).await.unwrap();
    let done = (200, json!({"status": "success", "message": "OK"}));
    assert_eq!(set("lookup_table").await, done);
    assert_eq!(mode(), "lookup_table");
    assert_eq!(set("default").await, done);
    assert_eq!(mode(), "default");
    let (status, body) = set("crystal_ball").await;
    assert_eq!((status, &body["status"]), (422, &json!("error")));
    assert!(body["message"].as_str().unwrap().contains("`default` or `lookup_table`"), "{body}");
}

#[tokio::test]
async fn a_healthy_instance_is_registered_once() {
    let memory = Memory::with(EngineSettings::default());
    let server = Server::with(memory, Settings::default()).await;
    server.memory.set_healthy("127.0.0.1:8100", &["alpha"]);
    let register = async |port: u16| {
        let body = json!({"host": "127.0.0.1", "port": port});
        server.post("/ti/register", body.to_string()).await
    };
    let (status, first) = register(8100).await;
    assert_eq!((status, &first["status"]), (200, &json!("success")));
    assert_eq!(first["message"], "TaskInstance registered successfully");
    assert_eq!(fields(&first), ["message", "status", "ti_uuid"]);
    let uuid: WorkerId = first["ti_uuid"].as_str().unwrap().parse().unwrap();
    assert_eq!(register(8100).await, (200, first), "again: the same uuid");

    let (status, body) = submit(&server, "alpha").await;
    assert_eq!((status, &body["scheduled_ti"]), (200, &json!(uuid.to_string())));

    // Its host and port name it as well.
    let remove = async |body: Value| server.post("/ti/remove", body.to_string()).await;
    let (status, body) = remove(json!({"host": "127.0.0.1", "port": 8199})).await;
    assert_eq!((status, &body["message"]), (404, &json!("TaskInstance not found")));
    for unclear in [
        json!({}),
        json!({"host": "127.0.0.1"}),
        json!({"ti_uuid": uuid.to_string(), "host": "127.0.0.1", "port": 8100}),
    ] {
        let (status, body) = remove(unclear).await;
        assert_eq!((status, &body["status"]), (422, &json!("error")), "{body}");
    }
    let (status, body) = remove(json!({"host": "127.0.0.1", "port": 8100})).await;
    assert_eq!((status, &body["ti_uuid"]), (200, &json!(uuid.to_string())));
    // A registration may name the model.
    server.memory.set_healthy("127.0.0.1:8101", &["beta"]);
    let named = json!({"host": "127.0.0.1", "port": 8101, "model_name": "gamma"});
    assert_eq!(server.post("/ti/register", named.to_string()).await.0, 200);
    assert_eq!(submit(&server, "gamma").await.0, 200);
    let bad = json!({"host": "127.0.0.1", "port": 8101, "model_name": ""});
    let (status, body) = server.post("/ti/register", bad.to_string()).await;
    assert_eq!(status, 422);
    assert!(body["message"].as_str().unwrap().starts_with("model_name: "), "{body}");

    let (status, body) = register(1).await;
    assert!(
        (400..500).contains(&status),
        "a missing instance is no fault of the scheduler: {status}"
    );
    assert_eq!((&body["status"], &body["ti_uuid"]), (&json!("error"), &json!("")));
    assert!(body["message"].as_str().unwrap().contains("no healthy server answers"), "{body}");
}

#[tokio::test]
async fn an_instance_outside_of_the_allowed_networks_is_refused() {
    let server = Server::start().await;
    let (status, body) =
        server.post("/ti/register", r#"{"host": "192.0.2.7", "port": 8100}"#).await;
    assert_eq!((status, &body["status"], &body["ti_uuid"]), (403, &json!("error"), &json!("")));
    assert!(body["message"].as_str().unwrap().contains("allowed_networks"), "{body}");
}

#[tokio::test]
async fn invalid_requests_are_refused_in_the_shape_of_the_route() {
    let server = Server::start().await;
    let cases = [
        ("/ti/register", r#"{"host": "127.0.0.1"}"#, 422, "missing field `port`"),
        ("/ti/register", r#"{"host": "127.0.0.1", "port": 99999999}"#, 422, "99999999"),
        ("/ti/register", r#"{"host": "127.0.0.1", "port": 0}"#, 422, "port"),
        ("/ti/register", r#"{"host": "", "port": 8100}"#, 422, "host"),
        ("/ti/register", r#"{"host": 7, "port": "x"}"#, 422, "invalid type"),
        ("/ti/register", "[]", 422, "expected an object"),
        ("/ti/register", "{not json", 400, "not JSON"),
        ("/ti/register", "", 400, "not JSON"),
        ("/ti/remove", r#"{"ti_uuid": 5}"#, 422, "invalid type"),
        ("/scheduler/set", r#"{}"#, 422, "missing field `name`"),
        ("/scheduler/set", r#"{"name": "fifo", "weight": 1}"#, 422, "unknown field `weight`"),
        ("/scheduler/predict_mode", r#"{"mode": null}"#, 422, "null"),
        ("/queue/submit", r#"{"model_name": "echo"}"#, 422, "missing field `task_input`"),
        ("/queue/submit", r#"{"model_name": "", "task_input": {}}"#, 422, "must not be empty"),
        ("/queue/submit", r#"{"model_name": "echo", "task_input": [1]}"#, 422, "object"),
        ("/queue/submit", r#"{"model_name": "echo", "task_input": {"a": 1e999}}"#, 400, "range"),
        ("/queue/submit", r#"{"model_name": "echo", "task_input": {}, "metadata": 1}"#, 422, "map"),
        ("/queue/submit", r#"{"model_name": "a", "model_name": "b"}"#, 422, "duplicate field"),
        ("/queue/info", r#"{"model": "echo"}"#, 422, "unknown field `model`"),
        ("/queue/info", r#"{"model_name": "a\nb"}"#, 422, "control characters"),
        ("/task/query", r#"{}"#, 422, "missing field `task_id`"),
        ("/task/query", r#"{"task_id": "job-1"}"#, 400, "not a task id"),
        ("/notify/task_complete", r#"{"status": "completed"}"#, 422, "missing field `task_id`"),
        ("/notify/task_complete", "{", 400, "not JSON"),
    ];
    for (path, given, expected, message) in cases {
        let (status, body) = server.post(path, given).await;
        assert_eq!(status, expected, "{path} {given}: {body}");
        assert_eq!(body["status"], "error", "{path} {given}: {body}");
        assert!(body["message"].as_str().unwrap().contains(message), "{path} {given}: {body}");
        let expected: &[&str] = match path {
            "/ti/register" | "/ti/remove" => &["message", "status", "ti_uuid"],
            "/queue/submit" => &["message", "scheduled_ti", "status", "task_id"],
            "/queue/info" => &["message", "queues", "status"],
            "/task/query" => &[
                "message",
                "result",
                "scheduled_ti",
                "status",
                "submit_time",
                "task_id",
                "task_status",
            ],
            _ => &["message", "status"],
        };
        assert_eq!(fields(&body), expected, "{path} {given}: {body}");
    }
    let open = server.memory.with_state(|state| state.scheduler.counts().submitted);
    assert_eq!(open, 0);
}

#[tokio::test]
async fn other_methods_types_and_sizes_are_refused_in_the_shape_of_the_surface() {
    let settings = Settings { max_request_bytes: 100, ..Settings::default() };
    let server = Server::with(Memory::new(), settings).await;
    let (status, body) = server.get("/ti/register").await;
    assert_eq!((status, &body["status"]), (405, &json!("error")));
    let (status, body) = server.delete("/queue/info").await;
    assert_eq!((status, &body["status"]), (405, &json!("error")));

    let large = json!({"model_name": "echo", "task_input": {"prompt": "x".repeat(100)}});
    let (status, body) = server.post("/queue/submit", large.to_string()).await;
    assert_eq!((status, &body["status"], &body["task_id"]), (413, &json!("error"), &json!("")));
    let large = json!({"task_id": "1", "result": "x".repeat(100)});
    let (status, body) = server.post("/notify/task_complete?secret=1", large.to_string()).await;
    assert_eq!((status, &body["status"]), (413, &json!("error")));

    let text = server.request(Method::POST, "/queue/submit").header("content-type", "text/plain");
    let (status, body) = answer(text.body("{}")).await;
    assert_eq!((status, &body["status"]), (415, &json!("error")));
    for (path, says) in [
        (
            "/queue/info?modelname=x",
            "`modelname` is not a parameter of this route; the only one is",
        ),
        ("/task/query", "`task_id` is missing: give the id"),
    ] {
        let (status, body) = server.get(path).await;
        assert_eq!((status, &body["status"]), (400, &json!("error")));
        assert!(body["message"].as_str().unwrap().starts_with(says), "{body}");
    }
}

#[tokio::test]
async fn draining_instance_finishes_its_tasks_and_gets_no_new_ones() {
    let server = one_sleeper().await;
    let tasks = [submitted(&server, "sleep").await, submitted(&server, "sleep").await];
    let uuid = worker_id(1).to_string();
    let body = json!({"ti_uuid": uuid}).to_string();
    let removed = server.post("/ti/remove", &body).await;
    let message = "TaskInstance removed successfully";
    let expected = json!({"status": "success", "message": message, "ti_uuid": uuid});
    assert_eq!(removed, (200, expected));

    let (status, body) = submit(&server, "sleep").await;
    assert_eq!((status, &body["status"]), (503, &json!("error")), "{body}");
    assert_eq!(server.memory.held().len(), 2, "running tasks are not stopped");
    for held in server.memory.held() {
        server.memory.complete(&held, b"1");
    }
    for task in tasks {
        let shown = query(&server, task).await;
        assert_eq!((&shown["task_status"], &shown["result"]), (&json!("completed"), &json!(1)));
        assert_eq!(shown["scheduled_ti"], uuid);
    }
    let (status, body) = submit(&server, "sleep").await;
    assert_eq!((status, &body["status"]), (404, &json!("error")), "it is removed: {body}");
    assert!(body["message"].as_str().unwrap().contains("/ti/register"), "{body}");
}

#[tokio::test]
async fn draining_instance_also_runs_the_tasks_queued_for_it() {
    let server = one_sleeper().await;
    let mut tasks = Vec::new();
    for _ in 0..20 {
        tasks.push(submitted(&server, "sleep").await);
    }
    let body = json!({"ti_uuid": worker_id(1).to_string()}).to_string();
    assert_eq!(server.post("/ti/remove", body).await.0, 200);
    while let Some(held) = server.memory.held().first() {
        server.memory.complete(held, b"1");
    }
    for task in tasks {
        assert_eq!(query(&server, task).await["task_status"], "completed");
    }
}

#[tokio::test]
async fn removing_an_unknown_instance_repeats_the_given_id() {
    let server = Server::start().await;
    let remove =
        async |uuid: &str| server.post("/ti/remove", json!({"ti_uuid": uuid}).to_string()).await;
    let gone = "0191b1c6-5f3e-7cc3-98c4-dc0c0c07398f";
    let expected = json!({"status": "error", "message": "TaskInstance not found", "ti_uuid": gone});
    assert_eq!(remove(gone).await, (404, expected));
    let (status, body) = remove("not-a-uuid").await;
    assert_eq!((status, &body["status"]), (400, &json!("error")));
    assert_eq!(body["ti_uuid"], "not-a-uuid");
    assert!(body["message"].as_str().unwrap().starts_with("Invalid UUID format"), "{body}");
    let (_, body) = remove(&"x".repeat(10_000)).await;
    assert_eq!(body["ti_uuid"].as_str().unwrap().len(), 256, "a response stays small");
}

#[tokio::test]
async fn a_task_is_bound_at_submit_under_every_strategy() {
    let server = Server::start().await;
    let workers = [worker_id(1).to_string(), worker_id(2).to_string()];
    for strategy in ["predictive", "shortest_queue", "fifo", "best_fit", "work_stealing"] {
        let set = json!({"name": strategy}).to_string();
        assert_eq!(server.post("/scheduler/set", set).await.0, 200);
        // More than the workers have room for, so that a late strategy would let some wait.
        for _ in 0..20 {
            let (status, body) = submit(&server, "sleep").await;
            assert_eq!((status, &body["status"]), (200, &json!("success")), "{strategy}");
            assert_eq!(fields(&body), ["scheduled_ti", "status", "task_id"]);
            let task = body["task_id"].as_str().unwrap();
            assert!(task.starts_with("task-") && task.parse::<TaskId>().is_ok(), "{task}");
            let worker = body["scheduled_ti"].as_str().unwrap();
            assert!(workers.iter().any(|known| known == worker), "{strategy}: {worker}");
            let shown = query(&server, task.parse().unwrap()).await;
            assert_eq!(shown["task_status"], "scheduled", "{strategy}");
            assert_eq!(shown["scheduled_ti"], worker, "{strategy}");
        }
    }
}

#[tokio::test]
async fn instance_gets_the_input_unchanged_and_the_predictor_the_metadata() {
    let server = one_sleeper().await;
    let input = r#"{"b": 12345678901234567890123, "a":  [1.50, "é"]}"#;
    let body = format!(
        r#"{{"model_name": "sleep", "task_input": {input}, "metadata":
            {{"input_tokens": 100, "hardware": "A100", "nested": {{"x": 1}}, "none": null}}}}"#
    );
    assert_eq!(server.post("/queue/submit", body).await.0, 200);
    let held = server.memory.wait_for_attempt("sleep").await;
    assert_eq!(std::str::from_utf8(held.input()).unwrap(), input);
    let metadata = &held.dispatch.spec.metadata;
    let expected: Metadata =
        serde_json::from_str(r#"{"hardware": "A100", "input_tokens": 100}"#).unwrap();
    assert_eq!(*metadata, expected);
    assert_eq!(held.dispatch.spec.tenant, None);

    server.memory.complete(&held, input.as_bytes());
    let path = format!("/task/query?task_id={}", held.task());
    let text = server.request(Method::GET, &path).send().await.unwrap().text().await.unwrap();
    assert!(text.contains(input), "the result is shown unchanged: {text}");
    let without = r#"{"model_name": "sleep", "task_input": {}, "metadata": null}"#;
    assert_eq!(server.post("/queue/submit", without).await.0, 200);
}

#[tokio::test]
async fn without_an_instance_for_the_model_a_submit_fails() {
    let memory = Memory::with(EngineSettings::default());
    let server = Server::with(memory, Settings::default()).await;
    let expect = async |status: u16, message: &str| {
        let (got, body) = submit(&server, "sleep").await;
        assert_eq!(got, status, "{body}");
        let empty = (&json!("error"), &json!(""), &json!(""));
        assert_eq!((&body["status"], &body["task_id"], &body["scheduled_ti"]), empty);
        assert!(body["message"].as_str().unwrap().contains(message), "{body}");
    };
    expect(404, "no TaskInstance is registered").await;
    server.memory.add_worker(1, &["echo"]);
    expect(404, "no TaskInstance serves `sleep`").await;
    server.memory.add_worker(2, &["sleep"]);
    assert_eq!(submit(&server, "sleep").await.0, 200);
    server.memory.lose_worker(2);
    expect(503, "accepts tasks at present").await;
    let counts = server.memory.with_state(|state| *state.scheduler.counts());
    assert_eq!((counts.submitted, counts.rejected), (1, 3));
}

#[tokio::test]
async fn full_queue_and_failing_store_are_answered_with_retry_after() {
    let settings = EngineSettings { max_queue: 1, ..EngineSettings::default() };
    let memory = Memory::with(settings);
    memory.add_worker(1, &["sleep"]);
    let server = Server::with(memory, Settings::default()).await;
    let send = async || -> Response {
        let body = r#"{"model_name": "sleep", "task_input": {}}"#;
        server.json(Method::POST, "/queue/submit", body).send().await.unwrap()
    };
    assert_eq!(send().await.status(), 200);
    for status in [429, 503] {
        if status == 503 {
            server.memory.set_unavailable(Some("the disk is full"));
        }
        let refused = send().await;
        assert_eq!(refused.status(), status);
        let seconds = refused.headers()["retry-after"].to_str().unwrap().parse::<u32>().unwrap();
        assert!((1..=60).contains(&seconds));
        let body: Value = serde_json::from_str(&refused.text().await.unwrap()).unwrap();
        assert_eq!((&body["status"], &body["task_id"]), (&json!("error"), &json!("")));
    }
    let cases = [
        ("/scheduler/set", r#"{"name": "fifo"}"#),
        ("/scheduler/predict_mode", r#"{"mode": "default"}"#),
        ("/ti/remove", r#"{"ti_uuid": "0191b1c6-5f3e-7cc3-98c4-dc0c0c07398f"}"#),
        ("/task/query", r#"{"task_id": "task-0191b1c6-5f3e-7cc3-98c4-dc0c0c07398f"}"#),
    ];
    for (path, body) in cases {
        let (status, body) = server.post(path, body).await;
        assert_eq!((status, &body["status"]), (503, &json!("error")), "{path}");
        assert!(body["message"].as_str().unwrap().contains("the disk is full"), "{path}: {body}");
    }
}

#[tokio::test]
async fn a_task_is_followed_from_submission_to_its_end() {
    let server = one_sleeper().await;
    let task = submitted(&server, "sleep").await;
    let running = query(&server, task).await;
    let shown = ["result", "scheduled_ti", "submit_time", "task_id", "task_status"];
    assert_eq!(fields(&running), shown);
    assert_eq!(running["task_id"], task.to_string());
    assert_eq!(running["task_status"], "scheduled", "running reads scheduled");
    assert_eq!(running["scheduled_ti"], worker_id(1).to_string());
    assert_eq!(running["result"], Value::Null);
    let submit_time = &running["submit_time"];
    assert!(submit_time.is_f64(), "{submit_time}");
    let seconds = submit_time.as_f64().unwrap() - START.as_secs_f64();
    assert!((0.0..1.0).contains(&seconds), "{seconds}");

    let held = server.memory.wait_for_attempt("sleep").await;
    server.memory.complete(&held, br#"{"text": "done"}"#);
    let done = query(&server, task).await;
    assert_eq!(fields(&done), shown);
    assert_eq!(
        (&done["task_status"], &done["result"]),
        (&json!("completed"), &json!({"text": "done"}))
    );
    assert_eq!(done["scheduled_ti"], worker_id(1).to_string());
    assert_eq!(&done["submit_time"], submit_time);
    let body = json!({"task_id": task.to_string()}).to_string();
    assert_eq!(server.post("/task/query", body).await, (200, done), "POST answers the same");
}

#[tokio::test]
async fn a_time_of_whole_seconds_is_a_float_all_the_same() {
    let server = one_sleeper().await;
    // A submit takes a millisecond.
    let now = server.memory.now();
    let left = 1_000_000 - now.as_micros() % 1_000_000 - 1_000;
    server.memory.advance(Span::from_micros(left));
    let task = submitted(&server, "sleep").await;
    let path = format!("/task/query?task_id={task}");
    let text = server.request(Method::GET, &path).send().await.unwrap().text().await.unwrap();
    assert!(text.contains("\"submit_time\":1700000001.0,"), "{text}");
}

#[tokio::test]
async fn other_ends_read_completed_with_the_error_in_the_result() {
    let server = one_sleeper().await;
    server.memory.add_worker(2, &["fail"]);
    let ended = async |task: TaskId, status: &str, error: &str| {
        let shown = query(&server, task).await;
        assert_eq!(shown["task_status"], "completed", "{shown}");
        assert_eq!(shown["result"]["status"], status, "{shown}");
        assert!(shown["result"]["error"].as_str().unwrap().contains(error), "{shown}");
    };
    let failed = submitted(&server, "fail").await;
    ended(failed, "failed", "it was told to fail").await;

    let cancelled = submitted(&server, "sleep").await;
    server.memory.execute(Command::CancelTask(cancelled)).await.unwrap();
    ended(cancelled, "cancelled", "cancelled").await;

    let deadline = Some(Span::from_secs(5));
    let model = Some("sleep".parse().unwrap());
    let requirement = Requirement { model, deadline, ..Requirement::default() };
    let spec = Arc::new(TaskSpec { requirement, ..TaskSpec::default() });
    let task = NewTask {
        spec,
        idempotency_key: None,
        bind_at_once: true,
        stored: true,
        quota: None,
        weight: None,
    };
    let answers = server.memory.submit(vec![task], false).await.unwrap();
    let expired = answers[0].as_ref().unwrap().0.task;
    server.memory.advance(Span::from_secs(6));
    ended(expired, "expired", "the deadline passed").await;
}

#[tokio::test]
async fn a_task_whose_instance_is_lost_reads_queued() {
    let server = one_sleeper().await;
    let task = submitted(&server, "sleep").await;
    server.memory.lose_worker(1);
    let shown = query(&server, task).await;
    assert_eq!((&shown["task_status"], &shown["scheduled_ti"]), (&json!("queued"), &json!("")));
    assert_eq!(shown["result"], Value::Null);
}

#[tokio::test]
async fn a_result_that_is_no_json_is_shown_as_its_bytes() {
    let server = one_sleeper().await;
    // The second is valid JSON that few parsers can read.
    for (result, base64) in [(&b"\xff\x00"[..], "/wA="), (b"[1e999]", "WzFlOTk5XQ==")] {
        let task = submitted(&server, "sleep").await;
        let held = server.memory.wait_for_attempt("sleep").await;
        server.memory.complete(&held, result);
        assert_eq!(query(&server, task).await["result"], json!({"base64": base64}));
    }
}

#[tokio::test]
async fn unknown_task_is_not_found() {
    let server = Server::start().await;
    let gone = "task-0191b1c6-5f3e-7cc3-98c4-dc0c0c07398f";
    let (status, body) = server.get(&format!("/task/query?task_id={gone}")).await;
    assert_eq!((status, &body["status"], &body["task_id"]), (404, &json!("error"), &json!(gone)));
    assert_eq!((&body["task_status"], &body["scheduled_ti"]), (&json!(""), &json!("")));
    assert_eq!((&body["submit_time"], &body["result"]), (&json!(0.0), &Value::Null));
}

#[tokio::test]
async fn queues_are_listed_by_model_with_real_waiting_times() {
    let memory = Memory::with(EngineSettings::default());
    memory.add_worker(1, &["echo", "sleep"]);
    memory.add_worker(2, &["sleep"]);
    memory.add_worker(3, &[]);
    let server = Server::with(memory, Settings::default()).await;
    let rows = |body: &Value| -> Vec<(String, WorkerId)> {
        assert_eq!((&body["status"], fields(body)), (&json!("success"), vec!["queues", "status"]));
        let mut rows: Vec<_> = (body["queues"].as_array().unwrap().iter())
            .map(|row| {
                let expected =
                    ["model_name", "ti_uuid", "waiting_time_error", "waiting_time_expect"];
                assert_eq!(fields(row), expected);
                let uuid = row["ti_uuid"].as_str().unwrap().parse().unwrap();
                (row["model_name"].as_str().unwrap().to_owned(), uuid)
            })
            .collect();
        rows.sort();
        rows
    };
    let row = |model: &str, n: u8| (model.to_owned(), worker_id(n));
    let all = vec![row("*", 3), row("echo", 1), row("sleep", 1), row("sleep", 2)];
    for path in ["/queue/info", "/queue/info?model_name="] {
        assert_eq!(rows(&server.get(path).await.1), all, "{path}");
    }
    for body in ["", "{}", r#"{"model_name": null}"#, r#"{"model_name": ""}"#] {
        let (status, answered) = server.post("/queue/info", body).await;
        assert_eq!((status, rows(&answered)), (200, all.clone()), "{body}");
    }
    let sleep = vec![row("sleep", 1), row("sleep", 2), row("sleep", 3)];
    let (_, by_get) = server.get("/queue/info?model_name=sleep").await;
    assert_eq!(rows(&by_get), sleep, "a worker for any model takes this one too");
    let by_post = server.post("/queue/info", r#"{"model_name": "sleep"}"#).await;
    assert_eq!(by_post, (200, by_get));
    let (_, none) = server.get("/queue/info?model_name=echo2").await;
    assert_eq!(rows(&none), [row("echo2", 3)]);
    server.memory.lose_worker(3);
    let (status, none) = server.get("/queue/info?model_name=echo2").await;
    assert_eq!((status, rows(&none)), (200, vec![]), "an unavailable worker has no queue");
}

#[tokio::test]
async fn waiting_times_grow_under_load_and_return_to_exactly_zero() {
    let server = one_sleeper().await;
    let waiting = async || {
        let (status, body) = server.get("/queue/info?model_name=sleep").await;
        assert_eq!((status, body["queues"].as_array().unwrap().len()), (200, 1), "{body}");
        let row = &body["queues"][0];
        assert!(row["waiting_time_expect"].is_f64() && row["waiting_time_error"].is_f64(), "{row}");
        (row["waiting_time_expect"].as_f64().unwrap(), row["waiting_time_error"].as_f64().unwrap())
    };
    assert_eq!(waiting().await, (0.0, 0.0));
    for _ in 0..20 {
        submitted(&server, "sleep").await;
    }
    let (expected, error) = waiting().await;
    // Four run at once, sixteen wait, and before anything was learned a task is taken to need a second or so:
    // in seconds instead of milliseconds these numbers would be below a hundred.
    assert!(expected > 500.0 && error > 50.0, "{expected} ± {error}");
    while let Some(held) = server.memory.held().first() {
        server.memory.complete(held, b"1");
    }
    assert_eq!(waiting().await, (0.0, 0.0));
}

#[tokio::test]
async fn notifications_are_handed_on_and_answered_alike() {
    let server = Server::start().await;
    let body = json!({
        "task_id": "abc", "instance_id": "i", "execution_time": 12.5, "status": "completed",
        "result": {"text": "done"}, "later": "more",
    });
    let digits = r#"{"task_id": "abc", "result": {"z": 18446744073709551616, "a": 1}}"#;
    let success = (200, json!({"status": "success"}));
    let post = async |path: &str, body: &Value| server.post(path, body.to_string()).await;
    assert_eq!(post("/notify/task_complete?secret=s%201", &body).await, success);
    assert_eq!(post("/notify/task_complete/s2", &body).await, success);
    assert_eq!(post("/notify/task_complete", &body).await, success);
    let failed =
        json!({"task_id": "abc", "instance_id": 7, "status": "failed", "error": "no memory"});
    assert_eq!(post("/notify/task_complete?secret=s4", &failed).await, success);
    let odd =
        json!({"task_id": "abc", "result": null, "error": {"code": 5}, "execution_time": null});
    assert_eq!(post("/notify/task_complete?secret=s5&more=1", &odd).await, success);

    assert_eq!(server.post("/result/submit?secret=s6", digits).await.0, 200);

    let notes = server.memory.with_state(|state| std::mem::take(&mut state.notifications));
    let secrets: Vec<_> = notes.iter().map(|note| note.secret.as_deref()).collect();
    assert_eq!(secrets, [Some("s 1"), Some("s2"), None, Some("s4"), Some("s5"), None]);
    let kept = Payload::from(br#"{"z": 18446744073709551616, "a": 1}"#.as_slice());
    assert_eq!(notes[5].result, Some(kept), "as it was sent");
    let InstanceNotification { task, status, result, error, execution_time_ms, .. } = &notes[0];
    assert_eq!((task.as_str(), status.as_deref()), ("abc", Some("completed")));
    assert_eq!((result, error), (&Some(Payload::from(br#"{"text":"done"}"#.as_slice())), &None));
    assert_eq!(*execution_time_ms, Some(12.5));
    assert_eq!((&notes[3].result, notes[3].error.as_deref()), (&None, Some("no memory")));
    assert_eq!((&notes[4].result, notes[4].error.as_deref()), (&None, Some("{\"code\":5}")));
}

#[tokio::test]
async fn a_notification_without_its_secret_has_a_small_body() {
    let server = Server::start().await;
    server.memory.with_state(|state| state.secrets.push("known".to_owned()));
    let large = json!({"task_id": "abc", "result": "x".repeat(20_000)}).to_string();
    let paths = [
        "/notify/task_complete",
        "/notify/task_complete/wrong",
        "/notify/task_complete?secret=wrong",
    ];
    for path in paths {
        let (status, body) = server.post(path, &large).await;
        assert_eq!((status, &body["status"]), (413, &json!("error")), "{path}");
        assert!(body["message"].as_str().unwrap().contains("notify without the result"), "{body}");
    }
    for path in ["/notify/task_complete/known", "/notify/task_complete?secret=known"] {
        assert_eq!(server.post(path, &large).await.0, 200, "{path}");
    }
    let delivered = server.memory.with_state(|state| state.notifications.len());
    assert_eq!(delivered, 2);
}

/// A server with tokens: one of `acme` with a quota of 1, one of `globex`, one of an administrator.
async fn with_tokens() -> (Server, [String; 3], tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tokens.toml");
    let user = |tenant: &str, quota| NewToken {
        tenant: Some(tenant.parse().unwrap()),
        quota,
        weight: None,
        ..NewToken::default()
    };
    let admin = NewToken { role: Role::Admin, ..NewToken::default() };
    let issued =
        [user("acme", Some(1)), user("globex", None), admin].map(|new| Tokens::issue(&new));
    std::fs::write(&path, issued.each_ref().map(|(_, entry)| entry.as_str()).concat()).unwrap();
    let tokens = Some(Tokens::load(&path).unwrap());
    let memory = Memory::with(EngineSettings::default());
    memory.add_worker(1, &["sleep"]);
    let server = Server::with(memory, Settings { tokens, ..Settings::default() }).await;
    (server, issued.map(|(token, _)| token), directory)
}

#[tokio::test]
async fn only_administrators_change_the_scheduler() {
    let (mut server, [user, _, admin], _directory) = with_tokens().await;
    server.memory.set_healthy("127.0.0.1:8100", &["alpha"]);
    let uuid = worker_id(1).to_string();
    let cases = [
        ("/scheduler/set", json!({"name": "fifo"})),
        ("/scheduler/predict_mode", json!({"mode": "default"})),
        ("/ti/register", json!({"host": "127.0.0.1", "port": 8100})),
        ("/ti/remove", json!({"ti_uuid": uuid})),
    ];
    for (path, body) in &cases {
        server.token = None;
        assert_eq!(server.post(path, body.to_string()).await.0, 401, "{path}");
        server.token = Some(user.clone());
        let (status, answered) = server.post(path, body.to_string()).await;
        assert_eq!((status, &answered["status"]), (403, &json!("error")), "{path}");
        assert!(answered["message"].as_str().unwrap().contains("admin"), "{path}: {answered}");
    }
    assert_eq!(strategy_of(&server), "predictive");
    server.token = Some(admin);
    for (path, body) in &cases {
        let (status, answered) = server.post(path, body.to_string()).await;
        assert_eq!((status, &answered["status"]), (200, &json!("success")), "{path}: {answered}");
    }
}

#[tokio::test]
async fn a_task_belongs_to_the_tenant_that_submitted_it() {
    let (mut server, [acme, globex, admin], _directory) = with_tokens().await;
    server.token = Some(acme);
    let task = submitted(&server, "sleep").await;
    let held = server.memory.wait_for_attempt("sleep").await;
    assert_eq!(held.dispatch.spec.tenant.as_ref().unwrap().as_str(), "acme");
    let (status, body) = submit(&server, "sleep").await;
    assert_eq!((status, &body["status"]), (429, &json!("error")), "over the quota: {body}");
    assert_eq!(query(&server, task).await["task_status"], "scheduled");
    let path = format!("/task/query?task_id={task}");
    for ended in [false, true] {
        if ended {
            server.memory.complete(&held, b"1");
        }
        server.token = Some(globex.clone());
        assert_eq!(server.get(&path).await.0, 404, "another tenant's");
        server.token = Some(admin.clone());
        assert_eq!(server.get(&path).await.0, 200);
        server.token = None;
        assert_eq!(server.get(&path).await.0, 401);
    }
}

#[tokio::test]
async fn a_notification_needs_no_token() {
    let (server, _, _directory) = with_tokens().await;
    let body = json!({"task_id": "abc", "status": "completed"}).to_string();
    for path in ["/notify/task_complete?secret=1", "/notify/task_complete/1"] {
        assert_eq!(server.post(path, &body).await, (200, json!({"status": "success"})));
    }
    let submitted = server.post("/result/submit", &body).await;
    assert_eq!(submitted, (200, json!({"status": "success", "message": "OK"})));
    assert_eq!(server.memory.with_state(|state| state.notifications.len()), 3);
}

#[tokio::test]
async fn a_large_result_is_named_by_its_digest() {
    let server = one_sleeper().await;
    let task = submitted(&server, "sleep").await;
    let held = server.memory.wait_for_attempt("sleep").await;
    let object = server.memory.put_object(&held, b"very large");
    server.memory.complete_with(&held, object);
    let shown = query(&server, task).await;
    let digest = Payload::from(&b"very large"[..]).digest().to_string();
    assert_eq!(shown["result"], json!({"object": digest, "bytes": 10}));
}
