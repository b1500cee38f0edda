//! A removed worker, as far as it is known.

use hypha_engine::scheduler::RemovedWorkerView;
use hypha_model::{Name, WorkerId};
use serde::Serialize;
use utoipa::ToSchema;

use crate::timestamp::Timestamp;

/// A removed worker. Unknown fields are left out: it has not been found since the scheduler started.
#[derive(Serialize, ToSchema)]
#[schema(as = RemovedWorker)]
pub(crate) struct RemovedBody {
    #[schema(value_type = String, format = "uuid")]
    id: WorkerId,
    /// The name in its certificate, where it is known; for a back end its host and port.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// `removed`
    status: &'static str,
    /// When it was removed.
    #[schema(value_type = String, format = DateTime)]
    removed_at: Timestamp,
    /// The models that it serves, where they are known; none if it accepts any.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<String>>)]
    models: Option<Vec<Name>>,
}

impl RemovedBody {
    pub(super) fn of(view: &RemovedWorkerView, name: Option<String>) -> RemovedBody {
        RemovedBody {
            id: view.id,
            name,
            status: "removed",
            removed_at: Timestamp(view.at),
            models: view.worker.as_deref().map(super::models),
        }
    }
}
