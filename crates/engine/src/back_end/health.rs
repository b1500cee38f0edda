//! Whether a back end can be used.

/// The outcome of a health check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HealthCheck {
    /// The back end is healthy.
    Healthy,
    /// No answer in time.
    TimedOut(String),
    /// It is unreachable, or reports that it cannot work.
    Failed(String),
}

/// The health of one back end.
#[derive(Clone, Debug, Default)]
pub struct BackEndHealth {
    problem: Option<String>,
}

impl BackEndHealth {
    /// A back end that has this problem, if any.
    pub fn new(problem: Option<String>) -> BackEndHealth {
        BackEndHealth { problem }
    }

    /// Why the back end cannot be used at present.
    pub fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    /// A call did not reach the back end: it gets no runs until a health check passes.
    pub fn call_failed(&mut self, error: &str) {
        self.problem = Some(error.to_owned());
    }

    /// A health check has ended, at the beginning or the end of which up to `in_flight` calls were being made. Returns
    /// whether the back end can be used.
    pub fn checked(&mut self, checked: HealthCheck, in_flight: usize) -> bool {
        match checked {
            HealthCheck::Healthy => self.problem = None,
            // A back end that serves one request at a time is alive while it works on our calls. But an earlier problem
            // stands: calls would fail without being made.
            HealthCheck::TimedOut(_) if in_flight > 0 => {}
            HealthCheck::TimedOut(problem) | HealthCheck::Failed(problem) => {
                self.problem = Some(problem)
            }
        }
        self.problem.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_health_check_does_not_make_a_back_end_healthy() {
        let late = || HealthCheck::TimedOut("late".to_owned());
        let mut health = BackEndHealth::default();
        assert!(health.checked(late(), 1), "it works on a call");
        health.call_failed("no connection");
        assert!(!health.checked(late(), 1), "calls are not made to it");
        assert_eq!(health.problem(), Some("no connection"));
        assert!(health.checked(HealthCheck::Healthy, 0));
        assert!(!health.checked(late(), 0));
        assert!(!health.checked(HealthCheck::Failed("loading".to_owned()), 1));
        assert_eq!(health.problem(), Some("loading"));
    }
}
