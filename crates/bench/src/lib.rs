//! `hypha bench`: what this machine can do.
//!
//! Everything that is measured is a process of its own, as in earnest; the load comes from this one. Contestants
//! take turns within a run, so that a figure can be given as a part of its reference's.

mod bare;
mod batch;
mod counts;
mod cycle;
mod fake;
mod histogram;
mod http;
mod lab;
mod latency;
mod load;
mod net;
mod nginx;
mod noise;
mod openai;
mod queue;
mod report;
mod stream;
mod submit;
mod swarm;

use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, Subcommand};
use tokio::signal::unix::{SignalKind, signal};

use report::Report;

/// Measure what this machine can do
#[derive(Args)]
pub struct Bench {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measure bulk transfer between two processes on this machine, next to a plain copy over TCP and TLS
    Net(net::Arguments),
    /// The other process of `net`
    #[command(hide = true)]
    NetPeer,
    /// Measure durable submits, next to a bare POST handler
    Submit(submit::Arguments),
    /// Measure tasks from submission to their durable results, with workers as processes of their own
    Cycle(cycle::Arguments),
    /// Measure one task alone, from submission to its result
    Latency(latency::Arguments),
    /// Measure the OpenAI route in front of fast fake back ends, next to the back ends themselves and nginx
    Openai(openai::Arguments),
    /// Measure a long queue: memory, submit rate, restart
    Queue(queue::Arguments),
    /// The bare POST handler of `submit` and `latency`
    #[command(hide = true)]
    BareServer,
    /// The back ends of `openai`
    #[command(hide = true)]
    FakeBackends(fake::Backends),
    /// A relay that does as little as can be done, for `openai`
    #[command(hide = true)]
    FakeRelay(fake::Relay),
}

/// What every measurement with nodes takes.
#[derive(Args)]
struct RunOptions {
    /// Where the nodes' files go while it runs; the system's directory for temporary files if not given. What is
    /// durable there should be on a disk
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Measures, and returns the report to be printed. The servers among the commands serve until their input ends, and
/// have none.
pub fn run(bench: Bench) -> anyhow::Result<String> {
    match bench.command {
        Command::Net(arguments) => net::run(&arguments),
        Command::NetPeer => net::peer().map(|()| String::new()),
        Command::Submit(arguments) => show(&arguments.options, submit::measure(&arguments)),
        Command::Cycle(arguments) => show(&arguments.options, cycle::measure(&arguments)),
        Command::Latency(arguments) => show(&arguments.options, latency::measure(&arguments)),
        Command::Openai(arguments) => show(&arguments.options, openai::measure(&arguments)),
        Command::Queue(arguments) => show(&arguments.options, queue::measure(&arguments)),
        Command::BareServer => bare::serve().map(|()| String::new()),
        Command::FakeBackends(backends) => fake::serve_backends(&backends).map(|()| String::new()),
        Command::FakeRelay(relay) => fake::serve_relay(relay).map(|()| String::new()),
    }
}

/// Measures. When a signal comes first, what was started and written is cleaned up all the same.
fn show(
    options: &RunOptions,
    measure: impl Future<Output = anyhow::Result<Report>>,
) -> anyhow::Result<String> {
    let work = async {
        let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for signals")?;
        let mut terminate = signal(SignalKind::terminate()).context("cannot listen for signals")?;
        tokio::select! {
            report = measure => report,
            _ = interrupt.recv() => anyhow::bail!("interrupted"),
            _ = terminate.recv() => anyhow::bail!("terminated"),
        }
    };
    // One thread: it shares the machine with what it measures.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let report = runtime.context("cannot start")?.block_on(work)?;
    Ok(match options.json {
        true => format!("{:#}\n", report.json()),
        false => report.text(),
    })
}

/// A time to measure for.
fn seconds(text: &str) -> Result<std::time::Duration, String> {
    let expected = || format!("expected seconds, above 0 and at most {MAX_SECONDS}");
    let seconds: f64 = text.parse().map_err(|_| expected())?;
    match seconds > 0.0 && seconds <= MAX_SECONDS {
        true => Ok(std::time::Duration::from_secs_f64(seconds)),
        false => Err(expected()),
    }
}

/// An hour for one contestant's turn is a slip.
const MAX_SECONDS: f64 = 3_600.0;

/// More connections than a process may have files by default.
const MAX_CONNECTIONS: i64 = 1_000;

/// More turns tell nothing new.
const MAX_ROUNDS: i64 = 1_000;
