//! Inputs of the simulator's commands: workloads, traces, tables, numbers.

use std::path::{Path, PathBuf};

use hypha_predict::LookupTable;
use hypha_sim::trace::Trace;
use hypha_sim::workload::Workload;
use hypha_sim::workload_name::WorkloadName;

use crate::usage::{Failure, read_text};

/// A workload by name; a trace is read from its file.
pub(super) fn workload(name: &WorkloadName) -> Result<Workload, Failure> {
    name.workload(|file| trace(Path::new(file)))
}

/// A trace from its file.
pub(super) fn trace(path: &Path) -> Result<Trace, Failure> {
    Trace::parse(&read_text(path)?)
        .map_err(|error| Failure::usage(format!("{}: {error}", path.display())))
}

/// A lookup table from its file, JSON or CSV by its extension.
pub(super) fn table(path: Option<&PathBuf>) -> Result<Option<LookupTable>, Failure> {
    let Some(path) = path else { return Ok(None) };
    let text = read_text(path)?;
    let json = path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("json"));
    let table = if json { LookupTable::from_json(&text) } else { LookupTable::from_csv(&text) };
    table.map(Some).map_err(|error| Failure::usage(format!("{}: {error}", path.display())))
}

/// A number within bounds.
pub(super) fn number(flag: &str, value: f64, low: f64, high: f64) -> Result<f64, Failure> {
    if (low..=high).contains(&value) {
        Ok(value)
    } else {
        Err(Failure::usage(format!("{flag}: {value} is not from {low} to {high}")))
    }
}

/// Refuses, before any work is done, a file that cannot be written because its directory does not exist.
pub(super) fn writable(path: &Path) -> Result<(), Failure> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    if path.is_dir() || !directory.is_dir() {
        let message = format!("{}: name a file in a directory that exists", path.display());
        return Err(Failure::usage(message));
    }
    Ok(())
}
