//! The HTTP APIs, on a scheduler in memory.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod access;
mod events;
mod gated;
mod http;
mod instance;
mod instances;
mod jobs;
mod lists;
mod memory;
mod openai;
mod operators;
mod refusals;
mod server;
mod tasks;
mod web_pages;
