//! One row of a table, checked.

use std::sync::Arc;

use thiserror::Error;

use crate::estimate::Estimate;
use crate::models::MAX_COLUMNS;

/// A table of every measured model, hardware and length is far smaller.
const MAX_ROWS: usize = 100_000;
/// Columns that are not features.
pub(super) const MODEL: &str = "model";
pub(super) const HARDWARE: &str = "hardware";
pub(super) const MEAN_MS: &str = "mean_ms";
pub(super) const ERROR_MS: &str = "error_ms";

/// An invalid table, and why. Lines count from 1.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum TableError {
    /// The table has no rows.
    #[error("the lookup table has no rows: add at least one, or use the mode `default`")]
    NoRows,
    /// An invalid line.
    #[error("line {line} of the lookup table: {what}")]
    Line {
        /// The line.
        line: usize,
        /// What is wrong with it.
        what: String,
    },
}

/// All rows that were read.
pub(super) struct Rows {
    pub(super) columns: Vec<Arc<str>>,
    pub(super) rows: Vec<Row>,
}

#[derive(Clone, Debug)]
pub(super) struct Row {
    /// The position in the file, for ties.
    pub(super) number: u32,
    pub(super) model: Arc<str>,
    pub(super) hardware: Option<Arc<str>>,
    /// In the order of the table's columns, scaled.
    pub(super) features: [Option<f64>; MAX_COLUMNS],
    pub(super) estimate: Estimate,
}

/// A row as it is written, before it is checked.
#[derive(Default)]
pub(super) struct UncheckedRow {
    pub(super) model: Option<Arc<str>>,
    pub(super) hardware: Option<Arc<str>>,
    pub(super) mean_ms: Option<f64>,
    pub(super) error_ms: Option<f64>,
    pub(super) features: [Option<f64>; MAX_COLUMNS],
}

impl Rows {
    pub(super) fn new() -> Rows {
        Rows { columns: Vec::new(), rows: Vec::new() }
    }

    /// The index of a feature among the columns, assigned now if it is new.
    pub(super) fn column(&mut self, name: &str) -> Result<usize, String> {
        if let Some(at) = self.columns.iter().position(|column| **column == *name) {
            return Ok(at);
        }
        if self.columns.len() == MAX_COLUMNS {
            return Err(format!(
                "`{name}` is one feature too many, at most {MAX_COLUMNS} are used"
            ));
        }
        self.columns.push(Arc::from(name));
        Ok(self.columns.len() - 1)
    }

    /// Checks a row and adds it.
    pub(super) fn push(&mut self, draft: UncheckedRow) -> Result<(), String> {
        if self.rows.len() == MAX_ROWS {
            return Err(format!("more than {MAX_ROWS} rows; leave out some"));
        }
        let model = draft.model.filter(|model| !model.is_empty());
        let model = model.ok_or_else(|| missing(MODEL))?;
        let mean_ms = at_least_zero(MEAN_MS, draft.mean_ms.ok_or_else(|| missing(MEAN_MS))?)?;
        let error_ms = at_least_zero(ERROR_MS, draft.error_ms.ok_or_else(|| missing(ERROR_MS))?)?;
        if mean_ms == 0.0 {
            return Err(format!("`{MEAN_MS}` must be more than zero"));
        }
        self.rows.push(Row {
            number: self.rows.len() as u32,
            model,
            hardware: draft.hardware.filter(|hardware| !hardware.is_empty()),
            features: draft.features.map(|feature| feature.map(scaled)),
            estimate: Estimate::new(mean_ms / 1e3, error_ms / 1e3),
        });
        Ok(())
    }
}

/// A feature on the scale of distances: logarithmic, and defined for zero and negatives.
pub(super) fn scaled(value: f64) -> f64 {
    value.abs().ln_1p().copysign(value)
}

pub(super) fn missing(name: &str) -> String {
    format!("`{name}` is missing")
}

/// Refuses numbers that are not finite.
pub(super) fn finite(name: &str, value: f64) -> Result<f64, String> {
    if value.is_finite() { Ok(value) } else { Err(format!("`{name}` is not a finite number")) }
}

fn at_least_zero(name: &str, value: f64) -> Result<f64, String> {
    let value = finite(name, value)?;
    if value >= 0.0 { Ok(value) } else { Err(format!("`{name}` is negative: {value}")) }
}
