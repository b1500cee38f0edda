//! What stands for a result that is too large to be kept with its task.

use hypha_model::{Digest, Payload};
use serde_json::json;

/// The kind of bulk transfer that carries one.
pub(crate) const KIND: &str = "task-result";

/// A large result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reference {
    pub(crate) digest: Digest,
    pub(crate) bytes: u64,
}

impl Reference {
    /// As the result of a task: JSON that clients see, too.
    pub(crate) fn to_payload(self) -> Payload {
        let shown = json!({ "object": self.digest.to_string(), "bytes": self.bytes });
        Payload::from(shown.to_string().into_bytes())
    }
}
