//! `hypha bench latency`: one task at a time, from submission to its result.

use std::fs::File;
use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::Args;
use serde_json::Value;

use crate::RunOptions;
use crate::histogram::Histogram;
use crate::http::{HttpConnection, request};
use crate::lab::Lab;
use crate::load::{self, Target, Until};
use crate::noise::Meter;
use crate::report::{Goal, Report, Unit};
use crate::submit::{PATH, TASK};
use crate::swarm::{Plan, Swarm, echo};

#[derive(Args)]
pub(crate) struct Arguments {
    /// Tasks, one after the other
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    rounds: u64,
    /// Workers
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    workers: u32,
    #[command(flatten)]
    pub(crate) options: RunOptions,
}

/// The maximum number of tasks before the measured ones: the predictor has learned by then.
const WARM_UP: u64 = 100;

/// Synced writes that measure the latency of the disk.
const SYNCS: u64 = 200;

/// Turns of tasks and writes: they alternate, so that other load on the machine affects both equally.
const TURNS: u64 = 20;

/// A page: the size of a small transaction.
const PAGE: [u8; 4_096] = [0x5a; 4_096];

pub(crate) async fn measure(arguments: &Arguments) -> anyhow::Result<Report> {
    let lab = Lab::new(arguments.options.dir.as_deref())?;
    let (_bare, addresses) = lab.server("bare", &["bare-server".into()])?;
    let workers = vec![echo(16); arguments.workers as usize];
    let plan = Plan { scheduler: String::new(), workers, servers: 0 };
    let swarm = Swarm::start(&lab, &plan).await?;
    let waiting = |path: &str| request("POST", path, TASK).into();
    let path = format!("{PATH}?wait=60");
    let alone = Target { name: "the scheduler", address: swarm.api, request: waiting(&path) };
    let bare = Target { name: "the bare handler", address: addresses[0], request: waiting(PATH) };

    let warm_up = Until::Count(arguments.rounds.min(WARM_UP));
    load::run(&alone, 1, warm_up).await?;
    load::run(&bare, 1, warm_up).await?;
    check(&alone).await?;
    let meter = Meter::start();
    let (mut of_tasks, mut of_syncs) = (Histogram::default(), Histogram::default());
    let mut file = File::create(lab.path("synced")).context("cannot write a file")?;
    let (turns, pages) = (TURNS.min(arguments.rounds), arguments.rounds.min(SYNCS));
    for turn in 0..turns {
        let part = |all: u64| all * (turn + 1) / turns - all * turn / turns;
        let until = Until::Count(part(arguments.rounds));
        of_tasks.merge(&load::run(&alone, 1, until).await?.times);
        sync(&mut file, part(pages), &mut of_syncs)?;
    }
    let noise = meter.and_then(|meter| meter.stop());
    let (alone, syncs) = (of_tasks, of_syncs);
    let bare = load::run(&bare, 1, Until::Count(arguments.rounds)).await?.times;

    let mut report = Report::new("latency")
        .setting("rounds", arguments.rounds)
        .setting("workers", arguments.workers);
    report.measurement("submit to result, p50", alone.quantile_us(0.5), Unit::Micros);
    report.goal(Goal::Below(2_000.0));
    report.measurement("submit to result, p90", alone.quantile_us(0.9), Unit::Micros);
    report.measurement("submit to result, p99", alone.quantile_us(0.99), Unit::Micros);
    report.measurement("bare POST handler, p50", bare.quantile_us(0.5), Unit::Micros);
    report.measurement("a page synced to the disk, p50", syncs.quantile_us(0.5), Unit::Micros);
    report.measurement(
        "submit to result / synced page",
        alone.quantile_us(0.5) / syncs.quantile_us(0.5),
        Unit::Ratio,
    );
    report.goal(Goal::Below(4.0));
    noise.into_iter().for_each(|noise| report.noise(noise));
    Ok(report)
}

/// Checks that the response contains the result.
async fn check(target: &Target) -> anyhow::Result<()> {
    let mut connection = HttpConnection::connect(target.address).await?;
    let request = Arc::clone(&target.request);
    let response = connection.exchange(&request).await?;
    let task: Value = serde_json::from_slice(connection.body(&response)).context("not a task")?;
    let sent: Value = serde_json::from_slice(TASK)?;
    ensure!(
        task["status"] == "completed" && task["result"] == sent["input"],
        "the result of a task is not its input: {task}"
    );
    Ok(())
}

/// Measures how long the disk takes to make a page durable.
fn sync(file: &mut File, count: u64, times: &mut Histogram) -> anyhow::Result<()> {
    for _ in 0..count {
        let began = Instant::now();
        file.write_all(&PAGE).and_then(|()| file.sync_data()).context("cannot write a file")?;
        times.add(began.elapsed().max(Duration::from_nanos(1)));
    }
    Ok(())
}
