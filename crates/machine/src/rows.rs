//! Rows by key: how a store keeps the records of a machine that it does not know.

use std::collections::BTreeMap;

use crate::durable::Apply;

/// One change of a machine's rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowChange {
    /// Which row.
    pub key: Vec<u8>,
    /// What it holds from now on; `None` removes it.
    pub value: Option<Vec<u8>>,
}

/// A record that defines which rows of its machine it changes. The machine recovers from its rows alone, so they must
/// add up to everything that it needs of its records.
pub trait RowRecord {
    /// Adds the changes, in order. They depend on nothing but the record: no row is read for them.
    fn add_changes(&self, changes: &mut Vec<RowChange>);
}

/// What the records of a machine add up to: its rows, by key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rows(pub BTreeMap<Vec<u8>, Vec<u8>>);

impl<R: RowRecord> Apply<R> for Rows {
    fn apply(&mut self, record: &R) {
        let mut changes = Vec::new();
        record.add_changes(&mut changes);
        for RowChange { key, value } in changes {
            match value {
                Some(value) => self.0.insert(key, value),
                None => self.0.remove(&key),
            };
        }
    }
}
