//! The time that machines are stepped with: the time of day at the start, and from then on a monotonic clock, which
//! changes to the time of day do not affect. It includes the time in which the computer is suspended. After a restart,
//! a scheduler's clock begins no earlier than its last incarnation ended.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hypha_model::Time;
use rustix::time::{ClockId, clock_gettime};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    /// The time since boot when this clock was made.
    started: Duration,
    at_start: Duration,
}

/// The longest sleep between two readings of the clock: timers do not advance while the computer is suspended.
const MAX_SLEEP: Duration = Duration::from_secs(5);

impl Clock {
    pub(crate) fn new() -> Clock {
        Clock::after(Time::ZERO)
    }

    /// A clock that begins now, but not before `last`: the time of day may have been set back since.
    pub(crate) fn after(last: Time) -> Clock {
        // A clock before 1970 counts as 1970.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let at_start = now.max(Duration::from_micros(last.as_micros()));
        Clock { started: since_boot(), at_start }
    }

    pub(crate) fn now(&self) -> Time {
        let elapsed = since_boot().saturating_sub(self.started);
        Time::from_micros(u64::try_from((self.at_start + elapsed).as_micros()).unwrap_or(u64::MAX))
    }

    pub(crate) async fn sleep_until(&self, time: Time) {
        loop {
            let left = time.since(self.now());
            if left.as_micros() == 0 {
                return;
            }
            tokio::time::sleep(Duration::from_micros(left.as_micros()).min(MAX_SLEEP)).await;
        }
    }
}

fn since_boot() -> Duration {
    // The time since boot is never negative.
    Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use hypha_model::Span;

    use super::*;

    #[test]
    fn clock_does_not_go_back_after_a_restart() {
        let day = Span::from_secs(86_400);
        let last = Clock::new().now() + day;
        let clock = Clock::after(last);
        let (first, second) = (clock.now(), clock.now());
        assert!(last <= first && first <= second, "{last} {first} {second}");
        assert!(first < last + day);
        assert!(Clock::after(Time::ZERO).now() > Time::ZERO + day, "the time of day");
    }

    #[tokio::test]
    async fn sleep_until_returns_at_once_for_past_times() {
        let clock = Clock::new();
        clock.sleep_until(clock.now() - Span::from_secs(1)).await;
        let soon = clock.now() + Span::from_millis(1);
        clock.sleep_until(soon).await;
        assert!(clock.now() >= soon);
    }
}
