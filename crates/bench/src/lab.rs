//! The environment of a measurement: a directory for its files, and processes that do not outlive it.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, bail};
use hypha_local::{NodeCommand, NodeFiles, prepare};
use rustix::process::{Pid, Signal, kill_process_group};
use tempfile::TempDir;

/// The last lines of a log that are shown when its process has failed.
const TAIL_LINES: usize = 5;

/// Declare it before the processes: they must have ended when it removes their files.
pub(crate) struct Lab {
    directory: TempDir,
}

/// A process that is killed when dropped.
pub(crate) struct Process {
    child: Child,
    log: PathBuf,
}

impl Lab {
    pub(crate) fn new(within: Option<&Path>) -> anyhow::Result<Lab> {
        let mut builder = tempfile::Builder::new();
        let builder = builder.prefix("hypha-bench-");
        let directory = match within {
            Some(within) => builder.tempdir_in(within),
            None => builder.tempdir(),
        };
        Ok(Lab { directory: directory.context("cannot make a directory for the nodes' files")? })
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Writes certificates and configurations.
    pub(crate) fn files(&self, nodes: &[NodeFiles]) -> anyhow::Result<()> {
        prepare(self.directory.path(), nodes)?;
        Ok(())
    }

    /// Starts a node whose [`Lab::files`] were written.
    pub(crate) fn node(
        &self,
        name: &str,
        role: &'static str,
        adjust: impl FnOnce(NodeCommand) -> NodeCommand,
    ) -> anyhow::Result<Process> {
        let child = NodeCommand::new(name, role, self.path(&format!("{name}.toml")));
        self.start(name, &mut adjust(child).command())
    }

    /// Starts a server of this program, and reads the addresses that it prints.
    pub(crate) fn server(
        &self,
        name: &str,
        arguments: &[String],
    ) -> anyhow::Result<(Process, Vec<SocketAddr>)> {
        let mut command = Command::new("/proc/self/exe");
        command.arg("bench").args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let log = self.path(&format!("{name}.log"));
        command.stderr(File::create(&log).context("cannot write a log")?);
        let mut process = spawn(name, &mut command, log)?;
        let output = process.child.stdout.take().context("a server has no output")?;
        let mut line = String::new();
        BufReader::new(output)
            .read_line(&mut line)
            .context("a server has not printed its address")?;
        let addresses: Result<Vec<SocketAddr>, _> =
            line.split_whitespace().map(str::parse).collect();
        match addresses {
            Ok(addresses) if !addresses.is_empty() => Ok((process, addresses)),
            _ => bail!("the server {name} has not printed its address: {}", process.tail()),
        }
    }

    /// Starts any program, with its output in a log.
    pub(crate) fn start(&self, name: &str, command: &mut Command) -> anyhow::Result<Process> {
        let log = self.path(&format!("{name}.log"));
        // A program that is started again appends to its log.
        let file = File::options().create(true).append(true).open(&log);
        let file = file.context("cannot write a log")?;
        let again = file.try_clone().context("cannot write a log")?;
        spawn(name, command.stdout(file).stderr(again), log)
    }
}

/// Starts a process in a group of its own, so that its children end with it.
fn spawn(name: &str, command: &mut Command, log: PathBuf) -> anyhow::Result<Process> {
    let child = command.process_group(0).spawn().with_context(|| format!("cannot start {name}"))?;
    Ok(Process { child, log })
}

/// An address with a port that is currently unused.
pub(crate) fn free_address() -> anyhow::Result<SocketAddr> {
    let port = hypha_local::free_port().context("cannot find a free port")?;
    Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
}

impl Process {
    /// Fails if the process has ended, with the last lines of its log.
    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
        match self.child.try_wait().context("a process was lost")? {
            None => Ok(()),
            Some(status) => bail!("a process has ended ({status}): {}", self.tail()),
        }
    }

    pub(crate) fn tail(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(TAIL_LINES)..].join("; ")
    }

    /// Its resident memory, in bytes.
    pub(crate) fn memory_bytes(&self) -> anyhow::Result<u64> {
        self.status_bytes("VmRSS:")
    }

    /// Its peak resident memory, in bytes.
    pub(crate) fn peak_memory_bytes(&self) -> anyhow::Result<u64> {
        self.status_bytes("VmHWM:")
    }

    fn status_bytes(&self, name: &str) -> anyhow::Result<u64> {
        let path = format!("/proc/{}/status", self.child.id());
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        bytes_of(&text, name).with_context(|| format!("{path} does not report the memory"))
    }

    /// Kills it with SIGKILL, and returns when it has ended.
    pub(crate) fn kill(&mut self) {
        // The id of a process that was waited for may belong to another one by now.
        if let Ok(None) = self.child.try_wait() {
            let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        }
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

fn bytes_of(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1_024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_parsed() {
        let status = "VmHWM:\t 4096 kB\nVmRSS:\t    2048 kB\nX: 1\n";
        assert_eq!(bytes_of(status, "VmRSS:"), Some(2 << 20));
        assert_eq!(bytes_of(status, "VmHWM:"), Some(4 << 20));
        assert_eq!(bytes_of("Name:\tx\n", "VmRSS:"), None);
    }

    #[test]
    fn processes_and_files_do_not_outlive_a_lab() {
        let lab = Lab::new(None).unwrap();
        let directory = lab.directory.path().to_owned();
        let mut process = lab.start("sleeper", Command::new("sleep").arg("600")).unwrap();
        process.check().unwrap();
        let id = process.child.id();
        drop((process, lab));
        assert!(!Path::new(&format!("/proc/{id}")).exists());
        assert!(!directory.exists());
    }

    #[test]
    fn a_process_that_has_ended_is_reported() {
        let lab = Lab::new(None).unwrap();
        let mut command = Command::new("sh");
        let mut process = lab.start("talker", command.args(["-c", "echo oh no"])).unwrap();
        process.child.wait().unwrap();
        assert!(process.check().unwrap_err().to_string().contains("oh no"));
    }
}
