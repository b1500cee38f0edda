//! HTTP itself: sizes, methods, types, TLS, connections, the end.

use std::sync::Arc;
use std::time::Duration;

use hypha_api::{ServeError, Settings, TlsFiles};
use reqwest::Method;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

use crate::memory::{Memory, TEST_TIMEOUT};
use crate::server::{Server, answer};

const TASKS: &str = "/api/v1/tasks";

#[tokio::test]
async fn bodies_above_the_limit_are_refused() {
    let settings = Settings { max_request_bytes: 1_000, ..Settings::default() };
    let server = Server::with(Memory::new(), settings).await;
    let of_size = |bytes: usize| {
        let frame = r#"{"model":"echo","input":""}"#.len();
        format!(r#"{{"model":"echo","input":"{}"}}"#, "x".repeat(bytes - frame))
    };
    assert_eq!(server.post(TASKS, of_size(1_000)).await.0, 202);
    // The client sends all of it before it reads the response.
    for bytes in [1_001, 5_000_000] {
        for (method, path) in [(Method::POST, TASKS), (Method::PUT, "/api/v1/scheduler")] {
            let (status, body) = answer(server.json(method, path, &of_size(bytes))).await;
            assert_eq!((status, &body["error"]["code"]), (413, &json!("too_large")));
        }
    }
    assert_eq!(server.post(TASKS, of_size(500)).await.0, 202, "others are served as before");
}

/// Sends bytes, and reads up to the end of the head of the response.
async fn raw(server: &Server, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(request).await.unwrap();
    let mut answer = Vec::new();
    let read = async {
        while !answer.windows(4).any(|four| four == b"\r\n\r\n") {
            if stream.read_buf(&mut answer).await.unwrap() == 0 {
                break;
            }
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, read).await.expect("an answer");
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn expect_continue_is_answered_before_the_body_is_sent() {
    let settings = Settings { max_request_bytes: 1_000, ..Settings::default() };
    let server = Server::with(Memory::new(), settings).await;
    let head = |length: usize| {
        format!(
            "POST {TASKS} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\nexpect: 100-continue\r\n\r\n"
        )
    };
    assert!(raw(&server, head(2_000).as_bytes()).await.starts_with("HTTP/1.1 413"));
    assert!(raw(&server, head(20).as_bytes()).await.starts_with("HTTP/1.1 100"));
}

#[tokio::test]
async fn invalid_http_is_refused_and_others_are_still_served() {
    let server = Server::start().await;
    let requests: [&[u8]; 5] = [
        b"hello\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /api/v1/tasks HTTP/1.1\r\nhost: localhost\r\ncontent-length: -1\r\n\r\n",
        b"POST /api/v1/tasks HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    ];
    for request in requests {
        let answer = raw(&server, request).await;
        let refused = answer.is_empty()
            || answer.starts_with("HTTP/1.1 4")
            || answer.starts_with("HTTP/1.0 4");
        assert!(refused, "{answer}");
    }
    // A body that breaks off.
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream
        .write_all(
            b"POST /api/v1/tasks HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99\r\n\r\n{\"model\":",
        )
        .await
        .unwrap();
    drop(stream);
    assert_eq!(server.post(TASKS, r#"{"model": "echo"}"#).await.0, 202);
}

#[tokio::test]
async fn routes_methods_and_types_are_refused_in_one_shape() {
    let server = Server::start().await;
    for path in ["/", "/api", "/api/v1", "/api/v1/task", "/api/v1/tasks/", "/api/v1/tasks/a/b"] {
        let (status, body) = server.get(path).await;
        assert_eq!((status, &body["error"]["code"]), (404, &json!("not_found")), "{path}");
    }
    for (method, path, allow) in [
        (Method::PUT, TASKS, "GET,HEAD,POST"),
        (Method::PATCH, "/api/v1/scheduler", "GET,HEAD,PUT"),
        (Method::POST, "/healthz", "GET,HEAD"),
        (Method::from_bytes(b"BREW").unwrap(), TASKS, "GET,HEAD,POST"),
    ] {
        let response = server.request(method, path).send().await.unwrap();
        assert_eq!(response.status(), 405);
        let mut allowed: Vec<_> =
            response.headers()["allow"].to_str().unwrap().split(',').map(str::to_owned).collect();
        allowed.sort();
        assert_eq!(allowed.join(","), allow, "{path}");
        assert!(response.text().await.unwrap().contains("method_not_allowed"));
    }
    let task = r#"{"model": "echo"}"#;
    for kind in ["text/plain", "application/x-www-form-urlencoded", "x", "\u{e9}"] {
        let request = server.request(Method::POST, TASKS).body(task).header("content-type", kind);
        let (status, body) = answer(request).await;
        assert_eq!(
            (status, &body["error"]["code"]),
            (415, &json!("unsupported_media_type")),
            "{kind}"
        );
    }
    assert_eq!(answer(server.request(Method::POST, TASKS).body(task)).await.0, 202, "none is fine");
    for odd in
        [&b"{\"model\": \"echo\", \"input\": \"\xff\"}"[..], b"\xef\xbb\xbf{}", b"nul", b"{}{}"]
    {
        let (status, body) = answer(server.request(Method::POST, TASKS).body(odd)).await;
        assert_eq!((status, &body["error"]["code"]), (400, &json!("malformed_json")), "{body}");
    }
}

#[tokio::test]
async fn connections_are_bounded_and_kept() {
    let settings = Settings { max_connections: 2, ..Settings::default() };
    let server = Server::with(Memory::new(), settings).await;
    let request = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let mut kept = Vec::new();
    for _ in 0..2 {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        for _ in 0..3 {
            // The same connection serves one request after the other.
            stream.write_all(request).await.unwrap();
            let mut answer = [0; 1_024];
            assert!(stream.read(&mut answer).await.unwrap() > 0);
        }
        kept.push(stream);
    }
    let mut third = TcpStream::connect(server.address).await.unwrap();
    third.write_all(request).await.unwrap();
    let mut answer = [0; 1_024];
    let early = tokio::time::timeout(Duration::from_millis(200), third.read(&mut answer)).await;
    assert!(early.is_err(), "a third connection waits");
    kept.pop();
    let read = tokio::time::timeout(TEST_TIMEOUT, third.read(&mut answer)).await;
    assert!(read.expect("the third connection is served").unwrap() > 0);
}

#[tokio::test]
async fn requests_in_flight_end_before_the_stop() {
    let memory = Memory::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let service = Arc::clone(&memory) as Arc<dyn hypha_api::SchedulerApi>;
    let serving = tokio::spawn(async move {
        let stopped = async { drop(stopped.await) };
        hypha_api::serve(Settings::default(), listener, service, stopped).await
    });
    let idle = TcpStream::connect(address).await.unwrap();
    let mut busy = TcpStream::connect(address).await.unwrap();
    let body = r#"{"model":"sleep"}"#;
    let request = format!(
        "POST /api/v1/tasks?wait=60 HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    busy.write_all(request.as_bytes()).await.unwrap();
    let held = memory.wait_for_attempt("sleep").await;
    stop.send(()).unwrap();
    memory.complete(&held, b"7");
    let mut answer = String::new();
    busy.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("\"result\":7"), "{answer}");
    let served = tokio::time::timeout(TEST_TIMEOUT, serving).await.expect("it ends");
    drop(served.unwrap().unwrap());
    drop(idle);
    assert!(TcpStream::connect(address).await.is_err(), "the port is closed");
}

#[tokio::test]
async fn files_for_tls_are_checked_first() {
    let directory = tempfile::tempdir().unwrap();
    let empty = directory.path().join("empty.pem");
    std::fs::write(&empty, "").unwrap();
    for certificates in [empty.clone(), directory.path().join("none.pem")] {
        let tls = Some(TlsFiles { certificates: certificates.clone(), key: empty.clone() });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let settings = Settings { tls, ..Settings::default() };
        let served = hypha_api::serve(settings, listener, Memory::new(), async {}).await;
        let Err(ServeError::Tls { path, .. }) = served else { panic!("{served:?}") };
        assert_eq!(path, certificates);
    }
}
