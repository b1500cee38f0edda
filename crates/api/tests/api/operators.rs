//! Workers, the scheduler itself, health, metrics and the OpenAPI document.

use hypha_api::{NewToken, Role, Settings, Tokens};
use hypha_engine::RetryPolicy;
use serde_json::{Value, json};

use crate::memory::{Memory, worker_id};
use crate::server::Server;

#[tokio::test]
async fn workers_are_shown_with_all_that_is_known() {
    let server = Server::start().await;
    server.post("/api/v1/tasks?wait=9", r#"{"model": "echo"}"#).await;
    for _ in 0..4 {
        server.post("/api/v1/tasks", r#"{"model": "sleep"}"#).await;
    }
    let (status, body) = server.get("/api/v1/workers").await;
    assert_eq!(status, 200);
    let workers = body["workers"].as_array().unwrap();
    assert_eq!(workers.len(), 2);
    let worker = &workers[0];
    assert_eq!(worker["id"], json!(worker_id(1)));
    assert_eq!(worker["models"], json!(["echo", "fail", "sleep"]));
    assert_eq!(worker["executors"][0]["concurrency"], 4);
    assert_eq!(worker["capacity"]["memory_bytes"], 16_000_000_000_u64);
    assert_eq!(worker["capacity"]["cpu_cores"], 8.0);
    assert_eq!(worker["price"], 1.5);
    assert!(worker["lease"]["id"].as_str().unwrap().starts_with("lease-"));
    for field in ["rtt_ms", "waiting_ms", "queued", "running", "slowness"] {
        assert!(worker[field].is_number(), "{field}: {worker}");
    }
    let sum =
        |field: &str| workers.iter().map(|it| it["health"][field].as_u64().unwrap()).sum::<u64>();
    assert_eq!((sum("completed"), sum("consecutive_failures")), (1, 0));
    for field in ["success_rate", "avg_completion_time"] {
        assert!(worker["health"][field].is_number());
    }
    assert!(worker["health"]["last_seen"].as_str().unwrap().starts_with("2023-"));
    let running: u64 = workers.iter().map(|it| it["running"].as_u64().unwrap()).sum();
    assert_eq!(running, 4);

    server.memory.lose_worker(2);
    let (_, body) = server.get("/api/v1/workers").await;
    assert_eq!(body["workers"][1]["status"], "unavailable");
    assert_eq!(body["workers"][1]["lease"], Value::Null);
    let why = body["workers"][1]["reason"].as_str().unwrap();
    assert!(why.starts_with("lost at 2023-11-14T22:13:2"), "{why}");
    assert!(why.ends_with("Z: the connection to the worker was lost"), "{why}");
    assert_eq!(body["workers"][0]["reason"], Value::Null);
    for _ in 0..4 {
        server.post("/api/v1/tasks", r#"{"model": "sleep"}"#).await;
    }
    let (_, body) = server.get("/api/v1/workers").await;
    assert_eq!(body["workers"][0]["status"], "busy", "{body}");
}

#[tokio::test]
async fn queued_tasks_are_counted_under_every_strategy() {
    let memory = Memory::with(hypha_engine::Settings::default());
    memory.add_worker(1, &["sleep"]);
    let server = Server::with(memory, Settings::default()).await;
    // The worker runs four tasks at once.
    for _ in 0..10 {
        server.post("/api/v1/tasks", r#"{"model": "sleep"}"#).await;
    }
    let (_, body) = server.get("/api/v1/scheduler").await;
    for name in body["strategies"].as_array().unwrap() {
        let change = json!({"strategy": name}).to_string();
        let (status, body) = server.put("/api/v1/scheduler", &change).await;
        assert_eq!(status, 200, "{body}");
        server.memory.advance(hypha_model::Span::from_secs(1));
        let (_, body) = server.get("/api/v1/scheduler").await;
        let tasks = &body["tasks"];
        assert_eq!((&tasks["open"], &tasks["queued"]), (&json!(10), &json!(6)), "{name}");
    }
}

#[tokio::test]
async fn gpus_are_named_shown_and_summed_up() {
    let memory = Memory::with(hypha_engine::Settings::default());
    memory.add_gpu_worker(1, 2);
    let server = Server::with(memory, Settings::default()).await;
    let submit = async |ids: &[u32]| {
        let body = json!({"model": "m", "requirements": {"gpu_ids": ids, "cpu_cores": 1.5}});
        server.post("/api/v1/tasks", body.to_string()).await
    };
    let (status, task) = submit(&[1]).await;
    assert_eq!((status, &task["requirements"]["gpu_ids"]), (202, &json!([1])), "{task}");
    let held = server.memory.wait_for_attempt("m").await;
    server.memory.assign_devices(&held, &[1]);
    let path = format!("/api/v1/tasks/{}", task["id"].as_str().unwrap());
    assert_eq!(server.get(&path).await.1["devices"], json!([1]));

    let (status, body) = submit(&[0, 1]).await;
    assert_eq!((status, &body["error"]["code"]), (409, &json!("conflict")));
    let said = body["error"]["message"].as_str().unwrap();
    assert!(said.contains("has GPUs 0 and 1 free"), "{said}");
    let (status, body) = submit(&[7]).await;
    assert_eq!(status, 422);
    let said = body["error"]["message"].as_str().unwrap();
    assert!(said.starts_with("gpu_ids: no available worker") && said.contains("GPU 7;"), "{said}");

    let (_, body) = server.get("/api/v1/scheduler").await;
    let amounts =
        |total: f64, booked: f64| json!({"total": total, "booked": booked, "free": total - booked});
    assert_eq!(body["resources"]["gpus"], amounts(2.0, 1.0));
    assert_eq!(body["resources"]["cpu_cores"], amounts(8.0, 1.5));
    assert_eq!(body["resources"]["gpu_memory_bytes"], amounts(80e9, 0.0));
    server.memory.complete(&held, b"1");
    assert_eq!(server.get(&path).await.1["devices"], Value::Null);
    assert_eq!(submit(&[0, 1]).await.0, 202);
}

#[tokio::test]
async fn executor_is_quarantined_after_repeated_failures_with_its_reason() {
    let retry = RetryPolicy { max_attempts: 1, ..RetryPolicy::default() };
    let memory = Memory::with(hypha_engine::Settings { retry, ..Default::default() });
    memory.add_worker(1, &["fail"]);
    let server = Server::with(memory, Settings::default()).await;
    let fails = r#"{"model": "fail", "input": "retry"}"#;
    for _ in 0..3 {
        server.post("/api/v1/tasks", fails).await;
    }
    let (_, body) = server.get("/api/v1/workers").await;
    let worker = &body["workers"][0];
    assert_eq!(worker["status"], "unavailable");
    let why = worker["reason"].as_str().unwrap();
    assert!(why.starts_with("quarantined until 2023-11-14T22:13:50."), "{why}");
    assert!(why.ends_with("Z after 3 failures in a row, the last: it was told to fail"), "{why}");
    assert_eq!(worker["executors"][0]["reason"], *why);

    let (_, task) = server.post("/api/v1/tasks", fails).await;
    let path = format!("/api/v1/tasks/{}/explain", task["id"].as_str().unwrap());
    let (_, explained) = server.get(&path).await;
    assert_eq!(explained["summary"], "no worker can take it: 1 × quarantined after failures");
    assert_eq!(explained["workers"][0]["refusals"], json!([why]), "{explained}");
}

/// A program may print its input to its standard error, which belongs to its tenant.
#[tokio::test]
async fn failures_of_another_tenants_tasks_are_shown_to_administrators_only() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tokens.toml");
    let user = |tenant: &str| NewToken { tenant: tenant.parse().ok(), ..NewToken::default() };
    let admin = NewToken { role: Role::Admin, ..NewToken::default() };
    let issued = [user("acme"), user("umbrella"), admin].map(|new| Tokens::issue(&new));
    std::fs::write(&path, issued.each_ref().map(|(_, entry)| entry.as_str()).concat()).unwrap();
    let [acme, umbrella, admin] = issued.map(|(token, _)| token);
    let tokens = Some(Tokens::load(&path).unwrap());
    let retry = RetryPolicy { max_attempts: 1, ..RetryPolicy::default() };
    let memory = Memory::with(hypha_engine::Settings { retry, ..Default::default() });
    memory.add_worker(1, &["fail"]);
    let mut server = Server::with(memory, Settings { tokens, ..Settings::default() }).await;

    let fails = r#"{"model": "fail", "input": "retry"}"#;
    server.token = Some(acme);
    for _ in 0..3 {
        let (_, task) = server.post("/api/v1/tasks", fails).await;
        let own = server.get(&crate::tasks::path_of(&task)).await.1;
        assert_eq!(own["error"], "it was told to fail", "a tenant sees its own");
    }
    server.token = Some(umbrella);
    let (_, task) = server.post("/api/v1/tasks", fails).await;
    let explain = format!("{}/explain", crate::tasks::path_of(&task));
    let (listed, explained) = (server.get("/api/v1/workers").await.1, server.get(&explain).await.1);
    for shown in
        [&listed["workers"][0]["executors"][0]["reason"], &explained["workers"][0]["refusals"][0]]
    {
        assert!(shown.as_str().unwrap().ends_with("after 3 failures in a row"), "{shown}");
    }
    for shown in [listed, explained] {
        assert!(!shown.to_string().contains("told to fail"), "{shown}");
    }
    server.token = Some(admin);
    for path in ["/api/v1/workers", &explain] {
        let shown = server.get(path).await.1.to_string();
        assert!(shown.contains("the last: it was told to fail"), "{shown}");
    }
}

#[tokio::test]
async fn worker_is_drained_and_removed() {
    let server = Server::start().await;
    let path = format!("/api/v1/workers/{}", worker_id(1));
    let (status, body) = server.delete(&path).await;
    assert_eq!((status, &body["status"]), (200, &json!("draining")));
    let (_, body) = server.get("/api/v1/workers").await;
    assert_eq!(body["workers"].as_array().unwrap().len(), 1);
    let at = body["removed"][0]["removed_at"].as_str().unwrap();
    assert!(at.starts_with("2023-11-14T22:13:2"), "{at}");
    let models = json!(["echo", "fail", "sleep"]);
    let expected = json!([
        {"id": worker_id(1), "status": "removed", "removed_at": at, "models": models}
    ]);
    assert_eq!(body["removed"], expected);
    let counted = server.get("/api/v1/scheduler").await.1["workers"].clone();
    assert_eq!(counted, json!({"known": 1, "available": 1}), "it is not counted");
    let (status, again) = server.delete(&path).await;
    assert_eq!(status, 404);
    let said = format!("worker {} was removed at {at}; PUT {path} readmits it", worker_id(1));
    assert_eq!(again["error"]["message"], said);
    assert_eq!(server.delete("/api/v1/workers/x").await.0, 400);
    let (status, body) = server.put(&path, "").await;
    assert_eq!((status, &body["id"]), (200, &json!(worker_id(1))));
    assert_eq!(server.put(&path, "").await.0, 404, "it is no longer removed");
    let (_, body) = server.get("/api/v1/workers").await;
    assert_eq!(body["workers"].as_array().unwrap().len(), 2, "and it is used again: {body}");
    assert_eq!(body["removed"], json!([]));
}

#[tokio::test]
async fn draining_worker_shows_when_it_was_removed() {
    let server = Server::start().await;
    for _ in 0..2 {
        server.post("/api/v1/tasks", r#"{"model": "sleep"}"#).await;
    }
    let (_, body) = server.get("/api/v1/workers").await;
    let has_some = |one: &&Value| one["running"] != 0;
    let busy = body["workers"].as_array().unwrap().iter().find(has_some).unwrap()["id"].clone();
    let path = format!("/api/v1/workers/{}", busy.as_str().unwrap());
    assert_eq!(server.delete(&path).await.0, 200);
    let (_, body) = server.get("/api/v1/workers").await;
    assert_eq!(body["removed"], json!([]), "{body}");
    for worker in body["workers"].as_array().unwrap() {
        let drains = worker["id"] == busy;
        assert_eq!(worker["removed_at"].is_string(), drains, "{worker}");
        assert_eq!(worker["reason"] == "is being removed", drains, "{worker}");
    }
    assert_eq!(server.delete(&path).await.0, 200, "draining again is harmless");
}

#[tokio::test]
async fn a_list_of_workers_takes_no_parameters() {
    let server = Server::start().await;
    let (status, body) = server.get("/api/v1/workers?status=busy").await;
    assert_eq!((status, &body["error"]["code"]), (400, &json!("bad_request")), "{body}");
    let said = "`status` is not a parameter of this route; there are none";
    assert_eq!(body["error"]["message"], said);
}

#[tokio::test]
async fn back_end_is_registered_as_a_worker() {
    let server = Server::start().await;
    server.memory.set_healthy("127.0.0.1:9000", &["llama"]);
    let path = "/api/v1/workers";
    let form =
        r#"{"url": "http://127.0.0.1:9000", "format": "json", "concurrency": 3, "api_key": "k"}"#;
    let (status, body) = server.post(path, form).await;
    assert_eq!(status, 201, "{body}");
    let (again, same) = server.post(path, r#"{"url": "http://127.0.0.1:9000"}"#).await;
    assert_eq!((again, &same["id"]), (201, &body["id"]));
    let given = server.memory.with_state(|state| state.servers.clone());
    assert_eq!((given[0].openai, given[0].concurrency), (false, 3));
    assert_eq!(given[0].api_key.as_deref(), Some("k"));
    assert_eq!((given[1].openai, given[1].concurrency), (true, 8));
    let (_, workers) = server.get(path).await;
    assert_eq!(workers["workers"][2]["models"], json!(["llama"]));
    assert!(!workers.to_string().contains("\"k\""), "a key is not shown");
    for (form, code) in [
        (r#"{"url": "http://127.0.0.1:1"}"#, "unhealthy"),
        (r#"{"url": "ftp://x"}"#, "invalid"),
        (r#"{"url": 7}"#, "invalid"),
        ("{}", "invalid"),
        (r#"{"url": "http://127.0.0.1:9000", "concurrency": 0}"#, "invalid"),
        (r#"{"url": "http://127.0.0.1:9000", "format": "xml"}"#, "invalid"),
        (r#"{"url": "http://127.0.0.1:9000", "models": [""]}"#, "invalid"),
        (r#"{"url": "http://127.0.0.1:9000", "uri": 1}"#, "invalid"),
    ] {
        let (status, body) = server.post(path, form).await;
        assert_eq!((status, &body["error"]["code"]), (422, &json!(code)), "{form}: {body}");
    }
}

#[tokio::test]
async fn the_strategy_is_shown_and_changed() {
    let server = Server::start().await;
    let path = "/api/v1/scheduler";
    let (status, body) = server.get(path).await;
    assert_eq!((status, &body["strategy"]["name"]), (200, &json!("predictive")));
    assert_eq!(body["predictor_mode"], "default");
    assert_eq!(body["strategies"].as_array().unwrap().len(), 17);
    assert_eq!(body["workers"], json!({"known": 2, "available": 2}));
    server.post("/api/v1/tasks?wait=9", r#"{"model": "echo"}"#).await;
    server.post("/api/v1/tasks", r#"{"model": "sleep"}"#).await;
    let (_, body) = server.get(path).await;
    assert_eq!(
        (&body["statistics"]["assigned"], &body["statistics"]["completed"]),
        (&json!(2), &json!(1))
    );
    assert_eq!((&body["counts"]["submitted"], &body["tasks"]["open"]), (&json!(2), &json!(1)));
    let performance = &body["statistics"]["worker_performance"];
    assert!(performance[worker_id(1).to_string()]["success_rate"].is_number(), "{body}");

    let (status, body) =
        server.put(path, r#"{"strategy": {"name": "weighted", "weight": 2}}"#).await;
    assert_eq!((status, &body["strategy"]), (200, &json!({"name": "weighted", "weight": 2.0})));
    let (status, body) =
        server.put(path, r#"{"strategy": "round-robin", "predictor_mode": "default"}"#).await;
    assert_eq!((status, &body["strategy"]), (200, &json!({"name": "round_robin"})));
    let (status, body) =
        server.put(path, r#"{"strategy": "fifo", "predictor_mode": "lookup_table"}"#).await;
    assert_eq!((status, &body["error"]["code"]), (409, &json!("conflict")), "there is no table");
    assert_eq!(
        server.get(path).await.1["strategy"]["name"],
        "round_robin",
        "and nothing was changed"
    );
    assert_eq!(server.put(path, "{}").await.0, 200, "settings that are left out stay");
    for bad in [
        r#"{"strategy": "best"}"#,
        r#"{"strategy": 7}"#,
        r#"{"predictor_mode": "x"}"#,
        r#"{"strategy": {"name": "weighted", "weight": -1}}"#,
        r#"{"strat": "fifo"}"#,
    ] {
        assert_eq!(server.put(path, bad).await.0, 422, "{bad}");
    }
}

#[tokio::test]
async fn health_metrics_and_openapi_document_are_served() {
    let server = Server::start().await;
    assert_eq!(server.get("/healthz").await, (200, json!({"status": "ok"})));
    assert_eq!(server.get("/readyz").await, (200, json!({"status": "ok"})));
    server.memory.set_unavailable(Some("no disk"));
    assert_eq!(
        server.get("/healthz").await.0,
        200,
        "a scheduler that waits for its disk is not restarted"
    );
    let (status, body) = server.get("/readyz").await;
    assert_eq!((status, body), (503, json!({"status": "not ready", "problems": ["no disk"]})));
    let (status, text) = server.get("/metrics").await;
    assert_eq!(status, 200);
    assert!(text.as_str().unwrap().contains("hypha_scheduler_tasks_completed_total 0"));

    let (status, document) = server.get("/openapi.json").await;
    assert_eq!(status, 200);
    assert!(document["openapi"].as_str().unwrap().starts_with("3."), "{document}");
    for path in [
        "/api/v1/tasks",
        "/api/v1/tasks/{id}",
        "/api/v1/tasks/{id}/events",
        "/api/v1/tasks/{id}/explain",
        "/api/v1/tasks/{id}/result",
        "/api/v1/workers",
        "/api/v1/workers/{id}",
        "/api/v1/scheduler",
        "/healthz",
        "/readyz",
        "/metrics",
    ] {
        assert!(document["paths"][path].is_object(), "{path}");
    }
    assert!(document["paths"]["/api/v1/tasks"]["post"]["responses"]["503"].is_object());
}
