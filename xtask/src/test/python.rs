//! A Python environment with third-party programs that tests run against a scheduler.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

/// The variable that names the Python for the tests.
pub(super) const VARIABLE: &str = "HYPHA_TEST_PYTHON";

/// The packages that tests import. Schemathesis generates values with Hypothesis: another version would
/// generate others.
const PACKAGES: [(&str, &str); 3] =
    [("openai", "3.49.0"), ("schemathesis", "4.32.5"), ("hypothesis", "6.170.15")];

/// The Python of an environment that has all packages, created on the first call and after each change of a
/// version. `None`, with one line that states why, where that is not possible.
pub(super) fn prepare(root: &Path) -> Option<PathBuf> {
    match environment(&root.join("target/python")) {
        Ok(python) => Some(python),
        Err(error) => {
            println!("test: no Python for the tests that need one: {error:#}");
            None
        }
    }
}

fn environment(parent: &Path) -> anyhow::Result<PathBuf> {
    let folder = parent.join(key(&PACKAGES));
    let python = folder.join("bin/python");
    fs::create_dir_all(parent).with_context(|| format!("cannot write in {parent:?}"))?;
    // Another run in this checkout may be creating it.
    let lock = File::create(parent.join("lock")).context("cannot make a lock file")?;
    lock.lock().context("cannot lock the environment")?;
    // Checked each time: an interrupted installation and an updated system leave a folder that looks
    // complete.
    if finish(&mut import(&python)).is_ok() {
        return Ok(python);
    }
    println!("test: making a Python environment in {folder:?}");
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {folder:?}"))?;
    }
    finish(Command::new("python3").args(["-m", "venv"]).arg(&folder))?;
    let pinned = PACKAGES.map(|(name, version)| format!("{name}=={version}"));
    let mut install = Command::new(&python);
    install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]).args(pinned);
    finish(&mut install)?;
    finish(&mut import(&python))?;
    Ok(python)
}

/// The name of the folder, so that another version gets another one.
fn key(packages: &[(&str, &str)]) -> String {
    let named = packages.iter().map(|(name, version)| format!("{name}-{version}"));
    named.collect::<Vec<_>>().join("-")
}

fn import(python: &Path) -> Command {
    let names = PACKAGES.map(|(name, _)| name).join(", ");
    let mut command = Command::new(python);
    command.arg("-c").arg(format!("import {names}"));
    command
}

/// Runs it quietly; the error is its last line of output, where most programs put the cause.
fn finish(command: &mut Command) -> anyhow::Result<()> {
    let shown = crate::cargo::shown(command);
    let ran = command.stdin(Stdio::null()).output();
    let output = ran.with_context(|| format!("cannot start `{shown}`"))?;
    if !output.status.success() {
        let printed = [output.stdout, output.stderr].concat();
        let printed = String::from_utf8_lossy(&printed);
        let cause = printed.lines().rev().find(|line| !line.trim().is_empty());
        bail!("`{shown}` failed: {}", cause.unwrap_or("it does not say why"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_version_has_a_folder() {
        assert_eq!(key(&[("a", "1.0"), ("b", "2")]), "a-1.0-b-2");
        assert_ne!(key(&[("a", "1.0")]), key(&[("a", "1.1")]));
    }

    #[test]
    fn a_failure_is_one_line_with_its_cause() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo first; echo the cause >&2; echo >&2; exit 1"]);
        let error = format!("{:#}", finish(&mut command).expect_err("exit code 1"));
        assert!(error.ends_with("failed: the cause"), "{error}");
        let missing = finish(&mut Command::new("no-such-program-anywhere"));
        let error = format!("{:#}", missing.expect_err("not there"));
        assert!(error.starts_with("cannot start `no-such-program-anywhere`"), "{error}");
        assert!(!error.contains('\n'), "{error}");
    }
}
