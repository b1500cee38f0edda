//! A data node's keys.

use super::RECORD_TTL;
use crate::key::{Key, Kind, Preset};

pub(super) const KEYS: &[Key] = &[
    RECORD_TTL,
    Key {
        name: "datasets",
        kind: Kind::Entries(DATASETS),
        preset: Preset::Absent(""),
        doc: "The data sets that this node serves, one entry for each.",
    },
];

const DATASETS: &[Key] = &[
    Key {
        name: "name",
        kind: Kind::Label,
        preset: Preset::Required("\"imagenet\""),
        doc: "The name by which jobs request it.",
    },
    Key {
        name: "path",
        kind: Kind::Path,
        preset: Preset::Required("\"data/imagenet\""),
        doc: "The file or directory that holds it.",
    },
];
