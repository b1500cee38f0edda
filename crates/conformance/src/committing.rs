//! Commits, and waiting for them.

use std::sync::mpsc;

use hypha_machine::Journal;

/// A commit that was handed over.
pub struct Committing<E>(mpsc::Receiver<Result<(), E>>);

/// Hands records over, to be waited for.
pub fn hand_over<R, J: Journal<R>>(journal: &J, records: Vec<R>) -> Committing<J::Error>
where
    J::Error: Send + 'static,
{
    let (done, committed) = mpsc::sync_channel(1);
    journal.commit(records, Box::new(move |result| drop(done.send(result))));
    Committing(committed)
}

/// Commits, and waits until the records are durable or cannot be.
pub fn commit<R, J: Journal<R>>(journal: &J, records: Vec<R>) -> Result<(), J::Error>
where
    J::Error: Send + 'static,
{
    hand_over(journal, records).wait()
}

impl<E> Committing<E> {
    /// Waits until it is done. Holds up the thread: a journal needs no other thread's help.
    pub fn wait(self) -> Result<(), E> {
        self.0.recv().expect("a commit was dropped without an answer")
    }
}
