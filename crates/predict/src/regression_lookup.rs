//! The estimate for a task on some hardware, and its replacement when nothing was measured.

use hypha_model::Name;

use crate::estimate::Estimate;
use crate::keys::{HardwareKey, ModelKey};
use crate::models::ModelFeatures;
use crate::predictor::{CONSTANT, MAX_REGRESSIONS, NO_MODEL, Predictor, SHARED};
use crate::query::Query;
use crate::regression::Regression;

/// The variance of the logarithm of the speed of one hardware relative to another.
const HARDWARE_VARIANCE: f64 = 0.49;
/// The standard deviation, as a share of the mean, of a guess without measurements.
const GUESS_ERROR: f64 = 1.0;

impl Predictor {
    /// What was learned of such tasks on this hardware, or else the next best guess.
    pub(crate) fn learned(&self, query: &Query, hardware: HardwareKey) -> Estimate {
        let guess = |seconds: f64| Estimate::new(seconds, seconds * GUESS_ERROR);
        let typical = || {
            let seconds = self.typical.mean_s(self.settings.first_guess_s);
            self.scaled_to_usual_worker(guess(seconds), hardware)
        };
        let Some(model) = self.models.get(query.model) else { return typical() };
        let key = pack(query.model, hardware, query.feature_set);
        if let Some(own) = self.index.get(&key).and_then(|at| self.observed_regression(*at)) {
            return fitted(own, model, query, 0.0);
        }
        if let Some(seconds) = query.estimated_s {
            return self.scaled_to_usual_worker(guess(seconds), hardware);
        }
        let elsewhere = |at| self.observed_elsewhere(at, hardware);
        if let Some((other, factor)) =
            model.best_of_feature_set(query.feature_set).and_then(elsewhere)
        {
            return fitted(other, model, query, HARDWARE_VARIANCE).scaled(factor);
        }
        let other = model.best_of_any_feature_set().or(Some(SHARED as u32)).and_then(elsewhere);
        match other {
            Some((other, factor)) => guess(other.level_s() * factor),
            None => typical(),
        }
    }

    /// The table's estimate, if it has the model.
    pub(crate) fn table_estimate(&self, query: &Query, hardware: HardwareKey) -> Option<Estimate> {
        let table = self.table.as_ref()?;
        let model = self.models.get(query.model)?;
        let model_name = self.models.name(query.model).map(Name::as_str);
        let hardware_name = self.hardware.name(u32::from(hardware.0)).map(Name::as_str);
        let row = table.nearest(model_name, hardware_name, |column| {
            model.raw(column, query.present, &query.features)
        })?;
        Some(self.scaled_to_usual_worker(row, hardware).as_given())
    }

    /// The regression that learns from such tasks, created by the first, which took `seconds`.
    pub(crate) fn regression_for(
        &mut self,
        query: &Query,
        hardware: HardwareKey,
        seconds: f64,
    ) -> usize {
        let key = pack(query.model, hardware, query.feature_set);
        let known = self.index.get(&key).map(|at| *at as usize);
        let at = known.or_else(|| self.room_for_regression(query.model)).unwrap_or(SHARED);
        let is_new = known.is_none() && at != SHARED;
        if !is_new && self.regressions[at].1.count() > 0 {
            return at;
        }
        let model = self.models.get(query.model);
        let same = model.and_then(|model| model.best_of_feature_set(query.feature_set));
        let first = match same.and_then(|at| self.observed_elsewhere(at, hardware)) {
            _ if at == SHARED => Regression::first(&CONSTANT, seconds),
            Some((other, factor)) => other.transferred(factor, HARDWARE_VARIANCE),
            None => Regression::first(&query.features, seconds),
        };
        match self.regressions.get_mut(at) {
            None => self.regressions.push((key, first)),
            Some(unused) if is_new => *unused = (key, first),
            Some((_, known)) => *known = first,
        }
        if is_new {
            self.index.insert(key, at as u32);
        }
        at
    }

    /// An unused regression, if need be of the least used other model.
    fn room_for_regression(&mut self, model: ModelKey) -> Option<usize> {
        if self.free_regressions.is_empty() && self.regressions.len() < MAX_REGRESSIONS {
            return Some(self.regressions.len());
        }
        if self.free_regressions.is_empty() {
            self.forget_least_used_model(model);
        }
        self.free_regressions.pop_first().map(|at| at as usize)
    }

    /// Forgets the least used model other than `spared`, and its regressions.
    pub(crate) fn forget_least_used_model(&mut self, spared: ModelKey) {
        let columns = self.table.as_ref().map_or(&[][..], |table| table.columns());
        let Some(forgotten) = self.models.forget_least_used(spared, columns) else { return };
        for (at, regression) in self.regressions.iter_mut().enumerate().skip(SHARED + 1) {
            if regression.0 != NO_MODEL && model_of(regression.0) == forgotten {
                self.index.remove(&regression.0);
                *regression = (NO_MODEL, Regression::first(&CONSTANT, 1.0));
                self.free_regressions.insert(at as u32);
            }
        }
    }

    /// A regression with at least one observation.
    fn observed_regression(&self, at: u32) -> Option<&Regression> {
        let (_, regression) = self.regressions.get(at as usize)?;
        (regression.count() > 0).then_some(regression)
    }

    /// A regression of other hardware, and the scale of its times for this one: the factors of both are relative to
    /// their own regressions, and their means may differ.
    fn observed_elsewhere(&self, at: u32, hardware: HardwareKey) -> Option<(&Regression, f64)> {
        let regression = self.observed_regression(at)?;
        let centre = |hardware| self.workers.mean_log_factor(hardware);
        let theirs = match self.regressions.get(at as usize) {
            Some((key, _)) if at as usize != SHARED => hardware_of(*key),
            // The shared regression is relative to the factors of all hardware alike.
            _ => hardware,
        };
        Some((regression, (centre(theirs) - centre(hardware)).exp()))
    }

    /// Factors are relative to the predictions of regressions, and their mean need not be one. So a time for the usual
    /// worker is divided by the usual factor.
    fn scaled_to_usual_worker(&self, estimate: Estimate, hardware: HardwareKey) -> Estimate {
        estimate.scaled((-self.workers.mean_log_factor(hardware)).exp())
    }
}

/// The estimate of a regression for a task, with this much more variance of the logarithm.
fn fitted(
    regression: &Regression,
    model: &ModelFeatures,
    query: &Query,
    variance: f64,
) -> Estimate {
    let fit = regression.predict(&query.features);
    let (offset, offset_variance) = model.offset(&query.categories);
    let median_s = (fit.log + offset).exp();
    let variance = regression.noise() + fit.variance + offset_variance + variance;
    let mean_s = median_s * regression.smear();
    Estimate::lognormal(median_s, variance, mean_s, regression.widths())
}

/// The hardware in a key made by `pack`.
fn hardware_of(key: u64) -> HardwareKey {
    HardwareKey((key >> 8) as u16)
}

/// The model in it.
fn model_of(key: u64) -> ModelKey {
    ModelKey((key >> 24) as u32)
}

fn pack(model: ModelKey, hardware: HardwareKey, feature_set: u8) -> u64 {
    u64::from(model.0) << 24 | u64::from(hardware.0) << 8 | u64::from(feature_set)
}
