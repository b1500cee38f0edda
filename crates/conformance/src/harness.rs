//! What the checks need from an implementation besides its interface.

use std::fmt::Debug;

use hypha_engine::{Image, SchedulerStore};
use hypha_machine::{BoxFuture, Recover, Rows};

use crate::Transfer;

/// An environment in which stores can be opened, and its faults. Empty at first.
pub trait Harness: Default {
    /// The error of a store.
    type Error: Debug + Send + 'static;
    /// The store under test.
    type Store: SchedulerStore<Error = Self::Error>;
    /// The journal of a machine with rows.
    type Machine: Recover<Transfer, Image = Rows, Error = Self::Error>;

    /// Opens the store, and returns what is durable. No other store is open.
    fn open(&mut self) -> (Self::Store, Image);

    /// Kills the process that has the store, and opens the store again.
    fn crash(&mut self, store: Self::Store) -> (Self::Store, Image);

    /// Opens the journal of the machine with this name, and returns its rows.
    fn machine<'a>(
        &'a self,
        store: &'a Self::Store,
        name: &'a str,
    ) -> BoxFuture<'a, (Self::Machine, Rows)>;

    /// Makes writes of rows, and of records with [`Record::Started`](hypha_engine::Record::Started), fail from now on,
    /// or succeed again. If the store has transactions, they fail late in one. Must be called while the store has
    /// nothing to do: a store may go on after it has acknowledged a commit, and expects to be the only one that writes.
    fn fail_writes(&mut self, fail: bool);

    /// Runs all closures at the same time, each on a thread of its own.
    fn in_parallel(work: Vec<Box<dyn FnOnce() + Send + '_>>);
}
