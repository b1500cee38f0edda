//! `cargo xtask chaos`: kills schedulers and workers under load, and shows that nothing acknowledged is lost or doubled.

mod http;
mod ledger;
mod load;
mod network;
mod node;
mod options;
mod plan;
mod random;
mod round;
mod totals;
mod verify;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};

use crate::{Outcome, cargo};
use ledger::Scope;
use load::lock;
use network::Network;
use options::Options;
use round::Run;
use totals::Totals;
use verify::Verifier;

/// After so many rounds, and after the last, the account is of all tasks, not only of the round's: the store grows, and
/// to list it all each time would take most of the time.
const WHOLE_EVERY: u32 = 5;

pub(crate) fn run(root: &Path, arguments: &[String]) -> anyhow::Result<Outcome> {
    let options = match options::read(arguments) {
        Ok(options) => options,
        Err(line) => {
            eprintln!("xtask chaos: {line}");
            return Ok(Outcome::Misused);
        }
    };
    // A program with crash points is not to be taken for the real one, and its builds do not disturb others.
    let target = root.join("target/chaos");
    fs::create_dir_all(&target).with_context(|| format!("cannot write in {target:?}"))?;
    let lock = File::create(target.join("run.lock"))?;
    if lock.try_lock().is_err() {
        bail!("another run is under way in {target:?}; wait until it has ended");
    }
    let program = match &options.hypha {
        Some(program) => {
            program.canonicalize().with_context(|| format!("cannot find {program:?}"))?
        }
        None => build(root, &target)?,
    };
    let directory = target.join("run");
    if directory.exists() {
        fs::remove_dir_all(&directory).with_context(|| format!("cannot empty {directory:?}"))?;
    }
    let Options { rounds, seed, workers, .. } = options;
    println!("chaos: {rounds} rounds with {workers} workers, seed {seed}");
    rounds_in(&directory, &program, &options)
}

/// The program with the points at which it can be told to die.
fn build(root: &Path, target: &Path) -> anyhow::Result<PathBuf> {
    let mut command = cargo::command(root);
    command.args(["build", "--locked", "-p", "hypha-cli", "--bin", "hypha"]);
    command.args(["--features", "crash-points", "--target-dir"]).arg(target);
    if !cargo::run(&mut command)? {
        bail!("the build failed; see above");
    }
    Ok(target.join("debug/hypha"))
}

fn rounds_in(directory: &Path, program: &Path, options: &Options) -> anyhow::Result<Outcome> {
    let &Options { rounds, seed, workers, .. } = options;
    let network = Network::start(program, directory, workers)
        .with_context(|| format!("cannot start the network; see {directory:?}"))?;
    let verifier = Verifier::new(&network, seed, directory.join("logs"));
    let (ledger, totals) = (Arc::default(), Totals::default());
    let mut run = Run { seed, directory, network, ledger, verifier, totals };
    run.verifier.settle(&mut run.network)?;
    for round in 1..=rounds {
        let whole = round % WHOLE_EVERY == 0 || round == rounds;
        let scope = if whole { Scope::Whole } else { Scope::Latest };
        if let Err(error) = run.round(round, scope) {
            eprintln!("chaos: FAILED in round {round} of seed {seed}:\n  {error:#}");
            eprintln!("  the nodes' logs and data are in {}", directory.display());
            eprintln!(
                "  again: cargo xtask chaos --seed {seed} --rounds {round} --workers {workers}"
            );
            return Ok(Outcome::Failed);
        }
        run.totals.rounds = round;
    }
    print!("chaos: {}", run.totals.report(&lock(&run.ledger)));
    let not_shown = run.totals.not_shown();
    if !not_shown.is_empty() {
        eprintln!("chaos: not shown: nobody died in the gap of {not_shown:?}; ask for more rounds");
        return Ok(Outcome::Failed);
    }
    drop(run);
    fs::remove_dir_all(directory).with_context(|| format!("cannot remove {directory:?}"))?;
    Ok(Outcome::Passed)
}
