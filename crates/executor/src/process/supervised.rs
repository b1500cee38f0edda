//! A program under its supervisor: started, listened to, stopped when it must be, and reported on.

use std::io;
use std::os::fd::OwnedFd;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::process::{Child, Command};

use super::output::{self, Gathering, Output, Stdout, Written};
use super::{House, RunError};
use crate::launcher::{Ending, Order, Report, SUPERVISE};
use crate::outcome::JobError;

/// More than the supervisor takes to kill what it can: a node waits no longer for one that hangs.
const SUPERVISOR_SLACK: Duration = Duration::from_secs(15);
/// A report is one short line; no supervisor of ours sends more.
const MAX_REPORT_BYTES: u64 = 64 * 1024;
/// Pipes are closed when their last holder is gone, which the supervisor saw to; it is not waited for longer.
const PIPES_CLOSE_WITHIN: Duration = Duration::from_secs(5);

/// A program that was started. If it is dropped, the supervisor ends the program by itself.
pub(super) struct Supervised {
    supervisor: Child,
    node: UnixStream,
    order: Order,
    gathering: Gathering,
}

/// How a program ended. Nothing of it is left.
pub(super) struct Ended<W> {
    pub(super) ending: Ending,
    /// Why it was told to stop, if it was.
    pub(super) stopped: Option<W>,
    pub(super) output: Output,
}

impl Supervised {
    pub(super) fn start(
        house: &House,
        order: Order,
        stdout: Stdout,
    ) -> Result<Supervised, RunError> {
        let (mut supervisor, node) = spawn(house).map_err(RunError::Start)?;
        let (out, err) = (supervisor.stdout.take(), supervisor.stderr.take());
        let gathering = output::gather(out, err, stdout, house.config.limits.output_bytes);
        Ok(Supervised { supervisor, node, order, gathering })
    }

    pub(super) fn written(&self) -> Written {
        self.gathering.written()
    }

    /// Sees the program through until it ends by itself, or until `stop` says that it must.
    pub(super) async fn attend<W>(
        mut self,
        stop: impl Future<Output = W>,
    ) -> Result<Ended<W>, RunError> {
        let (mut reports, mut orders) = self.node.into_split();
        // A supervisor that is gone already says why in its report, or by not sending one.
        let _ = give(&mut orders, &self.order).await;
        let report = report(&mut reports);
        tokio::pin!(report);
        let (report, stopped) = tokio::select! {
            report = &mut report => (report, None),
            why = stop => {
                // Closing our half is the message.
                drop(orders);
                let patience = Duration::from_millis(self.order.grace_ms) + SUPERVISOR_SLACK;
                let report = tokio::time::timeout(patience, report).await;
                (report.unwrap_or_else(|_| Err("it did not stop in time".to_owned())), Some(why))
            }
        };
        if report.is_err() {
            // Nothing of it is of use any more.
            let _ = self.supervisor.start_kill();
        }
        // It has reported or was killed: this only collects it.
        let _ = self.supervisor.wait().await;
        let output = self.gathering.finish(PIPES_CLOSE_WITHIN).await;
        Ok(Ended { ending: report.map_err(RunError::Supervisor)?, stopped, output })
    }
}

/// The exit code of a program that says that its input is at fault: `EX_DATAERR` of `sysexits.h`.
const BAD_INPUT: i32 = 65;

/// Why a program that ended so has no result; none if it ended well.
pub(super) fn error_of(ending: Ending) -> Option<JobError> {
    match ending {
        Ending::Exited { code: 0 } => None,
        Ending::Exited { code: BAD_INPUT } => {
            Some(JobError::Input(format!("the program ended with exit code {BAD_INPUT}")))
        }
        Ending::Exited { code } => Some(JobError::Exit(code)),
        Ending::Signalled { signal } => Some(JobError::Signal(signal)),
        Ending::Memory { used_bytes, limit_bytes } => {
            Some(JobError::Memory { used_bytes, limit_bytes })
        }
        Ending::Processes { count, limit } => Some(JobError::Processes { count, limit }),
        // Nobody told it to stop: its supervisor lost sight of us.
        Ending::Stopped => Some(JobError::Worker("the supervisor stopped it".to_owned())),
    }
}

fn spawn(house: &House) -> io::Result<(Child, UnixStream)> {
    let (node, supervisor) = std::os::unix::net::UnixStream::pair()?;
    node.set_nonblocking(true)?;
    let launcher = &house.config.launcher;
    let child = Command::new(&launcher.program)
        .args(&launcher.args)
        .arg(SUPERVISE)
        .env_clear()
        .stdin(Stdio::from(OwnedFd::from(supervisor)))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // A signal from the terminal is for the node, which then ends its jobs in order.
        .process_group(0)
        .spawn()?;
    Ok((child, UnixStream::from_std(node)?))
}

async fn give(orders: &mut OwnedWriteHalf, order: &Order) -> io::Result<()> {
    let mut line = serde_json::to_vec(order)?;
    line.push(b'\n');
    orders.write_all(&line).await
}

async fn report(reports: &mut OwnedReadHalf) -> Report {
    let mut bytes = Vec::new();
    match reports.take(MAX_REPORT_BYTES).read_to_end(&mut bytes).await {
        // One that ends with its order unread resets the connection: there is no report, as below.
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {}
        Err(error) => return Err(error.to_string()),
    }
    serde_json::from_slice(&bytes).map_err(|_| "it ended without a report".to_owned())?
}
