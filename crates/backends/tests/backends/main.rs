//! Back ends and task instances on loopback: well-behaved, slow, unresponsive, malicious and malformed ones.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod back_end;
mod back_end_worker;
mod early_ends;
mod fake;
mod instance;
mod lab;
mod register;
mod swarmpilot;
