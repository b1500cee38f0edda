//! `hypha sim market`: competing schedulers, over many seeds or measured.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use clap::ValueEnum;
use hypha_model::Span;
use hypha_sim::check::SeedOutcome;
use hypha_sim::market::figures::{self, Leasing};
use hypha_sim::market::{self, plain::PlainMarket};
use hypha_sim::scenario::FaultKind;
use hypha_sim::scenario::market::MarketScope;

use crate::usage::{Failure, print};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Measure this instead of checking seeds
    #[arg(value_enum)]
    measure: Option<Measure>,
    /// How many worlds
    #[arg(long, default_value_t = 200)]
    seeds: u64,
    /// The first seed
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Workers in each world
    #[arg(long, default_value_t = 50)]
    workers: usize,
    /// Schedulers in each world
    #[arg(long, default_value_t = 5)]
    schedulers: usize,
    /// Jobs in each world; 25 if seeds are checked, 200 for utilisation
    #[arg(long)]
    jobs: Option<usize>,
    /// How long offers are collected, in milliseconds, if the market is measured
    #[arg(long, default_value_t = 500)]
    window_ms: u64,
    /// Fault kinds to leave out, separated by commas
    #[arg(long, value_delimiter = ',', value_name = "KIND")]
    without: Vec<String>,
    /// Run this one seed and print everything that happens
    #[arg(long, value_name = "SEED")]
    replay: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Measure {
    /// Utilisation against a central packer that knows all run times
    Utilisation,
    /// The time from advert to lease with 1,000 workers and links of 50 ms
    Latency,
    /// What gossip costs with 100, 1,000 and 10,000 workers
    Mesh,
}

/// The checkers examine everything after every step, so worlds are small.
const MAX_NODES: usize = 10_000;
/// The links of the measurements of latency and mesh.
const LINK: Span = Span::from_millis(50);

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    for (flag, given) in [
        ("--workers", arguments.workers),
        ("--schedulers", arguments.schedulers),
        ("--jobs", arguments.jobs.unwrap_or(1)),
    ] {
        if !(1..=MAX_NODES).contains(&given) {
            return Err(Failure::usage(format!("{flag}: use a number from 1 to {MAX_NODES}")));
        }
    }
    if !(50..=30_000).contains(&arguments.window_ms) {
        return Err(Failure::usage("--window-ms: use a number from 50 to 30000"));
    }
    match arguments.measure {
        Some(Measure::Utilisation) => utilisation(arguments),
        Some(Measure::Latency) => latency(arguments),
        Some(Measure::Mesh) => mesh(arguments),
        None => check(arguments),
    }
}

fn check(arguments: &Arguments) -> Result<(), Failure> {
    let without: Result<Vec<FaultKind>, _> = arguments.without.iter().map(|t| t.parse()).collect();
    let scope = MarketScope {
        workers: arguments.workers,
        schedulers: arguments.schedulers,
        jobs: arguments.jobs.unwrap_or(25),
        without: without.map_err(Failure::usage)?,
        mutant: None,
    };
    if let Some(seed) = arguments.replay {
        let (outcome, _, log) = market::run_counted(seed, &scope, true);
        print(&format!("{}\n", log.join("\n")))?;
        return match outcome.violation {
            Some(violation) => Err(Failure::work(format!("seed {seed}: {violation}"))),
            None => print(&format!("seed {seed}: {} events, every promise held\n", outcome.steps)),
        };
    }
    let (outcomes, steps) = run_seeds(arguments, &scope);
    for outcome in &outcomes {
        if let Some(violation) = &outcome.violation {
            let seed = outcome.seed;
            let mut again = format!(
                "hypha sim market --replay {seed} --workers {} --schedulers {} --jobs {}",
                scope.workers, scope.schedulers, scope.jobs
            );
            if !arguments.without.is_empty() {
                again += &format!(" --without {}", arguments.without.join(","));
            }
            print(&format!("seed {seed}: {violation}\nagain: {again}\n"))?;
        }
    }
    let seeds = arguments.seeds;
    match outcomes.len() {
        0 => print(&format!("{seeds} seeds, {steps} events: every promise held\n")),
        failed => Err(Failure::work(format!("{failed} of {seeds} seeds failed"))),
    }
}

/// Runs all seeds on all cores. Returns those that fail, in order, and the number of events.
fn run_seeds(arguments: &Arguments, scope: &MarketScope) -> (Vec<SeedOutcome>, u64) {
    let (next, steps) = (AtomicU64::new(0), AtomicU64::new(0));
    let failed: Mutex<Vec<SeedOutcome>> = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|threads_of| {
        for _ in 0..threads {
            threads_of.spawn(|| {
                loop {
                    let nth = next.fetch_add(1, Ordering::Relaxed);
                    if nth >= arguments.seeds {
                        return;
                    }
                    let outcome = market::run(arguments.from.wrapping_add(nth), scope);
                    steps.fetch_add(outcome.steps, Ordering::Relaxed);
                    if outcome.violation.is_some()
                        && let Ok(mut failed) = failed.lock()
                    {
                        failed.push(outcome);
                    }
                }
            });
        }
    });
    let mut failed = failed.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    failed.sort_by_key(|outcome| outcome.seed);
    (failed, steps.into_inner())
}

fn utilisation(arguments: &Arguments) -> Result<(), Failure> {
    let jobs = arguments.jobs.unwrap_or(200);
    for seed in arguments.from + 1..=arguments.from + arguments.seeds.min(3) {
        let (workers, schedulers) = (arguments.workers, arguments.schedulers);
        let window = Span::from_millis(arguments.window_ms);
        let market = PlainMarket { workers, schedulers, seed, window, ..PlainMarket::default() };
        let it = figures::utilisation(&market, jobs).map_err(|it| Failure::work(it.to_string()))?;
        let percent = |time_s: f64| 100.0 * it.work_s / time_s;
        print(&format!(
            "seed {seed}: {jobs} jobs, {schedulers} schedulers, {workers} workers: market {:.0} s ({:.1} % used), \
             first-fit decreasing {:.0} s ({:.1} %), bound {:.0} s; market / packer {:.3}\n",
            it.market_s,
            percent(it.market_s),
            it.packer_s,
            percent(it.packer_s),
            it.bound_s,
            it.packer_s / it.market_s,
        ))?;
    }
    Ok(())
}

fn latency(arguments: &Arguments) -> Result<(), Failure> {
    for is_connected in [true, false] {
        let it = leasing(arguments, 1_000, is_connected)?;
        let how = if is_connected { "direct" } else { "gossip" };
        print(&format!(
            "1,000 workers, links of 50 ms, {how}: {} leases, advert to lease p50 {:.0} ms, p99 {:.0} ms\n",
            it.leases, it.p50_ms, it.p99_ms
        ))?;
    }
    Ok(())
}

fn mesh(arguments: &Arguments) -> Result<(), Failure> {
    for workers in [100, 1_000, 10_000] {
        let it = leasing(arguments, workers, false)?;
        let each = |count: u64| count as f64 / it.leases.max(1) as f64;
        print(&format!(
            "{workers} workers: per lease {:.1} deliveries, {:.1} messages in the mesh, {:.2} offers, {:.2} direct \
             messages; p99 {:.0} ms\n",
            each(it.counts.deliveries),
            each(it.counts.mesh_messages),
            each(it.counts.offers),
            each(it.counts.direct),
            it.p99_ms,
        ))?;
    }
    Ok(())
}

fn leasing(arguments: &Arguments, workers: usize, is_connected: bool) -> Result<Leasing, Failure> {
    let schedulers = arguments.schedulers;
    let window = Span::from_millis(arguments.window_ms);
    let market = PlainMarket {
        workers,
        schedulers,
        link: LINK,
        is_connected,
        window,
        ..PlainMarket::default()
    };
    figures::leasing(&market).map_err(|it| Failure::work(it.to_string()))
}
