//! `hypha`: one command for every role.

mod certutil;
mod config;
mod init;
mod role;
mod scheduler;
mod sim;
mod tasks;
mod token;
mod up;
mod usage;
mod worker;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use hypha_model::NodeRole;

use usage::{Failure, print};

/// A scheduler allocates and frees small pieces by the million, on all threads: this allocator is faster at
/// it than the system's, and needs less memory for each.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// One scheduler for scattered, unequal machines.
#[derive(Parser)]
#[command(name = "hypha", version = env!("HYPHA_VERSION"), propagate_version = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measure the performance of this machine
    Bench(hypha_bench::Bench),
    /// Create, revoke and show the certificates that identify nodes
    #[command(subcommand)]
    Certutil(certutil::Command),
    /// Check a configuration file, or print what it may contain
    #[command(subcommand)]
    Config(config::Command),
    /// Run a data node, which serves data sets
    #[command(subcommand)]
    Data(role::Command),
    /// Run a gateway, through which nodes meet: relay, routing, gossip
    #[command(subcommand)]
    Gateway(role::Command),
    /// Run a scheduler, or list workers and data sets
    #[command(subcommand)]
    Scheduler(scheduler::Command),
    /// Run a worker, which offers the resources of this machine, or pause it
    #[command(subcommand)]
    Worker(worker::Command),
    /// Run the scheduler in virtual time: compare strategies, check the guarantees under faults
    #[command(subcommand)]
    Sim(sim::Command),
    #[command(flatten)]
    Tasks(tasks::Command),
    /// Run a whole network on this machine: gateway, scheduler and workers with built-in models
    Up(up::Up),
}

fn main() -> ExitCode {
    // Internal: a worker starts it to confine a task's program.
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().is_some_and(|first| first == hypha_node::LAUNCHER_SUBCOMMAND) {
        return hypha_executor::launcher::main(arguments);
    }
    let result = match Arguments::parse().command {
        Command::Bench(arguments) => bench(arguments),
        Command::Certutil(command) => certutil::run(command),
        Command::Config(command) => config::run(command),
        Command::Data(command) => role::run(NodeRole::Data, command),
        Command::Gateway(command) => role::run(NodeRole::Gateway, command),
        Command::Scheduler(command) => scheduler::run(command),
        Command::Worker(command) => worker::run(command),
        Command::Sim(command) => sim::run(command),
        Command::Tasks(command) => tasks::run(command),
        Command::Up(arguments) => up::run(arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("hypha: {failure}");
            failure.exit_code()
        }
    }
}

/// Measures, and prints the report.
fn bench(arguments: hypha_bench::Bench) -> Result<(), Failure> {
    let report =
        hypha_bench::run(arguments).map_err(|error| Failure::work(format!("{error:#}")))?;
    print(&report)
}

/// Clap's own check of the command line: it finds conflicting names and flags.
#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn a_usage_error_is_not_a_failure_of_the_work() {
        assert_ne!(Failure::usage("x").exit_code(), Failure::work("x").exit_code());
    }
}
