//! How a node is observed: logs, metrics, traces.

use std::fmt;
use std::net::SocketAddr;

use crate::diagnostic::Diagnostic;
use crate::parse::{self, Choice, Problem, UrlUse};
use crate::reader::Reader;
use crate::sourced_value::{Origin, Raw, SourcedValue};

/// Logs, metrics and traces of a node.
#[derive(Clone, Debug, PartialEq)]
pub struct ObserveConfig {
    /// The address of `/metrics`.
    pub metrics_address: SocketAddr,
    /// Whether that was given. A node starts even if the default port is taken: several nodes may share a
    /// machine.
    pub metrics_address_given: bool,
    /// The format of log lines.
    pub log_format: LogFormat,
    /// What is logged, as a filter of `tracing`.
    pub log_level: String,
    /// Traces and metrics for a collector.
    pub telemetry: TelemetrySettings,
}

/// The format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    #[default]
    Human,
    /// For programs: one JSON object a line.
    Json,
}

/// What is sent to an OpenTelemetry collector: `telemetry_*`, over which `OTEL_*` wins.
#[derive(Clone, Debug, PartialEq)]
pub struct TelemetrySettings {
    /// The service's name.
    pub service_name: String,
    /// Resource attributes other than the service's name, in the order given.
    pub attributes: Vec<(String, String)>,
    /// The collector's base address; nothing is sent without one.
    pub endpoint: Option<String>,
    /// Headers for it.
    pub headers: Headers,
    /// Its protocol.
    pub protocol: Protocol,
    /// Which traces are kept.
    pub sampler: Sampler,
    /// The share that the ratio samplers keep, from 0 to 1.
    pub sample_ratio: f64,
}

/// Headers with credentials in them: shown by name only.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Headers(pub Vec<(String, String)>);

/// The protocol of a collector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// Protocol buffers in HTTP requests.
    #[default]
    HttpProtobuf,
    /// gRPC.
    Grpc,
}

/// Which traces are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sampler {
    /// All.
    AlwaysOn,
    /// None.
    AlwaysOff,
    /// A share of them, by their ids.
    TraceIdRatio,
    /// As the caller decided; without a caller, all.
    #[default]
    ParentBasedAlwaysOn,
    /// As the caller decided; without a caller, none.
    ParentBasedAlwaysOff,
    /// As the caller decided; without a caller, a share.
    ParentBasedTraceIdRatio,
}

impl Choice for LogFormat {
    const NAMES: &'static [(&'static str, LogFormat)] =
        &[("human", LogFormat::Human), ("json", LogFormat::Json)];
}

impl Choice for Protocol {
    const NAMES: &'static [(&'static str, Protocol)] =
        &[("http/protobuf", Protocol::HttpProtobuf), ("grpc", Protocol::Grpc)];
}

impl Choice for Sampler {
    const NAMES: &'static [(&'static str, Sampler)] = &[
        ("always_on", Sampler::AlwaysOn),
        ("always_off", Sampler::AlwaysOff),
        ("traceidratio", Sampler::TraceIdRatio),
        ("parentbased_always_on", Sampler::ParentBasedAlwaysOn),
        ("parentbased_always_off", Sampler::ParentBasedAlwaysOff),
        ("parentbased_traceidratio", Sampler::ParentBasedTraceIdRatio),
    ];
}

impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.0.iter().map(|(name, _)| (name, "redacted"))).finish()
    }
}

impl ObserveConfig {
    pub(crate) fn read(
        reader: &Reader<'_>,
        environment: &[(String, String)],
    ) -> Result<ObserveConfig, Diagnostic> {
        Ok(ObserveConfig {
            metrics_address: reader.get("metrics_address", parse::socket)?,
            metrics_address_given: reader.given("metrics_address").is_some(),
            log_format: reader.get("log_format", parse::choice)?,
            log_level: reader.get("log_level", parse::log_filter)?,
            telemetry: Settings { reader, environment }.read()?,
        })
    }
}

struct Settings<'a> {
    reader: &'a Reader<'a>,
    environment: &'a [(String, String)],
}

impl Settings<'_> {
    fn read(&self) -> Result<TelemetrySettings, Diagnostic> {
        let (service_name, attributes) = self.attributes()?;
        Ok(TelemetrySettings {
            service_name,
            attributes,
            endpoint: self.optional(
                "OTEL_EXPORTER_OTLP_ENDPOINT",
                "telemetry_endpoint",
                |given| parse::url(given, UrlUse::Collector),
            )?,
            headers: Headers(
                self.optional("OTEL_EXPORTER_OTLP_HEADERS", "telemetry_headers", parse::headers)?
                    .unwrap_or_default(),
            ),
            protocol: self
                .optional("OTEL_EXPORTER_OTLP_PROTOCOL", "telemetry_protocol", parse::choice)?
                .unwrap_or_default(),
            sampler: self
                .optional("OTEL_TRACES_SAMPLER", "telemetry_sampler", parse::choice)?
                .unwrap_or_default(),
            sample_ratio: self
                .optional("OTEL_TRACES_SAMPLER_ARG", "telemetry_sample_ratio", parse::ratio)?
                .unwrap_or(1.0),
        })
    }

    /// The variable if it is set, else the key.
    fn optional<T>(
        &self,
        variable: &str,
        key: &str,
        parse: impl FnOnce(&SourcedValue) -> Result<T, Problem>,
    ) -> Result<Option<T>, Diagnostic> {
        match self.variable(variable) {
            Some(given) => self.parsed(&given, parse).map(Some),
            None => self.reader.optional(key, parse),
        }
    }

    /// Merged attribute by attribute: the variables of a deployment add to the attributes in the file.
    fn attributes(&self) -> Result<(String, Vec<(String, String)>), Diagnostic> {
        const SERVICE_NAME: &str = "service.name";
        let given = self.reader.optional("telemetry_attributes", parse::attributes)?;
        let over = match self.variable("OTEL_RESOURCE_ATTRIBUTES") {
            Some(given) => self.parsed(&given, parse::attributes)?,
            None => Vec::new(),
        };
        let mut merged: Vec<(String, String)> = Vec::new();
        for (key, value) in given.unwrap_or_default().into_iter().chain(over) {
            match merged.iter_mut().find(|(known, _)| *known == key) {
                Some((_, known)) => *known = value,
                None => merged.push((key, value)),
            }
        }
        let named = self.variable("OTEL_SERVICE_NAME").and_then(|given| match given.raw {
            Raw::Bare(name) => Some(name),
            _ => None,
        });
        let attribute = merged.iter().position(|(key, _)| key == SERVICE_NAME);
        let attribute = attribute.map(|index| merged.remove(index).1);
        let name = named.or(attribute).filter(|name| !name.is_empty());
        let name = name.unwrap_or_else(|| format!("hypha-{}", self.reader.context.role));
        Ok((name, merged))
    }

    /// An empty variable counts as not set, as OpenTelemetry specifies.
    fn variable(&self, name: &str) -> Option<SourcedValue> {
        let (_, text) = self.environment.iter().rev().find(|(known, _)| known == name)?;
        let text = text.trim();
        let given =
            SourcedValue::new(Raw::Bare(text.to_owned()), Origin::Variable(name.to_owned()));
        (!text.is_empty()).then_some(given)
    }

    fn parsed<T>(
        &self,
        given: &SourcedValue,
        parse: impl FnOnce(&SourcedValue) -> Result<T, Problem>,
    ) -> Result<T, Diagnostic> {
        parse(given)
            .map_err(|problem| self.reader.context.diagnostic(&given.origin, "", &problem.message))
    }
}
