//! Attempts of one shell script each.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use hypha_executor::{
    Attempt, Confinement, Executor, Launcher, Limits, Process, ProcessConfig, RunFailure,
    RunOutcome,
};
use hypha_model::{AttemptId, Payload, TaskId};
use uuid::Uuid;

/// Longer than anything here takes on a loaded machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// An executor of shell scripts with a directory of its own.
pub(crate) struct Bench {
    pub(crate) config: ProcessConfig,
    pub(crate) root: tempfile::TempDir,
}

impl Bench {
    pub(crate) fn new(script: &str) -> Bench {
        let root = tempfile::tempdir().unwrap();
        let config = ProcessConfig {
            launcher: Launcher {
                program: PathBuf::from(env!("CARGO_BIN_EXE_hypha-launcher")),
                args: Vec::new(),
            },
            command: PathBuf::from("sh"),
            args: vec!["-c".to_owned(), script.to_owned()],
            environment: Default::default(),
            warm: None,
            work_root: root.path().join("work"),
            read: Vec::new(),
            write: Vec::new(),
            network: true,
            confinement: Confinement::Required,
            limits: Limits { grace: Duration::from_millis(300), ..Limits::default() },
        };
        Bench { config, root }
    }

    pub(crate) fn executor(&self) -> Executor {
        Executor::Process(Process::open(self.config.clone()).unwrap())
    }

    /// A file beside the work directories that the script may write to, as `KEPT`.
    pub(crate) fn keep(&mut self) -> PathBuf {
        let kept = self.root.path().join("kept");
        std::fs::create_dir(&kept).unwrap();
        self.config.write.push(kept.clone());
        let file = kept.join("file");
        self.config.args[1] = self.config.args[1].replace("KEPT", &file.display().to_string());
        file
    }

    pub(crate) async fn run(&self, attempt: Attempt) -> RunOutcome {
        within(self.executor().start(attempt).outcome()).await
    }

    /// The work directory of the only attempt.
    pub(crate) async fn directory(&self) -> PathBuf {
        eventually("a work directory is made", || self.directories().pop()).await
    }

    /// No process or directory of any attempt is left.
    pub(crate) fn assert_empty(&self) {
        assert_eq!(self.directories(), <[PathBuf; 0]>::default());
        assert_eq!(zombies(), <[u32; 0]>::default());
        assert_eq!(self.at_work(), <[u32; 0]>::default());
    }

    /// Processes whose working directory is a work directory, even a removed one.
    fn at_work(&self) -> Vec<u32> {
        let below = |pid: &u32| {
            let stands = std::fs::read_link(format!("/proc/{pid}/cwd"));
            stands.is_ok_and(|path| path.starts_with(&self.config.work_root))
        };
        processes().filter(below).collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.directories().is_empty()
    }

    fn directories(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(&self.config.work_root).into_iter().flatten();
        let paths = entries.map(|entry| entry.unwrap().path());
        paths.filter(|path| path.is_dir()).collect()
    }
}

/// Zombie children of this process.
fn zombies() -> Vec<u32> {
    let me = std::process::id().to_string();
    let is_zombie = |pid: &u32| {
        let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
        let Some((_, after)) = stat.rsplit_once(") ") else { return false };
        after.starts_with("Z ") && after.split(' ').nth(1) == Some(me.as_str())
    };
    processes().filter(is_zombie).collect()
}

fn processes() -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir("/proc").unwrap();
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

pub(crate) fn attempt(model: &str, input: &str) -> Attempt {
    Attempt {
        form: hypha_model::InputKind::Task,
        id: AttemptId { task: TaskId::from_uuid(Uuid::from_u128(7)), number: 1 },
        model: model.parse().unwrap(),
        input: Payload::from(input.as_bytes()),
        devices: Vec::new(),
        cpus: Vec::new(),
        memory_bytes: None,
        stream: false,
    }
}

/// `call METHOD ROUTE [curl's arguments]` in a script.
pub(crate) const CALL: &str = r#"call() { m=$1; r=$2; shift 2; curl -sS --fail-with-body -X $m \
    --unix-socket "$HYPHA_BRIDGE" -H "Authorization: Bearer $HYPHA_BRIDGE_TOKEN" "$@" http://attempt$r; }
"#;

pub(crate) async fn within<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(TIMEOUT, what).await.expect("it takes too long")
}

/// Waits until `probe` returns something.
pub(crate) async fn eventually<T>(what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + TIMEOUT;
    loop {
        if let Some(found) = probe() {
            return found;
        }
        assert!(Instant::now() < until, "never happened: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The numbers in a file, once there are `count` of them.
pub(crate) async fn pids(file: &Path, count: usize) -> Vec<u32> {
    eventually("the processes start", || {
        let text = std::fs::read_to_string(file).ok()?;
        let found: Vec<u32> = text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect();
        (found.len() == count && text.ends_with('\n')).then_some(found)
    })
    .await
}

pub(crate) fn lives(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

pub(crate) fn text(outcome: &RunOutcome) -> String {
    match outcome {
        RunOutcome::Completed { payload } => String::from_utf8(payload.bytes().to_vec()).unwrap(),
        other => panic!("no result: {other:?}"),
    }
}

pub(crate) fn failure(outcome: RunOutcome) -> RunFailure {
    match outcome {
        RunOutcome::Failed(failure) => failure,
        other => panic!("not failed: {other:?}"),
    }
}
