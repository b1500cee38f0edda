//! Workloads as they are named on a command line.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use thiserror::Error;

use crate::trace::Trace;
use crate::workload::Workload;

/// The name of a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkloadName {
    /// `poisson`
    Poisson,
    /// `bimodal`
    Bimodal,
    /// `pareto`
    Pareto,
    /// `burst`
    Burst,
    /// `trace:FILE`
    Trace(String),
}

/// The name of no workload.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("workload: `{0}`: use one of poisson, bimodal, pareto, burst, trace:FILE")]
pub struct WorkloadNameError(String);

impl WorkloadName {
    /// The workload of this name. `read` is called only for a trace, with its file: the caller does the
    /// file access.
    pub fn workload<E>(&self, read: impl FnOnce(&str) -> Result<Trace, E>) -> Result<Workload, E> {
        Ok(match self {
            WorkloadName::Poisson => Workload::Poisson,
            WorkloadName::Bimodal => Workload::Bimodal,
            WorkloadName::Pareto => Workload::Pareto,
            WorkloadName::Burst => Workload::Burst,
            WorkloadName::Trace(file) => Workload::Trace(Arc::new(read(file)?)),
        })
    }
}

impl FromStr for WorkloadName {
    type Err = WorkloadNameError;

    fn from_str(text: &str) -> Result<WorkloadName, WorkloadNameError> {
        match text {
            "poisson" => Ok(WorkloadName::Poisson),
            "bimodal" => Ok(WorkloadName::Bimodal),
            "pareto" => Ok(WorkloadName::Pareto),
            "burst" => Ok(WorkloadName::Burst),
            _ => match text.strip_prefix("trace:") {
                Some(file) if !file.is_empty() => Ok(WorkloadName::Trace(file.to_owned())),
                _ => Err(WorkloadNameError(text.escape_debug().to_string())),
            },
        }
    }
}

impl fmt::Display for WorkloadName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WorkloadName::Poisson => f.write_str("poisson"),
            WorkloadName::Bimodal => f.write_str("bimodal"),
            WorkloadName::Pareto => f.write_str("pareto"),
            WorkloadName::Burst => f.write_str("burst"),
            WorkloadName::Trace(file) => write!(f, "trace:{file}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::TraceError;

    #[track_caller]
    fn check(text: &str, expected: &str) {
        let name = text.parse::<WorkloadName>();
        let shown = name.map_or_else(|error| error.to_string(), |name| format!("{name} {name:?}"));
        assert_eq!(shown, expected, "{text:?}");
    }

    #[test]
    fn names_round_trip_through_text() {
        check("poisson", "poisson Poisson");
        check("bimodal", "bimodal Bimodal");
        check("pareto", "pareto Pareto");
        check("burst", "burst Burst");
        check("trace:a:b.csv", "trace:a:b.csv Trace(\"a:b.csv\")");
        let choices = "use one of poisson, bimodal, pareto, burst, trace:FILE";
        check("Poisson", &format!("workload: `Poisson`: {choices}"));
        check("trace:", &format!("workload: `trace:`: {choices}"));
        check("a\nb", &format!("workload: `a\\nb`: {choices}"));
    }

    #[test]
    fn only_a_trace_is_read_from_a_file() {
        let read = |file: &str| match file {
            "a.csv" => Trace::parse(""),
            _ => panic!("read {file}"),
        };
        assert_eq!(WorkloadName::Burst.workload(read), Ok(Workload::Burst));
        let trace = WorkloadName::Trace("a.csv".into());
        assert_eq!(trace.workload(read), Err(TraceError::Empty));
    }
}
