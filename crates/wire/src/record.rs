//! What nodes publish about themselves, in the directory and by gossip, and how it is signed.
//!
//! Relays of a record have no connection to its author, so a record is sent inside a [`SignedRecord`] that carries the
//! author's certificates. This crate checks shapes; the network checks signatures and chains.

use hypha_model::amount::MAX_BYTES;
use hypha_model::{self as model, AdvertId, WorkerId};
use serde::{Deserialize, Serialize};

use crate::check::{MAX_ADDRESSES, addresses, blob, name, peer, within};
use crate::codec::{InvalidField, Message};
use crate::field::{self, read_blobs, write_blobs};
use crate::market::Advert;
use crate::worker::Worker;

/// The shortest TTL of a record: below it, a directory would be busy with refreshes only.
pub const MIN_TTL_MS: u32 = 1_000;
/// The longest TTL of a record: a vanished node is forgotten within the hour.
pub const MAX_TTL_MS: u32 = 3_600_000;
/// Certificates above a signature: the node's, its organisation's, and the root's if it is sent too.
pub const MAX_CHAIN: usize = 3;
/// Bytes of one certificate: ours take about 700, with many names twice that.
pub const MAX_CERTIFICATE_BYTES: usize = 4 << 10;
/// Bytes of an Ed25519 signature.
pub const SIGNATURE_BYTES: usize = 64;

/// A record with its author's signature and certificates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedRecord {
    /// The kind of the payload.
    pub kind: SignedKind,
    /// The encoded record, exactly as it was signed.
    #[serde(with = "field::bytes")]
    pub payload: Vec<u8>,
    /// The author's certificates in DER, the author's own first.
    #[serde(serialize_with = "write_blobs", deserialize_with = "read_blobs::<_, MAX_CHAIN>")]
    pub chain: Vec<Vec<u8>>,
    /// Over the kind's context and the payload.
    #[serde(with = "field::bytes")]
    pub signature: Vec<u8>,
}

/// The kinds of signed records. One that this build does not know cannot be checked, so it is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SignedKind {
    /// A [`WorkerRecord`].
    Worker,
    /// A [`DatasetRecord`].
    Dataset,
    /// A [`Farewell`].
    Farewell,
    /// An [`AdvertRecord`].
    Advert,
    /// An [`AdvertClosedRecord`].
    AdvertClosed,
}

impl SignedKind {
    /// The context that is signed together with the payload, so that no signature is valid for another kind.
    pub const fn context(self) -> &'static str {
        match self {
            SignedKind::Worker => "hypha/1/worker-record",
            SignedKind::Dataset => "hypha/1/dataset-record",
            SignedKind::Farewell => "hypha/1/farewell",
            SignedKind::Advert => "hypha/1/advert",
            SignedKind::AdvertClosed => "hypha/1/advert-closed",
        }
    }
}

impl Message for SignedRecord {
    const NAME: &'static str = "signed record";
    /// The largest record and a chain of ordinary certificates.
    const MAX_BYTES: usize = 24 << 10;

    fn validate(&self) -> Result<(), InvalidField> {
        blob("payload", &self.payload, WorkerRecord::MAX_BYTES)?;
        within("chain", self.chain.len() as u64, 1..=MAX_CHAIN as u64)?;
        for certificate in &self.chain {
            blob("chain", certificate, MAX_CERTIFICATE_BYTES)?;
        }
        let whole = SIGNATURE_BYTES as u64;
        within("signature", self.signature.len() as u64, whole..=whole)
    }
}

/// What a worker offers, and its addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerRecord {
    /// The author's peer id.
    #[serde(with = "field::bytes")]
    pub peer: Vec<u8>,
    /// The author's organisation.
    pub organisation: String,
    /// Of two records of one author, the one with the higher sequence is valid.
    pub sequence: u64,
    /// When it was made, by the author's clock.
    pub issued_unix_ms: u64,
    /// How long it is valid from then.
    pub ttl_ms: u32,
    /// The worker that is offered.
    pub worker: Worker,
    /// Its addresses, as multiaddresses in bytes.
    #[serde(
        default,
        serialize_with = "write_blobs",
        deserialize_with = "read_blobs::<_, MAX_ADDRESSES>"
    )]
    pub addresses: Vec<Vec<u8>>,
    /// Its addresses for bulk transfers.
    #[serde(
        default,
        serialize_with = "write_blobs",
        deserialize_with = "read_blobs::<_, MAX_ADDRESSES>"
    )]
    pub bulk_addresses: Vec<Vec<u8>>,
}

impl WorkerRecord {
    /// The worker as the model's type, with this `id`.
    pub fn worker(&self, id: WorkerId) -> Result<model::Worker, InvalidField> {
        self.worker.to_model(id)
    }
}

impl Message for WorkerRecord {
    const NAME: &'static str = "worker record";
    /// Some hundred models by name; a worker with more lists those that it prefers to serve.
    const MAX_BYTES: usize = 16 << 10;

    fn validate(&self) -> Result<(), InvalidField> {
        peer(&self.peer)?;
        name("organisation", &self.organisation)?;
        ttl(self.ttl_ms)?;
        self.worker.validate()?;
        addresses("addresses", &self.addresses)?;
        addresses("bulk_addresses", &self.bulk_addresses)
    }
}

/// A data set, and the addresses of its provider.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatasetRecord {
    /// The author's peer id.
    #[serde(with = "field::bytes")]
    pub peer: Vec<u8>,
    /// The author's organisation.
    pub organisation: String,
    /// Of two records of one author for one name, the one with the higher sequence is valid.
    pub sequence: u64,
    /// When it was made, by the author's clock.
    pub issued_unix_ms: u64,
    /// How long it is valid from then.
    pub ttl_ms: u32,
    /// The data set's name.
    pub name: String,
    /// How many slices it has, where known.
    #[serde(default)]
    pub slices: Option<u64>,
    /// How large it is, where known.
    #[serde(default)]
    pub bytes: Option<u64>,
    /// The author's addresses, as multiaddresses in bytes.
    #[serde(
        default,
        serialize_with = "write_blobs",
        deserialize_with = "read_blobs::<_, MAX_ADDRESSES>"
    )]
    pub addresses: Vec<Vec<u8>>,
    /// The author's addresses for bulk transfers.
    #[serde(
        default,
        serialize_with = "write_blobs",
        deserialize_with = "read_blobs::<_, MAX_ADDRESSES>"
    )]
    pub bulk_addresses: Vec<Vec<u8>>,
}

impl Message for DatasetRecord {
    const NAME: &'static str = "data set record";
    /// As much as a worker's: it is mostly addresses.
    const MAX_BYTES: usize = 16 << 10;

    fn validate(&self) -> Result<(), InvalidField> {
        peer(&self.peer)?;
        name("organisation", &self.organisation)?;
        ttl(self.ttl_ms)?;
        name("name", &self.name)?;
        within("bytes", self.bytes.unwrap_or(0), 0..=MAX_BYTES)?;
        addresses("addresses", &self.addresses)?;
        addresses("bulk_addresses", &self.bulk_addresses)
    }
}

/// Published by a node that leaves: its records with a lower sequence number are void.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Farewell {
    /// The author's peer id.
    #[serde(with = "field::bytes")]
    pub peer: Vec<u8>,
    /// Above that of every record that it voids.
    pub sequence: u64,
    /// When it was made, by the author's clock.
    pub issued_unix_ms: u64,
}

impl Message for Farewell {
    const NAME: &'static str = "farewell";
    /// A peer id, two numbers and their names, several times over.
    const MAX_BYTES: usize = 512;

    fn validate(&self) -> Result<(), InvalidField> {
        peer(&self.peer)
    }
}

/// A scheduler's call for workers, for all of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdvertRecord {
    /// The author's peer id.
    #[serde(with = "field::bytes")]
    pub peer: Vec<u8>,
    /// The author's organisation.
    pub organisation: String,
    /// When it was made, by the author's clock. It is valid for its window from then.
    pub issued_unix_ms: u64,
    /// The advert.
    pub advert: Advert,
    /// Where offers reach the author, as multiaddresses in bytes.
    #[serde(
        default,
        serialize_with = "write_blobs",
        deserialize_with = "read_blobs::<_, MAX_ADDRESSES>"
    )]
    pub addresses: Vec<Vec<u8>>,
}

impl Message for AdvertRecord {
    const NAME: &'static str = "advert";
    /// Eight roles with the longest names take 9 KB, and sixteen addresses some more.
    const MAX_BYTES: usize = 16 << 10;

    fn validate(&self) -> Result<(), InvalidField> {
        peer(&self.peer)?;
        name("organisation", &self.organisation)?;
        self.advert.validate()?;
        addresses("addresses", &self.addresses)
    }
}

/// A scheduler wants no more offers for an advert.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdvertClosedRecord {
    /// The author's peer id.
    #[serde(with = "field::bytes")]
    pub peer: Vec<u8>,
    /// When it was made, by the author's clock.
    pub issued_unix_ms: u64,
    /// The advert.
    pub advert: AdvertId,
}

impl Message for AdvertClosedRecord {
    const NAME: &'static str = "end of an advert";
    /// A peer id, an id, a number and their names, several times over.
    const MAX_BYTES: usize = 512;

    fn validate(&self) -> Result<(), InvalidField> {
        peer(&self.peer)
    }
}

fn ttl(ttl_ms: u32) -> Result<(), InvalidField> {
    within("ttl_ms", ttl_ms, u64::from(MIN_TTL_MS)..=u64::from(MAX_TTL_MS))
}
