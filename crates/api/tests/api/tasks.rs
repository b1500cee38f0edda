//! Submitting, reading, listing and cancelling tasks.

use hypha_api::Settings;
use hypha_engine::RetryPolicy;
use hypha_model::{FailureKind, Span};
use reqwest::Method;
use serde_json::{Value, json};

use crate::memory::{Memory, TEST_TIMEOUT, worker_id};
use crate::server::{Server, answer};

const TASKS: &str = "/api/v1/tasks";

pub(crate) fn path_of(task: &Value) -> String {
    format!("{TASKS}/{}", task["id"].as_str().expect("an id"))
}

#[tokio::test]
async fn a_task_is_accepted_runs_and_is_shown() {
    let server = Server::start().await;
    let body = r#"{"model": "echo", "input": {"n":  1.50, "big": 123456789012345678901234567890},
                   "requirements": {"min_memory": 1000000, "gpu_required": false}, "metadata": {"tokens": 3}}"#;
    let (status, task) = server.post(TASKS, body).await;
    assert_eq!(status, 202, "{task}");
    assert!(task["id"].as_str().unwrap().starts_with("task-"));
    assert_eq!(task["model"], "echo");
    assert_eq!(task.get("input"), None, "an input is not sent back to its client");

    // The executor's input and the result equal what was sent, digit by digit.
    let text =
        server.request(Method::GET, &path_of(&task)).send().await.unwrap().text().await.unwrap();
    let sent = r#"{"n":  1.50, "big": 123456789012345678901234567890}"#;
    assert!(text.contains(&format!("\"result\":{sent}")), "{text}");
    assert!(text.contains(&format!("\"input\":{sent}")), "{text}");
    let (status, done) = server.get(&path_of(&task)).await;
    assert_eq!(status, 200);
    assert_eq!(done["status"], "completed");
    assert_eq!(done["attempts"], 1);
    assert_eq!(done["error"], Value::Null);
    assert_eq!(done["progress"], 1.0);
    assert_eq!(done["metadata"], json!({"tokens": 3.0}));
    assert_eq!(done["requirements"], json!({"min_memory": 1_000_000}));
    assert!(done["worker"].is_string());
    assert_eq!(
        done["submitted_at"], task["submitted_at"],
        "the answer to the submit was not a guess"
    );
    for time in ["submitted_at", "started_at", "finished_at"] {
        assert!(done[time].as_str().unwrap().starts_with("2023-11-14T22:13:2"), "{done}");
    }
}

#[tokio::test]
async fn a_request_may_wait_for_the_end() {
    let server = Server::start().await;
    let (status, done) =
        server.post("/api/v1/tasks?wait=10", r#"{"model": "echo", "input": "x"}"#).await;
    assert_eq!((status, &done["status"], &done["result"]), (200, &json!("completed"), &json!("x")));

    let (status, open) = server.post("/api/v1/tasks?wait=0.01", r#"{"model": "sleep"}"#).await;
    assert_eq!((status, &open["status"]), (202, &json!("running")));

    let held = server.memory.wait_for_attempt("sleep").await;
    let memory = server.memory.clone();
    let watches = memory.with_state(|state| state.watchers());
    let path = format!("{}?wait=20", path_of(&open));
    let get = server.get(&path);
    let end = async {
        // The request watches the task before the end comes.
        memory.until(|state| (state.watchers() > watches).then_some(())).await;
        memory.complete(&held, b"[1]");
    };
    let ((status, done), ()) = tokio::join!(get, end);
    assert_eq!((status, &done["status"], &done["result"]), (200, &json!("completed"), &json!([1])));
    for odd in ["-1", "301", "NaN", "inf", "x", "", "1&wait=2", "1&weit=2"] {
        let (status, body) = server.get(&format!("{}?wait={odd}", path_of(&open))).await;
        assert_eq!((status, &body["error"]["code"]), (400, &json!("bad_request")), "{odd}: {body}");
        let (status, _) = server.post(&format!("{TASKS}?wait={odd}"), r#"{"model": "echo"}"#).await;
        assert_eq!(status, 400, "{odd}");
    }
}

#[tokio::test]
async fn a_batch_is_answered_one_by_one() {
    let server = Server::start().await;
    let batch =
        r#"[{"model": "echo", "input": 0}, {"input": 1}, {"model": "echo", "input": 2}, 7]"#;
    let (status, body) = server.post(&format!("{TASKS}?wait=10"), batch).await;
    assert_eq!(status, 202, "{body}");
    let tasks = body["tasks"].as_array().unwrap();
    assert_eq!((&tasks[0]["result"], &tasks[2]["result"]), (&json!(0), &json!(2)));
    assert_eq!(tasks[1]["error"]["code"], "invalid");
    assert_eq!(tasks[3]["error"]["code"], "invalid");
    assert_eq!(tasks.len(), 4);

    let (status, body) = server.post(&format!("{TASKS}?wait=10"), r#"[{"model": "echo"}]"#).await;
    assert_eq!((status, &body["tasks"][0]["status"]), (200, &json!("completed")));
    let (status, body) = server.post(TASKS, " \n[]").await;
    assert_eq!((status, body), (202, json!({"tasks": []})));
    let (status, body) = server.post(TASKS, r#"[{"input": 1}]"#).await;
    assert_eq!((status, &body["error"]["code"]), (422, &json!("invalid")));
    let (status, _) = server.post(TASKS, "[1,").await;
    assert_eq!(status, 400);
    let many = format!("[{}]", vec!["{}"; 10_001].join(","));
    assert_eq!(server.post(TASKS, many).await.0, 422);
    let big: Vec<String> =
        (0..500).map(|n| format!(r#"{{"model":"echo","input":{{"n":{n}}}}}"#)).collect();
    let (status, body) = server.post(TASKS, format!("[{}]", big.join(","))).await;
    assert_eq!(status, 202);
    for (n, task) in body["tasks"].as_array().unwrap().iter().enumerate().step_by(97) {
        assert_eq!(server.get(&path_of(task)).await.1["result"], json!({ "n": n }));
    }
}

#[tokio::test]
async fn a_key_returns_the_first_task() {
    let server = Server::start().await;
    let with_key = |key: &str, body: &str| {
        answer(server.json(Method::POST, TASKS, body).header("idempotency-key", key))
    };
    for model in ["sleep", "echo"] {
        // Once with a task that the machine still has, once with one that is only on the disk.
        let (same, other) = (
            format!(r#"{{"model":"{model}","input":1}}"#),
            format!(r#"{{"model":"{model}","input":2}}"#),
        );
        let (status, first) = with_key(model, &same).await;
        assert_eq!(status, 202);
        let (status, again) = with_key(model, &same).await;
        assert_eq!((status, &again["id"]), (200, &first["id"]));
        let (status, refused) = with_key(model, &other).await;
        assert_eq!((status, &refused["error"]["code"]), (409, &json!("conflict")));
        assert!(!refused.to_string().contains("\"input\""), "{refused}");
        assert_ne!(with_key("another", &same).await.1["id"], first["id"]);
        let (_, batch) = with_key(model, &format!("[{same},{other}]")).await;
        assert_ne!(batch["tasks"][0]["id"], first["id"], "each task of a batch has its own key");
        let (_, repeat) = with_key(model, &format!("[{same},{other},{same}]")).await;
        let ids = |batch: &Value, n: usize| batch["tasks"][n]["id"].clone();
        assert_eq!((ids(&batch, 0), ids(&batch, 1)), (ids(&repeat, 0), ids(&repeat, 1)));
        assert_ne!(ids(&repeat, 2), ids(&repeat, 0));
        server.memory.forget_keys();
    }
    for odd in ["", "a b", "é", &"x".repeat(256)] {
        let (status, _) = with_key(odd, r#"{"model": "echo"}"#).await;
        assert_eq!(status, 400, "{odd}");
    }
    assert_eq!(with_key(&"x".repeat(255), r#"{"model": "echo"}"#).await.0, 202);
}

#[tokio::test]
async fn a_key_of_a_task_is_not_that_of_a_task_in_a_batch() {
    let server = Server::start().await;
    let with_key = |key: &str, body: &str| {
        answer(server.json(Method::POST, TASKS, body).header("idempotency-key", key))
    };
    let task = r#"{"model":"sleep"}"#;
    let mut ids = Vec::new();
    for key in ["k#0", "k#0#1", "k"] {
        let (status, first) = with_key(key, task).await;
        assert_eq!(status, 202, "{key}: {first}");
        assert_eq!(with_key(key, task).await, (200, with_key(key, task).await.1), "{key}");
        ids.push(first["id"].clone());
    }
    for key in ["k", "k#0"] {
        let (status, batch) = with_key(key, &format!("[{task},{task}]")).await;
        assert_eq!(status, 202, "{key}: {batch}");
        ids.extend(batch["tasks"].as_array().unwrap().iter().map(|task| task["id"].clone()));
    }
    let distinct: std::collections::BTreeSet<String> = ids.iter().map(Value::to_string).collect();
    assert_eq!(distinct.len(), ids.len(), "{ids:?}");
}

#[tokio::test]
async fn a_repeated_batch_waits_once_for_all_its_tasks() {
    let server = Server::start().await;
    let batch = format!("[{}]", vec![r#"{"model":"sleep"}"#; 200].join(","));
    let send = || {
        let request = server.json(Method::POST, &format!("{TASKS}?wait=0.5"), &batch);
        answer(request.header("idempotency-key", "batch"))
    };
    let (status, first) = send().await;
    assert_eq!(status, 202);
    // Half a second for each would be longer than the test waits.
    let repeated = tokio::time::timeout(TEST_TIMEOUT, send()).await.expect("one wait for all");
    assert_eq!(repeated.1["tasks"][199]["id"], first["tasks"][199]["id"]);
}

#[tokio::test]
async fn full_queue_is_answered_with_retry_after() {
    let settings = hypha_engine::Settings { max_queue: 1, ..Default::default() };
    let server = Server::with(Memory::with(settings), Settings::default()).await;
    let task = r#"{"model": "none"}"#;
    let (status, body) = server.post(TASKS, format!("[{task},{task}]")).await;
    assert_eq!(status, 202);
    assert_eq!(body["tasks"][0]["status"], "queued");
    assert_eq!(body["tasks"][1]["error"]["code"], "too_many_tasks");
    for body in [task.to_owned(), format!("[{task}]")] {
        let response = server.json(Method::POST, TASKS, &body).send().await.unwrap();
        assert_eq!(response.status(), 429);
        let seconds: u32 = response.headers()["retry-after"].to_str().unwrap().parse().unwrap();
        assert!((1..=60).contains(&seconds));
    }
}

#[tokio::test]
async fn nothing_is_acknowledged_while_the_store_fails() {
    let server = Server::start().await;
    let (_, task) = server.post(TASKS, r#"{"model": "echo"}"#).await;
    server.memory.set_unavailable(Some("the disk is full"));
    let requests = [
        server.json(Method::POST, TASKS, r#"{"model": "echo"}"#),
        server.json(Method::POST, TASKS, r#"[{"model": "echo"}]"#),
        server.request(Method::GET, &path_of(&task)),
        server.request(Method::DELETE, &path_of(&task)),
        server.request(Method::GET, TASKS),
        server.request(Method::GET, "/readyz"),
    ];
    for request in requests {
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), 503);
        let ready = response.url().path() == "/readyz";
        assert!(ready || response.headers().contains_key("retry-after"));
        assert!(response.text().await.unwrap().contains("the disk is full"));
    }
    server.memory.set_unavailable(None);
    assert_eq!(server.get(&path_of(&task)).await.0, 200);
}

#[tokio::test]
async fn failed_attempt_shows_its_reason_and_when_it_is_retried() {
    let retry = RetryPolicy { max_attempts: 2, ..RetryPolicy::default() };
    let memory = Memory::with(hypha_engine::Settings { retry, ..Default::default() });
    memory.add_worker(1, &["fail"]);
    let server = Server::with(memory, Settings::default()).await;
    let (_, task) = server.post(TASKS, r#"{"model": "fail", "input": "retry"}"#).await;
    let (_, delayed) = server.get(&path_of(&task)).await;
    assert_eq!((&delayed["status"], &delayed["attempts"]), (&json!("queued"), &json!(1)));
    assert_eq!(delayed["last_error"], "it was told to fail");
    assert!(delayed["delayed_until"].is_string());
    assert!(
        delayed["reason"].as_str().unwrap().starts_with("the next attempt is in "),
        "{delayed}"
    );
    server.memory.advance(Span::from_secs(10));
    let (_, failed) = server.get(&path_of(&task)).await;
    assert_eq!((&failed["status"], &failed["attempts"]), (&json!("failed"), &json!(2)));
    assert_eq!(failed["error"], "it was told to fail");
    assert_eq!(failed["result"], Value::Null);
    assert_eq!(delayed["failures"].as_array().unwrap().len(), 1, "{delayed}");
    let tries = failed["failures"].as_array().unwrap();
    for (one, number) in tries.iter().zip(1..) {
        assert_eq!((&one["attempt"], &one["reason"]), (&json!(number), &failed["error"]));
        assert_eq!(one["worker"], failed["worker"]);
        assert!(one["at"].as_str().unwrap() >= failed["submitted_at"].as_str().unwrap());
    }
    assert_eq!(tries.len(), 2, "{failed}");
    let (_, why) = server.get(&format!("{}/explain", path_of(&task))).await;
    assert_eq!(why["failures"], failed["failures"], "{why}");
    let (_, document) = server.get("/openapi.json").await;
    let failures = &document["components"]["schemas"]["Task"]["properties"]["failures"];
    assert_eq!(failures["items"]["$ref"], "#/components/schemas/TaskFailure", "{failures}");
    assert!(document["components"]["schemas"]["TaskFailure"].is_object());
    let (status, body) = server.get(&format!("{}/result", path_of(&task))).await;
    assert_eq!(status, 404);
    assert!(body["error"]["message"].as_str().unwrap().contains("it was told to fail"), "{body}");
}

#[tokio::test]
async fn running_attempt_does_not_show_the_last_error() {
    let server = Server::start().await;
    let (_, task) = server.post(TASKS, r#"{"model": "sleep"}"#).await;
    let held = server.memory.wait_for_attempt("sleep").await;
    server.memory.fail(&held, FailureKind::BackendFailed, "out of memory");
    let (_, waits) = server.get(&path_of(&task)).await;
    assert_eq!(
        (&waits["status"], &waits["last_error"]),
        (&json!("queued"), &json!("out of memory"))
    );
    server.memory.advance(Span::from_secs(10));
    server.memory.wait_for_attempt("sleep").await;
    let (_, again) = server.get(&path_of(&task)).await;
    assert_eq!((&again["status"], &again["attempts"]), (&json!("running"), &json!(2)), "{again}");
    assert_eq!((&again["error"], &again["last_error"]), (&Value::Null, &Value::Null), "{again}");
    assert_eq!(again["failures"][0]["reason"], "out of memory");
}

#[tokio::test]
async fn unschedulable_task_shows_its_reason() {
    let server = Server::start().await;
    let body = json!({"model": "echo", "input": 1,
        "requirements": {"min_memory": 1_000_000_000_000_000_000_u64, "gpu_required": true}});
    let (_, stuck) = server.post(TASKS, body.to_string()).await;
    let (_, task) = server.get(&path_of(&stuck)).await;
    assert_eq!(task["status"], "queued");
    assert!(task["reason"].as_str().unwrap().contains("none of 2 workers fits"), "{task}");
    let (status, why) = server.get(&format!("{}/explain", path_of(&stuck))).await;
    assert_eq!((status, &why["status"]), (200, &json!("queued")));
    let summary = why["summary"].as_str().unwrap();
    assert_eq!(summary, "no worker can take it: 2 × too little memory, 2 × too few GPUs");
    let workers = why["workers"].as_array().unwrap();
    assert_eq!(workers.len(), 2);
    let refusals = workers[0]["refusals"].to_string();
    assert!(refusals.contains("needs 1 EB of memory, has 16 GB"), "{why}");
    assert!(refusals.contains("needs 1 GPU, has 0"), "{why}");
    assert_eq!(workers[0]["score"], Value::Null);

    let (_, held) = server.post(TASKS, r#"{"model": "sleep"}"#).await;
    let (_, why) = server.get(&format!("{}/explain", path_of(&held))).await;
    assert_eq!(why["decision"]["chosen"]["worker"], why["worker"]);
    assert!(why["summary"].as_str().unwrap().contains("predictive"), "{why}");
    assert!(why["workers"][0]["score"].is_number(), "{why}");

    let (_, done) = server.post("/api/v1/tasks?wait=9", r#"{"model": "echo"}"#).await;
    let (status, why) = server.get(&format!("{}/explain", path_of(&done))).await;
    assert_eq!((status, &why["worker"], &why["decision"]), (200, &done["worker"], &Value::Null));
    assert!(why["summary"].as_str().unwrap().starts_with("completed after 1 attempt"), "{why}");
}

#[tokio::test]
async fn cancelling_is_final_and_may_be_repeated() {
    let server = Server::start().await;
    let (_, running) = server.post(TASKS, r#"{"model": "sleep"}"#).await;
    let (_, queued) = server.post(TASKS, r#"{"model": "nobody-serves-this"}"#).await;
    let (_, done) = server.post("/api/v1/tasks?wait=9", r#"{"model": "echo", "input": 5}"#).await;
    for task in [&running, &queued] {
        for _ in 0..2 {
            let (status, body) = server.delete(&path_of(task)).await;
            assert_eq!((status, &body["status"]), (200, &json!("cancelled")), "{body}");
            assert!(body["finished_at"].is_string());
        }
        assert_eq!(server.get(&path_of(task)).await.1["status"], "cancelled");
    }
    let task = running["id"].as_str().unwrap().parse().unwrap();
    assert_eq!(server.memory.wait_for_cancel(task).await.number, 1);
    let (status, body) = server.delete(&path_of(&done)).await;
    assert_eq!((status, &body["status"], &body["result"]), (200, &json!("completed"), &json!(5)));
}

#[tokio::test]
async fn unknown_task_is_404_and_invalid_id_is_400() {
    let server = Server::start().await;
    let unknown = "task-018bcfe5-6800-7000-8000-000000000000";
    for suffix in ["", "/events", "/explain", "/result", "?wait=0.01"] {
        let (status, body) = server.get(&format!("{TASKS}/{unknown}{suffix}")).await;
        assert_eq!((status, &body["error"]["code"]), (404, &json!("not_found")), "{suffix}");
        for odd in ["no-such", "%ff", "task-", "%00"] {
            let (status, body) = server.get(&format!("{TASKS}/{odd}{suffix}")).await;
            assert_eq!((status, &body["error"]["code"]), (400, &json!("bad_request")), "{odd}");
        }
    }
    assert_eq!(server.delete(&format!("{TASKS}/{unknown}")).await.0, 404);
    assert_eq!(server.delete(&format!("{TASKS}/x")).await.0, 400);
}

#[tokio::test]
async fn tasks_are_listed_with_filters_page_by_page() {
    let server = Server::start().await;
    let submit =
        async |model: &str| server.post(TASKS, json!({"model": model}).to_string()).await.1;
    let mut echoes = Vec::new();
    for _ in 0..5 {
        echoes.push(submit("echo").await["id"].clone());
    }
    let sleeping = submit("sleep").await;
    let queued = submit("nobody-serves-this").await;
    let list = async |query: &str| {
        let (status, body) = server.get(&format!("{TASKS}?{query}")).await;
        assert_eq!(status, 200, "{query}: {body}");
        body
    };
    let ids = |body: &Value| -> Vec<Value> {
        body["tasks"].as_array().unwrap().iter().map(|task| task["id"].clone()).collect()
    };
    let all = list("").await;
    assert_eq!(ids(&all).len(), 7);
    assert_eq!(ids(&all)[0], queued["id"], "the latest first");
    assert_eq!(all["next"], Value::Null);
    assert!(!all.to_string().contains("\"input\""));
    assert_eq!(ids(&list("status=running").await), [sleeping["id"].clone()]);
    assert_eq!(ids(&list("status=scheduled").await), [] as [Value; 0]);
    assert_eq!(ids(&list("status=queued").await), [queued["id"].clone()]);
    assert_eq!(ids(&list("status=completed").await).len(), 5);
    assert_eq!(ids(&list("status=failed").await).len(), 0);
    assert_eq!(ids(&list("model=sleep").await), [sleeping["id"].clone()]);
    let by_worker = [1, 2].map(|n| format!("model=echo&worker={}", worker_id(n)));
    let counts = [ids(&list(&by_worker[0]).await).len(), ids(&list(&by_worker[1]).await).len()];
    assert_eq!(counts.iter().sum::<usize>(), 5);
    let since = all["tasks"][1]["submitted_at"].as_str().unwrap().replace('+', "%2B");
    assert_eq!(ids(&list(&format!("since={since}")).await).len(), 2);

    let mut pages = Vec::new();
    let mut cursor = String::new();
    loop {
        let page = list(&format!("limit=2&model=echo{cursor}")).await;
        assert!(ids(&page).len() <= 2);
        pages.extend(ids(&page));
        match page["next"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    echoes.reverse();
    assert_eq!(pages, echoes, "each once, in order");
    for odd in [
        "limit=0",
        "limit=1001",
        "limit=x",
        "status=done",
        "cursor=x",
        "since=now",
        "worker=x",
        "model=",
        "sort=id",
        "limit=1&limit=2",
        "since=%ff",
    ] {
        let (status, body) = server.get(&format!("{TASKS}?{odd}")).await;
        assert_eq!((status, &body["error"]["code"]), (400, &json!("bad_request")), "{odd}: {body}");
    }
}

#[tokio::test]
async fn results_are_returned_unchanged() {
    let memory = Memory::new();
    memory.add_worker(3, &["any"]);
    let server = Server::with(memory, Settings::default()).await;
    let large: Vec<u8> = (0..100_000_u32).flat_map(u32::to_le_bytes).collect();
    let looks_like_one = format!("{{\"bytes\":7,\"object\":\"{}\"}}", "0".repeat(64));
    let cases: [(&[u8], &str, &[u8]); 6] = [
        (b"{\"a\":\n 1}", "application/json", b"{\"a\":\n 1}"),
        (b"hello", "text/plain; charset=utf-8", b"hello"),
        (b"\xff\x00", "application/octet-stream", b"\xff\x00"),
        (b"", "text/plain; charset=utf-8", b""),
        (looks_like_one.as_bytes(), "application/json", looks_like_one.as_bytes()),
        (&large, "application/octet-stream", &large),
    ];
    for (result, kind, expected) in cases {
        let (_, task) = server.post(TASKS, r#"{"model": "any"}"#).await;
        let path = format!("{}/result", path_of(&task));
        assert_eq!(server.get(&path).await.0, 409, "there is no result yet");
        let held = server.memory.wait_for_attempt("any").await;
        if result.len() > 1_000 {
            let object = server.memory.put_object(&held, result);
            server.memory.complete_with(&held, object);
        } else {
            server.memory.complete(&held, result);
        }
        let response = server.request(Method::GET, &path).send().await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], kind);
        assert_eq!(response.headers()["content-length"], expected.len().to_string().as_str());
        assert_eq!(response.bytes().await.unwrap(), expected);
    }
}

#[tokio::test]
async fn a_large_result_that_is_damaged_or_gone_is_an_error() {
    let server = Server::start().await;
    for damaged in [true, false] {
        let (_, task) = server.post(TASKS, r#"{"model": "sleep"}"#).await;
        let held = server.memory.wait_for_attempt("sleep").await;
        let mut object = server.memory.put_object(&held, b"very large");
        match damaged {
            true => server.memory.damage(&held, object),
            false => object.digest = hypha_model::Payload::default().digest(),
        }
        server.memory.complete_with(&held, object);
        let (status, body) = server.get(&format!("{}/result", path_of(&task))).await;
        let code = &body["error"]["code"];
        match damaged {
            true => assert_eq!((status, code), (500, &json!("corrupt_object")), "{body}"),
            false => assert_eq!((status, code), (404, &json!("not_found")), "{body}"),
        }
    }
}

#[tokio::test]
async fn a_failure_has_a_kind_for_programs() {
    let server = Server::start().await;
    let (_, task) = server.post("/api/v1/tasks?wait=10", r#"{"model": "fail"}"#).await;
    assert_eq!((&task["status"], &task["error_kind"]), (&json!("failed"), &json!("invalid_input")));
    assert_eq!(task["failures"][0]["kind"], "invalid_input", "{task}");
    let (_, task) = server.post("/api/v1/tasks?wait=10", r#"{"model": "echo"}"#).await;
    assert_eq!((&task["status"], task.get("error_kind")), (&json!("completed"), None));
    let (_, task) = server.post(TASKS, r#"{"model": "sleep"}"#).await;
    server.delete(&path_of(&task)).await;
    assert_eq!(server.get(&path_of(&task)).await.1["error_kind"], "cancelled");
}

/// A scheduler that has measured `sleep`: it takes two seconds.
async fn measured() -> Server {
    let server = Server::start().await;
    for _ in 0..40 {
        server.post(TASKS, r#"{"model": "sleep"}"#).await;
        let held = server.memory.wait_for_attempt("sleep").await;
        server.memory.complete_after(&held, Span::from_secs(2));
    }
    server
}

#[tokio::test]
async fn a_deadline_that_cannot_be_met_is_refused_or_marked() {
    let server = measured().await;
    let refused =
        r#"{"model": "sleep", "deadline": 0.5, "requirements": {"deadline_policy": "refuse"}}"#;
    let (status, body) = server.post(TASKS, refused).await;
    assert_eq!((status, &body["error"]["code"]), (422, &json!("deadline_unreachable")), "{body}");
    let message = body["error"]["message"].as_str().unwrap();
    assert!(message.starts_with("deadline: no worker can meet it"), "{message}");
    assert!(message.contains("within 500.0 ms"), "{message}");
    // In a batch, it is refused alone.
    let (status, body) =
        server.post(TASKS, format!(r#"[{refused}, {{"model": "echo", "input": 1}}]"#)).await;
    assert_eq!(status, 202, "{body}");
    assert_eq!(body["tasks"][0]["error"]["code"], "deadline_unreachable", "{body}");
    assert!(body["tasks"][1]["id"].is_string(), "{body}");

    for (deadline, expected) in [("0.5", "unreachable"), ("60", "on_track")] {
        let body = format!(r#"{{"model": "sleep", "deadline": {deadline}}}"#);
        let (status, task) = server.post(TASKS, body).await;
        assert_eq!((status, &task["deadline_status"]), (202, &json!(expected)), "{task}");
        let path = path_of(&task);
        for shown in [&path, &format!("{path}/explain")] {
            let (_, shown) = server.get(shown).await;
            assert_eq!(shown["deadline_status"], expected, "{shown}");
            assert!(shown["predicted_finish_at"].is_string(), "{shown}");
        }
        server.delete(&path).await;
        // An ended task has nothing to expect.
        assert_eq!(server.get(&path).await.1.get("deadline_status"), None);
    }
    let (_, without) = server.post(TASKS, r#"{"model": "sleep"}"#).await;
    assert_eq!(without.get("deadline_status"), None);
}

#[tokio::test]
async fn a_task_states_what_counts() {
    let server = Server::start().await;
    let (status, task) = server
        .post(TASKS, r#"{"model": "sleep", "deadline": 60, "deadline_policy": "refuse", "maximise": "cost"}"#)
        .await;
    assert_eq!(status, 202, "{task}");
    let wanted = json!({"deadline": 60.0, "deadline_policy": "refuse", "maximise": "cost"});
    assert_eq!(task["requirements"], wanted);
    server.memory.wait_for_attempt("sleep").await;
    // No worker has a price, so speed counts.
    let (_, explained) = server.get(&format!("{}/explain", path_of(&task))).await;
    assert_eq!(explained["decision"]["maximise"], "speed", "{explained}");
}
