//! The time that machines are stepped with: that of day at the start, and from then on a clock that only goes
//! forward, whatever is done to the time of day.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use hypha_model::Time;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    started: Instant,
    at_start: Duration,
}

impl Clock {
    pub(crate) fn new() -> Clock {
        // A machine whose clock is before 1970 has other worries.
        let at_start = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Clock { started: Instant::now(), at_start }
    }

    pub(crate) fn now(&self) -> Time {
        self.at(Instant::now())
    }

    pub(crate) fn at(&self, instant: Instant) -> Time {
        Time::from_micros(micros(self.at_start + instant.saturating_duration_since(self.started)))
    }

    /// When `time` is, to be slept until.
    pub(crate) fn instant(&self, time: Time) -> tokio::time::Instant {
        let from_start = time.as_micros().saturating_sub(micros(self.at_start));
        // The end of time is beyond what an `Instant` holds.
        let from_start = Duration::from_micros(from_start).min(FAR);
        tokio::time::Instant::from_std(self.started + from_start)
    }
}

/// Nothing is slept for longer.
const FAR: Duration = Duration::from_secs(10 * 365 * 86_400);

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
