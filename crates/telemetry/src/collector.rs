//! Sends to the collector: one protobuf request at a time, over HTTP or gRPC, each with a deadline.
//!
//! Requests run on a small runtime of telemetry's own. The span processor calls from a thread that has
//! none, where an asynchronous client would panic; and the node's runtime may be busy, blocked or gone.

use std::error::Error;
use std::time::Duration;

use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsServiceRequest, ExportMetricsServiceResponse,
    metrics_service_client::MetricsServiceClient,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse, trace_service_client::TraceServiceClient,
};
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::redirect;
use thiserror::Error;
use tokio::runtime::Handle;
use tonic::metadata::MetadataMap;
use tonic::transport::{Channel, ClientTlsConfig, Endpoint};
use tonic::{Request, Response, Status};

use crate::settings::{Protocol, Settings};

/// The timeout of OpenTelemetry's own exporters: long enough for a distant collector.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(10);

/// A response states how much was rejected and why. No valid one is larger.
const MAX_RESPONSE_BYTES: usize = 64 * 1024;

/// How much of a collector's message is repeated in a log line.
const MAX_QUOTED_CHARS: usize = 200;

/// A collector that cannot be addressed. The message contains no secrets.
#[derive(Debug, Error)]
pub enum EndpointError {
    /// Not an `http` or `https` address.
    #[error("the telemetry endpoint is not an address; give one such as http://127.0.0.1:4318")]
    Malformed,
    /// A user or password in the address, which would be shown in logs.
    #[error("the telemetry endpoint contains credentials; put them into the telemetry headers")]
    Credentials,
    /// A header that HTTP does not allow.
    #[error("telemetry header {0:?} has characters that a header must not have")]
    Header(String),
    /// The client could not be created, mostly because root certificates are missing.
    #[error(
        "no client for the telemetry endpoint ({0}); are the system's root certificates installed?"
    )]
    Client(String),
}

/// A collector. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Collector {
    runtime: Handle,
    headers: HeaderMap,
    transport: Transport,
}

#[derive(Debug, Clone)]
enum Transport {
    Http { client: reqwest::Client, endpoint: reqwest::Url },
    Grpc { channel: Channel },
}

/// Traces or metrics: where they are posted, which call they are.
pub(crate) trait Signal: prost::Message + Default + Sized + 'static {
    const NAME: &'static str;
    type Response: prost::Message + Default + 'static;

    fn call(
        channel: Channel,
        request: Request<Self>,
    ) -> impl Future<Output = Result<Response<Self::Response>, Status>> + Send;

    /// How many spans or points were rejected, and why.
    fn rejected(answer: Self::Response) -> Option<(i64, String)>;
}

impl Collector {
    /// A collector at `endpoint`; does not connect yet.
    pub(crate) fn new(
        endpoint: &str,
        settings: &Settings,
        runtime: Handle,
    ) -> Result<Collector, EndpointError> {
        let url = reqwest::Url::parse(endpoint).map_err(|_| EndpointError::Malformed)?;
        let secure = match url.scheme() {
            "https" => true,
            "http" => false,
            _ => return Err(EndpointError::Malformed),
        };
        if !url.username().is_empty() || url.password().is_some() {
            return Err(EndpointError::Credentials);
        }
        let headers = headers(&settings.headers)?;
        // Both clients use the provider of the process, which must be set, and must not be another library's
        // default.
        if rustls::crypto::CryptoProvider::get_default().is_none() {
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        let transport = match settings.protocol {
            Protocol::HttpProtobuf => {
                Transport::Http { client: http_client(secure)?, endpoint: url }
            }
            Protocol::Grpc => {
                let _inside = runtime.enter();
                Transport::Grpc { channel: channel(&url, secure)? }
            }
        };
        Ok(Collector { runtime, headers, transport })
    }

    /// Sends one request; the error is a line for people.
    pub(crate) async fn send<S: Signal>(&self, request: S) -> Result<(), String> {
        let collector = self.clone();
        let sending = self.runtime.spawn(async move {
            tokio::time::timeout(EXPORT_TIMEOUT, collector.deliver(request)).await
        });
        let answer = match sending.await {
            Ok(Ok(answer)) => answer?,
            Ok(Err(_)) => return Err(format!("no answer within {EXPORT_TIMEOUT:?}")),
            Err(_) => return Err("not accepted before telemetry was stopped".to_owned()),
        };
        match S::rejected(answer) {
            Some((count, why)) if count > 0 => {
                Err(format!("{count} of the {} were rejected: {}", S::NAME, sanitized(&why)))
            }
            _ => Ok(()),
        }
    }

    async fn deliver<S: Signal>(&self, request: S) -> Result<S::Response, String> {
        match &self.transport {
            Transport::Http { client, endpoint } => {
                let mut url = endpoint.clone();
                if let Ok(mut path) = url.path_segments_mut() {
                    path.pop_if_empty().extend(["v1", S::NAME]);
                }
                let sending = client
                    .post(url)
                    .headers(self.headers.clone())
                    .header(CONTENT_TYPE, "application/x-protobuf")
                    .body(request.encode_to_vec());
                let answer = sending.send().await.map_err(|e| error_chain(&e.without_url()))?;
                if !answer.status().is_success() {
                    return Err(format!("it answered {}", answer.status()));
                }
                Ok(read_response(answer).await.unwrap_or_default())
            }
            Transport::Grpc { channel } => {
                let metadata = MetadataMap::from_headers(self.headers.clone());
                let request = Request::from_parts(metadata, Default::default(), request);
                match S::call(channel.clone(), request).await {
                    Ok(answer) => Ok(answer.into_inner()),
                    Err(status) => Err(match status.source() {
                        Some(source) => error_chain(source),
                        None => {
                            format!(
                                "it answered {:?}: {}",
                                status.code(),
                                sanitized(status.message())
                            )
                        }
                    }),
                }
            }
        }
    }
}

fn headers(pairs: &[(String, String)]) -> Result<HeaderMap, EndpointError> {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        let wrong = || EndpointError::Header(name.clone());
        let key = HeaderName::try_from(name.as_str()).map_err(|_| wrong())?;
        let mut value = HeaderValue::try_from(value.as_str()).map_err(|_| wrong())?;
        value.set_sensitive(true);
        headers.insert(key, value);
    }
    Ok(headers)
}

fn http_client(secure: bool) -> Result<reqwest::Client, EndpointError> {
    // A redirect would carry the headers, which hold credentials, to wherever it points.
    let mut builder = reqwest::Client::builder().redirect(redirect::Policy::none());
    if !secure {
        // Without this the system's root certificates are read, and missing ones are an error.
        builder = builder.tls_certs_only([]);
    }
    builder.build().map_err(|e| EndpointError::Client(error_chain(&e)))
}

fn channel(url: &reqwest::Url, secure: bool) -> Result<Channel, EndpointError> {
    let mut endpoint =
        Endpoint::from_shared(url.to_string()).map_err(|_| EndpointError::Malformed)?;
    if secure {
        endpoint = endpoint
            .tls_config(ClientTlsConfig::new().with_native_roots())
            .map_err(|e| EndpointError::Client(error_chain(&e)))?;
    }
    Ok(endpoint.connect_lazy())
}

/// The status shows that the request was accepted: an unreadable response changes nothing.
async fn read_response<A: prost::Message + Default>(mut answer: reqwest::Response) -> Option<A> {
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await.ok()? {
        if body.len() + chunk.len() > MAX_RESPONSE_BYTES {
            return None;
        }
        body.extend_from_slice(&chunk);
    }
    A::decode(body.as_slice()).ok()
}

/// An error with its causes: the outermost alone says little more than "error sending request".
fn error_chain(error: &dyn Error) -> String {
    let mut line = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        line = format!("{line}: {cause}");
        next = cause.source();
    }
    sanitized(&line)
}

/// A remote message, short and on one line.
fn sanitized(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_QUOTED_CHARS).collect()
}

impl Signal for ExportTraceServiceRequest {
    const NAME: &'static str = "traces";
    type Response = ExportTraceServiceResponse;

    async fn call(
        channel: Channel,
        request: Request<Self>,
    ) -> Result<Response<Self::Response>, Status> {
        TraceServiceClient::new(channel).export(request).await
    }

    fn rejected(answer: Self::Response) -> Option<(i64, String)> {
        answer.partial_success.map(|it| (it.rejected_spans, it.error_message))
    }
}

impl Signal for ExportMetricsServiceRequest {
    const NAME: &'static str = "metrics";
    type Response = ExportMetricsServiceResponse;

    async fn call(
        channel: Channel,
        request: Request<Self>,
    ) -> Result<Response<Self::Response>, Status> {
        MetricsServiceClient::new(channel).export(request).await
    }

    fn rejected(answer: Self::Response) -> Option<(i64, String)> {
        answer.partial_success.map(|it| (it.rejected_data_points, it.error_message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(endpoint: &str, header: (&str, &str), protocol: Protocol) -> String {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let headers = vec![(header.0.to_owned(), header.1.to_owned())];
        let settings = Settings { headers, protocol, ..Settings::default() };
        match Collector::new(endpoint, &settings, runtime.handle().clone()) {
            Ok(_) => "taken".to_owned(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn an_endpoint_that_cannot_work_is_refused_without_its_secrets() {
        for protocol in [Protocol::HttpProtobuf, Protocol::Grpc] {
            let check = |endpoint, header, expected: &str| {
                let said = refusal(endpoint, header, protocol);
                assert!(said.contains(expected), "{endpoint} {header:?}: {said}");
                assert!(!said.contains("sesame") && !said.contains('\n'), "{said}");
            };
            check("http://127.0.0.1:4318", ("a", "b"), "taken");
            check("http://[::1]:4318/otlp/", ("a", "b"), "taken");
            check("127.0.0.1:4318", ("a", "b"), "not an address");
            check("ftp://127.0.0.1", ("a", "b"), "not an address");
            check("", ("a", "b"), "not an address");
            check("http://user:sesame@127.0.0.1", ("a", "b"), "telemetry headers");
            check("http://127.0.0.1", ("a b", "sesame"), "\"a b\"");
            check("http://127.0.0.1", ("key", "sesame\n"), "\"key\"");
        }
    }

    #[test]
    fn remote_messages_are_short_and_on_one_line() {
        assert_eq!(sanitized("a\r\nb\x1b[0m"), "a  b [0m");
        assert_eq!(sanitized(&"ä".repeat(1000)).chars().count(), MAX_QUOTED_CHARS);
    }
}
