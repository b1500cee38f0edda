//! Networks of several nodes in one process, on loopback.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod adverts;
mod bulk;
mod channels;
mod datasets;
mod discovery;
mod forgeries;
mod gateways;
mod lab;
mod links;
mod proxy;
mod refusals;
mod requests;
mod rogue;
