//! Results that are too large to be kept with their task, between a worker and a scheduler.

/// The kind of bulk transfer that carries one. Its name is the attempt's.
pub(crate) const RESULT_TRANSFER_KIND: &str = "task-result";
