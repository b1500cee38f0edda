//! A store as its driver sees it: what a restart finds, what is refused, what survives.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod busy;
mod conformance;
mod crash;
mod forget;
mod full;
#[cfg(target_os = "linux")]
mod idle;
mod machines;
mod open;
mod rows;
