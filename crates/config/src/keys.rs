//! The keys, in the order of the template: one table for each role, and one that all roles share.

mod data;
mod gateway;
mod scheduler;
mod worker;

use std::time::Duration;

use hypha_model::NodeRole;

use crate::key::{Key, Kind, Preset};
use crate::observe::{LogFormat, Protocol, Sampler};
use crate::parse::{AddressUse, UrlUse, names};

/// The keys of `role`: those of all roles, then its own.
pub(crate) fn of(role: NodeRole) -> impl Iterator<Item = &'static Key> + Clone {
    COMMON.iter().chain(own(role))
}

/// The keys that only some roles have.
pub(crate) fn own(role: NodeRole) -> &'static [Key] {
    match role {
        NodeRole::Gateway => gateway::KEYS,
        NodeRole::Scheduler => scheduler::KEYS,
        NodeRole::Worker => worker::KEYS,
        NodeRole::Data => data::KEYS,
    }
}

/// A day: most of the durations below are not meant to be longer.
const DAY: Duration = seconds(86_400);
/// Records with a shorter TTL would be refreshed more often than they are read.
const MIN_RECORD_TTL: Duration = seconds(5);
/// A value of this size travels inside a message and is kept in a row of the store: a larger one would delay
/// everything behind it.
const MAX_INLINE: u64 = 8 << 20;
/// A smaller number means that the unit was forgotten.
const MIN_SIZE: u64 = 1 << 10;

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

const EVERYWHERE: &str = "[\"/ip4/0.0.0.0/tcp/0\"]";

const COMMON: &[Key] = &[
    Key {
        name: "cert_pem",
        kind: Kind::File,
        preset: Preset::Required("\"node-cert.pem\""),
        doc: "The node's certificate followed by the chain of its issuers, PEM. A relative path in this \
              file is relative to the directory of this file.",
    },
    Key {
        name: "key_pem",
        kind: Kind::File,
        preset: Preset::Required("\"node-key.pem\""),
        doc: "The certificate's private key, PKCS#8 in PEM. Only the node's own user should be able to \
              read it.",
    },
    Key {
        name: "trust_pem",
        kind: Kind::File,
        preset: Preset::Required("\"node-trust.pem\""),
        doc: "The certificates of the authorities whose nodes are admitted, PEM.",
    },
    Key {
        name: "crls_pem",
        kind: Kind::File,
        preset: Preset::Absent("\"node-crls.pem\""),
        doc: "Certificate revocation lists, one or more in one PEM file. It is read again when it changes: \
              a node revoked there is disconnected within seconds.",
    },
    Key {
        name: "require_crl",
        kind: Kind::Switch,
        preset: Preset::Is("false"),
        doc: "Whether each issuer must have a revocation list in `crls_pem`. If false, an issuer without \
              one counts as having revoked no certificate; if true, nodes of such an issuer are refused.",
    },
    Key {
        name: "gateway_addresses",
        kind: Kind::Addresses(AddressUse::Gateway),
        preset: Preset::Is("[]"),
        doc: "The gateways to join the network through. An address may end in /p2p/PEER, which pins the \
              gateway's peer id. A gateway lists the other gateways here.",
    },
    Key {
        name: "listen_addresses",
        kind: Kind::Addresses(AddressUse::Listen),
        preset: Preset::OfRole(|role| match role {
            NodeRole::Gateway => "[\"/ip4/0.0.0.0/tcp/4001\"]",
            _ => EVERYWHERE,
        }),
        doc: "The addresses of this machine that other nodes may connect to. Port 0 lets the system choose \
              one.",
    },
    Key {
        name: "external_addresses",
        kind: Kind::Addresses(AddressUse::External),
        preset: Preset::Is("[]"),
        doc: "Addresses that this node can be reached at from elsewhere, where it cannot discover them \
              itself: a public name, or a port that a router forwards.",
    },
    Key {
        name: "bulk_listen_addresses",
        kind: Kind::Addresses(AddressUse::Listen),
        preset: Preset::Is(EVERYWHERE),
        doc: "The addresses of the listener for tensors and files, which travel on connections of their \
              own. The default is the IP addresses of `listen_addresses`, with a port that the system \
              chooses.",
    },
    Key {
        name: "bulk_external_addresses",
        kind: Kind::Addresses(AddressUse::External),
        preset: Preset::Is("[]"),
        doc: "Like `external_addresses`, for `bulk_listen_addresses`.",
    },
    Key {
        name: "exclude_cidr",
        kind: Kind::Networks,
        preset: Preset::Absent("[\"10.0.0.0/8\", \"fc00::/7\"]"),
        doc: "Address ranges that are not dialled when learned from other nodes. Configured addresses are \
              never filtered. Without this key the reserved ranges (private, loopback, link-local, \
              documentation and so on) are excluded, except those that hold an IP address configured here, \
              so that set-ups on one machine or in one local network work. A list given here is taken \
              literally; [] excludes nothing.",
    },
    Key {
        name: "relay_circuit",
        kind: Kind::Switch,
        preset: Preset::Is("true"),
        doc: "Whether to be reachable through gateways when no direct connection to this node is possible.",
    },
    Key {
        name: "metrics_address",
        kind: Kind::Socket,
        preset: Preset::OfRole(|role| match role {
            NodeRole::Gateway => "\"127.0.0.1:9101\"",
            NodeRole::Scheduler => "\"127.0.0.1:9102\"",
            NodeRole::Worker => "\"127.0.0.1:9103\"",
            NodeRole::Data => "\"127.0.0.1:9104\"",
        }),
        doc: "Where /metrics is served for Prometheus. It requires no credentials: keep it on an address \
              that only the collector can reach.",
    },
    Key {
        name: "log_format",
        kind: Kind::Choice(names::<LogFormat>),
        preset: Preset::Is("\"human\""),
        doc: "The format of log lines: \"human\" or \"json\".",
    },
    Key {
        name: "log_level",
        kind: Kind::LogFilter,
        preset: Preset::Is("\"info\""),
        doc: "What is logged: off, error, warn, info, debug or trace, and exceptions by target, as in \
              \"info,hypha_net=debug\".",
    },
    Key {
        name: "telemetry_attributes",
        kind: Kind::Attributes,
        preset: Preset::Absent("\"service.name=node-1,deployment.environment=production\""),
        doc: "OpenTelemetry resource attributes. OTEL_RESOURCE_ATTRIBUTES wins attribute by attribute, and \
              OTEL_SERVICE_NAME names the service. The default name is hypha- and the role.",
    },
    Key {
        name: "telemetry_endpoint",
        kind: Kind::Url(UrlUse::Collector),
        preset: Preset::Absent("\"https://collector.example.org:4318\""),
        doc: "Where OpenTelemetry traces and metrics are sent: the collector's base address. Nothing is \
              sent without it. OTEL_EXPORTER_OTLP_ENDPOINT wins.",
    },
    Key {
        name: "telemetry_headers",
        kind: Kind::Headers,
        preset: Preset::Absent("\"Authorization=Basic KEY\""),
        doc: "Headers for the collector, credentials among them; never logged. OTEL_EXPORTER_OTLP_HEADERS \
              wins.",
    },
    Key {
        name: "telemetry_protocol",
        kind: Kind::Choice(names::<Protocol>),
        preset: Preset::Is("\"http/protobuf\""),
        doc: "The protocol of the collector: \"http/protobuf\" or \"grpc\". OTEL_EXPORTER_OTLP_PROTOCOL \
              wins.",
    },
    Key {
        name: "telemetry_sampler",
        kind: Kind::Choice(names::<Sampler>),
        preset: Preset::Is("\"parentbased_always_on\""),
        doc: "Which traces are kept: always_on, always_off, traceidratio, or one of these after \
              parentbased_, which follows the caller's decision. OTEL_TRACES_SAMPLER wins.",
    },
    Key {
        name: "telemetry_sample_ratio",
        kind: Kind::Ratio,
        preset: Preset::Is("1.0"),
        doc: "The share of traces that the traceidratio samplers keep, from 0 to 1. \
              OTEL_TRACES_SAMPLER_ARG wins.",
    },
];

const RECORD_TTL: Key = Key {
    name: "record_ttl",
    kind: Kind::Seconds { min: MIN_RECORD_TTL, max: DAY },
    preset: Preset::Is("60"),
    doc: "Seconds for which the records that this node publishes about itself are valid. They are renewed well \
          before; a node that has vanished can still be found for at most this long.",
};
