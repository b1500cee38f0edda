//! Codecs, rounds and checkpoints, through the public interface.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod checkpoints;
mod codecs;
mod rejections;
mod rounds;
mod world;
