//! Executes `hypha SUBCOMMAND` with the same arguments: both spellings work, and there is one program.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

pub(crate) fn launch(subcommand: &str) -> ExitCode {
    let arguments = std::env::args_os().skip(1);
    // Returns only if it failed.
    let error = Command::new(hypha()).arg(subcommand).args(arguments).exec();
    eprintln!(
        "hypha-{subcommand}: cannot start `hypha`, which must be beside this program or in PATH: {error}"
    );
    ExitCode::FAILURE
}

/// The program beside this one, else the one in PATH.
fn hypha() -> PathBuf {
    let beside = std::env::current_exe().ok().map(|own| own.with_file_name("hypha"));
    beside.filter(|path| path.exists()).unwrap_or_else(|| "hypha".into())
}
