//! A store as its driver sees it: what is there again, what is refused, what survives.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod crash;
mod full;
mod open;
mod places;
mod properties;
mod reads;
mod samples;
