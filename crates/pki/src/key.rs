//! An Ed25519 private key: PKCS#8 in files, the libp2p identity in a node, the signing key in rcgen.

use libp2p_identity::ed25519;
use rcgen::{PKCS_ED25519, PublicKeyData, SignatureAlgorithm, SigningKey};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use x509_parser::asn1_rs::{Any, FromDer, Integer, OctetString, Oid, Sequence};
use zeroize::Zeroizing;

use crate::pem;

/// 1.3.101.112, Ed25519 (RFC 8410), without tag and length.
const ED25519: &[u8] = &[0x2b, 0x65, 0x70];

/// Everything in front of the 32 secret bytes of a version 1 key (RFC 8410, section 7). Version 2
/// would add the public key, which some tools do not read.
const PKCS8_PREFIX: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];

pub(crate) struct Key {
    pair: ed25519::Keypair,
    public: [u8; 32],
}

impl Key {
    pub(crate) fn generate() -> Key {
        Key::of(ed25519::Keypair::generate())
    }

    /// Parses the first private key in PEM text; `None` unless it is Ed25519 in PKCS#8.
    pub(crate) fn from_pem(text: &[u8]) -> Option<Key> {
        let PrivateKeyDer::Pkcs8(key) = PrivateKeyDer::from_pem_slice(text).ok()? else {
            return None;
        };
        let der = Zeroizing::new(key.secret_pkcs8_der().to_vec());
        let mut secret = Zeroizing::new(secret_of(&der)?);
        let secret = ed25519::SecretKey::try_from_bytes(secret.as_mut()).ok()?;
        Some(Key::of(ed25519::Keypair::from(secret)))
    }

    fn of(pair: ed25519::Keypair) -> Key {
        let public = pair.public().to_bytes();
        Key { pair, public }
    }

    pub(crate) fn to_pem(&self) -> Zeroizing<String> {
        pem::encode("PRIVATE KEY", &self.pkcs8())
    }

    /// For rustls, which keeps its own copy.
    pub(crate) fn for_tls(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.pkcs8().to_vec()))
    }

    pub(crate) fn pair(&self) -> &ed25519::Keypair {
        &self.pair
    }

    pub(crate) fn public(&self) -> ed25519::PublicKey {
        self.pair.public()
    }

    fn pkcs8(&self) -> Zeroizing<Vec<u8>> {
        let mut der = Zeroizing::new(Vec::with_capacity(PKCS8_PREFIX.len() + 32));
        der.extend_from_slice(&PKCS8_PREFIX);
        der.extend_from_slice(self.pair.secret().as_ref());
        der
    }
}

impl PublicKeyData for Key {
    fn der_bytes(&self) -> &[u8] {
        &self.public
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ED25519
    }
}

impl SigningKey for Key {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rcgen::Error> {
        Ok(self.pair.sign(message))
    }
}

/// `OneAsymmetricKey`: version, algorithm, key, then what versions may add.
fn secret_of(der: &[u8]) -> Option<[u8; 32]> {
    let (_, whole) = Sequence::from_der(der).ok()?;
    let (rest, _version) = Integer::from_der(&whole.content).ok()?;
    let (rest, algorithm) = Sequence::from_der(rest).ok()?;
    let (_, oid) = Oid::from_der(&algorithm.content).ok()?;
    if oid.as_bytes() != ED25519 {
        return None;
    }
    let (_, outer) = OctetString::from_der(rest).ok()?;
    let (after, inner) = Any::from_der(outer.as_ref()).ok()?;
    let inner = OctetString::try_from(inner).ok()?;
    if !after.is_empty() {
        return None;
    }
    inner.as_ref().try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_round_trips_through_its_file() {
        let key = Key::generate();
        let read = Key::from_pem(key.to_pem().as_bytes()).unwrap();
        assert_eq!(read.public(), key.public());
    }

    #[test]
    fn keys_of_other_tools_are_parsed_or_refused() {
        // Version 2, with the public key appended.
        let ring = rcgen::KeyPair::generate_for(&PKCS_ED25519).unwrap();
        let read = Key::from_pem(ring.serialize_pem().as_bytes()).unwrap();
        assert_eq!(read.der_bytes(), ring.der_bytes());

        let p256 = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
        assert!(Key::from_pem(p256.serialize_pem().as_bytes()).is_none());
        // X25519 differs from ours in one byte of its name.
        let mut x25519 = Key::generate().pkcs8();
        x25519[11] = 0x6e;
        assert!(Key::from_pem(pem::encode("PRIVATE KEY", &x25519).as_bytes()).is_none());
        assert!(Key::from_pem(b"").is_none());
        let cut = key_text_without_its_end();
        assert!(Key::from_pem(&cut).is_none());
    }

    fn key_text_without_its_end() -> Vec<u8> {
        let text = Key::generate().to_pem();
        text.as_bytes()[..text.len() / 2].to_vec()
    }
}
