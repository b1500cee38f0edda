//! Whether what failed of a task was allowed to fail: each attempt that it lost was lost to a fault of the run, and the
//! scheduler's own faults used up none.

use std::collections::{BTreeMap, HashMap};

use hypha_model::rfc3339;
use serde::Deserialize;

use crate::faults::Faults;

/// Attempts that a task has by default.
const MAX_ATTEMPTS: usize = 3;
/// Failed attempts that a scheduler tells of, at most.
const MAX_LISTED: usize = 8;

/// An attempt that gave no result, as the scheduler tells it.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct FailedAttempt {
    pub(crate) worker: String,
    pub(crate) reason: String,
    /// RFC 3339.
    pub(crate) at: String,
}

/// What a failure does to its task, told by its reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cost {
    /// It uses up no attempt, so nobody need be to blame.
    Nothing,
    /// It uses up an attempt: a worker of the swarm was lost, or a back end with its calls.
    Attempt,
    /// A back end answered with an error.
    Error,
    /// A back end was unhealthy: nothing if nothing was sent, otherwise an attempt.
    Unclear,
}

/// The reasons, by how they begin; the first that fits counts. One that is not listed is a complaint: whoever adds a
/// reason says here what it costs.
const REASONS: &[(&str, Cost)] = &[
    // The scheduler's own outage.
    ("the scheduler was restarted and", Cost::Nothing),
    ("the scheduler did not run for a while", Cost::Nothing),
    // Given back, refused, or not acknowledged, by a worker that others can stand in for.
    ("the worker was stopped, and gave it back", Cost::Nothing),
    ("the worker describes itself anew", Cost::Nothing),
    ("the connection to the worker was replaced", Cost::Nothing),
    ("the worker did not answer in time", Cost::Nothing),
    ("refused by the worker: ", Cost::Nothing),
    // A back end that could not be reached, or whose last health check failed.
    ("its health has not been checked yet", Cost::Nothing),
    ("no connection to ", Cost::Nothing),
    ("the task instance did not take it: no connection to ", Cost::Nothing),
    ("the server did not answer within ", Cost::Nothing),
    ("the task instance did not take it: ", Cost::Unclear),
    ("the connection to the server failed: ", Cost::Unclear),
    ("the server answered ", Cost::Error),
    ("the task instance was started anew and has lost the task", Cost::Attempt),
    ("the connection to the worker was lost", Cost::Attempt),
    ("the worker does not answer", Cost::Attempt),
    ("the worker does not take it", Cost::Attempt),
    ("the worker has lost the lease", Cost::Attempt),
    ("the worker has lost it", Cost::Attempt),
    ("the lease has run out", Cost::Attempt),
];

/// Knows what was done to whom.
pub(crate) struct Judge<'a> {
    pub(crate) faults: &'a Faults,
    /// The names of workers by their ids.
    pub(crate) names: &'a HashMap<String, String>,
}

/// A task that has ended, as far as its failures are concerned.
pub(crate) struct Ended<'a> {
    /// What back ends know it by, if they do.
    pub(crate) name: Option<&'a str>,
    pub(crate) submitted_ms: u64,
    pub(crate) completed: bool,
    pub(crate) attempts: usize,
    pub(crate) failures: &'a [FailedAttempt],
}

impl Judge<'_> {
    /// What is wrong with the failures of a task.
    pub(crate) fn judge(&self, task: &Ended) -> Option<&'static str> {
        let all_listed = task.failures.len() < MAX_LISTED;
        let expected = task.failures.len() + usize::from(task.completed);
        if task.attempts < expected || (all_listed && task.attempts > expected) {
            return Some("with attempts and failures that do not add up");
        }
        let mut costs: BTreeMap<&str, Vec<(Cost, u64)>> = BTreeMap::new();
        for failure in task.failures {
            let Some((_, cost)) = REASONS.iter().find(|it| failure.reason.starts_with(it.0)) else {
                return Some("failed for a reason that is not known here");
            };
            let Some(at) = rfc3339::parse(&failure.at) else {
                return Some("failed at a time that cannot be read");
            };
            let worker = self.names.get(&failure.worker).map(String::as_str).unwrap_or_default();
            costs.entry(worker).or_default().push((*cost, at.as_micros() / 1_000));
        }
        for (worker, costs) in &costs {
            let errors = costs.iter().filter(|(cost, _)| *cost == Cost::Error).count();
            if errors > task.name.map_or(0, |name| self.faults.errors(worker, name)) {
                return Some("blamed on an error that no back end gave");
            }
            let blamed = |cost: Cost| matches!(cost, Cost::Attempt | Cost::Unclear);
            let at: Vec<u64> =
                costs.iter().filter(|(cost, _)| blamed(*cost)).map(|(_, at)| *at).collect();
            if !self.faults.explain(worker, task.submitted_ms, &at) {
                return Some("blamed on a worker that nothing was done to");
            }
        }
        let count = |wanted: &[Cost]| {
            costs.values().flatten().filter(|(cost, _)| wanted.contains(cost)).count()
        };
        let (least, most) = (
            count(&[Cost::Attempt, Cost::Error]),
            count(&[Cost::Attempt, Cost::Error, Cost::Unclear]),
        );
        match task.completed {
            true if least >= MAX_ATTEMPTS => Some("completed with more attempts than it has"),
            // What is not listed any more may have used up attempts.
            false if all_listed && most < MAX_ATTEMPTS => Some("failed with attempts left"),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::Injury;

    const LOST: &str = "the connection to the worker was lost";
    const RESTARTED: &str = "the scheduler was restarted and the worker does not have it";

    /// Judges a task whose attempts failed so, long after two workers died and a back end gave one error.
    fn judge(completed: bool, failures: &[(&str, &str)]) -> Option<&'static str> {
        let mut faults = Faults::default();
        for worker in ["worker-1", "worker-2", "127.0.0.1:1"] {
            faults.began(worker, Injury::Died);
        }
        faults.erred("127.0.0.1:1", "task");
        let names = ["worker-1", "worker-2", "worker-3", "127.0.0.1:1"];
        let names = names.map(|name| (format!("id of {name}"), name.to_owned())).into();
        let failure = |(worker, reason): &(&str, &str)| FailedAttempt {
            worker: format!("id of {worker}"),
            reason: (*reason).to_owned(),
            at: "2199-01-01T00:00:00.000Z".to_owned(),
        };
        let failures: Vec<FailedAttempt> = failures.iter().map(failure).collect();
        let attempts = failures.len() + usize::from(completed);
        let name = Some("task");
        let task = Ended { name, submitted_ms: 0, completed, attempts, failures: &failures };
        Judge { faults: &faults, names: &names }.judge(&task)
    }

    #[test]
    fn what_was_injected_explains_what_failed() {
        let (one, two, back_end) = ("worker-1", "worker-2", "127.0.0.1:1");
        let error = "the server answered 500: {}";
        assert_eq!(judge(true, &[]), None);
        assert_eq!(judge(true, &[(one, LOST), (two, LOST)]), None);
        assert_eq!(judge(false, &[(one, LOST), (two, LOST), (back_end, error)]), None);
        assert_eq!(judge(true, &[("worker-3", RESTARTED); 7]), None);
        let broken = "the connection to the server failed: closed";
        assert_eq!(judge(true, &[(back_end, broken), (back_end, error)]), None);
    }

    #[test]
    fn what_was_not_injected_is_named() {
        let check = |completed, failures: &[(&str, &str)], expected: &str| {
            let wrong = judge(completed, failures).unwrap_or("nothing");
            assert!(wrong.contains(expected), "{failures:?}: {wrong}");
        };
        let (one, two, three, back_end) = ("worker-1", "worker-2", "worker-3", "127.0.0.1:1");
        let error = "the server answered 500: {}";
        check(true, &[(three, LOST)], "nothing was done to");
        check(true, &[(one, LOST), (one, LOST)], "nothing was done to");
        check(true, &[("nobody", LOST)], "nothing was done to");
        check(true, &[(back_end, error), (back_end, error)], "no back end gave");
        check(true, &[(one, "it is tired")], "not known here");
        check(false, &[(one, LOST), (two, LOST)], "attempts left");
        check(false, &[(three, RESTARTED); 3], "attempts left");
        let three_faults = [(one, LOST), (two, LOST), (back_end, error)];
        check(true, &three_faults, "more attempts than it has");
    }

    #[test]
    fn attempts_and_failures_add_up() {
        let (faults, names) = (Faults::default(), HashMap::new());
        let judge = |completed, attempts| {
            let failures = &[][..];
            let task = Ended { name: None, submitted_ms: 0, completed, attempts, failures };
            Judge { faults: &faults, names: &names }.judge(&task)
        };
        assert_eq!(judge(true, 1), None);
        assert!(judge(true, 2).is_some_and(|wrong| wrong.contains("add up")));
        assert!(judge(true, 0).is_some_and(|wrong| wrong.contains("add up")));
        assert!(judge(false, 0).is_some_and(|wrong| wrong.contains("attempts left")));
    }
}
