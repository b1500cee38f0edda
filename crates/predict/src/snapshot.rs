//! Everything that was learned, as data that survives a restart.

use hypha_model::WorkerId;
use serde::{Deserialize, Serialize};

use crate::known::KnownSpeeds;
use crate::models::Model;
use crate::names::Names;
use crate::predictor::{CONSTANT, MAX_REGRESSIONS, Predictor};
use crate::regression::Regression;
use crate::typical::Typical;
use crate::workers::Learned;

/// What a predictor has learned. Opaque; write it with any serde format. Over a restore the keys of models
/// and hardware, and queries, stay valid; workers must be added again, and are then as fast as they were.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Snapshot {
    pub(crate) hardware: Names,
    pub(crate) model_names: Names,
    pub(crate) models: Vec<Model>,
    /// Those that had left, and then those that were there.
    pub(crate) workers: Vec<(WorkerId, Learned)>,
    pub(crate) regressions: Vec<(u64, Regression)>,
    pub(crate) typical: Typical,
    #[serde(skip)]
    pub(crate) known: Option<KnownSpeeds>,
}

impl Snapshot {
    pub(crate) fn of(predictor: &Predictor) -> Snapshot {
        Snapshot {
            hardware: predictor.hardware.clone(),
            model_names: predictor.model_names.clone(),
            models: predictor.models.clone(),
            workers: predictor.workers.remembered(),
            regressions: predictor.regressions.clone(),
            typical: predictor.typical,
            known: predictor.known.clone(),
        }
    }

    /// The snapshot with whatever a damaged file could have put wrong replaced by "nothing is known".
    pub(crate) fn sound(mut self) -> Snapshot {
        if self.regressions.is_empty() {
            self.regressions.push((u64::MAX, Regression::first(&CONSTANT, 1.0)));
        }
        self.regressions.truncate(MAX_REGRESSIONS);
        for (_, regression) in &mut self.regressions {
            if !regression.is_sound() {
                *regression = Regression::first(&CONSTANT, 1.0);
            }
        }
        self.models.resize_with(self.model_names.len() + 1, Model::default);
        self.models.iter_mut().for_each(Model::make_sound);
        if !self.typical.is_sound() {
            self.typical = Typical::default();
        }
        self
    }
}
