//! Adverts, offers and receipts on the wire, with bounds on every list and text. What they mean is documented with the
//! market's own types.
//!
//! The highest price that a scheduler pays is in none of them: it stays with its scheduler.

mod convert;

use hypha_model::amount::{MAX_BYTES, MAX_MILLI, MAX_SECONDS};
use hypha_model::resource::WHOLE_GPU;
use hypha_model::{
    AdvertId, LeaseId, Money, Name, OfferId, Priority, Requirement, SchedulerId, WorkerId,
};
use serde::{Deserialize, Serialize};

use crate::check::{at_most, blob, within};
use crate::codec::InvalidField;
use crate::dispatch::Portion;
use crate::field::{self, read_list};
use crate::worker::{MAX_DEVICES, MAX_EXECUTORS, Worker};

/// Roles of an advert or an offer: a job has two, and a few more are conceivable.
pub const MAX_ROLES: usize = 8;
/// Members that one role may want.
pub const MAX_COUNT: u32 = 4_096;
/// The longest time for which an advert is open.
pub const MAX_WINDOW_US: u64 = 30_000_000;
/// Bytes of a public key or of a signature: 36 and 64 for Ed25519, and room for other kinds of keys.
pub const MAX_SIGNATURE_BYTES: usize = 128;
/// The highest price of an hour, as the model parses prices.
const MAX_PRICE_MICROS: u64 = Money::MAX_WRITTEN_UNITS * 1_000_000;
/// The longest time in a message.
const MAX_SPAN_US: u64 = MAX_SECONDS * 1_000_000;

/// A scheduler's call for workers; see [`hypha_engine::Advert`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the market's types are documented there")]
pub struct Advert {
    pub id: AdvertId,
    #[serde(deserialize_with = "read_list::<_, _, MAX_ROLES>")]
    pub roles: Vec<WantedRole>,
    #[serde(default)]
    pub priority: Priority,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_preemptible: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_replacement: bool,
    #[serde(default)]
    pub waited_us: u64,
    pub window_us: u64,
    pub offers_wanted: u32,
    pub lease_ttl_us: u64,
}

/// A role of an advert.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the market's types are documented there")]
pub struct WantedRole {
    pub name: Name,
    pub requirement: Box<Requirement>,
    pub count: u32,
    pub minimum: u32,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub wants_all: bool,
    pub bid_micros: u64,
}

/// A worker's offer for an advert; see [`hypha_engine::Offer`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the market's types are documented there")]
pub struct Offer {
    pub id: OfferId,
    pub advert: AdvertId,
    /// The worker's id. Its peer's certificate decides whether it is true.
    pub worker_id: WorkerId,
    pub worker: Worker,
    pub epoch: u64,
    #[serde(deserialize_with = "read_list::<_, _, MAX_ROLES>")]
    pub roles: Vec<OfferedRole>,
    pub reserved_for_us: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speed_milli: Option<u32>,
    #[serde(default)]
    pub backlog_us: u64,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_relayed: bool,
}

/// What is offered for one role.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the market's types are documented there")]
pub struct OfferedRole {
    pub role: u16,
    pub price_micros: u64,
    pub portion: Portion,
}

/// What a lease has cost so far, signed; see [`hypha_engine::SignedReceipt`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the market's types are documented there")]
pub struct SignedReceipt {
    pub lease: LeaseId,
    pub worker_id: WorkerId,
    pub scheduler_id: SchedulerId,
    pub organisation: Name,
    pub portion: Portion,
    pub price_micros: u64,
    pub held_us: u64,
    pub number: u32,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_final: bool,
    pub worker: Signature,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduler: Option<Signature>,
}

/// A signature with its public key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the market's types are documented there")]
pub struct Signature {
    #[serde(with = "field::bytes")]
    pub key: Vec<u8>,
    #[serde(with = "field::bytes")]
    pub bytes: Vec<u8>,
}

impl Advert {
    pub(crate) fn validate(&self) -> Result<(), InvalidField> {
        within("roles", self.roles.len() as u64, 1..=MAX_ROLES as u64)?;
        for role in &self.roles {
            within("count", role.count, 1..=u64::from(MAX_COUNT))?;
            within("minimum", role.minimum, 0..=u64::from(role.count))?;
            price("bid_micros", role.bid_micros)?;
        }
        span("waited_us", self.waited_us)?;
        within("window_us", self.window_us, 1..=MAX_WINDOW_US)?;
        span("lease_ttl_us", self.lease_ttl_us)
    }
}

impl Offer {
    pub(crate) fn validate(&self) -> Result<(), InvalidField> {
        self.worker.validate()?;
        within("roles", self.roles.len() as u64, 1..=MAX_ROLES as u64)?;
        for offered in &self.roles {
            within("role", offered.role, 0..=MAX_ROLES as u64 - 1)?;
            price("price_micros", offered.price_micros)?;
            portion(&offered.portion)?;
        }
        span("reserved_for_us", self.reserved_for_us)?;
        span("backlog_us", self.backlog_us)
    }
}

impl SignedReceipt {
    pub(crate) fn validate(&self) -> Result<(), InvalidField> {
        portion(&self.portion)?;
        price("price_micros", self.price_micros)?;
        span("held_us", self.held_us)?;
        for signature in [Some(&self.worker), self.scheduler.as_ref()].into_iter().flatten() {
            blob("key", &signature.key, MAX_SIGNATURE_BYTES)?;
            blob("signature", &signature.bytes, MAX_SIGNATURE_BYTES)?;
        }
        Ok(())
    }
}

fn portion(portion: &Portion) -> Result<(), InvalidField> {
    within("cpu_milli", portion.cpu_milli, 0..=MAX_MILLI)?;
    within("memory_bytes", portion.memory_bytes, 0..=MAX_BYTES)?;
    within("storage_bytes", portion.storage_bytes, 0..=MAX_BYTES)?;
    at_most("devices", portion.devices.len(), MAX_DEVICES)?;
    for (memory_bytes, milli_gpu) in &portion.devices {
        within("device memory_bytes", *memory_bytes, 0..=MAX_BYTES)?;
        within("milli_gpu", *milli_gpu, 0..=u64::from(WHOLE_GPU))?;
    }
    at_most("slots", portion.slots.len(), MAX_EXECUTORS)
}

fn price(field: &'static str, micros: u64) -> Result<(), InvalidField> {
    within(field, micros, 0..=MAX_PRICE_MICROS)
}

fn span(field: &'static str, micros: u64) -> Result<(), InvalidField> {
    within(field, micros, 0..=MAX_SPAN_US)
}
