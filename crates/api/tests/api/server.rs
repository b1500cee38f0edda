//! The HTTP APIs on a port of this machine, and a client for them.

use std::net::SocketAddr;
use std::sync::Arc;

use hypha_api::Settings;
use reqwest::{Method, RequestBuilder, StatusCode};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::memory::Memory;

pub(crate) struct Server {
    pub(crate) memory: Arc<Memory>,
    pub(crate) address: SocketAddr,
    pub(crate) client: reqwest::Client,
    /// The token that [`Server::request`] sends.
    pub(crate) token: Option<String>,
    _stop: oneshot::Sender<()>,
}

impl Server {
    pub(crate) async fn start() -> Server {
        Server::with(Memory::new(), Settings::default()).await
    }

    pub(crate) async fn with(memory: Arc<Memory>, settings: Settings) -> Server {
        // An earlier test has installed the same.
        drop(rustls::crypto::ring::default_provider().install_default());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let service = Arc::clone(&memory) as Arc<dyn hypha_api::SchedulerApi>;
        tokio::spawn(async move {
            let stopped = async { drop(stopped.await) };
            hypha_api::serve(settings, listener, service, stopped).await.unwrap();
        });
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        Server { memory, address, client, token: None, _stop: stop }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.client.request(method, self.url(path));
        match &self.token {
            Some(token) => request.header("authorization", format!("Bearer {token}")),
            None => request,
        }
    }

    pub(crate) async fn get(&self, path: &str) -> (u16, Value) {
        answer(self.request(Method::GET, path)).await
    }

    pub(crate) async fn post(&self, path: &str, body: impl AsRef<str>) -> (u16, Value) {
        answer(self.json(Method::POST, path, body.as_ref())).await
    }

    pub(crate) async fn put(&self, path: &str, body: impl AsRef<str>) -> (u16, Value) {
        answer(self.json(Method::PUT, path, body.as_ref())).await
    }

    pub(crate) async fn delete(&self, path: &str) -> (u16, Value) {
        answer(self.request(Method::DELETE, path)).await
    }

    pub(crate) fn json(&self, method: Method, path: &str, body: &str) -> RequestBuilder {
        self.request(method, path).header("content-type", "application/json").body(body.to_owned())
    }
}

/// The status and the JSON of the response; a body that is not JSON comes as a string.
pub(crate) async fn answer(request: RequestBuilder) -> (u16, Value) {
    let response = request.send().await.unwrap();
    let status: StatusCode = response.status();
    let text = response.text().await.unwrap();
    let value = serde_json::from_str(&text).unwrap_or(Value::String(text));
    (status.as_u16(), value)
}
