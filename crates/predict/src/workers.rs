//! The speed of each worker, relative to the usual speed of its hardware.

use std::collections::BTreeMap;

use hypha_model::WorkerId;
use serde::{Deserialize, Serialize};

use crate::bits;
use crate::change_detector::{ChangeDetector, RANDOM_WALK_VARIANCE};
use crate::departed::DepartedWorkers;
use crate::keys::{HardwareKey, WorkerKey};

/// Factors stay within `e^±7`, about a thousand: further apart, workers do not run the same thing.
const MAX_LOG_FACTOR: f64 = 7.0;
/// Sums of log factors are kept in these units: integers, so that the order of workers does not matter.
const FIXED_POINT_UNITS: f64 = (1u64 << 40) as f64;

/// Present workers, and the latest that left.
#[derive(Clone, Debug, Default)]
pub(crate) struct WorkerFactors {
    slots: Vec<Option<(WorkerId, WorkerFactor)>>,
    free: Vec<u32>,
    by_id: BTreeMap<WorkerId, u32>,
    /// The sum of the factors of each hardware, from which the usual one is computed.
    hardware_means: Vec<HardwareMean>,
    departed: DepartedWorkers,
}

/// What is known of a worker: the logarithm of (its time / the regression's time).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct WorkerFactor {
    hardware: HardwareKey,
    #[serde(with = "bits")]
    log_factor: f64,
    #[serde(with = "bits")]
    variance: f64,
    trend: ChangeDetector,
    count: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct HardwareMean {
    sum_units: i64,
    /// Workers with at least one observation.
    count: u32,
}

impl WorkerFactors {
    /// Workers that are remembered but not present.
    pub(crate) fn restored(remembered: Vec<(WorkerId, WorkerFactor)>) -> WorkerFactors {
        let mut workers = WorkerFactors::default();
        for (id, learned) in remembered.into_iter().filter(|(_, learned)| learned.is_valid()) {
            workers.departed.insert(id, learned);
        }
        workers
    }

    /// Everything that was learned: of workers that left, then of those present.
    pub(crate) fn remembered(&self) -> Vec<(WorkerId, WorkerFactor)> {
        let here = self.slots.iter().flatten().filter(|(_, learned)| learned.count > 0);
        self.departed.iter().chain(here.copied()).collect()
    }

    /// The key of `id`, with what was learned of it before.
    pub(crate) fn add(&mut self, id: WorkerId, hardware: HardwareKey) -> WorkerKey {
        if let Some(&at) = self.by_id.get(&id) {
            if self.hardware(WorkerKey(at)) != hardware {
                // Nothing that was learned is valid on other hardware.
                self.leave(at);
                self.enter(at, id, WorkerFactor::unobserved(hardware));
            }
            return WorkerKey(at);
        }
        let learned = self.departed.remove(id).filter(|learned| learned.hardware == hardware);
        let at = self.free.pop().unwrap_or(self.slots.len() as u32);
        self.enter(at, id, learned.unwrap_or(WorkerFactor::unobserved(hardware)));
        self.by_id.insert(id, at);
        WorkerKey(at)
    }

    /// Frees the key; what was learned is kept among the last `remembered`.
    pub(crate) fn forget(&mut self, key: WorkerKey, remembered: usize) {
        let Some((id, learned)) = self.leave(key.0) else { return };
        self.by_id.remove(&id);
        self.free.push(key.0);
        if learned.count > 0 {
            self.departed.insert(id, learned);
        }
        self.departed.keep(remembered);
    }

    pub(crate) fn hardware(&self, key: WorkerKey) -> HardwareKey {
        self.learned(key).map_or(HardwareKey(0), |learned| learned.hardware)
    }

    /// The mean of the log factors over the workers of this hardware.
    pub(crate) fn mean_log_factor(&self, hardware: HardwareKey) -> f64 {
        match self.hardware_means.get(usize::from(hardware.0)) {
            Some(centre) if centre.count > 0 => {
                centre.sum_units as f64 / FIXED_POINT_UNITS / f64::from(centre.count)
            }
            _ => 0.0,
        }
    }

    /// A worker's log factor and its variance; `spread` is the prior deviation between workers.
    pub(crate) fn log_factor(&self, key: WorkerKey, spread: f64) -> (f64, f64) {
        match self.learned(key) {
            Some(learned) if learned.count > 0 => (learned.log_factor, learned.variance),
            _ => (self.mean_log_factor(self.hardware(key)), spread * spread),
        }
    }

    /// Takes the worker's share of a clipped `residual` of a prediction with this `variance`.
    pub(crate) fn learn(
        &mut self,
        key: WorkerKey,
        residual: f64,
        variance: f64,
        noise: f64,
        spread: f64,
    ) {
        let (value, own) = self.log_factor(key, spread);
        let Some((id, mut learned)) = self.leave(key.0) else { return };
        let moved = value + own / variance * residual;
        learned.log_factor = moved.clamp(-MAX_LOG_FACTOR, MAX_LOG_FACTOR);
        let added_variance = learned.trend.added_variance(residual / variance.sqrt(), noise);
        let left = own - own * own / variance + RANDOM_WALK_VARIANCE + added_variance;
        learned.variance = left.clamp(0.0, spread * spread);
        learned.count = learned.count.saturating_add(1);
        self.enter(key.0, id, learned);
    }

    fn learned(&self, key: WorkerKey) -> Option<&WorkerFactor> {
        self.slots.get(key.0 as usize)?.as_ref().map(|(_, learned)| learned)
    }

    /// Fills a slot, the next one at most, and adds its factor to the mean.
    fn enter(&mut self, at: u32, id: WorkerId, learned: WorkerFactor) {
        let at = at as usize;
        if at == self.slots.len() {
            self.slots.push(None);
        }
        self.slots[at] = Some((id, learned));
        if learned.count > 0 {
            let centre = self.hardware_mean_mut(learned.hardware);
            centre.sum_units += learned.units();
            centre.count += 1;
        }
    }

    /// Empties a slot and removes its factor from the mean.
    fn leave(&mut self, at: u32) -> Option<(WorkerId, WorkerFactor)> {
        let (id, learned) = self.slots.get_mut(at as usize)?.take()?;
        if learned.count > 0 {
            let centre = self.hardware_mean_mut(learned.hardware);
            centre.sum_units -= learned.units();
            centre.count -= 1;
        }
        Some((id, learned))
    }

    fn hardware_mean_mut(&mut self, hardware: HardwareKey) -> &mut HardwareMean {
        let at = usize::from(hardware.0);
        if self.hardware_means.len() <= at {
            self.hardware_means.resize(at + 1, HardwareMean::default());
        }
        &mut self.hardware_means[at]
    }
}

impl WorkerFactor {
    fn unobserved(hardware: HardwareKey) -> WorkerFactor {
        WorkerFactor {
            hardware,
            log_factor: 0.0,
            variance: 0.0,
            trend: ChangeDetector::ZERO,
            count: 0,
        }
    }

    fn units(&self) -> i64 {
        (self.log_factor * FIXED_POINT_UNITS).round() as i64
    }

    fn is_valid(&self) -> bool {
        let finite = self.variance.is_finite() && self.trend.is_valid();
        finite && self.log_factor.abs() <= MAX_LOG_FACTOR && self.variance >= 0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hypha_model::{Rng, Time};

    fn ids(count: usize) -> Vec<WorkerId> {
        let mut rng = Rng::new(1);
        (0..count).map(|_| WorkerId::new(Time::ZERO, &mut rng)).collect()
    }

    fn learn(workers: &mut WorkerFactors, key: WorkerKey, log: f64) {
        let (value, variance) = workers.log_factor(key, 0.7);
        workers.learn(key, log - value, variance + 0.04, 0.04, 0.7);
    }

    #[test]
    fn keys_are_dense_and_reused() {
        let (mut workers, ids) = (WorkerFactors::default(), ids(4));
        let keys: Vec<u32> = (0..3).map(|i| workers.add(ids[i], HardwareKey(0)).0).collect();
        assert_eq!(keys, [0, 1, 2]);
        assert_eq!(workers.add(ids[1], HardwareKey(0)), WorkerKey(1));
        workers.forget(WorkerKey(1), 10);
        workers.forget(WorkerKey(1), 10);
        workers.forget(WorkerKey(77), 10);
        assert_eq!(workers.add(ids[3], HardwareKey(0)), WorkerKey(1));
        assert_eq!(workers.add(ids[1], HardwareKey(0)), WorkerKey(3));
    }

    #[test]
    fn first_observation_reveals_most_of_a_workers_speed() {
        let mut workers = WorkerFactors::default();
        let key = workers.add(ids(1)[0], HardwareKey(0));
        learn(&mut workers, key, -4.0_f64.ln());
        assert!(workers.log_factor(key, 0.7).0 < -3.5_f64.ln());
    }

    #[test]
    fn returning_worker_keeps_its_speed_unless_its_hardware_changed() {
        let (mut workers, ids) = (WorkerFactors::default(), ids(3));
        for (i, id) in ids.iter().enumerate() {
            let key = workers.add(*id, HardwareKey(1));
            learn(&mut workers, key, 1.0 + i as f64);
            workers.forget(key, 2);
        }
        let back = workers.add(ids[2], HardwareKey(1));
        assert!(workers.log_factor(back, 0.7).0 > 2.5);
        let rebuilt = workers.add(ids[1], HardwareKey(2));
        assert_eq!(workers.log_factor(rebuilt, 0.7), (0.0, 0.7 * 0.7));
        // Only two were remembered. An unknown worker counts as the usual one of its hardware.
        let lost = workers.add(ids[0], HardwareKey(1));
        let off = workers.log_factor(lost, 0.7).0 - workers.log_factor(back, 0.7).0;
        assert!(off.abs() < 1e-9);
    }

    #[test]
    fn mean_log_factor_covers_present_workers() {
        let (mut workers, ids) = (WorkerFactors::default(), ids(3));
        let keys: Vec<WorkerKey> = ids.iter().map(|id| workers.add(*id, HardwareKey(0))).collect();
        for (key, log) in keys.iter().zip([1.0, -1.0, 0.5]) {
            (0..50).for_each(|_| learn(&mut workers, *key, log));
        }
        assert!((workers.mean_log_factor(HardwareKey(0)) - 0.5 / 3.0).abs() < 0.01);
        workers.forget(keys[0], 10);
        assert!((workers.mean_log_factor(HardwareKey(0)) + 0.25).abs() < 0.01);
        workers.forget(keys[1], 10);
        workers.forget(keys[2], 10);
        assert_eq!(workers.mean_log_factor(HardwareKey(0)), 0.0);
    }

    #[test]
    fn restore_is_independent_of_order_and_drops_damaged_factors() {
        let (mut workers, ids) = (WorkerFactors::default(), ids(20));
        for (i, id) in ids.iter().enumerate() {
            let key = workers.add(*id, HardwareKey(0));
            (0..=i).for_each(|j| learn(&mut workers, key, 0.3 * j as f64 - 1.0));
        }
        let mut remembered = workers.remembered();
        let mut restored = WorkerFactors::restored(remembered.clone());
        for id in ids.iter().rev() {
            let key = restored.add(*id, HardwareKey(0));
            let before = workers.add(*id, HardwareKey(0));
            assert_eq!(restored.log_factor(key, 0.7), workers.log_factor(before, 0.7));
        }
        assert_eq!(
            restored.mean_log_factor(HardwareKey(0)),
            workers.mean_log_factor(HardwareKey(0))
        );
        remembered[3].1.log_factor = f64::NAN;
        let mut damaged = WorkerFactors::restored(remembered);
        let key = damaged.add(ids[3], HardwareKey(0));
        assert_eq!(damaged.log_factor(key, 0.7), (0.0, 0.7 * 0.7));
    }
}
