//! Signs receipts with the node's key, and verifies those of others.

use hypha_engine::{Notary, Signature, Signer};
use hypha_net::{scheduler_id, worker_id};
use hypha_pki::{SigningKey, verify_by_key};

/// What a signature is for, so that none is valid for anything else.
const CONTEXT: &str = "hypha/1/receipt";

/// See the module documentation.
///
/// A signature is verified with the public key beside it: the ids of workers and schedulers derive from their keys, so a
/// receipt can be checked long after the certificates have expired.
pub(crate) struct KeyNotary {
    key: SigningKey,
}

impl KeyNotary {
    pub(crate) fn new(key: SigningKey) -> KeyNotary {
        KeyNotary { key }
    }
}

impl Notary for KeyNotary {
    fn sign(&self, bytes: &[u8]) -> Signature {
        Signature { key: self.key.public_key(), bytes: self.key.sign(CONTEXT, bytes) }
    }

    fn verify(&self, signer: Signer, bytes: &[u8], signature: &Signature) -> bool {
        let Some(peer) = verify_by_key(&signature.key, CONTEXT, bytes, &signature.bytes) else {
            return false;
        };
        match signer {
            Signer::Worker(id) => id == worker_id(&peer),
            Signer::Scheduler(id) => id == scheduler_id(&peer),
        }
    }
}

#[cfg(test)]
mod tests {
    use hypha_engine::{Receipt, SignedReceipt};
    use hypha_model::{LeaseId, Money, Rng, Span, Time};
    use hypha_net::PeerId;

    use super::*;

    fn node() -> (KeyNotary, PeerId) {
        let key = SigningKey::generate();
        let peer = verify_by_key(&key.public_key(), CONTEXT, b"", &key.sign(CONTEXT, b"")).unwrap();
        (KeyNotary::new(key), peer)
    }

    #[test]
    fn a_receipt_counts_only_with_the_signatures_of_its_worker_and_its_scheduler() {
        let ((by_worker, worker), (by_scheduler, scheduler)) = (node(), node());
        let (by_other, _) = node();
        let receipt = Receipt {
            lease: LeaseId::new(Time::ZERO, &mut Rng::new(1)),
            worker: worker_id(&worker),
            scheduler: scheduler_id(&scheduler),
            organisation: "acme".parse().unwrap(),
            portion: Default::default(),
            price: Money::from_micros(1_000),
            held: Span::from_secs(10),
            number: 1,
            is_final: true,
        };
        let sign = |worker: &KeyNotary, scheduler: &KeyNotary| {
            let signed = SignedReceipt::sign(receipt.clone(), worker);
            SignedReceipt { scheduler: Some(scheduler.sign(&receipt.bytes())), ..signed }
        };
        // Anyone can check it.
        let counts = |signed: &SignedReceipt| signed.is_countersigned(&by_other);
        let genuine = sign(&by_worker, &by_scheduler);
        assert!(counts(&genuine));
        assert!(!counts(&sign(&by_other, &by_scheduler)), "another worker's signature");
        assert!(!counts(&sign(&by_worker, &by_other)), "another scheduler's signature");
        assert!(!counts(&sign(&by_worker, &by_worker)), "the worker signed for both");

        let mut dearer = genuine.clone();
        dearer.receipt.price = Money::from_micros(1_001);
        assert!(!counts(&dearer), "a changed receipt");
        let mut other_key = genuine.clone();
        other_key.worker.key = by_other.sign(b"").key;
        assert!(!counts(&other_key), "a key that does not belong to the signature");
        let mut no_key = genuine.clone();
        no_key.worker.key.clear();
        assert!(!counts(&no_key), "no key");
        let mut cut = genuine;
        cut.worker.bytes.truncate(63);
        assert!(!counts(&cut), "a signature that was cut");
    }

    #[test]
    fn a_signature_for_something_else_is_none_for_a_receipt() {
        let key = SigningKey::generate();
        let notary = KeyNotary::new(key.clone());
        let peer = verify_by_key(&key.public_key(), CONTEXT, b"", &key.sign(CONTEXT, b"")).unwrap();
        let signer = Signer::Worker(worker_id(&peer));
        let signature =
            |context| Signature { key: key.public_key(), bytes: key.sign(context, b"receipt") };
        assert!(notary.verify(signer, b"receipt", &signature(CONTEXT)));
        assert!(!notary.verify(signer, b"receipt", &signature("hypha/1/worker-record")));
    }
}
