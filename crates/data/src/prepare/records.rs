//! Records of CSV and JSONL files, one at a time, with the line that each begins in.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::rc::Rc;

use serde_json::Value;

use super::{PrepareError, file_error, line_error, read_error};

/// Longer than any document of a usual corpus. Without it, one quote that is never closed reads the rest into memory.
/// Smaller in tests, which reach it.
const MAX_RECORD_BYTES: u64 = if cfg!(test) { 1 << 20 } else { 64 << 20 };

/// A field of a record.
#[derive(Debug)]
pub(super) enum Field<'a> {
    /// A text; in CSV, everything.
    Text(&'a str),
    /// A number of JSON.
    Number(f64),
    /// Any other value of JSON.
    Other,
}

/// Calls `record` with the line, the fields of the columns, and the bytes that were read for it.
pub(super) fn for_each_record(
    path: &Path,
    columns: &[String],
    record: impl FnMut(u64, &[Field<'_>], u64) -> Result<(), PrepareError>,
) -> Result<(), PrepareError> {
    let file = File::open(path).map_err(|source| read_error(path, source))?;
    match path.extension().and_then(|ending| ending.to_str()) {
        Some("csv") => csv_records(path, file, columns, record),
        Some("jsonl" | "ndjson") => jsonl_records(path, file, columns, record),
        _ => Err(file_error(path, "expected a file that ends in .csv or .jsonl")),
    }
}

fn csv_records(
    path: &Path,
    file: File,
    columns: &[String],
    mut record: impl FnMut(u64, &[Field<'_>], u64) -> Result<(), PrepareError>,
) -> Result<(), PrepareError> {
    let budget = Rc::new(Cell::new(MAX_RECORD_BYTES));
    let mut reader = csv::Reader::from_reader(Budgeted { file, budget: Rc::clone(&budget) });
    let headers = reader.headers().map_err(|error| csv_error(path, 1, &error))?;
    let position = |column: &String| {
        let found = headers.iter().position(|header| header == column);
        found.ok_or_else(|| line_error(path, 1, format!("there is no column `{column}`")))
    };
    let positions: Vec<usize> = columns.iter().map(position).collect::<Result<_, _>>()?;
    let mut row = csv::StringRecord::new();
    let mut end = reader.position().byte();
    loop {
        budget.set(MAX_RECORD_BYTES);
        let next_line = reader.position().line();
        match reader.read_record(&mut row) {
            Ok(true) => {}
            Ok(false) => return Ok(()),
            Err(error) => return Err(csv_error(path, next_line, &error)),
        }
        let line = row.position().map_or(next_line, csv::Position::line);
        let fields: Vec<Field<'_>> =
            positions.iter().map(|at| Field::Text(row.get(*at).unwrap_or_default())).collect();
        let begin = std::mem::replace(&mut end, reader.position().byte());
        record(line, &fields, end - begin)?;
    }
}

fn csv_error(path: &Path, next_line: u64, error: &csv::Error) -> PrepareError {
    let line = error.position().map_or(next_line, csv::Position::line);
    match error.kind() {
        csv::ErrorKind::Utf8 { .. } => line_error(path, line, "not valid UTF-8"),
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
            line_error(path, line, format!("{len} fields instead of {expected_len}"))
        }
        csv::ErrorKind::Io(error) => line_error(path, line, error),
        _ => line_error(path, line, error),
    }
}

/// Ends with an error when a record takes more than its budget.
struct Budgeted {
    file: File,
    budget: Rc<Cell<u64>>,
}

impl Read for Budgeted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buffer)?;
        match self.budget.get().checked_sub(read as u64) {
            Some(rest) => self.budget.set(rest),
            None => return Err(io::Error::other(too_long())),
        }
        Ok(read)
    }
}

fn jsonl_records(
    path: &Path,
    file: File,
    columns: &[String],
    mut record: impl FnMut(u64, &[Field<'_>], u64) -> Result<(), PrepareError>,
) -> Result<(), PrepareError> {
    let mut reader = BufReader::new(file);
    let mut text = Vec::new();
    for line in 1.. {
        text.clear();
        let read = reader.by_ref().take(MAX_RECORD_BYTES + 1).read_until(b'\n', &mut text);
        let bytes = read.map_err(|source| read_error(path, source))? as u64;
        if bytes == 0 {
            break;
        } else if bytes > MAX_RECORD_BYTES {
            return Err(line_error(path, line, too_long()));
        } else if text.trim_ascii().is_empty() {
            continue;
        }
        let value: Value = serde_json::from_slice(&text)
            .map_err(|error| line_error(path, line, json_reason(&error)))?;
        let field = |column: &String| match value.get(column) {
            Some(Value::String(text)) => Ok(Field::Text(text)),
            Some(Value::Number(number)) => Ok(number.as_f64().map_or(Field::Other, Field::Number)),
            Some(_) => Ok(Field::Other),
            None if value.is_object() => {
                Err(line_error(path, line, format!("there is no column `{column}`")))
            }
            None => Err(line_error(path, line, "not a JSON object")),
        };
        let fields: Vec<Field<'_>> = columns.iter().map(field).collect::<Result<_, _>>()?;
        record(line, &fields, bytes)?;
    }
    Ok(())
}

/// The message without its line, which is always the first of the text that was parsed.
fn json_reason(error: &serde_json::Error) -> String {
    let message = error.to_string();
    match message.split_once(" at line ") {
        Some((reason, _)) => format!("invalid JSON: {reason} at column {}", error.column()),
        None => format!("invalid JSON: {message}"),
    }
}

fn too_long() -> String {
    format!("the record has more than {} MiB; is a quote not closed?", MAX_RECORD_BYTES >> 20)
}
