//! A program under its supervisor: started, stopped when requested, and reported on.

use std::io;
use std::os::fd::OwnedFd;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::process::{Child, Command};

use super::output::{self, CapturedOutput, Output, OutputReaders, Stdout};
use super::{ProcessError, ProcessState};
use crate::launcher::{ExitReason, Report, SUPERVISE_STAGE, SupervisorRequest};
use crate::outcome::RunError;

/// More than the supervisor needs to kill what it can: a node waits no longer for one that hangs.
const SUPERVISOR_SLACK: Duration = Duration::from_secs(15);
/// A report is one short line; no supervisor of ours sends more.
const MAX_REPORT_BYTES: u64 = 64 * 1024;
/// Pipes close when their last holder is gone, which the supervisor ensured; do not wait longer.
const PIPE_CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// A running program. If it is dropped, the supervisor kills the program by itself.
pub(super) struct SupervisedProgram {
    supervisor: Child,
    node: UnixStream,
    request: SupervisorRequest,
    readers: OutputReaders,
}

/// How a program ended. No process of it is left.
pub(super) struct ProgramEnd<W> {
    pub(super) exit_reason: ExitReason,
    /// Why it was stopped, if it was.
    pub(super) stopped: Option<W>,
    pub(super) output: Output,
}

impl SupervisedProgram {
    pub(super) fn start(
        state: &ProcessState,
        request: SupervisorRequest,
        stdout: Stdout,
    ) -> Result<SupervisedProgram, ProcessError> {
        let (mut supervisor, node) = spawn(state).map_err(ProcessError::Start)?;
        let (out, err) = (supervisor.stdout.take(), supervisor.stderr.take());
        let readers = output::capture(out, err, stdout, state.config.limits.output_bytes);
        Ok(SupervisedProgram { supervisor, node, request, readers })
    }

    pub(super) fn captured(&self) -> CapturedOutput {
        self.readers.captured()
    }

    /// Supervises the program until it ends by itself, or until `stop` resolves.
    pub(super) async fn supervise<W>(
        mut self,
        stop: impl Future<Output = W>,
    ) -> Result<ProgramEnd<W>, ProcessError> {
        let (mut reports, mut orders) = self.node.into_split();
        // A supervisor that is already gone explains that in its report, or by not sending one.
        let _ = send_request(&mut orders, &self.request).await;
        let report = report(&mut reports);
        tokio::pin!(report);
        let (report, stopped) = tokio::select! {
            report = &mut report => (report, None),
            why = stop => {
                // Closing our half is the message.
                drop(orders);
                let time_limit = Duration::from_millis(self.request.grace_ms) + SUPERVISOR_SLACK;
                let report = tokio::time::timeout(time_limit, report).await;
                (report.unwrap_or_else(|_| Err("it did not stop in time".to_owned())), Some(why))
            }
        };
        if report.is_err() {
            // It is of no further use.
            let _ = self.supervisor.start_kill();
        }
        // It has reported or was killed: this only reaps it.
        let _ = self.supervisor.wait().await;
        let output = self.readers.finish(PIPE_CLOSE_TIMEOUT).await;
        Ok(ProgramEnd { exit_reason: report.map_err(ProcessError::Supervisor)?, stopped, output })
    }
}

/// The exit code of a program that rejects its input: `EX_DATAERR` of `sysexits.h`.
const EXIT_BAD_INPUT: i32 = 65;

/// Why a program that ended so has no result; `None` if it succeeded.
pub(super) fn run_error_of(exit_reason: ExitReason) -> Option<RunError> {
    match exit_reason {
        ExitReason::Exited { code: 0 } => None,
        ExitReason::Exited { code: EXIT_BAD_INPUT } => {
            Some(RunError::Input(format!("the program ended with exit code {EXIT_BAD_INPUT}")))
        }
        ExitReason::Exited { code } => Some(RunError::Exit(code)),
        ExitReason::Signalled { signal } => Some(RunError::Signal(signal)),
        ExitReason::Memory { used_bytes, limit_bytes } => {
            Some(RunError::Memory { used_bytes, limit_bytes })
        }
        ExitReason::Processes { count, limit } => Some(RunError::Processes { count, limit }),
        // No stop was requested: its supervisor lost the connection to us.
        ExitReason::Stopped => Some(RunError::Worker("the supervisor stopped it".to_owned())),
    }
}

fn spawn(state: &ProcessState) -> io::Result<(Child, UnixStream)> {
    let (node, supervisor) = std::os::unix::net::UnixStream::pair()?;
    node.set_nonblocking(true)?;
    let launcher = &state.config.launcher;
    let child = Command::new(&launcher.program)
        .args(&launcher.args)
        .arg(SUPERVISE_STAGE)
        .env_clear()
        .stdin(Stdio::from(OwnedFd::from(supervisor)))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // A signal from the terminal is for the node, which then stops its attempts gracefully.
        .process_group(0)
        .spawn()?;
    Ok((child, UnixStream::from_std(node)?))
}

async fn send_request(orders: &mut OwnedWriteHalf, request: &SupervisorRequest) -> io::Result<()> {
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    orders.write_all(&line).await
}

async fn report(reports: &mut OwnedReadHalf) -> Report {
    let mut bytes = Vec::new();
    match reports.take(MAX_REPORT_BYTES).read_to_end(&mut bytes).await {
        // A supervisor that ends with its request unread resets the connection: there is no report, as below.
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {}
        Err(error) => return Err(error.to_string()),
    }
    serde_json::from_slice(&bytes).map_err(|_| "it ended without a report".to_owned())?
}
