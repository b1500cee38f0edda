//! What every handler has at hand: the scheduler and the settings.

use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use crate::backend::Backend;
use crate::settings::Settings;

/// The state of the router; cheap to clone.
#[derive(Clone)]
pub(crate) struct Surface(Arc<Shared>);

/// What all requests share.
pub(crate) struct Shared {
    /// The scheduler.
    pub(crate) backend: Arc<dyn Backend>,
    /// What an operator has set.
    pub(crate) settings: Settings,
    /// The OpenAPI document, once somebody has asked for it.
    pub(crate) document: OnceLock<Bytes>,
}

impl Surface {
    pub(crate) fn new(backend: Arc<dyn Backend>, settings: Settings) -> Surface {
        Surface(Arc::new(Shared { backend, settings, document: OnceLock::new() }))
    }
}

impl Deref for Surface {
    type Target = Shared;
    fn deref(&self) -> &Shared {
        &self.0
    }
}
