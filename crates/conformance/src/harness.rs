//! What the checks need of an implementation besides its interface.

use std::fmt::Debug;

use hypha_engine::{Image, SchedulerStore};
use hypha_machine::{BoxFuture, Recover, Rows};

use crate::Transfer;

/// A place where stores can be opened, and faults of it. Empty when it is made.
pub trait Harness: Default {
    /// Why a store does not do what it is asked.
    type Error: Debug + Send + 'static;
    /// What is tested.
    type Store: SchedulerStore<Error = Self::Error>;
    /// The journal of a machine with rows.
    type Machine: Recover<Transfer, Image = Rows, Error = Self::Error>;

    /// Opens the store, and returns what is durable. No other is open.
    fn open(&mut self) -> (Self::Store, Image);

    /// Ends the process that has the store, without giving it time for anything, and opens the store again.
    fn crash(&mut self, store: Self::Store) -> (Self::Store, Image);

    /// Opens the journal of the machine with this name, and returns its rows.
    fn machine<'a>(
        &'a self,
        store: &'a Self::Store,
        name: &'a str,
    ) -> BoxFuture<'a, (Self::Machine, Rows)>;

    /// Makes writes of rows, and of records with [`Record::Started`](hypha_engine::Record::Started), fail from now on,
    /// or succeed again: late in a transaction, if there is such a thing.
    fn fail_writes(&mut self, fail: bool);

    /// Does all of it at the same time, each on a thread of its own.
    fn in_parallel(work: Vec<Box<dyn FnOnce() + Send + '_>>);
}
