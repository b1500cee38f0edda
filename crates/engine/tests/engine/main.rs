//! The machines, step by step: what is persisted, sent and run after each event.
#![allow(clippy::unwrap_used, clippy::expect_used)] // helpers of tests fail by panicking, too

mod attempts;
mod back_ends;
mod deferred;
mod harness;
mod interactive;
mod machines;
mod market;
mod memory;
mod noise;
mod quarantine;
mod recovery;
mod sharing;
mod stages;
mod stall;
mod submit;
mod unreachable;
mod worker_machine;
mod workers;
