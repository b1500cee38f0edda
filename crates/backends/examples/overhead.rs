//! What a call costs over the least that HTTP costs, side by side on loopback:
//!
//! ```text
//! cargo run --release -p hypha-backends --example overhead
//! ```
//!
//! The server runs on a thread of its own and answers at once with what an inference server's answer looks like.
//! `bare` is one connection with a task of its own and nothing else, `legacy` is the pooled client of hyper-util,
//! `server` is [`BackEnd`].
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a measurement, not a service")]

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hypha_backends::{BackEnd, BackEndSettings, CallOutcome, Format};
use hypha_model::{InputKind, Payload};

const QUESTION: &[u8] = br#"{"model":"m","messages":[{"role":"user","content":"Say something."}]}"#;
const ANSWER: &[u8] = br#"{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"Something, as asked."},"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":6,"total_tokens":15}}"#;
/// Long enough for a steady figure, short enough to be run often.
const LASTS: Duration = Duration::from_secs(2);
const MANY: usize = 64;

/// A client: the times that its calls took.
type Times = Pin<Box<dyn Future<Output = Vec<Duration>> + Send>>;

/// Calls again and again.
macro_rules! repeated {
    ($call:expr) => {{
        let (begin, mut times) = (Instant::now(), Vec::new());
        while begin.elapsed() < LASTS {
            let one = Instant::now();
            assert_eq!($call, ANSWER.len());
            times.push(one.elapsed());
        }
        times
    }};
}

fn main() {
    let address = start_server();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let uri = format!("http://{address}/v1/chat/completions");
    let server =
        BackEnd::new(BackEndSettings::new(format!("http://{address}"), Format::Openai)).unwrap();
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let client: Client<_, Full<Bytes>> = Client::builder(TokioExecutor::new()).build(connector);
    let input = Payload::from(QUESTION);
    println!("{:8} {:>12} {:>12} {:>16}", "", "p50 1 conn", "p99 1 conn", "requests/s at 64");
    // Twice, so that whatever warms up does not favour the last.
    for _ in 0..2 {
        report("bare", &runtime, || {
            Box::pin(async move {
                let mut link = connect(address).await;
                repeated!(bare(&mut link, address).await)
            })
        });
        report("legacy", &runtime, || {
            let (client, uri) = (client.clone(), uri.clone());
            Box::pin(async move { repeated!(legacy(&client, &uri).await) })
        });
        report("server", &runtime, || {
            let (server, input) = (server.clone(), input.clone());
            Box::pin(async move { repeated!(called(&server, &input).await) })
        });
    }
}

/// Measures one way to call, with one connection and with many.
fn report(name: &str, runtime: &tokio::runtime::Runtime, client: impl Fn() -> Times) {
    let mut times = runtime.block_on(runtime.spawn(client())).unwrap();
    times.sort();
    let at = |share: usize| times[times.len() * share / 100].as_secs_f64() * 1e6;
    let many: Vec<_> = (0..MANY).map(|_| runtime.spawn(client())).collect();
    let count: usize = many.into_iter().map(|one| runtime.block_on(one).unwrap().len()).sum();
    let rate = count as f64 / LASTS.as_secs_f64();
    println!("{name:8} {:>9.1} µs {:>9.1} µs {rate:>16.0}", at(50), at(99));
}

type Sender = hyper::client::conn::http1::SendRequest<Full<Bytes>>;

async fn connect(address: SocketAddr) -> Sender {
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let (sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    sender
}

async fn bare(sender: &mut Sender, address: SocketAddr) -> usize {
    let request = Request::post("/v1/chat/completions")
        .header(HOST, address.to_string())
        .header(CONTENT_TYPE, "application/json")
        .body(Full::new(Bytes::from_static(QUESTION)))
        .unwrap();
    sender.ready().await.unwrap();
    let response = sender.send_request(request).await.unwrap();
    response.into_body().collect().await.unwrap().to_bytes().len()
}

async fn called(server: &BackEnd, input: &Payload) -> usize {
    match server.start(None, InputKind::Chat, input, false).outcome().await {
        CallOutcome::Completed { payload } => payload.bytes().len(),
        CallOutcome::Failed(error) => panic!("{error}"),
        CallOutcome::Unreachable { error } => panic!("{error}"),
    }
}

async fn legacy(client: &Client<HttpConnector, Full<Bytes>>, uri: &str) -> usize {
    let request = Request::post(uri)
        .header(CONTENT_TYPE, "application/json")
        .body(Full::new(Bytes::from_static(QUESTION)))
        .unwrap();
    let response = client.request(request).await.unwrap();
    response.into_body().collect().await.unwrap().to_bytes().len()
}

fn start_server() -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                stream.set_nodelay(true).unwrap();
                tokio::spawn(async move {
                    let serve = service_fn(async |request: Request<Incoming>| {
                        request.into_body().collect().await.unwrap();
                        Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(ANSWER))))
                    });
                    let http = hyper::server::conn::http1::Builder::new();
                    let _ = http.serve_connection(TokioIo::new(stream), serve).await;
                });
            }
        });
    });
    address
}
