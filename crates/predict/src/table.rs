//! Run times from a table that was measured beforehand.
//!
//! The rules of the nearest match are in the crate's documentation.

mod csv;
mod json;
mod nearest;
mod row;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::estimate::Estimate;
use crate::models::MAX_COLUMNS;
use nearest::NearestRows;
use row::{Row, Rows};

pub use row::TableError;

/// The model name of rows for every model without rows of its own.
const ANY_MODEL: &str = "*";

/// Run times by model, hardware and features.
#[derive(Clone, Debug)]
pub struct LookupTable {
    columns: Vec<Arc<str>>,
    models: BTreeMap<Arc<str>, ModelRows>,
    rows: usize,
}

/// The rows of one model, by hardware.
#[derive(Clone, Debug)]
struct ModelRows {
    exact: BTreeMap<Arc<str>, NearestRows>,
    /// The rows without hardware.
    without_hardware: Option<NearestRows>,
    /// All rows.
    all: NearestRows,
}

impl LookupTable {
    /// A table without rows: every prediction is then the learned one.
    pub fn empty() -> LookupTable {
        LookupTable { columns: Vec::new(), models: BTreeMap::new(), rows: 0 }
    }

    /// Reads rows from JSON: a list of objects.
    pub fn from_json(text: &str) -> Result<LookupTable, TableError> {
        LookupTable::of(json::parse(text)?)
    }

    /// Reads rows from comma-separated values with a header.
    pub fn from_csv(text: &str) -> Result<LookupTable, TableError> {
        LookupTable::of(csv::parse(text)?)
    }

    fn of(rows: Rows) -> Result<LookupTable, TableError> {
        let Rows { columns, rows } = rows;
        if rows.is_empty() {
            return Err(TableError::NoRows);
        }
        let count = rows.len();
        let mut by_model: BTreeMap<Arc<str>, Vec<Row>> = BTreeMap::new();
        for row in rows {
            by_model.entry(row.model.clone()).or_default().push(row);
        }
        let models =
            by_model.into_iter().map(|(model, rows)| (model, ModelRows::of(rows))).collect();
        Ok(LookupTable { columns, models, rows: count })
    }

    /// How many rows there are.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The names of the features.
    pub(crate) fn columns(&self) -> &[Arc<str>] {
        &self.columns
    }

    /// The nearest row, if there is any for the model. `feature` returns a task's numbers.
    pub(crate) fn nearest(
        &self,
        model: Option<&str>,
        hardware: Option<&str>,
        feature: impl Fn(&str) -> Option<f64>,
    ) -> Option<Estimate> {
        let own = model.and_then(|model| self.models.get(model));
        let group = own.or_else(|| self.models.get(ANY_MODEL))?;
        let mut point = [None; MAX_COLUMNS];
        for (value, column) in point.iter_mut().zip(&self.columns) {
            *value = feature(column).map(row::scaled);
        }
        let exact = hardware.and_then(|hardware| group.exact.get(hardware));
        let near = exact.or(group.without_hardware.as_ref()).unwrap_or(&group.all);
        Some(near.nearest(&point))
    }
}

impl ModelRows {
    fn of(rows: Vec<Row>) -> ModelRows {
        let mut exact: BTreeMap<Arc<str>, Vec<Row>> = BTreeMap::new();
        for row in &rows {
            if let Some(hardware) = &row.hardware {
                exact.entry(hardware.clone()).or_default().push(row.clone());
            }
        }
        let without_hardware: Vec<Row> =
            rows.iter().filter(|row| row.hardware.is_none()).cloned().collect();
        ModelRows {
            exact: exact
                .into_iter()
                .map(|(hardware, rows)| (hardware, NearestRows::of(rows)))
                .collect(),
            without_hardware: (!without_hardware.is_empty())
                .then(|| NearestRows::of(without_hardware)),
            all: NearestRows::of(rows),
        }
    }
}
