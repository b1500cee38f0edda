//! `hypha sim compare`: strategies side by side.

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use hypha_model::Span;
use hypha_placement::{Predictive, Strategy};
use hypha_sim::batching::Batching;
use hypha_sim::checkers::Violation;
use hypha_sim::compare::{self, Comparison, FailureRates};
use hypha_sim::frontier::{Point, frontier};
use hypha_sim::mix::{Mix, MixError, Shares};
use hypha_sim::oracle;
use hypha_sim::report::{MeasuredRun, Row, json};
use hypha_sim::workload_name::WorkloadName;
use hypha_sim::{plot::plot, table::table};
use indicatif::{ProgressBar, ProgressStyle};

use super::inputs;
use crate::usage::{Failure, print};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// `all`, or names separated by commas
    #[arg(long, default_value = "all")]
    strategies: String,
    /// poisson | bimodal | pareto | burst | trace:FILE
    #[arg(long, default_value = "poisson")]
    workload: String,
    /// The workers, COUNTxSPEED, optionally with resources: COUNTxSPEED:24GB:1gpu
    #[arg(long, default_value = "1x4.0,1x2.0,6x1.0")]
    pool: String,
    /// Offered work over the speed of the pool; several separated by commas
    #[arg(long, default_value = "0.8", value_delimiter = ',')]
    load: Vec<f64>,
    /// Runs of each, with different noise and (if synthetic) different requests
    #[arg(long, default_value_t = 5)]
    seeds: u64,
    /// The features of a request that the predictor is given: input,output | input | none
    #[arg(long, default_value = "input,output")]
    metadata: String,
    /// One sigma of the lognormal noise of run times
    #[arg(long, default_value_t = 0.2)]
    noise: f64,
    /// How many tasks; 0 is all of a trace, 20,000 otherwise
    #[arg(long, default_value_t = 0)]
    tasks: usize,
    /// The latency of a message, in milliseconds
    #[arg(long, default_value_t = 0.0)]
    latency_ms: f64,
    /// Shares of the tasks with a priority, SHARE:PRIORITY; the rest has 0
    #[arg(long, value_name = "SHARES")]
    priorities: Option<String>,
    /// Shares of the tasks that need memory or GPUs, SHARE:40GB:1gpu; the rest needs nothing
    #[arg(long, value_name = "SHARES")]
    needs: Option<String>,
    /// How many tasks run at once on a worker
    #[arg(long, value_name = "N", default_value_t = 1)]
    at_once: u32,
    /// Of n tasks at once, each runs at 1 / (1 + A (n - 1)) of its speed alone
    #[arg(long, value_name = "A", default_value_t = 0.05)]
    slowdown: f64,
    /// The share of runs that end with an error
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    errors: f64,
    /// How often each worker dies per hour; it comes back after a minute
    #[arg(long, value_name = "RATE", default_value_t = 0.0)]
    deaths: f64,
    /// Predict from this table (JSON or CSV) instead of learning
    #[arg(long, value_name = "FILE")]
    table: Option<PathBuf>,
    /// Compare `predictive` under these values of its ageing instead of strategies
    #[arg(long, value_delimiter = ',', value_name = "VALUES", conflicts_with = "strategies")]
    ageing: Vec<f64>,
    /// Leave out the run that knows all run times beforehand
    #[arg(long)]
    no_oracle: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Also draw a chart
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

/// Ten times the largest run in the documents; more would fill the memory.
const MAX_TASKS: usize = 10_000_000;

/// One run.
struct Cell {
    load: f64,
    seed: u64,
    /// `None` is the oracle.
    strategy: Option<usize>,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let contenders = contenders(arguments)?;
    for load in &arguments.load {
        inputs::number("--load", *load, 0.001, 100.0)?;
    }
    if arguments.tasks > MAX_TASKS {
        return Err(Failure::usage(format!("--tasks: use a number from 0 to {MAX_TASKS}")));
    }
    if arguments.seeds == 0 {
        return Err(Failure::usage("--seeds: at least one run is needed"));
    }
    if let Some(path) = &arguments.plot {
        inputs::writable(path)?;
    }
    let name: WorkloadName = arguments.workload.parse().map_err(Failure::usage)?;
    let mix = mix(arguments)?;
    let batching = batching(arguments)?;
    let failures = failures(arguments)?;
    let comparison = Comparison {
        pool: arguments.pool.parse().map_err(Failure::usage)?,
        predictor_input: arguments.metadata.parse().map_err(Failure::usage)?,
        noise: inputs::number("--noise", arguments.noise, 0.0, 5.0)?,
        tasks: arguments.tasks,
        latency: Span::from_secs_f64(
            inputs::number("--latency-ms", arguments.latency_ms, 0.0, 1e6)? / 1e3,
        ),
        table: inputs::table(arguments.table.as_ref())?,
        workload: inputs::workload(&name)?,
        mix,
        batching,
        failures,
    };
    comparison.mix.check(&comparison.pool).map_err(|error| refused("--needs", &error))?;
    let mut loads = arguments.load.clone();
    loads.sort_by(f64::total_cmp);
    loads.dedup();
    let cells = cells(&loads, arguments, contenders.len());
    let measured = measure_all(&comparison, &contenders, &cells)
        .map_err(|violation| Failure::work(violation.to_string()))?;
    let rows = rows(&loads, &name, &contenders, &cells, &measured);
    match arguments.json {
        true => print(&json(&rows))?,
        false => print(&table(&rows))?,
    }
    if let Some(path) = &arguments.plot {
        let picture = match arguments.ageing.is_empty() {
            true => plot(&rows),
            false => frontier(&rows.iter().map(Point::from).collect::<Vec<_>>()),
        };
        std::fs::write(path, picture)
            .map_err(|error| Failure::work(format!("{}: {error}", path.display())))?;
    }
    Ok(())
}

/// The requirements of tasks.
fn mix(arguments: &Arguments) -> Result<Mix, Failure> {
    let priorities = arguments.priorities.as_deref().map(Shares::of_priorities).transpose();
    let needs = arguments.needs.as_deref().map(Shares::of_needs).transpose();
    Ok(Mix {
        priorities: priorities
            .map_err(|error| refused("--priorities", &error))?
            .unwrap_or_default(),
        needs: needs.map_err(|error| refused("--needs", &error))?.unwrap_or_default(),
    })
}

fn refused(flag: &str, error: &MixError) -> Failure {
    Failure::usage(format!("{flag}: {error}"))
}

fn batching(arguments: &Arguments) -> Result<Batching, Failure> {
    let at_once = arguments.at_once;
    if !(1..=Batching::MAX_AT_ONCE).contains(&at_once) {
        let most = Batching::MAX_AT_ONCE;
        return Err(Failure::usage(format!("--at-once: use a number from 1 to {most}")));
    }
    let most = Batching::MAX_SLOWDOWN;
    Ok(Batching { at_once, slowdown: inputs::number("--slowdown", arguments.slowdown, 0.0, most)? })
}

fn failures(arguments: &Arguments) -> Result<FailureRates, Failure> {
    let most = FailureRates::MAX_DEATHS_PER_HOUR;
    Ok(FailureRates {
        executor_errors: inputs::number("--errors", arguments.errors, 0.0, 1.0)?,
        deaths_per_hour: inputs::number("--deaths", arguments.deaths, 0.0, most)?,
    })
}

/// The candidates, with the names to print.
fn contenders(arguments: &Arguments) -> Result<Vec<(String, Strategy)>, Failure> {
    if !arguments.ageing.is_empty() {
        let with = |ageing: &f64| {
            let strategy =
                Strategy::Predictive(Predictive { ageing: *ageing, ..Predictive::default() });
            strategy.validate().map_err(Failure::usage)?;
            Ok((format!("ageing {ageing}"), strategy))
        };
        return arguments.ageing.iter().map(with).collect();
    }
    if arguments.strategies == "all" {
        return Ok(Strategy::all().map(|strategy| (strategy.to_string(), strategy)).to_vec());
    }
    let parse = |name: &str| {
        let strategy: Strategy = name.trim().parse().map_err(Failure::usage)?;
        Ok((strategy.to_string(), strategy))
    };
    arguments.strategies.split(',').map(parse).collect()
}

fn cells(loads: &[f64], arguments: &Arguments, contenders: usize) -> Vec<Cell> {
    let mut cells = Vec::new();
    for load in loads {
        for seed in 1..=arguments.seeds {
            let all = (0..contenders).map(Some);
            for strategy in all.chain((!arguments.no_oracle).then_some(None)) {
                cells.push(Cell { load: *load, seed, strategy });
            }
        }
    }
    cells
}

/// Runs all cells on all cores; the results are in the order of the cells.
fn measure_all(
    comparison: &Comparison,
    contenders: &[(String, Strategy)],
    cells: &[Cell],
) -> Result<Vec<MeasuredRun>, Violation> {
    let bar = ProgressBar::new(cells.len() as u64);
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} runs, {eta} left") {
        bar.set_style(style);
    }
    let next = AtomicUsize::new(0);
    let answers: Mutex<Vec<(usize, Result<MeasuredRun, Violation>)>> = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let at = next.fetch_add(1, Ordering::Relaxed)
                    && let Some(cell) = cells.get(at)
                {
                    let strategy = cell.strategy.map(|at| contenders[at].1);
                    let answer = match strategy {
                        Some(strategy) => {
                            compare::measure(comparison, strategy, cell.load, cell.seed)
                        }
                        None => oracle::oracle(comparison, cell.load, cell.seed),
                    };
                    bar.inc(1);
                    if let Ok(mut answers) = answers.lock() {
                        answers.push((at, answer));
                    }
                }
            });
        }
    });
    bar.finish_and_clear();
    let mut answers = answers.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    answers.sort_by_key(|(at, _)| *at);
    answers.into_iter().map(|(_, answer)| answer).collect()
}

fn rows(
    loads: &[f64],
    workload: &WorkloadName,
    contenders: &[(String, Strategy)],
    cells: &[Cell],
    measured: &[MeasuredRun],
) -> Vec<Row> {
    let of = |load: f64, strategy: Option<usize>| {
        cells
            .iter()
            .zip(measured)
            .filter(move |(cell, _)| cell.load == load && cell.strategy == strategy)
            .map(|(_, run)| run)
    };
    let mut rows = Vec::new();
    for load in loads {
        let mean_ms = |run: &MeasuredRun| run.measures.latency.mean_ms;
        let oracle: Vec<f64> = of(*load, None).map(mean_ms).collect();
        for (at, (name, _)) in contenders.iter().enumerate() {
            let mut runs: Vec<MeasuredRun> = of(*load, Some(at)).cloned().collect();
            for (run, oracle_ms) in runs.iter_mut().zip(&oracle) {
                run.measures.oracle_ratio = mean_ms(run) / oracle_ms;
            }
            rows.extend(Row::over_seeds(&title(workload), *load, name, &runs));
        }
    }
    rows
}

/// A trace is named after its file, without the directory.
fn title(workload: &WorkloadName) -> String {
    match workload {
        WorkloadName::Trace(file) => {
            let path = std::path::Path::new(file);
            let file = path.file_name().map_or(file.as_str().into(), |name| name.to_string_lossy());
            format!("trace:{file}")
        }
        other => other.to_string(),
    }
}
