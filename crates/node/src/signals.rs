//! SIGTERM and SIGINT: the first requests a graceful stop, the second ends the process at once.

use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::NodeError;

/// What a shell reports for a process that a second Ctrl-C ended.
const EXIT_CODE_INTERRUPTED: i32 = 130;

/// Signals that arrive within this time count as one.
const COALESCE_WINDOW: Duration = Duration::from_millis(150);

pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    pub(crate) fn new() -> Result<Signals, NodeError> {
        let listen = |kind| {
            signal(kind).map_err(|e| NodeError::failed(format!("cannot listen for signals: {e}")))
        };
        Ok(Signals {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
        })
    }

    /// Drops signals that arrive together with the first: `timeout` and some shells signal a process and also its
    /// group.
    pub(crate) async fn coalesce(&mut self) {
        let _ = tokio::time::timeout(COALESCE_WINDOW, async {
            loop {
                self.next().await;
            }
        })
        .await;
    }

    /// Waits for the next signal, and returns its name.
    pub(crate) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }

    /// From now on, a signal ends the process at once.
    pub(crate) fn exit_on_next_signal(mut self) {
        tokio::spawn(async move {
            let signal = self.next().await;
            tracing::warn!("{signal} again: stopping at once");
            std::process::exit(EXIT_CODE_INTERRUPTED);
        });
    }
}
