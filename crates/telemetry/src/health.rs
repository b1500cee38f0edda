//! Logs about a collector: one line when it fails, one a minute while that lasts, one when it recovers.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Often enough to be seen in a log's tail, too rare to fill it.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// The state of one signal, traces or metrics. They are kept apart because a collector may accept only one.
#[derive(Debug)]
pub(crate) struct ExportHealth {
    signal: &'static str,
    outage: Mutex<Outage>,
}

impl ExportHealth {
    pub(crate) fn new(signal: &'static str) -> ExportHealth {
        ExportHealth { signal, outage: Mutex::default() }
    }

    /// Records the outcome of an export, and logs it if it is news.
    pub(crate) fn record(&self, outcome: Result<(), &str>) {
        let notice = {
            let mut outage = self.outage.lock().unwrap_or_else(PoisonError::into_inner);
            outage.record(Instant::now(), outcome.is_ok())
        };
        let (signal, error) = (self.signal, outcome.err().unwrap_or_default());
        match notice {
            Some(OutageChange::Failing { lost }) => {
                tracing::warn!(signal, lost_batches = lost, error, "the telemetry collector fails");
            }
            Some(OutageChange::Recovered { lost }) => {
                tracing::info!(signal, lost_batches = lost, "the telemetry collector is back");
            }
            None => {}
        }
    }
}

#[derive(Debug, Default)]
struct Outage {
    warned_at: Option<Instant>,
    announced: bool,
    lost: u64,
}

#[derive(Debug, PartialEq, Eq)]
enum OutageChange {
    Failing { lost: u64 },
    Recovered { lost: u64 },
}

impl Outage {
    /// `warned_at` outlives an outage: a flapping collector must not fill the log either.
    fn record(&mut self, now: Instant, taken: bool) -> Option<OutageChange> {
        if taken {
            let lost = std::mem::take(&mut self.lost);
            return std::mem::take(&mut self.announced).then_some(OutageChange::Recovered { lost });
        }
        self.lost += 1;
        let due = self.warned_at.is_none_or(|at| now.duration_since(at) >= WARN_EVERY);
        due.then(|| {
            self.warned_at = Some(now);
            self.announced = true;
            OutageChange::Failing { lost: self.lost }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `(second, was it accepted, what is logged)`
    fn check(steps: &[(u64, bool, Option<OutageChange>)]) {
        let (start, mut outage) = (Instant::now(), Outage::default());
        for (second, taken, expected) in steps {
            let said = outage.record(start + Duration::from_secs(*second), *taken);
            assert_eq!(said, *expected, "at second {second}");
        }
    }

    #[test]
    fn healthy_collector_is_not_logged() {
        check(&[(0, true, None), (1, true, None)]);
    }

    #[test]
    fn outage_is_logged_once_a_minute_and_when_it_ends() {
        check(&[
            (0, false, Some(OutageChange::Failing { lost: 1 })),
            (5, false, None),
            (59, false, None),
            (60, false, Some(OutageChange::Failing { lost: 4 })),
            (61, false, None),
            (62, true, Some(OutageChange::Recovered { lost: 5 })),
            (63, true, None),
        ]);
    }

    #[test]
    fn flapping_collector_is_logged_once_a_minute() {
        check(&[
            (0, false, Some(OutageChange::Failing { lost: 1 })),
            (5, true, Some(OutageChange::Recovered { lost: 1 })),
            (10, false, None),
            (15, true, None),
            (65, false, Some(OutageChange::Failing { lost: 1 })),
        ]);
    }
}
