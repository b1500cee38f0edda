//! `hypha bench queue`: the cost of a long queue in memory, submit rate and restart time, and the memory that remains
//! when the tasks are done.

use std::time::{Duration, Instant};

use anyhow::ensure;
use clap::Args;

use crate::RunOptions;
use crate::batch::{AcknowledgedBatch, Batches};
use crate::counts::{self, ApiClient};
use crate::lab::Lab;
use crate::noise::Meter;
use crate::report::{Goal, Report, Unit};
use crate::submit::LONG_QUEUE;
use crate::swarm::{Plan, Swarm, echo};

#[derive(Args)]
pub(crate) struct Arguments {
    /// Tasks, for which there is no worker until all are queued
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(100..=10_000_000))]
    tasks: u64,
    /// Tasks in one request
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    batch: u64,
    /// Connections that submit
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=100))]
    connections: u32,
    #[command(flatten)]
    pub(crate) options: RunOptions,
}

/// The share of the tasks whose rate is compared, at the beginning and at the end.
const PART: f64 = 0.05;

/// The maximum duration of a restart, and the maximum time without any task ending.
const STALL_TIMEOUT: Duration = Duration::from_secs(300);

/// Tasks that the worker runs at once.
const CONCURRENCY: u32 = 256;

/// How often the memory is read when the tasks are done, and how many times at most until it is stable.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
const MAX_MEMORY_SAMPLES: u32 = 30;
/// The memory is stable after so many readings in a row that fell by less than a hundredth.
const STABLE_SAMPLES: u32 = 5;

pub(crate) async fn measure(arguments: &Arguments) -> anyhow::Result<Report> {
    let lab = Lab::new(arguments.options.dir.as_deref())?;
    let plan = Plan { scheduler: LONG_QUEUE.into(), workers: vec![echo(CONCURRENCY)], servers: 0 };
    let mut swarm = Swarm::start_without_workers(&lab, &plan).await?;
    let empty = swarm.scheduler.memory_bytes()?;
    let batches = Batches {
        api: swarm.api,
        model: "echo",
        tasks: arguments.tasks,
        batch: arguments.batch,
        connections: arguments.connections as usize,
    };
    let meter = Meter::start();
    let began = Instant::now();
    let sent = batches.submit().await?;
    let noise = meter.and_then(|meter| meter.stop());
    let full = swarm.scheduler.memory_bytes()?;
    let first_peak = swarm.scheduler.peak_memory_bytes()?;
    let counts = ApiClient::connect(swarm.api).await?.counts().await?;
    let tasks = arguments.tasks;
    ensure!(
        counts.tasks.open == tasks,
        "{} tasks are in the queue, not {tasks}",
        counts.tasks.open
    );

    swarm.scheduler.kill();
    let killed = Instant::now();
    swarm.restart_scheduler()?;
    let wanted = |counts: &counts::Counts| counts.tasks.open == tasks;
    let what = format!("ready with {tasks} tasks");
    counts::wait_until(swarm.api, &mut swarm.scheduler, STALL_TIMEOUT, &what, wanted).await?;
    let restart = killed.elapsed();
    let again = swarm.scheduler.memory_bytes()?;

    let started = Instant::now();
    swarm.start_workers(&plan).await?;
    all_done(&mut swarm).await?;
    let done = started.elapsed();
    let after = settled_memory(&swarm).await?;
    let peak = first_peak.max(swarm.scheduler.peak_memory_bytes()?);

    let (first, last) = rates(began, &sent, tasks);
    let mut report = Report::new("queue")
        .setting("tasks", tasks)
        .setting("batch", arguments.batch)
        .setting("connections", arguments.connections);
    let unit = Unit::PerSecond("tasks/s");
    let megabytes = |bytes: u64| bytes as f64 / 1e6;
    report.measurement("queued", tasks as f64, Unit::Count);
    report.measurement("memory of the scheduler", megabytes(full), Unit::Megabytes);
    report.goal(Goal::Below(1_000.0));
    report.measurement("submit rate, first 5 %", first, unit);
    report.measurement("submit rate, last 5 %", last, unit);
    report.measurement("last / first", last / first, Unit::Ratio);
    report.goal(Goal::AtLeast(0.5));
    report.measurement("restart after kill -9", restart.as_secs_f64(), Unit::Seconds);
    report.goal(Goal::Below(10.0));
    report.measurement("memory after the restart", megabytes(again), Unit::Megabytes);
    report.measurement("all done by a worker in", done.as_secs_f64(), Unit::Seconds);
    report.measurement("memory, idle", megabytes(empty), Unit::Megabytes);
    report.measurement("memory, peak", megabytes(peak), Unit::Megabytes);
    report.measurement("memory, after", megabytes(after), Unit::Megabytes);
    report.measurement("memory, after / idle", after as f64 / empty as f64, Unit::Ratio);
    report.goal(Goal::Below(2.0));
    noise.into_iter().for_each(|noise| report.noise(noise));
    Ok(report)
}

/// Waits until no task is open.
async fn all_done(swarm: &mut Swarm<'_>) -> anyhow::Result<()> {
    let mut client = ApiClient::connect(swarm.api).await?;
    let (mut open, mut moved) = (u64::MAX, Instant::now());
    while open > 0 {
        tokio::time::sleep(POLL_INTERVAL).await;
        swarm.scheduler.check()?;
        let now = client.counts().await?.tasks.open;
        if now < open {
            (open, moved) = (now, Instant::now());
        }
        ensure!(
            moved.elapsed() < STALL_TIMEOUT,
            "{open} tasks are open, and none ended for {STALL_TIMEOUT:?}"
        );
    }
    Ok(())
}

/// The memory of the scheduler once it is stable: freed memory is returned to the system with a delay.
async fn settled_memory(swarm: &Swarm<'_>) -> anyhow::Result<u64> {
    let (mut last, mut equal) = (swarm.scheduler.memory_bytes()?, 0);
    for _ in 0..MAX_MEMORY_SAMPLES {
        tokio::time::sleep(POLL_INTERVAL).await;
        let now = swarm.scheduler.memory_bytes()?;
        equal = if now < last - last / 100 { 0 } else { equal + 1 };
        last = now;
        if equal >= STABLE_SAMPLES {
            break;
        }
    }
    Ok(last)
}

/// Tasks a second over the first and the last part of all, by when batches were acknowledged.
fn rates(began: Instant, sent: &[AcknowledgedBatch], tasks: u64) -> (f64, f64) {
    let part = (tasks as f64 * PART).ceil() as u64;
    let mut seen = 0;
    let first = sent.iter().find(|sent| {
        seen += sent.tasks;
        seen >= part
    });
    let first = first.map_or(f64::NAN, |sent| seen as f64 / (sent.at - began).as_secs_f64());
    let Some(end) = sent.last() else { return (first, f64::NAN) };
    let mut seen = 0;
    for sent in sent.iter().rev() {
        if seen >= part {
            return (first, seen as f64 / (end.at - sent.at).as_secs_f64());
        }
        seen += sent.tasks;
    }
    // The share covers all batches.
    (first, seen as f64 / (end.at - began).as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_and_last_rates_are_compared() {
        let began = Instant::now();
        // Ten batches: each takes a second, the last one two.
        let at = |number: u64| began + Duration::from_secs(number + u64::from(number == 10));
        let sent: Vec<AcknowledgedBatch> =
            (1..=10).map(|number| AcknowledgedBatch::at(at(number), 10)).collect();
        // Five percent of the tasks are one batch.
        let (first, last) = rates(began, &sent, 200);
        assert_eq!((first, last), (10.0, 5.0));
        assert_eq!(rates(began, &sent[..1], 10), (10.0, 10.0));
        assert!(rates(began, &[], 0).1.is_nan());
    }
}
