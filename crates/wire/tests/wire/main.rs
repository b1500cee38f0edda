//! The bytes between peers: pinned, tolerant to newer peers, safe against anything.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod corpus;
mod dispatch;
mod framing;
mod golden;
mod limits;
mod properties;
mod samples;
mod tolerance;
