//! Each call sends the right request and parses the response.

use std::time::Duration;

use hypha_client::{Requirements, Task, TaskFilter, TaskInput, TaskKey, TaskState, WorkerId};
use hypha_model::{Metadata, Time};
use serde_json::json;

use crate::stub::{ID, Stub, id, reply, task};

#[tokio::test]
async fn a_task_is_submitted_as_the_api_takes_it() {
    let stub = Stub::new(|_, _| reply(202, &task("queued", &json!({"reason": "no worker"})))).await;
    let submitted = stub
        .scheduler
        .submit_task(Task {
            key: TaskKey::from_text("mine").unwrap(),
            model: "llama-2-7b".into(),
            input: TaskInput::Text("Explain quantum computing".into()),
            requirements: Requirements {
                min_memory: 16_000_000_000,
                gpu_required: true,
                cpu_cores: 4,
                ..Requirements::default()
            },
            metadata: Metadata::of_numbers(&[("input_tokens", 3.0)]),
            timeout: Some(Duration::from_millis(1_500)),
            stream: false,
        })
        .await
        .unwrap();
    assert_eq!((submitted.id, submitted.status), (id(), TaskState::Queued));
    assert_eq!(submitted.reason(), Some("no worker"));
    let received = &stub.received()[0];
    assert_eq!(received.line, "POST /api/v1/tasks");
    assert_eq!(received.key.as_deref(), Some("mine"));
    assert_eq!(received.authorization.as_deref(), Some("Bearer hypha_secret"));
    assert_eq!(
        received.body,
        json!({
            "model": "llama-2-7b",
            "input": "Explain quantum computing",
            "requirements": {"min_memory": 16_000_000_000_u64, "gpu_required": true, "cpu_cores": 4},
            "metadata": {"input_tokens": 3.0},
            "timeout": 1.5,
        })
    );
}

#[tokio::test]
async fn long_wait_uses_several_long_polls() {
    let stub = Stub::new(|received, before| {
        assert!(received.line.contains("wait="));
        match before {
            2 => reply(200, &task("completed", &json!({"result": {"n": 1}}))),
            _ => reply(200, &task("running", &json!({"progress": 0.5}))),
        }
    })
    .await;
    let ended = stub.scheduler.wait(id(), Duration::from_secs(100)).await.unwrap();
    assert_eq!((ended.status, ended.result.as_str()), (TaskState::Completed, r#"{"n":1}"#));
    assert_eq!(stub.lines()[0], format!("GET /api/v1/tasks/{ID}?wait=30.000"));
    assert_eq!(stub.lines().len(), 3);

    // It has not ended by then: the caller sees its present state.
    let stub = Stub::new(|_, _| reply(200, &task("running", &json!({})))).await;
    let running = stub.scheduler.wait(id(), Duration::from_millis(10)).await.unwrap();
    assert!(!running.has_ended());
    assert_eq!(stub.lines().len(), 1);
    let now = stub.scheduler.task(id()).await.unwrap();
    assert_eq!(now, running);
    assert_eq!(stub.lines()[1], format!("GET /api/v1/tasks/{ID}"));
}

#[tokio::test]
async fn pages_follow_the_cursor_to_the_end() {
    let stub = Stub::new(|received, before| {
        assert_eq!(received.line.contains("cursor=a%2Fb"), before == 1, "{}", received.line);
        match before {
            0 => reply(200, &json!({"tasks": [task("queued", &json!({}))], "next": "a/b"})),
            _ => reply(200, &json!({"tasks": [], "next": null})),
        }
    })
    .await;
    let worker: WorkerId = "01890000-0000-7000-8000-000000000002".parse().unwrap();
    let mut pages = stub.scheduler.tasks(TaskFilter {
        status: Some(TaskState::Queued),
        model: Some("a b".into()),
        worker: Some(worker),
        since: Some(Time::from_micros(1_500_000)),
        limit: Some(7),
    });
    assert_eq!(pages.next().await.unwrap().unwrap().tasks.len(), 1);
    assert!(pages.next().await.unwrap().unwrap().tasks.is_empty());
    assert!(pages.next().await.unwrap().is_none());
    assert!(pages.next().await.unwrap().is_none());
    let line = &stub.lines()[0];
    assert!(
        line.starts_with("GET /api/v1/tasks?status=queued&model=a+b&worker=01890000-"),
        "{line}"
    );
    assert!(line.contains("&limit=7") && line.contains("&since="), "{line}");
    assert_eq!(stub.lines().len(), 2);
}

#[tokio::test]
async fn cancel_explain_result_workers_and_scheduler_calls() {
    let stub = Stub::new(|received, _| match received.line.split_once("/api/v1/").unwrap() {
        ("DELETE ", _) => reply(200, &task("cancelled", &json!({}))),
        (_, path) if path.ends_with("explain") => reply(
            200,
            &json!({"id": ID, "status": "queued", "summary": "too big", "as_decided": true,
                "workers": [{"worker": "01890000-0000-7000-8000-000000000002", "score": null,
                    "refusals": ["needs 1 EB of memory, has 16 GB"], "x": 1}]}),
        ),
        (_, path) if path.ends_with("result") => reply(200, &json!([1, 2])),
        (_, "workers") => reply(
            200,
            &json!({"workers": [{"id": "01890000-0000-7000-8000-000000000002", "status": "busy",
                "models": ["echo"], "health": {"success_rate": 0.5, "consecutive_failures": 2,
                    "last_seen": "2026-01-01T00:00:00.000Z", "completed": 9},
                "rtt_ms": 1.5, "queued": 1, "running": 2, "waiting_ms": 7, "region": "eu"}]}),
        ),
        _ => reply(200, &json!({"strategy": {"name": "fifo"}, "counts": {"submitted": 3}})),
    })
    .await;
    let scheduler = &stub.scheduler;
    assert_eq!(scheduler.cancel(id()).await.unwrap().status, TaskState::Cancelled);
    let explanation = scheduler.explain(id()).await.unwrap();
    assert_eq!(explanation.summary, "too big");
    assert_eq!(explanation.workers[0].refusals, ["needs 1 EB of memory, has 16 GB"]);
    assert_eq!(
        (&explanation.workers[0].more["x"], &explanation.more["as_decided"]),
        (&json!(1), &json!(true))
    );
    let result = scheduler.result(id()).await.unwrap();
    assert_eq!(result.length(), Some(5));
    assert_eq!(result.bytes(5).await.unwrap(), b"[1,2]");
    assert!(scheduler.result(id()).await.unwrap().bytes(4).await.is_err());
    let worker = &scheduler.workers().await.unwrap()[0];
    assert_eq!((worker.status.as_str(), worker.queued, worker.running), ("busy", 1, 2));
    assert_eq!((worker.health.success_rate, worker.health.consecutive_failures), (Some(0.5), 2));
    assert_eq!(worker.more["region"], "eu");
    // Unknown fields are kept.
    assert_eq!(json!(worker)["health"]["completed"], 9);
    assert_eq!(json!(worker)["health"]["last_seen"], "2026-01-01T00:00:00.000Z");
    assert_eq!(scheduler.scheduler().await.unwrap().more["counts"]["submitted"], 3);
    scheduler.set_strategy(&json!({"name": "fifo"})).await.unwrap();
    let received = stub.received().pop().unwrap();
    assert_eq!(received.line, "PUT /api/v1/scheduler");
    assert_eq!(received.body, json!({"strategy": {"name": "fifo"}}));
}

#[tokio::test]
async fn workers_are_drained_and_readmitted() {
    let worker = "01890000-0000-7000-8000-000000000002";
    let stub = Stub::new(move |received, _| match received.line.split(' ').next() {
        Some("DELETE") => reply(200, &json!({"id": worker, "status": "draining", "x": 1})),
        Some("PUT") => reply(200, &json!({"id": worker})),
        _ => reply(
            200,
            &json!({"workers": [{"id": worker, "removed_at": "2026-01-01T00:00:00.000Z"}],
                "removed": [
                    {"id": worker, "status": "removed", "removed_at": "2026-01-01T00:00:00.000Z"},
                    {"id": worker, "name": "w", "models": [], "x": 1}]}),
        ),
    })
    .await;
    let (scheduler, id) = (&stub.scheduler, worker.parse::<WorkerId>().unwrap());
    let draining = scheduler.drain_worker(id).await.unwrap();
    assert_eq!((draining.id, draining.status.as_str()), (id, "draining"));
    assert_eq!(json!(draining)["x"], 1);
    assert_eq!(scheduler.readmit_worker(id).await.unwrap().id, id);
    let list = scheduler.worker_list().await.unwrap();
    assert!(list.workers[0].removed_at.is_some());
    let [unknown, known] = &list.removed[..] else { panic!("{list:?}") };
    assert_eq!(
        (unknown.status.as_str(), &unknown.name, &unknown.models),
        ("removed", &None, &None)
    );
    assert_eq!((known.name.as_deref(), &known.models), (Some("w"), &Some(vec![])));
    assert_eq!(
        scheduler.workers().await.unwrap().len(),
        1,
        "removed workers are not listed as workers"
    );
    let path = format!("/api/v1/workers/{worker}");
    assert_eq!(stub.lines()[..2], [format!("DELETE {path}"), format!("PUT {path}")]);
}

/// So that they can be spawned.
#[tokio::test]
async fn calls_can_move_between_threads() {
    let stub = Stub::new(|_, _| reply(200, &task("completed", &json!({})))).await;
    let scheduler = stub.scheduler.clone();
    let spawned = tokio::spawn(async move {
        scheduler.submit_task(Task::new("echo", "x".into())).await?;
        scheduler.submit_tasks(vec![Task::new("echo", "x".into())]).await;
        let _ = scheduler.events(id()).await?.next().await;
        let _ = scheduler.tasks(TaskFilter::default()).next().await;
        scheduler.wait(id(), Duration::ZERO).await
    });
    assert!(spawned.await.unwrap().unwrap().has_ended());
}
