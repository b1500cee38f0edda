//! The configuration of each role.

use std::path::PathBuf;
use std::time::Duration;

use hypha_model::{Executor, ExecutorClass, Money, Name, NodeRole};

use crate::diagnostic::Diagnostic;
use crate::network::NetworkConfig;
use crate::observe::ObserveConfig;
use crate::parse::{self, Choice};
use crate::reader::Reader;
use crate::sealed::Build;
use crate::{RoleConfig, keys};

/// A gateway's configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct GatewayConfig {
    /// Certificates and addresses.
    pub network: NetworkConfig,
    /// Logs, metrics and traces.
    pub observe: ObserveConfig,
    /// What it carries for others.
    pub relay: RelayLimits,
}

/// What a gateway carries for nodes that cannot be connected to directly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelayLimits {
    /// Reservations in all.
    pub max_reservations: u32,
    /// Reservations of one node.
    pub max_reservations_per_peer: u32,
    /// Relayed connections in all.
    pub max_circuits: u32,
    /// Relayed connections of one node.
    pub max_circuits_per_peer: u32,
    /// How long a reservation lasts unless it is renewed.
    pub reservation_duration: Duration,
    /// How long a relayed connection lasts.
    pub max_circuit_duration: Duration,
    /// How many bytes it carries.
    pub max_circuit_bytes: u64,
}

/// A scheduler's configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct SchedulerConfig {
    /// Certificates and addresses.
    pub network: NetworkConfig,
    /// Logs, metrics and traces.
    pub observe: ObserveConfig,
    /// How long between searches for workers.
    pub discovery_interval: Duration,
}

/// A worker's configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerConfig {
    /// Certificates and addresses.
    pub network: NetworkConfig,
    /// Logs, metrics and traces.
    pub observe: ObserveConfig,
    /// The price of an hour.
    pub price: Money,
    /// Where it stands.
    pub region: Option<Name>,
    /// What it is.
    pub hardware: Option<Name>,
    /// How long others believe its record.
    pub record_ttl: Duration,
    /// What it offers.
    pub resources: Resources,
    /// What it can run.
    pub executors: Vec<ExecutorConfig>,
}

/// What a worker offers; what is none is to be detected.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// Thousandths of a core.
    pub cpu_milli: Option<u64>,
    /// Main memory.
    pub memory_bytes: Option<u64>,
    /// Disk space.
    pub storage_bytes: Option<u64>,
    /// The GPUs; an empty list offers none.
    pub gpus: Option<Vec<Gpu>>,
}

/// One GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// What it is.
    pub model: Name,
    /// Its memory.
    pub memory_bytes: u64,
}

/// One thing that a worker can run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecutorConfig {
    /// The kind of work.
    pub class: ExecutorClass,
    /// The name that a task may ask for.
    pub name: Name,
    /// How it runs.
    pub runtime: Runtime,
    /// The models it serves; none means any.
    pub models: Vec<Name>,
    /// How many tasks it runs at once.
    pub concurrency: u32,
}

/// How an executor runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runtime {
    /// A program is started.
    Process,
    /// A server is called.
    Http,
    /// Part of the worker.
    Builtin,
}

/// A data node's configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct DataConfig {
    /// Certificates and addresses.
    pub network: NetworkConfig,
    /// Logs, metrics and traces.
    pub observe: ObserveConfig,
    /// How long others believe its records.
    pub record_ttl: Duration,
    /// What it serves.
    pub datasets: Vec<Dataset>,
}

/// One data set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dataset {
    /// The name that a job asks for.
    pub name: Name,
    /// Where it is.
    pub path: PathBuf,
}

impl ExecutorConfig {
    /// What others are told of it.
    pub fn executor(&self) -> Executor {
        Executor {
            class: self.class,
            name: self.name.clone(),
            models: self.models.clone(),
            concurrency: self.concurrency,
        }
    }
}

impl Choice for Runtime {
    const NAMES: &'static [(&'static str, Runtime)] =
        &[("process", Runtime::Process), ("http", Runtime::Http), ("builtin", Runtime::Builtin)];
}

macro_rules! role {
    ($config:ty, $role:expr) => {
        impl RoleConfig for $config {
            const ROLE: NodeRole = $role;

            fn network(&self) -> &NetworkConfig {
                &self.network
            }

            fn observe(&self) -> &ObserveConfig {
                &self.observe
            }
        }
    };
}

role!(GatewayConfig, NodeRole::Gateway);
role!(SchedulerConfig, NodeRole::Scheduler);
role!(WorkerConfig, NodeRole::Worker);
role!(DataConfig, NodeRole::Data);

impl Build for GatewayConfig {
    fn build(
        reader: &Reader<'_>,
        network: NetworkConfig,
        observe: ObserveConfig,
    ) -> Result<GatewayConfig, Diagnostic> {
        let relay = reader.section("relay")?;
        let count = |name| relay.get(name, |given| parse::count(given, 0, u32::MAX));
        Ok(GatewayConfig {
            network,
            observe,
            relay: RelayLimits {
                max_reservations: count("max_reservations")?,
                max_reservations_per_peer: count("max_reservations_per_peer")?,
                max_circuits: count("max_circuits")?,
                max_circuits_per_peer: count("max_circuits_per_peer")?,
                reservation_duration: relay.get("reservation_duration", seconds)?,
                max_circuit_duration: relay.get("max_circuit_duration", seconds)?,
                max_circuit_bytes: relay.get("max_circuit_bytes", parse::bytes)?,
            },
        })
    }
}

impl Build for SchedulerConfig {
    fn build(
        reader: &Reader<'_>,
        network: NetworkConfig,
        observe: ObserveConfig,
    ) -> Result<SchedulerConfig, Diagnostic> {
        let discovery_interval = reader.section("scheduler")?.get("discovery_interval", seconds)?;
        Ok(SchedulerConfig { network, observe, discovery_interval })
    }
}

impl Build for WorkerConfig {
    fn build(
        reader: &Reader<'_>,
        network: NetworkConfig,
        observe: ObserveConfig,
    ) -> Result<WorkerConfig, Diagnostic> {
        let mut executors: Vec<ExecutorConfig> = Vec::new();
        for entry in reader.entries("executors")?.unwrap_or_default() {
            let executor = executor(&entry)?;
            let same =
                |one: &ExecutorConfig| (one.class, &one.name) == (executor.class, &executor.name);
            if executors.iter().any(same) {
                return Err(entry.fault("name", "another executor of this class has this name"));
            }
            executors.push(executor);
        }
        Ok(WorkerConfig {
            network,
            observe,
            price: reader.get("price", parse::price)?,
            region: reader.optional("region", parse::label)?,
            hardware: reader.optional("hardware", parse::label)?,
            record_ttl: reader.get("record_ttl", seconds)?,
            resources: resources(&reader.section("resources")?)?,
            executors,
        })
    }
}

impl Build for DataConfig {
    fn build(
        reader: &Reader<'_>,
        network: NetworkConfig,
        observe: ObserveConfig,
    ) -> Result<DataConfig, Diagnostic> {
        let mut datasets: Vec<Dataset> = Vec::new();
        for entry in reader.entries("datasets")?.unwrap_or_default() {
            let name = entry.get("name", parse::label)?;
            if datasets.iter().any(|one| one.name == name) {
                return Err(entry.fault("name", "another data set has this name"));
            }
            datasets.push(Dataset { name, path: entry.required_path("path")? });
        }
        Ok(DataConfig {
            network,
            observe,
            record_ttl: reader.get("record_ttl", seconds)?,
            datasets,
        })
    }
}

fn executor(entry: &Reader<'_>) -> Result<ExecutorConfig, Diagnostic> {
    Ok(ExecutorConfig {
        class: entry.get("class", parse::choice)?,
        name: entry.get("name", parse::label)?,
        runtime: entry.get("runtime", parse::choice)?,
        models: entry.get("models", parse::labels)?,
        concurrency: entry.get("concurrency", |given| parse::count(given, 1, u32::MAX))?,
    })
}

fn resources(section: &Reader<'_>) -> Result<Resources, Diagnostic> {
    let gpu = |entry: &Reader<'_>| {
        Ok(Gpu {
            model: entry.get("model", parse::label)?,
            memory_bytes: entry.get("memory", parse::bytes)?,
        })
    };
    let gpus = section.entries("gpu")?;
    Ok(Resources {
        cpu_milli: section.optional("cpu", parse::cores)?,
        memory_bytes: section.optional("memory", parse::bytes)?,
        storage_bytes: section.optional("storage", parse::bytes)?,
        gpus: gpus.map(|entries| entries.iter().map(gpu).collect()).transpose()?,
    })
}

/// The table's bounds were checked before.
fn seconds(given: &crate::given::Given) -> Result<Duration, parse::Problem> {
    parse::seconds(given, 0, u64::MAX)
}

/// The role whose configuration `names`, the keys at the top, are of: the one role that has keys among them
/// which no other role has.
pub(crate) fn role_with<'a>(names: impl Iterator<Item = &'a str> + Clone) -> Option<NodeRole> {
    let has = |role: NodeRole, name: &str| keys::own(role).iter().any(|key| key.name == name);
    let mut found = NodeRole::ALL.into_iter().filter(|role| {
        names.clone().any(|name| {
            has(*role, name)
                && NodeRole::ALL.iter().all(|other| other == role || !has(*other, name))
        })
    });
    found.next().filter(|_| found.next().is_none())
}
