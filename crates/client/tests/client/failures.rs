//! Errors are specific, and only safe calls are retried.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::http::HeaderValue;
use hypha_client::{ClientError, Scheduler, Task, TaskKey, WorkerId};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::stub::{Stub, id, reply, task};

#[tokio::test]
async fn unreachable_scheduler_is_reported() {
    // Bound and closed: nothing listens there.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let scheduler = Scheduler::connect(&address, None).unwrap();
    let error = scheduler.task(id()).await.unwrap_err();
    assert!(matches!(&error, ClientError::Unreachable { .. }), "{error:?}");
    let said = error.to_string();
    assert!(said.starts_with(&format!("no scheduler answers at {address} (")), "{said}");
    assert!(said.contains("refused") && said.ends_with("is one running?"), "{said}");
}

#[tokio::test]
async fn refusal_shows_the_message_of_the_scheduler() {
    let stub = Stub::new(|received, _| {
        let error = json!({"error": {"code": "not_found", "message": "no such task\u{1b}[2J"}});
        match received.line.as_str() {
            line if line.contains("explain") => {
                let mut busy = reply(429, &error);
                busy.headers_mut().insert("retry-after", HeaderValue::from_static("7"));
                busy
            }
            line if line.contains("workers") => reply(503, &json!("gone")),
            line if line.contains("scheduler") => reply(200, &json!("hello")),
            _ => reply(404, &error),
        }
    })
    .await;
    let scheduler = &stub.scheduler;
    let missing = scheduler.task(id()).await.unwrap_err();
    assert!(missing.is_not_found());
    assert_eq!(missing.to_string(), "no such task [2J", "nothing moves the cursor");
    let busy = scheduler.explain(id()).await.unwrap_err();
    assert!(
        matches!(busy, ClientError::Busy { retry_after, .. } if retry_after.as_secs() == 7),
        "{busy:?}"
    );
    let busy = scheduler.workers().await.unwrap_err();
    assert!(matches!(busy, ClientError::Busy { .. }), "{busy:?}");
    let other = scheduler.scheduler().await.unwrap_err();
    assert!(matches!(other, ClientError::Malformed { .. }), "{other:?}");
    // Any response is final: none of these requests was sent twice.
    assert_eq!(stub.lines().len(), 4);
}

/// A server that closes the first `broken` connections after it has read a request, and serves the others.
async fn breaking(broken: usize) -> (Scheduler, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let requests = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&requests);
    tokio::spawn(async move {
        loop {
            let (mut connection, _) = listener.accept().await.unwrap();
            let mut request = [0; 4_096];
            let _ = connection.read(&mut request).await;
            if counted.fetch_add(1, Ordering::SeqCst) >= broken {
                let body = task("queued", &json!({})).to_string();
                let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n", body.len());
                let answer = format!("{head}connection: close\r\n\r\n{body}");
                let _ = connection.write_all(answer.as_bytes()).await;
            }
        }
    });
    (Scheduler::connect(&address, None).unwrap(), requests)
}

#[tokio::test]
async fn lost_connection_is_retried_only_where_that_is_safe() {
    let count = |requests: &AtomicUsize| requests.load(Ordering::SeqCst);
    let keyed = || Task::new("echo", "x".into());
    let unkeyed = || Task { key: TaskKey::none(), ..keyed() };

    let (scheduler, requests) = breaking(2).await;
    scheduler.task(id()).await.unwrap();
    assert_eq!(count(&requests), 3);

    let (scheduler, requests) = breaking(1).await;
    scheduler.submit_task(keyed()).await.unwrap();
    assert_eq!(count(&requests), 2);

    let (scheduler, requests) = breaking(1).await;
    let error = scheduler.submit_task(unkeyed()).await.unwrap_err();
    assert!(matches!(error, ClientError::Lost { safe_to_retry: false, .. }), "{error:?}");
    assert_eq!(count(&requests), 1, "it may have been accepted");

    let worker: WorkerId = "01890000-0000-7000-8000-000000000002".parse().unwrap();
    let (scheduler, requests) = breaking(2).await;
    let drained = scheduler.drain_worker(worker).await.unwrap_err();
    let readmitted = scheduler.readmit_worker(worker).await.unwrap_err();
    for error in [drained, readmitted] {
        assert!(matches!(error, ClientError::Lost { safe_to_retry: false, .. }), "{error:?}");
    }
    assert_eq!(count(&requests), 2, "done a second time it would be refused");

    let (scheduler, requests) = breaking(usize::MAX).await;
    let error = scheduler.submit_task(keyed()).await.unwrap_err();
    assert!(error.is_transient() && matches!(error, ClientError::Lost { .. }), "{error:?}");
    assert_eq!(count(&requests), 3, "retries are bounded");
}

#[tokio::test]
async fn redirect_does_not_leak_the_token() {
    let elsewhere = Stub::new(|_, _| reply(200, &task("queued", &json!({})))).await;
    let target = HeaderValue::from_str(&elsewhere.address).unwrap();
    let stub = Stub::new(move |_, _| {
        let mut redirect = reply(307, &json!({}));
        redirect.headers_mut().insert("location", target.clone());
        redirect
    })
    .await;
    let error = stub.scheduler.task(id()).await.unwrap_err();
    assert!(matches!(error, ClientError::Refused { status: 307, .. }), "{error:?}");
    assert!(elsewhere.received().is_empty());
}

#[tokio::test]
async fn response_without_end_is_an_error() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let (mut connection, _) = listener.accept().await.unwrap();
        let mut request = [0; 4_096];
        let _ = connection.read(&mut request).await;
        let _ = connection.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await;
        while connection.write_all(&[b' '; 65_536]).await.is_ok() {}
    });
    let scheduler = Scheduler::connect(&address, None).unwrap();
    let error = scheduler.wait(id(), Duration::ZERO).await.unwrap_err();
    assert!(matches!(error, ClientError::TooLarge { .. }), "{error:?}");
}
