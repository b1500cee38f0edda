//! `cargo xtask dist`: the release binary to install, with its debug information in a file of its own.
//!
//! Cargo can split off a part of it (`split-debuginfo`), but line tables and ranges stay in the binary, and
//! are most of it.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};

use crate::{Outcome, cargo};

/// Where the files go, from the root.
const FOLDER: &str = "target/dist";

/// The binary is some 38 MB. More means a dependency or a debug section that was not meant to ship.
const MAX_BYTES: u64 = 45_000_000;

pub(crate) fn run(root: &Path, _: &[String]) -> anyhow::Result<Outcome> {
    let target = root.join("target");
    let mut build = cargo::command(root);
    build.args(["build", "--locked", "--release", "-p", "hypha-cli", "--bin", "hypha"]);
    if !cargo::run(build.arg("--target-dir").arg(&target))? {
        bail!("the build failed; see above");
    }
    let folder = root.join(FOLDER);
    fs::create_dir_all(&folder).with_context(|| format!("cannot write in {folder:?}"))?;
    let bytes = split_debug_info(&target.join("release/hypha"), &folder)?;
    println!("dist: {FOLDER}/hypha has {bytes} bytes; keep hypha.debug beside it for line numbers");
    if bytes > MAX_BYTES {
        eprintln!("dist: more than {MAX_BYTES} bytes; see which section or crate grew");
        return Ok(Outcome::Failed);
    }
    Ok(Outcome::Passed)
}

/// Writes the binary without its debug information to the folder, and that information to a file beside it, by whose
/// name debuggers, profilers and backtraces find it. Returns the size of the binary.
fn split_debug_info(binary: &Path, folder: &Path) -> anyhow::Result<u64> {
    let name = binary.file_name().context("a binary has a name")?;
    let stripped = folder.join(name);
    let debug = folder.join(format!("{}.debug", name.to_string_lossy()));
    let objcopy = || Command::new("objcopy");
    let keep = ["--only-keep-debug", "--compress-debug-sections"];
    cargo::output(objcopy().args(keep).arg(binary).arg(&debug))?;
    // The link contains the name and a checksum of the file as it is now.
    let link = format!("--add-gnu-debuglink={}", debug.display());
    cargo::output(objcopy().args(["--strip-debug", &link]).arg(binary).arg(&stripped))?;
    Ok(fs::metadata(&stripped).with_context(|| format!("cannot find {stripped:?}"))?.len())
}
