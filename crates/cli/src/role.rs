//! `hypha gateway|scheduler|worker|data`: write a configuration, run a node, check its health.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use hypha_config::{
    DataConfig, Flags, GatewayConfig, NetworkConfig, RoleConfig, SchedulerConfig, WorkerConfig,
};
use hypha_model::NodeRole;
use hypha_net::Multiaddr;
use hypha_node::{NetworkClient, NodeConfig, NodeError};

use crate::config::environment;
use crate::init::{self, Init};
use crate::usage::{Failure, print};

const VERSION: &str = env!("HYPHA_VERSION");

/// The commands of every role.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Write a commented configuration file
    Init(Init),
    /// Run the node until SIGTERM or SIGINT
    Run(Run),
    /// Check the health of a node; exits 0 if it is ready
    Probe(Probe),
}

#[derive(Args)]
pub(crate) struct Run {
    #[command(flatten)]
    config_arguments: ConfigArguments,
    /// Stop when standard input ends: for a parent process that may die without stopping this node
    #[arg(long, hide = true)]
    stop_with_stdin: bool,
}

/// A configuration file, and flags that win over it.
#[derive(Args)]
pub(crate) struct ConfigArguments {
    /// The configuration file
    #[arg(short, long, value_name = "FILE")]
    config: PathBuf,
    /// A gateway to join through instead of those in the file; may be repeated
    #[arg(long, value_name = "ADDRESS")]
    gateway: Vec<String>,
    /// An address to listen on instead of those in the file; may be repeated
    #[arg(long, value_name = "ADDRESS")]
    listen: Vec<String>,
    /// An address at which others reach this node; may be repeated
    #[arg(long, value_name = "ADDRESS")]
    external: Vec<String>,
    /// Whether gateways may relay for this node
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    relay_circuit: Option<bool>,
    /// A range of addresses not to dial when learned from other nodes; may be repeated
    #[arg(long, value_name = "CIDR")]
    exclude_cidr: Vec<String>,
}

#[derive(Args)]
pub(crate) struct Probe {
    /// The node's address, such as /ip4/127.0.0.1/tcp/4001
    address: String,
    /// A configuration file, for its certificates
    #[arg(short, long, value_name = "FILE")]
    config: PathBuf,
    /// Seconds to wait
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0)]
    timeout: f64,
}

pub(crate) fn run(role: NodeRole, command: Command) -> Result<(), Failure> {
    match command {
        Command::Init(init) => init::run(role, init),
        Command::Run(run) => {
            if run.stop_with_stdin {
                stop_with_stdin();
            }
            if role == NodeRole::Scheduler {
                use_small_pages();
            }
            let config = match role {
                NodeRole::Gateway => NodeConfig::Gateway(run.config_arguments.load()?),
                NodeRole::Scheduler => {
                    NodeConfig::Scheduler(Box::new(run.config_arguments.load()?))
                }
                NodeRole::Worker => NodeConfig::Worker(Box::new(run.config_arguments.load()?)),
                NodeRole::Data => NodeConfig::Data(run.config_arguments.load()?),
            };
            hypha_node::run(config, VERSION).map_err(failure)
        }
        Command::Probe(probe) => self::probe(role, probe),
    }
}

/// A growing queue allocates memory all the time, and clients that submit wait while the system clears it: 2
/// MB at a time take milliseconds, in a virtual machine five and more. Not for workers: their programs would
/// inherit it.
fn use_small_pages() {
    // Where it cannot be set, the scheduler is only slower.
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::disable_transparent_huge_pages(true);
}

/// Stops this process, as a signal would, when standard input ends.
fn stop_with_stdin() {
    std::thread::spawn(|| {
        // Data or an error: either way, the parent is gone afterwards.
        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        let _ =
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TERM);
    });
}

fn probe(role: NodeRole, probe: Probe) -> Result<(), Failure> {
    let address: Multiaddr = probe.address.parse().map_err(|_| {
        let expected = "expected one such as /ip4/127.0.0.1/tcp/4001";
        Failure::usage(format!("malformed address {}: {expected}", probe.address))
    })?;
    let config_arguments = ConfigArguments::of(probe.config);
    let network = match role {
        NodeRole::Gateway => config_arguments.load::<GatewayConfig>()?.network,
        NodeRole::Scheduler => config_arguments.load::<SchedulerConfig>()?.network,
        NodeRole::Worker => config_arguments.load::<WorkerConfig>()?.network,
        NodeRole::Data => config_arguments.load::<DataConfig>()?.network,
    };
    let look = look(role, &network, probe.timeout)?;
    let (certificate, health) = hypha_node::probe(&look, address).map_err(failure)?;
    if health.version.is_empty() {
        // The probe ran with the node's own certificate: see `hypha_net::probe`.
        let (role, organisation) = (certificate.role, certificate.organisation);
        return print(&format!(
            "alive: {role} of {organisation}; the probe used its own certificate, so only /readyz reports whether it is ready\n"
        ));
    }
    let summary = format!(
        "{} of {}, version {}, up {} s, {} peers",
        health.role,
        certificate.organisation,
        health.version,
        health.uptime_ms / 1_000,
        health.peers
    );
    match health.ready {
        true => {
            let notes = health.notes.iter().map(|note| format!("note: {note}\n"));
            print(&format!("ready: {summary}\n{}", notes.collect::<String>()))
        }
        false => {
            Err(Failure::work(format!("not ready: {}; {summary}", health.problems.join(", "))))
        }
    }
}

pub(crate) fn look(
    role: NodeRole,
    network: &NetworkConfig,
    seconds: f64,
) -> Result<NetworkClient<'_>, Failure> {
    let timeout = Duration::try_from_secs_f64(seconds)
        .ok()
        .filter(|timeout| !timeout.is_zero())
        .ok_or_else(|| Failure::usage("--timeout: expected a number of seconds above zero"))?;
    Ok(NetworkClient { role, network, version: VERSION, timeout })
}

impl ConfigArguments {
    /// Requires a file.
    pub(crate) fn of(config: PathBuf) -> ConfigArguments {
        ConfigArguments {
            config,
            gateway: Vec::new(),
            listen: Vec::new(),
            external: Vec::new(),
            relay_circuit: None,
            exclude_cidr: Vec::new(),
        }
    }

    pub(crate) fn load<R: RoleConfig>(&self) -> Result<R, Failure> {
        let flags = Flags {
            gateway: self.gateway.clone(),
            listen: self.listen.clone(),
            external: self.external.clone(),
            relay_circuit: self.relay_circuit,
            exclude_cidr: self.exclude_cidr.clone(),
        };
        hypha_config::load(&self.config, &environment(), &flags).map_err(Failure::usage)
    }
}

pub(crate) fn failure(error: NodeError) -> Failure {
    match error {
        NodeError::Configuration(_) => Failure::usage(error),
        NodeError::Failed(_) => Failure::work(error),
    }
}
