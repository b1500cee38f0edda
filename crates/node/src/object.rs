//! Results that are too large to be kept with their task, between a worker and a scheduler.

/// The kind of bulk transfer that carries such a result. The transfer is named after its attempt.
pub(crate) const RESULT_TRANSFER_KIND: &str = "task-result";
