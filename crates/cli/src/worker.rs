//! Commands that only `hypha worker` has: its owner pauses and resumes it.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use hypha_config::WorkerConfig;
use hypha_model::NodeRole;

use crate::role::{self, ConfigArguments};
use crate::usage::{Failure, print};

#[derive(Subcommand)]
pub(crate) enum Command {
    #[command(flatten)]
    Node(role::Command),
    /// Let the worker of this machine take no new tasks; those that run go on. Holds over restarts
    Pause(Owner),
    /// Let the worker of this machine take tasks again
    Resume(Owner),
}

#[derive(Args)]
pub(crate) struct Owner {
    /// The worker's configuration file, for its `data_dir`
    #[arg(short, long, value_name = "FILE")]
    config: PathBuf,
}

pub(crate) fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Node(command) => role::run(NodeRole::Worker, command),
        Command::Pause(owner) => set_paused(owner, true),
        Command::Resume(owner) => set_paused(owner, false),
    }
}

fn set_paused(owner: Owner, is_paused: bool) -> Result<(), Failure> {
    let config: WorkerConfig = ConfigArguments::of(owner.config).load()?;
    let is_change = hypha_node::set_paused(&config.data_dir, is_paused).map_err(|error| {
        let data_dir = config.data_dir.display();
        Failure::work(format!("cannot change data_dir {data_dir}: {error}"))
    })?;
    print(match (is_paused, is_change) {
        (true, true) => {
            "paused: the worker takes no new tasks, and those that run go on; `hypha worker resume` ends this\n"
        }
        (true, false) => "the worker is paused already; `hypha worker resume` ends this\n",
        (false, true) => "resumed: the worker takes tasks again\n",
        (false, false) => "the worker is not paused\n",
    })
}
