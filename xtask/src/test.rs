//! `cargo xtask test`: installs what the tests need, runs all of them, accounts for skips.

mod machine;
mod python;
mod report;
mod skips;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, bail};

use crate::{Outcome, cargo};
use python::Environment;
use report::Counts;
use skips::Skip;

pub(crate) fn run(root: &Path, arguments: &[String]) -> anyhow::Result<Outcome> {
    let filters = match arguments.split_first() {
        None => arguments,
        Some((dashes, filters)) if dashes == "--" => filters,
        Some((stray, _)) => {
            eprintln!(
                "xtask test: put nextest's arguments after `--`: `cargo xtask test -- {stray}`"
            );
            return Ok(Outcome::InvalidUsage);
        }
    };
    machine::prepare(root)?;
    let pythons = python::ENVIRONMENTS.map(|one| {
        let python = one.prepare(root);
        (one, python)
    });

    let scratch = Scratch::new()?;
    let passed = nextest(root, filters, &pythons, &scratch)?;
    let report = scratch.report();
    if passed && report.is_none() {
        bail!("nextest left no report, so skips cannot be accounted for; update cargo-nextest");
    }
    let mut counts = report.as_deref().map(report::counts).unwrap_or_default();
    let skips = report.as_deref().map(skips::find).unwrap_or_default();

    let mut large_passed = true;
    if passed && filters.is_empty() {
        println!("test: transfers again, as large and as many as a training job's");
        large_passed = large_transfers(root)?;
    }

    let mut chaos_passed = true;
    if passed && filters.is_empty() {
        println!("test: a few rounds of killing everything under load");
        let rounds = ["--rounds", "6"].map(str::to_owned);
        chaos_passed = crate::chaos::run(root, &rounds)? == Outcome::Passed;
    }

    let mut counts_passed = true;
    if passed && filters.is_empty() {
        counts_passed = instruction_counts(root)?;
    }

    let mut doc_tests_passed = true;
    if !passed {
        eprintln!("test: documentation tests not run, since nextest failed");
    } else if filters.is_empty() {
        let (succeeded, doc_counts) = doc_tests(root)?;
        doc_tests_passed = succeeded;
        counts = counts + doc_counts;
    } else {
        println!("test: documentation tests not run, since nextest got arguments");
    }

    let unexcused =
        report_skips(&skips, |name| match pythons.iter().find(|(one, _)| one.capability == name) {
            Some((_, python)) => Some(python.is_some()),
            None => machine::has_capability(name),
        });
    let extras_passed = large_passed && chaos_passed && counts_passed && doc_tests_passed;
    let all_well = passed && extras_passed && unexcused == 0;
    println!("{}", closing_line(counts, skips.len()));
    Ok(if all_well { Outcome::Passed } else { Outcome::Failed })
}

/// Runs nextest with our own output, so that its summary is visible as usual. The output of tests goes to the
/// report: for a test that passes, nextest would show it only among the harness lines of all the others.
fn nextest(
    root: &Path,
    filters: &[String],
    pythons: &[(Environment, Option<PathBuf>)],
    scratch: &Scratch,
) -> anyhow::Result<bool> {
    let mut command = cargo::command(root);
    for (environment, python) in pythons {
        if let Some(python) = python {
            command.env(environment.variable, python);
        }
    }
    command.args(["nextest", "run", "--locked", "--tool-config-file"]);
    command.arg(format!("hypha-xtask:{}", scratch.config().display()));
    // Nextest runs all packages when it gets both.
    if !choose_packages(filters) {
        command.arg("--workspace");
    }
    cargo::run(command.args(filters))
}

/// Four transfers of 256 MiB each way at once, twenty times in a row, on each transport: the everyday tests
/// with other numbers. They take minutes, so they run here only.
fn large_transfers(root: &Path) -> anyhow::Result<bool> {
    let mut command = cargo::command(root);
    // The whole workspace, with the features that it has together: alone, the package would be built again.
    command.args(["nextest", "run", "--locked", "--workspace", "--no-capture", "--filterset"]);
    command.arg("package(hypha-net) & test(/^bulk::several_at_once/)");
    command.env("HYPHA_BULK_BYTES", (256 << 20).to_string()).env("HYPHA_BULK_ROUNDS", "20");
    cargo::run(&mut command)
}

/// The instructions of the hot paths, where they can be counted.
fn instruction_counts(root: &Path) -> anyhow::Result<bool> {
    if let Some(why) = crate::counts::unavailable() {
        println!("test: SKIPPED: the instructions of the hot paths: {why}");
        return Ok(true);
    }
    println!("test: the instructions of the hot paths");
    Ok(crate::counts::run(root, &[])? == Outcome::Passed)
}

fn choose_packages(filters: &[String]) -> bool {
    filters.iter().any(|word| word.starts_with("--package") || word.starts_with("-p"))
}

/// Runs the documentation tests, which nextest cannot, and counts them.
fn doc_tests(root: &Path) -> anyhow::Result<(bool, Counts)> {
    let mut command = cargo::command(root);
    command.args(["test", "--doc", "--workspace", "--locked"]).stdout(Stdio::piped());
    println!("$ {}", cargo::shown(&command));
    let mut child = command.spawn().context("cannot start cargo; is it installed?")?;
    let mut counts = Counts::default();
    if let Some(stdout) = child.stdout.take() {
        for line in BufReader::new(stdout).lines() {
            let line = line.context("cannot read what cargo test prints; run it again")?;
            println!("{line}");
            counts = counts + report::doc_test_counts(&line);
        }
    }
    Ok((child.wait()?.success(), counts))
}

/// Lists the skips and prints for each whether it is excused. Returns how many are not.
fn report_skips(skips: &[Skip], has_capability: impl Fn(&str) -> Option<bool>) -> usize {
    if skips.is_empty() {
        return 0;
    }
    println!("test: skipped on this machine:");
    let mut unexcused = 0;
    for skip in skips {
        println!("  {skip}");
        if let Err(why) = skip.excuse(&has_capability) {
            eprintln!("  ^ this skip fails the run: {why}");
            unexcused += 1;
        }
    }
    unexcused
}

fn closing_line(counts: Counts, skipped: usize) -> String {
    let passed = counts.passed.saturating_sub(skipped);
    format!("tests: {passed} passed, {} failed, {skipped} skipped", counts.failed)
}

/// A folder of this process's own, for nextest's report. The target directory is not suitable: runs of
/// several checkouts may share it.
struct Scratch {
    folder: PathBuf,
}

impl Scratch {
    fn new() -> anyhow::Result<Self> {
        let folder = std::env::temp_dir().join(format!("hypha-xtask-{}", std::process::id()));
        let scratch = Self { folder };
        let advice = || format!("cannot write in {:?}; set TMPDIR elsewhere", scratch.folder);
        fs::create_dir_all(&scratch.folder).with_context(advice)?;
        let path = scratch.report_path().display().to_string();
        let config = format!(
            "[profile.default.junit]\npath = {}\nstore-success-output = true\n",
            serde_json::Value::from(path)
        );
        fs::write(scratch.config(), config).with_context(advice)?;
        Ok(scratch)
    }

    fn config(&self) -> PathBuf {
        self.folder.join("nextest.toml")
    }

    fn report_path(&self) -> PathBuf {
        self.folder.join("junit.xml")
    }

    /// `None` if nextest failed before it ran tests.
    fn report(&self) -> Option<String> {
        fs::read_to_string(self.report_path()).ok()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Leftovers are small and in the system's temporary folder.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_can_be_chosen() {
        for (words, chosen) in
            [("-p hypha-model", true), ("--package=hypha-model", true), ("queue -E all()", false)]
        {
            let words: Vec<_> = words.split(' ').map(str::to_owned).collect();
            assert_eq!(choose_packages(&words), chosen, "{words:?}");
        }
    }

    #[test]
    fn a_skipped_test_does_not_count_as_passed() {
        let counts = Counts { passed: 12, failed: 1 };
        assert_eq!(closing_line(counts, 2), "tests: 10 passed, 1 failed, 2 skipped");
        assert_eq!(closing_line(Counts::default(), 0), "tests: 0 passed, 0 failed, 0 skipped");
    }
}
