//! The configurations of gateways and data nodes, and what all roles have in common.

use std::path::PathBuf;
use std::time::Duration;

use hypha_model::{Name, NodeRole};

use crate::diagnostic::Diagnostic;
use crate::network::NetworkConfig;
use crate::observe::ObserveConfig;
use crate::parse;
use crate::reader::Reader;
use crate::scheduler::SchedulerConfig;
use crate::sealed::Build;
use crate::sourced_value::SourcedValue;
use crate::worker::WorkerConfig;
use crate::{RoleConfig, keys};

/// A gateway's configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct GatewayConfig {
    /// Certificates and addresses.
    pub network: NetworkConfig,
    /// Logs, metrics and traces.
    pub observe: ObserveConfig,
    /// Its limits as a relay.
    pub relay: RelayLimits,
}

/// What a gateway relays for nodes that cannot be reached directly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelayLimits {
    /// Reservations in total.
    pub max_reservations: u32,
    /// Reservations of one node.
    pub max_reservations_per_peer: u32,
    /// Relayed connections in total.
    pub max_circuits: u32,
    /// Relayed connections of one node.
    pub max_circuits_per_peer: u32,
    /// How long a reservation lasts unless it is renewed.
    pub reservation_duration: Duration,
    /// How long a relayed connection lasts.
    pub max_circuit_duration: Duration,
    /// How many bytes a relayed connection carries.
    pub max_circuit_bytes: u64,
}

/// A data node's configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct DataConfig {
    /// Certificates and addresses.
    pub network: NetworkConfig,
    /// Logs, metrics and traces.
    pub observe: ObserveConfig,
    /// The time to live of its records.
    pub record_ttl: Duration,
    /// What it serves.
    pub datasets: Vec<Dataset>,
}

/// One data set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dataset {
    /// The name by which jobs request it.
    pub name: Name,
    /// Its file or directory.
    pub path: PathBuf,
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
        let count = |name| relay.get(name, count);
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

/// The table's bounds were checked before.
pub(crate) fn seconds(given: &SourcedValue) -> Result<Duration, parse::Problem> {
    parse::seconds(given, Duration::ZERO, Duration::MAX)
}

/// Likewise.
pub(crate) fn count(given: &SourcedValue) -> Result<u32, parse::Problem> {
    parse::count(given, 0, u32::MAX)
}

/// Likewise.
pub(crate) fn size(given: &SourcedValue) -> Result<u64, parse::Problem> {
    parse::size(given, 0, u64::MAX)
}

/// The role that the top-level keys `names` belong to: the one role that has keys among them which no other
/// role has.
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
