//! The result of a task: bytes that are kept with it, or the name of an object that is kept separately.

use serde::{Deserialize, Serialize};

use crate::payload::{Digest, Payload};

/// The result of a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TaskResult {
    /// The bytes themselves, in any format.
    Inline {
        /// The bytes.
        payload: Payload,
        /// Their stated digest; see [`TaskResult::digest_matches`].
        digest: Digest,
    },
    /// An object that is kept separately, since it is too large to be kept with the task.
    Object(ObjectRef),
}

/// Names an object. Only the task whose result it is gives access to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectRef {
    /// The digest of its bytes.
    pub digest: Digest,
    /// How many bytes it has.
    pub bytes: u64,
    /// It is kept by its digest alone, as in earlier versions, and not by its task. Never set by a worker.
    pub by_digest: bool,
}

impl TaskResult {
    /// The bytes with their digest.
    pub fn of(payload: Payload) -> TaskResult {
        TaskResult::Inline { digest: payload.digest(), payload }
    }

    /// The stated digest of the bytes.
    pub fn digest(&self) -> Digest {
        match self {
            TaskResult::Inline { digest, .. } | TaskResult::Object(ObjectRef { digest, .. }) => {
                *digest
            }
        }
    }

    /// Whether inline bytes match their digest. The reader of an object checks its bytes.
    pub fn digest_matches(&self) -> bool {
        match self {
            TaskResult::Inline { payload, digest } => payload.digest() == *digest,
            TaskResult::Object(_) => true,
        }
    }

    /// The bytes, if they are inline.
    pub fn payload(&self) -> Option<&Payload> {
        match self {
            TaskResult::Inline { payload, .. } => Some(payload),
            TaskResult::Object(_) => None,
        }
    }
}

impl ObjectRef {
    /// As users see it in place of the result.
    pub fn to_json(&self) -> String {
        format!("{{\"bytes\":{},\"object\":\"{}\"}}", self.bytes, self.digest)
    }

    /// The object that earlier versions named in place of the result itself. The caller must know whether the bytes
    /// were meant so, and do not only look like it.
    pub fn from_json(json: &[u8]) -> Option<ObjectRef> {
        let text = std::str::from_utf8(json).ok()?.strip_prefix("{\"bytes\":")?;
        let (bytes, rest) = text.split_once(",\"object\":\"")?;
        let digest = Digest::from_hex(rest.strip_suffix("\"}")?)?;
        let object = ObjectRef { digest, bytes: bytes.parse().ok()?, by_digest: false };
        // Refuses any other spelling, such as a number with a sign.
        (object.to_json().as_bytes() == json).then_some(object)
    }
}

impl From<Payload> for TaskResult {
    fn from(payload: Payload) -> TaskResult {
        TaskResult::of(payload)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_matches_only_its_own_bytes() {
        let (one, other) = (Payload::from(&b"one"[..]), Payload::from(&b"other"[..]));
        assert!(TaskResult::of(one.clone()).digest_matches());
        let wrong = TaskResult::Inline { payload: one, digest: other.digest() };
        assert!(!wrong.digest_matches() && wrong.digest() == other.digest());
    }

    #[test]
    fn only_the_format_of_earlier_versions_names_an_object() {
        let digest = Payload::from(&b"x"[..]).digest();
        let object = ObjectRef { digest, bytes: u64::MAX, by_digest: false };
        assert_eq!(ObjectRef::from_json(object.to_json().as_bytes()), Some(object));
        for other in [
            format!("{{\"object\":\"{digest}\",\"bytes\":7}}"),
            format!("{{\"bytes\": 7,\"object\":\"{digest}\"}}"),
            format!("{{\"bytes\":+7,\"object\":\"{digest}\"}}"),
            format!("{{\"bytes\":7,\"object\":\"{digest}\"}} "),
            format!("{{\"bytes\":7,\"object\":\"{digest}\",\"x\":1}}"),
            "{\"bytes\":7,\"object\":\"abc\"}".to_owned(),
            String::new(),
        ] {
            assert_eq!(ObjectRef::from_json(other.as_bytes()), None, "{other}");
        }
    }
}
