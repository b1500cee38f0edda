//! The machines, step by step: what is persisted, sent and run after each event.
#![allow(clippy::unwrap_used, clippy::expect_used)] // helpers of tests fail by panicking, too

mod attempts;
mod blame;
mod deferred;
mod harness;
mod memory;
mod noise;
mod recovery;
mod sharing;
mod stages;
mod stall;
mod submit;
mod unreached;
mod unstored;
mod worker_machine;
mod workers;
