//! Columns of numbers as samples.

use std::path::PathBuf;

use super::records::{Field, for_each_record};
use super::writer::Writer;
use super::{PrepareError, line_error, total_bytes};
use crate::{Dtype, Kind, TensorSpec};

/// The name of the tensor of rows.
const VALUES: &str = "values";

pub(super) fn prepare(
    files: &[PathBuf],
    columns: &[String],
    writer: &mut Writer<'_>,
) -> Result<(), PrepareError> {
    if columns.is_empty() {
        return Err(PrepareError::Invalid("there are no columns; name at least one".into()));
    }
    let shape = vec![columns.len() as u64];
    let tensor = TensorSpec { name: VALUES.into(), dtype: Dtype::F32, shape };
    writer.describe(
        Kind::Numbers { columns: columns.into() },
        vec![tensor],
        total_bytes(files)?,
    )?;
    let mut sample = Vec::new();
    for path in files {
        for_each_record(path, columns, |line, fields, bytes| {
            writer.advance(bytes);
            sample.clear();
            for (column, field) in columns.iter().zip(fields) {
                let value = number(field).map_err(|reason| {
                    line_error(path, line, format!("column `{column}`: {reason}"))
                })?;
                sample.extend_from_slice(&value.to_le_bytes());
            }
            writer.push(&[&sample])
        })?;
    }
    Ok(())
}

/// A finite value: one that is not would spoil a whole training run.
fn number(field: &Field<'_>) -> Result<f32, String> {
    let value = match field {
        // In two steps, like the number of JSON: the same digits give the same value in both formats.
        Field::Text(text) => text.trim().parse::<f64>().ok().map(|value| value as f32),
        Field::Number(value) => Some(*value as f32),
        Field::Other => None,
    };
    value.filter(|value| value.is_finite()).ok_or_else(|| match field {
        Field::Text(text) => {
            let shown: String = text.chars().take(40).collect();
            format!("{shown:?} is not a finite number")
        }
        _ => "not a finite number".into(),
    })
}
