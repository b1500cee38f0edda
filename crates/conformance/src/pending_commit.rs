//! Commits, and waiting for them.

use std::sync::mpsc;

use hypha_machine::Journal;

/// A commit that was started.
pub struct PendingCommit<E>(mpsc::Receiver<Result<(), E>>);

/// Starts a commit.
pub fn start_commit<R, J: Journal<R>>(journal: &J, records: Vec<R>) -> PendingCommit<J::Error>
where
    J::Error: Send + 'static,
{
    let (done, committed) = mpsc::sync_channel(1);
    journal.commit(records, Box::new(move |result| drop(done.send(result))));
    PendingCommit(committed)
}

/// Commits, and waits until the records are durable or have failed.
pub fn commit<R, J: Journal<R>>(journal: &J, records: Vec<R>) -> Result<(), J::Error>
where
    J::Error: Send + 'static,
{
    start_commit(journal, records).wait()
}

impl<E> PendingCommit<E> {
    /// Waits until it is done. Blocks the thread: a journal does not need it to make progress.
    pub fn wait(self) -> Result<(), E> {
        self.0.recv().expect("a commit was dropped without a result")
    }
}
