//! What authorities issue, and what they refuse to issue.

use std::time::SystemTime;

use hypha_model::NodeRole;
use hypha_pki::inspect::{InspectError, ParsedCertificate, ParsedCrl, PemItem, inspect};
use hypha_pki::issue::{self, Authority, IssueError, Validity};

use crate::world::{DAY, World};

fn parsed(pem: &str) -> ParsedCertificate {
    match inspect(pem.as_bytes()).unwrap().remove(0) {
        PemItem::Certificate(parsed) => *parsed,
        other => panic!("{other:?}"),
    }
}

fn list(pem: &str) -> ParsedCrl {
    match inspect(pem.as_bytes()).unwrap().remove(0) {
        PemItem::Crl(parsed) => parsed,
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_authority_round_trips_through_its_files() {
    let world = World::new();
    for authority in [&world.root, &world.acme] {
        let read = Authority::from_pem(&authority.cert_pem(), &authority.key_pem()).unwrap();
        assert_eq!(read.cert_pem(), authority.cert_pem());
        assert_eq!(read.organisation(), authority.organisation());
        assert_eq!(read.is_root(), authority.is_root());
    }
    let swapped = Authority::from_pem(&world.acme.cert_pem(), &world.beta.key_pem());
    assert!(matches!(swapped, Err(IssueError::KeyMismatch)));
    let node = world.node(&world.acme, "w");
    let no_authority = Authority::from_pem(&node.cert_pem, &node.key_pem);
    assert!(matches!(no_authority, Err(IssueError::BadAuthority(_))));
    let no_key = Authority::from_pem(&world.acme.cert_pem(), &world.acme.cert_pem());
    assert!(matches!(no_key, Err(IssueError::BadKey)));
}

#[test]
fn certificates_hold_their_subject_and_issuer() {
    let world = World::new();
    let root = parsed(&world.root.cert_pem());
    assert!(root.authority && root.self_issued && root.roles.is_empty());
    assert_eq!(root.organisations, ["operator"]);
    let acme = parsed(&world.acme.cert_pem());
    assert!(acme.authority && !acme.self_issued);
    assert_eq!(acme.issuer, root.subject);
    let node = world.node(&world.acme, "w");
    let leaf = parsed(&node.cert_pem);
    assert!(!leaf.authority);
    assert_eq!(leaf.peer_id(), Some(node.certificate.peer_id));
    assert_eq!(leaf.rejection(), None);
    assert_eq!(inspect(node.cert_pem.as_bytes()).unwrap().len(), 2);
}

#[test]
fn two_authorities_of_one_organisation_have_different_names() {
    let world = World::new();
    let again = issue::organisation(&world.root, "acme", Validity::days(world.now, 10)).unwrap();
    assert_ne!(parsed(&again.cert_pem()).subject, parsed(&world.acme.cert_pem()).subject);
}

#[test]
fn nothing_outlives_its_issuer_and_expired_authorities_issue_nothing() {
    let world = World::new();
    let century = Validity::days(world.now, issue::MAX_DAYS);
    let node = world.node_for(&world.acme, "w", century);
    assert_eq!(node.certificate.not_after, parsed(&world.acme.cert_pem()).not_after);

    let late = Validity::days(world.now + 2000 * DAY, 10);
    let refused = issue::node(&world.acme, "w", NodeRole::Data, &[], late);
    assert!(matches!(refused, Err(IssueError::AuthorityNotValid { .. })));
    // Far beyond what fits into a certificate.
    assert!(Validity::days(SystemTime::now(), u32::MAX).not_after < world.now + 40_000 * DAY);
}

#[test]
fn certificates_are_valid_at_once_on_a_slow_clock() {
    let world = World::new();
    let node = world.node(&world.acme, "w");
    assert!(node.certificate.not_before <= world.now - DAY / 24 / 60);
}

#[test]
fn bad_names_and_wrong_issuers_are_refused() {
    let world = World::new();
    let validity = Validity::days(world.now, 10);
    let node = |name: &str, names: &[&str]| {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        issue::node(&world.acme, name, NodeRole::Worker, &names, validity).map(|_| ())
    };
    assert!(matches!(node("../w", &[]), Err(IssueError::Name(_))));
    for bad in ["", "a b", "*.example.org", "1.2.3.4/8", "hypha:role:data", "a..b", "é"] {
        assert!(matches!(node("w", &[bad]), Err(IssueError::AlternativeName(_))), "{bad:?}");
    }
    assert!(matches!(node("w", &["x"; 33]), Err(IssueError::TooManyNames(_))));
    let mut names: Vec<String> = (0..32).map(|n| format!("{n}{}.org", "x".repeat(50))).collect();
    let full = issue::node(&world.acme, "w", NodeRole::Worker, &names, validity).unwrap();
    names.insert(0, "w".to_owned());
    assert_eq!(world.pki(&full).own().names, names);

    assert!(matches!(issue::root("a/b", validity), Err(IssueError::Name(_))));
    let below = issue::organisation(&world.acme, "gamma", validity);
    assert!(matches!(below, Err(IssueError::NotRoot)));
}

#[test]
fn a_list_grows_and_keeps_its_entries() {
    let world = World::new();
    let (one, two) = (world.node(&world.acme, "one"), world.node(&world.acme, "two"));
    let empty = issue::empty_crl(&world.acme, world.now).unwrap();
    assert_eq!((list(&empty).number, list(&empty).revoked.len()), (1, 0));

    let first = issue::revoke(&world.acme, Some(&empty), &[&one.cert_pem], world.now).unwrap();
    assert_eq!(first.revoked, [one.certificate.serial.as_str()]);
    let later = world.now + DAY;
    let both = [one.cert_pem.as_str(), two.cert_pem.as_str()];
    let second = issue::revoke(&world.acme, Some(&first.crl_pem), &both, later).unwrap();
    assert_eq!(second.revoked, [two.certificate.serial.as_str()]);
    assert_eq!(second.already, [one.certificate.serial.as_str()]);
    let (before, after) = (list(&first.crl_pem), list(&second.crl_pem));
    assert_eq!(after.number, 3);
    assert_eq!(after.revoked.len(), 2);
    assert_eq!(after.revoked[0], before.revoked[0]);
    assert_eq!(after.issuer, parsed(&world.acme.cert_pem()).subject);
}

#[test]
fn other_authorities_lists_in_the_same_file_are_kept() {
    let world = World::new();
    let node = world.node(&world.acme, "w");
    let theirs = issue::empty_crl(&world.beta, world.now).unwrap();
    let file = theirs.clone() + &issue::empty_crl(&world.acme, world.now).unwrap();
    let updated = issue::revoke(&world.acme, Some(&file), &[&node.cert_pem], world.now).unwrap();
    assert!(updated.crl_pem.contains(&theirs));
    assert_eq!(inspect(updated.crl_pem.as_bytes()).unwrap().len(), 2);
    assert_eq!(list(&updated.crl_pem).number, 2);
}

#[test]
fn only_own_certificates_and_lists_are_accepted() {
    let world = World::new();
    let foreign = world.node(&world.beta, "theirs");
    let revoke = |existing: Option<&str>, certificate: &str| {
        issue::revoke(&world.acme, existing, &[certificate], world.now).map(|_| ())
    };
    let refused = revoke(None, &foreign.cert_pem).unwrap_err();
    assert!(refused.to_string().contains("`theirs` was not issued by this authority"));
    let own = world.node(&world.acme, "w").cert_pem;
    assert!(matches!(revoke(None, "x"), Err(IssueError::BadCertificate(_))));
    assert!(matches!(revoke(Some(&own), &own), Err(IssueError::BadRevocationList(_))));
    assert!(matches!(revoke(Some("x"), &own), Err(IssueError::BadRevocationList(_))));

    // A list in our name that we did not sign: its entries must not become ours.
    let pen = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
    let pen = rcgen::Issuer::from_ca_cert_pem(&world.acme.cert_pem(), pen).unwrap();
    let forged = rcgen::CertificateRevocationListParams {
        this_update: world.now.into(),
        next_update: (world.now + DAY).into(),
        crl_number: 9_u64.into(),
        issuing_distribution_point: None,
        revoked_certs: Vec::new(),
        key_identifier_method: rcgen::KeyIdMethod::Sha256,
    };
    let forged = forged.signed_by(&pen).unwrap().pem().unwrap();
    assert!(matches!(revoke(Some(&forged), &own), Err(IssueError::ForeignRevocationList)));
}

#[test]
fn a_private_key_is_recognised_but_not_shown() {
    let world = World::new();
    let items = inspect(world.acme.key_pem().as_bytes()).unwrap();
    assert!(matches!(items.as_slice(), [PemItem::PrivateKey]));
    assert_eq!(inspect(b"").unwrap_err(), InspectError::Empty);
    let broken = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    assert!(matches!(inspect(broken), Err(InspectError::Unreadable { section: 1, .. })));
}
