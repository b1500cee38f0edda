//! The two small processes between a node and a program that it runs.
//!
//! ```text
//! node ── supervisor ── launcher, which becomes the program ── its children
//! ```
//!
//! The supervisor runs outside the sandbox. It adopts orphans, so that no process that the program starts
//! escapes it, not even by `setsid`; it watches memory, kills the tree and reaps it. Its standard input is a
//! socket to the node: one request in, one report out, and when the node closes its half, or dies, the tree
//! is killed. The launcher applies the sandbox to itself and then becomes the program. Both are the node's
//! own program under a hidden subcommand: no code runs between a fork and an exec, where hardly anything is
//! allowed.

pub(crate) mod cgroup;
mod confine;
mod grants;
mod own_root;
mod supervise;
mod tree;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use serde::{Deserialize, Serialize};

use crate::process::Confinement;

/// The argument that makes the launcher a supervisor.
pub(crate) const SUPERVISE_STAGE: &str = "supervise";
/// The argument that makes the launcher become the program.
const EXEC_STAGE: &str = "become";
/// The argument that makes the launcher report what this machine can do for a launch.
pub(crate) const REHEARSAL_STAGE: &str = "rehearse";
/// Passes the [`LaunchSpec`] to the launcher. The environment can be read by its owner alone, arguments by
/// anyone.
pub(crate) const LAUNCH_VARIABLE: &str = "HYPHA_LAUNCH";
/// The running program, even after its file was replaced by a newer one.
pub(crate) const THIS_PROGRAM: &str = "/proc/self/exe";
/// The launcher's exit code if it could not become the program, as in shells.
const EXIT_NOT_STARTED: u8 = 127;

/// A request to the supervisor.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SupervisorRequest {
    pub(crate) launch: LaunchSpec,
    /// The file that becomes the program's standard input.
    pub(crate) input: PathBuf,
    /// `None` where the kernel provides none: then the limits below are watched instead.
    pub(crate) cgroup: Option<cgroup::CgroupSpec>,
    pub(crate) memory_bytes: Option<u64>,
    pub(crate) processes: u64,
    pub(crate) grace_ms: u64,
}

/// The confinement that the launcher applies to itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct LaunchSpec {
    pub(crate) command: PathBuf,
    pub(crate) args: Vec<String>,
    pub(crate) environment: BTreeMap<String, String>,
    pub(crate) directory: PathBuf,
    /// The control group to enter.
    pub(crate) cgroup: Option<PathBuf>,
    pub(crate) confinement: Confinement,
    /// Whether it gets a root directory of its own.
    pub(crate) own_root: bool,
    /// Whether it may use the machine's network.
    pub(crate) network: bool,
    pub(crate) read: Vec<PathBuf>,
    pub(crate) write: Vec<PathBuf>,
    pub(crate) gpu: bool,
    pub(crate) cpus: Vec<usize>,
    pub(crate) open_files: u64,
    pub(crate) file_bytes: Option<u64>,
    pub(crate) address_space_bytes: Option<u64>,
}

/// The outcome. No process of the program is left when it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ExitReason {
    Exited { code: i32 },
    Signalled { signal: i32 },
    Stopped,
    Memory { used_bytes: u64, limit_bytes: u64 },
    Processes { count: u64, limit: u64 },
}

/// The supervisor's answer: the outcome, or why the program was not started.
pub(crate) type Report = Result<ExitReason, String>;

/// Runs the launcher with the arguments that follow its subcommand. It uses nothing of the rest of the
/// program that it is part of.
pub fn main(mut args: impl Iterator<Item = OsString>) -> ExitCode {
    let stage = args.next();
    match stage.as_ref().and_then(|stage| stage.to_str()) {
        Some(SUPERVISE_STAGE) => supervise::main(),
        Some(EXEC_STAGE) => {
            let why = confine::become_program();
            eprintln!("hypha: {why}");
            ExitCode::from(EXIT_NOT_STARTED)
        }
        Some(REHEARSAL_STAGE) => match confine::rehearse() {
            Ok(sandbox) => match serde_json::to_writer(std::io::stdout(), &sandbox) {
                Ok(()) => ExitCode::SUCCESS,
                Err(_) => ExitCode::FAILURE,
            },
            Err(why) => {
                eprintln!("{why}");
                ExitCode::FAILURE
            }
        },
        _ => {
            eprintln!("hypha: the launcher is started by a worker, not by hand");
            ExitCode::from(2)
        }
    }
}
