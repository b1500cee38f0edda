//! Many tasks in few requests, each with its own outcome.

use hypha_client::{ClientError, Task, TaskKey};
use serde_json::{Value, json};

use crate::stub::{Stub, reply, task};

fn numbered(count: usize) -> Vec<Task> {
    let key = |n: usize| TaskKey::from_text(format!("key-{n}")).unwrap();
    (0..count).map(|n| Task { key: key(n), ..Task::new("echo", json!({"n": n}).into()) }).collect()
}

/// Accepts everything and returns the input in the metadata, so that outcomes can be told apart.
async fn echo() -> Stub {
    Stub::new(|received, _| {
        let answer = |given: &Value| task("queued", &json!({"input": given["input"]}));
        let tasks: Vec<_> = received.body.as_array().unwrap().iter().map(answer).collect();
        reply(202, &json!({"tasks": tasks}))
    })
    .await
}

#[tokio::test]
async fn tasks_go_in_few_requests_and_come_back_in_order() {
    let stub = echo().await;
    let outcomes = stub.scheduler.submit_tasks(numbered(2_500)).await;
    assert_eq!(outcomes.len(), 2_500);
    for (n, outcome) in outcomes.iter().enumerate() {
        let input = outcome.as_ref().unwrap().input.as_ref().unwrap();
        assert_eq!(input.to_value()["n"], n);
    }
    let sizes: Vec<_> =
        stub.received().iter().map(|received| received.body.as_array().unwrap().len()).collect();
    assert_eq!(sizes, [1_000, 1_000, 500]);
    assert!(stub.scheduler.submit_tasks(Vec::new()).await.is_empty());
    assert_eq!(stub.received().len(), 3, "no request for no tasks");
}

#[tokio::test]
async fn large_tasks_go_in_more_requests() {
    let stub = echo().await;
    let large = || Task::new("echo", "x".repeat(1_500_000).into());
    let outcomes = stub.scheduler.submit_tasks((0..5).map(|_| large()).collect()).await;
    assert!(outcomes.iter().all(Result::is_ok));
    let sizes: Vec<_> =
        stub.received().iter().map(|received| received.body.as_array().unwrap().len()).collect();
    assert_eq!(sizes, [2, 2, 1]);
}

#[tokio::test]
async fn the_same_tasks_have_the_same_key_together() {
    let stub = echo().await;
    stub.scheduler.submit_tasks(numbered(3)).await;
    stub.scheduler.submit_tasks(numbered(3)).await;
    stub.scheduler.submit_tasks(numbered(4)).await;
    let mut unnamed = numbered(3);
    unnamed[1].key = TaskKey::none();
    stub.scheduler.submit_tasks(unnamed).await;
    let keys: Vec<_> = stub.received().into_iter().map(|received| received.key).collect();
    assert!(keys[0].is_some() && keys[0] == keys[1], "{keys:?}");
    assert_ne!(keys[0], keys[2]);
    assert_eq!(keys[3], None, "a submission without a key cannot be retried");
}

#[tokio::test]
async fn each_task_has_its_own_outcome() {
    let stub = Stub::new(|_, _| {
        let error = |code: &str| json!({"error": {"code": code, "message": "no such thing"}});
        let tasks = [
            task("failed", &json!({"error": "it broke"})),
            error("invalid"),
            error("too_many_tasks"),
        ];
        reply(202, &json!({"tasks": tasks}))
    })
    .await;
    let outcomes = stub.scheduler.submit_tasks(numbered(3)).await;
    assert_eq!(outcomes[0].as_ref().unwrap().error.as_deref(), Some("it broke"));
    assert!(matches!(&outcomes[1], Err(ClientError::Refused { code, .. }) if code == "invalid"));
    assert!(matches!(&outcomes[2], Err(ClientError::Busy { .. })), "{:?}", outcomes[2]);
}

#[tokio::test]
async fn a_refused_request_is_the_outcome_of_each_of_its_tasks() {
    let refused = json!({"error": {"code": "unauthorized", "message": "give a token"}});
    let stub = Stub::new(move |_, _| reply(401, &refused)).await;
    let outcomes = stub.scheduler.submit_tasks(numbered(2)).await;
    assert_eq!(outcomes.len(), 2);
    assert!(outcomes.iter().all(|one| one.as_ref().unwrap_err().is_auth_error()));
    // If the response has a reason for each task, each gets its own.
    let stub = Stub::new(|_, _| {
        let error = |message: &str| json!({"error": {"code": "invalid", "message": message}});
        let tasks = [error("no model"), error("no such field")];
        reply(422, &json!({"error": {"code": "invalid", "message": "no model"}, "tasks": tasks}))
    })
    .await;
    let outcomes = stub.scheduler.submit_tasks(numbered(2)).await;
    assert_eq!(outcomes[1].as_ref().unwrap_err().to_string(), "no such field");
    let full = json!({"error": {"code": "too_many_tasks", "message": "later"}, "tasks": [1, 2]});
    let stub = Stub::new(move |_, _| reply(429, &full)).await;
    let outcomes = stub.scheduler.submit_tasks(numbered(2)).await;
    assert!(
        outcomes.iter().all(|one| matches!(one, Err(ClientError::Busy { .. }))),
        "{outcomes:?}"
    );
    // A response that does not match the request is an error.
    let stub = Stub::new(|_, _| reply(202, &json!({"tasks": []}))).await;
    let outcomes = stub.scheduler.submit_tasks(numbered(2)).await;
    assert!(matches!(&outcomes[..], [Err(ClientError::Malformed { .. }), Err(_)]), "{outcomes:?}");
}
