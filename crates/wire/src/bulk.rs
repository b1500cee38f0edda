//! The messages of two peers around the bytes of a transfer.
//!
//! ```text
//! sender    Open                                            chunk chunk … ControlMessage::End
//! receiver       OpenResponse::Acknowledged  OpenResponse::Accept                            Receipt::Done
//! ```
//!
//! Messages travel in frames (a length of four bytes, big endian, then the message). After `Accept` the sender
//! writes chunks: a [`ChunkHead`], then that many bytes. A head of length zero precedes a [`ControlMessage`].

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::codec::{InvalidField, Message};

/// How many bytes a chunk has; the last one of a transfer may be shorter.
///
/// A power of two, so that a chunk is a whole subtree of the BLAKE3 tree and its digest is part of the digest of all
/// bytes: hashing once gives both. Large enough that the 36 bytes before it are negligible, small enough to be still in
/// a processor's cache when it is encrypted after it was hashed.
pub const CHUNK_BYTES: usize = 256 << 10;

/// The most bytes of one transfer: 1 TiB, above any checkpoint. Both sides keep 32 bytes per chunk,
/// which is then 128 MiB.
pub const MAX_LENGTH: u64 = 1 << 40;

/// The longest text in a header, in bytes: room for a path-like name.
pub const MAX_TEXT: usize = 512;

/// The longest explanation that one side sends the other, in bytes.
pub const MAX_REASON: usize = 1024;

macro_rules! bytes_type {
    ($(#[$meta:meta])* $name:ident, $len:literal, $what:literal) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub [u8; $len]);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_bytes(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<$name, D::Error> {
                struct Visitor;
                impl serde::de::Visitor<'_> for Visitor {
                    type Value = $name;
                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str($what)
                    }
                    fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> Result<$name, E> {
                        let exact = bytes.try_into().map($name);
                        exact.map_err(|_| E::invalid_length(bytes.len(), &self))
                    }
                }
                deserializer.deserialize_bytes(Visitor)
            }
        }
    };
}

bytes_type! {
    /// Names one transfer between two peers, over all its streams. Chosen at random by the sender.
    TransferId, 16, "16 bytes"
}

bytes_type! {
    /// A BLAKE3 digest: of all bytes of a transfer, or the chaining value of one chunk.
    Digest, 32, "32 bytes"
}

bytes_type! {
    /// The UUID of a job, as bytes.
    JobBytes, 16, "16 bytes"
}

/// What the bytes are. The receiving application decides by it; this protocol only uses length and digest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// The job they belong to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<JobBytes>,
    /// The round of the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub round: Option<u64>,
    /// The kind: `delta`, `slice`, `checkpoint`.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// How many bytes.
    pub length: u64,
    /// The digest of all bytes, where the sender knows it before it reads them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
}

/// The first message on a stream: a new transfer, or one that resumes after its stream broke.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Open {
    /// The id of the transfer. The same on each stream that carries a part of it.
    pub transfer: TransferId,
    /// What it is. Also the same on each stream.
    pub header: Header,
}

/// The receiver's response to an [`Open`]: first `Acknowledged`, then one of the others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OpenResponse {
    /// The receiver is alive. Without this within a short time the sender gives up the stream.
    #[serde(rename = "heard")]
    Acknowledged,
    /// Send, beginning with this byte: those before it were received and verified.
    Accept {
        /// A multiple of [`CHUNK_BYTES`], or the length.
        offset: u64,
    },
    /// All bytes were received before.
    Have {
        /// Their digest.
        digest: Digest,
    },
    /// Do not send.
    Refuse(Refusal),
}

/// The reason of a refusal, for programs and for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// For programs.
    pub kind: RefusalKind,
    /// For people.
    pub message: String,
    /// When to retry, for `Busy`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u32>,
}

/// The kinds of [`Refusal`]. A kind of a newer peer reads as `Other`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalKind {
    /// Too much at once: retry later.
    Busy,
    /// The application does not want it.
    Unwanted,
    /// The receiver ended the transfer.
    Cancelled,
    /// The receiver could not store the bytes.
    Sink,
    /// All bytes arrived, and do not match the digest in the header.
    Digest,
    /// A violation of this protocol.
    Protocol,
    /// A kind that this build does not know.
    #[serde(other)]
    Other,
}

/// The sender's messages between chunks, each after a chunk head of length zero.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ControlMessage {
    /// No bytes at the moment, but still alive: the source is slow.
    Alive,
    /// Those were all bytes.
    End {
        /// The digest of all of them.
        digest: Digest,
    },
    /// There will be no more.
    Stop {
        /// For people.
        reason: String,
    },
}

/// The receiver's messages during and after chunks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Receipt {
    /// Still alive: the sink is slow.
    Alive,
    /// All bytes were received, verified, and written to the sink.
    Done {
        /// The digest of all of them.
        digest: Digest,
    },
    /// A chunk arrived damaged: open another stream and send from there.
    #[serde(rename = "again")]
    Resend {
        /// Where it begins.
        offset: u64,
    },
    /// The transfer has failed permanently.
    Failed(Refusal),
}

/// The head of a chunk: the count and the digest of its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkHead {
    /// At most [`CHUNK_BYTES`], and not zero.
    pub length: u32,
    /// The chaining value of the chunk at its offset.
    pub digest: Digest,
}

impl ChunkHead {
    /// The length, four bytes big endian, then the digest.
    pub const BYTES: usize = 36;

    /// Its bytes.
    pub fn to_bytes(self) -> [u8; ChunkHead::BYTES] {
        let mut bytes = [0; ChunkHead::BYTES];
        bytes[..4].copy_from_slice(&self.length.to_be_bytes());
        bytes[4..].copy_from_slice(&self.digest.0);
        bytes
    }
}

impl Message for Open {
    const NAME: &'static str = "bulk opening";
    const MAX_BYTES: usize = 2048;

    fn validate(&self) -> Result<(), InvalidField> {
        self.header.validate()
    }
}

impl Header {
    /// Checks the bounds of its fields.
    pub fn validate(&self) -> Result<(), InvalidField> {
        text("kind", &self.kind, MAX_TEXT)?;
        text("name", &self.name, MAX_TEXT)?;
        if self.length > MAX_LENGTH {
            let problem =
                format!("{} bytes are too many: at most {MAX_LENGTH} are sent", self.length);
            return Err(InvalidField { field: "length", problem });
        }
        Ok(())
    }
}

impl Message for OpenResponse {
    const NAME: &'static str = "bulk open response";
    const MAX_BYTES: usize = 2048;

    fn validate(&self) -> Result<(), InvalidField> {
        match self {
            OpenResponse::Refuse(refusal) => refusal.validate(),
            OpenResponse::Acknowledged
            | OpenResponse::Accept { .. }
            | OpenResponse::Have { .. } => Ok(()),
        }
    }
}

impl Message for ControlMessage {
    const NAME: &'static str = "bulk control message";
    const MAX_BYTES: usize = 2048;

    fn validate(&self) -> Result<(), InvalidField> {
        match self {
            ControlMessage::Stop { reason } => text("reason", reason, MAX_REASON),
            ControlMessage::Alive | ControlMessage::End { .. } => Ok(()),
        }
    }
}

impl Message for Receipt {
    const NAME: &'static str = "bulk receipt";
    const MAX_BYTES: usize = 2048;

    fn validate(&self) -> Result<(), InvalidField> {
        match self {
            Receipt::Failed(refusal) => refusal.validate(),
            Receipt::Alive | Receipt::Done { .. } | Receipt::Resend { .. } => Ok(()),
        }
    }
}

impl Refusal {
    fn validate(&self) -> Result<(), InvalidField> {
        text("message", &self.message, MAX_REASON)
    }
}

fn text(field: &'static str, text: &str, max: usize) -> Result<(), InvalidField> {
    match text.len() {
        len if len > max => Err(InvalidField {
            field,
            problem: format!("{len} bytes of text are too many: at most {max} are read"),
        }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{decode, encode};

    fn header() -> Header {
        Header {
            job: Some(JobBytes([7; 16])),
            round: Some(3),
            kind: "delta".into(),
            name: "w".into(),
            length: 1 << 20,
            digest: None,
        }
    }

    /// Bytes that are in use: a change of these breaks peers of another release.
    #[test]
    fn bytes_are_pinned() {
        let open = Open { transfer: TransferId([1; 16]), header: header() };
        let pinned = [
            b"\x01\x82\xa8transfer\xc4\x10".as_slice(),
            &[1; 16],
            b"\xa6header\x85\xa3job\xc4\x10",
            &[7; 16],
            b"\xa5round\x03\xa4kind\xa5delta\xa4name\xa1w\xa6length\xce\x00\x10\x00\x00",
        ]
        .concat();
        check(&open, &pinned);
        check(&OpenResponse::Acknowledged, b"\x01\xa5heard");
        check(&OpenResponse::Accept { offset: 5 }, b"\x01\x81\xa6accept\x81\xa6offset\x05");
        let digest = Digest([9; 32]);
        let nines = [9; 32];
        let with_digest = |before: &[u8]| [before, &nines].concat();
        check(
            &OpenResponse::Have { digest },
            &with_digest(b"\x01\x81\xa4have\x81\xa6digest\xc4\x20"),
        );
        let busy =
            Refusal { kind: RefusalKind::Busy, message: "later".into(), retry_after_ms: Some(100) };
        check(
            &OpenResponse::Refuse(busy.clone()),
            b"\x01\x81\xa6refuse\x83\xa4kind\xa4busy\xa7message\xa5later\xaeretry_after_ms\x64",
        );
        check(&ControlMessage::Alive, b"\x01\xa5alive");
        check(
            &ControlMessage::End { digest },
            &with_digest(b"\x01\x81\xa3end\x81\xa6digest\xc4\x20"),
        );
        check(&ControlMessage::Stop { reason: "x".into() }, b"\x01\x81\xa4stop\x81\xa6reason\xa1x");
        check(&Receipt::Alive, b"\x01\xa5alive");
        check(&Receipt::Done { digest }, &with_digest(b"\x01\x81\xa4done\x81\xa6digest\xc4\x20"));
        check(&Receipt::Resend { offset: 1 }, b"\x01\x81\xa5again\x81\xa6offset\x01");
        check(
            &Receipt::Failed(Refusal { retry_after_ms: None, ..busy }),
            b"\x01\x81\xa6failed\x82\xa4kind\xa4busy\xa7message\xa5later",
        );
        let head = ChunkHead { length: 0x0102, digest };
        assert_eq!(head.to_bytes()[..], with_digest(b"\x00\x00\x01\x02"));
    }

    fn check<M: Message + fmt::Debug + PartialEq>(message: &M, pinned: &[u8]) {
        let bytes = encode(message).unwrap();
        assert_eq!(bytes, pinned, "{message:?}: {}", bytes.escape_ascii());
        assert_eq!(&decode::<M>(pinned).unwrap(), message);
    }

    #[test]
    fn a_refusal_kind_of_a_newer_peer_is_decoded() {
        let bytes = b"\x01\x81\xa6refuse\x83\xa4kind\xa5lunch\xa7message\xa1x\xa3new\x01";
        let OpenResponse::Refuse(refusal) = decode(bytes).unwrap() else { panic!("not a refusal") };
        assert_eq!(refusal.kind, RefusalKind::Other);
    }

    #[test]
    fn the_largest_of_each_fits_and_larger_is_refused() {
        let long = |max: usize| "ä".repeat(max / 2);
        let header = Header {
            kind: long(MAX_TEXT),
            name: long(MAX_TEXT),
            length: MAX_LENGTH,
            digest: Some(Digest([255; 32])),
            round: Some(u64::MAX),
            ..header()
        };
        let open = Open { transfer: TransferId([255; 16]), header };
        assert_eq!(decode::<Open>(&encode(&open).unwrap()).unwrap(), open);
        encode(&ControlMessage::Stop { reason: long(MAX_REASON) }).unwrap();
        let refusal = |message| Refusal {
            kind: RefusalKind::Cancelled,
            message,
            retry_after_ms: Some(u32::MAX),
        };
        encode(&OpenResponse::Refuse(refusal(long(MAX_REASON)))).unwrap();
        encode(&Receipt::Failed(refusal(long(MAX_REASON)))).unwrap();

        assert!(encode(&ControlMessage::Stop { reason: long(MAX_REASON + 2) }).is_err());
        assert!(encode(&Receipt::Failed(refusal(long(MAX_REASON + 2)))).is_err());
        let too_long = Header { length: MAX_LENGTH + 1, ..open.header.clone() };
        assert!(encode(&Open { header: too_long, ..open.clone() }).is_err());
        let long_name = Header { name: long(MAX_TEXT + 2), ..open.header.clone() };
        assert!(encode(&Open { header: long_name, ..open }).is_err());
    }

    #[test]
    fn a_digest_has_its_length() {
        assert!(decode::<ControlMessage>(b"\x01\x81\xa3end\x81\xa6digest\xc4\x01\x09").is_err());
    }
}
