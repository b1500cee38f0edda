//! How a run proceeds: its length, the warm start, the inner learning rate, the codec of the deltas, and checkpoints.

use hypha_model::Span;
use serde::{Deserialize, Serialize};

/// How long a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Length {
    /// Rounds that contain a delta.
    Rounds(u64),
    /// Samples that are USED.
    Samples(u64),
    /// Passes over the data set.
    Epochs(u32),
}

/// How the first part of a run is trained, before deltas of many steps help.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WarmStart {
    /// By the fastest member alone.
    OneMember,
    /// By all members, with rounds of this many steps: almost synchronous training.
    Synchronous {
        /// Steps of each member in a round.
        steps: u32,
    },
}

/// How deltas are encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Codec {
    /// 32-bit floating point.
    F32,
    /// 16-bit floating point.
    F16,
    /// Blocks of 8-bit integers.
    Int8,
    /// Blocks of 4-bit integers.
    Int4,
}

/// The inner learning rate: linear warm-up, then a half cosine.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LearningRate {
    /// The highest rate.
    pub peak: f64,
    /// The part of the run, in thousandths, over which it rises.
    pub warm_up_milli: u32,
    /// The rate at the end, as a part of the peak.
    pub end_factor: f64,
}

/// The learning rate in a round: linear between the two, by the member's own steps.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RateRange {
    /// At the first step.
    pub first: f64,
    /// At the last step.
    pub last: f64,
}

/// See the module documentation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Schedule {
    /// How long the run is.
    pub length: Length,
    /// How long members train in a round.
    pub round: Span,
    /// How the run begins.
    pub warm_start: WarmStart,
    /// The part of the run, in thousandths, that the warm start takes; 0: there is none.
    pub warm_start_milli: u32,
    /// The inner learning rate.
    pub learning_rate: LearningRate,
    /// The codec during the warm start, when deltas are large and every bit counts.
    pub warm_start_codec: Codec,
    /// The codec afterwards.
    pub codec: Codec,
    /// A checkpoint is stored after this many rounds; 0: only at the end.
    pub checkpoint_every: u64,
}

/// How far a run is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Rounds that contained a delta.
    pub rounds: u64,
    /// Samples that were USED.
    pub samples: u64,
    /// Samples of an epoch.
    pub epoch_samples: u64,
}

/// A part of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The warm start.
    WarmStart(WarmStart),
    /// Everything after it.
    Main,
}

impl Schedule {
    /// The part of the run that is done, from 0 to 1.
    pub fn done(&self, progress: &Progress) -> f64 {
        let (done, all) = match self.length {
            Length::Rounds(rounds) => (progress.rounds, rounds),
            _ => (progress.samples, self.samples(progress).unwrap_or(0)),
        };
        if all == 0 { 1.0 } else { (done as f64 / all as f64).min(1.0) }
    }

    /// How many samples the run has, if that is known.
    pub fn samples(&self, progress: &Progress) -> Option<u64> {
        match self.length {
            Length::Rounds(_) => None,
            Length::Samples(samples) => Some(samples),
            Length::Epochs(epochs) => Some(u64::from(epochs) * progress.epoch_samples),
        }
    }

    /// How many epochs the run has, if it is measured in them.
    pub fn epochs(&self) -> Option<u32> {
        match self.length {
            Length::Epochs(epochs) => Some(epochs),
            _ => None,
        }
    }

    /// The part that the next round belongs to.
    pub fn phase(&self, progress: &Progress) -> Phase {
        let is_warm_start = self.done(progress) * 1_000.0 < f64::from(self.warm_start_milli);
        if is_warm_start { Phase::WarmStart(self.warm_start) } else { Phase::Main }
    }

    /// The codec of the next round.
    pub fn codec(&self, progress: &Progress) -> Codec {
        match self.phase(progress) {
            Phase::WarmStart(_) => self.warm_start_codec,
            Phase::Main => self.codec,
        }
    }

    /// The learning rate of a round that takes the run from `before` to `after`.
    pub fn rates(&self, before: &Progress, after: &Progress) -> RateRange {
        RateRange { first: self.rate_at(self.done(before)), last: self.rate_at(self.done(after)) }
    }

    /// Whether a checkpoint follows the round after which `rounds` are done.
    pub fn is_checkpoint(&self, rounds: u64) -> bool {
        self.checkpoint_every > 0 && rounds.is_multiple_of(self.checkpoint_every)
    }

    fn rate_at(&self, done: f64) -> f64 {
        let LearningRate { peak, warm_up_milli, end_factor } = self.learning_rate;
        let warm_up = (f64::from(warm_up_milli) / 1_000.0).min(1.0);
        if done < warm_up {
            return peak * done / warm_up;
        }
        let falling = ((done - warm_up) / (1.0 - warm_up).max(f64::EPSILON)).min(1.0);
        let cosine = (1.0 + (std::f64::consts::PI * falling).cos()) / 2.0;
        peak * (end_factor + (1.0 - end_factor) * cosine)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(length: Length) -> Schedule {
        Schedule {
            length,
            round: Span::from_secs(8),
            warm_start: WarmStart::OneMember,
            warm_start_milli: 100,
            learning_rate: LearningRate { peak: 2.0, warm_up_milli: 200, end_factor: 0.1 },
            warm_start_codec: Codec::F32,
            codec: Codec::Int8,
            checkpoint_every: 3,
        }
    }

    #[test]
    fn length_counts_rounds_samples_or_epochs() {
        let progress = Progress { rounds: 5, samples: 300, epoch_samples: 1_000 };
        let done = |length| schedule(length).done(&progress);
        assert_eq!(done(Length::Rounds(10)), 0.5);
        assert_eq!(done(Length::Samples(1_200)), 0.25);
        assert_eq!(done(Length::Epochs(3)), 0.1);
        assert_eq!((done(Length::Rounds(4)), done(Length::Rounds(0))), (1.0, 1.0));
    }

    #[test]
    fn warm_start_rate_codec_and_checkpoints_follow_the_progress() {
        let schedule = schedule(Length::Samples(1_000));
        let at = |samples| Progress { samples, ..Progress::default() };
        assert_eq!(schedule.phase(&at(99)), Phase::WarmStart(WarmStart::OneMember));
        assert_eq!(schedule.phase(&at(100)), Phase::Main);
        assert_eq!([schedule.codec(&at(0)), schedule.codec(&at(500))], [Codec::F32, Codec::Int8]);
        let RateRange { first, last } = schedule.rates(&at(100), &at(200));
        assert_eq!((first, last), (1.0, 2.0));
        let RateRange { first, last } = schedule.rates(&at(600), &at(1_000));
        assert!((first - 1.1).abs() < 1e-9 && (last - 0.2).abs() < 1e-9, "{first} {last}");
        let checkpoints: Vec<u64> = (1..10).filter(|it| schedule.is_checkpoint(*it)).collect();
        assert_eq!(checkpoints, [3, 6, 9]);
    }
}
