//! The `hypha` binary as a person or a program meets it.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]
#![allow(unreachable_pub, missing_docs, reason = "nothing leaves a test binary")]

mod hosts;
mod process;
mod scratch;
mod sim;
