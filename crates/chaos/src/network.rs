//! The network that the run is about: a gateway, which lives throughout, a scheduler and workers, which do not.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;

use crate::ledger::LARGE_BYTES;
use crate::node::{LOOK_EVERY, Node};

/// How long a node may take to say where it listens.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Network {
    pub(crate) gateway: Node,
    pub(crate) scheduler: Node,
    pub(crate) workers: Vec<Node>,
    pub(crate) address: Arc<Address>,
}

impl Network {
    /// Makes certificates and configurations in the directory and starts everything.
    pub(crate) fn start(program: &Path, directory: &Path, workers: u32) -> anyhow::Result<Network> {
        fs::create_dir_all(directory.join("logs"))
            .with_context(|| format!("cannot write in {directory:?}"))?;
        let names: Vec<String> = (1..=workers).map(|number| format!("worker-{number}")).collect();
        prepare(program, directory, &names)?;

        let listen = ["--listen", "/ip4/127.0.0.1/tcp/0"];
        let mut gateway = Node::new(program, directory, "gateway", "gateway", &listen);
        gateway.start(None)?;
        let at = wait_for(|| port_in(&gateway.log()), "the gateway does not say where it listens")?;
        let join = ["--gateway", &format!("/ip4/127.0.0.1/tcp/{at}")];
        let node = |role, name: &str| Node::new(program, directory, role, name, &join);
        let mut network = Network {
            gateway,
            scheduler: node("scheduler", "scheduler"),
            workers: names.iter().map(|name| node("worker", name)).collect(),
            address: Arc::default(),
        };
        network.start_scheduler(None)?;
        network.workers.iter_mut().try_for_each(|worker| worker.start(None))?;
        Ok(network)
    }

    /// Starts the scheduler. It has another address each time.
    pub(crate) fn start_scheduler(&mut self, crash_at: Option<&str>) -> anyhow::Result<()> {
        self.scheduler.start(crash_at)?;
        self.address.moved(self.scheduler.life(), self.scheduler.log());
        Ok(())
    }

    /// Fails if a node died without having been killed.
    pub(crate) fn check_alive(&mut self) -> anyhow::Result<()> {
        let nodes = [&mut self.gateway, &mut self.scheduler].into_iter();
        nodes.chain(&mut self.workers).try_for_each(Node::check_alive)
    }
}

/// Where the scheduler serves its API, as its log says.
#[derive(Default)]
pub(crate) struct Address(Mutex<Place>);

#[derive(Default)]
struct Place {
    life: u32,
    log: PathBuf,
    found: Option<SocketAddr>,
}

impl Address {
    /// The scheduler's present life and where it serves, if it does already.
    pub(crate) fn current(&self) -> Option<(u32, SocketAddr)> {
        let mut place = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if place.found.is_none() {
            let said = fs::read_to_string(&place.log).unwrap_or_default();
            place.found = value_after(&said, "serving the API at http://");
        }
        place.found.map(|at| (place.life, at))
    }

    fn moved(&self, life: u32, log: PathBuf) {
        let mut place = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *place = Place { life, log, found: None };
    }
}

/// Waits for something to be there.
pub(crate) fn wait_for<T>(
    mut look: impl FnMut() -> Option<T>,
    otherwise: &str,
) -> anyhow::Result<T> {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return Ok(found);
        }
        if Instant::now() >= until {
            anyhow::bail!("{otherwise} within {PATIENCE:?}");
        }
        thread::sleep(LOOK_EVERY);
    }
}

fn port_in(log: &Path) -> Option<u16> {
    let said = fs::read_to_string(log).ok()?;
    value_after(&said, "listening address=/ip4/127.0.0.1/tcp/")
}

/// The word after a mark, as far as it belongs to a port or an address. A line that is not whole does not count.
fn value_after<T: std::str::FromStr>(said: &str, mark: &str) -> Option<T> {
    let (_, rest) = said.split_once(mark)?;
    let end = rest.find(|letter: char| !letter.is_ascii_digit() && !".:".contains(letter))?;
    rest[..end].parse().ok()
}

fn prepare(program: &Path, directory: &Path, workers: &[String]) -> anyhow::Result<()> {
    let certutil = |arguments: &str| {
        let mut command = Command::new(program);
        command.current_dir(directory).arg("certutil").args(arguments.split(' '));
        let output = command.output().with_context(|| format!("cannot start {program:?}"))?;
        if !output.status.success() {
            let complaint = String::from_utf8_lossy(&output.stderr);
            anyhow::bail!("`hypha certutil {arguments}` failed:\n{}", complaint.trim_end());
        }
        anyhow::Ok(())
    };
    certutil("root -o chaos")?;
    certutil("org -o chaos --root-cert chaos-root-ca-cert.pem --root-key chaos-root-ca-key.pem")?;
    let node = |name: &str, role: &str, config: &str| {
        let authority = "--ca-cert chaos-ca-cert.pem --ca-key chaos-ca-key.pem";
        certutil(&format!("node -n {name} --role {role} {authority}"))?;
        let config = format!(
            "cert_pem = \"{name}-cert.pem\"\nkey_pem = \"{name}-key.pem\"\n\
             trust_pem = \"{name}-trust.pem\"\nmetrics_address = \"127.0.0.1:0\"\n\
             listen_addresses = [\"/ip4/127.0.0.1/tcp/0\"]\n{}",
            config.replace("LARGE", &LARGE_BYTES.to_string())
        );
        let path = directory.join(format!("{name}.toml"));
        fs::write(&path, config).with_context(|| format!("cannot write {path:?}"))
    };
    node("gateway", "gateway", "")?;
    node("scheduler", "scheduler", SCHEDULER)?;
    for name in workers {
        node(name, "worker", &WORKER.replace("NAME", name))?;
    }
    Ok(())
}

/// Quick to notice and to try again, so that a round is short. Attempts that die with their worker count, and a task
/// may lose several.
const SCHEDULER: &str = r#"data_dir = "scheduler-data"

[scheduler]
discovery_interval = 1
max_result_size = LARGE

[scheduler.api]
bind_address = "127.0.0.1:0"

[scheduler.fault_tolerance]
health_check_interval = 1
health_check_timeout = 3
max_consecutive_failures = 1000
quarantine = 1

[scheduler.retry]
max_attempts = 100
backoff_base = 0.05
backoff_max = 0.5
"#;

const WORKER: &str = r#"data_dir = "NAME-data"
max_result_size = LARGE

[[executors]]
name = "builtin"
runtime = "builtin"
models = ["echo", "sleep"]
concurrency = 16
"#;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_found_in_logs() {
        let said = "INFO starting\nINFO serving the API at http://127.0.0.1:44607 tasks=0\n";
        let at: Option<SocketAddr> = value_after(said, "the API at http://");
        assert_eq!(at, "127.0.0.1:44607".parse().ok());
        let said = "INFO listening address=/ip4/127.0.0.1/tcp/4001/p2p/12D3\n";
        assert_eq!(value_after(said, "tcp/"), Some(4001_u16));
        // Half a line may be half a number.
        assert_eq!(value_after::<u16>("tcp/40", "tcp/"), None);
        assert_eq!(value_after::<u16>("nothing", "tcp/"), None);
    }
}
