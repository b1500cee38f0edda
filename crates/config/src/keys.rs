//! The keys, in the order of the template: one table for each role, and one that all roles share.

use hypha_model::{ExecutorClass, NodeRole};

use crate::key::{Key, Kind, Preset};
use crate::observe::{LogFormat, Protocol, Sampler};
use crate::parse::{AddressUse, names};
use crate::roles::Runtime;

/// The keys of `role`: those of all roles, then its own.
pub(crate) fn of(role: NodeRole) -> impl Iterator<Item = &'static Key> + Clone {
    COMMON.iter().chain(own(role))
}

/// The keys that only some roles have.
pub(crate) fn own(role: NodeRole) -> &'static [Key] {
    match role {
        NodeRole::Gateway => GATEWAY,
        NodeRole::Scheduler => SCHEDULER,
        NodeRole::Worker => WORKER,
        NodeRole::Data => DATA,
    }
}

/// A day: no length of time below is meant to be longer.
const DAY: u64 = 86_400;
/// Records that live for less would be refreshed more often than they are read.
const MIN_RECORD_TTL: u64 = 5;
/// More than any machine has room for; a slip of two zeros is caught.
const MAX_CONCURRENCY: u32 = 4_096;
/// A reservation or a circuit costs the gateway a few file descriptors and buffers; beyond this it needs
/// more of them than one process gets.
const MAX_RELAYED: u32 = 65_536;

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
        doc: "The certificates of the authorities whose nodes are let in, PEM.",
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
              one counts as having revoked nobody; if true, nodes of such an issuer are refused.",
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
        doc: "Addresses that this node can be reached at from elsewhere, where it cannot find them out \
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
        doc: "Address ranges that are not dialled when other nodes tell of them. Configured addresses are \
              never filtered. Without this key the reserved ranges (private, loopback, link-local, \
              documentation and so on) are excluded, except those that hold an IP address configured here, \
              so that set-ups on one machine or in one local network work. A list given here is taken \
              literally; [] excludes nothing.",
    },
    Key {
        name: "relay_circuit",
        kind: Kind::Switch,
        preset: Preset::Is("true"),
        doc: "Whether to be reachable through gateways when nobody can connect to this node directly.",
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
        doc: "Where /metrics is served for Prometheus. It asks for no credentials: keep it on an address \
              that only the collector reaches.",
    },
    Key {
        name: "log_format",
        kind: Kind::Choice(names::<LogFormat>),
        preset: Preset::Is("\"human\""),
        doc: "How log lines look: \"human\" or \"json\".",
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
        kind: Kind::Url,
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
        doc: "How the collector is spoken to: \"http/protobuf\" or \"grpc\". OTEL_EXPORTER_OTLP_PROTOCOL \
              wins.",
    },
    Key {
        name: "telemetry_sampler",
        kind: Kind::Choice(names::<Sampler>),
        preset: Preset::Is("\"parentbased_always_on\""),
        doc: "Which traces are kept: always_on, always_off, traceidratio, or one of these after \
              parentbased_, which does as the caller did. OTEL_TRACES_SAMPLER wins.",
    },
    Key {
        name: "telemetry_sample_ratio",
        kind: Kind::Ratio,
        preset: Preset::Is("1.0"),
        doc: "The share of traces that the traceidratio samplers keep, from 0 to 1. \
              OTEL_TRACES_SAMPLER_ARG wins.",
    },
];

const GATEWAY: &[Key] = &[Key {
    name: "relay",
    kind: Kind::Section(RELAY),
    preset: Preset::Absent(""),
    doc: "What the gateway carries for nodes that cannot be connected to directly. Tensors must fit through: \
          a limit that cuts them off costs the whole transfer again.",
}];

const RELAY: &[Key] = &[
    Key {
        name: "max_reservations",
        kind: Kind::Count { min: 1, max: MAX_RELAYED },
        preset: Preset::Is("1024"),
        doc: "How many places for nodes to be reached through this gateway there are.",
    },
    Key {
        name: "max_reservations_per_peer",
        kind: Kind::Count { min: 1, max: MAX_RELAYED },
        preset: Preset::Is("4"),
        doc: "How many of them one node may hold: a few, for a node with several addresses or one that is \
              just reconnecting.",
    },
    Key {
        name: "max_circuits",
        kind: Kind::Count { min: 1, max: MAX_RELAYED },
        preset: Preset::Is("256"),
        doc: "How many relayed connections are open at once.",
    },
    Key {
        name: "max_circuits_per_peer",
        kind: Kind::Count { min: 1, max: MAX_RELAYED },
        preset: Preset::Is("16"),
        doc: "How many of them one node may have, so that no node takes them all.",
    },
    Key {
        name: "reservation_duration",
        kind: Kind::Seconds { min: 60, max: DAY },
        preset: Preset::Is("3600"),
        doc: "Seconds that a reservation lasts unless it is renewed.",
    },
    Key {
        name: "max_circuit_duration",
        kind: Kind::Seconds { min: 60, max: 7 * DAY },
        preset: Preset::Is("3600"),
        doc: "Seconds after which a relayed connection is closed. A tensor of 10 GB takes 53 minutes at 25 \
              Mbit/s, and a connection that is gone must be made anew in the middle of it.",
    },
    Key {
        name: "max_circuit_bytes",
        kind: Kind::Bytes,
        preset: Preset::Is("\"64GiB\""),
        doc: "Bytes after which a relayed connection is closed. The parameters of a model with 16 billion \
              of them are 64 GB in single precision.",
    },
];

const SCHEDULER: &[Key] = &[Key {
    name: "scheduler",
    kind: Kind::Section(&[Key {
        name: "discovery_interval",
        kind: Kind::Seconds { min: 1, max: DAY },
        preset: Preset::Is("60"),
        doc: "Seconds between searches for workers.",
    }]),
    preset: Preset::Absent(""),
    doc: "How work is placed.",
}];

const RECORD_TTL: Key = Key {
    name: "record_ttl",
    kind: Kind::Seconds { min: MIN_RECORD_TTL, max: DAY },
    preset: Preset::Is("60"),
    doc: "Seconds for which others believe what this node last said about itself. It says so again well \
          before; once it has vanished, it is found for at most this long.",
};

const WORKER: &[Key] = &[
    Key {
        name: "price",
        kind: Kind::Price,
        preset: Preset::Is("0"),
        doc: "What an hour of this worker costs, in the unit that the members of the network agreed on.",
    },
    Key {
        name: "region",
        kind: Kind::Label,
        preset: Preset::Absent("\"eu-west\""),
        doc: "Where it stands. A task may ask for a region by this name.",
    },
    Key {
        name: "hardware",
        kind: Kind::Label,
        preset: Preset::Absent("\"a100\""),
        doc: "What it is. Run times are learned for each hardware: equal machines should have equal names.",
    },
    RECORD_TTL,
    Key {
        name: "resources",
        kind: Kind::Section(RESOURCES),
        preset: Preset::Absent(""),
        doc: "What the worker offers. What is not given is detected.",
    },
    Key {
        name: "executors",
        kind: Kind::Entries(EXECUTORS),
        preset: Preset::Absent(""),
        doc: "What the worker can run, one entry for each.",
    },
];

const RESOURCES: &[Key] = &[
    Key { name: "cpu", kind: Kind::Cores, preset: Preset::Absent("3.5"), doc: "Cores." },
    Key {
        name: "memory",
        kind: Kind::Bytes,
        preset: Preset::Absent("\"16GiB\""),
        doc: "Main memory: bytes, or a text with a unit.",
    },
    Key {
        name: "storage",
        kind: Kind::Bytes,
        preset: Preset::Absent("\"100GB\""),
        doc: "Disk space: bytes, or a text with a unit.",
    },
    Key {
        name: "gpu",
        kind: Kind::Entries(GPUS),
        preset: Preset::Absent(""),
        doc: "The GPUs, one entry for each; `gpu = []` under [resources] offers none of those that are \
              there.",
    },
];

const GPUS: &[Key] = &[
    Key {
        name: "model",
        kind: Kind::Label,
        preset: Preset::Required("\"NVIDIA A100\""),
        doc: "What it is.",
    },
    Key {
        name: "memory",
        kind: Kind::Bytes,
        preset: Preset::Required("\"80GiB\""),
        doc: "Its memory: bytes, or a text with a unit.",
    },
];

const EXECUTORS: &[Key] = &[
    Key {
        name: "name",
        kind: Kind::Label,
        preset: Preset::Required("\"chat\""),
        doc: "The name that a task may ask for.",
    },
    Key {
        name: "class",
        kind: Kind::Choice(names::<ExecutorClass>),
        preset: Preset::Is("\"inference\""),
        doc: "The kind of work: \"inference\", \"train\" or \"aggregate\".",
    },
    Key {
        name: "runtime",
        kind: Kind::Choice(names::<Runtime>),
        preset: Preset::Required("\"http\""),
        doc: "How it runs: \"process\" starts a program, \"http\" calls a server, \"builtin\" is part of the \
              worker.",
    },
    Key {
        name: "models",
        kind: Kind::Labels,
        preset: Preset::Is("[]"),
        doc: "The models it serves; none means any.",
    },
    Key {
        name: "concurrency",
        kind: Kind::Count { min: 1, max: MAX_CONCURRENCY },
        preset: Preset::Is("1"),
        doc: "How many tasks it runs at once.",
    },
];

const DATA: &[Key] = &[
    RECORD_TTL,
    Key {
        name: "datasets",
        kind: Kind::Entries(DATASETS),
        preset: Preset::Absent(""),
        doc: "The data sets that are served, one entry for each.",
    },
];

const DATASETS: &[Key] = &[
    Key {
        name: "name",
        kind: Kind::Label,
        preset: Preset::Required("\"imagenet\""),
        doc: "The name that a job asks for.",
    },
    Key {
        name: "path",
        kind: Kind::Path,
        preset: Preset::Required("\"data/imagenet\""),
        doc: "The file or directory that holds it.",
    },
];
