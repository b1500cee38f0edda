//! Calls cargo from inside `cargo xtask`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

/// The root of the workspace of the current directory.
///
/// Queried from cargo at run time instead of fixed at compile time: with one target directory for several
/// checkouts, the `xtask` binary in it may have been built from another one.
pub(crate) fn workspace_root() -> anyhow::Result<PathBuf> {
    let manifest = output(command(Path::new(".")).args([
        "locate-project",
        "--workspace",
        "--message-format",
        "plain",
    ]))?;
    let root = Path::new(manifest.trim())
        .parent()
        .context("cargo named no workspace manifest; run this inside the repository")?;
    Ok(root.to_owned())
}

/// A cargo command that runs in `root`.
pub(crate) fn command(root: &Path) -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let mut command = Command::new(program);
    command.current_dir(root);
    // `cargo run` describes the xtask package to us in variables that build scripts of other packages watch.
    // Passed on, they would make cargo rebuild those packages each time that `cargo xtask` and plain `cargo`
    // alternate.
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(describes_a_package) {
            command.env_remove(name);
        }
    }
    command
}

fn describes_a_package(variable: &str) -> bool {
    variable.starts_with("CARGO_PKG_")
        || matches!(
            variable,
            "CARGO_BIN_NAME"
                | "CARGO_CRATE_NAME"
                | "CARGO_MANIFEST_DIR"
                | "CARGO_MANIFEST_PATH"
                | "CARGO_PRIMARY_PACKAGE"
                | "OUT_DIR"
        )
}

/// Whether `cargo <name>` exists, as an installed plugin.
pub(crate) fn has_plugin(root: &Path, name: &str) -> bool {
    command(root)
        .args([name, "--version"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Whether a program can be started with these arguments and succeeds; its output is hidden.
pub(crate) fn succeeds(program: &str, arguments: &[&str]) -> bool {
    Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Prints a command and runs it with our own output. True if it succeeded.
pub(crate) fn run(command: &mut Command) -> anyhow::Result<bool> {
    println!("$ {}", shown(command));
    let status = command
        .status()
        .with_context(|| format!("cannot start `{}`; is it installed?", shown(command)))?;
    Ok(status.success())
}

/// The output of a command. If the command fails, the error contains its standard error.
pub(crate) fn output(command: &mut Command) -> anyhow::Result<String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start `{}`; is it installed?", shown(command)))?;
    if !output.status.success() {
        let complaint = String::from_utf8_lossy(&output.stderr);
        bail!("`{}` failed; correct this and try again:\n{}", shown(command), complaint.trim_end());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A command as a person would type it.
pub(crate) fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    let words = std::iter::once(program).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_variables_of_the_xtask_package_are_removed() {
        for (variable, hidden) in [
            ("CARGO_PKG_NAME", true),
            ("CARGO_MANIFEST_DIR", true),
            ("CARGO_TARGET_DIR", false),
            ("CARGO_HOME", false),
            ("CARGO_TERM_COLOR", false),
        ] {
            assert_eq!(describes_a_package(variable), hidden, "{variable}");
        }
    }

    #[test]
    fn a_command_is_shown_without_the_directory_of_its_program() {
        let mut command = Command::new("/opt/rust/bin/cargo");
        command.args(["fmt", "--all"]);
        assert_eq!(shown(&command), "cargo fmt --all");
    }
}
