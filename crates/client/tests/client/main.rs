//! The client against a stub of a scheduler.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod batches;
mod calls;
mod events;
mod failures;
mod stub;
