//! What is said about a collector: one line when it fails, one a minute while that lasts, one when it is back.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Often enough to be seen in a log's tail, too rare to fill it.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// The state of one signal, traces or metrics. They are kept apart because a collector may take only one.
#[derive(Debug)]
pub(crate) struct Health {
    signal: &'static str,
    outage: Mutex<Outage>,
}

impl Health {
    pub(crate) fn new(signal: &'static str) -> Health {
        Health { signal, outage: Mutex::default() }
    }

    /// Notes how an export ended and says so where that is news.
    pub(crate) fn note(&self, outcome: Result<(), &str>) {
        let notice = {
            let mut outage = self.outage.lock().unwrap_or_else(PoisonError::into_inner);
            outage.note(Instant::now(), outcome.is_ok())
        };
        let (signal, error) = (self.signal, outcome.err().unwrap_or_default());
        match notice {
            Some(Notice::Failing { lost }) => {
                tracing::warn!(signal, lost_batches = lost, error, "the telemetry collector fails");
            }
            Some(Notice::Back { lost }) => {
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
enum Notice {
    Failing { lost: u64 },
    Back { lost: u64 },
}

impl Outage {
    /// `warned_at` outlives an outage: a collector that comes and goes must not fill the log either.
    fn note(&mut self, now: Instant, taken: bool) -> Option<Notice> {
        if taken {
            let lost = std::mem::take(&mut self.lost);
            return std::mem::take(&mut self.announced).then_some(Notice::Back { lost });
        }
        self.lost += 1;
        let due = self.warned_at.is_none_or(|at| now.duration_since(at) >= WARN_EVERY);
        due.then(|| {
            self.warned_at = Some(now);
            self.announced = true;
            Notice::Failing { lost: self.lost }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `(second, was it taken, what is said)`
    fn check(steps: &[(u64, bool, Option<Notice>)]) {
        let (start, mut outage) = (Instant::now(), Outage::default());
        for (second, taken, expected) in steps {
            let said = outage.note(start + Duration::from_secs(*second), *taken);
            assert_eq!(said, *expected, "at second {second}");
        }
    }

    #[test]
    fn a_healthy_collector_is_not_news() {
        check(&[(0, true, None), (1, true, None)]);
    }

    #[test]
    fn an_outage_is_said_once_then_once_a_minute_then_its_end() {
        check(&[
            (0, false, Some(Notice::Failing { lost: 1 })),
            (5, false, None),
            (59, false, None),
            (60, false, Some(Notice::Failing { lost: 4 })),
            (61, false, None),
            (62, true, Some(Notice::Back { lost: 5 })),
            (63, true, None),
        ]);
    }

    #[test]
    fn a_flapping_collector_is_said_once_a_minute() {
        check(&[
            (0, false, Some(Notice::Failing { lost: 1 })),
            (5, true, Some(Notice::Back { lost: 1 })),
            (10, false, None),
            (15, true, None),
            (65, false, Some(Notice::Failing { lost: 1 })),
        ]);
    }
}
