//! Kills, stops, freezes and starves schedulers, workers and back ends under load, and shows that no acknowledged task
//! is lost or duplicated, and that faults of the scheduler use up no attempts: `cargo xtask chaos` runs this.

mod back_end;
mod disk;
mod failures;
mod faults;
mod http;
mod ledger;
mod load;
mod network;
mod node;
mod options;
mod plan;
mod port;
mod probe;
mod random;
mod round;
mod totals;
mod verify;

pub use options::Options;

use std::fs;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;

use ledger::Scope;
use load::lock;
use network::Network;
use round::ChaosRun;
use totals::Totals;
use verify::Verifier;

/// After so many rounds, and after the last, all tasks are verified, not only those of the round: the store grows, and
/// to list it all each time would take most of the time.
const FULL_CHECK_EVERY: u32 = 5;

/// Runs all rounds with `program` in a `directory` that does not exist yet; returns whether nothing was lost. Losses
/// and unproven points are printed, and then the directory is kept for diagnosis.
pub fn run(directory: &Path, program: &Path, options: &Options) -> anyhow::Result<bool> {
    let &Options { rounds, seed, workers, .. } = options;
    println!("chaos: {rounds} rounds with {workers} workers, seed {seed}");
    let faults = Arc::default();
    let network = Network::start(program, directory, workers, &faults)
        .with_context(|| format!("cannot start the network; see {directory:?}"))?;
    if network.mount_method.is_none() {
        println!(
            "chaos: no small disk can be mounted here: where one would be full, the scheduler is stopped"
        );
    }
    let verifier = Verifier::new(&network, seed, directory.join("logs"));
    let (ledger, totals) = (Arc::default(), Totals::default());
    let mut run = ChaosRun { seed, directory, network, ledger, faults, verifier, totals };
    run.verifier.register(&mut run.network)?;
    run.verifier.wait_until_idle(&mut run.network)?;
    for round in 1..=rounds {
        let whole = round % FULL_CHECK_EVERY == 0 || round == rounds;
        let scope = if whole { Scope::Whole } else { Scope::Latest };
        if let Err(error) = run.round(round, scope) {
            eprintln!("chaos: FAILED in round {round} of seed {seed}:\n  {error:#}");
            eprintln!("  the nodes' logs and data are in {}", directory.display());
            eprintln!(
                "  again: cargo xtask chaos --seed {seed} --rounds {round} --workers {workers}"
            );
            return Ok(false);
        }
        run.totals.rounds = round;
    }
    print!("chaos: {}", run.totals.report(&lock(&run.ledger), &lock(&run.faults)));
    let unproven_points = run.totals.unproven_points();
    if !unproven_points.is_empty() {
        eprintln!(
            "chaos: not proven: no node crashed in the gap of {unproven_points:?}; ask for more rounds"
        );
        return Ok(false);
    }
    drop(run);
    fs::remove_dir_all(directory).with_context(|| format!("cannot remove {directory:?}"))?;
    Ok(true)
}
