//! The state that every handler uses: the scheduler and the settings.

use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use crate::body::BodyReader;
use crate::service::SchedulerApi;
use crate::settings::Settings;

/// The state of the router; cheap to clone.
#[derive(Clone)]
pub(crate) struct AppState(Arc<AppStateInner>);

/// The state that all requests share.
pub(crate) struct AppStateInner {
    /// The scheduler.
    pub(crate) service: Arc<dyn SchedulerApi>,
    /// The operator's settings.
    pub(crate) settings: Settings,
    /// Reads bodies within those settings.
    pub(crate) bodies: BodyReader,
    /// The OpenAPI document, once it has been requested.
    pub(crate) document: OnceLock<Bytes>,
}

impl AppState {
    pub(crate) fn new(service: Arc<dyn SchedulerApi>, settings: Settings) -> AppState {
        let bodies = BodyReader::new(settings.max_request_bytes, settings.max_buffered_bytes);
        AppState(Arc::new(AppStateInner { service, settings, bodies, document: OnceLock::new() }))
    }
}

impl Deref for AppState {
    type Target = AppStateInner;
    fn deref(&self) -> &AppStateInner {
        &self.0
    }
}
