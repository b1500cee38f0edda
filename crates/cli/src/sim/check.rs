//! `hypha sim check`: checks every promise over many seeds.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use hypha_placement::Strategy;
use hypha_sim::check::{self, SeedOutcome};
use hypha_sim::scenario::{FaultKind, Scope};
use indicatif::{ProgressBar, ProgressStyle};

use crate::usage::{Failure, print};

/// Lines of a log that are printed: the promise breaks at its end.
const SHOWN_LINES: usize = 60;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// How many worlds
    #[arg(long, default_value_t = 1_000)]
    seeds: u64,
    /// The first seed
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Tasks in each world
    #[arg(long, default_value_t = 200)]
    tasks: usize,
    /// Fault kinds to leave out, separated by commas
    #[arg(long, value_delimiter = ',', value_name = "KIND")]
    without: Vec<String>,
    /// Start with this strategy in every world instead of one drawn for each (`--without switch` keeps it)
    #[arg(long)]
    strategy: Option<String>,
    /// Run this one seed and print everything that happens
    #[arg(long, value_name = "SEED")]
    replay: Option<u64>,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let without: Result<Vec<FaultKind>, _> = arguments.without.iter().map(|t| t.parse()).collect();
    let strategy = match &arguments.strategy {
        Some(name) => Some(name.parse::<Strategy>().map_err(Failure::usage)?.name()),
        None => None,
    };
    let scope = Scope {
        tasks: arguments.tasks,
        without: without.map_err(Failure::usage)?,
        mutant: None,
        strategy,
    };
    if !(1..=MAX_TASKS).contains(&arguments.tasks) {
        return Err(Failure::usage(format!("--tasks: use a number from 1 to {MAX_TASKS}")));
    }
    if arguments.seeds == 0 {
        return Err(Failure::usage("--seeds: at least one world is needed"));
    }
    match arguments.replay {
        Some(seed) => replay(seed, &scope),
        None => run_seeds(arguments, &scope),
    }
}

/// The checkers examine everything after every step, so worlds are small.
const MAX_TASKS: usize = 100_000;

fn replay(seed: u64, scope: &Scope) -> Result<(), Failure> {
    let (outcome, log) = check::replay(seed, scope);
    print(&format!("{}\n", log.join("\n")))?;
    match outcome.violation {
        Some(violation) => Err(Failure::work(format!("seed {seed}: {violation}"))),
        None => print(&format!("seed {seed}: {} events, every promise held\n", outcome.steps)),
    }
}

fn run_seeds(arguments: &Arguments, scope: &Scope) -> Result<(), Failure> {
    let bar = ProgressBar::new(arguments.seeds);
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} seeds, {eta} left") {
        bar.set_style(style);
    }
    let (next, steps) = (AtomicU64::new(0), AtomicU64::new(0));
    let stop = AtomicBool::new(false);
    let failed: Mutex<Option<SeedOutcome>> = Mutex::new(None);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|threads_of| {
        for _ in 0..threads {
            threads_of.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let nth = next.fetch_add(1, Ordering::Relaxed);
                    if nth >= arguments.seeds {
                        return;
                    }
                    let outcome = check::run(arguments.from.wrapping_add(nth), scope);
                    steps.fetch_add(outcome.steps, Ordering::Relaxed);
                    bar.inc(1);
                    if outcome.violation.is_some() {
                        stop.store(true, Ordering::Relaxed);
                        if let Ok(mut first) = failed.lock()
                            && first.as_ref().is_none_or(|first| outcome.seed < first.seed)
                        {
                            *first = Some(outcome);
                        }
                    }
                }
            });
        }
    });
    bar.finish_and_clear();
    let failed = failed.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    match failed {
        None => {
            let (seeds, steps) = (arguments.seeds, steps.into_inner());
            print(&format!(
                "{seeds} seeds of {} tasks, {steps} events: every promise held
",
                arguments.tasks
            ))
        }
        Some(outcome) => Err(report(&outcome, scope)),
    }
}

/// Shrinks the failure and prints how to replay it.
fn report(outcome: &SeedOutcome, scope: &Scope) -> Failure {
    let seed = outcome.seed;
    let Some(failure) = check::shrink(seed, scope) else {
        return Failure::work(format!(
            "seed {seed} failed once and not again: a bug in the simulator"
        ));
    };
    let hidden = failure.log.len().saturating_sub(SHOWN_LINES);
    let without: Vec<&str> = failure.scope.without.iter().map(|kind| kind.as_str()).collect();
    let mut again = format!("hypha sim check --replay {seed} --tasks {}", failure.scope.tasks);
    if !without.is_empty() {
        again += &format!(" --without {}", without.join(","));
    }
    if let Some(strategy) = failure.scope.strategy {
        again += &format!(" --strategy {strategy}");
    }
    let shown = failure.log[hidden..].join("\n");
    let text = format!(
        "the last events of the smallest world that fails ({hidden} earlier ones left out):\n\
         {shown}\nagain: {again}\n"
    );
    // The violation is reported on standard error in any case.
    let _ = print(&text);
    Failure::work(format!("seed {seed}: {} (hypha {})", failure.violation, env!("HYPHA_VERSION")))
}
