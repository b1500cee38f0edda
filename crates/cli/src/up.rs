//! `hypha up`: a whole network on this machine, with one command.
//!
//! It makes certificates and configurations in a directory, once, and runs a gateway, a scheduler and workers as its
//! children. What was edited there stays: only addresses are given to the nodes anew at each start.

pub(crate) mod children;
pub(crate) mod files;

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use hypha_client::Scheduler;

use crate::usage::{Failure, print};
use children::{Child, Children};

#[derive(Args)]
pub(crate) struct Up {
    /// Where certificates, configurations and data are kept; it is made if it does not exist
    #[arg(long, value_name = "DIR", default_value = "hypha-up")]
    dir: PathBuf,
    /// Where the scheduler answers HTTP; port 0 for any free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    api: SocketAddr,
    /// How many workers
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=MAX_WORKERS))]
    workers: u16,
}

/// Each is a process of some 30 MB; a demonstration needs few.
const MAX_WORKERS: i64 = 64;

/// How long the nodes may take to find each other before we say that something is wrong, and go on.
const PATIENCE: Duration = Duration::from_secs(60);

/// How often we look whether they have.
const LOOK_EVERY: Duration = Duration::from_millis(200);

pub(crate) fn run(up: Up) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::work(format!("cannot start: {error}")))?;
    runtime.block_on(serve(up))
}

async fn serve(up: Up) -> Result<(), Failure> {
    let directory = files::prepare(&up.dir, &files::plan(up.workers))?;
    let _lock = files::lock(&directory)?;
    let gateway_at = free_port(up.api)?;
    let api = match up.api.port() {
        0 => SocketAddr::new(up.api.ip(), free_port(up.api)?),
        _ => up.api,
    };
    let gateway = format!("/ip4/127.0.0.1/tcp/{gateway_at}");
    let config = |name: &str| directory.join(format!("{name}.toml"));
    let mut plan = vec![
        Child::new("gateway", "gateway", config("gateway")).flag("--listen", &gateway),
        Child::new("scheduler", "scheduler", config("scheduler"))
            .flag("--gateway", &gateway)
            .variable("HYPHA_SCHEDULER__API__BIND_ADDRESS", &api.to_string()),
    ];
    plan.extend((1..=up.workers).map(|number| {
        let name = format!("worker-{number}");
        Child::new(&name, "worker", config(&name)).flag("--gateway", &gateway)
    }));
    let mut children = Children::start(plan)?;
    let ready = children.meanwhile(wait_until_ready(api, usize::from(up.workers))).await;
    if ready.is_err() {
        children.stop().await?;
    }
    match ready? {
        Some(true) => print(&hint(&up, api))?,
        Some(false) => eprintln!(
            "hypha up: after {} seconds not all workers are there; see the lines above. Going on.",
            PATIENCE.as_secs()
        ),
        // Somebody wants it to stop already.
        None => return children.stop().await,
    }
    children.run().await
}

/// A port that nobody uses now. Another program may take it before the node does; then the node says so.
pub(crate) fn free_port(api: SocketAddr) -> Result<u16, Failure> {
    let named = |error| Failure::work(format!("cannot find a free port: {error}"));
    loop {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(named)?;
        let port = listener.local_addr().map_err(named)?.port();
        if port != api.port() {
            return Ok(port);
        }
    }
}

async fn wait_until_ready(api: SocketAddr, workers: usize) -> bool {
    let ready = async {
        loop {
            if let Ok(scheduler) = Scheduler::connect(&address(api), None)
                && let Ok(known) = scheduler.workers().await
                && known.iter().filter(|worker| takes_tasks(&worker.status)).count() >= workers
            {
                return;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    };
    tokio::time::timeout(PATIENCE, ready).await.is_ok()
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
        "\nhypha is up: {workers} workers with the models echo, sleep and burn, at {address}\n\
         try:   hypha submit{scheduler} --model echo --input hello --wait\n\
         look:  hypha workers{scheduler}\n\
         stop:  Ctrl-C; everything is kept in {directory}\n\n",
        workers = up.workers,
        address = address(api),
        directory = up.dir.display(),
    )
}
