//! `hypha bench cycle`: tasks from submission to their durable results, with workers as processes of their own.

use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use clap::Args;
use hypha_placement::Strategy;
use serde::Deserialize;

use crate::batch::{AcknowledgedBatch, Batches, Task};
use crate::counts::ApiClient;
use crate::histogram::RoundStatistics;
use crate::lab::Lab;
use crate::noise::Meter;
use crate::report::{Goal, Report, Unit};
use crate::submit::{LONG_QUEUE, PATH};
use crate::swarm::{Plan, Swarm, echo};
use crate::{MAX_ROUNDS, RunOptions};

#[derive(Args)]
pub(crate) struct Arguments {
    /// Tasks
    #[arg(long, default_value_t = 200_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    tasks: u64,
    /// Tasks in one request
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    batch: u64,
    /// Connections that submit
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=100))]
    connections: u32,
    /// Workers
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    workers: u32,
    /// Tasks that a worker runs at once
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    concurrency: u32,
    /// The strategy that chooses workers
    #[arg(long, default_value = "predictive", value_parser = strategy)]
    strategy: Strategy,
    /// Turns of the strategy, and of `fifo` for comparison
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=MAX_ROUNDS))]
    rounds: u32,
    #[command(flatten)]
    pub(crate) options: RunOptions,
}

fn strategy(text: &str) -> Result<Strategy, String> {
    text.parse().map_err(|error: hypha_placement::StrategyError| error.to_string())
}

/// How often the scheduler's progress is polled: often enough for the figure, seldom enough to cost nothing.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// How often it is polled at the end, when only the last commit is pending.
const FINAL_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The measurement fails if no task ends for this long.
const STALL_TIMEOUT: Duration = Duration::from_secs(30);

/// The reference of other strategies: the simplest one.
const REFERENCE: Strategy = Strategy::Fifo;

/// One turn of a strategy.
struct Turn {
    elapsed: Duration,
    submitted: Duration,
    checked: usize,
}

pub(crate) async fn measure(arguments: &Arguments) -> anyhow::Result<Report> {
    let compared = arguments.strategy.name() != REFERENCE.name();
    let (mut turns, mut references) = (Vec::new(), Vec::new());
    let meter = Meter::start();
    for _ in 0..arguments.rounds {
        turns.push(turn(arguments, arguments.strategy).await?);
        if compared {
            references.push(turn(arguments, REFERENCE).await?);
        }
    }
    let noise = meter.and_then(|meter| meter.stop());

    let mut report = Report::new("cycle")
        .setting("tasks", arguments.tasks)
        .setting("batch", arguments.batch)
        .setting("connections", arguments.connections)
        .setting("workers", arguments.workers)
        .setting("concurrency", arguments.concurrency)
        .setting("strategy", arguments.strategy.name())
        .setting("rounds", arguments.rounds);
    let tasks = arguments.tasks as f64;
    let unit = Unit::PerSecond("tasks/s");
    let rate = |turn: &Turn| tasks / turn.elapsed.as_secs_f64();
    report.rounds("full cycle", RoundStatistics::of(turns.iter().map(rate)), unit);
    report.goal(Goal::AtLeast(15_000.0));
    if compared {
        let (name, reference) = (arguments.strategy.name(), REFERENCE.name());
        let rates = RoundStatistics::of(references.iter().map(rate));
        report.rounds(format!("full cycle, {reference}"), rates, unit);
        let ratios = turns.iter().zip(&references).map(|(turn, other)| rate(turn) / rate(other));
        report.rounds(format!("{name} / {reference}"), RoundStatistics::of(ratios), Unit::Ratio);
        report.goal(Goal::AtLeast(0.8));
    }
    let submitted = turns.iter().map(|turn| tasks / turn.submitted.as_secs_f64());
    report.rounds("submitted meanwhile", RoundStatistics::of(submitted), unit);
    let elapsed = turns.iter().map(|turn| turn.elapsed.as_secs_f64());
    let name = "from the first submit to the last result";
    report.rounds(name, RoundStatistics::of(elapsed), Unit::Seconds);
    let all = || turns.iter().chain(&references);
    report.measurement("completed", tasks * all().count() as f64, Unit::Count);
    let checked: usize = all().map(|turn| turn.checked).sum();
    report.measurement("results compared with their inputs", checked as f64, Unit::Count);
    noise.into_iter().for_each(|noise| report.noise(noise));
    Ok(report)
}

/// Runs one turn with nodes of its own, which have no tasks of another turn in their files and have not learned from
/// them.
async fn turn(arguments: &Arguments, strategy: Strategy) -> anyhow::Result<Turn> {
    let lab = Lab::new(arguments.options.dir.as_deref())?;
    let workers = vec![echo(arguments.concurrency); arguments.workers as usize];
    let strategy = format!("selection_algorithm = \"{}\"\n{LONG_QUEUE}", strategy.name());
    let swarm = Swarm::start(&lab, &Plan { scheduler: strategy, workers, servers: 0 }).await?;
    let batches = Batches {
        api: swarm.api,
        model: "echo",
        tasks: arguments.tasks,
        batch: arguments.batch,
        connections: arguments.connections as usize,
    };
    let mut client = ApiClient::connect(swarm.api).await?;
    let began = Instant::now();
    let (sent, ()) = tokio::try_join!(batches.submit(), all_ended(&mut client, arguments.tasks))?;
    let elapsed = began.elapsed();
    let submitted = sent.last().map_or(elapsed, |sent| sent.at - began);
    let checked = check(&mut client, &sent, arguments.tasks).await?;
    Ok(Turn { elapsed, submitted, checked })
}

/// Waits until so many tasks have ended durably.
async fn all_ended(client: &mut ApiClient, tasks: u64) -> anyhow::Result<()> {
    let (mut ended, mut moved) = (0, Instant::now());
    let mut durable = 0;
    while durable < tasks {
        let pause = if ended < tasks { POLL_INTERVAL } else { FINAL_POLL_INTERVAL };
        tokio::time::sleep(pause).await;
        if ended == tasks {
            durable = client.durably_completed().await?;
        } else {
            let counts = client.counts().await?.counts;
            if counts.failed > 0 {
                bail!("{} tasks have failed, {}", counts.failed, one_failure(client).await?);
            }
            if counts.completed > ended {
                (ended, moved) = (counts.completed, Instant::now());
            }
        }
        ensure!(
            moved.elapsed() < STALL_TIMEOUT,
            "{ended} of {tasks} tasks have ended, {durable} durably, and none for {STALL_TIMEOUT:?}"
        );
    }
    Ok(())
}

/// Why one of the failed tasks has failed, if that is stored already.
async fn one_failure(client: &mut ApiClient) -> anyhow::Result<String> {
    let page: Page = client.get(&format!("{PATH}?status=failed&limit=1")).await?;
    let failed = page.tasks.first();
    Ok(failed.map_or("none durably yet".into(), |task| format!("one because of {}", task.error)))
}

#[derive(Deserialize)]
struct Page {
    tasks: Vec<Task>,
    next: Option<String>,
}

/// Checks that every task is stored as completed, once, and that a sample of them has the right result.
async fn check(
    client: &mut ApiClient,
    sent: &[AcknowledgedBatch],
    tasks: u64,
) -> anyhow::Result<usize> {
    let counts = client.counts().await?;
    ensure!(counts.tasks.open == 0, "{} tasks are still open", counts.tasks.open);
    let mut checked = 0;
    for sent in sent {
        for (number, id) in sent.some_ids()? {
            let task: Task = client.get(&format!("{PATH}/{id}")).await?;
            ensure!(
                task.status == "completed" && task.result == number,
                "the task {id} is {} with the result {}, not {number}",
                task.status,
                task.result
            );
            checked += 1;
        }
    }
    let mut ids = std::collections::HashSet::new();
    let mut cursor = String::new();
    loop {
        let path = format!("{PATH}?status=completed&limit=1000{cursor}");
        let page: Page = client.get(&path).await?;
        ids.extend(page.tasks.into_iter().map(|task| task.id));
        match page.next {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    ensure!(ids.len() as u64 == tasks, "{} tasks are stored as completed, not {tasks}", ids.len());
    Ok(checked)
}
