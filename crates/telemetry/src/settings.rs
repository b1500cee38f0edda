//! The settings of telemetry: validated values, independent of the configuration's source.

use std::fmt;

/// Where logs, traces and metrics go.
#[derive(Clone, PartialEq)]
pub struct Settings {
    /// The `service.name` of this node; it wins over one among the attributes unless it is empty.
    pub service_name: String,
    /// Further attributes of the resource that every span and metric belongs to.
    pub attributes: Vec<(String, String)>,
    /// The collector, `http://…` or `https://…`; without one nothing is exported.
    pub endpoint: Option<String>,
    /// Sent with every export. They hold credentials, so `Debug` shows their names only.
    pub headers: Vec<(String, String)>,
    /// The protocol of the collector.
    pub protocol: Protocol,
    /// Which traces are exported.
    pub sampler: Sampler,
    /// The share of traces that the ratio samplers keep, from 0 to 1.
    pub sample_ratio: f64,
    /// The format of console lines.
    pub log_format: LogFormat,
    /// The filter of the console, for example `info` or `info,libp2p=debug`. It does not change what is
    /// exported.
    pub log_filter: String,
}

/// The two forms of OTLP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Protocol {
    /// Protobuf bodies posted to `{endpoint}/v1/traces` and `{endpoint}/v1/metrics`.
    #[default]
    HttpProtobuf,
    /// gRPC calls to the endpoint.
    Grpc,
}

/// Which traces are exported. The parent-based ones follow the decision that a peer has already made, so
/// that a trace over several nodes is complete or absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sampler {
    /// All.
    AlwaysOn,
    /// None.
    AlwaysOff,
    /// A share of all, by trace id.
    TraceIdRatio,
    /// The peer's decision; all of those that start here.
    #[default]
    ParentBasedAlwaysOn,
    /// The peer's decision; none of those that start here.
    ParentBasedAlwaysOff,
    /// The peer's decision; a share of those that start here.
    ParentBasedTraceIdRatio,
}

/// The format of console lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    /// For people.
    #[default]
    Human,
    /// One JSON object a line.
    Json,
}

impl Default for Settings {
    /// The console at `info`, no collector.
    fn default() -> Settings {
        Settings {
            service_name: "hypha".to_owned(),
            attributes: Vec::new(),
            endpoint: None,
            headers: Vec::new(),
            protocol: Protocol::default(),
            sampler: Sampler::default(),
            sample_ratio: 1.0,
            log_format: LogFormat::default(),
            log_filter: "info".to_owned(),
        }
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // `start` refuses credentials in the address, but the settings may be shown before that check.
        let endpoint = self.endpoint.as_deref().map(|it| if it.contains('@') { "…" } else { it });
        let headers: Vec<_> = self.headers.iter().map(|(name, _)| (name, "…")).collect();
        f.debug_struct("Settings")
            .field("service_name", &self.service_name)
            .field("attributes", &self.attributes)
            .field("endpoint", &endpoint)
            .field("headers", &headers)
            .field("protocol", &self.protocol)
            .field("sampler", &self.sampler)
            .field("sample_ratio", &self.sample_ratio)
            .field("log_format", &self.log_format)
            .field("log_filter", &self.log_filter)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_no_credentials() {
        let settings = Settings {
            endpoint: Some("https://user:sesame@collector".to_owned()),
            headers: vec![("authorization".to_owned(), "Basic sesame".to_owned())],
            ..Settings::default()
        };
        let shown = format!("{settings:?} {settings:#?}");
        assert!(!shown.contains("sesame"), "{shown}");
        assert!(shown.contains("authorization"), "{shown}");
    }
}
