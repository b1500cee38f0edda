//! Safetensors files as samples: the rows of their tensors.

use std::path::PathBuf;

use super::writer::Writer;
use super::{PrepareError, file_error, total_bytes};
use crate::{Kind, SampleError, SliceFile, TensorSpec};

/// Rows that are read at once, of all tensors together.
const READ_BYTES: u64 = 1 << 20;

pub(super) fn prepare(files: &[PathBuf], writer: &mut Writer<'_>) -> Result<(), PrepareError> {
    let total = total_bytes(files)?;
    let mut described: Option<Vec<TensorSpec>> = None;
    for path in files {
        let failed = |error: SampleError| match error {
            SampleError::Malformed { reason, .. } => file_error(path, reason),
            SampleError::Io { source, .. } => super::read_error(path, source),
            other => file_error(path, other),
        };
        let mut file = SliceFile::open(path).map_err(failed)?;
        let tensors: Vec<TensorSpec> = file.tensors().cloned().collect();
        match &described {
            None => {
                writer.describe(Kind::Tensors, tensors.clone(), total)?;
                described = Some(tensors.clone());
            }
            Some(first) if *first != tensors => {
                let reason =
                    "its tensors differ from those of the first file in name, type or shape";
                return Err(file_error(path, reason));
            }
            Some(_) => {}
        }
        let row_bytes: u64 = tensors.iter().filter_map(TensorSpec::sample_bytes).sum();
        let step = u32::try_from(READ_BYTES / row_bytes.max(1)).unwrap_or(u32::MAX).max(1);
        let mut start = 0;
        while start < file.samples() {
            let end = start.saturating_add(step).min(file.samples());
            let columns: Vec<Vec<u8>> = tensors
                .iter()
                .map(|tensor| file.read(&tensor.name, start..end).map_err(failed))
                .collect::<Result<_, _>>()?;
            let rows = usize::try_from(end - start).unwrap_or(usize::MAX);
            for row in 0..rows {
                let sample: Vec<&[u8]> =
                    columns.iter().map(|column| row_of(column, row, rows)).collect();
                writer.push(&sample)?;
                writer.advance(row_bytes);
            }
            start = end;
        }
    }
    Ok(())
}

fn row_of(column: &[u8], row: usize, rows: usize) -> &[u8] {
    let length = column.len() / rows;
    column.get(row * length..(row + 1) * length).unwrap_or_default()
}
