//! Signatures with a certificate's key, each for one purpose.

use libp2p_identity::{PeerId, PublicKey, ed25519};

use crate::Certificate;

/// Separates our signatures from those that TLS and libp2p make with the same key: neither signs
/// anything with this prefix.
const DOMAIN: &[u8] = b"hypha signature v1\0";

/// Signs `payload` for the purpose `context`.
pub(crate) fn sign(key: &ed25519::Keypair, context: &str, payload: &[u8]) -> Vec<u8> {
    key.sign(&message(context, payload))
}

/// The key of a node, for signatures that outlive its certificate. Clones share it.
#[derive(Clone)]
pub struct SigningKey(ed25519::Keypair);

impl SigningKey {
    pub(crate) fn new(key: ed25519::Keypair) -> SigningKey {
        SigningKey(key)
    }

    /// A new key.
    pub fn generate() -> SigningKey {
        SigningKey(ed25519::Keypair::generate())
    }

    /// The public key, as [`verify_by_key`] reads it.
    pub fn public_key(&self) -> Vec<u8> {
        PublicKey::from(self.0.public()).encode_protobuf()
    }

    /// Signs `payload` for the one purpose that `context` names.
    pub fn sign(&self, context: &'static str, payload: &[u8]) -> Vec<u8> {
        sign(&self.0, context, payload)
    }
}

impl std::fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SigningKey")
    }
}

/// The node that signed `payload` for the purpose `context`, if the signature is by this public key. Whether the node has
/// or had a certificate is another question.
pub fn verify_by_key(
    public_key: &[u8],
    context: &str,
    payload: &[u8],
    signature: &[u8],
) -> Option<PeerId> {
    let key = PublicKey::try_decode_protobuf(public_key).ok()?;
    key.verify(&message(context, payload), signature).then(|| key.to_peer_id())
}

/// Whether the holder of `certificate` signed `payload` for the purpose `context`.
pub fn verify_signature(
    certificate: &Certificate,
    context: &str,
    payload: &[u8],
    signature: &[u8],
) -> bool {
    certificate.public_key.verify(&message(context, payload), signature)
}

/// The length before the context keeps `("ab", "c")` and `("a", "bc")` apart.
fn message(context: &str, payload: &[u8]) -> Vec<u8> {
    let length = (context.len() as u64).to_be_bytes();
    [DOMAIN, &length, context.as_bytes(), payload].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::SystemTime;

    #[test]
    fn a_signature_is_for_one_purpose_and_one_payload() {
        let key = ed25519::Keypair::generate();
        let public_key = libp2p_identity::PublicKey::from(key.public());
        let certificate = Certificate {
            role: hypha_model::NodeRole::Worker,
            organisation: "acme".to_owned(),
            names: Vec::new(),
            peer_id: public_key.to_peer_id(),
            public_key,
            serial: String::new(),
            not_before: SystemTime::UNIX_EPOCH,
            not_after: SystemTime::UNIX_EPOCH,
        };
        let signature = sign(&key, "record", b"payload");
        let holds = |context: &str, payload: &[u8], signature: &[u8]| {
            verify_signature(&certificate, context, payload, signature)
        };
        assert!(holds("record", b"payload", &signature));
        assert!(!holds("gossip", b"payload", &signature));
        assert!(!holds("recor", b"dpayload", &signature));
        assert!(!holds("record", b"payloaD", &signature));
        assert!(!holds("record", b"payload", &signature[..63]));
        assert!(!holds("record", b"payload", &key.sign(b"payload")));
        assert!(!holds("record", b"payload", &key.sign(b"recordpayload")));
    }
}
