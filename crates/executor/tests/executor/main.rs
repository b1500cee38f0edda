//! Attempts that behave, and attempts that do not.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod bridge;
mod builtin;
mod document;
mod escapes;
mod process;
mod sandbox;
mod support;
mod warm;
