//! The rows of machines: one table, keyed by the machine's name and the row's key.

use std::collections::BTreeMap;

use hypha_machine::{RowChange, Rows};
use hypha_model::Name;
use rusqlite::{Connection, params};

use crate::error::StoreError;

/// The changes of a group of commits, one per row; `None` deletes it.
#[derive(Default)]
pub(crate) struct RowChanges(BTreeMap<(Name, Vec<u8>), Option<Vec<u8>>>);

impl RowChanges {
    /// Adds changes. They replace earlier changes of the same row.
    pub(crate) fn add(&mut self, machine: &Name, changes: Vec<RowChange>) {
        for RowChange { key, value } in changes {
            self.0.insert((machine.clone(), key), value);
        }
    }

    /// Writes the changes, within a transaction that the caller has begun.
    pub(crate) fn write(self, connection: &Connection) -> Result<(), StoreError> {
        for ((machine, key), value) in &self.0 {
            let machine = machine.as_str();
            match value {
                Some(value) => connection
                    .prepare_cached("INSERT OR REPLACE INTO machine_rows VALUES (?1, ?2, ?3)")?
                    .execute(params![machine, key, value])?,
                None => connection
                    .prepare_cached("DELETE FROM machine_rows WHERE machine = ?1 AND key = ?2")?
                    .execute(params![machine, key])?,
            };
        }
        Ok(())
    }
}

/// All rows of a machine.
pub(crate) fn read(connection: &Connection, machine: &Name) -> Result<Rows, StoreError> {
    let sql = "SELECT key, value FROM machine_rows WHERE machine = ?1 ORDER BY key";
    let mut statement = connection.prepare_cached(sql)?;
    let rows = statement.query_map([machine.as_str()], |row| Ok((row.get(0)?, row.get(1)?)))?;
    Ok(Rows(rows.collect::<Result<_, _>>()?))
}
