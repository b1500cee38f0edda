//! One runtime for all roles: it joins configuration, certificates, network and telemetry, and runs until told to
//! stop. What a role does beyond that is a file of its own.

mod channel;
mod clock;
mod crash;
mod data;
mod gateway;
mod hardware;
mod machine_loop;
mod network_client;
mod object;
mod runtime;
mod scheduler;
mod settings;
mod signals;
mod status;
mod worker;

pub use network_client::{NetworkClient, find_datasets, find_workers, probe};
pub use runtime::{NodeConfig, run};
pub use worker::LAUNCHER_SUBCOMMAND;

/// Why a node did not start, or a question could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// What it was told makes no sense: certificates, addresses.
    #[error("{0}")]
    Configuration(String),
    /// It was told well and could not do it.
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
