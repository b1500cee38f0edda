//! Drives a machine that many threads share: one lock, group commit.
//!
//! Every caller steps the machine under one lock, for microseconds. The records of the steps are collected in a batch.
//! A caller that releases the lock while no commit is in flight passes the batch to the journal. Once the batch is
//! durable, its effects are carried out and the next batch is committed, on the journal's thread. So many events share
//! one wait for the disk, and no caller waits for another's.
//!
//! Only standard locks are used here, so that shuttle can explore the order in which threads take them
//! (`tests/interleavings.rs`). The driver reads no clock: [`EffectHandler::now`] returns the time.

mod effect_handler;
mod shared;
mod sync;

pub use effect_handler::EffectHandler;
pub use shared::{MAX_EVENTS_PER_HOLD, MAX_REQUESTS_PER_HOLD, SharedMachine, Stopped};
