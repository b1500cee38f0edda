//! The first message of each side inside TLS, before any protocol.
//!
//! Under TLS 1.3 a dialler sees an established connection before the other side has verified its certificate. The
//! verdict closes that gap: nothing counts as connected until both sides have admitted each other.

use serde::{Deserialize, Serialize};

use crate::check::{sanitize, text};
use crate::codec::{InvalidField, Message};

/// Bytes of a reason: one sentence.
pub const MAX_REASON_BYTES: usize = 256;

/// Whether the other side is admitted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// Whether it is.
    pub admitted: bool,
    /// Why not.
    #[serde(default)]
    pub reason: Option<String>,
}

impl Verdict {
    /// It is admitted.
    pub fn admitted() -> Verdict {
        Verdict { admitted: true, reason: None }
    }

    /// It is refused; a reason that is too long is cut.
    pub fn refused(reason: impl AsRef<str>) -> Verdict {
        Verdict { admitted: false, reason: Some(sanitize(reason.as_ref(), MAX_REASON_BYTES)) }
    }
}

impl Message for Verdict {
    const NAME: &'static str = "verdict";
    /// One sentence and room for later fields: it is read from a peer that is not admitted yet.
    const MAX_BYTES: usize = 512;

    fn validate(&self) -> Result<(), InvalidField> {
        text("reason", self.reason.as_deref().unwrap_or(""), MAX_REASON_BYTES)
    }
}
