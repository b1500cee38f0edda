//! A worker's own side of the task instance protocol.

use std::sync::{Arc, Mutex};

use futures::FutureExt;
use futures::future::BoxFuture;
use hypha_api::{
    EnqueueError, EnqueueRequest, EnqueueResponse, Instance, InstanceHealth, InstanceResult,
    InstanceSettings, InstanceStatus, InstanceTaskState, NewToken, Tokens, serve_instance,
};
use hypha_model::{Metadata, Payload, Span};
use reqwest::{Client, Method, RequestBuilder};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::server::answer;

/// An instance whose responses the test chooses.
#[derive(Default)]
struct ScriptedInstance {
    taken: Mutex<Vec<EnqueueRequest>>,
    refusal: Mutex<Option<EnqueueError>>,
    stage: Mutex<Option<InstanceTaskState>>,
}

impl Instance for ScriptedInstance {
    fn status(&self) -> InstanceStatus {
        InstanceStatus {
            instance_id: "i-1".to_owned(),
            model_type: "llama".to_owned(),
            replicas_running: 2,
            queue_size: self.taken.lock().unwrap().len() as u32,
            status: InstanceHealth::Running,
        }
    }

    fn enqueue(
        &self,
        task: EnqueueRequest,
    ) -> BoxFuture<'static, Result<EnqueueResponse, EnqueueError>> {
        let mut taken = self.taken.lock().unwrap();
        let answer = match self.refusal.lock().unwrap().clone() {
            Some(refused) => Err(refused),
            None => {
                let task_id = task.task_id.clone().unwrap_or("own".to_owned());
                taken.push(task);
                Ok(EnqueueResponse {
                    task_id,
                    queue_size: taken.len() as u32,
                    enqueue_time: 1_700_000_000.0,
                })
            }
        };
        futures::future::ready(answer).boxed()
    }

    fn result(&self, id: &str) -> BoxFuture<'static, Option<InstanceResult>> {
        let stage = self.stage.lock().unwrap().clone().filter(|_| id == "t/1");
        let found = stage.map(|stage| InstanceResult { task_id: id.to_owned(), stage });
        futures::future::ready(found).boxed()
    }
}

struct InstanceServer {
    instance: Arc<ScriptedInstance>,
    base: String,
    client: Client,
    token: Option<String>,
    _stop: oneshot::Sender<()>,
}

impl InstanceServer {
    async fn start(settings: InstanceSettings) -> InstanceServer {
        drop(rustls::crypto::ring::default_provider().install_default());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let (stop, stopped) = oneshot::channel::<()>();
        let instance = Arc::new(ScriptedInstance::default());
        let served = Arc::clone(&instance) as Arc<dyn Instance>;
        tokio::spawn(async move {
            serve_instance(settings, listener, served, async { drop(stopped.await) }).await;
        });
        let client = Client::builder().no_proxy().build().unwrap();
        InstanceServer { instance, base, client, token: None, _stop: stop }
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.client.request(method, format!("{}{path}", self.base));
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    async fn get(&self, path: &str) -> (u16, Value) {
        answer(self.request(Method::GET, path)).await
    }

    async fn enqueue(&self, body: &str) -> (u16, Value) {
        let request = self.request(Method::POST, "/queue/enqueue");
        answer(request.header("content-type", "application/json").body(body.to_owned())).await
    }
}

#[tokio::test]
async fn status_and_model_are_reported() {
    let served = InstanceServer::start(InstanceSettings::default()).await;
    let expected = json!({
        "instance_id": "i-1", "model_type": "llama", "replicas_running": 2, "queue_size": 0,
        "status": "running",
    });
    assert_eq!(served.get("/status").await, (200, expected));
    let expected = json!({"deployed_model": {"model_name": "llama"}});
    assert_eq!(served.get("/info").await, (200, expected));
    assert_eq!(served.get("/healthz").await, (200, json!("ok")));
}

#[tokio::test]
async fn pages_of_other_sites_cannot_enqueue_tasks() {
    let served = InstanceServer::start(InstanceSettings::default()).await;
    for (name, value) in
        [("host", "evil.example"), ("origin", "https://evil.example"), ("origin", "null")]
    {
        let request = served.request(Method::POST, "/queue/enqueue").body(r#"{"input_data": 1}"#);
        let (status, body) = answer(request.header(name, value)).await;
        assert_eq!((status, &body["status"]), (403, &json!("error")), "{name}: {value}");
        assert!(body["message"].as_str().unwrap().contains("tokens_file"), "{body}");
    }
    assert_eq!(served.enqueue(r#"{"input_data": 1}"#).await.0, 200);
}

#[tokio::test]
async fn task_is_enqueued_with_all_its_fields() {
    let served = InstanceServer::start(InstanceSettings::default()).await;
    let input = r#"{"n": 12345678901234567890123, "t":  "é"}"#;
    let body = format!(
        r#"{{"input_data": {input}, "metadata": {{"input_tokens": 3, "odd": []}}, "task_id": "t/1",
            "callback_url": "http://127.0.0.1:8080/notify/task_complete?secret=s", "later": 1}}"#
    );
    let (status, answered) = served.enqueue(&body).await;
    let expected = json!({"task_id": "t/1", "queue_size": 1, "enqueue_time": 1_700_000_000.0});
    assert_eq!((status, answered), (200, expected));
    let task = served.instance.taken.lock().unwrap()[0].clone();
    let expected = EnqueueRequest {
        input: Payload::from(input.as_bytes()),
        metadata: Metadata::of_numbers(&[("input_tokens", 3.0)]),
        task_id: Some("t/1".to_owned()),
        callback_url: Some("http://127.0.0.1:8080/notify/task_complete?secret=s".to_owned()),
    };
    assert_eq!(task, expected);

    let (status, answered) = served.enqueue(r#"{"input_data": null, "callback_url": null}"#).await;
    assert_eq!((status, &answered["task_id"]), (200, &json!("own")));
    let task = served.instance.taken.lock().unwrap()[1].clone();
    assert_eq!((task.input.bytes(), task.task_id, task.callback_url), (&b"null"[..], None, None));
}

#[tokio::test]
async fn refusal_has_a_fitting_status_and_a_reason() {
    let served = InstanceServer::start(InstanceSettings::default()).await;
    let cases = [
        (EnqueueError::QueueFull { retry_after_s: 7 }, 429, Some("7"), "the queue is full"),
        (EnqueueError::Invalid("no such model".to_owned()), 422, None, "no such model"),
        (EnqueueError::Unavailable("it stops".to_owned()), 503, Some("2"), "it stops"),
    ];
    for (refused, status, retry_after, message) in cases {
        *served.instance.refusal.lock().unwrap() = Some(refused);
        let request = served.request(Method::POST, "/queue/enqueue").body(r#"{"input_data": 1}"#);
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), status);
        let header = response.headers().get("retry-after").map(|value| value.to_str().unwrap());
        assert_eq!(header, retry_after);
        let body: Value = serde_json::from_str(&response.text().await.unwrap()).unwrap();
        assert_eq!(body["status"], "error");
        assert!(body["message"].as_str().unwrap().contains(message), "{body}");
    }
}

#[tokio::test]
async fn invalid_tasks_are_refused() {
    let settings = InstanceSettings { max_request_bytes: 3_000, ..InstanceSettings::default() };
    let served = InstanceServer::start(settings).await;
    let id = json!({"input_data": 1, "task_id": "x".repeat(257)}).to_string();
    let url = format!("http://127.0.0.1/{}", "x".repeat(2_048));
    let url = json!({"input_data": 1, "callback_url": url}).to_string();
    let large = json!({"input_data": "x".repeat(3_000)}).to_string();
    let cases = [
        ("{", 400, "not JSON"),
        ("{}", 422, "missing field `input_data`"),
        ("[]", 422, "expected an object"),
        (r#"{"input_data": 1e999}"#, 400, "range"),
        (r#"{"input_data": 1, "task_id": ""}"#, 422, "task_id"),
        (r#"{"input_data": 1, "task_id": "a\nb"}"#, 422, "task_id"),
        (r#"{"input_data": 1, "task_id": 5}"#, 422, "invalid type"),
        (r#"{"input_data": 1, "callback_url": "file:///etc/passwd"}"#, 422, "callback_url"),
        (id.as_str(), 422, "task_id"),
        (url.as_str(), 422, "callback_url"),
        (large.as_str(), 413, "3000 bytes"),
    ];
    for (given, expected, message) in cases {
        let (status, body) = served.enqueue(given).await;
        assert_eq!((status, &body["status"]), (expected, &json!("error")), "{given}: {body}");
        assert!(body["message"].as_str().unwrap().contains(message), "{given}: {body}");
    }
    assert!(served.instance.taken.lock().unwrap().is_empty());
    let text = served.request(Method::POST, "/queue/enqueue").header("content-type", "text/plain");
    assert_eq!(answer(text.body("{}")).await.0, 415);
}

#[tokio::test]
async fn a_result_is_shown_at_every_stage() {
    let served = InstanceServer::start(InstanceSettings::default()).await;
    let run = Span::from_micros(12_500);
    let cases = [
        (InstanceTaskState::Queued, json!(["queued", null, null, null])),
        (InstanceTaskState::Running, json!(["running", null, null, null])),
        (
            InstanceTaskState::Completed { result: Payload::from(&br#"{"a": 1}"#[..]), run },
            json!(["completed", {"a": 1}, null, 12.5]),
        ),
        (
            InstanceTaskState::Completed { result: Payload::from(&b"\xff\x00"[..]), run },
            json!(["completed", {"base64": "/wA="}, null, 12.5]),
        ),
        (
            InstanceTaskState::Failed { error: "no memory".to_owned(), run },
            json!(["failed", null, "no memory", 12.5]),
        ),
    ];
    for (stage, expected) in cases {
        *served.instance.stage.lock().unwrap() = Some(stage);
        let (status, body) = served.get("/results/t%2F1").await;
        let expected = json!({
            "task_id": "t/1", "status": expected[0], "result": expected[1], "error": expected[2],
            "execution_time": expected[3],
        });
        assert_eq!((status, body), (200, expected));
    }
    for unknown in ["/results/t2".to_owned(), format!("/results/{}", "x".repeat(257))] {
        let (status, body) = served.get(&unknown).await;
        assert_eq!((status, &body["status"]), (404, &json!("error")));
    }
}

#[tokio::test]
async fn requests_without_a_known_token_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tokens.toml");
    let (token, entry) = Tokens::issue(&NewToken::default());
    std::fs::write(&path, entry).unwrap();
    let tokens = Some(Tokens::load(&path).unwrap());
    let mut served = InstanceServer::start(InstanceSettings { tokens, ..Default::default() }).await;
    for token in [None, Some("wrong".to_owned())] {
        served.token = token;
        for path in ["/status", "/info", "/results/t%2F1", "/nothing"] {
            let (status, body) = served.get(path).await;
            assert_eq!((status, &body["status"]), (401, &json!("error")), "{path}");
        }
        let (status, body) = served.enqueue(r#"{"input_data": 1}"#).await;
        assert_eq!((status, &body["status"]), (401, &json!("error")));
        assert_eq!(served.get("/healthz").await.0, 200);
    }
    assert!(served.instance.taken.lock().unwrap().is_empty());
    served.token = Some(token);
    assert_eq!(served.get("/status").await.0, 200);
    assert_eq!(served.enqueue(r#"{"input_data": 1}"#).await.0, 200);
}

#[tokio::test]
async fn its_routes_are_described_and_others_are_refused() {
    let served = InstanceServer::start(InstanceSettings::default()).await;
    let (status, document) = served.get("/openapi.json").await;
    assert_eq!(status, 200);
    let paths = document["paths"].as_object().unwrap();
    for path in ["/status", "/info", "/queue/enqueue", "/results/{id}", "/healthz"] {
        assert!(paths.contains_key(path), "{path}");
    }
    let (status, body) = served.get("/nothing").await;
    assert_eq!((status, &body["status"]), (404, &json!("error")));
    for path in ["/status", "/healthz"] {
        let (status, body) = answer(served.request(Method::DELETE, path)).await;
        assert_eq!((status, &body["status"]), (405, &json!("error")), "{path}");
    }
}

#[tokio::test]
async fn instance_api_stops_on_request() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let instance = Arc::new(ScriptedInstance::default());
    serve_instance(InstanceSettings::default(), listener, instance, async {}).await;
}
