//! What the predictor needs of one task, prepared once.

use crate::keys::ModelKey;
use crate::models::MAX_TEXTS;
use crate::regression::D;

/// A task as the predictor sees it: made once by [`Predictor::query`](crate::Predictor::query), then used for as many
/// workers as there are, and passed back with the measured time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Query {
    /// The model.
    pub model: ModelKey,
    pub(crate) present: u8,
    pub(crate) feature_set: u8,
    pub(crate) categories: [u8; MAX_TEXTS],
    pub(crate) features: [f64; D],
    pub(crate) estimated_s: Option<f64>,
}
