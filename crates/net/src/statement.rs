//! What a node publishes of itself: encoded, signed, and verified.
//!
//! A statement reaches most readers through peers that may lie, so it is not used before the author's
//! chain, role, signature, identity and age were checked.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hypha_model::NodeRole;
use hypha_pki::{Certificate, CertificateRejection, Pki, verify_signature};
use hypha_wire::record::{
    AdvertClosedRecord, AdvertRecord, DatasetRecord, Farewell, SignedKind, SignedRecord,
    WorkerRecord,
};
use hypha_wire::{DecodeError, EncodeError, Message};
use libp2p::PeerId;
use rustls::pki_types::CertificateDer;
use thiserror::Error;

/// How far the clocks of two nodes may differ before they reject each other's records. Certificates need clocks
/// that agree about as well.
const MAX_CLOCK_OFFSET: Duration = Duration::from_secs(120);

/// How old a farewell or the end of an advert may be: they have no TTL, and a replayed one must have no effect.
const MAX_FAREWELL_AGE: Duration = Duration::from_secs(60);

/// Statements whose signature was verified and need not be again: each arrives from several servers, many times.
const MAX_CACHED_STATEMENTS: usize = 8_192;

/// A statement by type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Statement {
    Worker(WorkerRecord),
    Dataset(DatasetRecord),
    Farewell(Farewell),
    Advert(AdvertRecord),
    AdvertClosed(AdvertClosedRecord),
}

/// A statement whose author is verified.
#[derive(Debug)]
pub(crate) struct VerifiedStatement {
    pub(crate) author: Certificate,
    pub(crate) statement: Statement,
}

/// Why a statement is rejected.
#[derive(Debug, Error)]
pub(crate) enum StatementError {
    #[error("its author: {0}")]
    Author(#[from] CertificateRejection),
    #[error("{0}")]
    Unreadable(#[from] DecodeError),
    #[error("a {role} may not publish this")]
    Role { role: NodeRole },
    #[error("its signature is wrong")]
    Signature,
    #[error("it names another peer than its author")]
    Identity,
    #[error("it is {0} s old or ahead, which is too far from this node's clock")]
    Age(u64),
}

/// Signs `record` with this node's key.
pub(crate) fn sign<M: Message>(
    pki: &Pki,
    kind: SignedKind,
    record: &M,
) -> Result<SignedRecord, EncodeError> {
    let payload = hypha_wire::encode(record)?;
    Ok(SignedRecord {
        signature: pki.sign(kind.context(), &payload),
        chain: pki.own_chain().iter().map(|one| one.to_vec()).collect(),
        kind,
        payload,
    })
}

/// Verifies statements, and caches which ones it has verified.
pub(crate) struct Verifier {
    verified_cache: HashMap<[u8; 32], Arc<VerifiedStatement>>,
}

impl Verifier {
    pub(crate) fn new() -> Verifier {
        Verifier { verified_cache: HashMap::new() }
    }

    /// Certificates have changed: everything is verified again.
    pub(crate) fn clear_cache(&mut self) {
        self.verified_cache.clear();
    }

    pub(crate) fn verify(
        &mut self,
        pki: &Pki,
        signed: &SignedRecord,
    ) -> Result<Arc<VerifiedStatement>, StatementError> {
        let digest = digest(signed);
        let verified = match self.verified_cache.get(&digest) {
            Some(verified) => verified.clone(),
            None => {
                let verified = Arc::new(check(pki, signed)?);
                if self.verified_cache.len() >= MAX_CACHED_STATEMENTS {
                    self.verified_cache.clear();
                }
                self.verified_cache.insert(digest, verified.clone());
                verified
            }
        };
        verified.statement.check_age(unix_ms())?;
        Ok(verified)
    }
}

fn check(pki: &Pki, signed: &SignedRecord) -> Result<VerifiedStatement, StatementError> {
    let chain: Vec<_> =
        signed.chain.iter().map(|der| CertificateDer::from(der.as_slice())).collect();
    let author = pki.verify(&chain, SystemTime::now())?;
    let wanted = match signed.kind {
        SignedKind::Worker => Some(NodeRole::Worker),
        SignedKind::Dataset => Some(NodeRole::Data),
        SignedKind::Advert | SignedKind::AdvertClosed => Some(NodeRole::Scheduler),
        SignedKind::Farewell => None,
    };
    if wanted.is_some_and(|role| role != author.role) {
        return Err(StatementError::Role { role: author.role });
    }
    if !verify_signature(&author, signed.kind.context(), &signed.payload, &signed.signature) {
        return Err(StatementError::Signature);
    }
    let statement = match signed.kind {
        SignedKind::Worker => Statement::Worker(hypha_wire::decode(&signed.payload)?),
        SignedKind::Dataset => Statement::Dataset(hypha_wire::decode(&signed.payload)?),
        SignedKind::Farewell => Statement::Farewell(hypha_wire::decode(&signed.payload)?),
        SignedKind::Advert => Statement::Advert(hypha_wire::decode(&signed.payload)?),
        SignedKind::AdvertClosed => Statement::AdvertClosed(hypha_wire::decode(&signed.payload)?),
    };
    let (peer, organisation) = match &statement {
        Statement::Worker(record) => (&record.peer, Some(&record.organisation)),
        Statement::Dataset(record) => (&record.peer, Some(&record.organisation)),
        Statement::Farewell(record) => (&record.peer, None),
        Statement::Advert(record) => (&record.peer, Some(&record.organisation)),
        Statement::AdvertClosed(record) => (&record.peer, None),
    };
    if *peer != author.peer_id.to_bytes()
        || organisation.is_some_and(|organisation| *organisation != author.organisation)
    {
        return Err(StatementError::Identity);
    }
    Ok(VerifiedStatement { author, statement })
}

impl Statement {
    pub(crate) fn sequence(&self) -> u64 {
        match self {
            Statement::Worker(record) => record.sequence,
            Statement::Dataset(record) => record.sequence,
            Statement::Farewell(record) => record.sequence,
            // Never stored, so they replace nothing.
            Statement::Advert(_) | Statement::AdvertClosed(_) => 0,
        }
    }

    /// How long it is valid in all.
    pub(crate) fn ttl(&self) -> Duration {
        match self {
            Statement::Worker(record) => Duration::from_millis(record.ttl_ms.into()),
            Statement::Dataset(record) => Duration::from_millis(record.ttl_ms.into()),
            Statement::Farewell(_) | Statement::AdvertClosed(_) => MAX_FAREWELL_AGE,
            // Nobody waits for an offer after the window.
            Statement::Advert(record) => Duration::from_micros(record.advert.window_us),
        }
    }

    /// Whether it may still be valid, if both clocks are about right.
    ///
    /// Normally a record expires by its holder's own count of its TTL. This bounds how long a lying holder
    /// can keep it alive.
    fn check_age(&self, now_ms: u64) -> Result<(), StatementError> {
        let issued_ms = match self {
            Statement::Worker(record) => record.issued_unix_ms,
            Statement::Dataset(record) => record.issued_unix_ms,
            Statement::Farewell(record) => record.issued_unix_ms,
            Statement::Advert(record) => record.issued_unix_ms,
            Statement::AdvertClosed(record) => record.issued_unix_ms,
        };
        let offset = MAX_CLOCK_OFFSET.as_millis() as u64;
        let oldest = self.ttl().as_millis() as u64 + offset;
        let (ahead, old) = (issued_ms.saturating_sub(now_ms), now_ms.saturating_sub(issued_ms));
        if ahead > offset || old > oldest {
            return Err(StatementError::Age(ahead.max(old) / 1_000));
        }
        Ok(())
    }
}

/// A digest of exactly these bytes by this author.
fn digest(signed: &SignedRecord) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(signed.kind.context().as_bytes());
    for part in signed.chain.iter().chain([&signed.payload, &signed.signature]) {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    *hasher.finalize().as_bytes()
}

/// The wall clock.
pub(crate) fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// The peer that a record describes; its author was verified to be it.
pub(crate) fn author_of(verified: &VerifiedStatement) -> PeerId {
    verified.author.peer_id
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL_MS: u32 = 30_000;

    fn record(issued_unix_ms: u64) -> Statement {
        Statement::Dataset(DatasetRecord {
            peer: PeerId::random().to_bytes(),
            organisation: "acme".into(),
            sequence: 1,
            issued_unix_ms,
            ttl_ms: TTL_MS,
            name: "wiki".into(),
            slices: None,
            bytes: None,
            addresses: Vec::new(),
            bulk_addresses: Vec::new(),
        })
    }

    fn farewell(issued_unix_ms: u64) -> Statement {
        Statement::Farewell(Farewell { peer: Vec::new(), sequence: 1, issued_unix_ms })
    }

    #[test]
    fn a_statement_is_valid_for_its_ttl_and_clock_offset() {
        let now = 1_800_000_000_000;
        let offset = MAX_CLOCK_OFFSET.as_millis() as u64;
        assert_eq!(record(now).ttl(), Duration::from_millis(TTL_MS.into()));
        assert_eq!(farewell(now).ttl(), MAX_FAREWELL_AGE);
        let statements: [fn(u64) -> Statement; 2] = [record, farewell];
        for statement in statements {
            let life = statement(now).ttl().as_millis() as u64;
            let counts = |issued: u64| statement(issued).check_age(now).is_ok();
            assert!(counts(now));
            assert!(counts(now - life - offset) && !counts(now - life - offset - 1));
            assert!(counts(now + offset) && !counts(now + offset + 1));
            // Values that no clock shows.
            assert!(!counts(0) && !counts(u64::MAX));
        }
    }

    #[test]
    fn different_statements_have_different_digests() {
        let signed = SignedRecord {
            kind: SignedKind::Worker,
            payload: vec![1, 2, 3],
            chain: vec![vec![4, 5], vec![6]],
            signature: vec![7; 64],
        };
        let changes: [fn(&mut SignedRecord); 5] = [
            |signed| signed.kind = SignedKind::Dataset,
            |signed| signed.payload[0] ^= 1,
            |signed| signed.signature[63] ^= 1,
            |signed| signed.chain.truncate(1),
            // The same bytes, split differently.
            |signed| signed.chain = vec![vec![4], vec![5, 6]],
        ];
        for change in changes {
            let mut other = signed.clone();
            change(&mut other);
            assert_ne!(digest(&signed), digest(&other), "{other:?}");
        }
    }
}
