//! Builds the scenarios and counts their instructions under callgrind.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use super::baseline::InstructionCounts;
use crate::cargo;

/// Where the profiles go, from the root.
pub(super) const PROFILES: &str = "target/counts/profiles";

pub(super) fn build(root: &Path) -> anyhow::Result<PathBuf> {
    let target = root.join("target");
    let mut command = cargo::command(root);
    command.args(["build", "--locked", "--profile", "counts", "-p", "hypha-counts"]);
    if !cargo::run(command.arg("--target-dir").arg(&target))? {
        bail!("the build failed; see above");
    }
    Ok(target.join("counts/hypha-counts"))
}

pub(super) fn count_all(root: &Path, program: &Path) -> anyhow::Result<InstructionCounts> {
    let profiles = root.join(PROFILES);
    fs::create_dir_all(&profiles).with_context(|| format!("cannot write in {profiles:?}"))?;
    let mut figures = BTreeMap::new();
    for line in cargo::output(&mut Command::new(program))?.lines() {
        let (name, rounds) = line.split_once(' ').context("a scenario without rounds")?;
        let rounds: u64 = rounds.parse().context("a scenario's rounds are no number")?;
        let profile = profiles.join(name);
        let once = count(program, name, rounds, &profile)?;
        let twice = count(program, name, 2 * rounds, &profile)?;
        figures.insert(name.to_owned(), twice.saturating_sub(once) / rounds);
    }
    Ok(InstructionCounts(figures))
}

/// All instructions of the process. The environment is empty, since its size moves the stack.
fn count(program: &Path, name: &str, rounds: u64, profile: &Path) -> anyhow::Result<u64> {
    let valgrind = find_in_path("valgrind").context("valgrind is not installed")?;
    let mut command = Command::new(valgrind);
    command
        .arg("--tool=callgrind")
        .arg(format!("--callgrind-out-file={}", profile.display()))
        .arg(program)
        .args([name, &rounds.to_string()])
        .env_clear()
        .stdin(Stdio::null());
    let output = command.output().context("cannot start valgrind")?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        bail!("`{}` failed:\n{}", cargo::shown(&command), said.trim_end());
    }
    collected(&said).with_context(|| format!("callgrind did not say what it counted:\n{said}"))
}

/// Since the environment is cleared, we search the path ourselves.
fn find_in_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// From `==123== Collected : 456`.
fn collected(said: &str) -> Option<u64> {
    let (_, count) = said.lines().find(|line| line.contains("Collected"))?.split_once(" : ")?;
    count.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_of_callgrind_is_parsed() {
        let said = "==7== Events    : Ir\n==7== Collected : 123456\n==7== \n";
        assert_eq!(collected(said), Some(123_456));
        assert_eq!(collected("==7== Events    : Ir\n"), None);
    }
}
