//! An attempt that was begun: what it reports, how to stop it, how it ends.

use axum::body::Bytes;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::builtin::EchoStream;
use crate::outcome::{RunError, RunOutcome};

/// Progress is in thousandths.
pub(crate) const MAX_PERMILLE: u16 = 1_000;
/// Pieces of output that wait for their reader; with more the program waits. Some, so that a slow reader does not
/// cost the program a round trip for each of them.
const MAX_WAITING_PIECES: usize = 16;

/// An attempt that was begun. Dropping it cancels the attempt.
#[derive(Debug)]
pub struct RunHandle(Inner);

/// What an attempt tells on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunEvent {
    /// How far it is, in thousandths. Only the latest is kept for a slow reader.
    Progress(u16),
    /// A piece of its output. Comes only if the attempt asked for a stream; none is lost.
    Output(Bytes),
}

/// Cancels an attempt from elsewhere.
#[derive(Clone, Debug)]
pub struct Canceller(CancellationToken);

#[derive(Debug)]
enum Inner {
    /// It took no time: no task is spent on it.
    Ended { outcome: RunOutcome, words: Option<EchoStream> },
    Live {
        progress: watch::Receiver<u16>,
        output: mpsc::Receiver<Bytes>,
        cancel: CancellationToken,
        task: JoinHandle<RunOutcome>,
        guard: DropGuard,
    },
}

/// What an attempt is given to report and to listen with.
pub(crate) struct RunControl {
    pub(crate) reporter: RunReporter,
    pub(crate) cancel: CancellationToken,
}

/// Where an attempt reports to.
pub(crate) struct RunReporter {
    pub(crate) progress: watch::Sender<u16>,
    pub(crate) output: mpsc::Sender<Bytes>,
}

impl RunHandle {
    /// The next that it tells; none once it will tell no more, and its outcome is near. A program whose stream
    /// is not read stands still, until [`RunHandle::outcome`] is asked for.
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

    /// How far it is, in thousandths.
    pub fn progress(&self) -> watch::Receiver<u16> {
        match &self.0 {
            Inner::Ended { .. } => watch::channel(MAX_PERMILLE).1,
            Inner::Live { progress, .. } => progress.clone(),
        }
    }

    /// Tells it to stop. Its outcome comes when it is gone.
    pub fn cancel(&self) {
        if let Inner::Live { cancel, .. } = &self.0 {
            cancel.cancel();
        }
    }

    /// Something that cancels it while its outcome is being waited for.
    pub fn canceller(&self) -> Canceller {
        match &self.0 {
            Inner::Ended { .. } => Canceller(CancellationToken::new()),
            Inner::Live { cancel, .. } => Canceller(cancel.clone()),
        }
    }

    /// How it ends. What it still tells is dropped.
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
    /// Tells the attempt to stop.
    pub fn cancel(&self) {
        self.0.cancel();
    }
}
