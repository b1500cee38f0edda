//! A stub of a scheduler that returns prepared responses, and records the requests.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use hypha_client::{Scheduler, TaskId};
use serde_json::{Value, json};
use tokio::net::TcpListener;

pub(crate) const ID: &str = "task-01890000-0000-7000-8000-000000000001";

/// A request as it came.
#[derive(Clone, Debug)]
pub(crate) struct ReceivedRequest {
    pub(crate) line: String,
    pub(crate) key: Option<String>,
    pub(crate) authorization: Option<String>,
    pub(crate) accept: Option<String>,
    pub(crate) body: Value,
}

type Responder = Arc<dyn Fn(&ReceivedRequest, usize) -> Response + Send + Sync>;

/// The stub.
pub(crate) struct Stub {
    pub(crate) scheduler: Scheduler,
    pub(crate) address: String,
    received: Arc<Mutex<Vec<ReceivedRequest>>>,
}

impl Stub {
    /// Responds to each request with the result of `answer`, given the request and how many came before.
    pub(crate) async fn new(
        answer: impl Fn(&ReceivedRequest, usize) -> Response + Send + Sync + 'static,
    ) -> Stub {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let received = Arc::<Mutex<Vec<ReceivedRequest>>>::default();
        let answer: Responder = Arc::new(answer);
        let app = Router::new().fallback(handle).with_state((Arc::clone(&received), answer));
        tokio::spawn(async move { axum::serve(listener, app).await });
        let scheduler = Scheduler::connect(&address, Some("hypha_secret")).unwrap();
        Stub { scheduler, address, received }
    }

    pub(crate) fn received(&self) -> Vec<ReceivedRequest> {
        self.received.lock().unwrap().clone()
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.received().into_iter().map(|received| received.line).collect()
    }
}

async fn handle(
    State((all, answer)): State<(Arc<Mutex<Vec<ReceivedRequest>>>, Responder)>,
    request: Request,
) -> Response {
    let (head, body) = request.into_parts();
    let header =
        |name: &str| head.headers.get(name).map(|value| value.to_str().unwrap().to_owned());
    let (key, authorization) = (header("idempotency-key"), header("authorization"));
    let line = format!("{} {}", head.method, head.uri);
    let body = to_bytes(body, usize::MAX).await.unwrap();
    let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
    let received = ReceivedRequest { line, key, authorization, accept: header("accept"), body };
    let before = {
        let mut all = all.lock().unwrap();
        all.push(received.clone());
        all.len() - 1
    };
    answer(&received, before)
}

pub(crate) fn id() -> TaskId {
    ID.parse().unwrap()
}

pub(crate) fn reply(status: u16, body: &Value) -> Response {
    let response = Response::builder().status(StatusCode::from_u16(status).unwrap());
    response.body(Body::from(body.to_string())).unwrap()
}

/// A task in this state, with more fields.
pub(crate) fn task(status: &str, more: &Value) -> Value {
    let mut task = json!({"id": ID, "status": status, "model": "echo", "attempts": 1});
    task.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    task
}
