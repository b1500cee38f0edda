//! Servers that only send fixed responses: the back ends of `hypha bench openai`, and a minimal relay in front of them.

use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Context;
use clap::Args;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;

use crate::http::{HttpConnection, ok_response};

#[derive(Args)]
pub(crate) struct Backends {
    /// Number of back ends, each at a port of its own
    #[arg(long, default_value_t = 4)]
    count: usize,
}

#[derive(Args)]
pub(crate) struct Relay {
    /// Addresses to relay to, in turn
    #[arg(required = true)]
    to: Vec<SocketAddr>,
}

/// A chat completion of some 300 bytes.
pub(crate) const COMPLETION: &str = concat!(
    r#"{"id":"chatcmpl-0000000000000000","object":"chat.completion","created":1700000000,"model":"fake","#,
    r#""choices":[{"index":0,"message":{"role":"assistant","content":"Hello. What can I do for you today?"},"#,
    r#""logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":12,"total_tokens":21}}"#
);

const MODELS: &str = r#"{"object":"list","data":[{"id":"fake","object":"model"}]}"#;

/// Serves until standard input ends, on one thread: the back ends should cost as little as possible.
pub(crate) fn serve_backends(backends: &Backends) -> anyhow::Result<()> {
    let completion = ok_response(COMPLETION.as_bytes());
    // Requests other than POST are health checks.
    let models = ok_response(MODELS.as_bytes());
    let reply = move |request: &Request<'_>| match request.raw.starts_with(b"POST") {
        true => completion.clone(),
        false => models.clone(),
    };
    run(Builder::new_current_thread(), serve(backends.count, reply))
}

/// Relays each request to the next back end and returns its response, over connections that are kept open.
pub(crate) fn serve_relay(relay: Relay) -> anyhow::Result<()> {
    run(Builder::new_multi_thread(), async move {
        let listeners = listen(1).await?;
        let turn = Arc::new(AtomicUsize::new(0));
        let relay = Arc::new(relay.to);
        accept(listeners, move |stream| relay_one(stream, relay.clone(), turn.clone())).await
    })
}

async fn relay_one(
    stream: TcpStream,
    to: Arc<Vec<SocketAddr>>,
    turn: Arc<AtomicUsize>,
) -> io::Result<()> {
    let mut client = HttpConnection::new(stream)?;
    let mut backends: Vec<Option<HttpConnection>> = to.iter().map(|_| None).collect();
    while let Some(request) = client.next().await? {
        let next = turn.fetch_add(1, Ordering::Relaxed) % to.len();
        let backend = match &mut backends[next] {
            Some(backend) => backend,
            empty => empty.insert(HttpConnection::connect(to[next]).await?),
        };
        let reply = backend.exchange(client.raw(&request)).await?;
        client.send(backend.raw(&reply)).await?;
    }
    Ok(())
}

/// A request as a fake server sees it.
pub(crate) struct Request<'a> {
    pub(crate) raw: &'a [u8],
}

/// Serves at so many ports, and prints their addresses.
pub(crate) async fn serve(
    ports: usize,
    reply: impl Fn(&Request<'_>) -> Vec<u8> + Send + Sync + 'static,
) -> io::Result<()> {
    let reply = Arc::new(reply);
    accept(listen(ports).await?, move |stream| {
        let reply = reply.clone();
        async move {
            let mut connection = HttpConnection::new(stream)?;
            while let Some(message) = connection.next().await? {
                let request = Request { raw: connection.raw(&message) };
                let reply = reply(&request);
                connection.send(&reply).await?;
            }
            Ok(())
        }
    })
    .await
}

/// Runs a server until standard input ends: the parent process holds it open.
pub(crate) fn run(
    mut builder: Builder,
    server: impl Future<Output = io::Result<()>>,
) -> anyhow::Result<()> {
    let runtime = builder.enable_all().build().context("cannot serve")?;
    let served = runtime.block_on(async {
        let parent =
            tokio::task::spawn_blocking(|| io::copy(&mut io::stdin().lock(), &mut io::sink()));
        tokio::select! {
            served = server => served,
            _ = parent => Ok(()),
        }
    });
    runtime.shutdown_background();
    served.context("cannot serve")
}

pub(crate) async fn listen(ports: usize) -> io::Result<Vec<TcpListener>> {
    let mut listeners = Vec::new();
    let mut addresses = Vec::new();
    for _ in 0..ports {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        addresses.push(listener.local_addr()?.to_string());
        listeners.push(listener);
    }
    let mut out = io::stdout().lock();
    writeln!(out, "{}", addresses.join(" "))?;
    out.flush()?;
    Ok(listeners)
}

/// Serves connections concurrently. One that breaks does not affect the others.
async fn accept<F>(
    listeners: Vec<TcpListener>,
    serve: impl Fn(TcpStream) -> F + Clone + Send + 'static,
) -> io::Result<()>
where
    F: Future<Output = io::Result<()>> + Send + 'static,
{
    let mut accepting = tokio::task::JoinSet::new();
    for listener in listeners {
        let serve = serve.clone();
        accepting.spawn(async move {
            loop {
                let (stream, _) = listener.accept().await?;
                tokio::spawn(serve(stream));
            }
        });
    }
    match accepting.join_next().await {
        Some(ended) => ended.map_err(io::Error::other)?,
        None => Ok(()),
    }
}
