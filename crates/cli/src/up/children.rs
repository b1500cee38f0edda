//! The nodes as child processes: started, restarted when they die, and stopped together. A node that rejects
//! its configuration would do so again: it is not restarted, and all are stopped.

use std::io;
use std::process::Stdio;
use std::time::Duration;

use hypha_local::NodeCommand;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::Command;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};

use crate::tasks::text::{clean, cut};
use crate::usage::Failure;

/// How long a node may take to stop before it is killed: a little more than it takes by itself.
const STOP_TIME: Duration = Duration::from_secs(15);

/// The delay before a dead node is restarted, the first time; doubled each time.
const RESTART_DELAY: Duration = Duration::from_millis(500);

/// The longest such delay.
const MAX_RESTART_DELAY: Duration = Duration::from_secs(30);

/// A node that ran for this long was healthy, and is restarted after the first delay.
const STABLE_AFTER: Duration = Duration::from_secs(30);

/// Pending notices of deaths; the first is enough.
const MAX_QUEUED_EXITS: usize = 16;

/// The exit code of a node with an invalid configuration.
const EXIT_INVALID_CONFIG: i32 = 2;

/// How much of a node's last line is repeated.
const MAX_LINE_CHARS: usize = 1_000;

/// How long to wait for the last lines of a node that has ended: another process may hold its output open.
const LAST_LINES_TIME: Duration = Duration::from_secs(1);

/// How a node ended.
pub(super) struct NodeExit {
    what: String,
    /// Its last line, if it would end the same way again.
    final_line: Option<String>,
}

impl NodeExit {
    fn new(what: impl Into<String>) -> NodeExit {
        NodeExit { what: what.into(), final_line: None }
    }

    /// The failure that ends `hypha up`.
    fn failure(self) -> Failure {
        match self.final_line {
            Some(line) => Failure::usage(format!("{}: {line}", self.what)),
            None => Failure::work(format!("up: {}; its lines above show why", self.what)),
        }
    }
}

/// A node that is kept running.
struct Child {
    node: NodeCommand,
}

impl Child {
    fn spawn(&self) -> io::Result<tokio::process::Child> {
        Command::from(self.node.command())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
    }

    /// Runs the node, restarting it, until it is to stop.
    async fn live(self, mut stop: watch::Receiver<bool>, exits: mpsc::Sender<NodeExit>) {
        let mut pause = RESTART_DELAY;
        loop {
            let began = tokio::time::Instant::now();
            let ended = self.once(&mut stop).await;
            if *stop.borrow() {
                return;
            }
            if began.elapsed() >= STABLE_AFTER {
                pause = RESTART_DELAY;
            }
            let again = ended.final_line.is_none();
            let what = format!("{} {}", self.node.name(), ended.what);
            if again {
                eprintln!("hypha up: {what}; restarting it in {pause:?}");
            }
            // If the channel is full, a notice is pending already.
            let _ = exits.try_send(NodeExit { what, ..ended });
            if !again {
                return;
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                _ = stop.changed() => return,
            }
            pause = (2 * pause).min(MAX_RESTART_DELAY);
        }
    }

    /// Runs it once, and returns how it ended.
    async fn once(&self, stop: &mut watch::Receiver<bool>) -> NodeExit {
        let mut child = match self.spawn() {
            Ok(child) => child,
            Err(error) => return NodeExit::new(format!("cannot be started: {error}")),
        };
        let id = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        spawn_lines(self.node.name(), child.stdout.take());
        let last = spawn_lines(self.node.name(), child.stderr.take());
        // Kept until the end of this function: dropping it would stop the node.
        let _stdin = child.stdin.take();
        let ended = tokio::select! {
            ended = child.wait() => ended,
            _ = stop.changed() => {
                if let Some(id) = id {
                    // It may have died in the meantime.
                    let _ = kill_process(id, Signal::TERM);
                }
                match tokio::time::timeout(STOP_TIME, child.wait()).await {
                    Ok(ended) => ended,
                    Err(_) => {
                        eprintln!("hypha up: {} does not stop; killing it", self.node.name());
                        let _ = child.start_kill();
                        child.wait().await
                    }
                }
            }
        };
        match ended {
            Ok(status) if status.code() == Some(EXIT_INVALID_CONFIG) => NodeExit {
                final_line: Some(last_line(last).await),
                ..NodeExit::new("cannot run as it is configured")
            },
            Ok(status) => NodeExit::new(format!("has ended ({status})")),
            Err(error) => NodeExit::new(format!("was lost: {error}")),
        }
    }
}

/// The last line that the node printed.
async fn last_line(lines: JoinHandle<String>) -> String {
    let line = match tokio::time::timeout(LAST_LINES_TIME, lines).await {
        Ok(Ok(line)) => line,
        _ => "its lines above show why".to_owned(),
    };
    let line = line.strip_prefix("hypha: ").unwrap_or(&line);
    cut(&clean(line), MAX_LINE_CHARS)
}

/// Prints a node's lines with its name before them, and returns the last.
fn spawn_lines(
    name: &str,
    output: Option<impl AsyncRead + Unpin + Send + 'static>,
) -> JoinHandle<String> {
    let name = name.to_owned();
    tokio::spawn(async move {
        let mut last = String::new();
        let Some(output) = output else { return last };
        let mut lines = BufReader::new(output).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            eprintln!("{name:<10} {line}");
            last = line;
        }
        last
    })
}

pub(super) struct Children {
    running: JoinSet<()>,
    stop: watch::Sender<bool>,
    died: mpsc::Sender<NodeExit>,
    exits: mpsc::Receiver<NodeExit>,
    signals: Signals,
}

struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl Signals {
    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

impl Children {
    /// No node runs yet.
    pub(super) fn new() -> Result<Children, Failure> {
        let listen = |kind| {
            signal(kind)
                .map_err(|error| Failure::work(format!("cannot listen for signals: {error}")))
        };
        let signals = Signals {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
        };
        let (stop, _) = watch::channel(false);
        let (died, exits) = mpsc::channel(MAX_QUEUED_EXITS);
        Ok(Children { running: JoinSet::new(), stop, died, exits, signals })
    }

    pub(super) fn start(&mut self, node: NodeCommand) {
        self.running.spawn(Child { node }.live(self.stop.subscribe(), self.died.clone()));
    }

    /// Waits for `something`; `None` if a signal comes first. A node that dies meanwhile would die again:
    /// that is an error.
    pub(super) async fn wait_for<T>(
        &mut self,
        something: impl Future<Output = T>,
    ) -> Result<Option<T>, Failure> {
        tokio::select! {
            done = something => Ok(Some(done)),
            () = self.signals.next() => Ok(None),
            Some(exit) = self.exits.recv() => Err(exit.failure()),
        }
    }

    /// Runs until a signal comes, or a node cannot be run any more; then stops them all.
    pub(super) async fn run(mut self) -> Result<(), Failure> {
        let failed = loop {
            tokio::select! {
                () = self.signals.next() => break None,
                Some(exit) = self.exits.recv() => {
                    if exit.final_line.is_some() {
                        break Some(exit.failure());
                    }
                }
            }
        };
        self.stop().await?;
        failed.map_or(Ok(()), Err)
    }

    pub(super) async fn stop(&mut self) -> Result<(), Failure> {
        eprintln!("hypha up: stopping");
        let _ = self.stop.send(true);
        while self.running.join_next().await.is_some() {}
        Ok(())
    }
}
