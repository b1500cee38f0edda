//! Traits for making records durable.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;

/// Makes records durable while its caller waits: a file, or the simulator's disk.
pub trait Disk<R> {
    /// Why it could not.
    type Error;

    /// Makes the records durable, in order, all or none.
    fn write(&mut self, records: Vec<R>) -> Result<(), Self::Error>;
}

/// Called once, as soon as the records are durable or have failed.
pub type CommitCallback<E> = Box<dyn FnOnce(Result<(), E>) + Send>;

/// Makes records durable while its caller continues: a database.
pub trait Journal<R> {
    /// Why it could not.
    type Error;

    /// Makes the records durable, in order, all or none, and after those of earlier calls. Never blocks: `done` is
    /// called when they are, perhaps on another thread, perhaps before this returns. Once a commit has failed, all
    /// later ones fail, until a machine restarts from the durable state.
    fn commit(&self, records: Vec<R>, done: CommitCallback<Self::Error>);
}

impl<R, J: Journal<R> + ?Sized> Journal<R> for Arc<J> {
    type Error = J::Error;

    fn commit(&self, records: Vec<R>, done: CommitCallback<J::Error>) {
        (**self).commit(records, done);
    }
}

/// A boxed future.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A journal that a machine can recover from: a store.
pub trait Recover<R>: Journal<R> {
    /// What the records add up to.
    type Image;

    /// Whether commits can succeed, and if not, why.
    fn healthy(&self) -> Result<(), Self::Error>;

    /// After a failed commit: reads what is durable, which is every acknowledged commit and no part of any other, and
    /// accepts commits again. Fails while nothing can be written. Later commits must come from a machine that started
    /// with the returned image: the previous one has seen changes that are lost.
    fn recover(&self) -> BoxFuture<'_, Result<Self::Image, Self::Error>>;
}

/// The durable state as a whole, to which records add up.
pub trait Apply<R> {
    /// Applies one record.
    fn apply(&mut self, record: &R);
}

/// Keeps the durable state in memory, for simulations and tests.
#[derive(Clone, Debug, Default)]
pub struct MemoryDisk<I> {
    /// What the records add up to.
    pub image: I,
}

impl<R, I: Apply<R>> Disk<R> for MemoryDisk<I> {
    type Error = Infallible;

    fn write(&mut self, records: Vec<R>) -> Result<(), Infallible> {
        records.iter().for_each(|record| self.image.apply(record));
        Ok(())
    }
}

/// Discards the records: for machines whose state need not outlive the process.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoJournal;

impl<R> Journal<R> for NoJournal {
    type Error = Infallible;

    fn commit(&self, _: Vec<R>, done: CommitCallback<Infallible>) {
        done(Ok(()));
    }
}
