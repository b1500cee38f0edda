//! `cargo xtask check`: all checks of the sources that need no test run.

use std::path::Path;

use crate::{Outcome, cargo, tidy};

/// Each step as its name and cargo's arguments. All steps run even when one fails, so that one run shows all
/// faults.
const CARGO_STEPS: &[(&str, &[&str])] = &[
    ("fmt (`cargo fmt --all` corrects it)", &["fmt", "--all", "--check"]),
    ("clippy", &["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"]),
];

pub(crate) fn run(root: &Path, _: &[String]) -> anyhow::Result<Outcome> {
    let mut failed = Vec::new();
    for &(name, arguments) in CARGO_STEPS {
        if !cargo::run(cargo::command(root).args(arguments))? {
            failed.push(name);
        }
    }

    println!("$ cargo xtask tidy");
    if tidy::run(root, &[])? != Outcome::Passed {
        failed.push("tidy");
    }

    if cargo::has_plugin(root, "deny") {
        if !cargo::run(cargo::command(root).args(["deny", "check"]))? {
            failed.push("deny");
        }
    } else {
        println!(
            "check: licences and advisories not looked at: `cargo install --locked cargo-deny` \
             to include them"
        );
    }

    if failed.is_empty() {
        println!("check: passed");
        return Ok(Outcome::Passed);
    }
    eprintln!("check: failed in {}; see above", failed.join(", "));
    Ok(Outcome::Failed)
}
