//! Tracing to the console, OpenTelemetry traces and metrics to a collector, Prometheus text.
//!
//! [`start`] installs the subscriber that the whole process logs through. [`Metrics`] is the one place
//! where a metric is registered: `/metrics` and the collector are both fed from it. [`traceparent`] and
//! [`continue_trace`] carry a trace from one node to the next inside a peer message.
//!
//! A slow, faulty or unreachable collector costs a warning and the data that it did not accept. It never
//! stops the process, and no caller ever waits for it.

mod collector;
mod context;
mod health;
mod metrics;
mod otlp_metrics;
mod process;
mod settings;
mod spans;
mod start;

pub use collector::EndpointError;
pub use context::{continue_trace, traceparent};
pub use metrics::Metrics;
pub use prometheus_client;
pub use settings::{LogFormat, Protocol, Sampler, Settings};
pub use start::{STOP_TIMEOUT, StartError, Telemetry, start};
