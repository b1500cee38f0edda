//! One request and its response: bounded in time and size, retried only where that is safe.

use std::error::Error;
use std::time::Duration;

use bytes::Bytes;
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER};
use reqwest::{Certificate, Method, Response, StatusCode, Url, redirect};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::download::StreamedBody;
use crate::error::ClientError;

/// The largest response that is read whole: several times a full page of tasks, or one task with a large
/// result.
pub const MAX_RESPONSE_BYTES: usize = 64 << 20;

/// A running scheduler accepts a connection within a round trip or two.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Beyond the time that a call asks the scheduler to wait: a commit on a slow disk under load, and the
/// network.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);
/// Delays before a call is retried after a lost connection: long enough for a connection that went stale or a
/// server's full backlog, and too short to notice. Waiting for a restart is left to the caller.
const RETRY_BACKOFFS: [Duration; 2] = [Duration::from_millis(100), Duration::from_millis(400)];
/// If a scheduler that accepts no requests does not state when to retry.
pub(crate) const DEFAULT_RETRY_AFTER: Duration = Duration::from_secs(1);
/// No scheduler states more; the value is not trusted.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(3_600);
/// How much of a remote message is repeated.
const MAX_QUOTED_CHARS: usize = 1_000;

/// How to reach a scheduler, beyond its address.
#[derive(Clone, Default)]
pub struct Options {
    /// The bearer token.
    pub token: Option<String>,
    /// Certificates in PEM that are trusted besides the system's.
    pub ca_pem: Option<Vec<u8>>,
}

/// A scheduler's address and the connections to it.
pub(crate) struct Http {
    client: reqwest::Client,
    base: Url,
    display_address: String,
}

/// One request.
pub(crate) struct Call<'a> {
    method: Method,
    path: Vec<&'a str>,
    query: Vec<(&'static str, String)>,
    body: Option<Bytes>,
    key: Option<&'a str>,
    /// Whether making it twice does the same as making it once.
    repeatable: bool,
    /// How long the scheduler is asked to wait before it responds.
    wait: Duration,
    /// Whether the response is requested as events.
    events: bool,
}

impl<'a> Call<'a> {
    pub(crate) fn get(path: Vec<&'a str>) -> Call<'a> {
        Call {
            method: Method::GET,
            path,
            query: Vec::new(),
            body: None,
            key: None,
            repeatable: true,
            wait: Duration::ZERO,
            events: false,
        }
    }

    /// Cancelling again, or setting the same value again, changes nothing.
    pub(crate) fn delete(path: Vec<&'a str>) -> Call<'a> {
        Call { method: Method::DELETE, ..Call::get(path) }
    }

    pub(crate) fn put(path: Vec<&'a str>, body: String) -> Call<'a> {
        Call { method: Method::PUT, body: Some(body.into()), ..Call::get(path) }
    }

    /// Only a key makes this safe to retry.
    pub(crate) fn post(path: Vec<&'a str>, body: String, key: Option<&'a str>) -> Call<'a> {
        Call {
            method: Method::POST,
            body: Some(body.into()),
            key,
            repeatable: key.is_some(),
            ..Call::get(path)
        }
    }

    /// A second call would be refused, as if the first had not succeeded.
    pub(crate) fn not_repeatable(mut self) -> Call<'a> {
        self.repeatable = false;
        self
    }

    /// Requests a stream of events as the response.
    pub(crate) fn with_events(mut self) -> Call<'a> {
        self.events = true;
        self
    }

    pub(crate) fn query(mut self, name: &'static str, value: Option<String>) -> Call<'a> {
        self.query.extend(value.map(|value| (name, value)));
        self
    }

    /// Asks the scheduler to respond when the task has ended, at the latest after `wait`.
    pub(crate) fn with_wait(mut self, wait: Duration) -> Call<'a> {
        if !wait.is_zero() {
            self.wait = wait;
            self.query.push(("wait", format!("{:.3}", wait.as_secs_f64())));
        }
        self
    }
}

impl Http {
    pub(crate) fn new(base: &str, options: Options) -> Result<Http, ClientError> {
        let base = parse_address(base)?;
        // Without a provider the client would panic; an installed one is as good.
        if rustls::crypto::CryptoProvider::get_default().is_none() {
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        // A redirect would carry the token to wherever it points.
        let mut builder = reqwest::Client::builder()
            .redirect(redirect::Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_nodelay(true)
            .default_headers(headers(options.token)?);
        if is_loopback(&base) {
            builder = builder.no_proxy();
        }
        let tls = |error: reqwest::Error| ClientError::Tls(error_chain(&error));
        if base.scheme() == "http" {
            // Without this the system's root certificates are read, and missing ones are an error.
            builder = builder.tls_certs_only([]);
        } else if let Some(pem) = &options.ca_pem {
            let certificates = Certificate::from_pem_bundle(pem).map_err(tls)?;
            if certificates.is_empty() {
                return Err(ClientError::Tls("no certificate in the given PEM".to_owned()));
            }
            builder = builder.tls_certs_merge(certificates);
        }
        let client = builder.build().map_err(tls)?;
        let display_address = base.as_str().trim_end_matches('/').to_owned();
        Ok(Http { client, base, display_address })
    }

    pub(crate) fn address(&self) -> &str {
        &self.display_address
    }

    /// The response, parsed as JSON.
    pub(crate) async fn json<T: DeserializeOwned>(
        &self,
        call: &Call<'_>,
    ) -> Result<T, ClientError> {
        let answer = self.send(call).await?;
        if !answer.status.is_success() {
            return Err(self.refusal(&answer));
        }
        serde_json::from_slice(&answer.body).map_err(|error| self.malformed(&error))
    }

    /// The response, parsed as JSON even if it is a refusal: a batch has a reason for each task.
    pub(crate) async fn json_with_outcomes<T: DeserializeOwned>(
        &self,
        call: &Call<'_>,
    ) -> Result<T, ClientError> {
        let answer = self.send(call).await?;
        match serde_json::from_slice(&answer.body) {
            Ok(each) if !answer.is_busy() => Ok(each),
            Err(error) if answer.status.is_success() => Err(self.malformed(&error)),
            _ => Err(self.refusal(&answer)),
        }
    }

    /// A response whose body arrives in pieces, for as long as it takes.
    pub(crate) async fn stream(&self, call: &Call<'_>) -> Result<StreamedBody, ClientError> {
        let mut backoffs = RETRY_BACKOFFS.into_iter();
        let mut response = loop {
            match self.response_head(call).await {
                Err(error) if self.back_off(call, &error, &mut backoffs).await => {}
                outcome => break outcome?,
            }
        };
        if !response.status().is_success() {
            let answer = self.read(&mut response, call.repeatable).await?;
            return Err(self.refusal(&answer));
        }
        Ok(StreamedBody::new(response, self.display_address.clone()))
    }

    pub(crate) fn malformed(&self, reason: &dyn std::fmt::Display) -> ClientError {
        let reason = sanitized(&reason.to_string());
        ClientError::Malformed { address: self.display_address.clone(), reason }
    }

    /// Waits a little if the call may be retried after `error`, and returns whether it may.
    async fn back_off(
        &self,
        call: &Call<'_>,
        error: &ClientError,
        backoffs: &mut (impl Iterator<Item = Duration> + Send),
    ) -> bool {
        let again = match error {
            // A request that was never sent can always be retried.
            ClientError::Unreachable { .. } => true,
            ClientError::Lost { .. } => call.repeatable,
            _ => false,
        };
        let Some(pause) = backoffs.next().filter(|_| again) else { return false };
        tracing::debug!(%error, "retrying a request");
        tokio::time::sleep(pause).await;
        true
    }

    async fn send(&self, call: &Call<'_>) -> Result<RawResponse, ClientError> {
        let mut backoffs = RETRY_BACKOFFS.into_iter();
        loop {
            match self.send_once(call).await {
                Err(error) if self.back_off(call, &error, &mut backoffs).await => {}
                outcome => return outcome,
            }
        }
    }

    async fn send_once(&self, call: &Call<'_>) -> Result<RawResponse, ClientError> {
        let sending = self.request(call).timeout(call.wait + RESPONSE_TIMEOUT).send();
        let mut response = sending.await.map_err(|error| self.send_error(call, &error))?;
        self.read(&mut response, call.repeatable).await
    }

    async fn response_head(&self, call: &Call<'_>) -> Result<Response, ClientError> {
        match tokio::time::timeout(RESPONSE_TIMEOUT, self.request(call).send()).await {
            Ok(sent) => sent.map_err(|error| self.send_error(call, &error)),
            Err(_) => Err(self.timed_out(RESPONSE_TIMEOUT)),
        }
    }

    fn request(&self, call: &Call<'_>) -> reqwest::RequestBuilder {
        let mut url = self.base.clone();
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().extend(["api", "v1"]).extend(&call.path);
        }
        if !call.query.is_empty() {
            url.query_pairs_mut().extend_pairs(&call.query);
        }
        let mut request = self.client.request(call.method.clone(), url);
        if let Some(body) = &call.body {
            request = request.header(CONTENT_TYPE, "application/json").body(body.clone());
        }
        if let Some(key) = call.key {
            request = request.header("idempotency-key", key);
        }
        if call.events {
            request = request.header(ACCEPT, "text/event-stream");
        }
        request
    }

    fn send_error(&self, call: &Call<'_>, error: &reqwest::Error) -> ClientError {
        let address = self.display_address.clone();
        if error.is_connect() {
            return ClientError::Unreachable { address, reason: root_cause(error) };
        }
        if error.is_timeout() {
            return self.timed_out(call.wait + RESPONSE_TIMEOUT);
        }
        ClientError::Lost { address, reason: root_cause(error), safe_to_retry: call.repeatable }
    }

    fn timed_out(&self, after: Duration) -> ClientError {
        ClientError::TimedOut { address: self.display_address.clone(), after }
    }

    async fn read(
        &self,
        response: &mut Response,
        repeatable: bool,
    ) -> Result<RawResponse, ClientError> {
        let retry_after = response.headers().get(RETRY_AFTER).and_then(|value| {
            let seconds = value.to_str().ok()?.trim().parse().ok()?;
            Some(Duration::from_secs(seconds).min(MAX_RETRY_AFTER))
        });
        let status = response.status();
        let mut body = Vec::new();
        loop {
            match response.chunk().await {
                Ok(None) => return Ok(RawResponse { status, retry_after, body }),
                Ok(Some(chunk)) if body.len() + chunk.len() > MAX_RESPONSE_BYTES => {
                    return Err(ClientError::TooLarge { limit: MAX_RESPONSE_BYTES });
                }
                Ok(Some(chunk)) => body.extend_from_slice(&chunk),
                Err(error) if error.is_timeout() => return Err(self.timed_out(RESPONSE_TIMEOUT)),
                Err(error) => {
                    let (address, reason) = (self.display_address.clone(), root_cause(&error));
                    return Err(ClientError::Lost { address, reason, safe_to_retry: repeatable });
                }
            }
        }
    }

    fn refusal(&self, answer: &RawResponse) -> ClientError {
        let status = answer.status;
        let detail = serde_json::from_slice::<ErrorBody>(&answer.body).map(|body| body.error);
        let (code, message) = match detail {
            Ok(detail) => (sanitized(&detail.code), sanitized(&detail.message)),
            Err(_) => (String::new(), format!("{} answered {status}", self.display_address)),
        };
        match answer.is_busy() {
            true => {
                let retry_after = answer.retry_after.unwrap_or(DEFAULT_RETRY_AFTER);
                ClientError::Busy { retry_after, message }
            }
            false => ClientError::Refused { status: status.as_u16(), code, message },
        }
    }
}

/// A scheduler's response, of any status.
struct RawResponse {
    status: StatusCode,
    retry_after: Option<Duration>,
    body: Vec<u8>,
}

impl RawResponse {
    fn is_busy(&self) -> bool {
        matches!(self.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE)
    }
}

#[derive(Deserialize)]
struct ErrorBody {
    error: ErrorDetail,
}

/// The scheduler's reason for a refusal.
#[derive(Deserialize)]
pub(crate) struct ErrorDetail {
    #[serde(default)]
    pub(crate) code: String,
    pub(crate) message: String,
}

fn parse_address(given: &str) -> Result<Url, ClientError> {
    let wrong = |problem| ClientError::Address { given: sanitized(given), problem };
    let example = "give one such as http://127.0.0.1:8080";
    let url = Url::parse(given).map_err(|_| wrong(example))?;
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
        return Err(wrong(example));
    }
    if !url.username().is_empty() || url.password().is_some() {
        // Not repeated: it would end up in a log.
        let given = "…".to_owned();
        let problem = "it contains credentials, which belong in the token";
        return Err(ClientError::Address { given, problem });
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(wrong("leave out what follows the path"));
    }
    Ok(url)
}

fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || bare.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
}

fn headers(token: Option<String>) -> Result<HeaderMap, ClientError> {
    let mut headers = HeaderMap::new();
    if let Some(token) = token {
        let visible = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
        let value = HeaderValue::try_from(format!("Bearer {token}"));
        let mut value = value.ok().filter(|_| visible).ok_or(ClientError::Token)?;
        value.set_sensitive(true);
        headers.insert(AUTHORIZATION, value);
    }
    Ok(headers)
}

/// An error with its causes.
fn error_chain(error: &dyn Error) -> String {
    let mut line = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        line = format!("{line}: {cause}");
        next = cause.source();
    }
    sanitized(&line)
}

/// The system's error: everything around it only repeats that a request failed.
pub(crate) fn root_cause(error: &dyn Error) -> String {
    let mut cause = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    sanitized(&cause.to_string())
}

/// A remote message, short and on one line.
pub(crate) fn sanitized(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_QUOTED_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(given: &str, token: Option<&str>) -> String {
        let options = Options { token: token.map(str::to_owned), ca_pem: None };
        Http::new(given, options)
            .map(|http| http.display_address)
            .unwrap_or_else(|error| error.to_string())
    }

    #[test]
    fn an_address_is_checked_before_it_is_used() {
        for (given, says) in [
            ("127.0.0.1:8080", "`127.0.0.1:8080` is not the address of a scheduler: give one such"),
            ("localhost:8080", "give one such as http://127.0.0.1:8080"),
            ("ftp://x", "give one such as"),
            ("http://user:secret@x", "contains credentials"),
            ("http://x/?a=b", "leave out what follows the path"),
        ] {
            let said = problem(given, None);
            assert!(said.contains(says) && !said.contains("secret"), "{said}");
        }
        assert_eq!(problem("http://127.0.0.1:8080/", None), "http://127.0.0.1:8080");
        assert_eq!(problem("http://x/hypha/", None), "http://x/hypha");
    }

    #[test]
    fn a_token_that_cannot_be_one_is_refused_and_not_repeated() {
        for token in ["", "two words", "a\nb", "é"] {
            let said = problem("http://x", Some(token));
            assert!(said.starts_with("the token has characters"), "{said}");
        }
    }

    #[test]
    fn a_base_with_a_path_keeps_it() {
        let http = Http::new("http://x/hypha", Options::default()).unwrap();
        let call = Call::get(vec!["tasks", "a/b"])
            .query("model", Some("x&y".to_owned()))
            .query("status", None)
            .with_wait(Duration::from_millis(1_500));
        let url = http.request(&call).build().unwrap().url().to_string();
        assert_eq!(url, "http://x/hypha/api/v1/tasks/a%2Fb?model=x%26y&wait=1.500");
    }

    #[test]
    fn loopback_is_never_sent_through_a_proxy() {
        for (url, loopback) in [
            ("http://127.0.0.1:80", true),
            ("http://localhost", true),
            ("http://[::1]:80", true),
            ("http://10.0.0.1", false),
            ("http://localhost.example", false),
        ] {
            assert_eq!(is_loopback(&Url::parse(url).unwrap()), loopback, "{url}");
        }
    }
}
