//! The network between schedulers and workers: it delays, loses, duplicates and reorders messages, and partitions.

use hypha_model::{Rng, Span, Time};

/// How messages travel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Network {
    /// The least time that a message takes.
    pub latency: Span,
    /// The mean of the exponential time on top of that; it reorders.
    pub jitter: Span,
    /// The share of messages that is lost.
    pub loss: f64,
    /// The share of messages that arrives twice.
    pub duplication: f64,
}

impl Network {
    /// Everything arrives, at once and in order.
    pub const PERFECT: Network =
        Network { latency: Span::ZERO, jitter: Span::ZERO, loss: 0.0, duplication: 0.0 };

    /// When a message sent at `now` arrives: not at all, once or twice.
    pub fn deliveries(&self, now: Time, rng: &mut Rng) -> [Option<Time>; 2] {
        if self.loss > 0.0 && rng.chance(self.loss) {
            return [None, None];
        }
        let first = self.arrival(now, rng);
        let twice = self.duplication > 0.0 && rng.chance(self.duplication);
        [Some(first), twice.then(|| self.arrival(now, rng))]
    }

    fn arrival(&self, now: Time, rng: &mut Rng) -> Time {
        if self.jitter == Span::ZERO {
            return now + self.latency;
        }
        now + self.latency + self.jitter.mul_f64(rng.exponential())
    }
}

/// A clock that runs at its own rate from its own start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Clock {
    rate: f64,
    offset_micros: i64,
    start: Time,
}

impl Clock {
    /// A clock that was `offset` ahead at `start` and runs `rate` times as fast as true time.
    pub fn new(start: Time, offset: Span, rate: f64) -> Clock {
        Clock { rate, offset_micros: offset.as_micros() as i64, start }
    }

    /// The same clock, set forward by this much, or back.
    pub fn set_by(self, micros: i64) -> Clock {
        Clock { offset_micros: self.offset_micros + micros, ..self }
    }

    /// The time on the clock at a true time.
    pub fn local(&self, time: Time) -> Time {
        let since_start = match self.rate == 1.0 {
            true => time.since(self.start),
            false => time.since(self.start).mul_f64(self.rate),
        };
        let shown = self.start + since_start;
        Time::from_micros(shown.as_micros().saturating_add_signed(self.offset_micros))
    }

    /// The first true time at which the clock shows `local` or more.
    pub fn true_time(&self, local: Time) -> Time {
        let shown = local.as_micros().saturating_sub_signed(self.offset_micros);
        let elapsed = Time::from_micros(shown).since(self.start);
        match self.rate == 1.0 {
            true => self.start + elapsed,
            // One microsecond more than the rounded inverse, so that it is never too early.
            false => self.start + elapsed.mul_f64(1.0 / self.rate) + Span::from_micros(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drifting_clock_is_inverted_and_never_early() {
        let start = Time::from_micros(1_000_000);
        for (rate, set_by) in [(0.9, 0), (1.0, 0), (1.1, 0), (1.0, -6_000_000), (0.9, 9_000_000)] {
            let clock = Clock::new(start, Span::from_secs(7), rate).set_by(set_by);
            let shown = clock.local(start).as_micros() as i64;
            assert_eq!(shown, 8_000_000 + set_by);
            for micros in [1_000_000, 1_000_001, 5_000_123, 999_999_999] {
                let local = clock.local(Time::from_micros(micros));
                let back = clock.true_time(local);
                assert!(clock.local(back) >= local, "rate {rate} at {micros}");
                assert!(back.as_micros().abs_diff(micros) <= 3, "rate {rate} at {micros}");
            }
        }
    }

    #[test]
    fn losses_and_duplicates_occur_at_their_rates() {
        let network = Network { loss: 0.1, duplication: 0.2, ..Network::PERFECT };
        let mut rng = Rng::new(1);
        let (mut lost, mut twice) = (0, 0);
        for _ in 0..10_000 {
            match network.deliveries(Time::ZERO, &mut rng) {
                [None, _] => lost += 1,
                [_, Some(_)] => twice += 1,
                _ => {}
            }
        }
        assert!((900..1100).contains(&lost), "{lost}");
        assert!((1650..1950).contains(&twice), "{twice}");
    }
}
