//! TLS between two nodes, byte by byte in memory.

use std::io::{Read, Write};
use std::sync::Arc;

use hypha_pki::issue::Validity;
use hypha_pki::{CertificateRejection, Pki};
use rustls::{
    ClientConfig, ClientConnection, Connection, HandshakeKind, ServerConfig, ServerConnection,
};

use crate::world::{DAY, World, chain, ed25519, odd_leaf};

const ALPN: &[&[u8]] = &[b"hypha/1"];

/// The state of each side after all messages were exchanged.
struct Outcome {
    client: Connection,
    server: Connection,
    client_error: Option<rustls::Error>,
    server_error: Option<rustls::Error>,
}

fn handshake(client: Arc<ClientConfig>, server: Arc<ServerConfig>) -> Outcome {
    let client = ClientConnection::new(client, Pki::server_name()).unwrap();
    let mut outcome = Outcome {
        client: client.into(),
        server: ServerConnection::new(server).unwrap().into(),
        client_error: None,
        server_error: None,
    };
    // Three flights each way are more than a handshake has.
    for _ in 0..3 {
        carry(&mut outcome.client, &mut outcome.server, &mut outcome.server_error);
        carry(&mut outcome.server, &mut outcome.client, &mut outcome.client_error);
    }
    outcome
}

fn carry(from: &mut Connection, to: &mut Connection, error: &mut Option<rustls::Error>) {
    let mut bytes = Vec::new();
    while from.wants_write() {
        from.write_tls(&mut bytes).unwrap();
    }
    let mut rest = bytes.as_slice();
    while !rest.is_empty() && error.is_none() {
        to.read_tls(&mut rest).unwrap();
        *error = to.process_new_packets().err();
    }
}

fn reason(error: &Option<rustls::Error>) -> Option<CertificateRejection> {
    CertificateRejection::from_tls(error.as_ref()?)
}

#[test]
fn two_nodes_of_two_organisations_talk() {
    let world = World::new();
    let (a, b) =
        (world.pki(&world.node(&world.acme, "a")), world.pki(&world.node(&world.beta, "b")));
    let mut outcome = handshake(a.client_config(ALPN), b.server_config(ALPN));
    assert!(outcome.client_error.is_none() && outcome.server_error.is_none());
    assert!(!outcome.client.is_handshaking() && !outcome.server.is_handshaking());
    assert_eq!(outcome.server.alpn_protocol(), Some(ALPN[0]));
    assert_eq!(outcome.server.protocol_version(), Some(rustls::ProtocolVersion::TLSv1_3));

    let presented = outcome.server.peer_certificates().unwrap();
    assert_eq!(presented, a.own_chain());
    assert_eq!(&b.verify(presented, world.now).unwrap(), a.own());
    let presented = outcome.client.peer_certificates().unwrap();
    assert_eq!(&a.verify(presented, world.now).unwrap(), b.own());

    outcome.client.writer().write_all(b"hello").unwrap();
    carry(&mut outcome.client, &mut outcome.server, &mut outcome.server_error);
    let mut received = [0; 5];
    outcome.server.reader().read_exact(&mut received).unwrap();
    assert_eq!(&received, b"hello");
}

#[test]
fn the_shared_name_is_the_server_name() {
    assert_eq!(Pki::server_name().to_str(), hypha_pki::SHARED_NAME);
}

#[test]
fn a_second_connection_is_verified_like_the_first() {
    let world = World::new();
    let (a, b) =
        (world.pki(&world.node(&world.acme, "a")), world.pki(&world.node(&world.beta, "b")));
    // Each side alone ensures it, whatever the other prefers.
    let (client, server) = (a.client_config(ALPN), b.server_config(ALPN));
    let mut eager_client = (*client).clone();
    eager_client.resumption = rustls::client::Resumption::in_memory_sessions(8);
    let mut eager_server = (*server).clone();
    eager_server.session_storage = rustls::server::ServerSessionMemoryCache::new(8);
    eager_server.send_tls13_tickets = 2;
    let (eager_client, eager_server) = (Arc::new(eager_client), Arc::new(eager_server));
    let second = |client: &Arc<ClientConfig>, server: &Arc<ServerConfig>| {
        handshake(Arc::clone(client), Arc::clone(server));
        let outcome = handshake(Arc::clone(client), Arc::clone(server));
        assert!(outcome.server_error.is_none() && outcome.client_error.is_none());
        outcome.server.handshake_kind()
    };
    assert_eq!(second(&eager_client, &server), Some(HandshakeKind::Full));
    assert_eq!(second(&client, &eager_server), Some(HandshakeKind::Full));
    // Shows that the test can see the difference.
    assert_eq!(second(&eager_client, &eager_server), Some(HandshakeKind::Resumed));
}

#[test]
fn both_sides_refuse_another_root() {
    let (world, other) = (World::new(), World::new());
    let ours = world.pki(&world.node(&world.acme, "w"));
    let theirs = other.pki(&other.node(&other.acme, "w"));
    let outcome = handshake(theirs.client_config(ALPN), ours.server_config(ALPN));
    assert_eq!(reason(&outcome.client_error), Some(CertificateRejection::UnknownIssuer));

    // A client without verification gets no further than the server.
    let mut blind = (*theirs.client_config(ALPN)).clone();
    blind.dangerous().set_certificate_verifier(Arc::new(Blind));
    let outcome = handshake(Arc::new(blind), ours.server_config(ALPN));
    assert_eq!(reason(&outcome.server_error), Some(CertificateRejection::UnknownIssuer));
    assert!(outcome.server.is_handshaking());
    // As usual in TLS 1.3: the dialler was connected until the alert arrived.
    assert!(!outcome.client.is_handshaking());
    assert!(outcome.client_error.is_some());
}

#[test]
fn a_revoked_node_is_refused_in_either_role() {
    let mut world = World::new();
    let bad = world.node(&world.acme, "bad");
    let bad_pki = world.pki(&bad);
    world.revoke(|world| &world.acme, &bad.cert_pem);
    let good = world.verifier();
    let outcome = handshake(bad_pki.client_config(ALPN), good.server_config(ALPN));
    assert_eq!(reason(&outcome.server_error), Some(CertificateRejection::Revoked));
    let outcome = handshake(good.client_config(ALPN), bad_pki.server_config(ALPN));
    assert_eq!(reason(&outcome.client_error), Some(CertificateRejection::Revoked));
}

#[test]
fn an_expired_node_is_refused() {
    let world = World::new();
    let past = Validity { not_before: world.now - 3 * DAY, not_after: world.now - DAY };
    let issued = world.node_for(&world.acme, "late", past);
    let late = Pki::from_material(&world.material(&issued), world.now - 2 * DAY).unwrap();
    let outcome = handshake(late.client_config(ALPN), world.verifier().server_config(ALPN));
    assert_eq!(reason(&outcome.server_error), Some(CertificateRejection::Expired));
}

#[test]
fn no_certificate_no_connection() {
    let world = World::new();
    let good = world.verifier();
    let mut client = (*good.client_config(ALPN)).clone();
    client.client_auth_cert_resolver = Arc::new(Nothing);
    let outcome = handshake(Arc::new(client), good.server_config(ALPN));
    assert_eq!(reason(&outcome.server_error), Some(CertificateRejection::NoCertificate));
}

#[test]
fn other_kinds_of_keys_are_refused() {
    let world = World::new();
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
    let cert_pem = odd_leaf(&world.acme, world.now, &key, |_| ());
    let client = dialler(&cert_pem, &key);
    let outcome = handshake(client, world.verifier().server_config(ALPN));
    assert!(outcome.server_error.is_some());
    assert!(outcome.server.is_handshaking());
}

#[test]
fn the_handshake_ignores_our_rules_and_verify_applies_them() {
    let world = World::new();
    let key = ed25519();
    let cert_pem =
        odd_leaf(&world.acme, world.now, &key, |leaf| leaf.subject_alt_names.truncate(1));
    let verifier = world.verifier();
    let outcome = handshake(dialler(&cert_pem, &key), verifier.server_config(ALPN));
    assert!(outcome.server_error.is_none());
    let presented = outcome.server.peer_certificates().unwrap();
    assert_eq!(verifier.verify(presented, world.now), Err(CertificateRejection::NoRole));
}

/// A client that trusts every server and presents this certificate.
fn dialler(cert_pem: &str, key: &rcgen::KeyPair) -> Arc<ClientConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Blind))
        .with_client_auth_cert(chain(cert_pem), key.serialize_der().try_into().unwrap())
        .unwrap();
    config.alpn_protocols = vec![ALPN[0].to_vec()];
    Arc::new(config)
}

#[derive(Debug)]
struct Nothing;

impl rustls::client::ResolvesClientCert for Nothing {
    fn resolve(
        &self,
        _: &[&[u8]],
        _: &[rustls::SignatureScheme],
    ) -> Option<Arc<rustls::sign::CertifiedKey>> {
        None
    }

    fn has_certs(&self) -> bool {
        false
    }
}

#[derive(Debug)]
struct Blind;

impl rustls::client::danger::ServerCertVerifier for Blind {
    fn verify_server_cert(
        &self,
        _: &rustls::pki_types::CertificateDer<'_>,
        _: &[rustls::pki_types::CertificateDer<'_>],
        _: &rustls::pki_types::ServerName<'_>,
        _: &[u8],
        _: rustls::pki_types::UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &rustls::pki_types::CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &rustls::pki_types::CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        vec![rustls::SignatureScheme::ED25519]
    }
}
