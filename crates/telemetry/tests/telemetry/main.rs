//! Telemetry against a collector in this process.
//!
//! A process has one subscriber, and most tests here install it: each needs its own process, as `cargo
//! nextest` provides.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod arrival;
mod console;
mod failures;
mod receiver;
mod sampling;

use hypha_telemetry::{Protocol, Sampler, Settings};

/// The default settings of the tests: everything goes to a collector at this port.
fn settings(protocol: Protocol, port: u16) -> Settings {
    Settings {
        service_name: "scheduler-01".to_owned(),
        attributes: vec![("deployment.environment".to_owned(), "test".to_owned())],
        endpoint: Some(format!("http://127.0.0.1:{port}/otlp")),
        headers: vec![("Authorization".to_owned(), "Basic sesame".to_owned())],
        protocol,
        sampler: Sampler::AlwaysOn,
        ..Settings::default()
    }
}
