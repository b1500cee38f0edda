//! A collector on loopback that decodes its requests, over HTTP and gRPC on one port, with or without TLS.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::header::LOCATION;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::IntoResponse;
use axum::routing::post;
use axum::serve::Listener;
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_server::{
    MetricsService, MetricsServiceServer,
};
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value::Value};
use opentelemetry_proto::tonic::metrics::v1::Metric;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, Span};
use prost::Message;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tonic::service::Routes;

/// The response to the n-th request, counted from 0.
pub(crate) type Responder = fn(usize) -> StatusCode;

#[derive(Clone)]
pub(crate) struct Receiver {
    pub(crate) port: u16,
    answer: Responder,
    reject_spans: bool,
    requests: Arc<Mutex<Vec<ReceivedRequest>>>,
    count: watch::Sender<usize>,
}

/// One request.
#[derive(Clone)]
pub(crate) struct ReceivedRequest {
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Body,
}

#[derive(Clone)]
pub(crate) enum Body {
    Traces(ExportTraceServiceRequest),
    Metrics(ExportMetricsServiceRequest),
}

impl Receiver {
    /// Accepts everything.
    pub(crate) async fn start() -> Receiver {
        Receiver::answering(|_| StatusCode::OK).await
    }

    pub(crate) async fn answering(answer: Responder) -> Receiver {
        Receiver::serve(answer, false, None).await
    }

    /// Accepts the request and rejects all of its spans.
    pub(crate) async fn rejecting_spans() -> Receiver {
        Receiver::serve(|_| StatusCode::OK, true, None).await
    }

    pub(crate) async fn secure(tls: TlsAcceptor) -> Receiver {
        Receiver::serve(|_| StatusCode::OK, false, Some(tls)).await
    }

    async fn serve(answer: Responder, reject_spans: bool, tls: Option<TlsAcceptor>) -> Receiver {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let receiver = Receiver {
            port: listener.local_addr().unwrap().port(),
            answer,
            reject_spans,
            requests: Arc::default(),
            count: watch::Sender::new(0),
        };
        let grpc = Routes::new(TraceServiceServer::new(receiver.clone()))
            .add_service(MetricsServiceServer::new(receiver.clone()))
            .into_axum_router();
        let http = Router::new()
            .route("/otlp/v1/{signal}", post(posted))
            .with_state(receiver.clone())
            .merge(grpc);
        tokio::spawn(async move {
            match tls {
                Some(acceptor) => axum::serve(TlsListener { listener, acceptor }, http).await,
                None => axum::serve(listener, http).await,
            }
        });
        receiver
    }

    pub(crate) fn requests(&self) -> Vec<ReceivedRequest> {
        self.requests.lock().unwrap().clone()
    }

    pub(crate) async fn wait_for_a_request(&self) {
        self.count.subscribe().wait_for(|count| *count > 0).await.unwrap();
    }

    pub(crate) fn resource_spans(&self) -> Vec<ResourceSpans> {
        let traces = self.requests().into_iter().filter_map(|it| match it.body {
            Body::Traces(request) => Some(request.resource_spans),
            Body::Metrics(_) => None,
        });
        traces.flatten().collect()
    }

    pub(crate) fn spans(&self) -> Vec<Span> {
        let scopes = self.resource_spans().into_iter().flat_map(|it| it.scope_spans);
        scopes.flat_map(|it| it.spans).collect()
    }

    pub(crate) fn metrics(&self) -> Vec<Metric> {
        let metrics = self.requests().into_iter().filter_map(|it| match it.body {
            Body::Metrics(request) => Some(request.resource_metrics),
            Body::Traces(_) => None,
        });
        let scopes = metrics.flatten().flat_map(|it| it.scope_metrics);
        scopes.flat_map(|it| it.metrics).collect()
    }

    fn record(&self, request: ReceivedRequest) -> StatusCode {
        let number = {
            let mut all = self.requests.lock().unwrap();
            all.push(request);
            all.len()
        };
        self.count.send_replace(number);
        (self.answer)(number - 1)
    }

    fn trace_answer(&self) -> ExportTraceServiceResponse {
        let partial_success = self.reject_spans.then(|| ExportTracePartialSuccess {
            rejected_spans: 1,
            error_message: "the quota\nis used up".to_owned(),
        });
        ExportTraceServiceResponse { partial_success }
    }
}

/// The text attribute `key`.
pub(crate) fn text(attributes: &[KeyValue], key: &str) -> Option<String> {
    let found = attributes.iter().find(|it| it.key == key)?;
    match found.value.clone()?.value? {
        Value::StringValue(text) => Some(text),
        other => Some(format!("{other:?}")),
    }
}

async fn posted(
    State(receiver): State<Receiver>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> impl IntoResponse {
    let path = uri.path().to_owned();
    let (body, answer) = match path.as_str() {
        "/otlp/v1/traces" => (
            Body::Traces(ExportTraceServiceRequest::decode(body).unwrap()),
            receiver.trace_answer().encode_to_vec(),
        ),
        "/otlp/v1/metrics" => (
            Body::Metrics(ExportMetricsServiceRequest::decode(body).unwrap()),
            ExportMetricsServiceResponse::default().encode_to_vec(),
        ),
        _ => return (StatusCode::NOT_FOUND, [(LOCATION, path)], Vec::new()),
    };
    // Only a redirect uses the location; a client that follows it is recorded twice.
    let location = [(LOCATION, path.clone())];
    (receiver.record(ReceivedRequest { path, headers, body }), location, answer)
}

fn status(answer: StatusCode) -> Result<(), tonic::Status> {
    if answer.is_success() { Ok(()) } else { Err(tonic::Status::unavailable("not now")) }
}

#[tonic::async_trait]
impl TraceService for Receiver {
    async fn export(
        &self,
        request: tonic::Request<ExportTraceServiceRequest>,
    ) -> Result<tonic::Response<ExportTraceServiceResponse>, tonic::Status> {
        let (headers, _, body) = request.into_parts();
        let (path, headers) = ("grpc".to_owned(), headers.into_headers());
        status(self.record(ReceivedRequest { path, headers, body: Body::Traces(body) }))?;
        Ok(tonic::Response::new(self.trace_answer()))
    }
}

#[tonic::async_trait]
impl MetricsService for Receiver {
    async fn export(
        &self,
        request: tonic::Request<ExportMetricsServiceRequest>,
    ) -> Result<tonic::Response<ExportMetricsServiceResponse>, tonic::Status> {
        let (headers, _, body) = request.into_parts();
        let (path, headers) = ("grpc".to_owned(), headers.into_headers());
        status(self.record(ReceivedRequest { path, headers, body: Body::Metrics(body) }))?;
        Ok(tonic::Response::new(ExportMetricsServiceResponse::default()))
    }
}

struct TlsListener {
    listener: TcpListener,
    acceptor: TlsAcceptor,
}

impl Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let (stream, from) = self.listener.accept().await.unwrap();
            if let Ok(stream) = self.acceptor.accept(stream).await {
                return (stream, from);
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}

/// Accepts connections and does this with them.
pub(crate) async fn with_connections<F>(
    mut handle: impl FnMut(TcpStream) -> F + Send + 'static,
) -> u16
where
    F: Future<Output = Result<(), Infallible>> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(handle(stream));
        }
    });
    port
}
