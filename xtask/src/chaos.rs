//! `cargo xtask chaos`: builds a program with crash points, and runs `hypha-chaos` on it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use hypha_chaos::Options;

use crate::{Outcome, cargo};

pub(crate) fn run(root: &Path, arguments: &[String]) -> anyhow::Result<Outcome> {
    let options = match Options::read(arguments) {
        Ok(options) => options,
        Err(line) => {
            eprintln!("xtask chaos: {line}");
            return Ok(Outcome::InvalidUsage);
        }
    };
    // A program with crash points must not be mistaken for the real one, and its builds must not disturb
    // others.
    let target = root.join("target/chaos");
    fs::create_dir_all(&target).with_context(|| format!("cannot write in {target:?}"))?;
    let lock = File::create(target.join("run.lock"))?;
    if lock.try_lock().is_err() {
        bail!("another run is in progress in {target:?}; wait until it has ended");
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
    let passed = hypha_chaos::run(&directory, &program, &options)?;
    Ok(if passed { Outcome::Passed } else { Outcome::Failed })
}

/// The program with crash points.
fn build(root: &Path, target: &Path) -> anyhow::Result<PathBuf> {
    let mut command = cargo::command(root);
    command.args(["build", "--locked", "-p", "hypha-cli", "--bin", "hypha"]);
    command.args(["--features", "crash-points", "--target-dir"]).arg(target);
    if !cargo::run(&mut command)? {
        bail!("the build failed; see above");
    }
    Ok(target.join("debug/hypha"))
}
