//! `hypha up`: a whole network on this machine, with one command.
//!
//! It creates certificates and configurations in a directory, once, and runs a gateway, a scheduler and
//! workers as its children. Edits to those files are kept: only the addresses are passed to the nodes again
//! at each start.

mod children;
mod directory;

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use hypha_client::Scheduler;
use hypha_config::{Flags, SchedulerConfig};
use hypha_local::NodeCommand;
use hypha_model::SchedulerId;

use crate::config::environment;
use crate::tasks::text::count;
use crate::usage::{Failure, print};
use children::Children;

#[derive(Args)]
pub(crate) struct Up {
    /// The directory for certificates, configurations and data; it is created if it does not exist
    #[arg(long, value_name = "DIR", default_value = "hypha-up")]
    dir: PathBuf,
    /// The address of the scheduler's API; port 0 for any free one
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8080")]
    api: SocketAddr,
    /// How many workers to run
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=MAX_WORKERS))]
    workers: u16,
}

/// Each is a process of some 30 MB; a demonstration needs few.
const MAX_WORKERS: i64 = 64;

/// How long the nodes may take to find each other before a warning is printed.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// How often their state is checked meanwhile.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// How often a connection to the gateway is tried: it listens a fraction of a second after its start.
const LISTEN_POLL_INTERVAL: Duration = Duration::from_millis(20);

pub(crate) fn run(up: Up) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::work(format!("cannot start: {error}")))?;
    runtime.block_on(serve(up))
}

async fn serve(up: Up) -> Result<(), Failure> {
    // A lock held by another `hypha up` explains best why an address is taken.
    let held = directory::lock_existing(&up.dir)?;
    let api = match up.api.port() {
        0 => SocketAddr::new(up.api.ip(), free_port(up.api)?),
        _ => up.api,
    };
    // Before any file is created, so that nothing is left behind.
    check_free(api)?;
    let nodes = directory::plan(up.workers);
    let directory = hypha_local::prepare(&up.dir, &nodes)
        .map_err(|error| Failure::work(format!("{error:#}")))?;
    let _lock = match held {
        Some(held) => held,
        None => directory::lock(&directory)?,
    };
    let gateway_at = free_port(api)?;
    let gateway = format!("/ip4/127.0.0.1/tcp/{gateway_at}");
    let config = |name: &str| directory.join(format!("{name}.toml"));
    let first =
        NodeCommand::new("gateway", "gateway", config("gateway")).flag("--listen", &gateway);
    let mut others = vec![
        NodeCommand::new("scheduler", "scheduler", config("scheduler"))
            .flag("--gateway", &gateway)
            .variable(BIND_ADDRESS, &api.to_string()),
    ];
    others.extend((1..=up.workers).map(|number| {
        let name = format!("worker-{number}");
        NodeCommand::new(&name, "worker", config(&name)).flag("--gateway", &gateway)
    }));
    let scheduler = scheduler_config(&config("scheduler"), &gateway, api)?;
    let own = directory::scheduler_id(&scheduler.network.cert_pem)?;
    let guarded = scheduler.api.tls.is_some() || scheduler.api.tokens_file.is_some();
    let mut children = Children::new()?;
    children.start(first);
    // Nodes that start before their gateway listens warn that it is unreachable.
    let ready = match children.wait_for(wait_until_listening(gateway_at)).await {
        Ok(Some(())) => {
            others.into_iter().for_each(|node| children.start(node));
            match guarded {
                true => Ok(Some(Ready::Unauthorized)),
                false => {
                    children.wait_for(wait_until_ready(api, own, usize::from(up.workers))).await
                }
            }
        }
        Ok(None) => Ok(None),
        Err(failure) => Err(failure),
    };
    match ready {
        Err(failure) => {
            children.stop().await?;
            // The most likely reason why a scheduler cannot start, with the flag that helps.
            check_free(api)?;
            return Err(failure);
        }
        Ok(Some(Ready::OtherScheduler)) => {
            children.stop().await?;
            return Err(taken(api, "another scheduler answers there"));
        }
        Ok(Some(Ready::All)) => print(&hint(&up, api))?,
        Ok(Some(Ready::NotAll)) => eprintln!(
            "hypha up: after {} seconds not all workers have joined; see the lines above. Continuing.",
            START_TIMEOUT.as_secs()
        ),
        Ok(Some(Ready::Unauthorized)) => eprintln!(
            "hypha up: the API at {api} requires tokens or TLS, so `hypha up` cannot check whether all workers have joined."
        ),
        // A signal came before all nodes were up.
        Ok(None) => return children.stop().await,
    }
    children.run().await
}

/// The address at which the scheduler serves its API.
const BIND_ADDRESS: &str = "HYPHA_SCHEDULER__API__BIND_ADDRESS";

/// The address that the scheduler will use. A mistake in its file is reported before anything runs.
fn scheduler_config(
    file: &Path,
    gateway: &str,
    api: SocketAddr,
) -> Result<SchedulerConfig, Failure> {
    let mut variables = environment();
    variables.retain(|(name, _)| name != BIND_ADDRESS);
    variables.push((BIND_ADDRESS.to_owned(), api.to_string()));
    let flags = Flags { gateway: vec![gateway.to_owned()], ..Flags::default() };
    hypha_config::load(file, &variables, &flags).map_err(Failure::usage)
}

/// Whether the scheduler can serve its API there. If not, the program that does would be mistaken for it.
fn check_free(api: SocketAddr) -> Result<(), Failure> {
    match TcpListener::bind(api) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::AddrInUse => {
            Err(taken(api, "another program has this address, perhaps another `hypha up`"))
        }
        Err(error) => Err(taken(api, &error.to_string())),
    }
}

fn taken(api: SocketAddr, problem: &str) -> Failure {
    Failure::work(format!(
        "cannot serve the API at {api}: {problem}; --api HOST:PORT chooses another address"
    ))
}

/// A free port that is not the API's.
fn free_port(api: SocketAddr) -> Result<u16, Failure> {
    loop {
        let port = hypha_local::free_port()
            .map_err(|error| Failure::work(format!("cannot find a free port: {error}")))?;
        if port != api.port() {
            return Ok(port);
        }
    }
}

/// Whether the network is up.
#[derive(Debug, PartialEq, Eq)]
enum Ready {
    All,
    NotAll,
    /// The API requires credentials that we do not have.
    Unauthorized,
    /// The API belongs to another scheduler.
    OtherScheduler,
}

/// Waits until the gateway accepts connections; if it takes too long, the others start and report it.
async fn wait_until_listening(port: u16) {
    let listening = async {
        while tokio::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.is_err() {
            tokio::time::sleep(LISTEN_POLL_INTERVAL).await;
        }
    };
    let _ = tokio::time::timeout(START_TIMEOUT, listening).await;
}

async fn wait_until_ready(api: SocketAddr, own: SchedulerId, workers: usize) -> Ready {
    let ready = async {
        loop {
            if let Ok(scheduler) = Scheduler::connect(&address(api), None)
                && let Ok(status) = scheduler.scheduler().await
                && let Ok(known) = scheduler.workers().await
            {
                if status.id != Some(own) {
                    return Ready::OtherScheduler;
                }
                if known.iter().filter(|one| takes_tasks(&one.status)).count() >= workers {
                    return Ready::All;
                }
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    tokio::time::timeout(START_TIMEOUT, ready).await.unwrap_or(Ready::NotAll)
}

fn takes_tasks(status: &str) -> bool {
    matches!(status, "available" | "busy")
}

fn address(api: SocketAddr) -> String {
    format!("http://{api}")
}

fn hint(up: &Up, api: SocketAddr) -> String {
    let scheduler = match api == SocketAddr::from((Ipv4Addr::LOCALHOST, 8080)) {
        true => String::new(),
        false => format!(" --scheduler {}", address(api)),
    };
    format!(
        "\nhypha is up: {workers}, at {address}\n\
         try:   hypha submit{scheduler} --model echo --input hello --wait\n\
         look:  hypha workers{scheduler}\n\
         stop:  Ctrl-C; everything is kept in {directory}\n\n",
        workers = count(up.workers.into(), "worker"),
        address = address(api),
        directory = up.dir.display(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::get;
    use axum::{Json, Router};
    use serde_json::json;

    #[tokio::test]
    async fn api_of_another_scheduler_is_not_mistaken_for_ours() {
        let [own, other]: [SchedulerId; 2] = ["1", "2"]
            .map(|last| format!("01890000-0000-7000-8000-00000000000{last}").parse().unwrap());
        let id = "01890000-0000-7000-8000-000000000001";
        let workers = json!({"workers": [{"id": id, "status": "available"}]});
        let routes = Router::new()
            .route("/api/v1/scheduler", get(async move || Json(json!({"id": other}))))
            .route("/api/v1/workers", get(async move || Json(workers)));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let api = listener.local_addr().unwrap();
        let _serving = tokio::spawn(axum::serve(listener, routes).into_future());
        assert_eq!(wait_until_ready(api, own, 1).await, Ready::OtherScheduler);
        assert_eq!(wait_until_ready(api, other, 1).await, Ready::All);

        let refused = check_free(api).unwrap_err().to_string();
        assert!(refused.contains(&format!("at {api}: another program has this address")));
        assert!(refused.ends_with("--api HOST:PORT chooses another address"), "{refused}");
    }

    #[tokio::test]
    async fn the_others_wait_until_the_gateway_listens() {
        let port = hypha_local::free_port().unwrap();
        let mut wait = std::pin::pin!(wait_until_listening(port));
        // Longer than a refused connection takes; nothing listens, so no time is too long.
        let early = tokio::time::timeout(5 * LISTEN_POLL_INTERVAL, &mut wait).await;
        assert!(early.is_err(), "nothing listens yet");
        let _gateway = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await.unwrap();
        wait.await;
    }

    #[test]
    fn one_worker_is_not_workers() {
        let up = Up { dir: "here".into(), api: "127.0.0.1:8080".parse().unwrap(), workers: 1 };
        let hint = hint(&up, up.api);
        assert!(hint.contains("hypha is up: 1 worker, at http://"), "{hint}");
    }
}
