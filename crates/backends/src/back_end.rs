//! One back end: its settings, its routes, and its health checks.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::header::{HeaderValue, RETRY_AFTER};
use hyper::{Method, Uri};
use hypha_engine::back_end::ResponseProtocol;
use hypha_model::{InputKind, Name, Payload};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use tokio::time::timeout;

use crate::call::Call;
use crate::request::Route;
use crate::transport::{Exchange, HttpError, Origin, Target};

/// How much of the response to a request for models or health is read.
const MAX_STATUS_BYTES: usize = 1 << 20;
/// How much of an error response is read: a message, not a document.
pub(crate) const MAX_ERROR_BYTES: usize = 16 << 10;
/// Models that are taken from one back end's list; aggregators list some hundreds.
const MAX_MODELS: usize = 4_096;

/// The protocol of a back end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// OpenAI's routes under `/v1`: vLLM, llama.cpp, Ollama and others.
    #[default]
    Openai,
    /// Takes the input unchanged at its one address, and responds with the result.
    Json,
}

/// How a back end is called.
#[derive(Clone, Debug)]
pub struct BackEndSettings {
    /// Its address: for [`Format::Openai`] the base (a `/v1` at its end makes no difference), for
    /// [`Format::Json`] the whole.
    pub url: String,
    /// Its protocol.
    pub format: Format,
    /// The path of health checks; without one its models are requested, or only a connection is made.
    pub health_path: Option<String>,
    /// Sent as a bearer token.
    pub api_key: Option<String>,
    /// Larger responses fail.
    pub max_response_bytes: usize,
    /// How long [`BackEnd::models`] and [`BackEnd::health`] wait.
    pub check_timeout: Duration,
    /// The networks that its addresses must be in; none allows all.
    pub allowed_networks: Option<Arc<[IpNet]>>,
}

/// Why the settings of a back end are invalid.
#[derive(Debug, Error)]
pub enum BackEndSettingsError {
    /// The address.
    #[error(transparent)]
    Address(#[from] HttpError),
    /// The path for health checks.
    #[error("`{0}` is not a path: give one such as /health")]
    Path(String),
    /// The key.
    #[error("the API key has characters that cannot be sent: check the file for more than the key")]
    Key,
}

/// A back end. Cheap to clone; all clones share their connections.
#[derive(Clone)]
pub struct BackEnd(Arc<Inner>);

struct Inner {
    origin: Arc<Origin>,
    format: Format,
    authorization: Option<HeaderValue>,
    max_response_bytes: usize,
    check_timeout: Duration,
    plain: Uri,
    plain_protocol: ResponseProtocol,
    chat: Uri,
    completion: Uri,
    embedding: Uri,
    models: Uri,
    health: Option<Uri>,
}

impl BackEndSettings {
    /// The default limit of a response: a long completion has some hundred kilobytes, a batch of embeddings some ten
    /// megabytes.
    pub const MAX_RESPONSE_BYTES: usize = 64 << 20;
    /// The default timeout of a health check.
    pub const CHECK_TIMEOUT: Duration = Duration::from_secs(5);

    /// A back end at `url`, with defaults for everything else.
    pub fn new(url: impl Into<String>, format: Format) -> BackEndSettings {
        BackEndSettings {
            url: url.into(),
            format,
            health_path: None,
            api_key: None,
            max_response_bytes: BackEndSettings::MAX_RESPONSE_BYTES,
            check_timeout: BackEndSettings::CHECK_TIMEOUT,
            allowed_networks: None,
        }
    }
}

impl BackEnd {
    /// The back end that `config` describes. No request is sent yet.
    pub fn new(config: BackEndSettings) -> Result<BackEnd, BackEndSettingsError> {
        let target = Target::parse(&config.url)?;
        let base = target.path.split('?').next().unwrap_or_default().trim_end_matches('/');
        let base = base.strip_suffix("/v1").unwrap_or(base);
        let path = |path: String| {
            path.parse::<Uri>()
                .map_err(|_| BackEndSettingsError::Path(path.chars().take(200).collect()))
        };
        let under_v1 = |rest: &str| path(format!("{base}/v1/{rest}"));
        let health = match config.health_path {
            Some(given) if given.starts_with('/') => Some(path(given)?),
            Some(given) => {
                return Err(BackEndSettingsError::Path(given.chars().take(200).collect()));
            }
            None => None,
        };
        let authorization = config.api_key.map(|key| {
            let mut value = HeaderValue::from_str(&format!("Bearer {key}"))
                .map_err(|_| BackEndSettingsError::Key)?;
            value.set_sensitive(true);
            Ok::<_, BackEndSettingsError>(value)
        });
        Ok(BackEnd(Arc::new(Inner {
            origin: Origin::new(&target, config.allowed_networks)?,
            format: config.format,
            authorization: authorization.transpose()?,
            max_response_bytes: config.max_response_bytes,
            check_timeout: config.check_timeout,
            plain: path(target.path.clone())?,
            plain_protocol: ResponseProtocol::of_path(&target.path),
            chat: under_v1("chat/completions")?,
            completion: under_v1("completions")?,
            embedding: under_v1("embeddings")?,
            models: under_v1("models")?,
            health,
        })))
    }

    /// Its protocol.
    pub fn format(&self) -> Format {
        self.0.format
    }

    /// The models that it lists; invalid names are left out.
    pub async fn models(&self) -> Result<Vec<Name>, HttpError> {
        #[derive(Deserialize)]
        struct List {
            data: Vec<Model>,
        }
        #[derive(Deserialize)]
        struct Model {
            id: String,
        }
        let body = self.get(self.0.models.clone()).await?;
        let list: List = serde_json::from_slice(&body).map_err(|error| {
            HttpError::Broken(format!(
                "the response of /v1/models is not a list of models ({error})"
            ))
        })?;
        let names = list.data.into_iter().filter_map(|model| model.id.parse().ok());
        Ok(names.take(MAX_MODELS).collect())
    }

    /// Checks its health.
    pub async fn health(&self) -> Result<(), HttpError> {
        match (&self.0.health, self.0.format) {
            (Some(path), _) => self.get(path.clone()).await.map(drop),
            (None, Format::Openai) => self.get(self.0.models.clone()).await.map(drop),
            (None, Format::Json) => self.0.origin.probe().await,
        }
    }

    /// Calls the back end for a task. Nothing is sent before the call is awaited; dropping the call ends the request.
    /// The result is the body of the response, unchanged, also for a plain task.
    pub fn start(
        &self,
        model: Option<&Name>,
        form: InputKind,
        input: &Payload,
        stream: bool,
    ) -> Call {
        Call::new(self, model, form, input, stream)
    }

    pub(crate) async fn post(&self, route: Route, body: Bytes) -> Result<Exchange, HttpError> {
        let inner = &*self.0;
        let path = match route {
            Route::Plain => &inner.plain,
            Route::Chat => &inner.chat,
            Route::Completion => &inner.completion,
            Route::Embedding => &inner.embedding,
        };
        let authorization = inner.authorization.as_ref();
        inner.origin.send(Method::POST, path.clone(), authorization, body).await
    }

    /// The protocol of the responses at a route.
    pub(crate) fn protocol(&self, route: Route) -> ResponseProtocol {
        match route {
            Route::Plain => self.0.plain_protocol,
            Route::Chat | Route::Completion => ResponseProtocol::Completions,
            Route::Embedding => ResponseProtocol::Json,
        }
    }

    /// Closes the connections that no request uses.
    pub(crate) fn close_idle(&self) {
        self.0.origin.close_idle();
    }

    pub(crate) fn max_response_bytes(&self) -> usize {
        self.0.max_response_bytes
    }

    async fn get(&self, path: Uri) -> Result<Bytes, HttpError> {
        get(&self.0.origin, path, self.0.authorization.as_ref(), self.0.check_timeout).await
    }
}

impl fmt::Debug for BackEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BackEnd").field("format", &self.0.format).finish_non_exhaustive()
    }
}

/// Sends a short request and returns the body of its response, if that is a success.
pub(crate) async fn get(
    origin: &Arc<Origin>,
    path: Uri,
    authorization: Option<&HeaderValue>,
    within: Duration,
) -> Result<Bytes, HttpError> {
    let request = async {
        let exchange = origin.send(Method::GET, path, authorization, Bytes::new()).await?;
        read_success(exchange, MAX_STATUS_BYTES).await
    };
    timeout(within, request).await.map_err(|_| HttpError::TimedOut(within))?
}

/// The body of a response, if its status is a success.
pub(crate) async fn read_success(
    mut exchange: Exchange,
    limit_bytes: usize,
) -> Result<Bytes, HttpError> {
    match exchange.status.is_success() {
        true => exchange.read_all(limit_bytes).await,
        false => Err(read_error(&mut exchange).await),
    }
}

/// The error response of a back end, as much of it as arrived and is within the limit.
pub(crate) async fn read_error(exchange: &mut Exchange) -> HttpError {
    let mut text = Vec::new();
    while text.len() < MAX_ERROR_BYTES
        && let Ok(Some(more)) = exchange.next().await
    {
        text.extend_from_slice(&more);
    }
    text.truncate(MAX_ERROR_BYTES);
    let body = String::from_utf8_lossy(&text).into_owned();
    // A date, which the header may also have, is ignored: it is not worth a calendar.
    let retry_after = exchange.headers.get(RETRY_AFTER);
    let retry_after_s = retry_after.and_then(|value| value.to_str().ok()?.trim().parse().ok());
    HttpError::Status { status: exchange.status.as_u16(), body, retry_after_s }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base_address_may_end_with_v1() {
        for url in ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"] {
            let server = BackEnd::new(BackEndSettings::new(url, Format::Openai)).unwrap();
            assert_eq!(server.0.chat, "/v1/chat/completions", "{url}");
        }
        let server = BackEnd::new(BackEndSettings::new("http://h:1/a/v1", Format::Openai)).unwrap();
        assert_eq!(server.0.models, "/a/v1/models");
        let server =
            BackEnd::new(BackEndSettings::new("http://h:1/run?x=1", Format::Json)).unwrap();
        assert_eq!(server.0.plain, "/run?x=1");
    }

    #[test]
    fn invalid_settings_are_refused_and_the_key_is_not_logged() {
        let with = |change: &dyn Fn(&mut BackEndSettings)| {
            let mut config = BackEndSettings::new("http://h:1", Format::Openai);
            change(&mut config);
            BackEnd::new(config)
        };
        assert!(with(&|config| config.api_key = Some("a\nb".to_owned())).is_err());
        assert!(with(&|config| config.health_path = Some("health".to_owned())).is_err());
        assert!(with(&|config| config.health_path = Some("/a b".to_owned())).is_err());
        let error = with(&|config| config.url = "https://h".to_owned()).unwrap_err();
        assert!(error.to_string().contains("https"), "{error}");
        let keyed = with(&|config| config.api_key = Some("sesame".to_owned())).unwrap();
        assert!(!format!("{keyed:?}").contains("sesame"));
    }
}
