//! The network of the run: a gateway, back ends, a scheduler and workers, with their addresses.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;

use crate::back_end::{BackEnd, Protocol};
use crate::disk::{Disk, MountMethod};
use crate::faults::FaultLog;
use crate::http::Incarnation;
use crate::node::{Node, POLL_INTERVAL};
use crate::port;

/// How long a node may take to log its address.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Tasks at once on a swarm worker with the built-in models, as `hypha up` has them.
pub(crate) const BUILTIN_SLOTS: usize = 16;
/// Processes at once on a swarm worker: each task starts a new one.
const PROGRAM_SLOTS: usize = 2;
/// Requests at once on a JSON server: the default of `[[scheduler.backends]]`.
const SERVER_SLOTS: usize = 8;
/// Tasks at once on a task instance, as it reports itself.
const INSTANCE_SLOTS: usize = 4;
/// The models that only one task instance serves: an instance has one model.
pub(crate) const INSTANCE_MODELS: [&str; 2] = ["instance-1", "instance-2"];
/// The models that only one JSON server serves, besides [`SHARED_MODEL`].
const SERVER_MODELS: [&str; 2] = ["server-1", "server-2"];
/// The model that all JSON servers serve.
pub(crate) const SHARED_MODEL: &str = "served";

pub(crate) struct Network {
    pub(crate) gateway: Node,
    pub(crate) scheduler: Node,
    pub(crate) workers: Vec<Node>,
    pub(crate) back_ends: Vec<BackEnd>,
    pub(crate) address: Arc<ApiAddress>,
    /// How the scheduler can be given a small disk, if at all.
    pub(crate) mount_method: Option<MountMethod>,
    data: PathBuf,
    disk: Option<Disk>,
}

impl Network {
    /// Creates certificates and configurations in the directory and starts everything.
    pub(crate) fn start(
        program: &Path,
        directory: &Path,
        workers: u32,
        faults: &Arc<Mutex<FaultLog>>,
    ) -> anyhow::Result<Network> {
        fs::create_dir_all(directory.join("logs"))
            .with_context(|| format!("cannot write in {directory:?}"))?;
        let directory = directory.canonicalize()?;
        let start = |protocol, model: &str, slots| BackEnd::start(protocol, model, slots, faults);
        let servers = SERVER_MODELS.iter().map(|model| start(Protocol::Json, model, SERVER_SLOTS));
        let instances =
            INSTANCE_MODELS.iter().map(|model| start(Protocol::Instance, model, INSTANCE_SLOTS));
        let back_ends: Vec<BackEnd> = servers.chain(instances).collect::<anyhow::Result<_>>()?;

        let files = Files { program, directory: &directory };
        files.authority()?;
        files.node("gateway", "gateway", None)?;
        let node =
            |role, name: &str, variables| Node::new(program, &directory, role, name, variables);
        let mut gateway = node("gateway", "gateway", Vec::new());
        gateway.start(None)?;
        let at = wait_for(|| port_in(&gateway.log()), "the gateway has not logged its address")?;
        let join = format!("/ip4/127.0.0.1/tcp/{at}");
        files.node("scheduler", "scheduler", Some(&join))?;
        let scheduler = node("scheduler", "scheduler", scheduler_variables(&back_ends)?);
        let mut nodes = Vec::new();
        for number in 1..=workers {
            let name = format!("worker-{number}");
            files.node(&name, "worker", Some(&join))?;
            nodes.push(node("worker", &name, worker_variables(&name)));
        }
        let data = directory.join("scheduler/scheduler-data");
        fs::create_dir_all(&data)?;
        let mut network = Network {
            gateway,
            scheduler,
            workers: nodes,
            back_ends,
            address: Arc::default(),
            mount_method: MountMethod::find(&data),
            data,
            disk: None,
        };
        network.start_scheduler(None)?;
        network.workers.iter_mut().try_for_each(|worker| worker.start(None))?;
        Ok(network)
    }

    /// Starts the scheduler.
    pub(crate) fn start_scheduler(&mut self, crash_at: Option<&str>) -> anyhow::Result<()> {
        self.scheduler.start(crash_at)?;
        self.address.scheduler_started(self.scheduler.incarnation(), self.scheduler.log());
        Ok(())
    }

    /// Gives the scheduler, which does not run, a disk that can be full.
    pub(crate) fn mount_disk(&mut self, mount_method: MountMethod) -> anyhow::Result<()> {
        let disk = Disk::mount(mount_method, &self.data)?;
        self.scheduler.set_wrapper_command(disk.enter());
        self.disk = Some(disk);
        Ok(())
    }

    /// Removes it again.
    pub(crate) fn unmount_disk(&mut self) -> anyhow::Result<()> {
        self.scheduler.set_wrapper_command(Vec::new());
        self.disk.take().map_or(Ok(()), Disk::unmount)
    }

    /// The scheduler's disk, if it can be full.
    pub(crate) fn disk(&self) -> anyhow::Result<&Disk> {
        self.disk.as_ref().context("the scheduler has no disk of its own")
    }

    /// The back ends of this kind.
    pub(crate) fn back_ends(&self, protocol: Protocol) -> Vec<&BackEnd> {
        self.back_ends.iter().filter(|back_end| back_end.protocol == protocol).collect()
    }

    /// Fails if a node ended without having been killed.
    pub(crate) fn check_alive(&mut self) -> anyhow::Result<()> {
        let nodes = [&mut self.gateway, &mut self.scheduler].into_iter();
        nodes.chain(&mut self.workers).try_for_each(Node::check_alive)
    }
}

/// The name of a swarm worker's executor for the built-in models: a task that requires it runs on that worker.
pub(crate) fn builtin_of(worker: &str) -> String {
    format!("builtin-of-{worker}")
}

/// The scheduler's configuration besides what `hypha scheduler init` writes. Everything else is as a user has it who
/// changes nothing.
fn scheduler_variables(back_ends: &[BackEnd]) -> anyhow::Result<Vec<(String, String)>> {
    // The usual port may be taken on this machine. It stays the same from incarnation to incarnation, as a user's does.
    let api = port::listen()?.local_addr()?;
    let servers = back_ends.iter().filter(|back_end| back_end.protocol == Protocol::Json);
    // HTTP servers as a user configures them; each also has a model that only it serves.
    let entry = |server: &BackEnd| {
        let (at, model) = (server.address, &server.model);
        format!(
            "{{ url = \"http://{at}\", format = \"json\", models = [\"{SHARED_MODEL}\", \"{model}\"] }}"
        )
    };
    let servers = servers.map(entry).collect::<Vec<_>>().join(", ");
    Ok(variables(&[
        ("HYPHA_SCHEDULER__API__BIND_ADDRESS", &api.to_string()),
        ("HYPHA_SCHEDULER__BACKENDS", &format!("[{servers}]")),
    ]))
}

/// The same for a worker: its executors.
fn worker_variables(name: &str) -> Vec<(String, String)> {
    let builtin = builtin_of(name);
    // Not every kernel that chaos runs on confines files, and the results do not depend on it.
    let executors = format!(
        "[{{ name = \"{builtin}\", runtime = \"builtin\", models = [\"echo\", \"sleep\"], \
         concurrency = {BUILTIN_SLOTS} }}, \
         {{ name = \"program\", runtime = \"process\", cmd = \"cat\", models = [\"program\"], \
         concurrency = {PROGRAM_SLOTS}, confinement = \"best-effort\" }}]"
    );
    variables(&[("HYPHA_EXECUTORS", &executors)])
}

fn variables(given: &[(&str, &str)]) -> Vec<(String, String)> {
    given.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

/// Where the scheduler serves its API, from its log.
#[derive(Default)]
pub(crate) struct ApiAddress(Mutex<ApiLocation>);

#[derive(Default)]
struct ApiLocation {
    incarnation: u32,
    log: PathBuf,
    found: Option<SocketAddr>,
}

impl ApiAddress {
    /// The scheduler's current incarnation and the address of its API, if it is served already.
    pub(crate) fn current(&self) -> Option<Incarnation> {
        let mut location = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if location.found.is_none() {
            let said = fs::read_to_string(&location.log).unwrap_or_default();
            location.found = value_after(&said, "serving the API at http://");
        }
        location.found.map(|at| (location.incarnation, at))
    }

    fn scheduler_started(&self, incarnation: u32, log: PathBuf) {
        let mut location = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *location = ApiLocation { incarnation, log, found: None };
    }
}

/// Polls until there is a value.
pub(crate) fn wait_for<T>(
    mut look: impl FnMut() -> Option<T>,
    otherwise: &str,
) -> anyhow::Result<T> {
    let until = Instant::now() + START_TIMEOUT;
    loop {
        if let Some(found) = look() {
            return Ok(found);
        }
        if Instant::now() >= until {
            anyhow::bail!("{otherwise} within {START_TIMEOUT:?}");
        }
        thread::sleep(POLL_INTERVAL);
    }
}

fn port_in(log: &Path) -> Option<u16> {
    let said = fs::read_to_string(log).ok()?;
    value_after(&said, "listening address=/ip4/127.0.0.1/tcp/")
}

/// The word after a mark, as far as it belongs to a port or an address. An incomplete line does not count.
fn value_after<T: std::str::FromStr>(said: &str, mark: &str) -> Option<T> {
    let (_, rest) = said.split_once(mark)?;
    let end = rest.find(|letter: char| !letter.is_ascii_digit() && !".:".contains(letter))?;
    rest[..end].parse().ok()
}

/// Creates the files of nodes, with the commands that a user has for it.
struct Files<'a> {
    program: &'a Path,
    directory: &'a Path,
}

impl Files<'_> {
    fn authority(&self) -> anyhow::Result<()> {
        self.hypha("certutil root -o chaos")?;
        let root = "--root-cert chaos-root-ca-cert.pem --root-key chaos-root-ca-key.pem";
        self.hypha(&format!("certutil org -o chaos {root}"))
    }

    /// A certificate and a configuration, in a directory of the node's own, as on a machine of its own.
    fn node(&self, name: &str, role: &str, gateway: Option<&str>) -> anyhow::Result<()> {
        let authority = "--ca-cert chaos-ca-cert.pem --ca-key chaos-ca-key.pem";
        self.hypha(&format!("certutil node -n {name} --role {role} {authority} -d {name}"))?;
        // A node that listens on all interfaces could be reached from other machines.
        let listen = "--listen /ip4/127.0.0.1/tcp/0";
        let join = gateway.map(|gateway| format!(" --gateway {gateway}")).unwrap_or_default();
        self.hypha(&format!("{role} init -n {name} -o {name}/{name}.toml {listen}{join}"))
    }

    fn hypha(&self, arguments: &str) -> anyhow::Result<()> {
        let mut command = Command::new(self.program);
        command.current_dir(self.directory).args(arguments.split(' '));
        let output =
            command.output().with_context(|| format!("cannot start {:?}", self.program))?;
        if !output.status.success() {
            let complaint = String::from_utf8_lossy(&output.stderr);
            anyhow::bail!("`hypha {arguments}` failed:\n{}", complaint.trim_end());
        }
        Ok(())
    }
}

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
        // Half a line may hold half a number.
        assert_eq!(value_after::<u16>("tcp/40", "tcp/"), None);
        assert_eq!(value_after::<u16>("nothing", "tcp/"), None);
    }
}
