//! Why there is no result: a kind for programs, a text for people. No decision depends on the text.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Why an attempt gave no result, or a task ended without one.
///
/// The words are in files, messages and client programs: they never change. A word of a later version reads as
/// [`FailureKind::Unknown`].
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// The program or the back end does not accept the input.
    InvalidInput,
    /// The program reported a failure, or ended without a result.
    ProgramFailed,
    /// The program exceeded a limit: memory, processes, the size of a result.
    LimitExceeded,
    /// It exceeded its time limit.
    TimedOut,
    /// The worker could not run it.
    WorkerFailed,
    /// The worker is gone, does not respond, or no longer has the attempt.
    WorkerLost,
    /// The worker did not accept it, or did not acknowledge it in time.
    Refused,
    /// The result does not match its digest.
    CorruptResult,
    /// The back end broke off, or its response is unusable.
    BackendFailed,
    /// The back end answered that it has failed (an HTTP status from 500).
    BackendError,
    /// The back end answered that it has too much to do, and has not accepted it.
    BackendBusy,
    /// The back end is unreachable, and has not received it.
    BackendUnreachable,
    /// The worker stopped gracefully and returned it.
    Returned,
    /// The scheduler was down: the outcome of the attempt is unknown.
    Interrupted,
    /// A client cancelled the task.
    Cancelled,
    /// The deadline passed first.
    Expired,
    /// Unknown, and it would fail elsewhere too: reported by a worker of another version.
    UnknownPermanent,
    /// Unknown: reported by another version.
    #[default]
    #[serde(other)]
    Unknown,
}

/// Which party caused a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureOrigin {
    /// What the client sent.
    Input,
    /// The program that was run.
    Program,
    /// The worker, or the connection to it.
    Worker,
    /// The HTTP server that should have done the work.
    Backend,
    /// No party.
    Nobody,
}

impl FailureKind {
    /// All kinds, each at the index of its number.
    pub const ALL: [FailureKind; 18] = [
        FailureKind::InvalidInput,
        FailureKind::ProgramFailed,
        FailureKind::LimitExceeded,
        FailureKind::TimedOut,
        FailureKind::WorkerFailed,
        FailureKind::WorkerLost,
        FailureKind::Refused,
        FailureKind::CorruptResult,
        FailureKind::BackendFailed,
        FailureKind::BackendError,
        FailureKind::BackendBusy,
        FailureKind::BackendUnreachable,
        FailureKind::Returned,
        FailureKind::Interrupted,
        FailureKind::Cancelled,
        FailureKind::Expired,
        FailureKind::UnknownPermanent,
        FailureKind::Unknown,
    ];

    /// Which party caused it.
    pub const fn origin(self) -> FailureOrigin {
        match self {
            FailureKind::InvalidInput => FailureOrigin::Input,
            FailureKind::ProgramFailed | FailureKind::LimitExceeded | FailureKind::TimedOut => {
                FailureOrigin::Program
            }
            FailureKind::WorkerFailed
            | FailureKind::WorkerLost
            | FailureKind::Refused
            | FailureKind::CorruptResult => FailureOrigin::Worker,
            FailureKind::BackendFailed
            | FailureKind::BackendError
            | FailureKind::BackendBusy
            | FailureKind::BackendUnreachable => FailureOrigin::Backend,
            FailureKind::Returned
            | FailureKind::Interrupted
            | FailureKind::Cancelled
            | FailureKind::Expired
            | FailureKind::UnknownPermanent
            | FailureKind::Unknown => FailureOrigin::Nobody,
        }
    }

    /// Whether another attempt may succeed. A failure that follows from the task itself would recur elsewhere.
    pub const fn is_retryable(self) -> bool {
        !matches!(
            self,
            FailureKind::InvalidInput
                | FailureKind::LimitExceeded
                | FailureKind::Cancelled
                | FailureKind::Expired
                | FailureKind::UnknownPermanent
        )
    }

    /// Whether it uses up one of a task's attempts. An attempt that was not run, or was cut off by the scheduler's own
    /// outage, does not.
    pub const fn uses_attempt(self) -> bool {
        !matches!(
            self,
            FailureKind::Refused
                | FailureKind::BackendBusy
                | FailureKind::BackendUnreachable
                | FailureKind::Returned
                | FailureKind::Interrupted
        )
    }

    /// Whether, as the outcome of a run, it counts against the executor. A failure that follows from the task does not,
    /// nor does an answer of the back end: its health check shows whether it can work.
    pub const fn counts_against_executor(self) -> bool {
        self.is_retryable() && !matches!(self, FailureKind::BackendError | FailureKind::BackendBusy)
    }

    /// How much it reveals of why a task has no result. Of several failures, the last of those with the highest value is
    /// shown.
    pub const fn significance(self) -> u8 {
        match self {
            FailureKind::Cancelled | FailureKind::Expired => 5,
            FailureKind::InvalidInput
            | FailureKind::ProgramFailed
            | FailureKind::LimitExceeded
            | FailureKind::UnknownPermanent => 4,
            FailureKind::TimedOut
            | FailureKind::WorkerFailed
            | FailureKind::CorruptResult
            | FailureKind::BackendFailed
            | FailureKind::BackendError
            | FailureKind::Unknown => 3,
            FailureKind::BackendBusy | FailureKind::BackendUnreachable => 2,
            FailureKind::WorkerLost => 1,
            FailureKind::Refused | FailureKind::Returned | FailureKind::Interrupted => 0,
        }
    }

    /// The kind of a failure that a back end answers with this HTTP status. Most of the statuses from 400 to 499, and
    /// 501, concern the request; 401, 403 and 407 concern the key that the operator gave for the back end.
    pub const fn of_http_status(status: u16) -> FailureKind {
        match status {
            429 | 503 => FailureKind::BackendBusy,
            401 | 403 | 407 | 408 => FailureKind::BackendFailed,
            400..500 | 501 => FailureKind::InvalidInput,
            500.. => FailureKind::BackendError,
            _ => FailureKind::BackendFailed,
        }
    }

    /// Whether it is the outcome of a run. The other kinds are determined by the scheduler.
    pub const fn is_run_outcome(self) -> bool {
        matches!(
            self,
            FailureKind::InvalidInput
                | FailureKind::ProgramFailed
                | FailureKind::LimitExceeded
                | FailureKind::TimedOut
                | FailureKind::WorkerFailed
                | FailureKind::BackendFailed
                | FailureKind::BackendError
                | FailureKind::BackendBusy
                | FailureKind::UnknownPermanent
                | FailureKind::Unknown
        )
    }

    /// The kind of a failure of which another version reports only whether to retry.
    pub const fn unknown(retry: bool) -> FailureKind {
        if retry { FailureKind::Unknown } else { FailureKind::UnknownPermanent }
    }

    /// The word that users see.
    pub const fn as_str(self) -> &'static str {
        match self {
            FailureKind::InvalidInput => "invalid_input",
            FailureKind::ProgramFailed => "program_failed",
            FailureKind::LimitExceeded => "limit_exceeded",
            FailureKind::TimedOut => "timed_out",
            FailureKind::WorkerFailed => "worker_failed",
            FailureKind::WorkerLost => "worker_lost",
            FailureKind::Refused => "refused",
            FailureKind::CorruptResult => "corrupt_result",
            FailureKind::BackendFailed => "backend_failed",
            FailureKind::BackendError => "backend_error",
            FailureKind::BackendBusy => "backend_busy",
            FailureKind::BackendUnreachable => "backend_unreachable",
            FailureKind::Returned => "returned",
            FailureKind::Interrupted => "interrupted",
            FailureKind::Cancelled => "cancelled",
            FailureKind::Expired => "expired",
            FailureKind::UnknownPermanent => "unknown_permanent",
            FailureKind::Unknown => "unknown",
        }
    }
}

impl fmt::Display for FailureKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A word of a later version is [`FailureKind::Unknown`].
impl From<&str> for FailureKind {
    fn from(word: &str) -> FailureKind {
        word.parse().unwrap_or_default()
    }
}

impl FromStr for FailureKind {
    type Err = UnknownFailureKind;
    fn from_str(word: &str) -> Result<FailureKind, UnknownFailureKind> {
        FailureKind::ALL.into_iter().find(|kind| kind.as_str() == word).ok_or(UnknownFailureKind)
    }
}

/// A kind of failure that this version does not know.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("this version does not know this kind of failure")]
pub struct UnknownFailureKind;

impl FailureOrigin {
    /// The word that users see.
    pub const fn as_str(self) -> &'static str {
        match self {
            FailureOrigin::Input => "input",
            FailureOrigin::Program => "program",
            FailureOrigin::Worker => "worker",
            FailureOrigin::Backend => "backend",
            FailureOrigin::Nobody => "nobody",
        }
    }
}

/// Why there is no result.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskError {
    /// For programs.
    pub kind: FailureKind,
    /// For people. If there is a `status`, the body of that response.
    pub message: String,
    /// The HTTP status that a back end returned instead of a result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// After how many seconds a back end that is busy asks to be called again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_s: Option<u32>,
}

impl TaskError {
    /// A failure of this kind with this message.
    pub fn new(kind: FailureKind, message: impl Into<String>) -> TaskError {
        TaskError { kind, message: message.into(), status: None, retry_after_s: None }
    }

    /// The same with at most this many characters of the message.
    #[must_use]
    pub fn truncated(mut self, max_chars: usize) -> TaskError {
        if let Some((end, _)) = self.message.char_indices().nth(max_chars) {
            self.message.truncate(end);
        }
        self
    }
}

impl fmt::Display for TaskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.status {
            Some(status) => write!(f, "the back end answered {status}: {}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kind_is_one_word_everywhere_and_has_its_index() {
        for (at, kind) in FailureKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, at, "{kind}");
            assert_eq!(kind.to_string().parse(), Ok(kind));
            assert_eq!(serde_json::to_string(&kind).unwrap(), format!("\"{kind}\""));
            assert_eq!(serde_json::from_str::<FailureKind>(&format!("\"{kind}\"")).unwrap(), kind);
            let fault = serde_json::to_string(&kind.origin()).unwrap();
            assert_eq!(fault, format!("\"{}\"", kind.origin().as_str()));
        }
    }

    #[test]
    fn kind_of_a_later_version_is_unknown_and_keeps_whether_to_retry() {
        assert_eq!(
            serde_json::from_str::<FailureKind>("\"of_2030\"").unwrap(),
            FailureKind::Unknown
        );
        assert_eq!(FailureKind::from("of_2030"), FailureKind::Unknown);
        for retry in [true, false] {
            assert_eq!(FailureKind::unknown(retry).is_retryable(), retry);
        }
    }

    #[test]
    fn response_of_a_back_end_is_shown_with_its_status() {
        let error =
            TaskError { status: Some(422), ..TaskError::new(FailureKind::InvalidInput, "€€") };
        assert_eq!(error.clone().truncated(1).to_string(), "the back end answered 422: €");
        assert_eq!(error.truncated(2).message, "€€");
    }
}
