//! Commands for a running scheduler: submit, list, cancel and explain tasks, jobs, the market, drain and readmit workers.

mod batch;
mod cancel;
mod connection;
mod drain;
mod explain;
mod follow;
mod job_file;
mod jobs;
mod list;
mod market;
mod pieces;
mod result;
mod roster;
mod show;
mod submit;
pub(crate) mod text;
mod waiting;
mod workers;

use clap::Subcommand;

use crate::usage::Failure;

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Submit a task, or a file of them, to a running scheduler
    Submit(Box<submit::Submit>),
    /// List the tasks of a running scheduler, or show one
    Tasks(list::Tasks),
    /// Cancel tasks
    Cancel(cancel::Cancel),
    /// Submit, show or cancel a job: work of several workers at once
    #[command(subcommand)]
    Job(jobs::JobCommand),
    /// List the jobs of a running scheduler
    Jobs(jobs::Jobs),
    /// Watch adverts, offers and leases, or show what was paid
    #[command(subcommand)]
    Market(market::MarketCommand),
    /// List the workers that a running scheduler has
    Workers(workers::Workers),
    /// Drain workers: they get no new tasks, and are removed when their tasks have ended
    Drain(drain::WorkerSelection),
    /// Readmit workers that were drained
    Readmit(drain::WorkerSelection),
    /// Explain why a task is on its worker, or why it waits
    Explain(explain::Explain),
}

pub(crate) fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Submit(submit) => submit::run(&submit),
        Command::Tasks(tasks) => list::run(&tasks),
        Command::Cancel(cancel) => cancel::run(&cancel),
        Command::Job(command) => jobs::run(&command),
        Command::Jobs(jobs) => jobs::list(&jobs),
        Command::Market(command) => market::run(&command),
        Command::Workers(workers) => workers::run(&workers),
        Command::Drain(which) => drain::run(&which, drain::DrainAction::Drain),
        Command::Readmit(which) => drain::run(&which, drain::DrainAction::Readmit),
        Command::Explain(explain) => explain::run(&explain),
    }
}
