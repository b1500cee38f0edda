//! The market: which scheduler holds which portion of a worker, and for how long.
//!
//! A lease names a [`Portion`] of a worker: cores, memory, disk, GPUs with memory and share, and slots of its
//! executors. Several schedulers may hold portions of one worker; contested capacity is divided max-min fair
//! ([`divide`]). The owner's side is the [`LeaseBook`], with the one ledger of the worker; the holder's side is a
//! [`HeldLease`] for each worker.

mod book;
mod divide;
mod holder;
mod portion;

pub use book::{
    LeaseBook, LeaseDecision, LeaseGrant, LeaseKey, LeaseRequest, MAX_HOLDERS, TURN_DURATION,
};
pub use divide::{Claim, divide};
pub use holder::{HOLDER_SHARE, HeldLease, heartbeat_interval};
pub use portion::{DevicePart, Portion};
