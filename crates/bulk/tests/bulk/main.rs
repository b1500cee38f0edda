//! Transfers between two sides, over pipes and over TCP with TLS, with and without faults.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod concurrent;
mod endings;
mod faults;
mod pki;
mod resume;
mod tcp;
mod world;
