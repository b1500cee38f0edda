//! One node as a child process: started, killed, stopped, frozen, and never left behind.

use std::fs::{self, File};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};

/// How long a node may take to stop when it is asked to, or to reach a planted crash: with default settings a worker
/// that was restarted may be searched for only after a minute.
const STOP_TIMEOUT: Duration = Duration::from_secs(150);
/// How often conditions are polled.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// The signal that `abort` ends a process with.
const SIGABRT: i32 = 6;

pub(crate) struct Node {
    pub(crate) name: String,
    role: &'static str,
    program: PathBuf,
    directory: PathBuf,
    /// Its configuration besides its file.
    variables: Vec<(String, String)>,
    /// The command that runs it in another environment, if any.
    wrapper_command: Vec<String>,
    running: Option<Running>,
    /// How many times it was started.
    incarnation: u32,
}

struct Running {
    /// Its standard input stays open for as long as we run: when it closes, the node stops, however we ended.
    child: Child,
    log: PathBuf,
    /// Resumes it when we thaw it, or when we end, if it is frozen.
    thaw: Option<Child>,
}

impl Node {
    pub(crate) fn new(
        program: &Path,
        directory: &Path,
        role: &'static str,
        name: &str,
        variables: Vec<(String, String)>,
    ) -> Node {
        Node {
            name: name.to_owned(),
            role,
            program: program.to_owned(),
            directory: directory.to_owned(),
            variables,
            wrapper_command: Vec::new(),
            running: None,
            incarnation: 0,
        }
    }

    /// From its next start on, it is started by this command.
    pub(crate) fn set_wrapper_command(&mut self, command: Vec<String>) {
        self.wrapper_command = command;
    }

    /// Starts it, with an optional planted crash point.
    pub(crate) fn start(&mut self, crash_at: Option<&str>) -> anyhow::Result<()> {
        self.incarnation += 1;
        let log = self.log();
        let output = File::create(&log).with_context(|| format!("cannot write {log:?}"))?;
        let mut words =
            self.wrapper_command.iter().map(String::as_ref).chain([self.program.as_os_str()]);
        let mut command = Command::new(words.next().unwrap_or(self.program.as_os_str()));
        command
            .args(words)
            .arg(self.role)
            .args(["run", "--stop-with-stdin", "-c"])
            .arg(self.directory.join(format!("{0}/{0}.toml", self.name)))
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .current_dir(&self.directory)
            .stdin(Stdio::piped())
            .stdout(output.try_clone()?)
            .stderr(output)
            // A Ctrl-C ends us, which closes its input and so stops it.
            .process_group(0);
        if let Some(point) = crash_at {
            command.env("HYPHA_CRASH_AT", point);
        }
        let child = command.spawn().with_context(|| format!("cannot start {}", self.name))?;
        self.running = Some(Running { child, log, thaw: None });
        Ok(())
    }

    pub(crate) fn incarnation(&self) -> u32 {
        self.incarnation
    }

    /// The log of its current incarnation, or of the last.
    pub(crate) fn log(&self) -> PathBuf {
        self.directory.join(format!("logs/{}-{}.log", self.name, self.incarnation))
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

    /// Asks it to stop, as `kill` and service managers do, and waits until it has.
    pub(crate) fn stop(&mut self) -> anyhow::Result<()> {
        self.check_alive()?;
        self.signal(Signal::TERM)?;
        let status = self.wait_for_end(STOP_TIMEOUT)?;
        if !status.success() {
            bail!("{} was asked to stop and ended with {status}", self.name);
        }
        Ok(())
    }

    /// Suspends it until [`Node::thaw`], or until we end.
    pub(crate) fn freeze(&mut self) -> anyhow::Result<()> {
        self.check_alive()?;
        self.signal(Signal::STOP)?;
        let Some(running) = &mut self.running else { bail!("{} does not run", self.name) };
        let script = format!("cat > /dev/null; kill -CONT {}", running.child.id());
        let mut command = Command::new("sh");
        command.args(["-c", &script]).stdin(Stdio::piped()).process_group(0);
        running.thaw = Some(command.spawn().context("cannot start sh")?);
        Ok(())
    }

    /// Resumes it.
    pub(crate) fn thaw(&mut self) -> anyhow::Result<()> {
        let thaw = self.running.as_mut().and_then(|running| running.thaw.take());
        if let Some(mut thaw) = thaw {
            drop(thaw.stdin.take());
            thaw.wait()?;
        }
        Ok(())
    }

    /// Waits until it has crashed at the planted point.
    pub(crate) fn wait_for_crash(&mut self, point: &str) -> anyhow::Result<()> {
        let log = self.log();
        let status =
            self.wait_for_end(STOP_TIMEOUT).context("the planted point was not reached")?;
        let said = fs::read_to_string(&log).unwrap_or_default();
        let hit = said.lines().any(|line| line.strip_prefix("crash point ") == Some(point));
        if status.signal() != Some(SIGABRT) || !hit {
            bail!("{} was to crash at {point} and ended with {status}; see {log:?}", self.name);
        }
        Ok(())
    }

    /// Fails if it ended without having been killed.
    pub(crate) fn check_alive(&mut self) -> anyhow::Result<()> {
        let Some(running) = &mut self.running else { return Ok(()) };
        if let Some(status) = running.child.try_wait()? {
            bail!("{} ended unexpectedly ({status}); see {:?}", self.name, running.log);
        }
        Ok(())
    }

    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let Some(running) = &self.running else { bail!("{} does not run", self.name) };
        kill_process(Pid::from_child(&running.child), signal)
            .with_context(|| format!("cannot signal {}", self.name))
    }

    fn wait_for_end(&mut self, timeout: Duration) -> anyhow::Result<ExitStatus> {
        let Some(mut running) = self.running.take() else { bail!("{} does not run", self.name) };
        let until = Instant::now() + timeout;
        loop {
            if let Some(status) = running.child.try_wait()? {
                return Ok(status);
            }
            if Instant::now() >= until {
                let log = running.log.clone();
                self.running = Some(running);
                bail!("{} has not ended after {timeout:?}; see {log:?}", self.name);
            }
            thread::sleep(POLL_INTERVAL);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already; then both do nothing.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(mut thaw) = self.thaw.take() {
            drop(thaw.stdin.take());
            let _ = thaw.wait();
        }
    }
}
