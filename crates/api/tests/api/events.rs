//! Server-sent events of a task.

use hypha_api::Settings;
use hypha_model::{FailureKind, Span};
use reqwest::{Method, Response};
use serde_json::{Value, json};

use crate::memory::{Memory, TEST_TIMEOUT};
use crate::server::Server;
use crate::tasks::path_of;

/// Reads one event after the other.
struct Events {
    response: Response,
    buffer: String,
}

impl Events {
    async fn of(server: &Server, task: &Value) -> Events {
        let path = format!("{}/events", path_of(task));
        Events::from(server.request(Method::GET, &path).send().await.unwrap())
    }

    /// Of a task that is submitted with the same request.
    async fn submitted(server: &Server, key: &str, body: &'static str) -> Events {
        let request = server.request(Method::POST, "/api/v1/tasks").body(body);
        let headers =
            [("accept", "application/json;q=0.5, text/event-stream"), ("idempotency-key", key)];
        let request =
            headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        Events::from(request.send().await.unwrap())
    }

    fn from(response: Response) -> Events {
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Events { response, buffer: String::new() }
    }

    async fn next(&mut self) -> Option<(String, Value)> {
        loop {
            if let Some((event, rest)) = self.buffer.split_once("\n\n") {
                let (name, data) = event.split_once('\n').unwrap();
                let name = name.strip_prefix("event: ").unwrap().to_owned();
                let data = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
                self.buffer = rest.to_owned();
                return Some((name, data));
            }
            let chunk = tokio::time::timeout(TEST_TIMEOUT, self.response.chunk()).await;
            let chunk = chunk.expect("the next event comes").unwrap()?;
            self.buffer.push_str(std::str::from_utf8(&chunk).unwrap());
        }
    }

    async fn expect(&mut self, name: &str) -> Value {
        let (got, data) = self.next().await.expect("one more event");
        assert_eq!(got, name, "{data}");
        data
    }
}

#[tokio::test]
async fn events_follow_a_task_to_its_end() {
    let memory = Memory::with(hypha_engine::Settings::default());
    let server = Server::with(memory, Settings::default()).await;
    let (_, task) = server.post("/api/v1/tasks", r#"{"model": "any", "input": 1}"#).await;
    let mut events = Events::of(&server, &task).await;
    let queued = events.expect("queued").await;
    assert_eq!((&queued["id"], &queued["reason"]), (&task["id"], &json!("there is no worker")));

    let worker = server.memory.add_worker(1, &["any"]);
    assert_eq!(events.expect("scheduled").await["worker"], json!(worker));
    assert_eq!(events.expect("running").await["status"], "running");
    let held = server.memory.wait_for_attempt("any").await;
    server.memory.progress(&held, 250);
    assert_eq!(events.expect("progress").await["progress"], 0.25);
    server.memory.fail(&held, FailureKind::BackendFailed, "out of memory");
    let delayed = events.expect("delayed").await;
    assert_eq!((&delayed["status"], &delayed["worker"]), (&json!("queued"), &Value::Null));
    assert!(delayed["reason"].as_str().unwrap().contains("out of memory"), "{delayed}");
    assert!(delayed["delayed_until"].is_string());

    server.memory.advance(Span::from_secs(5));
    events.expect("scheduled").await;
    events.expect("running").await;
    // A later client starts with the present state.
    let mut later = Events::of(&server, &task).await;
    assert_eq!(later.expect("running").await["attempts"], 2);
    let held = server.memory.wait_for_attempt("any").await;
    server.memory.output(&held, b"two\nlines");
    server.memory.output(&held, b"\xff");
    assert_eq!(events.expect("output").await["output"], "two\nlines");
    assert_eq!(events.expect("output").await["base64"], "/w==");
    server.memory.complete(&held, b"{\n\"a\":\r\n1}");
    let end = events.expect("completed").await;
    assert_eq!((&end["result"], &end["attempts"]), (&json!({"a": 1}), &json!(2)));
    assert_eq!(events.next().await, None, "nothing comes after the end");
    for _ in 0..2 {
        later.expect("output").await;
    }
    later.expect("completed").await;

    let mut after = Events::of(&server, &task).await;
    after.expect("completed").await;
    assert_eq!(after.next().await, None);
}

#[tokio::test]
async fn a_cancelled_task_ends_its_events() {
    let server = Server::start().await;
    let (_, task) = server.post("/api/v1/tasks", r#"{"model": "sleep"}"#).await;
    let mut events = Events::of(&server, &task).await;
    events.expect("running").await;
    server.delete(&path_of(&task)).await;
    assert_eq!(events.expect("cancelled").await["error"], "cancelled");
    assert_eq!(events.next().await, None);
}

#[tokio::test]
async fn submit_with_event_stream_misses_no_event() {
    let server =
        Server::with(Memory::with(hypha_engine::Settings::default()), Settings::default()).await;
    let body = r#"{"model": "any", "input": 1, "stream": true}"#;
    let mut events = Events::submitted(&server, "k", body).await;
    let first = events.expect("queued").await;
    assert_eq!((&first["stream"], &first["attempts"]), (&json!(true), &json!(0)));
    server.memory.add_worker(1, &["any"]);
    events.expect("scheduled").await;
    events.expect("running").await;
    let held = server.memory.wait_for_attempt("any").await;
    assert!(held.dispatch.spec.stream, "the worker is asked to stream pieces");
    server.memory.output(&held, b"fir");
    assert_eq!(events.expect("output").await["output"], "fir");

    // A failed attempt invalidates its pieces, and the client is notified.
    server.memory.fail(&held, FailureKind::BackendFailed, "out of memory");
    events.expect("delayed").await;
    server.memory.advance(Span::from_secs(5));
    events.expect("scheduled").await;
    events.expect("running").await;
    let held = server.memory.wait_for_attempt("any").await;
    server.memory.output(&held, b"first");
    assert_eq!(events.expect("output").await["output"], "first");

    // Under the same key it is the same task, from now on.
    let mut again = Events::submitted(&server, "k", body).await;
    assert_eq!(again.expect("running").await["id"], first["id"]);
    server.memory.complete(&held, b"\"first\"");
    for mut one in [events, again] {
        assert_eq!(one.expect("completed").await["result"], "first");
        assert_eq!(one.next().await, None);
    }
    let refused =
        server.request(Method::POST, "/api/v1/tasks").header("accept", "text/event-stream");
    let refused = refused.body("{}").send().await.unwrap();
    assert_eq!(
        (refused.status().as_u16(), refused.headers()["content-type"].as_bytes()),
        (422, &b"application/json"[..])
    );
}
