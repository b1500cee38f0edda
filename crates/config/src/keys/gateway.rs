//! A gateway's keys.

use super::{DAY, seconds};
use crate::key::{Key, Kind, Preset};

/// A reservation or a circuit costs the gateway a few file descriptors and buffers; beyond this number it
/// needs more of them than one process gets.
const MAX_RELAYED: u32 = 65_536;

pub(super) const KEYS: &[Key] = &[Key {
    name: "relay",
    kind: Kind::Section(RELAY),
    preset: Preset::Absent(""),
    doc: "What the gateway relays for nodes that cannot be reached directly. Leave room for tensors: \
          a transfer that a limit cuts off starts over.",
}];

const RELAY: &[Key] = &[
    Key {
        name: "max_reservations",
        kind: Kind::Count { min: 1, max: MAX_RELAYED },
        preset: Preset::Is("1024"),
        doc: "How many reservations there are for nodes to be reached through this gateway.",
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
        kind: Kind::Seconds { min: seconds(60), max: DAY },
        preset: Preset::Is("3600"),
        doc: "Seconds that a reservation lasts unless it is renewed.",
    },
    Key {
        name: "max_circuit_duration",
        kind: Kind::Seconds { min: seconds(60), max: seconds(7 * 86_400) },
        preset: Preset::Is("3600"),
        doc: "Seconds after which a relayed connection is closed. A tensor of 10 GB takes 53 minutes at 25 \
              Mbit/s, and a connection that is closed must be reopened in the middle of it.",
    },
    Key {
        name: "max_circuit_bytes",
        kind: Kind::Bytes,
        preset: Preset::Is("\"64GiB\""),
        doc: "Bytes after which a relayed connection is closed. The parameters of a model with 16 billion \
              of them are 64 GB in single precision.",
    },
];
