//! One node as a child process: started, killed, stopped, and never left behind.

use std::fs::{self, File};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

/// How long a node may take to stop when it is asked to, or to come to a planted end.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often we look whether something has happened.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(5);
/// What `abort` ends a process with.
const SIGABRT: i32 = 6;

pub(crate) struct Node {
    pub(crate) name: String,
    role: &'static str,
    program: PathBuf,
    directory: PathBuf,
    flags: Vec<String>,
    running: Option<Running>,
    /// How many times it was started.
    life: u32,
}

struct Running {
    /// Its standard input stays open for as long as we live: when it closes, the node stops, however we ended.
    child: Child,
    log: PathBuf,
}

impl Node {
    pub(crate) fn new(
        program: &Path,
        directory: &Path,
        role: &'static str,
        name: &str,
        flags: &[&str],
    ) -> Node {
        Node {
            name: name.to_owned(),
            role,
            program: program.to_owned(),
            directory: directory.to_owned(),
            flags: flags.iter().map(|&flag| flag.to_owned()).collect(),
            running: None,
            life: 0,
        }
    }

    /// Starts it, with a point planted at which it dies.
    pub(crate) fn start(&mut self, crash_at: Option<&str>) -> anyhow::Result<()> {
        self.life += 1;
        let log = self.directory.join(format!("logs/{}-{}.log", self.name, self.life));
        let output = File::create(&log).with_context(|| format!("cannot write {log:?}"))?;
        let mut command = Command::new(&self.program);
        command
            .arg(self.role)
            .args(["run", "--stop-with-stdin", "-c", &format!("{}.toml", self.name)])
            .args(&self.flags)
            .current_dir(&self.directory)
            .stdin(Stdio::piped())
            .stdout(output.try_clone()?)
            .stderr(output)
            // A Ctrl-C ends us, and with our end of its input it.
            .process_group(0);
        if let Some(point) = crash_at {
            command.env("HYPHA_CRASH_AT", point);
        }
        let child = command.spawn().with_context(|| format!("cannot start {}", self.name))?;
        self.running = Some(Running { child, log });
        Ok(())
    }

    pub(crate) fn life(&self) -> u32 {
        self.life
    }

    /// The log of its present life, or of the last.
    pub(crate) fn log(&self) -> PathBuf {
        self.directory.join(format!("logs/{}-{}.log", self.name, self.life))
    }

    /// Kills it, as `kill -9` does.
    pub(crate) fn kill(&mut self) -> anyhow::Result<()> {
        self.check_alive()?;
        if let Some(mut running) = self.running.take() {
            running.child.kill()?;
            running.child.wait()?;
        }
        Ok(())
    }

    /// Asks it to stop, and waits until it has.
    pub(crate) fn stop(&mut self) -> anyhow::Result<()> {
        self.check_alive()?;
        if let Some(running) = &mut self.running {
            drop(running.child.stdin.take());
        }
        let status = self.wait_for_end(PATIENCE)?;
        if !status.success() {
            bail!("{} was asked to stop and ended with {status}", self.name);
        }
        Ok(())
    }

    /// Waits until it has died at the point that was planted.
    pub(crate) fn wait_for_crash(&mut self, point: &str) -> anyhow::Result<()> {
        let log = self.log();
        let status = self.wait_for_end(PATIENCE).context("the planted point was not reached")?;
        let said = fs::read_to_string(&log).unwrap_or_default();
        let hit = said.lines().any(|line| line.strip_prefix("crash point ") == Some(point));
        if status.signal() != Some(SIGABRT) || !hit {
            bail!("{} was to die at {point} and ended with {status}; see {log:?}", self.name);
        }
        Ok(())
    }

    /// Fails if it died without having been killed.
    pub(crate) fn check_alive(&mut self) -> anyhow::Result<()> {
        let Some(running) = &mut self.running else { return Ok(()) };
        if let Some(status) = running.child.try_wait()? {
            bail!("{} died by itself ({status}); see {:?}", self.name, running.log);
        }
        Ok(())
    }

    fn wait_for_end(&mut self, patience: Duration) -> anyhow::Result<ExitStatus> {
        let Some(mut running) = self.running.take() else { bail!("{} does not run", self.name) };
        let until = Instant::now() + patience;
        loop {
            if let Some(status) = running.child.try_wait()? {
                return Ok(status);
            }
            if Instant::now() >= until {
                let log = running.log.clone();
                self.running = Some(running);
                bail!("{} has not ended after {patience:?}; see {log:?}", self.name);
            }
            thread::sleep(LOOK_EVERY);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already; then both do nothing.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
