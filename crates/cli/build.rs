//! Puts the commit into the binary: a failure of the simulator is a seed and a commit.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=../../.git/HEAD");
    println!("cargo::rerun-if-changed=../../.git/refs/heads");
    let git = Command::new("git").args(["rev-parse", "--short=10", "HEAD"]).output();
    let commit = match git {
        Ok(output) if output.status.success() => {
            String::from_utf8_lossy(&output.stdout).trim().to_owned()
        }
        // A source archive has no history.
        _ => "unknown commit".to_owned(),
    };
    println!("cargo::rustc-env=HYPHA_VERSION={} ({commit})", env!("CARGO_PKG_VERSION"));
}
