//! Requests between peers and their responses.
//!
//! A request that only newer peers know is decoded as [`RequestBody::Unknown`], so that it gets a clear refusal
//! instead of a closed stream.

use serde::de::MapAccess;
use serde::{Deserialize, Deserializer, Serialize};

use crate::check::{MAX_ADDRESSES, addresses, at_most, sanitize, text, within};
use crate::codec::{InvalidField, Message};
use crate::field::{Blob, read_blobs, read_list, write_blobs};
use crate::market::Offer;
use crate::revocation::{self, RevocationIndex, RevocationPartQuery, RevocationQuery};
use crate::tagged::{self, Tagged};

/// The longest that a requester waits for a response; anything longer is a task, not a request.
pub const MAX_DEADLINE_MS: u32 = 600_000;
/// Bytes of a trace context: 55 in its first version.
pub const MAX_TRACEPARENT_BYTES: usize = 64;
/// Bytes of a role or a version: one word, and a version with its commit.
pub const MAX_WORD_BYTES: usize = 64;
/// Problems that a node lists: more than a person reads.
pub const MAX_PROBLEMS: usize = 32;
/// Notes that a node adds: a few for each executor of a worker.
pub const MAX_NOTES: usize = 32;
/// Bytes of a sentence for people.
pub const MAX_TEXT_BYTES: usize = 512;

/// A request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Repeated by the response.
    pub id: u64,
    /// How long the requester waits from sending.
    pub deadline_ms: u32,
    /// The trace that it belongs to, as W3C Trace Context writes it.
    #[serde(default)]
    pub traceparent: Option<String>,
    /// What is requested.
    pub body: RequestBody,
}

/// The kinds of requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestBody {
    /// The health of the node.
    Health,
    /// The addresses of the node's bulk listeners.
    BulkAddresses,
    /// The revocation lists of a gateway.
    RevocationLists(RevocationQuery),
    /// A part of one of them.
    RevocationPart(RevocationPartQuery),
    /// A worker's offer for an advert, to a scheduler that has no channel to the worker.
    Offer(Box<OfferRequest>),
    /// A request that only newer peers know; never sent.
    #[serde(skip_serializing)]
    Unknown,
}

/// An offer, and where its worker is reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfferRequest {
    /// The offer.
    pub offer: Offer,
    /// The worker's addresses, as multiaddresses in bytes.
    #[serde(
        default,
        serialize_with = "write_blobs",
        deserialize_with = "read_blobs::<_, MAX_ADDRESSES>"
    )]
    pub addresses: Vec<Vec<u8>>,
}

impl Message for Request {
    const NAME: &'static str = "request";
    /// Requests are small; large content is sent by bulk transfer.
    const MAX_BYTES: usize = 64 << 10;

    fn validate(&self) -> Result<(), InvalidField> {
        within("deadline_ms", self.deadline_ms, 0..=u64::from(MAX_DEADLINE_MS))?;
        text("traceparent", self.traceparent.as_deref().unwrap_or(""), MAX_TRACEPARENT_BYTES)?;
        match &self.body {
            RequestBody::RevocationLists(query) => query.validate(),
            RequestBody::RevocationPart(query) => query.validate(),
            RequestBody::Offer(request) => {
                request.offer.validate()?;
                addresses("addresses", &request.addresses)
            }
            RequestBody::Health | RequestBody::BulkAddresses | RequestBody::Unknown => Ok(()),
        }
    }
}

/// A response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Response {
    /// The id of the request.
    pub id: u64,
    /// The content.
    pub body: ResponseBody,
}

/// The kinds of responses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ResponseBody {
    /// To [`RequestBody::Health`].
    Health(Health),
    /// To [`RequestBody::BulkAddresses`]: multiaddresses in bytes.
    #[serde(serialize_with = "crate::field::write_blobs")]
    BulkAddresses(Vec<Vec<u8>>),
    /// To [`RequestBody::RevocationLists`].
    RevocationLists(RevocationIndex),
    /// To [`RequestBody::RevocationPart`]: bytes of the list, more than none.
    #[serde(serialize_with = "crate::field::bytes::serialize")]
    RevocationPart(Vec<u8>),
    /// To [`RequestBody::Offer`]: the offer is considered. It is accepted or declined on a channel.
    OfferReceived,
    /// To a request that is refused.
    Refused(Refusal),
    /// A response that only newer peers know; never sent.
    #[serde(skip_serializing)]
    Unknown,
}

/// The health of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// Its role.
    pub role: String,
    /// Its release.
    pub version: String,
    /// How long it has run.
    pub uptime_ms: u64,
    /// How many peers it is connected to.
    pub peers: u32,
    /// Whether it is ready to work.
    pub ready: bool,
    /// What keeps it from being ready, or may soon.
    #[serde(default, deserialize_with = "read_list::<_, _, MAX_PROBLEMS>")]
    pub problems: Vec<String>,
    /// What its operator should know although it is ready.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "read_list::<_, _, MAX_NOTES>"
    )]
    pub notes: Vec<String>,
}

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// For programs.
    pub kind: RefusalKind,
    /// For people.
    pub message: String,
}

/// The kinds of refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalKind {
    /// A request that this build does not know.
    UnknownRequest,
    /// A version that this build does not know.
    UnknownVersion,
    /// Bytes that are not a request.
    Malformed,
    /// Not permitted for the requester's role or organisation.
    NotAllowed,
    /// Overloaded; retry later.
    Busy,
    /// The requester has given up by now.
    DeadlinePassed,
    /// An internal error of this node.
    Internal,
    /// A reason that only newer peers know; never sent.
    #[serde(skip_serializing)]
    Unknown,
}

impl Refusal {
    /// A refusal; a message that is too long is cut.
    pub fn new(kind: RefusalKind, message: impl AsRef<str>) -> Refusal {
        Refusal { kind, message: sanitize(message.as_ref(), MAX_TEXT_BYTES) }
    }
}

impl Message for Response {
    const NAME: &'static str = "response";
    /// Responses are small; large content is sent by bulk transfer.
    const MAX_BYTES: usize = 64 << 10;

    fn validate(&self) -> Result<(), InvalidField> {
        match &self.body {
            ResponseBody::Health(health) => health.validate(),
            ResponseBody::BulkAddresses(list) => addresses("bulk_addresses", list),
            ResponseBody::RevocationLists(index) => index.validate(),
            ResponseBody::RevocationPart(bytes) => revocation::part(bytes),
            ResponseBody::Refused(refusal) => text("message", &refusal.message, MAX_TEXT_BYTES),
            ResponseBody::OfferReceived | ResponseBody::Unknown => Ok(()),
        }
    }
}

impl Health {
    fn validate(&self) -> Result<(), InvalidField> {
        text("role", &self.role, MAX_WORD_BYTES)?;
        text("version", &self.version, MAX_WORD_BYTES)?;
        at_most("problems", self.problems.len(), MAX_PROBLEMS)?;
        self.problems.iter().try_for_each(|problem| text("problems", problem, MAX_TEXT_BYTES))?;
        at_most("notes", self.notes.len(), MAX_NOTES)?;
        self.notes.iter().try_for_each(|note| text("notes", note, MAX_TEXT_BYTES))
    }
}

impl Tagged for RequestBody {
    const EXPECTED: &'static str = "a request";

    fn unit_variant(tag: &str) -> Option<RequestBody> {
        Some(match tag {
            "health" => RequestBody::Health,
            "bulk_addresses" => RequestBody::BulkAddresses,
            "revocation_lists" | "revocation_part" | "offer" => return None,
            _ => RequestBody::Unknown,
        })
    }

    fn content_variant<'de, A: MapAccess<'de>>(
        tag: &str,
        content: &mut A,
    ) -> Result<Option<Self>, A::Error> {
        Ok(Some(match tag {
            "revocation_lists" => RequestBody::RevocationLists(content.next_value()?),
            "offer" => RequestBody::Offer(content.next_value()?),
            "revocation_part" => RequestBody::RevocationPart(content.next_value()?),
            _ => return Ok(None),
        }))
    }
}

impl Tagged for ResponseBody {
    const EXPECTED: &'static str = "a response";

    fn unit_variant(tag: &str) -> Option<ResponseBody> {
        match tag {
            "health" | "bulk_addresses" | "refused" | "revocation_lists" | "revocation_part" => {
                None
            }
            "offer_received" => Some(ResponseBody::OfferReceived),
            _ => Some(ResponseBody::Unknown),
        }
    }

    fn content_variant<'de, A: MapAccess<'de>>(
        tag: &str,
        content: &mut A,
    ) -> Result<Option<Self>, A::Error> {
        Ok(Some(match tag {
            "health" => ResponseBody::Health(content.next_value()?),
            "bulk_addresses" => ResponseBody::BulkAddresses(content.next_value::<Addresses>()?.0),
            "refused" => ResponseBody::Refused(content.next_value()?),
            "revocation_lists" => ResponseBody::RevocationLists(content.next_value()?),
            "revocation_part" => ResponseBody::RevocationPart(content.next_value::<Blob>()?.0),
            _ => return Ok(None),
        }))
    }
}

impl Tagged for RefusalKind {
    const EXPECTED: &'static str = "a kind of refusal";

    fn unit_variant(tag: &str) -> Option<RefusalKind> {
        Some(match tag {
            "unknown_request" => RefusalKind::UnknownRequest,
            "unknown_version" => RefusalKind::UnknownVersion,
            "malformed" => RefusalKind::Malformed,
            "not_allowed" => RefusalKind::NotAllowed,
            "busy" => RefusalKind::Busy,
            "deadline_passed" => RefusalKind::DeadlinePassed,
            "internal" => RefusalKind::Internal,
            _ => RefusalKind::Unknown,
        })
    }
}

struct Addresses(Vec<Vec<u8>>);

impl<'de> Deserialize<'de> for Addresses {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<Addresses, D::Error> {
        crate::field::read_blobs::<D, MAX_ADDRESSES>(reader).map(Addresses)
    }
}

impl<'de> Deserialize<'de> for RequestBody {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<RequestBody, D::Error> {
        tagged::read(reader)
    }
}

impl<'de> Deserialize<'de> for ResponseBody {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<ResponseBody, D::Error> {
        tagged::read(reader)
    }
}

impl<'de> Deserialize<'de> for RefusalKind {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<RefusalKind, D::Error> {
        tagged::read(reader)
    }
}
