//! Every reason to reject a chain, each with such a chain.

use hypha_model::NodeRole;
use hypha_pki::issue::{self, Validity};
use hypha_pki::{CertificateDer, CertificateRejection};
use rcgen::{DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, SanType};

use crate::world::{DAY, World, chain, ed25519, odd_leaf, role};

#[track_caller]
fn check(world: &World, cert_pem: &str, expected: CertificateRejection) {
    let verifier = world.verifier();
    assert_eq!(verifier.verify(&chain(cert_pem), world.now), Err(expected));
    // The verifier still accepts a valid certificate.
    let good = world.node(&world.acme, "good");
    verifier.verify(&chain(&good.cert_pem), world.now).unwrap();
}

#[test]
fn a_node_of_another_organisation_under_the_same_root_is_accepted() {
    let world = World::new();
    let names = ["worker-7.example.org".to_owned(), "192.0.2.7".to_owned(), "::1".to_owned()];
    let validity = Validity::days(world.now, 100);
    let issued = issue::node(&world.acme, "worker-7", NodeRole::Data, &names, validity).unwrap();
    let seen = world.verifier().verify(&chain(&issued.cert_pem), world.now).unwrap();
    assert_eq!(seen.role, NodeRole::Data);
    assert_eq!(seen.organisation, "acme");
    assert_eq!(seen.names, ["worker-7", "worker-7.example.org", "192.0.2.7", "::1"]);
    assert_eq!(seen.peer_id, seen.public_key.to_peer_id());
    assert_eq!(seen.serial.len(), 32);
    assert!(seen.not_before < world.now && world.now < seen.not_after);
    assert_eq!(seen, issued.certificate);
    assert_eq!(&seen, world.pki(&issued).own());
}

#[test]
fn every_role_is_read() {
    let world = World::new();
    let verifier = world.verifier();
    for role in NodeRole::ALL {
        let validity = Validity::days(world.now, 1);
        let issued = issue::node(&world.acme, "n", role, &[], validity).unwrap();
        assert_eq!(verifier.verify(&chain(&issued.cert_pem), world.now).unwrap().role, role);
    }
}

#[test]
fn empty_oversized_and_malformed_chains() {
    let world = World::new();
    let verifier = world.verifier();
    let good = chain(&world.node(&world.acme, "w").cert_pem);
    assert_eq!(verifier.verify(&[], world.now), Err(CertificateRejection::NoCertificate));

    let many: Vec<_> = std::iter::repeat_n(good[0].clone(), 5).collect();
    assert!(matches!(verifier.verify(&many, world.now), Err(CertificateRejection::TooLong(_))));
    let large = [good[0].clone(), CertificateDer::from(vec![0x30; 17 << 10])];
    assert!(matches!(verifier.verify(&large, world.now), Err(CertificateRejection::TooLong(_))));

    let garbage = [CertificateDer::from(b"plain text".to_vec())];
    assert!(matches!(
        verifier.verify(&garbage, world.now),
        Err(CertificateRejection::Unreadable(_))
    ));
}

#[test]
fn no_single_changed_byte_of_a_leaf_is_accepted() {
    let world = World::new();
    let verifier = world.verifier();
    let good = chain(&world.node(&world.acme, "w").cert_pem);
    for at in 0..good[0].len() {
        let mut der = good[0].to_vec();
        der[at] ^= 0x01;
        let changed = [CertificateDer::from(der), good[1].clone()];
        assert!(verifier.verify(&changed, world.now).is_err(), "byte {at}");
        let cut = [CertificateDer::from(good[0][..at].to_vec()), good[1].clone()];
        assert!(verifier.verify(&cut, world.now).is_err(), "cut at {at}");
    }
}

#[test]
fn another_root() {
    let (world, other) = (World::new(), World::new());
    let stranger = other.node(&other.acme, "w");
    check(&world, &stranger.cert_pem, CertificateRejection::UnknownIssuer);
}

#[test]
fn an_issuer_that_is_missing() {
    let world = World::new();
    let alone = world.node(&world.acme, "w").cert_pem;
    let leaf = alone.split_inclusive("-----END CERTIFICATE-----\n").next().unwrap();
    check(&world, leaf, CertificateRejection::UnknownIssuer);
}

#[test]
fn a_known_issuer_name_with_another_key() {
    let world = World::new();
    let key = ed25519();
    let pen = ed25519();
    let (_, der) = x509_parser::pem::parse_x509_pem(world.acme.cert_pem().as_bytes()).unwrap();
    let issuer = Issuer::from_ca_cert_der(&der.contents.as_slice().into(), pen).unwrap();
    let mut parameters = rcgen::CertificateParams::new(Vec::new()).unwrap();
    parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    parameters.subject_alt_names = vec![role("worker")];
    let forged = parameters.signed_by(&key, &issuer).unwrap().pem() + &world.acme.cert_pem();
    check(&world, &forged, CertificateRejection::BadSignature);
}

#[test]
fn too_early_and_too_late() {
    let world = World::new();
    let (now, acme) = (world.now, &world.acme);
    let past = Validity { not_before: now - 3 * DAY, not_after: now - DAY };
    check(&world, &world.node_for(acme, "w", past).cert_pem, CertificateRejection::Expired);
    let future = Validity { not_before: now + DAY, not_after: now + 2 * DAY };
    check(&world, &world.node_for(acme, "w", future).cert_pem, CertificateRejection::NotYetValid);

    // The same chain at other times.
    let verifier = world.verifier();
    let chain = chain(&world.node(acme, "w").cert_pem);
    assert!(verifier.verify(&chain, now + 99 * DAY).is_ok());
    assert_eq!(verifier.verify(&chain, now + 101 * DAY), Err(CertificateRejection::Expired));
    assert_eq!(verifier.verify(&chain, now - DAY), Err(CertificateRejection::NotYetValid));
}

#[test]
fn a_revoked_node_and_only_that_one() {
    let mut world = World::new();
    let bad = world.node(&world.acme, "bad");
    world.revoke(|world| &world.acme, &bad.cert_pem);
    check(&world, &bad.cert_pem, CertificateRejection::Revoked);
}

#[test]
fn nodes_of_a_revoked_organisation_are_rejected() {
    let mut world = World::new();
    let gamma = issue::organisation(&world.root, "gamma", Validity::days(world.now, 10)).unwrap();
    let node = world.node(&gamma, "w");
    assert!(world.verifier().verify(&chain(&node.cert_pem), world.now).is_ok());
    world.revoke(|world| &world.root, &gamma.cert_pem());
    check(&world, &node.cert_pem, CertificateRejection::Revoked);
}

#[test]
fn an_older_list_in_the_same_file_does_not_hide_a_newer_one() {
    let mut world = World::new();
    let bad = world.node(&world.acme, "bad");
    let first = issue::empty_crl(&world.acme, world.now).unwrap();
    let second =
        issue::revoke(&world.acme, Some(&first), &[&bad.cert_pem], world.now).unwrap().crl_pem;
    world.crls = vec![first, second];
    check(&world, &bad.cert_pem, CertificateRejection::Revoked);
    world.crls.reverse();
    check(&world, &bad.cert_pem, CertificateRejection::Revoked);
}

#[test]
fn a_required_list_that_is_missing() {
    let mut world = World::new();
    for authority in [&world.root, &world.beta] {
        world.crls.push(issue::empty_crl(authority, world.now).unwrap());
    }
    let own = world.node(&world.beta, "verifier");
    let material = world.material(&own).require_crl(true);
    let strict = hypha_pki::Pki::from_material(&material, world.now).unwrap();
    let (listed, unlisted) = (world.node(&world.beta, "b"), world.node(&world.acme, "a"));
    assert!(strict.verify(&chain(&listed.cert_pem), world.now).is_ok());
    let refused = strict.verify(&chain(&unlisted.cert_pem), world.now);
    assert_eq!(refused, Err(CertificateRejection::RevocationUnknown));
    assert!(world.pki(&own).verify(&chain(&unlisted.cert_pem), world.now).is_ok());
}

#[test]
fn a_list_in_an_authoritys_name_with_another_signature() {
    let mut world = World::new();
    let pen = Issuer::from_ca_cert_pem(&world.acme.cert_pem(), ed25519()).unwrap();
    let list = rcgen::CertificateRevocationListParams {
        this_update: world.now.into(),
        next_update: (world.now + DAY).into(),
        crl_number: 9_u64.into(),
        issuing_distribution_point: None,
        revoked_certs: Vec::new(),
        key_identifier_method: rcgen::KeyIdMethod::Sha256,
    };
    world.crls.push(list.signed_by(&pen).unwrap().pem().unwrap());
    let node = world.node(&world.acme, "w");
    let refused = world.verifier().verify(&chain(&node.cert_pem), world.now);
    assert!(matches!(refused, Err(CertificateRejection::BadRevocationList(_))), "{refused:?}");
}

#[test]
fn a_node_certificate_that_issued_another() {
    let world = World::new();
    let rogue = world.node(&world.acme, "rogue");
    let (_, rogue_der) = x509_parser::pem::parse_x509_pem(rogue.cert_pem.as_bytes()).unwrap();
    let pen = KeyPair::from_pem(&rogue.key_pem).unwrap();
    let issuer = Issuer::from_ca_cert_der(&rogue_der.contents.as_slice().into(), pen).unwrap();
    let mut parameters = rcgen::CertificateParams::new(Vec::new()).unwrap();
    parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    parameters.subject_alt_names = vec![role("scheduler")];
    let child = parameters.signed_by(&ed25519(), &issuer).unwrap().pem() + &rogue.cert_pem;
    check(&world, &child, CertificateRejection::IssuerNotAuthority);
}

#[test]
fn an_organisation_that_issues_an_authority() {
    let world = World::new();
    let pen = KeyPair::from_pem(&world.acme.key_pem()).unwrap();
    let issuer = Issuer::from_ca_cert_pem(&world.acme.cert_pem(), pen).unwrap();
    let mut below = rcgen::CertificateParams::new(Vec::new()).unwrap();
    below.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    below.distinguished_name.push(DnType::OrganizationName, "beta");
    let key = ed25519();
    let certificate = below.signed_by(&key, &issuer).unwrap().pem();
    let issuer = Issuer::new(below, key);
    let mut leaf = rcgen::CertificateParams::new(Vec::new()).unwrap();
    leaf.distinguished_name.push(DnType::OrganizationName, "beta");
    leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    leaf.subject_alt_names = vec![role("worker")];
    let leaf = leaf.signed_by(&ed25519(), &issuer).unwrap().pem();
    let refused = world
        .verifier()
        .verify(&chain(&format!("{leaf}{certificate}{}", world.acme.cert_pem())), world.now);
    assert!(matches!(refused, Err(CertificateRejection::Unacceptable(_))), "{refused:?}");
}

#[test]
fn an_authority_certificate_used_as_a_node() {
    let world = World::new();
    check(&world, &world.acme.cert_pem(), CertificateRejection::IsAuthority);
}

#[test]
fn a_certificate_for_another_purpose() {
    let world = World::new();
    let mail = odd_leaf(&world.acme, world.now, &ed25519(), |leaf| {
        leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::EmailProtection];
    });
    check(&world, &mail, CertificateRejection::WrongUsage);
}

#[test]
fn roles_and_organisations_and_keys_that_break_our_rules() {
    let world = World::new();
    let spoiled = |spoil: fn(&mut rcgen::CertificateParams)| {
        odd_leaf(&world.acme, world.now, &ed25519(), spoil)
    };
    world.verifier().verify(&chain(&spoiled(|_| ())), world.now).unwrap();

    let none = spoiled(|leaf| leaf.subject_alt_names.truncate(1));
    check(&world, &none, CertificateRejection::NoRole);
    let two = spoiled(|leaf| leaf.subject_alt_names.push(role("scheduler")));
    check(&world, &two, CertificateRejection::SeveralRoles);
    let twice = spoiled(|leaf| leaf.subject_alt_names.push(role("worker")));
    check(&world, &twice, CertificateRejection::SeveralRoles);
    let unknown = spoiled(|leaf| leaf.subject_alt_names[1] = role("king"));
    check(&world, &unknown, CertificateRejection::BadRole("king".to_owned()));
    // Only the path of a web address looks like a role here.
    let elsewhere = spoiled(|leaf| {
        let page = "https://x/hypha:role:worker".to_owned();
        leaf.subject_alt_names[1] = SanType::URI(page.try_into().unwrap());
    });
    check(&world, &elsewhere, CertificateRejection::NoRole);

    let foreign = spoiled(|leaf| leaf.distinguished_name.push(DnType::OrganizationName, "beta"));
    let expected = CertificateRejection::OrganisationMismatch {
        leaf: "beta".to_owned(),
        issuer: "acme".to_owned(),
    };
    check(&world, &foreign, expected);
    let no_organisation = spoiled(|leaf| {
        leaf.distinguished_name = rcgen::DistinguishedName::new();
        leaf.distinguished_name.push(DnType::CommonName, "acme");
    });
    check(&world, &no_organisation, CertificateRejection::NotOneOrganisation(0));

    let p256 = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
    let other_key = odd_leaf(&world.acme, world.now, &p256, |_| ());
    check(&world, &other_key, CertificateRejection::NotEd25519);
}
