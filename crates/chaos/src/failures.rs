//! Whether the failures of a task were allowed: each failed attempt was lost to a fault of the run, and the
//! scheduler's own faults used up none.

use std::collections::{BTreeMap, HashMap};

use hypha_model::{FailureKind, rfc3339};
use serde::Deserialize;

use crate::faults::FaultLog;

/// Attempts that a task has by default.
const MAX_ATTEMPTS: usize = 3;
/// A task that gets this many errors from back ends fails, whatever attempts it has left.
const MAX_BACK_END_ERRORS: usize = 2;
/// Failed attempts that a scheduler lists, at most.
const MAX_LISTED: usize = 8;

/// An attempt that gave no result, as the scheduler shows it.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct FailedAttempt {
    pub(crate) worker: String,
    pub(crate) kind: FailureKind,
    /// RFC 3339.
    pub(crate) at: String,
}

/// Knows which faults struck which workers.
pub(crate) struct FailureChecker<'a> {
    pub(crate) faults: &'a FaultLog,
    /// The names of workers by their ids.
    pub(crate) names: &'a HashMap<String, String>,
}

/// A task that has ended, as far as its failures are concerned.
pub(crate) struct EndedTask<'a> {
    /// The name that back ends know it by, if any.
    pub(crate) name: Option<&'a str>,
    pub(crate) submitted_ms: u64,
    pub(crate) completed: bool,
    pub(crate) attempts: usize,
    pub(crate) failures: &'a [FailedAttempt],
}

impl FailureChecker<'_> {
    /// What is wrong with the failures of a task.
    pub(crate) fn check(&self, task: &EndedTask) -> Option<&'static str> {
        let all_listed = task.failures.len() < MAX_LISTED;
        let expected = task.failures.len() + usize::from(task.completed);
        if task.attempts < expected || (all_listed && task.attempts > expected) {
            return Some("with attempts and failures that do not add up");
        }
        let mut charged: BTreeMap<&str, Vec<(FailureKind, u64)>> = BTreeMap::new();
        for failure in task.failures.iter().filter(|failure| failure.kind.uses_attempt()) {
            if !matches!(
                failure.kind,
                FailureKind::WorkerLost | FailureKind::BackendFailed | FailureKind::BackendError
            ) {
                return Some("failed with a kind that no fault of the run causes");
            }
            let Some(at) = rfc3339::parse(&failure.at) else {
                return Some("failed at a time that cannot be parsed");
            };
            let worker = self.names.get(&failure.worker).map(String::as_str).unwrap_or_default();
            charged.entry(worker).or_default().push((failure.kind, at.as_micros() / 1_000));
        }
        for (worker, failures) in &charged {
            let unexplained = |only: Option<FailureKind>| {
                let counts = |kind: FailureKind| only.is_none_or(|only| only == kind);
                let at: Vec<u64> =
                    failures.iter().filter(|it| counts(it.0)).map(|(_, at)| *at).collect();
                self.faults.unexplained(worker, task.submitted_ms, &at)
            };
            if unexplained(Some(FailureKind::WorkerLost)) > 0 {
                return Some("blamed on a worker without a fault");
            }
            if unexplained(None) > task.name.map_or(0, |name| self.faults.errors(worker, name)) {
                return Some("blamed on a back end without an error or a fault");
            }
        }
        let used = charged.values().map(Vec::len).sum::<usize>();
        let errors = task.failures.iter().filter(|it| it.kind == FailureKind::BackendError).count();
        if errors >= MAX_BACK_END_ERRORS && !task.completed {
            return None;
        }
        match task.completed {
            true if used >= MAX_ATTEMPTS => Some("completed with more attempts than it has"),
            // Failures that are no longer listed may have used up attempts.
            false if all_listed && used < MAX_ATTEMPTS => Some("failed with attempts left"),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::FaultKind;

    use FailureKind::{
        BackendBusy, BackendError, BackendFailed, BackendUnreachable, Interrupted, ProgramFailed,
        Refused, Returned, WorkerLost,
    };

    /// Judges a task with these failures, long after two workers died and a back end died and answered one error.
    fn judge(completed: bool, failures: &[(&str, FailureKind)]) -> Option<&'static str> {
        let mut faults = FaultLog::default();
        for worker in ["worker-1", "worker-2", "127.0.0.1:1"] {
            faults.record_begin(worker, FaultKind::Died);
        }
        faults.record_error("127.0.0.1:1", "task");
        let names = ["worker-1", "worker-2", "worker-3", "127.0.0.1:1"];
        let names = names.map(|name| (format!("id of {name}"), name.to_owned())).into();
        let failure = |(worker, kind): &(&str, FailureKind)| FailedAttempt {
            worker: format!("id of {worker}"),
            kind: *kind,
            at: "2199-01-01T00:00:00.000Z".to_owned(),
        };
        let failures: Vec<FailedAttempt> = failures.iter().map(failure).collect();
        let attempts = failures.len() + usize::from(completed);
        let name = Some("task");
        let task = EndedTask { name, submitted_ms: 0, completed, attempts, failures: &failures };
        FailureChecker { faults: &faults, names: &names }.check(&task)
    }

    #[test]
    fn injected_faults_explain_failures() {
        let (one, two, three, back_end) = ("worker-1", "worker-2", "worker-3", "127.0.0.1:1");
        assert_eq!(judge(true, &[]), None);
        assert_eq!(judge(true, &[(one, WorkerLost), (two, WorkerLost)]), None);
        let three_faults = [(one, WorkerLost), (two, WorkerLost), (back_end, BackendFailed)];
        assert_eq!(judge(false, &three_faults), None);
        assert_eq!(
            judge(true, &[(back_end, BackendFailed); 2]),
            None,
            "it died, and answered an error"
        );
        assert_eq!(judge(false, &[(back_end, BackendError); 2]), None, "the second error is final");
        for kind in [Interrupted, Returned, Refused, BackendUnreachable, BackendBusy] {
            assert_eq!(judge(true, &[(three, kind); 7]), None, "{kind} uses up no attempt");
        }
    }

    #[test]
    fn failures_without_a_fault_are_violations() {
        let check = |completed, failures: &[(&str, FailureKind)], expected: &str| {
            let wrong = judge(completed, failures).unwrap_or("nothing");
            assert!(wrong.contains(expected), "{failures:?}: {wrong}");
        };
        let (one, two, three, back_end) = ("worker-1", "worker-2", "worker-3", "127.0.0.1:1");
        check(true, &[(three, WorkerLost)], "a worker without a fault");
        check(true, &[(one, WorkerLost), (one, WorkerLost)], "a worker without a fault");
        check(true, &[("unknown", WorkerLost)], "a worker without a fault");
        check(true, &[(back_end, WorkerLost), (back_end, WorkerLost)], "a worker without a fault");
        check(true, &[(back_end, BackendFailed); 3], "without an error or a fault");
        check(true, &[(one, ProgramFailed)], "no fault of the run causes");
        check(false, &[(one, WorkerLost), (two, WorkerLost)], "attempts left");
        check(false, &[(three, Interrupted); 3], "attempts left");
        check(false, &[(back_end, BackendError)], "attempts left");
        let three_faults = [(one, WorkerLost), (two, WorkerLost), (back_end, BackendFailed)];
        check(true, &three_faults, "more attempts than it has");
    }

    #[test]
    fn attempts_and_failures_add_up() {
        let (faults, names) = (FaultLog::default(), HashMap::new());
        let judge = |completed, attempts| {
            let failures = &[][..];
            let task = EndedTask { name: None, submitted_ms: 0, completed, attempts, failures };
            FailureChecker { faults: &faults, names: &names }.check(&task)
        };
        assert_eq!(judge(true, 1), None);
        assert!(judge(true, 2).is_some_and(|wrong| wrong.contains("add up")));
        assert!(judge(true, 0).is_some_and(|wrong| wrong.contains("add up")));
        assert!(judge(false, 0).is_some_and(|wrong| wrong.contains("attempts left")));
    }
}
