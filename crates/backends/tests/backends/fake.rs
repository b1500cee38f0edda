//! Fake back ends on loopback.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;

/// Serves `router` on a free port.
pub(crate) async fn serve(router: Router) -> SocketAddr {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
    // Room for all connections before the first is accepted; with the default of 128, further ones are reset.
    let listener = socket.listen(1_024).unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

/// Accepts connections, reads, sends `response` as it is, and keeps the connection open or closes it.
pub(crate) async fn raw(response: &'static [u8], then_close: bool) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut read = vec![0; 1 << 16];
                let _ = stream.read(&mut read).await;
                let _ = stream.write_all(response).await;
                if !then_close {
                    while stream.read(&mut read).await.is_ok_and(|count| count > 0) {}
                }
            });
        }
    });
    address
}

/// Responds with `body`, with one connection for each request, until it is stopped.
pub(crate) async fn serve_one_request_per_connection(
    body: &'static str,
) -> (SocketAddr, AbortHandle) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let length = body.len();
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n");
    let serving = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.read(&mut vec![0; 1 << 16]).await;
            let _ = stream.write_all(format!("{head}{body}").as_bytes()).await;
        }
    });
    (address, serving.abort_handle())
}

/// An address at which no process listens.
pub(crate) async fn unused_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    listener.local_addr().unwrap()
}

/// A request that arrived.
#[derive(Clone, Debug)]
pub(crate) struct RecordedRequest {
    pub(crate) path: String,
    pub(crate) authorization: Option<String>,
    pub(crate) body: Bytes,
}

/// Responds to each request with the response that `respond` makes, and records the request.
pub(crate) async fn serve_with(
    respond: impl Fn(&RecordedRequest) -> Response + Clone + Send + Sync + 'static,
) -> (SocketAddr, Arc<Mutex<Vec<RecordedRequest>>>) {
    let seen: Arc<Mutex<Vec<RecordedRequest>>> = Arc::default();
    let recorded = Arc::clone(&seen);
    let handle = move |uri: Uri, headers: HeaderMap, body: Bytes| {
        let authorization = headers.get("authorization").map(|it| it.to_str().unwrap().to_owned());
        let request = RecordedRequest { path: uri.to_string(), authorization, body };
        let response = respond(&request);
        recorded.lock().unwrap().push(request);
        async move { response }
    };
    (serve(Router::new().fallback(any(handle))).await, seen)
}

/// A body that the test sends piece by piece; the sender is closed when the reader has gone.
pub(crate) fn manual_body() -> (mpsc::Sender<Bytes>, Response) {
    let (pieces, source) = mpsc::channel::<Bytes>(1);
    let stream = futures::stream::unfold(source, |mut source| async move {
        let piece = source.recv().await?;
        Some((Ok::<_, Infallible>(piece), source))
    });
    (pieces, Body::from_stream(stream).into_response())
}

/// A task instance whose tasks end when the test ends them.
#[derive(Clone)]
pub(crate) struct Instance {
    pub(crate) address: SocketAddr,
    pub(crate) state: Arc<Mutex<InstanceState>>,
    changed: watch::Sender<u64>,
}

#[derive(Default)]
pub(crate) struct InstanceState {
    pub(crate) status: Value,
    /// How often its status was requested.
    pub(crate) looks: usize,
    /// The bodies of the enqueue requests.
    pub(crate) got: Vec<Value>,
    pub(crate) results: std::collections::BTreeMap<String, Value>,
    pub(crate) polls: Vec<String>,
    /// Assigns ids of its own to tasks.
    pub(crate) own_ids: bool,
    /// Responds to an enqueue with this status.
    pub(crate) refuse: Option<u16>,
    /// How many enqueue requests it received, whether it responded or not.
    pub(crate) asked: usize,
    /// Never responds again.
    pub(crate) frozen: bool,
    /// Takes tasks and does not respond.
    pub(crate) frozen_after_enqueue: bool,
    /// `/status` is missing, and `/info` returns this.
    pub(crate) info: Option<Value>,
}

impl Instance {
    pub(crate) async fn start(model: &str, replicas: u32) -> Instance {
        let state = Arc::new(Mutex::new(InstanceState {
            status: json!({"instance_id": "one", "model_type": model, "replicas_running": replicas,
                           "queue_size": 0, "status": "running"}),
            ..InstanceState::default()
        }));
        let changed = watch::Sender::new(0);
        let mut instance = Instance { address: ([127, 0, 0, 1], 1).into(), state, changed };
        let router = Router::new()
            .route("/status", get(Instance::status))
            .route("/info", get(Instance::info))
            .route("/queue/enqueue", post(Instance::enqueue))
            .route("/results/{id}", get(Instance::results))
            .with_state(instance.clone());
        instance.address = serve(router).await;
        instance
    }

    async fn status(State(this): State<Instance>) -> Response {
        this.hang_if_frozen().await;
        let mut state = this.state.lock().unwrap();
        state.looks += 1;
        this.changed.send_modify(|count| *count += 1);
        match state.info {
            Some(_) => StatusCode::NOT_FOUND.into_response(),
            None => axum::Json(state.status.clone()).into_response(),
        }
    }

    async fn info(State(this): State<Instance>) -> Response {
        this.hang_if_frozen().await;
        match &this.state.lock().unwrap().info {
            Some(info) => axum::Json(info.clone()).into_response(),
            None => StatusCode::NOT_FOUND.into_response(),
        }
    }

    async fn enqueue(State(this): State<Instance>, body: Bytes) -> Response {
        let body: Value = serde_json::from_slice(&body).unwrap();
        this.state.lock().unwrap().asked += 1;
        this.hang_if_frozen().await;
        let response = this.enqueue_now(body);
        let frozen = this.state.lock().unwrap().frozen_after_enqueue;
        match frozen {
            true => std::future::pending().await,
            false => response,
        }
    }

    fn enqueue_now(&self, body: Value) -> Response {
        let mut state = self.state.lock().unwrap();
        if let Some(status) = state.refuse {
            return (StatusCode::from_u16(status).unwrap(), "no").into_response();
        }
        let id = match state.own_ids {
            true => json!(format!("own/{}", state.got.len())),
            false => body["task_id"].clone(),
        };
        state.got.push(body);
        self.changed.send_modify(|count| *count += 1);
        let queue_size = state.got.len();
        axum::Json(json!({"task_id": id, "queue_size": queue_size, "enqueue_time": 1.5}))
            .into_response()
    }

    async fn results(State(this): State<Instance>, Path(id): Path<String>) -> Response {
        this.hang_if_frozen().await;
        let mut state = this.state.lock().unwrap();
        state.polls.push(id.clone());
        this.changed.send_modify(|count| *count += 1);
        match state.results.get(&id) {
            Some(result) => axum::Json(result.clone()).into_response(),
            None => StatusCode::NOT_FOUND.into_response(),
        }
    }

    async fn hang_if_frozen(&self) {
        let frozen = self.state.lock().unwrap().frozen;
        if frozen {
            std::future::pending().await
        }
    }

    /// Waits until the state satisfies `is_so`.
    pub(crate) async fn until(&self, is_so: impl Fn(&InstanceState) -> bool) {
        let mut changes = self.changed.subscribe();
        let waiting = async {
            while !is_so(&self.state.lock().unwrap()) {
                changes.changed().await.unwrap();
            }
        };
        tokio::time::timeout(super::lab::DEADLINE, waiting)
            .await
            .expect("the state was not reached");
    }

    /// The secret of the `index`-th task.
    pub(crate) fn secret(&self, index: usize) -> String {
        let state = self.state.lock().unwrap();
        let url = state.got[index]["callback_url"].as_str().unwrap();
        url.split_once("?secret=").unwrap().1.to_owned()
    }

    pub(crate) fn id(&self, index: usize) -> String {
        self.state.lock().unwrap().got[index]["task_id"].as_str().unwrap().to_owned()
    }
}

/// Accepts connections and counts them; never responds.
pub(crate) async fn never_answering() -> (SocketAddr, watch::Receiver<usize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (count, counted) = watch::channel(0);
    tokio::spawn(async move {
        let mut open: Vec<TcpStream> = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            open.push(stream);
            count.send_replace(open.len());
        }
    });
    (address, counted)
}
