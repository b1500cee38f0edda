//! Invalid requests on every route: each API refuses them in its one format, briefly.

use reqwest::Method;
use serde_json::Value;

use crate::server::Server;

/// Routes that take a body, with the part that is valid.
const TASKS: [(&str, &str); 3] =
    [("POST", "/api/v1/tasks"), ("PUT", "/api/v1/scheduler"), ("POST", "/api/v1/workers")];
const INSTANCES: [(&str, &str); 10] = [
    ("POST", "/scheduler/set"),
    ("POST", "/scheduler/predict_mode"),
    ("POST", "/ti/register"),
    ("POST", "/ti/remove"),
    ("POST", "/queue/submit"),
    ("POST", "/queue/info"),
    ("POST", "/task/query"),
    ("POST", "/notify/task_complete"),
    ("POST", "/notify/task_complete/secret"),
    ("POST", "/result/submit"),
];
const OPENAI: [(&str, &str); 3] =
    [("POST", "/v1/chat/completions"), ("POST", "/v1/completions"), ("POST", "/v1/embeddings")];

/// Longer than any refusal; shorter than some of these requests.
const MAX_ANSWER: usize = 2_000;

#[derive(Clone, Copy, Debug)]
enum Shape {
    Tasks,
    Instances,
    OpenAi,
}

fn routes() -> impl Iterator<Item = (Shape, &'static str, &'static str)> {
    let of = |shape, routes: &'static [(&str, &str)]| {
        routes.iter().map(move |(method, path)| (shape, *method, *path))
    };
    of(Shape::Tasks, &TASKS)
        .chain(of(Shape::Instances, &INSTANCES))
        .chain(of(Shape::OpenAi, &OPENAI))
}

/// Sends it, and checks that it is refused in the format of its API. Returns the status.
async fn refused(
    server: &Server,
    (shape, method, path): (Shape, &str, &str),
    headers: &[(&str, &str)],
    body: &[u8],
) -> u16 {
    let mut request =
        server.request(Method::from_bytes(method.as_bytes()).unwrap(), path).body(body.to_vec());
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = request.send().await.unwrap();
    let (status, kind) = (response.status(), response.headers().get("content-type").cloned());
    let text = response.text().await.unwrap();
    let start: String = text.chars().take(300).collect();
    let what = format!(
        "{method} {} {headers:?} {} bytes: {status} {start}",
        &path[..path.len().min(80)],
        body.len()
    );
    assert!(status.is_client_error(), "{what}");
    assert!(text.len() < MAX_ANSWER, "{} bytes: {what}", text.len());
    assert_eq!(kind.unwrap(), "application/json", "{what}");
    let answer: Value =
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} {what}"));
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    let message = match shape {
        Shape::Tasks => {
            assert_eq!(keys(&answer), ["error"], "{what}");
            assert_eq!(keys(&answer["error"]), ["code", "message"], "{what}");
            &answer["error"]["message"]
        }
        Shape::Instances => {
            assert_eq!(answer["status"], "error", "{what}");
            &answer["message"]
        }
        Shape::OpenAi => {
            assert_eq!(keys(&answer), ["error"], "{what}");
            assert_eq!(keys(&answer["error"]), ["code", "message", "param", "type"], "{what}");
            &answer["error"]["message"]
        }
    };
    let ours = |message: &str| !message.is_empty() && !message.contains("struct ");
    assert!(message.as_str().is_some_and(ours), "{what}");
    status.as_u16()
}

#[tokio::test]
async fn invalid_bodies_are_refused() {
    let server = Server::start().await;
    let long = format!("{{\"{}\": 1}}", "x".repeat(1_000_000)).into_bytes();
    let long_text = format!("{{\"model\": \"{0}\", \"name\": \"{0}\"}}", "é".repeat(300_000));
    let deep = "[".repeat(100_000).into_bytes();
    let deep_object = "{\"model\":".repeat(100_000).into_bytes();
    let bodies: [&[u8]; 14] = [
        b"{",
        b"nul",
        b"null",
        b"7",
        b"\"x\"",
        b"[\"fifo\"]",
        b"{}{}",
        b"\xff\xfe{\x00}\x00",
        b"{\"model\": \"\xff\"}",
        b"{\"model\": NaN}",
        b"{\"model\": 1e999, \"name\": -0, \"host\": 1e999, \"port\": 99999999999999999999}",
        &long,
        &deep,
        &deep_object,
    ];
    for route in routes() {
        // An array of tasks is a batch, each of which has its own outcome.
        let is_batch = |body: &[u8]| route.2 == "/api/v1/tasks" && body == b"[\"fifo\"]";
        for body in bodies.into_iter().filter(|body| !is_batch(body)) {
            let status = refused(&server, route, &[], body).await;
            // Without the secret of an attempt, only small notifications are read.
            let is_unread =
                status == 413 && (route.2.starts_with("/notify/") || route.2 == "/result/submit");
            assert!([400, 404, 422].contains(&status) || is_unread, "{route:?} {status}");
        }
        refused(&server, route, &[], long_text.as_bytes()).await;
        let json = ("content-type", "application/json");
        for headers in [
            &[("content-type", "text/plain")][..],
            &[("content-type", "multipart/form-data; boundary=x")],
            &[json, ("content-encoding", "gzip")],
            &[json, ("content-encoding", "br, gzip")],
        ] {
            let status = refused(&server, route, headers, b"\x1f\x8b\x08\x00{}").await;
            assert_eq!(status, 415, "{route:?} {headers:?}");
        }
        if route.2 != "/queue/info" {
            assert_ne!(refused(&server, route, &[], b"").await, 415);
        }
        let (shape, _, path) = route;
        assert_eq!(refused(&server, (shape, "PATCH", path), &[], b"{}").await, 405);
    }
    assert_eq!(server.get("/healthz").await.0, 200);
}

#[tokio::test]
async fn invalid_paths_and_queries_are_refused() {
    let server = Server::start().await;
    let long = "x".repeat(5_000);
    let unknown = "task-018bcfe5-6800-7000-8000-000000000000";
    for suffix in ["", "/events", "/explain", "/result"] {
        for (id, expected) in
            [("x", 400), ("%ff", 400), ("..%2f..", 400), (&long, 400), (unknown, 404), ("%00", 400)]
        {
            let path = format!("/api/v1/tasks/{id}{suffix}");
            let status = refused(&server, (Shape::Tasks, "GET", &path), &[], b"").await;
            assert_eq!(status, expected, "{suffix}");
        }
    }
    for id in ["x", "%ff", &long, unknown] {
        let path = format!("/api/v1/workers/{id}");
        assert_eq!(refused(&server, (Shape::Tasks, "DELETE", &path), &[], b"").await, 400);
        let path = format!("/task/query?task_id={id}");
        refused(&server, (Shape::Instances, "GET", &path), &[], b"").await;
        let path = format!("/v1/models/{id}");
        assert_eq!(refused(&server, (Shape::OpenAi, "GET", &path), &[], b"").await, 404);
        let path = format!("/v1/{id}");
        assert_eq!(refused(&server, (Shape::OpenAi, "POST", &path), &[], b"{}").await, 404);
        let path = format!("/api/v1/tasks?{id}=1");
        assert_eq!(refused(&server, (Shape::Tasks, "GET", &path), &[], b"").await, 400);
        let path = format!("/queue/info?{id}=1");
        assert_eq!(refused(&server, (Shape::Instances, "GET", &path), &[], b"").await, 400);
    }
    let odd = ["wait=NaN", "wait=inf", "wait=1e999", "wait=-1", "wait=x", "wait=1&wait=1", "x=1"];
    for query in odd {
        for (method, path) in
            [("GET", format!("/api/v1/tasks/{unknown}")), ("POST", "/api/v1/tasks".to_owned())]
        {
            let path = format!("{path}?{query}");
            let route = (Shape::Tasks, method, path.as_str());
            assert_eq!(refused(&server, route, &[], b"{\"model\": \"echo\"}").await, 400, "{path}");
        }
    }
    for query in [
        "limit=18446744073709551616",
        "limit=-1",
        "limit=1e3",
        "since=NaN",
        "since=-1",
        "since=1e300",
        "cursor=AAAA",
        "cursor=AAAAAAAAAAAAAAAAAAAAAB",
        "cursor=%00",
        "worker=0",
        "status=%ff",
        "model=%20",
    ] {
        let path = format!("/api/v1/tasks?{query}");
        assert_eq!(refused(&server, (Shape::Tasks, "GET", &path), &[], b"").await, 400, "{query}");
    }
}

/// An id of any time is a valid position to continue from, even if the client made it up.
#[tokio::test]
async fn foreign_cursor_is_only_a_position() {
    let server = Server::start().await;
    server.post("/api/v1/tasks", r#"{"model": "echo"}"#).await;
    for (cursor, found) in [("AAAAAAAAAAAAAAAAAAAAAA", 0), ("_____________________w", 1)] {
        let (status, page) = server.get(&format!("/api/v1/tasks?cursor={cursor}")).await;
        assert_eq!((status, page["tasks"].as_array().unwrap().len()), (200, found));
        assert_eq!(page["next"], Value::Null);
    }
}
