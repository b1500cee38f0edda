//! A running attempt: its events, how to cancel it, how it ends.

use axum::body::Bytes;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::builtin::EchoStream;
use crate::outcome::{RunError, RunOutcome};

/// Progress is in thousandths.
pub(crate) const MAX_PERMILLE: u16 = 1_000;
/// Pieces of output that wait for their reader; beyond that the program waits. Several, so that a slow reader
/// does not cost the program a round trip for each of them.
const MAX_WAITING_PIECES: usize = 16;

/// A running attempt. Dropping it cancels the attempt.
#[derive(Debug)]
pub struct RunHandle(Inner);

/// An event of a running attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunEvent {
    /// Its progress, in thousandths. A slow reader only gets the latest.
    Progress(u16),
    /// A piece of its output. Sent only if the attempt requested a stream; none is lost.
    Output(Bytes),
}

/// Cancels an attempt from elsewhere.
#[derive(Clone, Debug)]
pub struct Canceller(CancellationToken);

#[derive(Debug)]
enum Inner {
    /// It ended immediately: no task is spawned for it.
    Ended { outcome: RunOutcome, words: Option<EchoStream> },
    Live {
        progress: watch::Receiver<u16>,
        output: mpsc::Receiver<Bytes>,
        cancel: CancellationToken,
        task: JoinHandle<RunOutcome>,
        guard: DropGuard,
    },
}

/// An attempt's means to report and to notice cancellation.
pub(crate) struct RunControl {
    pub(crate) reporter: RunReporter,
    pub(crate) cancel: CancellationToken,
}

/// The channels that an attempt reports to.
pub(crate) struct RunReporter {
    pub(crate) progress: watch::Sender<u16>,
    pub(crate) output: mpsc::Sender<Bytes>,
}

impl RunHandle {
    /// The next event; `None` once there will be no more, and its outcome is near. A program whose stream is
    /// not read blocks until [`RunHandle::outcome`] is called.
    pub async fn next(&mut self) -> Option<RunEvent> {
        match &mut self.0 {
            Inner::Ended { words, .. } => words.as_mut()?.next().map(RunEvent::Output),
            Inner::Live { progress, output, .. } => tokio::select! {
                biased;
                Ok(()) = progress.changed() => {
                    Some(RunEvent::Progress(*progress.borrow_and_update()))
                }
                Some(piece) = output.recv() => Some(RunEvent::Output(piece)),
                else => None,
            },
        }
    }

    /// Its progress, in thousandths.
    pub fn progress(&self) -> watch::Receiver<u16> {
        match &self.0 {
            Inner::Ended { .. } => watch::channel(MAX_PERMILLE).1,
            Inner::Live { progress, .. } => progress.clone(),
        }
    }

    /// Cancels it. Its outcome comes when it is gone.
    pub fn cancel(&self) {
        if let Inner::Live { cancel, .. } = &self.0 {
            cancel.cancel();
        }
    }

    /// Cancels it while its outcome is being awaited.
    pub fn canceller(&self) -> Canceller {
        match &self.0 {
            Inner::Ended { .. } => Canceller(CancellationToken::new()),
            Inner::Live { cancel, .. } => Canceller(cancel.clone()),
        }
    }

    /// How it ends. Remaining events are dropped.
    pub async fn outcome(self) -> RunOutcome {
        match self.0 {
            Inner::Ended { outcome, .. } => outcome,
            Inner::Live { progress, output, task, guard, .. } => {
                // Without a reader the program must not wait for one.
                drop((progress, output));
                let outcome = task.await;
                drop(guard);
                outcome.unwrap_or_else(|error| {
                    RunError::Worker(format!("its task was lost: {error}")).into()
                })
            }
        }
    }

    pub(crate) fn ended(outcome: RunOutcome) -> RunHandle {
        RunHandle(Inner::Ended { outcome, words: None })
    }

    pub(crate) fn ended_with_stream(outcome: RunOutcome, words: EchoStream) -> RunHandle {
        RunHandle(Inner::Ended { outcome, words: Some(words) })
    }

    /// An attempt as a task of `tracker` that `cancel` stops.
    pub(crate) fn spawn<F>(
        tracker: &TaskTracker,
        cancel: CancellationToken,
        run: impl FnOnce(RunControl) -> F,
    ) -> RunHandle
    where
        F: Future<Output = RunOutcome> + Send + 'static,
    {
        let (sender, progress) = watch::channel(0);
        let (pieces, output) = mpsc::channel(MAX_WAITING_PIECES);
        let reporter = RunReporter { progress: sender, output: pieces };
        let task = tracker.spawn(run(RunControl { reporter, cancel: cancel.clone() }));
        let guard = cancel.clone().drop_guard();
        RunHandle(Inner::Live { progress, output, cancel, task, guard })
    }
}

impl Canceller {
    /// Cancels the attempt.
    pub fn cancel(&self) {
        self.0.cancel();
    }
}
