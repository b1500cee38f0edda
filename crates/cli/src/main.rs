//! `hypha`: one command for every role.

mod sim;
mod usage;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// One scheduler for scattered, unequal machines.
#[derive(Parser)]
#[command(name = "hypha", version = env!("HYPHA_VERSION"), propagate_version = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the scheduler in virtual time: compare strategies, check the guarantees under faults
    #[command(subcommand)]
    Sim(sim::Command),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Sim(command) => sim::run(command),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("hypha: {failure}");
            failure.exit_code()
        }
    }
}

/// The command line is checked by clap's own test: conflicting names and flags show here.
#[cfg(test)]
mod tests {
    use super::*;
    use crate::usage::Failure;
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
