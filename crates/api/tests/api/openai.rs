//! OpenAI's protocol: bodies pass unchanged, streams as they arrive, and failures in the protocol's format.

use std::sync::Arc;
use std::time::Duration;

use hypha_api::{NewToken, SchedulerApi, Settings, Tokens};
use hypha_engine::Command;
use hypha_model::{FailureKind, InputKind, Priority, Span, TaskError};
use reqwest::{Method, Response};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::gated::GatedScheduler;
use crate::memory::{HeldAttempt, Memory, TEST_TIMEOUT, worker_id};
use crate::server::Server;

const CHAT: &str = "/v1/chat/completions";
const STREAM: &str = r#"{"model":"m","stream":true}"#;

/// A scheduler with two workers that serve `m` and `org/m`, controlled by the test.
async fn start() -> Server {
    let memory = Memory::with(hypha_engine::Settings::default());
    for n in [1, 2] {
        memory.add_worker(n, &["m", "org/m"]);
    }
    Server::with(memory, Settings::default()).await
}

/// Sends a request whose response is awaited later.
fn send(server: &Server, path: &str, body: &str) -> tokio::task::JoinHandle<Response> {
    let request = server.json(Method::POST, path, body);
    let answer = async move { request.send().await.unwrap() };
    let answer = tokio::time::timeout(TEST_TIMEOUT, answer);
    tokio::spawn(async move { answer.await.expect("no answer came") })
}

/// The status and the JSON of the response.
async fn post(server: &Server, path: &str, body: &str) -> (u16, Value) {
    let response = send(server, path, body).await.unwrap();
    (response.status().as_u16(), json_of(response).await)
}

async fn json_of(response: Response) -> Value {
    serde_json::from_str(&response.text().await.unwrap()).unwrap()
}

fn header<'a>(response: &'a Response, name: &str) -> &'a str {
    response.headers().get(name).map_or("", |value| value.to_str().unwrap())
}

async fn chunk(response: &mut Response) -> String {
    let chunk = tokio::time::timeout(TEST_TIMEOUT, response.chunk()).await.expect("no piece came");
    String::from_utf8(chunk.unwrap().expect("the stream has ended").to_vec()).unwrap()
}

/// Lets the backoff before the next attempt pass.
fn pass_retry_backoff(server: &Server) {
    server.memory.advance(Span::from_millis(10));
}

async fn no_task_is_open(memory: &Memory) {
    memory.until(|state| (state.scheduler.open_tasks() == 0).then_some(())).await;
}

/// The error of a response, which must have all four fields.
fn error(body: &Value) -> &serde_json::Map<String, Value> {
    let error = body["error"].as_object().unwrap_or_else(|| panic!("no error in {body}"));
    let fields: Vec<_> = error.keys().map(String::as_str).collect();
    assert_eq!(fields, ["code", "message", "param", "type"], "{body}");
    assert!(error["message"].is_string() && error["type"].is_string(), "{body}");
    error
}

#[tokio::test]
async fn bodies_pass_unchanged_both_ways() {
    let server = start().await;
    let body = " {\n\"messages\" : [ {\"content\":\"\\u00e4\\/ß 🍄\"} ],\t\"model\":\"m\", \"max_tokens\": 1e2}\r\n";
    let answer = "{ \"choices\":[],\n\t\"id\":1, \"id\" : 2.50, \"text\":\"\\u00e4ß\" }\n";
    let cases = [
        (CHAT, InputKind::Chat),
        ("/v1/completions", InputKind::Completion),
        ("/v1/embeddings", InputKind::Embedding),
    ];
    for (path, form) in cases {
        let response = send(&server, path, body);
        let held = server.memory.wait_for_attempt("m").await;
        assert_eq!(held.input(), body.as_bytes());
        let spec = &held.dispatch.spec;
        assert_eq!((spec.form, spec.stream), (form, false));
        let numbers: Vec<_> =
            spec.metadata.iter().map(|(name, value)| format!("{name} {value:?}")).collect();
        assert_eq!(
            numbers,
            [
                "max_tokens Number(100.0)".to_owned(),
                format!("prompt_bytes Number({:.1})", body.len() as f64)
            ]
        );
        server.memory.complete(&held, answer.as_bytes());
        let response = response.await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(header(&response, "content-type"), "application/json");
        assert_eq!(header(&response, "content-length"), answer.len().to_string());
        assert_eq!(header(&response, "x-request-id"), held.task().to_string());
        assert_eq!(response.text().await.unwrap(), answer);
    }
    let stored = server.memory.with_state(|state| state.disk.image.tasks.len());
    assert_eq!(stored, 0, "requests are not stored");
    no_task_is_open(&server.memory).await;
}

#[tokio::test]
async fn pieces_arrive_as_they_come_and_in_order() {
    let server = start().await;
    let response = send(&server, CHAT, STREAM);
    let held = server.memory.wait_for_attempt("m").await;
    assert!(held.dispatch.spec.stream);
    server.memory.output(&held, b"data: {\"n\":1}\n\n");
    let mut response = response.await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(header(&response, "content-type"), "text/event-stream");
    assert_eq!(header(&response, "cache-control"), "no-cache");
    assert_eq!(header(&response, "x-request-id"), held.task().to_string());
    // Each arrives before the next exists.
    assert_eq!(chunk(&mut response).await, "data: {\"n\":1}\n\n");
    for n in 2..50 {
        // Cut anywhere, and not all of it text.
        let piece = format!("data: {{\"n\":{n}");
        server.memory.output(&held, piece.as_bytes());
        assert_eq!(chunk(&mut response).await, piece);
        server.memory.output(&held, b"");
        server.memory.output(&held, b"}\n\n");
        assert_eq!(chunk(&mut response).await, "}\n\n");
    }
    server.memory.output(&held, b"data: [DONE]\n\n");
    server.memory.complete(&held, b"");
    assert_eq!(response.text().await.unwrap(), "data: [DONE]\n\n");
    no_task_is_open(&server.memory).await;
}

#[tokio::test]
async fn a_worker_that_fails_before_the_first_byte_is_replaced() {
    let server = start().await;
    for (body, stream) in [(r#"{"model":"m"}"#, false), (STREAM, true)] {
        let response = send(&server, CHAT, body);
        let first = server.memory.wait_for_attempt("m").await;
        server.memory.fail(&first, FailureKind::BackendFailed, "the connection was refused");
        pass_retry_backoff(&server);
        let second = server.memory.wait_for_attempt("m").await;
        assert_ne!(first.worker, second.worker);
        assert_eq!(second.input(), body.as_bytes());
        if stream {
            server.memory.output(&second, b"data: 1\n\n");
            server.memory.complete(&second, b"");
        } else {
            server.memory.complete(&second, b"data: 1\n\n");
        }
        let response = response.await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(response.text().await.unwrap(), "data: 1\n\n");
    }
}

#[tokio::test]
async fn a_worker_that_is_lost_before_the_first_byte_is_replaced() {
    let server = start().await;
    let response = send(&server, CHAT, STREAM);
    let first = server.memory.wait_for_attempt("m").await;
    server.memory.lose_worker(if first.worker == worker_id(1) { 1 } else { 2 });
    pass_retry_backoff(&server);
    let second = server.memory.wait_for_attempt("m").await;
    assert_ne!(first.worker, second.worker);
    server.memory.output(&second, b"data: [DONE]\n\n");
    server.memory.complete(&second, b"");
    assert_eq!(response.await.unwrap().text().await.unwrap(), "data: [DONE]\n\n");
}

#[tokio::test]
async fn a_failure_after_the_first_byte_ends_the_stream_with_an_error() {
    let server = start().await;
    // The second was cut off within an event.
    for (passed, between) in
        [("data: {\"n\":1}\n\n", ""), ("data: {\"n\":1}\n\ndata: {\"n", "\n\n")]
    {
        let response = send(&server, CHAT, STREAM);
        let held = server.memory.wait_for_attempt("m").await;
        server.memory.output(&held, passed.as_bytes());
        server.memory.fail(&held, FailureKind::BackendFailed, "the server hung up");
        let response = response.await.unwrap();
        assert_eq!(response.status(), 200);
        let text = response.text().await.unwrap();
        let event = text.strip_prefix(passed).unwrap().strip_prefix(between).unwrap();
        let event = event.strip_prefix("data: ").unwrap().strip_suffix("\n\n").unwrap();
        let event: Value = serde_json::from_str(event).unwrap();
        assert_eq!(error(&event)["message"], "the server hung up");
        assert_eq!(error(&event)["code"], "worker_failed");
        no_task_is_open(&server.memory).await;
        pass_retry_backoff(&server);
    }
}

#[tokio::test]
async fn a_client_that_hangs_up_while_it_runs_cancels() {
    let server = start().await;
    for body in [r#"{"model":"m"}"#, STREAM] {
        let response = send(&server, CHAT, body);
        let held = server.memory.wait_for_attempt("m").await;
        response.abort();
        server.memory.wait_for_cancel(held.task()).await;
        no_task_is_open(&server.memory).await;
    }
}

#[tokio::test]
async fn a_client_that_hangs_up_while_it_waits_cancels() {
    let server = start().await;
    let mut running = Vec::new();
    for _ in 0..8 {
        running.push(send(&server, CHAT, r#"{"model":"m"}"#));
    }
    server.memory.until(|state| (state.scheduler.open_tasks() == 8).then_some(())).await;
    let waiting = send(&server, CHAT, r#"{"model":"m"}"#);
    server.memory.until(|state| (state.scheduler.open_tasks() == 9).then_some(())).await;
    waiting.abort();
    server.memory.until(|state| (state.scheduler.open_tasks() == 8).then_some(())).await;
    running.iter().for_each(tokio::task::JoinHandle::abort);
    no_task_is_open(&server.memory).await;
}

#[tokio::test]
async fn a_client_that_hangs_up_within_a_stream_cancels() {
    let server = start().await;
    let response = send(&server, CHAT, STREAM);
    let held = server.memory.wait_for_attempt("m").await;
    server.memory.output(&held, b"data: 1\n\n");
    let mut response = response.await.unwrap();
    chunk(&mut response).await;
    drop(response);
    server.memory.wait_for_cancel(held.task()).await;
    no_task_is_open(&server.memory).await;
}

#[tokio::test]
async fn a_client_that_hangs_up_before_it_is_accepted_cancels() {
    let memory = Memory::with(hypha_engine::Settings::default());
    memory.add_worker(1, &["m"]);
    let gate = Arc::new(Semaphore::new(0));
    let gated = GatedScheduler { memory: Arc::clone(&memory), gate: Arc::clone(&gate) };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let never = std::future::pending();
    tokio::spawn(hypha_api::serve(Settings::default(), listener, Arc::new(gated), never));
    let mut server = Server::with(Arc::clone(&memory), Settings::default()).await;
    server.address = address;
    let response = send(&server, CHAT, r#"{"model":"m"}"#);
    // Accepted, and not acknowledged yet.
    let held = memory.wait_for_attempt("m").await;
    response.abort();
    // The abort is seen before the reply comes, or after: the task must end in both cases.
    tokio::task::yield_now().await;
    gate.add_permits(1);
    memory.wait_for_cancel(held.task()).await;
    no_task_is_open(&memory).await;
}

#[tokio::test]
async fn bad_requests_are_refused_in_the_shape_of_the_protocol() {
    let server = start().await;
    let cases = [
        ("", Value::Null, "the body is invalid"),
        ("{\"model\":", Value::Null, "the body is invalid"),
        ("[]", Value::Null, "expected an object"),
        (r#"{"model":"m","model":"m"}"#, Value::Null, "duplicate field `model`"),
        (r#"{"messages":[]}"#, "model".into(), "must name a `model`"),
        (r#"{"model":7}"#, "model".into(), "`model` must be a string"),
        (r#"{"model":"m","stream":1}"#, "stream".into(), "`stream` must be true or false"),
    ];
    for path in [CHAT, "/v1/completions", "/v1/embeddings"] {
        for (body, param, message) in &cases {
            let (status, answer) = post(&server, path, body).await;
            assert_eq!(status, 400, "{body}: {answer}");
            let error = error(&answer);
            assert_eq!(error["type"], "invalid_request_error");
            assert_eq!(&error["param"], param, "{body}");
            assert!(error["message"].as_str().unwrap().contains(message), "{body}: {answer}");
        }
    }
    let plain = server.request(Method::POST, CHAT).header("content-type", "text/plain");
    let (status, answer) = crate::server::answer(plain.body(r#"{"model":"m"}"#)).await;
    assert_eq!((status, &error(&answer)["code"]), (415, &"unsupported_media_type".into()));
    let response = server.request(Method::GET, CHAT).send().await.unwrap();
    assert_eq!((response.status().as_u16(), header(&response, "allow")), (405, "POST"));
    let (status, answer) = server.delete("/v1/models/m").await;
    assert_eq!((status, &error(&answer)["code"]), (405, &"method_not_allowed".into()));
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused() {
    let settings = Settings { max_request_bytes: 100, ..Settings::default() };
    let server = Server::with(Memory::new(), settings).await;
    let body = format!(r#"{{"model":"echo","prompt":"{}"}}"#, "x".repeat(100));
    let (status, answer) = post(&server, CHAT, &body).await;
    assert_eq!((status, &error(&answer)["code"]), (413, &"too_large".into()));
    let (status, _) = post(&server, CHAT, r#"{"model":"echo"}"#).await;
    assert_eq!(status, 200);
}

#[tokio::test]
async fn unserved_model_is_not_found_until_a_worker_serves_it() {
    let server = start().await;
    for model in ["x", "M", "m ", &"x".repeat(1_000), "a\\nb"] {
        let (status, answer) = post(&server, CHAT, &format!(r#"{{"model":"{model}"}}"#)).await;
        assert_eq!(status, 404, "{model}: {answer}");
        let error = error(&answer);
        assert_eq!((&error["code"], &error["param"]), (&"model_not_found".into(), &"model".into()));
        assert!(answer.to_string().len() < 300, "{answer}");
    }
    server.memory.add_worker(3, &["x"]);
    let response = send(&server, CHAT, r#"{"model":"x"}"#);
    let held = server.memory.wait_for_attempt("x").await;
    server.memory.complete(&held, b"{}");
    assert_eq!(response.await.unwrap().status(), 200);
}

#[tokio::test]
async fn worker_for_any_model_serves_other_models() {
    let server = start().await;
    server.memory.add_worker(3, &[]);
    let response = send(&server, CHAT, r#"{"model":"x"}"#);
    let held = server.memory.wait_for_attempt("x").await;
    server.memory.complete(&held, b"{}");
    assert_eq!(response.await.unwrap().status(), 200);
    let (status, _) = server.get("/v1/models/x").await;
    assert_eq!(status, 200);
    let (status, _) = post(&server, CHAT, r#"{"model":" x"}"#).await;
    assert_eq!(status, 404, "no name at all");
}

#[tokio::test]
async fn models_are_listed_and_shown() {
    let server = start().await;
    let (status, body) = server.get("/v1/models").await;
    assert_eq!(status, 200);
    let expected = serde_json::json!({"object": "list", "data": [
        {"id": "m", "object": "model", "created": 1_700_000_000, "owned_by": "hypha"},
        {"id": "org/m", "object": "model", "created": 1_700_000_000, "owned_by": "hypha"},
    ]});
    assert_eq!(body, expected);
    server.memory.advance(Span::from_secs(2));
    server.memory.add_worker(3, &["z"]);
    for path in ["/v1/models/org/m", "/v1/models/org%2Fm"] {
        assert_eq!(server.get(path).await, (200, expected["data"][1].clone()));
    }
    let (_, body) = server.get("/v1/models/z").await;
    assert_eq!(body["created"], 1_700_000_002);
    for path in ["/v1/models/none", "/v1/models/%ff", "/v1/models/m%2F", "/v1/models/org"] {
        let (status, body) = server.get(path).await;
        assert_eq!((status, &error(&body)["code"]), (404, &"model_not_found".into()), "{path}");
    }
}

#[tokio::test]
async fn models_go_with_their_last_worker() {
    let server = start().await;
    server.memory.add_worker(3, &["x"]);
    let models = async || server.get("/v1/models").await.1["data"].as_array().unwrap().len();
    assert_eq!(models().await, 3);
    server.memory.execute(Command::RemoveWorker(worker_id(3))).await.unwrap();
    assert_eq!(models().await, 2);
    let (status, body) = post(&server, CHAT, r#"{"model":"x"}"#).await;
    let why = "all workers that serve the model `x` were removed; try again later";
    assert_eq!((status, &error(&body)["message"]), (503, &why.into()));
    assert_eq!(post(&server, CHAT, r#"{"model":"none"}"#).await.0, 404);
    server.memory.execute(Command::RemoveWorker(worker_id(2))).await.unwrap();
    assert_eq!(models().await, 2, "the other worker serves them, too");
}

#[tokio::test]
async fn full_queue_is_429_with_retry_after() {
    let memory = Memory::with(hypha_engine::Settings { max_queue: 1, ..Default::default() });
    memory.add_worker(1, &["m"]);
    let server = Server::with(memory, Settings::default()).await;
    let first = send(&server, CHAT, r#"{"model":"m"}"#);
    let held = server.memory.wait_for_attempt("m").await;
    let response = send(&server, CHAT, r#"{"model":"m"}"#).await.unwrap();
    assert_eq!(response.status(), 429);
    assert!(header(&response, "retry-after").parse::<u32>().unwrap() >= 1);
    let body = json_of(response).await;
    assert_eq!(error(&body)["type"], "rate_limit_error");
    server.memory.complete(&held, b"{}");
    assert_eq!(first.await.unwrap().status(), 200);
}

#[tokio::test]
async fn unavailable_scheduler_is_503_with_retry_after() {
    let server = start().await;
    server.memory.set_unavailable(Some("the disk is full"));
    let response = send(&server, CHAT, r#"{"model":"m"}"#).await.unwrap();
    assert_eq!(response.status(), 503);
    assert!(header(&response, "retry-after").parse::<u32>().unwrap() >= 1);
    let body = json_of(response).await;
    assert!(error(&body)["message"].as_str().unwrap().contains("the disk is full"), "{body}");
}

#[tokio::test]
async fn a_request_that_no_worker_takes_in_time_is_503_and_cancelled() {
    let memory = Memory::with(hypha_engine::Settings::default());
    memory.add_worker(1, &["m"]);
    memory.lose_worker(1);
    let settings = Settings { task_timeout: Span::from_millis(20), ..Settings::default() };
    let server = Server::with(memory, settings).await;
    let (status, body) = post(&server, CHAT, r#"{"model":"m"}"#).await;
    assert_eq!((status, &error(&body)["code"]), (503, &"no_worker".into()));
    no_task_is_open(&server.memory).await;
}

/// A request does not wait for minutes for an unavailable worker; it does for a busy one.
#[tokio::test]
async fn request_is_503_if_all_workers_are_unavailable_and_waits_if_they_are_busy() {
    let memory = Memory::with(hypha_engine::Settings::default());
    memory.add_worker(1, &["m"]);
    memory.add_worker(2, &["other"]);
    let settings = Settings { unschedulable_timeout: Span::from_millis(20), ..Settings::default() };
    let server = Server::with(memory, settings).await;
    let running: Vec<_> = (0..4).map(|_| send(&server, CHAT, r#"{"model":"m"}"#)).collect();
    server.memory.until(|state| (state.held().len() == 4).then_some(())).await;
    let waits = send(&server, CHAT, r#"{"model":"m"}"#);
    server.memory.until(|state| (state.scheduler.open_tasks() == 5).then_some(())).await;
    // Longer than it would wait for an unavailable worker.
    tokio::time::sleep(Duration::from_millis(60)).await;
    assert!(!waits.is_finished(), "they are busy");
    server.memory.lose_worker(1);
    for given_up in running.into_iter().chain([waits, send(&server, CHAT, STREAM)]) {
        let response = given_up.await.unwrap();
        assert_eq!(response.status(), 503);
        assert!(header(&response, "retry-after").parse::<u32>().unwrap() >= 1);
        let body = json_of(response).await;
        assert_eq!(error(&body)["code"], "no_worker");
        let message = "no worker is available for it: all workers that serve this model are unavailable (lost); \
                       try again later";
        assert_eq!(error(&body)["message"], message);
    }
    no_task_is_open(&server.memory).await;
}

/// A worker that has been unavailable for longer than the wait is not waited for.
#[tokio::test]
async fn request_is_503_at_once_if_all_workers_have_long_been_unavailable() {
    const LONG: Span = Span::from_secs(60);
    let memory = Memory::with(hypha_engine::Settings::default());
    memory.add_worker(1, &["m"]);
    let settings = Settings { unschedulable_timeout: LONG, ..Settings::default() };
    let server = Server::with(memory, settings).await;
    server.memory.lose_worker(1);
    let waits = send(&server, CHAT, r#"{"model":"m"}"#);
    server.memory.until(|state| (state.scheduler.open_tasks() == 1).then_some(())).await;
    // Much longer than until the first check.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!waits.is_finished(), "it may only be restarted");
    server.memory.advance(LONG);
    let response = send(&server, CHAT, r#"{"model":"m"}"#).await.unwrap();
    assert_eq!(response.status(), 503);
    waits.abort();
}

#[tokio::test]
async fn worker_that_returns_in_time_answers() {
    let memory = Memory::with(hypha_engine::Settings::default());
    memory.add_worker(1, &["m"]);
    memory.lose_worker(1);
    let server = Server::with(memory, Settings::default()).await;
    let response = send(&server, CHAT, r#"{"model":"m"}"#);
    server.memory.until(|state| (state.scheduler.open_tasks() == 1).then_some(())).await;
    server.memory.add_worker(1, &["m"]);
    let held = server.memory.wait_for_attempt("m").await;
    server.memory.complete(&held, b"{}");
    assert_eq!(response.await.unwrap().status(), 200);
}

#[tokio::test]
async fn running_request_is_not_cancelled_by_the_wait_limit() {
    let memory = Memory::with(hypha_engine::Settings::default());
    memory.add_worker(1, &["m"]);
    let settings = Settings { task_timeout: Span::from_millis(20), ..Settings::default() };
    let server = Server::with(memory, settings).await;
    let response = send(&server, CHAT, r#"{"model":"m"}"#);
    let held = server.memory.wait_for_attempt("m").await;
    // Longer than it may wait.
    tokio::time::sleep(Duration::from_millis(60)).await;
    server.memory.complete(&held, b"{}");
    assert_eq!(response.await.unwrap().status(), 200);
}

#[tokio::test]
async fn fault_that_the_back_end_reports_is_passed_on() {
    let server = start().await;
    let cases = [
        (400, "{ \"error\": {\"message\": \"no such field: x\"} }", "application/json"),
        (422, "{\"detail\":[]}", "application/json"),
        (429, "slow down: please", "text/plain; charset=utf-8"),
        (501, "{\"error\":{\"message\":\"no images\"}}", "application/json"),
    ];
    for (status, body, kind) in cases {
        for request in [r#"{"model":"m"}"#, STREAM] {
            let response = send(&server, CHAT, request);
            let retry_after_s = (status == 429).then_some(7);
            let error = TaskError::new(FailureKind::of_http_status(status), body);
            let error = TaskError { status: Some(status), retry_after_s, ..error };
            let mut task = None;
            for _ in 0..attempts_of(error.kind) {
                let held = server.memory.wait_for_attempt("m").await;
                task = Some(held.task());
                server.memory.fail_with(&held, error.clone());
                pass_retry_backoff(&server);
            }
            let response = response.await.unwrap();
            assert_eq!(response.status().as_u16(), status);
            let retry_after = response.headers().get("retry-after");
            assert_eq!(retry_after.map(|it| it.to_str().unwrap()), retry_after_s.map(|_| "7"));
            assert_eq!(header(&response, "content-type"), kind);
            assert_eq!(header(&response, "x-request-id"), task.unwrap().to_string());
            assert_eq!(response.text().await.unwrap(), body);
        }
    }
}

#[tokio::test]
async fn a_server_that_fails_on_every_attempt_is_502() {
    let cases = [
        (
            Some(500),
            r#"{"error":{"message":"out of memory"}}"#,
            "the back end answered 500, attempt 2 was the last: out of memory",
        ),
        (Some(502), "<html>trace</html>", "the back end answered 502, attempt 2 was the last"),
        (Some(302), "", "the back end answered 302, attempt 3 was the last"),
        // About the scheduler's own key, which the client must not learn about.
        (Some(401), "no", "the back end answered 401, attempt 3 was the last"),
        (None, "nobody listens there", "nobody listens there"),
        // No decision depends on the text.
        (None, "the server answered 422: x", "the server answered 422: x"),
        (None, "no worker is available for it", "no worker is available for it"),
    ];
    for (status, text, expected) in cases {
        let server = start().await;
        let response = send(&server, CHAT, STREAM);
        let kind = status.map_or(FailureKind::BackendFailed, FailureKind::of_http_status);
        for _ in 0..attempts_of(kind) {
            let held: HeldAttempt = server.memory.wait_for_attempt("m").await;
            let error = TaskError::new(kind, text);
            server.memory.fail_with(&held, TaskError { status, ..error });
            pass_retry_backoff(&server);
        }
        let response = response.await.unwrap();
        assert_eq!(response.status(), 502);
        let body = json_of(response).await;
        assert_eq!(error(&body)["message"], expected);
        assert_eq!(error(&body)["type"], "server_error");
    }
}

/// How many attempts an interactive task has that several workers could run, if each fails with this kind.
fn attempts_of(kind: FailureKind) -> usize {
    match kind {
        FailureKind::BackendError => 2,
        kind if kind.is_retryable() => 3,
        _ => 1,
    }
}

/// The kind of a failure decides the status; the message is the program's own.
#[tokio::test]
async fn every_kind_of_failure_has_its_status() {
    let words = "the program failed: no such voice";
    for kind in FailureKind::ALL.into_iter().filter(|kind| kind.is_run_outcome()) {
        let (status, kind_of_error, code) = match kind {
            FailureKind::InvalidInput => (400, "invalid_request_error", None),
            FailureKind::ProgramFailed => (500, "server_error", Some("program_failed")),
            FailureKind::LimitExceeded => (500, "server_error", Some("limit_exceeded")),
            FailureKind::TimedOut => (504, "server_error", Some("timeout")),
            FailureKind::BackendBusy => (503, "server_error", Some("no_worker")),
            _ => (502, "server_error", Some("worker_failed")),
        };
        for request in [r#"{"model":"m"}"#, STREAM] {
            let server = start().await;
            let response = send(&server, CHAT, request);
            for _ in 0..attempts_of(kind) {
                let held: HeldAttempt = server.memory.wait_for_attempt("m").await;
                server.memory.fail(&held, kind, words);
                pass_retry_backoff(&server);
            }
            let response = response.await.unwrap();
            assert_eq!(response.status(), status, "{kind}");
            let body = json_of(response).await;
            assert_eq!(error(&body)["message"], words, "{kind}");
            assert_eq!(error(&body)["type"], kind_of_error, "{kind}");
            assert_eq!(error(&body)["code"].as_str(), code, "{kind}");
        }
    }
    let server = start().await;
    let response = send(&server, CHAT, r#"{"model":"m"}"#);
    for _ in 0..3 {
        let held: HeldAttempt = server.memory.wait_for_attempt("m").await;
        server.memory.time_out(&held);
        pass_retry_backoff(&server);
    }
    assert_eq!(response.await.unwrap().status(), 504);
}

#[tokio::test]
async fn unreachable_back_end_is_replaced_or_503_soon() {
    let server = start().await;
    let response = send(&server, CHAT, STREAM);
    for _ in 0..2 {
        let held = server.memory.wait_for_attempt("m").await;
        server.memory.fail_unreachable(&held, "no connection to 127.0.0.1:8000: refused");
        pass_retry_backoff(&server);
    }
    let response = response.await.unwrap();
    assert_eq!(response.status(), 503);
    assert!(response.headers().contains_key("retry-after"));
    let body = json_of(response).await;
    assert_eq!(error(&body)["code"], "no_worker");
    let message = "no worker is available for it: no connection to 127.0.0.1:8000: refused";
    assert_eq!(error(&body)["message"], message);
}

#[tokio::test]
async fn request_cancelled_at_the_scheduler_is_410() {
    let server = start().await;
    let response = send(&server, CHAT, r#"{"model":"m"}"#);
    let held = server.memory.wait_for_attempt("m").await;
    server.memory.execute(Command::CancelTask(held.task())).await.unwrap();
    let response = response.await.unwrap();
    assert_eq!(response.status(), 410);
    let body = json_of(response).await;
    assert_eq!(error(&body)["code"], "cancelled");
}

/// A result that looks like the name of an object is returned unchanged.
#[tokio::test]
async fn a_result_that_looks_like_an_object_is_passed_on() {
    let server = start().await;
    let response = send(&server, CHAT, r#"{"model":"m"}"#);
    let held = server.memory.wait_for_attempt("m").await;
    let object = server.memory.put_object(&held, b"very large");
    server.memory.complete(&held, object.to_json().as_bytes());
    let response = response.await.unwrap();
    assert_eq!(response.text().await.unwrap(), object.to_json());
}

#[tokio::test]
async fn a_large_result_that_is_damaged_is_an_error() {
    let server = start().await;
    let response = send(&server, CHAT, r#"{"model":"m"}"#);
    let held = server.memory.wait_for_attempt("m").await;
    let object = server.memory.put_object(&held, b"very large");
    server.memory.damage(&held, object);
    server.memory.complete_with(&held, object);
    let response = response.await.unwrap();
    assert_eq!(response.status(), 500);
    assert_eq!(error(&json_of(response).await)["code"], "corrupt_object");
}

#[tokio::test]
async fn a_large_result_is_fetched() {
    let server = start().await;
    let result = format!("{{\"data\":\"{}\"}}", "x".repeat(100_000));
    let response = send(&server, "/v1/embeddings", r#"{"model":"m"}"#);
    let held = server.memory.wait_for_attempt("m").await;
    let object = server.memory.put_object(&held, result.as_bytes());
    server.memory.complete_with(&held, object);
    let response = response.await.unwrap();
    assert_eq!(header(&response, "content-length"), result.len().to_string());
    assert_eq!(header(&response, "content-type"), "application/json");
    assert_eq!(response.text().await.unwrap(), result);
}

#[tokio::test]
async fn results_of_executors_that_are_no_servers_are_passed_on() {
    let server = Server::start().await;
    for body in [r#"{"model":"echo","stream":true}"#, r#"{"model":"echo"}"#] {
        let response = send(&server, CHAT, body).await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(header(&response, "content-type"), "application/json");
        assert_eq!(response.text().await.unwrap(), body);
    }
    let server = start().await;
    let cases = [
        (&b"[1]"[..], "application/json"),
        (b"\"text\"", "application/json"),
        (b"\xff\x00", "application/octet-stream"),
        (b"{\"object\":\"list\",\"bytes\":1}", "application/json"),
        (b"data: [DONE]\n\n", "text/event-stream"),
        (b"", "application/octet-stream"),
    ];
    for (result, kind) in cases {
        let response = send(&server, CHAT, STREAM);
        let held = server.memory.wait_for_attempt("m").await;
        server.memory.complete(&held, result);
        let response = response.await.unwrap();
        assert_eq!(header(&response, "content-type"), kind);
        assert_eq!(response.bytes().await.unwrap(), result);
    }
}

#[tokio::test]
async fn embeddings_are_not_streamed() {
    let server = start().await;
    let response = send(&server, "/v1/embeddings", STREAM);
    let held = server.memory.wait_for_attempt("m").await;
    assert!(!held.dispatch.spec.stream);
    server.memory.output(&held, b"unasked");
    server.memory.complete(&held, b"{}");
    assert_eq!(response.await.unwrap().text().await.unwrap(), "{}");
}

#[tokio::test]
async fn requests_run_under_the_tenant_s_name_quota_and_ceiling() {
    let directory = tempfile::tempdir().unwrap();
    let (token, entry) = Tokens::issue(&NewToken {
        tenant: Some("acme".parse().unwrap()),
        quota: Some(1),
        max_priority: Some(Priority::from_milli(-500)),
        ..NewToken::default()
    });
    let path = directory.path().join("tokens.toml");
    std::fs::write(&path, entry).unwrap();
    let tokens = Some(Tokens::load(&path).unwrap());
    let memory = Memory::with(hypha_engine::Settings::default());
    memory.add_worker(1, &["m", "echo"]);
    let mut server = Server::with(memory, Settings { tokens, ..Settings::default() }).await;
    for path in ["/v1/models", "/v1/models/m"] {
        assert_eq!(server.get(path).await.0, 401);
    }
    assert_eq!(post(&server, CHAT, r#"{"model":"m"}"#).await.0, 401);
    server.token = Some(token);
    let first = send(&server, CHAT, r#"{"model":"m"}"#);
    let held = server.memory.wait_for_attempt("m").await;
    assert_eq!(held.dispatch.spec.tenant.as_ref().unwrap().as_str(), "acme");
    assert_eq!(held.dispatch.spec.requirement.priority, Priority::from_milli(-500));
    let refused = send(&server, CHAT, r#"{"model":"echo"}"#).await.unwrap();
    assert_eq!((refused.status().as_u16(), header(&refused, "retry-after")), (429, "1"));
    let body = json_of(refused).await;
    assert_eq!(error(&body)["type"], "rate_limit_error");
    server.memory.complete(&held, b"{}");
    assert_eq!(first.await.unwrap().status(), 200);
    // The slot is free as soon as the response is there, each time.
    for _ in 0..20 {
        let (status, body) = post(&server, CHAT, r#"{"model":"echo"}"#).await;
        assert_eq!(status, 200, "{body}");
    }
    // The same holds for streams, which end or are dropped.
    for leaves in [false, true, false] {
        let response = send(&server, CHAT, STREAM);
        let held = server.memory.wait_for_attempt("m").await;
        server.memory.output(&held, b"data: 1\n\n");
        let mut response = response.await.unwrap();
        assert_eq!(response.status(), 200);
        chunk(&mut response).await;
        let (status, body) = post(&server, CHAT, r#"{"model":"echo"}"#).await;
        assert_eq!(status, 429, "{body}");
        if leaves {
            drop(response);
            no_task_is_open(&server.memory).await;
        } else {
            server.memory.complete(&held, b"");
            response.text().await.unwrap();
        }
    }
}
