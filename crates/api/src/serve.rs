//! Accepts connections and serves HTTP/1.1 on them, with or without TLS, until it is stopped.

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use axum::routing::future::RouteFuture;
use futures::FutureExt;
use futures::future::{BoxFuture, Either, Ready, ready};
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio_rustls::TlsAcceptor;
use tower::Service;

use crate::admission::{self, Admission};
use crate::app_state::AppState;
use crate::reactors::ReactorPool;
use crate::routes;
use crate::service::SchedulerApi;
use crate::settings::{Settings, TlsFiles};

/// How long the head of a request may take, and how long a connection may stay open without one.
const HEAD_TIMEOUT: Duration = Duration::from_secs(75);
/// How long the TLS handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// The buffer of a connection: more than the head of any request of ours. A client that sends nothing but heads takes
/// no more than this for each connection.
const CONNECTION_BUFFER_BYTES: usize = 32 << 10;
/// How long requests may continue after the stop: streams and long polls last longer, and the rest of a graceful stop
/// must not have to wait for their clients.
const STOP_GRACE: Duration = Duration::from_secs(5);
/// The delay after a connection could not be accepted: the cause (no more files) does not go away at once.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(50);

/// Why the surfaces could not be served.
#[derive(Debug, Error)]
pub enum ServeError {
    /// A file for TLS is not usable.
    #[error("{path} cannot be used for TLS: {problem}")]
    Tls {
        /// The file.
        path: PathBuf,
        /// Why.
        problem: String,
    },
    /// There are no threads to serve with.
    #[error("no threads to serve the API with: {0}")]
    Threads(#[from] std::io::Error),
}

/// The threads that served the connections. Calls to back ends are made on them, and break off when this is dropped.
pub struct ServingThreads(ReactorPool);

impl fmt::Debug for ServingThreads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ServingThreads").field(&self.0.len()).finish()
    }
}

/// Serves all surfaces of a scheduler on `listener` until `stop`; requests in flight then get five seconds to
/// end. Drop what it returns when the calls that were made for requests have no consequences any more.
pub async fn serve(
    settings: Settings,
    listener: TcpListener,
    service: Arc<dyn SchedulerApi>,
    stop: impl Future<Output = ()>,
) -> Result<ServingThreads, ServeError> {
    let tls = settings.tls.as_ref().map(tls_acceptor).transpose()?;
    let (reactors, max_connections) = (ReactorPool::new()?, settings.max_connections);
    let app = AppState::new(service, settings);
    let shared = app.clone();
    let admit = move |request: &mut Request| admission::admit(&shared.settings, request);
    accept_connections(
        listener,
        tls,
        (&reactors, max_connections),
        AdmissionRouter { router: routes(app), admit },
        stop,
    )
    .await;
    Ok(ServingThreads(reactors))
}

/// A router behind a function that admits or refuses requests. A function, and not a layer: a layer would
/// cost every request an allocation or two.
#[derive(Clone)]
pub(crate) struct AdmissionRouter<F> {
    pub(crate) router: Router,
    pub(crate) admit: F,
}

impl<F> hyper::service::Service<hyper::Request<Incoming>> for AdmissionRouter<F>
where
    F: Fn(&mut Request) -> Admission,
{
    type Response = Response;
    type Error = Infallible;
    /// Boxed only for requests that get CORS headers.
    type Future = Either<
        Ready<Result<Response, Infallible>>,
        Either<RouteFuture<Infallible>, BoxFuture<'static, Result<Response, Infallible>>>,
    >;

    fn call(&self, request: hyper::Request<Incoming>) -> Self::Future {
        let mut request = request.map(Body::new);
        match (self.admit)(&mut request) {
            Admission::Route => Either::Right(Either::Left(self.router.clone().call(request))),
            Admission::RouteWith(cors) => {
                let routed = self.router.clone().call(request);
                let with_headers = async move { routed.await.map(|done| cors.add_to(done)) };
                Either::Right(Either::Right(with_headers.boxed()))
            }
            Admission::Respond(response) => Either::Left(ready(Ok(response))),
        }
    }
}

/// Accepts connections until `stop`, at most `limit` at a time, and serves them in these reactors.
pub(crate) async fn accept_connections<F>(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    (reactors, max_connections): (&ReactorPool, usize),
    handler: AdmissionRouter<F>,
    stop: impl Future<Output = ()>,
) where
    F: Fn(&mut Request) -> Admission + Clone + Send + Sync + 'static,
{
    let connection_permits =
        Arc::new(Semaphore::new(max_connections.clamp(1, Semaphore::MAX_PERMITS)));
    let (stopping, stopped) = watch::channel(());
    let mut stop = std::pin::pin!(stop);
    loop {
        let next = async {
            let permit = Arc::clone(&connection_permits).acquire_owned().await;
            (permit, listener.accept().await)
        };
        let (permit, accepted) = tokio::select! {
            next = next => next,
            () = &mut stop => break,
        };
        // Served by another reactor.
        let stream = match accepted.and_then(|(stream, _)| stream.into_std()) {
            Ok(stream) => stream,
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_BACKOFF).await;
                continue;
            }
        };
        let (handler, tls, stopped) = (handler.clone(), tls.clone(), stopped.clone());
        reactors.spawn(async move {
            match TcpStream::from_std(stream) {
                Ok(stream) => handle_connection(stream, tls, handler, stopped).await,
                Err(error) => tracing::warn!(%error, "a connection could not be served"),
            }
            drop(permit);
        });
    }
    drop((listener, stopped));
    let _ = stopping.send(());
    let all_gone = stopping.closed();
    if tokio::time::timeout(STOP_GRACE, all_gone).await.is_err() {
        tracing::warn!("connections that did not end in time after the stop are dropped");
    }
}

async fn handle_connection<F>(
    stream: TcpStream,
    tls: Option<TlsAcceptor>,
    handler: AdmissionRouter<F>,
    stopped: watch::Receiver<()>,
) where
    F: Fn(&mut Request) -> Admission,
{
    // Responses are written whole: waiting for more to send only adds latency.
    drop(stream.set_nodelay(true));
    match tls {
        None => serve_http(stream, handler, stopped).await,
        Some(tls) => match tokio::time::timeout(HANDSHAKE_TIMEOUT, tls.accept(stream)).await {
            Ok(Ok(stream)) => serve_http(stream, handler, stopped).await,
            Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
            Err(_) => tracing::debug!("a TLS handshake took too long"),
        },
    }
}

async fn serve_http<F>(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    handler: AdmissionRouter<F>,
    mut stopped: watch::Receiver<()>,
) where
    F: Fn(&mut Request) -> Admission,
{
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(CONNECTION_BUFFER_BYTES)
        .serve_connection(TokioIo::new(stream), handler);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        _ = stopped.changed() => {
            connection.as_mut().graceful_shutdown();
            tokio::time::timeout(STOP_GRACE, connection).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection broke");
    }
}

/// A TLS acceptor from these files.
pub(crate) fn tls_acceptor(files: &TlsFiles) -> Result<TlsAcceptor, ServeError> {
    let refused = |path: &PathBuf, problem: String| ServeError::Tls { path: path.clone(), problem };
    let certificates = CertificateDer::pem_file_iter(&files.certificates)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| refused(&files.certificates, error.to_string()))?;
    if certificates.is_empty() {
        return Err(refused(&files.certificates, "it contains no certificate".to_owned()));
    }
    let key = PrivateKeyDer::from_pem_file(&files.key)
        .map_err(|error| refused(&files.key, error.to_string()))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(certificates, key))
        .map_err(|error| refused(&files.certificates, error.to_string()))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}
