//! SIGTERM and SIGINT: the first asks a node to stop, the second stops it at once.

use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::NodeError;

/// What a shell reports for a process that a second Ctrl-C ended.
const EXIT_CODE_INTERRUPTED: i32 = 130;

/// Signals this close are one.
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

    /// Takes what arrives together with the first for one signal: `timeout` and some shells signal a process and its
    /// group.
    pub(crate) async fn coalesce(&mut self) {
        let _ = tokio::time::timeout(COALESCE_WINDOW, async {
            loop {
                self.next().await;
            }
        })
        .await;
    }

    /// Waits for the next of the two.
    pub(crate) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }

    /// From now on a signal ends the process without further ado.
    pub(crate) fn exit_on_next_signal(mut self) {
        tokio::spawn(async move {
            let signal = self.next().await;
            tracing::warn!("{signal} again: stopping at once");
            std::process::exit(EXIT_CODE_INTERRUPTED);
        });
    }
}
