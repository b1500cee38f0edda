//! Starts the launcher, watches the program, and leaves no process behind.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitStatus, getpid, pidfd_open, set_child_subreaper,
};
use thiserror::Error;

use super::cgroup::Cgroup;
use super::{
    EXEC_STAGE, ExitReason, LAUNCH_VARIABLE, LaunchSpec, Report, SupervisorRequest, THIS_PROGRAM,
    tree,
};

/// The interval between memory samples. A sample walks `/proc`, about 2 ms on a machine with 200 processes: a
/// fiftieth of a core for each attempt.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(100);
/// A slow sample, among thousands of processes, is taken less often, so that it costs no more.
const SAMPLE_COST_FACTOR: u32 = 50;
/// But never less often than this: a program that grows must not fill the machine first.
const MAX_SAMPLE_INTERVAL: Duration = Duration::from_secs(1);
/// The delay between two rounds of kills: a killed process needs a moment to exit.
const KILL_INTERVAL: Duration = Duration::from_millis(2);
/// A process in uninterruptible sleep cannot be killed; the supervisor must not wait for it for ever.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, Error)]
enum SuperviseError {
    #[error("cannot talk to the node: {0}")]
    Node(io::Error),
    #[error("the request cannot be read: {0}")]
    Request(#[from] serde_json::Error),
    #[error("cannot adopt orphans: {0}")]
    Adopt(rustix::io::Errno),
    #[error("cannot open the input: {0}")]
    Input(io::Error),
    #[error("cannot start the launcher: {0}")]
    Start(io::Error),
    #[error("cannot watch the program: {0}")]
    Watch(rustix::io::Errno),
    #[error("some of the program's processes could not be killed in {} s", KILL_TIMEOUT.as_secs())]
    Unkillable,
}

pub(super) fn main() -> ExitCode {
    let node = match io::stdin().as_fd().try_clone_to_owned() {
        Ok(fd) => UnixStream::from(fd),
        Err(_) => return ExitCode::FAILURE,
    };
    let report: Report = supervise(&node).map_err(|error| error.to_string());
    let sent = serde_json::to_vec(&report).map(|line| (&node).write_all(&line));
    // A node that is gone needs no report; everything is cleaned up all the same.
    if matches!(sent, Ok(Ok(()))) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn supervise(node: &UnixStream) -> Result<ExitReason, SuperviseError> {
    let mut line = String::new();
    // The node sends nothing after the request, so only its end can be lost in this buffer.
    BufReader::new(node).read_line(&mut line).map_err(SuperviseError::Node)?;
    let request: SupervisorRequest = serde_json::from_str(&line)?;
    set_child_subreaper(Some(getpid())).map_err(SuperviseError::Adopt)?;
    let cgroup = request.cgroup.as_ref().and_then(|plan| match Cgroup::make(plan) {
        Ok(cgroup) => Some(cgroup),
        Err(error) => {
            // The limits hold all the same: they are watched below.
            eprintln!("hypha: cannot create a control group: {error}");
            None
        }
    });
    let main = start(&request, cgroup.as_ref())?;
    let exit_reason = watch(node, main, &request, cgroup.as_ref());
    // Whatever the outcome, even if the watching itself failed, no process is left.
    let gone = kill_all(main, cgroup.as_ref());
    let exit_reason = exit_reason?;
    if !gone {
        return Err(SuperviseError::Unkillable);
    }
    let oom_kill = cgroup.as_ref().and_then(Cgroup::oom_kill);
    Ok(match (exit_reason, oom_kill) {
        // The kernel killed it by itself.
        (
            ExitReason::Exited { code: 1.. } | ExitReason::Signalled { .. },
            Some((used_bytes, limit_bytes)),
        ) => ExitReason::Memory { used_bytes, limit_bytes },
        (exit_reason, _) => exit_reason,
    })
}

fn start(request: &SupervisorRequest, cgroup: Option<&Cgroup>) -> Result<Pid, SuperviseError> {
    let input = File::open(&request.input).map_err(SuperviseError::Input)?;
    // The arguments before the stage lead the node's program to this code, e.g. its subcommand.
    let mut launcher_args: Vec<_> = std::env::args_os().skip(1).collect();
    launcher_args.pop();
    let group = cgroup.map(|cgroup| cgroup.path().to_owned());
    let launch = LaunchSpec { cgroup: group, ..request.launch.clone() };
    let child = Command::new(THIS_PROGRAM)
        .args(launcher_args)
        .arg(EXEC_STAGE)
        .env_clear()
        .env(LAUNCH_VARIABLE, serde_json::to_string(&launch)?)
        .stdin(Stdio::from(input))
        .spawn()
        .map_err(SuperviseError::Start)?;
    // It is reaped below together with all adopted processes, never through this handle.
    Ok(Pid::from_child(&child))
}

/// Returns when the program itself has ended, or the whole tree after a request to stop, or the grace period
/// is over, or a limit is exceeded.
fn watch(
    node: &UnixStream,
    main: Pid,
    request: &SupervisorRequest,
    cgroup: Option<&Cgroup>,
) -> Result<ExitReason, SuperviseError> {
    let memory_bytes = match cgroup {
        // The kernel counts better: a page that two processes share counts once.
        Some(cgroup) if cgroup.limits_memory() => None,
        _ => request.memory_bytes,
    };
    let program = pidfd_open(main, PidfdFlags::empty()).map_err(SuperviseError::Watch)?;
    let mut stop_by: Option<Instant> = None;
    let mut ended = false;
    let mut sample_interval = SAMPLE_INTERVAL;
    loop {
        let left = match stop_by {
            Some(by) => by.saturating_duration_since(Instant::now()).min(SAMPLE_INTERVAL),
            None => sample_interval,
        };
        let node_spoke =
            wait_for(stop_by.is_none().then_some(node), (!ended).then_some(&program), left)?;
        if let Some(status) = tree::reap(main) {
            ended = true;
            if stop_by.is_none() {
                return Ok(exit_reason_of(status));
            }
        }
        let looked = Instant::now();
        let descendants = tree::descendants();
        sample_interval =
            (looked.elapsed() * SAMPLE_COST_FACTOR).clamp(SAMPLE_INTERVAL, MAX_SAMPLE_INTERVAL);
        if let Some(by) = stop_by {
            if descendants.is_empty() || Instant::now() >= by {
                return Ok(ExitReason::Stopped);
            }
        } else if node_spoke {
            // The node sends nothing after its request: it closed its half, or it is gone.
            stop_by = Some(Instant::now() + Duration::from_millis(request.grace_ms));
            tree::signal(&descendants, Signal::TERM);
        }
        if let Some(over) = over_limit(&descendants, memory_bytes, request.processes) {
            return Ok(over);
        }
    }
}

/// Waits for the node, the program or the timeout; returns whether it was the node.
fn wait_for(
    node: Option<&UnixStream>,
    program: Option<&OwnedFd>,
    time: Duration,
) -> Result<bool, SuperviseError> {
    let timeout = Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: time.subsec_nanos().into(),
    };
    let mut watched = Vec::new();
    watched.extend(node.map(|node| PollFd::new(node, PollFlags::IN)));
    watched.extend(program.map(|program| PollFd::new(program, PollFlags::IN)));
    match poll(&mut watched, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {
            let spoke = |first: &PollFd<'_>| !first.revents().is_empty();
            Ok(node.is_some() && watched.first().is_some_and(spoke))
        }
        Err(error) => Err(SuperviseError::Watch(error)),
    }
}

fn over_limit(
    descendants: &[tree::ProcessInfo],
    memory_bytes: Option<u64>,
    processes: u64,
) -> Option<ExitReason> {
    let used_bytes = tree::resident_bytes(descendants);
    if let Some(limit_bytes) = memory_bytes.filter(|limit| used_bytes > *limit) {
        return Some(ExitReason::Memory { used_bytes, limit_bytes });
    }
    let count = descendants.len() as u64;
    (count > processes).then_some(ExitReason::Processes { count, limit: processes })
}

fn exit_reason_of(status: WaitStatus) -> ExitReason {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => ExitReason::Exited { code },
        (None, signal) => ExitReason::Signalled { signal: signal.unwrap_or(0) },
    }
}

/// Kills until no process is left; returns whether that succeeded in time. A process that forks while it is
/// being killed leaves a child for the next round, so all are stopped before the first one is killed.
fn kill_all(main: Pid, cgroup: Option<&Cgroup>) -> bool {
    if let Some(cgroup) = cgroup {
        cgroup.kill();
    }
    let give_up = Instant::now() + KILL_TIMEOUT;
    loop {
        tree::reap(main);
        let descendants = tree::descendants();
        if descendants.is_empty() {
            tree::reap(main);
            return true;
        }
        if Instant::now() >= give_up {
            return false;
        }
        tree::signal(&descendants, Signal::STOP);
        tree::signal(&descendants, Signal::KILL);
        std::thread::sleep(KILL_INTERVAL);
    }
}
