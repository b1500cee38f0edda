//! `hypha bench`: measures the performance of this machine.
//!
//! Everything that is measured runs in processes of its own, as in production; this process generates the load. Targets
//! and references alternate within a run, so that a figure can be given relative to its reference.

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

/// Measure the performance of this machine
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
    /// A minimal relay, for `openai`
    #[command(hide = true)]
    FakeRelay(fake::Relay),
}

/// Options of all measurements that start nodes.
#[derive(Args)]
struct RunOptions {
    /// Directory for the nodes' files during the run; the system's directory for temporary files if not given. Choose
    /// a directory on a disk, not in memory, for realistic durable writes
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Measures, and returns the report to be printed. Commands that are servers run until their standard input ends, and
/// have no report.
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

/// Measures. A signal interrupts it; processes and files are cleaned up in that case, too.
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
    // One thread: it shares the machine with the processes that it measures.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let report = runtime.context("cannot start")?.block_on(work)?;
    Ok(match options.json {
        true => format!("{:#}\n", report.json()),
        false => report.text(),
    })
}

/// The duration of a measurement.
fn seconds(text: &str) -> Result<std::time::Duration, String> {
    let expected = || format!("expected seconds, above 0 and at most {MAX_SECONDS}");
    let seconds: f64 = text.parse().map_err(|_| expected())?;
    match seconds > 0.0 && seconds <= MAX_SECONDS {
        true => Ok(std::time::Duration::from_secs_f64(seconds)),
        false => Err(expected()),
    }
}

/// More than an hour for one turn is a mistake.
const MAX_SECONDS: f64 = 3_600.0;

/// Above this a process would reach the default limit of open files.
const MAX_CONNECTIONS: i64 = 1_000;

/// Further turns add no information.
const MAX_ROUNDS: i64 = 1_000;
