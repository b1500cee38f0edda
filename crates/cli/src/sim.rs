//! `hypha sim`: the machines in virtual time.

mod check;
mod compare;
mod inputs;
mod market;
mod predict;

use clap::Subcommand;

use crate::usage::Failure;

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Compare strategies on a workload: latency, utilisation, fairness, distance to an oracle and a bound
    Compare(compare::Arguments),
    /// Run many small worlds with faults of every kind, and check every promise after every step
    Check(check::Arguments),
    /// Run worlds of schedulers that compete for gangs of workers, with every fault, or measure the market
    Market(market::Arguments),
    /// Measure how well run times are predicted, and whether the stated intervals hold
    Predict(predict::Arguments),
}

pub(crate) fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Compare(arguments) => compare::run(&arguments),
        Command::Check(arguments) => check::run(&arguments),
        Command::Market(arguments) => market::run(&arguments),
        Command::Predict(arguments) => predict::run(&arguments),
    }
}
