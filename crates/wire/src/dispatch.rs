//! The messages between a scheduler and a worker about leases and attempts, on a stream that stays open.
//!
//! Many messages are sent in one frame, each as a byte string of its own: one that this build cannot decode, since only
//! newer peers know it, hides none of the others. The engine's messages are the same with other types:
//! an interface between releases must not change because a machine does.

mod channel;
mod engine;

use hypha_engine::OwnerReason;
use hypha_model::{
    AdvertId, Digest, FailureKind, InputKind, LeaseId, Metadata, Name, OfferId, Payload, Refusal,
    RefusalKind, Requirement, TaskId, Usage,
};
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer, Serialize};

use crate::check::at_most;
use crate::codec::{InvalidField, Message};
use crate::field::{OpaqueList, read_list, read_opaque_list, write_opaque_list};
use crate::market::{Advert, Offer, SignedReceipt};
use crate::worker::{MAX_DEVICES, MAX_EXECUTORS};

pub use channel::TaskProtocol;

/// Messages of one frame.
pub const MAX_MESSAGES: usize = 4_096;

/// Attempts that a worker reports as held: all that its queue and its results can be.
pub const MAX_HOLDING: usize = 65_536;

/// The largest input or result that is sent here; larger ones are bulk transfers.
pub const MAX_PAYLOAD_BYTES: usize = 16 << 20;

/// The longest text of a failure: the engine keeps 2,000 characters, of up to four bytes. So many that a frame holds
/// [`MAX_MESSAGES`] of them.
pub const MAX_ERROR_BYTES: usize = 8_000;

/// The longest id that a back end has for an attempt.
pub const MAX_HANDLE_BYTES: usize = 256;

/// A frame with the largest payload, and as much again for the messages before it.
const MAX_FRAME_BYTES: usize = 2 * MAX_PAYLOAD_BYTES;

/// From a scheduler to a worker.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "RawOrders")]
pub struct Orders {
    /// In the order in which they were sent.
    #[serde(serialize_with = "write_opaque_list")]
    pub orders: Vec<Order>,
    /// How many more there were that this build cannot decode. Never sent.
    #[serde(skip_serializing)]
    pub skipped: usize,
}

/// From a worker to a scheduler. One without messages is the greeting on a new stream.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "RawReports")]
pub struct Reports {
    /// In the order in which they were sent.
    #[serde(serialize_with = "write_opaque_list")]
    pub reports: Vec<Report>,
    /// How many more there were that this build cannot decode. Never sent.
    #[serde(skip_serializing)]
    pub skipped: usize,
}

/// One message to a worker; see [`hypha_engine::ToWorker`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the engine's messages are documented there")]
pub enum Order {
    RequestLease {
        request: u64,
        ttl_us: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        least: Option<Box<Requirement>>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        wish: Option<Box<Requirement>>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        short_of: Option<Box<Requirement>>,
    },
    Heartbeat {
        lease: LeaseId,
        epoch: u64,
        nonce: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        short_of: Option<Box<Requirement>>,
    },
    Dispatch(Box<DispatchBody>),
    Cancel(AttemptKey),
    Recorded(AttemptKey),
    ReleaseLease {
        lease: LeaseId,
        epoch: u64,
    },
    Advertise(Box<Advert>),
    CloseAdvert(AdvertId),
    AcceptOffer {
        offer: OfferId,
        role: u16,
        request: u64,
        ttl_us: u64,
    },
    DeclineOffer(OfferId),
    ReceiptCountersigned(Box<SignedReceipt>),
}

/// One message to a scheduler; see [`hypha_engine::FromWorker`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the engine's messages are documented there")]
pub enum Report {
    LeaseGranted {
        request: u64,
        lease: LeaseId,
        epoch: u64,
        ttl_us: u64,
        /// Older workers lease all of their capacity, and older schedulers assume it to be all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        portion: Option<Portion>,
        #[serde(deserialize_with = "read_list::<_, _, MAX_HOLDING>")]
        holding: Vec<AttemptKey>,
    },
    LeaseRefused {
        request: u64,
        #[serde(deserialize_with = "read_refusal")]
        refusal: Refusal,
    },
    Alive {
        lease: LeaseId,
        epoch: u64,
        nonce: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        portion: Option<Portion>,
        /// Older workers do not measure it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        usage: Option<Usage>,
        #[serde(deserialize_with = "read_list::<_, _, MAX_HOLDING>")]
        holding: Vec<AttemptKey>,
    },
    RenewEarly {
        lease: LeaseId,
        epoch: u64,
    },
    LeaseUnknown {
        lease: LeaseId,
        epoch: u64,
    },
    Accepted(AttemptKey),
    Delegated {
        attempt: AttemptKey,
        handle: String,
    },
    DevicesAssigned {
        attempt: AttemptKey,
        #[serde(deserialize_with = "read_list::<_, _, MAX_DEVICES>")]
        devices: Vec<u32>,
    },
    Refused {
        attempt: AttemptKey,
        #[serde(deserialize_with = "read_refusal")]
        refusal: Refusal,
    },
    Started(AttemptKey),
    Running {
        attempt: AttemptKey,
        run_us: u64,
    },
    Progress {
        attempt: AttemptKey,
        permille: u16,
    },
    Output {
        attempt: AttemptKey,
        piece: Payload,
    },
    Completed {
        attempt: AttemptKey,
        run_us: u64,
        result: Payload,
        #[serde(with = "crate::field::digest")]
        digest: Digest,
        /// The result is this object, which was sent as a bulk transfer. `result` is then JSON that names it, for older
        /// schedulers.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        object: Option<ResultObject>,
    },
    Failed {
        attempt: AttemptKey,
        run_us: u64,
        error: String,
        retry: bool,
        /// The back end of the executor is unreachable. Older schedulers see a failure that may not occur on another
        /// worker.
        #[serde(rename = "unreached", default, skip_serializing_if = "std::ops::Not::not")]
        unreachable: bool,
        /// Older workers do not send it, and newer ones may have kinds that this build does not know: then `retry`
        /// decides.
        #[serde(default, skip_serializing_if = "is_unknown")]
        kind: FailureKind,
        /// The status that a back end answered with; `error` is the body. Older schedulers see only the body.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        status: Option<u16>,
        /// After how many seconds a busy back end asks to be called again.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        retry_after_s: Option<u32>,
    },
    TimedOut {
        attempt: AttemptKey,
        run_us: u64,
    },
    #[serde(rename = "away")]
    Unreachable {
        #[serde(deserialize_with = "read_list::<_, _, MAX_EXECUTORS>")]
        executors: Vec<Name>,
        /// Why the owner lets nothing new begin. Older schedulers see back ends that are unreachable, and so does this
        /// build if only newer ones know the reason.
        #[serde(
            default,
            skip_serializing_if = "Option::is_none",
            deserialize_with = "read_owner_reason"
        )]
        owner: Option<OwnerReason>,
    },
    Left {
        epoch: u64,
        #[serde(default)]
        lease: Option<LeaseId>,
    },
    Offered(Box<Offer>),
    NotOffered(AdvertId),
    OfferUnknown(OfferId),
    ReceiptIssued(Box<SignedReceipt>),
    Preempted {
        lease: LeaseId,
        epoch: u64,
        grace_us: u64,
    },
}

/// What a lease covers; see [`hypha_engine::Portion`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the engine's messages are documented there")]
pub struct Portion {
    pub cpu_milli: u64,
    pub memory_bytes: u64,
    pub storage_bytes: u64,
    /// For each GPU, its memory and its share.
    #[serde(default, deserialize_with = "read_list::<_, _, MAX_DEVICES>")]
    pub devices: Vec<(u64, u32)>,
    #[serde(default, deserialize_with = "read_list::<_, _, MAX_EXECUTORS>")]
    pub slots: Vec<u32>,
}

/// A result that is too large for a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResultObject {
    /// The digest of its bytes.
    #[serde(with = "crate::field::digest")]
    pub digest: Digest,
    /// How many bytes it has.
    pub bytes: u64,
}

/// An attempt with its token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub struct AttemptKey {
    /// The task.
    pub task: TaskId,
    /// The number of the attempt.
    pub number: u32,
    /// The token.
    pub fence: u64,
}

/// A dispatched attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the engine's messages are documented there")]
pub struct DispatchBody {
    pub lease: LeaseId,
    pub epoch: u64,
    pub attempt: AttemptKey,
    pub timeout_us: u64,
    pub requirement: Requirement,
    pub input: Payload,
    #[serde(default)]
    pub metadata: Metadata,
    #[serde(default)]
    pub tenant: Option<Name>,
    #[serde(default)]
    pub form: InputKind,
    #[serde(default)]
    pub stream: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub interactive: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume: Option<String>,
}

impl Message for Orders {
    const NAME: &'static str = "message to a worker";
    const MAX_BYTES: usize = MAX_FRAME_BYTES;

    fn validate(&self) -> Result<(), InvalidField> {
        at_most("orders", self.orders.len() + self.skipped, MAX_MESSAGES)?;
        self.orders.iter().try_for_each(|order| match order {
            Order::Dispatch(work) => {
                at_most("input", work.input.bytes().len(), MAX_PAYLOAD_BYTES)?;
                at_most("resume", work.resume.as_ref().map_or(0, String::len), MAX_HANDLE_BYTES)
            }
            Order::Advertise(advert) => advert.validate(),
            Order::ReceiptCountersigned(signed) => signed.validate(),
            _ => Ok(()),
        })
    }

    fn skipped(&self) -> usize {
        self.skipped
    }
}

impl Message for Reports {
    const NAME: &'static str = "message to a scheduler";
    const MAX_BYTES: usize = MAX_FRAME_BYTES;

    fn validate(&self) -> Result<(), InvalidField> {
        at_most("reports", self.reports.len() + self.skipped, MAX_MESSAGES)?;
        self.reports.iter().try_for_each(|report| match report {
            Report::LeaseGranted { holding, portion, .. }
            | Report::Alive { holding, portion, .. } => {
                let (devices, slots) =
                    portion.as_ref().map_or((0, 0), |part| (part.devices.len(), part.slots.len()));
                at_most("devices", devices, MAX_DEVICES)?;
                at_most("slots", slots, MAX_EXECUTORS)?;
                at_most("holding", holding.len(), MAX_HOLDING)
            }
            Report::Output { piece: bytes, .. } | Report::Completed { result: bytes, .. } => {
                at_most("result", bytes.bytes().len(), MAX_PAYLOAD_BYTES)
            }
            Report::Unreachable { executors, .. } => {
                at_most("executors", executors.len(), MAX_EXECUTORS)
            }
            Report::DevicesAssigned { devices, .. } => {
                at_most("devices", devices.len(), MAX_DEVICES)
            }
            Report::Failed { error, .. } => at_most("error", error.len(), MAX_ERROR_BYTES),
            Report::Delegated { handle, .. } => at_most("handle", handle.len(), MAX_HANDLE_BYTES),
            Report::Offered(offer) => offer.validate(),
            Report::ReceiptIssued(signed) => signed.validate(),
            _ => Ok(()),
        })
    }

    fn skipped(&self) -> usize {
        self.skipped
    }
}

/// Not sent: `retry` says as much.
fn is_unknown(kind: &FailureKind) -> bool {
    *kind == FailureKind::Unknown
}

#[derive(Deserialize)]
struct RawOrders {
    #[serde(deserialize_with = "read_opaque_list::<_, _, MAX_MESSAGES>")]
    orders: OpaqueList<Order>,
}

#[derive(Deserialize)]
struct RawReports {
    #[serde(deserialize_with = "read_opaque_list::<_, _, MAX_MESSAGES>")]
    reports: OpaqueList<Report>,
}

impl From<RawOrders> for Orders {
    fn from(raw: RawOrders) -> Orders {
        Orders { orders: raw.orders.read, skipped: raw.orders.skipped }
    }
}

impl From<RawReports> for Reports {
    fn from(raw: RawReports) -> Reports {
        Reports { reports: raw.reports.read, skipped: raw.reports.skipped }
    }
}

#[derive(Deserialize)]
struct RawRefusal {
    kind: RawKind,
    #[serde(default)]
    needed: u64,
    #[serde(default)]
    present: u64,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum RawKind {
    Known(RefusalKind),
    Newer(IgnoredAny),
}

/// A reason that only newer workers have counts as "not available": skipping the message would leave the scheduler
/// waiting for a response.
fn read_refusal<'de, D: Deserializer<'de>>(reader: D) -> Result<Refusal, D::Error> {
    let raw = RawRefusal::deserialize(reader)?;
    Ok(match raw.kind {
        RawKind::Known(kind) => Refusal { kind, needed: raw.needed, present: raw.present },
        RawKind::Newer(IgnoredAny) => Refusal::without_amount(RefusalKind::Unavailable),
    })
}

#[derive(Deserialize)]
#[serde(untagged)]
enum RawOwnerReason {
    Known(OwnerReason),
    Newer(IgnoredAny),
}

fn read_owner_reason<'de, D: Deserializer<'de>>(
    reader: D,
) -> Result<Option<OwnerReason>, D::Error> {
    Ok(match Option::deserialize(reader)? {
        Some(RawOwnerReason::Known(reason)) => Some(reason),
        Some(RawOwnerReason::Newer(IgnoredAny)) | None => None,
    })
}
