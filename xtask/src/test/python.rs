//! Python environments with third-party programs that tests run against a scheduler.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

/// Packages that tests import together. Each set has an environment of its own, so that tests run without
/// the packages of others.
pub(super) struct Environment {
    /// The capability that tests name if they are skipped without it.
    pub(super) capability: &'static str,
    /// The variable that names its Python for the tests.
    pub(super) variable: &'static str,
    /// With their versions: another version behaves differently.
    packages: &'static [(&'static str, &'static str)],
}

const OPENAI: (&str, &str) = ("openai", "3.49.0");

pub(super) const ENVIRONMENTS: [Environment; 2] = [
    Environment {
        capability: "python",
        variable: "HYPHA_TEST_PYTHON",
        // Schemathesis generates values with Hypothesis: another version would generate others.
        packages: &[OPENAI, ("schemathesis", "4.32.5"), ("hypothesis", "6.170.15")],
    },
    // Compiled code, which not every machine has a wheel for.
    Environment {
        capability: "llama",
        variable: "HYPHA_TEST_LLAMA_PYTHON",
        packages: &[OPENAI, ("xllamacpp", "2026.10.11549"), ("gguf", "0.19.0")],
    },
];

impl Environment {
    /// The Python of an environment that has all packages, created on the first call and after each change of a
    /// version. `None`, with one line that states why, where that is not possible.
    pub(super) fn prepare(&self, root: &Path) -> Option<PathBuf> {
        match self.make(&root.join("target/python")) {
            Ok(python) => Some(python),
            Err(error) => {
                println!(
                    "test: no Python for the tests that need `{}`: {error:#}",
                    self.capability
                );
                None
            }
        }
    }

    fn make(&self, parent: &Path) -> anyhow::Result<PathBuf> {
        let folder = parent.join(key(self.packages));
        let python = folder.join("bin/python");
        fs::create_dir_all(parent).with_context(|| format!("cannot write in {parent:?}"))?;
        // Another run in this checkout may be creating it.
        let lock = File::create(parent.join("lock")).context("cannot make a lock file")?;
        lock.lock().context("cannot lock the environment")?;
        // Checked each time: an interrupted installation and an updated system leave a folder that looks
        // complete.
        if finish(&mut self.import(&python)).is_ok() {
            return Ok(python);
        }
        println!("test: making a Python environment in {folder:?}");
        if folder.exists() {
            fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {folder:?}"))?;
        }
        finish(Command::new("python3").args(["-m", "venv"]).arg(&folder))?;
        let pinned = self.packages.iter().map(|(name, version)| format!("{name}=={version}"));
        let mut install = Command::new(&python);
        install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
        // No package is compiled here: that would take long, and fail for want of a compiler.
        finish(install.args(["--only-binary", ":all:"]).args(pinned))?;
        finish(&mut self.import(&python))?;
        Ok(python)
    }

    fn import(&self, python: &Path) -> Command {
        let names: Vec<&str> = self.packages.iter().map(|(name, _)| *name).collect();
        let mut command = Command::new(python);
        command.arg("-c").arg(format!("import {}", names.join(", ")));
        command
    }
}

/// The name of the folder, so that another version gets another one.
fn key(packages: &[(&str, &str)]) -> String {
    let named = packages.iter().map(|(name, version)| format!("{name}-{version}"));
    named.collect::<Vec<_>>().join("-")
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
