//! Tables as comma-separated values: a header, then a row a line. Values may be quoted; `#` begins a
//! comment line.

use std::sync::Arc;

use super::row::{
    ERROR_MS, HARDWARE, MEAN_MS, MODEL, Rows, TableError, UncheckedRow, finite, missing,
};

/// The meaning of a column.
enum Column {
    Model,
    Hardware,
    Mean,
    Error,
    Feature(usize, String),
}

pub(super) fn parse(text: &str) -> Result<Rows, TableError> {
    let mut rows = Rows::new();
    let mut header: Option<Vec<Column>> = None;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    for (line, written) in (1..).zip(text.lines()) {
        if written.trim().is_empty() || written.starts_with('#') {
            continue;
        }
        let at_line = |what| TableError::Line { line, what };
        let cells = split(written).map_err(at_line)?;
        match &header {
            None => header = Some(columns(&cells, &mut rows).map_err(at_line)?),
            Some(columns) => {
                rows.push(draft(columns, &cells).map_err(at_line)?).map_err(at_line)?;
            }
        }
    }
    Ok(rows)
}

fn columns(cells: &[String], rows: &mut Rows) -> Result<Vec<Column>, String> {
    for (at, name) in cells.iter().enumerate() {
        if name.is_empty() {
            return Err(format!("column {} has no name", at + 1));
        }
        if cells[..at].contains(name) {
            return Err(format!("the column `{name}` occurs twice"));
        }
    }
    if let Some(name) =
        [MODEL, MEAN_MS, ERROR_MS].iter().find(|name| !cells.iter().any(|c| c == *name))
    {
        return Err(format!("the column {}", missing(name)));
    }
    let column = |name: &String| {
        Ok(match name.as_str() {
            MODEL => Column::Model,
            HARDWARE => Column::Hardware,
            MEAN_MS => Column::Mean,
            ERROR_MS => Column::Error,
            feature => Column::Feature(rows.column(feature)?, name.clone()),
        })
    };
    cells.iter().map(column).collect()
}

fn draft(columns: &[Column], cells: &[String]) -> Result<UncheckedRow, String> {
    if cells.len() != columns.len() {
        return Err(format!("{} values under {} columns", cells.len(), columns.len()));
    }
    let mut draft = UncheckedRow::default();
    for (column, cell) in columns.iter().zip(cells) {
        match column {
            Column::Model => draft.model = Some(Arc::from(cell.as_str())),
            Column::Hardware => draft.hardware = Some(Arc::from(cell.as_str())),
            Column::Mean => draft.mean_ms = number(MEAN_MS, cell)?,
            Column::Error => draft.error_ms = number(ERROR_MS, cell)?,
            Column::Feature(at, name) => draft.features[*at] = number(name, cell)?,
        }
    }
    Ok(draft)
}

/// An empty cell is a missing number.
fn number(name: &str, cell: &str) -> Result<Option<f64>, String> {
    if cell.is_empty() {
        return Ok(None);
    }
    let shown = || cell.chars().take(64).collect::<String>();
    let value = cell.parse().map_err(|_| format!("`{name}` is not a number: `{}`", shown()))?;
    finite(name, value).map(Some)
}

/// The cells of a line. A quoted cell may hold commas, and quotes written twice.
fn split(line: &str) -> Result<Vec<String>, String> {
    let mut cells = Vec::new();
    let mut rest = line;
    loop {
        let (cell, after) = match rest.trim_start().strip_prefix('"') {
            Some(quoted) => unquoted(quoted)?,
            None => {
                let end = rest.find(',').unwrap_or(rest.len());
                (rest[..end].trim().to_owned(), &rest[end..])
            }
        };
        cells.push(cell);
        match after.strip_prefix(',') {
            Some(next) => rest = next,
            None => return Ok(cells),
        }
    }
}

fn unquoted(text: &str) -> Result<(String, &str), String> {
    let mut cell = String::new();
    let mut rest = text;
    loop {
        let end = rest.find('"').ok_or("a quote is not closed")?;
        cell.push_str(&rest[..end]);
        rest = &rest[end + 1..];
        match rest.strip_prefix('"') {
            Some(more) => {
                cell.push('"');
                rest = more;
            }
            None => break,
        }
    }
    let after = rest.trim_start();
    if after.is_empty() || after.starts_with(',') {
        return Ok((cell, after));
    }
    Err("there is text after a closing quote".to_owned())
}
