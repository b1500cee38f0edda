//! The predictor: estimates and observations.

use std::collections::BTreeSet;

use hypha_model::{Map, Name, Span, TaskSpec, WorkerId};

use crate::estimate::{Estimate, MAX_LOG_SIGMA};
use crate::keys::{HardwareKey, Mode, NoLookupTable, WorkerKey};
use crate::model_table::ModelTable;
use crate::names::NameInterner;
use crate::oracle::{OracleSpeeds, oracle_run_s};
use crate::query::Query;
use crate::regression::{D, RESIDUAL_CLIP, Regression};
use crate::settings::Settings;
use crate::snapshot::Snapshot;
use crate::table::LookupTable;
use crate::typical::TypicalRunTime;
use crate::workers::WorkerFactors;

/// Hardware labels that are learned separately; there are some hundred kinds of GPU.
pub const MAX_HARDWARE: usize = 1_024;
/// Sets of (model, hardware, feature set) that are learned separately, at about 700 bytes each.
pub const MAX_REGRESSIONS: usize = 8_192;

/// The index of the regression that is shared by all whose own would be one too many.
pub(crate) const SHARED: usize = 0;
/// Where a key would be, in the regression that all models share, and in those that no model uses.
pub(crate) const NO_MODEL: u64 = u64::MAX;
/// The only feature that the shared regression uses.
pub(crate) const CONSTANT: [f64; D] = [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];
/// Run times are assumed to lie between a microsecond and 30 years.
const RUN_BOUNDS_S: (f64, f64) = (1e-6, 1e9);
/// By how many sigmas a worker must differ from the usual one to count as faster or slower: of equal workers one in
/// seven does so by chance, and of two of them one in thirty.
const SURE_SIGMAS: f64 = 1.5;

/// Predicts run times, from measurements or from a table. Deterministic: the same calls in the same order give the
/// same results, bit for bit.
#[derive(Clone, Debug)]
pub struct Predictor {
    pub(crate) settings: Settings,
    mode: Mode,
    pub(crate) table: Option<LookupTable>,
    /// Only set in an oracle.
    pub(crate) oracle: Option<OracleSpeeds>,
    pub(crate) hardware: NameInterner,
    pub(crate) models: ModelTable,
    pub(crate) workers: WorkerFactors,
    /// With their keys; the one at `SHARED` uses no features.
    pub(crate) regressions: Vec<(u64, Regression)>,
    pub(crate) index: Map<u64, u32>,
    /// Regressions of models that were forgotten.
    pub(crate) free_regressions: BTreeSet<u32>,
    pub(crate) typical: TypicalRunTime,
}

impl Predictor {
    /// A predictor that knows nothing yet.
    pub fn new(settings: Settings) -> Predictor {
        Predictor::restore(settings, Snapshot::default())
    }

    /// A predictor that continues from a snapshot, with identical predictions once the workers that are still present
    /// have been added again: workers that left meanwhile must not be kept for ever. The table is not part of a
    /// snapshot, so the mode is `default` until [`Predictor::set_table`] and [`Predictor::set_mode`].
    pub fn restore(settings: Settings, snapshot: Snapshot) -> Predictor {
        let parts = snapshot.repaired();
        let mut index = Map::default();
        let mut free_regressions = BTreeSet::new();
        for (at, (key, _)) in parts.regressions.iter().enumerate() {
            match at > SHARED && *key == NO_MODEL {
                true => _ = free_regressions.insert(at as u32),
                false => _ = index.insert(*key, at as u32),
            }
        }
        Predictor {
            settings: settings.bounded(),
            mode: Mode::Default,
            table: None,
            oracle: parts.oracle,
            hardware: parts.hardware,
            models: ModelTable::restore(parts.model_names, parts.models, &parts.model_usages),
            workers: WorkerFactors::restored(parts.workers),
            regressions: parts.regressions,
            index,
            free_regressions,
            typical: parts.typical,
        }
    }

    /// Everything that was learned, to survive a restart.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::of(self)
    }

    /// Where predictions come from.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Changes where predictions come from. Learning continues in either mode.
    pub fn set_mode(&mut self, mode: Mode) -> Result<(), NoLookupTable> {
        if mode == Mode::LookupTable && self.table.is_none() {
            return Err(NoLookupTable);
        }
        self.mode = mode;
        Ok(())
    }

    /// Sets or replaces the table. The mode stays as it is.
    pub fn set_table(&mut self, table: LookupTable) {
        self.models.reserve(table.columns());
        self.table = Some(table);
    }

    /// The key of a hardware label.
    pub fn hardware(&mut self, name: Option<&Name>) -> HardwareKey {
        HardwareKey(self.hardware.intern(name, MAX_HARDWARE) as u16)
    }

    /// The key of a worker. One that was present before keeps its learned speed.
    pub fn add_worker(&mut self, id: WorkerId, hardware: Option<&Name>) -> WorkerKey {
        let hardware = self.hardware(hardware);
        self.workers.add(id, hardware)
    }

    /// Frees a worker's key. What was learned of it is remembered for a while.
    pub fn forget_worker(&mut self, key: WorkerKey) {
        self.workers.forget(key, self.settings.remembered_workers);
    }

    /// Prepares a task for predictions.
    pub fn query(&mut self, spec: &TaskSpec) -> Query {
        let estimated_s = match self.oracle {
            Some(_) => oracle_run_s(&spec.metadata),
            None => spec.requirement.estimated_time.map(run_s),
        };
        let columns = self.table.as_ref().map_or(&[][..], |table| table.columns());
        let (model, known) = self.models.intern(spec.requirement.model.as_ref(), columns);
        let features = known.features(&spec.metadata, estimated_s);
        Query {
            model,
            present: features.present,
            feature_set: features.feature_set,
            categories: features.categories,
            features: features.numbers,
            estimated_s,
        }
    }

    /// Whether the model of a query has not been forgotten since; otherwise make a new query of the task.
    pub fn knows_model(&self, query: &Query) -> bool {
        self.models.get(query.model).is_some()
    }

    /// The run time of a task on some hardware, before a worker's factor.
    pub fn hardware_estimate(&self, query: &Query, hardware: HardwareKey) -> Estimate {
        if let (Some(known), Some(run_s)) = (&self.oracle, query.estimated_s) {
            return known.estimate(run_s, hardware);
        }
        if self.mode == Mode::LookupTable
            && let Some(estimate) = self.table_estimate(query, hardware)
        {
            return estimate;
        }
        self.learned(query, hardware)
    }

    /// A worker's run time relative to its hardware's [`Predictor::hardware_estimate`]: `2.0` takes twice as long. It
    /// is that of the usual worker of its hardware until the worker is surely faster or slower: a few observations
    /// tell as much about the tasks as about the worker. So it changes with the completions of others too, if slowly.
    pub fn factor(&self, worker: WorkerKey) -> f64 {
        if self.oracle.is_some() {
            return 1.0;
        }
        let (log_factor, variance) = self.log_factor(worker);
        let usual = self.workers.mean_log_factor(self.workers.hardware(worker));
        let is_sure = (log_factor - usual).abs() > SURE_SIGMAS * variance.sqrt();
        if is_sure { log_factor.exp() } else { usual.exp() }
    }

    /// The factor of the usual worker of some hardware, to compare others with.
    pub fn usual_factor(&self, hardware: HardwareKey) -> f64 {
        self.workers.mean_log_factor(hardware).exp()
    }

    /// The run time of a task on a worker: the hardware's time, times the worker's factor.
    pub fn estimate(&self, query: &Query, worker: WorkerKey) -> Estimate {
        self.on_worker(&self.hardware_estimate(query, self.workers.hardware(worker)), worker)
    }

    /// The same, from the hardware's time, for callers that have it already.
    pub fn on_worker(&self, base: &Estimate, worker: WorkerKey) -> Estimate {
        let (log_factor, variance) = self.log_factor(worker);
        base.scaled(log_factor.exp()).widened(variance)
    }

    /// Learns from a task that took `run` on a worker.
    pub fn observe(&mut self, query: &Query, worker: WorkerKey, run: Span) {
        let seconds = run_s(run);
        self.typical.observe(seconds);
        let hardware = self.workers.hardware(worker);
        let spread = self.spread(hardware);
        let (factor, factor_variance) = self.workers.log_factor(worker, spread);
        if self.models.completed(query.model) {
            self.forget_least_used_model(query.model);
        }
        let Some(model) = self.models.get(query.model) else { return };
        let (offset, offset_variance) = model.offset(&query.categories);
        let log = seconds.ln() - factor - offset;
        let at = self.regression_for(query, hardware, log.exp());
        let features = if at == SHARED { CONSTANT } else { query.features };
        let (_, regression) = &mut self.regressions[at];

        // One residual, shared out by how uncertain each part is: an update of the joint belief that treats costs,
        // categories and the worker's speed as independent.
        let fit = regression.predict(&features);
        let residual = log - fit.log;
        let noise = regression.noise();
        let variance = noise + fit.variance + factor_variance + offset_variance;
        regression.calibrate(residual, variance.min(MAX_LOG_SIGMA * MAX_LOG_SIGMA));
        let limit = RESIDUAL_CLIP * variance.sqrt();
        let clipped = residual.clamp(-limit, limit);
        regression.learn(&features, clipped, variance);
        let count = regression.count();
        if let Some(model) = self.models.get_mut(query.model) {
            model.learn(&query.categories, clipped, variance);
            if at != SHARED {
                model.observed(query.feature_set, at as u32, count);
            }
        }
        self.workers.learn(worker, clipped, variance, noise, spread);
    }

    /// A moving average of all run times, for scales; `1.0` before any.
    pub fn typical_s(&self) -> f64 {
        self.typical.mean_s(1.0)
    }

    fn log_factor(&self, worker: WorkerKey) -> (f64, f64) {
        if self.oracle.is_some() {
            return (0.0, 0.0);
        }
        self.workers.log_factor(worker, self.spread(self.workers.hardware(worker)))
    }

    fn spread(&self, hardware: HardwareKey) -> f64 {
        match hardware {
            HardwareKey(0) => self.settings.unknown_spread,
            _ => self.settings.known_spread,
        }
    }
}

fn run_s(run: Span) -> f64 {
    run.as_secs_f64().clamp(RUN_BOUNDS_S.0, RUN_BOUNDS_S.1)
}
