//! Tokens: who may do what.

use hypha_api::{NewToken, Role, Settings, Tokens};
use hypha_model::Priority;
use reqwest::Method;
use serde_json::json;

use crate::memory::Memory;
use crate::server::{Server, answer};
use crate::tasks::path_of;

struct TokenFixture {
    server: Server,
    admin: String,
    acme: String,
    umbrella: String,
}

async fn server_with_tokens() -> TokenFixture {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tokens.toml");
    let user = |tenant: &str, quota| NewToken {
        tenant: Some(tenant.parse().unwrap()),
        max_priority: Some(Priority::from_milli(500)),
        quota,
        weight: None,
        ..NewToken::default()
    };
    let (admin, first) = Tokens::issue(&NewToken { role: Role::Admin, ..NewToken::default() });
    let (acme, second) = Tokens::issue(&user("acme", Some(3)));
    let (umbrella, third) = Tokens::issue(&user("umbrella", None));
    std::fs::write(&path, first + &second + &third).unwrap();
    let settings = Settings { tokens: Some(Tokens::load(&path).unwrap()), ..Settings::default() };
    let server = Server::with(Memory::new(), settings).await;
    TokenFixture { server, admin, acme, umbrella }
}

impl TokenFixture {
    fn acting_as(&mut self, token: &str) -> &Server {
        self.server.token = Some(token.to_owned());
        &self.server
    }
}

#[tokio::test]
async fn only_public_routes_answer_without_a_token() {
    let fixture = server_with_tokens().await;
    for path in ["/healthz", "/readyz", "/openapi.json"] {
        assert_eq!(fixture.server.get(path).await.0, 200, "{path}");
    }
    for path in
        ["/api/v1/tasks", "/api/v1/workers", "/metrics", "/v1/models", "/no-such", "/queue/info"]
    {
        let response = fixture.server.request(Method::GET, path).send().await.unwrap();
        assert_eq!(response.status(), 401, "{path}");
        assert!(response.headers()["www-authenticate"].to_str().unwrap().starts_with("Bearer"));
        let body: serde_json::Value =
            serde_json::from_str(&response.text().await.unwrap()).unwrap();
        assert_eq!(body["error"]["code"], "unauthorized");
    }
    for wrong in
        ["", "Bearer", "Bearer hypha_wrong", "Basic YTpi", &format!("bearer{}", fixture.acme)]
    {
        let request =
            fixture.server.request(Method::GET, "/api/v1/tasks").header("authorization", wrong);
        assert_eq!(answer(request).await.0, 401, "{wrong}");
    }
    let submit = fixture.server.json(Method::POST, "/api/v1/tasks", r#"{"model": "echo"}"#);
    assert_eq!(answer(submit).await.0, 401);
}

#[tokio::test]
async fn tenants_see_their_own_tasks_and_admins_all() {
    let mut fixture = server_with_tokens().await;
    let (acme, umbrella, admin) =
        (fixture.acme.clone(), fixture.umbrella.clone(), fixture.admin.clone());
    let (status, task) =
        fixture.acting_as(&acme).post("/api/v1/tasks", r#"{"model": "sleep"}"#).await;
    assert_eq!((status, &task["tenant"]), (202, &json!("acme")));
    let count = |body: serde_json::Value| body["tasks"].as_array().unwrap().len();
    let path = path_of(&task);
    for (token, status, listed) in [(&acme, 200, 1), (&admin, 200, 1), (&umbrella, 404, 0)] {
        let server = fixture.acting_as(token);
        for suffix in ["", "?wait=0.01", "/explain"] {
            assert_eq!(server.get(&format!("{path}{suffix}")).await.0, status);
        }
        if status == 404 {
            for suffix in ["/events", "/result"] {
                assert_eq!(server.get(&format!("{path}{suffix}")).await.0, status);
            }
        }
        assert_eq!(count(server.get("/api/v1/tasks").await.1), listed);
    }
    assert_eq!(fixture.acting_as(&umbrella).delete(&path).await.0, 404);
    assert_eq!(
        fixture.acting_as(&acme).get(&path).await.1["status"],
        "running",
        "no other tenant cancelled it"
    );
    assert_eq!(fixture.acting_as(&acme).delete(&path).await.0, 200);
}

/// Neither through its task, nor through another task that returns or claims its digest.
#[tokio::test]
async fn an_object_is_read_by_its_tenant_only() {
    let mut fixture = server_with_tokens().await;
    let (acme, umbrella, admin) =
        (fixture.acme.clone(), fixture.umbrella.clone(), fixture.admin.clone());
    let (_, task) = fixture.acting_as(&acme).post("/api/v1/tasks", r#"{"model": "sleep"}"#).await;
    let held = fixture.server.memory.wait_for_attempt("sleep").await;
    let object = fixture.server.memory.put_object(&held, b"acme's own");
    fixture.server.memory.complete_with(&held, object);
    let path = format!("{}/result", path_of(&task));
    let bytes = async |server: &Server, path: &str| {
        let response = server.request(Method::GET, path).send().await.unwrap();
        (response.status().as_u16(), response.text().await.unwrap())
    };
    for token in [&acme, &admin] {
        assert_eq!(bytes(fixture.acting_as(token), &path).await, (200, "acme's own".to_owned()));
    }
    let told = fixture.acting_as(&acme).get(&path_of(&task)).await.1;
    assert_eq!(told["result_object"]["bytes"], 10);
    assert_eq!(told["result_object"]["digest"], object.digest.to_string());
    assert_eq!(bytes(fixture.acting_as(&umbrella), &path).await.0, 404);

    // A program that returns the name has returned a string, and a worker that claims it has not sent the
    // object.
    let name = object.to_json();
    for echoed in [true, false] {
        let server = fixture.acting_as(&umbrella);
        let (_, own) = server.post("/api/v1/tasks", r#"{"model": "sleep"}"#).await;
        let held = server.memory.wait_for_attempt("sleep").await;
        match echoed {
            true => server.memory.complete(&held, name.as_bytes()),
            false => server.memory.complete_with(&held, object),
        }
        let (status, text) = bytes(server, &format!("{}/result", path_of(&own))).await;
        match echoed {
            true => assert_eq!((status, &text), (200, &name)),
            false => assert_eq!(status, 404, "{text}"),
        }
        let told = server.get(&path_of(&own)).await.1;
        assert_eq!(told.get("result_object").is_some(), !echoed, "{told}");
    }
}

#[tokio::test]
async fn keys_belong_to_tenants() {
    let mut fixture = server_with_tokens().await;
    let mut ids = Vec::new();
    for token in [fixture.acme.clone(), fixture.umbrella.clone()] {
        let request =
            fixture.acting_as(&token).json(Method::POST, "/api/v1/tasks", r#"{"model": "sleep"}"#);
        let (status, task) = answer(request.header("idempotency-key", "k")).await;
        assert_eq!(status, 202);
        ids.push(task["id"].clone());
    }
    assert_ne!(ids[0], ids[1]);
}

#[tokio::test]
async fn users_cannot_change_the_scheduler() {
    let mut fixture = server_with_tokens().await;
    let (acme, admin) = (fixture.acme.clone(), fixture.admin.clone());
    let worker = format!("/api/v1/workers/{}", crate::memory::worker_id(1));
    let server = fixture.acting_as(&acme);
    let strategy = r#"{"strategy": "fifo"}"#;
    let new = r#"{"url": "http://127.0.0.1:9"}"#;
    for (status, body) in [
        server.put("/api/v1/scheduler", strategy).await,
        server.post("/api/v1/workers", new).await,
        server.delete(&worker).await,
        server.put(&worker, "").await,
    ] {
        assert_eq!((status, &body["error"]["code"]), (403, &json!("forbidden")));
    }
    assert_eq!(server.get("/api/v1/workers").await.0, 200);
    assert_eq!(server.get("/metrics").await.0, 200);
    let server = fixture.acting_as(&admin);
    assert_eq!(server.put("/api/v1/scheduler", strategy).await.0, 200);
    assert_eq!(server.delete(&worker).await.0, 200);
}

#[tokio::test]
async fn a_priority_above_the_ceiling_is_refused() {
    let mut fixture = server_with_tokens().await;
    let (acme, admin) = (fixture.acme.clone(), fixture.admin.clone());
    let with = |priority: f64| json!({"model": "echo", "priority": priority}).to_string();
    let server = fixture.acting_as(&acme);
    assert_eq!(server.post("/api/v1/tasks", with(0.5)).await.0, 202);
    let (status, body) = server.post("/api/v1/tasks", with(0.501)).await;
    assert_eq!(status, 422);
    assert!(body["error"]["message"].as_str().unwrap().contains("0.501 is above 0.5"), "{body}");
    let nested = json!({"model": "echo", "requirements": {"priority": 9}}).to_string();
    assert_eq!(server.post("/api/v1/tasks", nested).await.0, 422);
    assert_eq!(fixture.acting_as(&admin).post("/api/v1/tasks", with(9.0)).await.0, 202);
}

#[tokio::test]
async fn a_quota_counts_open_tasks() {
    let mut fixture = server_with_tokens().await;
    let (acme, umbrella) = (fixture.acme.clone(), fixture.umbrella.clone());
    let (echo, sleep) = (r#"{"model": "echo"}"#, r#"{"model": "sleep"}"#);
    let server = fixture.acting_as(&acme);
    // Ended tasks do not count, however many there were.
    for _ in 0..8 {
        assert_eq!(server.post("/api/v1/tasks", echo).await.0, 202);
    }
    let (status, batch) = server.post("/api/v1/tasks", format!("[{sleep},{sleep},{sleep}]")).await;
    assert_eq!(status, 202, "{batch}");
    let response = server.json(Method::POST, "/api/v1/tasks", sleep).send().await.unwrap();
    assert_eq!(response.status(), 429);
    assert!(response.headers().contains_key("retry-after"));
    assert!(response.text().await.unwrap().contains("may have 3"));
    assert_eq!(server.post("/api/v1/tasks", format!("[{sleep},{sleep}]")).await.0, 429);
    // A slot is free as soon as a task has ended, and of a batch as many tasks are accepted as there are
    // slots.
    server.delete(&path_of(&batch["tasks"][0])).await;
    let (status, parts) = server.post("/api/v1/tasks", format!("[{sleep},{sleep}]")).await;
    assert_eq!((status, &parts["tasks"][0]["status"]), (202, &json!("queued")), "{parts}");
    assert_eq!(parts["tasks"][1]["error"]["code"], "too_many_tasks", "{parts}");
    let queue = r#"{"model_name": "sleep", "task_input": {}}"#;
    let (status, body) = server.post("/queue/submit", queue).await;
    assert_eq!((status, &body["status"]), (429, &json!("error")), "{body}");
    assert_eq!(fixture.acting_as(&umbrella).post("/api/v1/tasks", sleep).await.0, 202);
}
