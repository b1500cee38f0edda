//! How much each member trains in a round, from its measured speed, so that all finish together.
//!
//! A member gets a budget once: samples, and the time after which it begins no further step. It paces itself by these, with
//! no round trip for a step. Budgets are corrected while the round runs, from progress reports.

use hypha_model::Span;
use serde::{Deserialize, Serialize};

/// How many steps a process is slower for: it compiles kernels, fills caches and opens files.
const WARM_UP_STEPS: u32 = 3;
/// Over how much training time the speed is averaged: long enough for the jitter of steps, short enough to follow a device
/// that is throttled.
const AVERAGED_OVER: Span = Span::from_secs(10);
/// Steps of a member whose speed nobody knows: few, since progress reports extend them.
const FIRST_STEPS: u32 = 16;
/// A member gets this many percent of the samples that it is expected to need, so that a faster one is not out of samples at
/// the end of the round. What it does not use is AVAILABLE again when the round closes.
const HEADROOM_PERCENT: u64 = 120;

/// The speed of a member: a moving average that ignores warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SpeedMeter {
    samples_per_s: Option<f64>,
    /// Steps of this process so far, until it is warm.
    warm_up_steps: u32,
    /// How much time the average is over, as far as it counts.
    weight: Span,
}

impl SpeedMeter {
    /// A meter of a member that was measured before.
    pub fn with_guess(samples_per_s: Option<f64>) -> SpeedMeter {
        SpeedMeter { samples_per_s, ..SpeedMeter::default() }
    }

    /// A process has started: what it was measured at stays a guess until it is warm.
    pub fn restart(&mut self) {
        *self = SpeedMeter { samples_per_s: self.samples_per_s, ..SpeedMeter::default() };
    }

    /// The member trained on `samples` in `steps`, which took it `busy`.
    pub fn observe(&mut self, steps: u32, samples: u64, busy: Span) {
        if samples == 0 || busy == Span::ZERO {
            return;
        }
        let speed = samples as f64 / busy.as_secs_f64();
        if self.warm_up_steps < WARM_UP_STEPS {
            self.warm_up_steps = self.warm_up_steps.saturating_add(steps);
            // Better than nothing, and replaced by the first measurement of a warm process.
            self.samples_per_s.get_or_insert(speed);
            return;
        }
        let known = self.weight.as_secs_f64();
        let new = busy.as_secs_f64();
        let average =
            self.samples_per_s.map_or(speed, |old| (old * known + speed * new) / (known + new));
        self.samples_per_s = Some(average);
        self.weight = (self.weight + busy).min(AVERAGED_OVER);
    }

    /// Samples a second; `None` before the first measurement.
    pub fn samples_per_s(&self) -> Option<f64> {
        self.samples_per_s
    }
}

/// What the samples of a model need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryProfile {
    /// Parameters, gradients and the optimizer's state.
    pub model_bytes: u64,
    /// Activations of one sample.
    pub sample_bytes: u64,
    /// The largest batch of a step.
    pub max_batch: u32,
}

/// Why a worker cannot be a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MemberRefusal {
    /// Not even a batch of one sample fits its memory.
    TooLittleMemory {
        /// What a batch of one sample needs.
        needed_bytes: u64,
        /// What it has.
        has_bytes: u64,
    },
    /// The run has as many members as it may have.
    TooManyMembers,
    /// In fixed mode, every place is taken.
    NoPlace,
}

impl MemoryProfile {
    /// The largest batch that fits.
    pub fn batch(&self, memory_bytes: u64) -> Result<u32, MemberRefusal> {
        let sample_bytes = self.sample_bytes.max(1);
        let fitting = memory_bytes.saturating_sub(self.model_bytes) / sample_bytes;
        match fitting.min(u64::from(self.max_batch.max(1))) as u32 {
            0 => Err(MemberRefusal::TooLittleMemory {
                needed_bytes: self.model_bytes.saturating_add(sample_bytes),
                has_bytes: memory_bytes,
            }),
            batch => Ok(batch),
        }
    }
}

/// How much a member trains in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Budget {
    /// Samples of a step; the last step may have fewer.
    pub batch: u32,
    /// The steps that it is expected to make.
    pub steps: u32,
    /// The time, from receiving this, after which it begins no step that would end later; it then pushes its delta, even
    /// with samples left. `None`: it makes all of its steps.
    pub stop_after: Option<Span>,
}

/// What is known of a member when a round is planned.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// Samples of a step.
    pub batch: u32,
    /// Its speed, if it was measured.
    pub samples_per_s: Option<f64>,
}

/// A planned round.
#[derive(Clone, Debug, PartialEq)]
pub struct RoundPlan {
    /// How long members train.
    pub duration: Span,
    /// The steps of each, in the order given.
    pub steps: Vec<u32>,
}

/// Plans a round of `target` in which all finish together. If fewer samples are `available` than that takes, the round is
/// shorter by as much.
pub fn plan_round(paces: &[Pace], target: Span, available: u64) -> RoundPlan {
    let speeds: Vec<f64> = paces.iter().map(|pace| speed_of(pace, paces, target)).collect();
    let wanted: f64 = speeds.iter().sum::<f64>() * target.as_secs_f64();
    let share = if wanted > available as f64 { available as f64 / wanted } else { 1.0 };
    let duration = target.mul_f64(share);
    let steps =
        paces.iter().zip(&speeds).map(|(pace, speed)| steps_in(duration, pace.batch, *speed));
    RoundPlan { steps: steps.collect(), duration }
}

/// The steps that a member of this speed makes in `time`: to the nearest, and at least one.
pub fn steps_in(time: Span, batch: u32, samples_per_s: f64) -> u32 {
    let steps = time.as_secs_f64() * samples_per_s / f64::from(batch.max(1));
    (steps.round() as u32).max(1)
}

/// The samples that a member is assigned for these steps.
pub fn samples_for(steps: u32, batch: u32) -> u64 {
    let samples = u64::from(steps) * u64::from(batch);
    (samples * HEADROOM_PERCENT / 100).max(samples + u64::from(batch))
}

/// The measured speed; that of the median member if it was not measured; else one that makes [`FIRST_STEPS`] in a round.
pub(crate) fn speed_of(pace: &Pace, paces: &[Pace], target: Span) -> f64 {
    pace.samples_per_s.unwrap_or_else(|| {
        let mut known: Vec<f64> = paces.iter().filter_map(|pace| pace.samples_per_s).collect();
        known.sort_by(f64::total_cmp);
        let first = f64::from(FIRST_STEPS * pace.batch) / target.as_secs_f64().max(1e-6);
        known.get(known.len() / 2).copied().unwrap_or(first)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn warm_up_does_not_count() {
        let mut meter = SpeedMeter::default();
        meter.observe(2, 20, Span::from_secs(20));
        assert_eq!(meter.samples_per_s(), Some(1.0));
        meter.observe(2, 20, Span::from_secs(10));
        for _ in 0..5 {
            meter.observe(10, 100, Span::from_secs(1));
        }
        assert_eq!(meter.samples_per_s(), Some(100.0));
        meter.restart();
        meter.observe(3, 3, Span::from_secs(9));
        assert_eq!(meter.samples_per_s(), Some(100.0));
        meter.observe(3, 150, Span::from_secs(1));
        assert_eq!(meter.samples_per_s(), Some(150.0));
    }

    #[test]
    fn a_throttled_device_is_followed() {
        let mut meter = SpeedMeter::default();
        for second in 0..100 {
            meter.observe(10, if second < 50 { 100 } else { 50 }, Span::from_secs(1));
        }
        let speed = meter.samples_per_s().unwrap();
        assert!((50.0..51.0).contains(&speed), "{speed}");
    }

    #[test]
    fn batches_fit_the_memory() {
        let profile = MemoryProfile { model_bytes: 1_000, sample_bytes: 100, max_batch: 32 };
        assert_eq!(profile.batch(1_799), Ok(7));
        assert_eq!(profile.batch(1 << 40), Ok(32));
        let refusal = MemberRefusal::TooLittleMemory { needed_bytes: 1_100, has_bytes: 1_099 };
        assert_eq!(profile.batch(1_099), Err(refusal));
    }

    proptest! {
        #[test]
        fn budgets_finish_together(
            members in prop::collection::vec((1_u32..64, 1.0_f64..5_000.0), 1..40),
            target_ms in 1_000_u64..600_000,
            available in 0_u64..10_000_000,
        ) {
            let pace = |&(batch, speed): &(u32, f64)| Pace { batch, samples_per_s: Some(speed) };
            let paces: Vec<Pace> = members.iter().map(pace).collect();
            let plan = plan_round(&paces, Span::from_millis(target_ms), available);
            prop_assert!(plan.duration <= Span::from_millis(target_ms));
            for ((batch, speed), steps) in members.iter().zip(&plan.steps) {
                let step_s = f64::from(*batch) / speed;
                let off = (f64::from(*steps) * step_s - plan.duration.as_secs_f64()).abs();
                prop_assert!(off <= step_s * 0.501 || *steps == 1, "{off} s, steps of {step_s} s");
            }
            let wanted: f64 = members.iter().map(|(_, speed)| speed).sum::<f64>();
            let needed = wanted * plan.duration.as_secs_f64();
            prop_assert!(needed <= available as f64 * 1.001 + 1.0, "{needed} of {available}");
        }
    }
}
