//! Everything that was learned, as data that survives a restart.

use hypha_model::{Name, WorkerId};
use serde::{Deserialize, Serialize};

use crate::model_table::ModelUsage;
use crate::models::ModelFeatures;
use crate::names::NameInterner;
use crate::oracle::OracleSpeeds;
use crate::predictor::{CONSTANT, MAX_REGRESSIONS, NO_MODEL, Predictor};
use crate::regression::Regression;
use crate::typical::TypicalRunTime;
use crate::workers::WorkerFactor;

/// What a predictor has learned. Opaque; write it with any serde format. After a restore the keys of models and
/// hardware, and queries, stay valid; workers must be added again, and then keep their learned speed.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Snapshot {
    pub(crate) hardware: NameInterner,
    pub(crate) model_names: Vec<Name>,
    pub(crate) models: Vec<ModelFeatures>,
    #[serde(default)]
    pub(crate) model_usages: Vec<ModelUsage>,
    /// Workers that had left, then workers that were present.
    pub(crate) workers: Vec<(WorkerId, WorkerFactor)>,
    pub(crate) regressions: Vec<(u64, Regression)>,
    pub(crate) typical: TypicalRunTime,
    #[serde(skip)]
    pub(crate) oracle: Option<OracleSpeeds>,
}

impl Snapshot {
    pub(crate) fn of(predictor: &Predictor) -> Snapshot {
        let (model_names, models, model_usages) = predictor.models.parts();
        Snapshot {
            hardware: predictor.hardware.clone(),
            model_names,
            models,
            model_usages,
            workers: predictor.workers.remembered(),
            regressions: predictor.regressions.clone(),
            typical: predictor.typical,
            oracle: predictor.oracle.clone(),
        }
    }

    /// The snapshot with every invalid value of a damaged file replaced by "unknown".
    pub(crate) fn repaired(mut self) -> Snapshot {
        if self.regressions.is_empty() {
            self.regressions.push((NO_MODEL, Regression::first(&CONSTANT, 1.0)));
        }
        self.regressions.truncate(MAX_REGRESSIONS);
        for (_, regression) in &mut self.regressions {
            if !regression.is_valid() {
                *regression = Regression::first(&CONSTANT, 1.0);
            }
        }
        if !self.typical.is_valid() {
            self.typical = TypicalRunTime::default();
        }
        self
    }
}
