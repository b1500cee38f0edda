//! One runtime for all roles: it connects configuration, certificates, network and telemetry, and runs until a signal
//! stops it. Each role has a module of its own.

mod channel;
mod clock;
mod crash;
mod data;
mod data_dir;
mod gateway;
mod hardware;
mod machine_loop;
mod network_client;
mod notary;
mod object;
mod runtime;
mod scheduler;
mod settings;
mod signals;
mod status;
mod worker;

pub use network_client::{NetworkClient, find_datasets, find_workers, probe};
pub use runtime::{NodeConfig, run};
pub use worker::{LAUNCHER_SUBCOMMAND, set_paused, worker_receipts};

/// Why a node did not start, or a query of the network failed.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The configuration is invalid: certificates, addresses.
    #[error("{0}")]
    Configuration(String),
    /// The configuration is valid, and the operation failed.
    #[error("{0}")]
    Failed(String),
}

impl NodeError {
    fn configuration(problem: impl std::fmt::Display) -> NodeError {
        NodeError::Configuration(problem.to_string())
    }

    fn failed(problem: impl std::fmt::Display) -> NodeError {
        NodeError::Failed(problem.to_string())
    }
}
