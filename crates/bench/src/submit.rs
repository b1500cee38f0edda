//! `hypha bench submit`: durable submits, next to a handler that only reads JSON.

use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use clap::Args;

use crate::histogram::RoundStatistics;
use crate::http::request;
use crate::lab::Lab;
use crate::load::{self, LoadResult, Target, Until};
use crate::noise::Meter;
use crate::report::{Goal, Report, Unit};
use crate::swarm::{Plan, Swarm};
use crate::{MAX_CONNECTIONS, MAX_ROUNDS, RunOptions, seconds};

#[derive(Args)]
pub(crate) struct Arguments {
    /// Connections, each with one request at a time
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=MAX_CONNECTIONS))]
    connections: u32,
    /// Seconds of each turn
    #[arg(long, default_value = "5", value_parser = seconds)]
    seconds: Duration,
    /// Turns of each
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=MAX_ROUNDS))]
    rounds: u32,
    #[command(flatten)]
    pub(crate) options: RunOptions,
}

/// Long enough for pages to be faulted in and code to be read from the disk.
const WARM_UP: Duration = Duration::from_millis(500);

/// Where tasks are submitted.
pub(crate) const PATH: &str = "/api/v1/tasks";

/// A small task, like most.
pub(crate) const TASK: &[u8] = br#"{"model":"echo","input":{"text":"hello","n":1}}"#;

/// Practically no limit, since no worker takes tasks from the queue.
pub(crate) const LONG_QUEUE: &str = "max_queue = 10000000";

pub(crate) async fn measure(arguments: &Arguments) -> anyhow::Result<Report> {
    let lab = Lab::new(arguments.options.dir.as_deref())?;
    let (_bare, addresses) = lab.server("bare", &["bare-server".into()])?;
    let plan = Plan { scheduler: LONG_QUEUE.into(), workers: Vec::new(), servers: 0 };
    let swarm = Swarm::start(&lab, &plan).await?;
    let task: Arc<[u8]> = request("POST", PATH, TASK).into();
    let bare = Target { name: "the reference", address: addresses[0], request: task.clone() };
    let submits = Target { name: "the scheduler", address: swarm.api, request: task };

    let connections = arguments.connections as usize;
    let mut accepted = 0;
    for target in [&bare, &submits] {
        let until = Until::Elapsed(WARM_UP.min(arguments.seconds));
        accepted = load::run(target, connections, until).await?.times.count();
    }
    let meter = Meter::start();
    let (mut of_bare, mut of_submits) = (Vec::new(), Vec::new());
    for _ in 0..arguments.rounds {
        let until = Until::Elapsed(arguments.seconds);
        of_bare.push(load::run(&bare, connections, until).await?);
        of_submits.push(load::run(&submits, connections, until).await?);
        accepted += of_submits.last().map_or(0, |done| done.times.count());
    }
    let noise = meter.and_then(|meter| meter.stop());
    let stored = crate::counts::ApiClient::connect(swarm.api).await?.counts().await?;
    ensure!(
        stored.counts.submitted == accepted && stored.tasks.open == accepted,
        "{accepted} tasks were acknowledged, and the scheduler has {}",
        stored.tasks.open
    );

    let mut report = Report::new("submit")
        .setting("connections", arguments.connections)
        .setting("seconds", arguments.seconds.as_secs_f64())
        .setting("rounds", arguments.rounds);
    let rates = |rounds: &[LoadResult]| RoundStatistics::of(rounds.iter().map(LoadResult::rate));
    let unit = Unit::PerSecond("requests/s");
    report.rounds("durable submits", rates(&of_submits), unit);
    report.rounds("bare POST handler", rates(&of_bare), unit);
    let ratios =
        of_submits.iter().zip(&of_bare).map(|(submits, bare)| submits.rate() / bare.rate());
    report.rounds("submits / bare", RoundStatistics::of(ratios), Unit::Ratio);
    report.goal(Goal::AtLeast(0.65));
    for part in [0.5, 0.99] {
        let times = |rounds: &[LoadResult]| {
            RoundStatistics::of(rounds.iter().map(|done| done.times.quantile_us(part)))
        };
        report.rounds(format!("submit p{}", part * 100.0), times(&of_submits), Unit::Micros);
    }
    report.measurement("acknowledged and stored", accepted as f64, Unit::Count);
    noise.into_iter().for_each(|noise| report.noise(noise));
    Ok(report)
}
