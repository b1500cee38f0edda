//! A role as a pure state machine, and the one rule for its effects: **no effect is carried out before the records that
//! it relies on are durable.**
//!
//! A [`Machine`] is stepped with the time and one event. It adds its output to a [`Step`]: records to be made durable,
//! effects, and perhaps a reply to the requester. A driver collects the steps of many events in a [`Batch`] and seals
//! it. The effects and replies of a [`Sealed`] batch are inaccessible: only committing its records to a [`Disk`] or a
//! [`Journal`] hands them out, as [`Released`]. Effects that rely on no record are kept apart and may be carried out at
//! once ([`Batch::take_at_once`]).
//!
//! A store is a journal that a machine can recover from ([`Recover`]). A store that does not know a machine's records
//! keeps them as rows by key ([`RowRecord`]).

mod batch;
mod durable;
mod rows;
mod step;

use hypha_model::Time;

pub use batch::{Batch, FailedCommit, Released, Sealed};
pub use durable::{
    Apply, BoxFuture, CommitCallback, Disk, Journal, MemoryDisk, NoJournal, Recover,
};
pub use rows::{RowChange, RowRecord, Rows};
pub use step::{Mark, Step};

/// A role: it has no clock, no socket, no disk, and no randomness but its seed.
pub trait Machine: Sized {
    /// What can happen to it: one closed enum.
    type Event;
    /// What it makes durable.
    type Record;
    /// What it wants done outside: messages, notices, runs.
    type Effect;
    /// Its reply to the requester of an event.
    type Reply;

    /// `event` happened at `now`, which never goes back. The machine adds its output to `step`.
    fn step(&mut self, now: Time, event: Self::Event, step: &mut Step<Self>);

    /// When it is to be stepped with [`Machine::woke`] at the latest, if nothing happens before.
    fn wake_at(&self, now: Time) -> Option<Time>;

    /// The event for the time of [`Machine::wake_at`].
    fn woke() -> Self::Event;
}
