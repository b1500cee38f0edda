//! The faults of each worker, with their times: everything that a failed attempt may be blamed on.

use std::collections::HashMap;
use std::time::{SystemTime, UNIX_EPOCH};

/// How long after a fault has ended the scheduler may blame an attempt on it. It may itself have been down, frozen or
/// without a disk meanwhile, and a broken connection may be noticed only when a response times out.
const NOTICED_WITHIN_MS: u64 = 60_000;

/// A fault of a worker that makes attempts fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultKind {
    /// It died with its runs.
    Died,
    /// It was suspended for a while.
    Froze,
}

/// A fault with its time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    kind: FaultKind,
    began_ms: u64,
    /// `u64::MAX` while it lasts.
    ended_ms: u64,
}

/// All faults of workers. A worker is known by its name: that of its certificate, or its host and port.
#[derive(Debug, Default)]
pub(crate) struct FaultLog {
    of_worker: HashMap<String, Vec<Fault>>,
    /// How often a back end deliberately answered a task, known by its name, with an error.
    errors: HashMap<(String, String), usize>,
}

impl FaultLog {
    /// A worker dies or freezes now, and is down until [`FaultLog::record_end`].
    pub(crate) fn record_begin(&mut self, worker: &str, kind: FaultKind) {
        let fault = Fault { kind, began_ms: now_ms(), ended_ms: u64::MAX };
        self.of_worker.entry(worker.to_owned()).or_default().push(fault);
    }

    /// The fault of the worker is over.
    pub(crate) fn record_end(&mut self, worker: &str) {
        let now = now_ms();
        for fault in self.of_worker.entry(worker.to_owned()).or_default() {
            fault.ended_ms = fault.ended_ms.min(now);
        }
    }

    /// A back end answers a task with an error.
    pub(crate) fn record_error(&mut self, worker: &str, task: &str) {
        *self.errors.entry((worker.to_owned(), task.to_owned())).or_default() += 1;
    }

    /// How often a back end answered a task with an error.
    pub(crate) fn errors(&self, worker: &str, task: &str) -> usize {
        self.errors.get(&(worker.to_owned(), task.to_owned())).copied().unwrap_or_default()
    }

    /// How many of the failures of one task on one worker, at these times, have no fault of their own that began before
    /// the failure, did not end long before it, and not before the task was submitted.
    pub(crate) fn unexplained(
        &self,
        worker: &str,
        submitted_ms: u64,
        failed_at_ms: &[u64],
    ) -> usize {
        let none = Vec::new();
        let faults = self.of_worker.get(worker).unwrap_or(&none);
        let mut left: Vec<&Fault> =
            faults.iter().filter(|fault| fault.ended_ms >= submitted_ms).collect();
        let mut failed_at_ms = failed_at_ms.to_vec();
        failed_at_ms.sort_unstable();
        // Faults and failures in order of time: taking the first match leaves the most for the others.
        let has_none = |at: &&u64| {
            let fits = |fault: &&Fault| {
                fault.began_ms <= **at && **at <= fault.ended_ms.saturating_add(NOTICED_WITHIN_MS)
            };
            let first = left.iter().position(fits);
            first.map(|first| left.remove(first)).is_none()
        };
        failed_at_ms.iter().filter(has_none).count()
    }

    /// How many faults of this kind there were.
    pub(crate) fn count(&self, kind: FaultKind) -> usize {
        self.of_worker.values().flatten().filter(|fault| fault.kind == kind).count()
    }

    /// How many errors there were.
    pub(crate) fn count_errors(&self) -> usize {
        self.errors.values().sum()
    }
}

pub(crate) fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(times: &[(u64, u64)]) -> FaultLog {
        let fault = |&(began_ms, ended_ms)| Fault { kind: FaultKind::Died, began_ms, ended_ms };
        let of_worker = [("w".to_owned(), times.iter().map(fault).collect())].into();
        FaultLog { of_worker, ..FaultLog::default() }
    }

    #[test]
    fn a_failure_needs_a_fault_of_its_own_at_its_time() {
        let late = NOTICED_WITHIN_MS;
        let two = faults(&[(1_000, 1_100), (200_000, 200_100)]);
        assert_eq!(two.unexplained("w", 0, &[1_050]), 0);
        assert_eq!(two.unexplained("w", 0, &[1_100 + late]), 0);
        assert_eq!(two.unexplained("w", 0, &[200_050, 1_050]), 0);
        for (submitted, failed) in [
            // Before, long after, between.
            (0, vec![999]),
            (0, vec![200_101 + late]),
            (0, vec![1_101 + late]),
            // One fault, two failures of one task.
            (0, vec![1_050, 1_060]),
            // It was over when the task was submitted.
            (1_101, vec![1_200]),
        ] {
            assert_ne!(two.unexplained("w", submitted, &failed), 0, "{submitted} {failed:?}");
        }
        assert_ne!(two.unexplained("another", 0, &[1_050]), 0);
        assert_eq!(two.unexplained("another", 0, &[]), 0);
    }

    #[test]
    fn an_ongoing_fault_explains_failures_until_it_ends() {
        let mut faults = FaultLog::default();
        faults.record_begin("w", FaultKind::Froze);
        assert_eq!(faults.unexplained("w", now_ms(), &[now_ms() + 1_000_000]), 0);
        faults.record_end("w");
        assert_ne!(faults.unexplained("w", 0, &[now_ms() + 1_000_000]), 0);
        assert_eq!((faults.count(FaultKind::Froze), faults.count(FaultKind::Died)), (1, 0));
        faults.record_error("w", "t");
        assert_eq!((faults.errors("w", "t"), faults.errors("w", "u")), (1, 0));
    }
}
