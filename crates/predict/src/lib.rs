//! Predicted run times as distributions, learned from measurements or looked up in a table.
//!
//! A task becomes a [`Query`] once; [`Predictor::estimate`] takes a fraction of a microsecond for any worker;
//! [`Predictor::observe`] learns from each completion. Pure: no clock, no files, no randomness.
//!
//! # The learned mode, `default`
//!
//! ```text
//! log t = log(cost of the model on the hardware) + categories + the worker's factor + noise
//! ```
//!
//! - The **cost** is a sum, `c + a * input_tokens + b * output_tokens`, over up to seven numbers of the
//!   task's metadata, and the client's own `estimated_time` as one more. Tasks with different sets of numbers
//!   are learned separately.
//! - A **category** is a text in the metadata, such as `hardware: "A100"` or `precision: "fp16"`.
//! - The **factor** makes workers of any speed comparable, also those that report no hardware.
//! - Each of these takes a share of each residual by its uncertainty, so that the first completion already
//!   teaches most of what there is to learn. Residuals are clipped. Residuals that keep to one side mean
//!   that something has changed, and the beliefs become less certain.
//! - **Intervals** are as wide as it takes to hold 50, 90 and 99 % of past outcomes. The **mean** is corrected
//!   for skewed errors.
//! - With nothing learned yet, the prediction is, in this order: the client's `estimated_time`; the same kind of
//!   task on other hardware; the model's usual time; the usual time of everything. All with a wide error.
//!
//! # The mode `lookup_table`
//!
//! A table is a CSV file with a header, or a JSON list of objects, with these columns or fields:
//!
//! | name | meaning |
//! |---|---|
//! | `model` | the model's name, or `*` for every model without rows of its own |
//! | `hardware` | the worker's hardware label; may be absent or empty |
//! | `mean_ms` | the mean run time in milliseconds, more than zero |
//! | `error_ms` | its standard deviation in milliseconds |
//! | any other | a number of the task's metadata, such as `input_tokens`; up to seven; may be empty |
//!
//! ```csv
//! model,hardware,input_tokens,output_tokens,mean_ms,error_ms
//! llama-2-7b,A100,1000,100,900,50
//! llama-2-7b,,1000,100,1500,500
//! ```
//!
//! How the row is chosen: rows of exactly this model, else rows of `*`, else the learned estimate. Among
//! them rows of exactly this hardware, else rows without hardware, else all. Among them the nearest by the
//! sum of squared differences of `ln(1 + value)`; a number that the task does not have is ignored,
//! one that the row leaves open counts as off by a factor of e. Of equally near rows the first in the file.
//! The worker's factor is applied to the row, relative to the other workers of its hardware. Learning continues.

mod backlog;
mod bits;
mod calibration;
mod change_detector;
mod departed;
mod estimate;
mod keys;
mod model_table;
mod models;
mod names;
mod normal;
mod oracle;
mod predictor;
mod query;
mod regression;
mod regression_lookup;
mod remaining;
mod settings;
mod snapshot;
mod table;
mod typical;
mod widths;
mod workers;

pub use backlog::Backlog;
pub use calibration::Calibration;
pub use estimate::Estimate;
pub use keys::{HardwareKey, Mode, ModelKey, NoLookupTable, UnknownMode, WorkerKey};
pub use model_table::{MAX_MODELS, MAX_NEW_MODELS};
pub use oracle::ORACLE_RUN_S;
pub use predictor::{MAX_HARDWARE, MAX_REGRESSIONS, Predictor};
pub use query::Query;
pub use remaining::{Remaining, RemainingSum};
pub use settings::Settings;
pub use snapshot::Snapshot;
pub use table::{LookupTable, TableError};
