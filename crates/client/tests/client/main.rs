//! The client against a scheduler that is played by the test.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod batches;
mod calls;
mod events;
mod failures;
mod stub;
