//! A program as an executor: its settings, its limits, and its shutdown.

mod cgroups;
mod directory;
mod one_shot;
mod output;
mod sandbox;
mod supervised;
mod supervisor_request;
mod warm;

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::Attempt;
use crate::launcher::THIS_PROGRAM;
use crate::outcome::RunError;
use crate::running::RunHandle;

pub(crate) use directory::Directory;
use directory::RootError;
pub use sandbox::{Sandbox, SandboxError};
use warm::Pool;

/// Runs one program. Dropping the last handle cancels all of its attempts and stops its warm processes.
#[derive(Clone, Debug)]
pub struct Process(Arc<ProcessHandle>);

/// The program and its limits.
#[derive(Clone, Debug)]
pub struct ProcessConfig {
    /// How to start the launcher.
    pub launcher: Launcher,
    /// The program: a path, or a name that is searched for in the system's directories.
    pub command: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// Its environment, besides what every attempt gets; the worker's own is not passed on.
    pub environment: BTreeMap<String, String>,
    /// How many processes are kept warm and given attempts over the bridge; none starts one for each attempt.
    /// A warm process is kept for one model and one choice of devices, CPUs and memory.
    pub warm: Option<NonZeroUsize>,
    /// The directory of work directories: for this executor alone, locked while it is open.
    pub work_root: PathBuf,
    /// What it may read besides the system's libraries.
    pub read: Vec<PathBuf>,
    /// What it may write besides its work directory.
    pub write: Vec<PathBuf>,
    /// Whether it may use the machine's network.
    pub network: bool,
    /// The confinement without which it does not run.
    pub confinement: Confinement,
    /// Its limits.
    pub limits: Limits,
}

/// How the worker starts the launcher.
#[derive(Clone, Debug)]
pub struct Launcher {
    /// The program.
    pub program: PathBuf,
    /// The arguments that lead to [`crate::launcher::main`].
    pub args: Vec<String>,
}

/// The confinement without which a program does not run. Whatever it is, a program gets a root directory of its
/// own where the kernel can provide one, and Landlock beneath it or instead of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Confinement {
    /// Files outside can be neither read, written nor truncated: a root directory of its own, or Landlock 3.
    #[default]
    Required,
    /// A root directory of its own.
    Namespaces,
    /// None.
    BestEffort,
}

/// Limits of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Memory of the whole tree, unless an attempt sets its own limit.
    pub memory_bytes: Option<u64>,
    /// Address space; not applied with a GPU.
    pub address_space_bytes: Option<u64>,
    /// The largest file that it may write.
    pub file_bytes: Option<u64>,
    /// Files that each process may have open.
    pub open_files: u64,
    /// Processes that may exist at once.
    pub processes: u64,
    /// The largest result that is accepted.
    pub result_bytes: usize,
    /// How much of the end of its output is kept for a failure.
    pub output_bytes: usize,
    /// How long it has to end by itself before it is killed.
    pub grace: Duration,
}

/// An executor that cannot be used.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The directory for work directories is unusable.
    #[error("cannot use `{path}` for work directories: {error}; set another one")]
    WorkRoot {
        /// The directory.
        path: PathBuf,
        /// The error.
        error: io::Error,
    },
    /// The sockets in it would have longer names than the kernel accepts.
    #[error(
        "the path `{path}` is too long for the sockets in it: use one of at most {most} bytes for work \
         directories"
    )]
    TooLong {
        /// The directory.
        path: PathBuf,
        /// The longest path.
        most: usize,
    },
    /// Another executor uses it.
    #[error("another executor works in `{0}`: give each its own directory")]
    InUse(PathBuf),
    /// The machine cannot confine its programs as required.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            memory_bytes: None,
            address_space_bytes: None,
            file_bytes: None,
            // As many as current distributions let a service open.
            open_files: 65_536,
            // A data loader on a large machine starts a hundred; a fork bomb starts more.
            processes: 1_024,
            // Images, audio, a minute of video; small beside a model, even when several tasks run at once.
            result_bytes: 64 * 1024 * 1024,
            // Some screens of a traceback.
            output_bytes: 16 * 1024,
            // The default of container runtimes.
            grace: Duration::from_secs(10),
        }
    }
}

impl Launcher {
    /// This program itself, which has [`crate::launcher::main`] as `subcommand`.
    pub fn this_program(subcommand: &str) -> Launcher {
        Launcher { program: PathBuf::from(THIS_PROGRAM), args: vec![subcommand.to_owned()] }
    }
}

impl Process {
    /// Prepares to run attempts: removes work directories that an earlier incarnation left behind.
    pub fn open(mut config: ProcessConfig) -> Result<Process, OpenError> {
        let (root, lock) = match directory::open_root(&config.work_root) {
            Ok(opened) => opened,
            Err(RootError::InUse) => return Err(OpenError::InUse(config.work_root)),
            Err(RootError::Io(error)) => {
                return Err(OpenError::WorkRoot { path: config.work_root, error });
            }
        };
        if root.as_os_str().len() > directory::MAX_ROOT_BYTES {
            return Err(OpenError::TooLong { path: root, most: directory::MAX_ROOT_BYTES });
        }
        let sandbox = Sandbox::detect(&config, &root)?;
        sandbox.check(config.confinement, config.network)?;
        // Absolute: the program runs in another directory.
        config.work_root = root;
        let stopping = CancellationToken::new();
        let state = Arc::new(ProcessState {
            cgroups: cgroups::detected(),
            pool: config.warm.map(Pool::new),
            config,
            sandbox,
            stopping: stopping.clone(),
            tasks: TaskTracker::new(),
        });
        Ok(Process(Arc::new(ProcessHandle {
            state,
            _stopping: stopping.drop_guard(),
            _lock: lock,
        })))
    }

    /// How its programs are confined on this machine.
    pub fn sandbox(&self) -> &Sandbox {
        &self.0.state.sandbox
    }

    /// What its programs can do here although they should not.
    pub fn gaps(&self) -> Vec<&'static str> {
        self.sandbox().gaps(self.0.state.config.network)
    }

    pub(crate) fn start(&self, attempt: Attempt) -> RunHandle {
        let state = Arc::clone(&self.0.state);
        let cancel = state.stopping.child_token();
        RunHandle::spawn(&self.0.state.tasks, cancel, move |control| async move {
            let outcome = match &state.pool {
                Some(pool) => warm::run(&state, pool, attempt, control).await,
                None => one_shot::run(&state, attempt, control).await,
            };
            outcome.unwrap_or_else(|error| RunError::Worker(error.to_string()).into())
        })
    }

    pub(crate) async fn stop(&self) {
        let state = &self.0.state;
        state.stopping.cancel();
        state.tasks.close();
        state.tasks.wait().await;
        if let Some(pool) = &state.pool {
            pool.clear();
        }
    }
}

/// Held by the users of an executor, not by its attempts, so that dropping the last user's handle ends them.
#[derive(Debug)]
struct ProcessHandle {
    state: Arc<ProcessState>,
    _stopping: DropGuard,
    /// Locks the directory against other executors.
    _lock: File,
}

/// State that users and attempts share.
#[derive(Debug)]
struct ProcessState {
    config: ProcessConfig,
    sandbox: Sandbox,
    cgroups: Option<PathBuf>,
    pool: Option<Pool>,
    stopping: CancellationToken,
    tasks: TaskTracker,
}

/// A failure of the worker; the attempt itself is not to blame.
#[derive(Debug, Error)]
enum ProcessError {
    #[error("cannot create its work directory: {0}")]
    Directory(io::Error),
    #[error("cannot open the bridge: {0}")]
    Bridge(io::Error),
    #[error("cannot start the launcher: {0}")]
    Start(io::Error),
    #[error("lost the supervisor: {0}")]
    Supervisor(String),
}
