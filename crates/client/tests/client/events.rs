//! A task's events, to the last.

use axum::body::Body;
use axum::response::Response;
use futures::{StreamExt, stream};
use hypha_client::{ClientError, EventKind, Task, TaskKey, TaskState};
use serde_json::json;

use crate::stub::{ID, Stub, id, reply, task};

/// A response whose body arrives in these pieces.
fn pieces(pieces: Vec<String>) -> Response {
    let pieces = pieces.into_iter().map(Ok::<_, std::io::Error>);
    Response::new(Body::from_stream(stream::iter(pieces)))
}

#[tokio::test]
async fn events_come_one_by_one_and_end_with_the_task() {
    let stub = Stub::new(|_, _| {
        let done = task("completed", &json!({"result": "hi"}));
        let worker = "01890000-0000-7000-8000-000000000002";
        pieces(vec![
            "event: queued\ndata: {\"reason\": \"busy\"}\n\n: alive\n".to_owned(),
            format!("\nevent: scheduled\ndata: {{\"worker\": \"{worker}\"}}\n\neve"),
            "nt: progress\ndata: {\"progress\": 0.5}\n\nevent: output\ndata: {\"output\": \"pie"
                .to_owned(),
            "ce\"}\n\nevent: output\ndata: {\"base64\": \"/w==\"}\n\n".to_owned(),
            "event: surprise\ndata: not json\n\n".to_owned(),
            format!("event: completed\ndata: {done}\n\nevent: queued\ndata: 1\n\n"),
        ])
    })
    .await;
    let mut events = stub.scheduler.events(id()).await.unwrap();
    let mut next = async || events.next().await.unwrap().unwrap();
    let queued = next().await;
    assert_eq!(queued.kind, EventKind::State(TaskState::Queued));
    assert_eq!(queued.reason().as_deref(), Some("busy"));
    assert!(next().await.worker().is_some());
    assert_eq!(next().await.progress(), Some(0.5));
    assert_eq!(next().await.output().as_deref(), Some(&b"piece"[..]));
    assert_eq!(next().await.output().as_deref(), Some(&b"\xff"[..]));
    let other = next().await;
    assert_eq!(other.kind, EventKind::Other("surprise".to_owned()));
    assert_eq!(other.data.as_str(), "\"not json\"");
    let last = next().await;
    assert!(last.is_last());
    assert_eq!(last.task().unwrap().result.text().as_deref(), Some("hi"));
    assert!(events.next().await.is_none(), "nothing follows the last");
    assert_eq!(stub.lines(), [format!("GET /api/v1/tasks/{ID}/events")]);

    let stream = stub.scheduler.events(id()).await.unwrap().into_stream();
    assert_eq!(stream.collect::<Vec<_>>().await.len(), 7);
}

#[tokio::test]
async fn a_task_is_submitted_and_followed_in_one_request() {
    let stub = Stub::new(|received, _| {
        assert_eq!(received.accept.as_deref(), Some("text/event-stream"));
        let [first, last] = ["queued", "completed"].map(|status| task(status, &json!({})));
        pieces(vec![
            format!("event: queued\ndata: {first}\n\n"),
            format!("event: completed\ndata: {last}\n\n"),
        ])
    })
    .await;
    let wanted = Task {
        key: TaskKey::from_text("mine").unwrap(),
        stream: true,
        ..Task::new("echo", "hi".into())
    };
    let mut events = stub.scheduler.submit_and_follow(wanted).await.unwrap();
    assert_eq!(events.next().await.unwrap().unwrap().task().unwrap().id, id());
    assert!(events.next().await.unwrap().unwrap().is_last());
    let received = &stub.received()[0];
    assert_eq!(
        (received.line.as_str(), received.key.as_deref()),
        ("POST /api/v1/tasks", Some("mine"))
    );
    assert_eq!(received.body, json!({"model": "echo", "input": "hi", "stream": true}));

    let stub =
        Stub::new(|_, _| reply(422, &json!({"error": {"code": "invalid", "message": "no"}}))).await;
    let refused = stub.scheduler.submit_and_follow(Task::new("echo", "hi".into())).await;
    assert!(matches!(refused.err(), Some(ClientError::Refused { status: 422, .. })));
}

#[tokio::test]
async fn events_that_end_too_early_are_an_error() {
    let stub = Stub::new(|_, _| pieces(vec!["event: queued\ndata: {}\n\nevent: run".into()])).await;
    let mut events = stub.scheduler.events(id()).await.unwrap();
    assert!(events.next().await.unwrap().is_ok());
    let error = events.next().await.unwrap().unwrap_err();
    assert!(matches!(error, ClientError::Lost { safe_to_retry: true, .. }), "{error}");
    assert!(events.next().await.is_none());
}
