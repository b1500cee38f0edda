//! Peers that are not admitted; and that refusing one delays no other.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use hypha_model::NodeRole;
use hypha_net::{Limits, Multiaddr, NetEvent, PeerId, StartError, multiaddr::Protocol};
use hypha_pki::issue::{self, IssuedCertificate, Validity};
use hypha_pki::{Material, Pki, Reloader};
use rcgen::{CertificateParams, DnType};
use rustls::client::ResolvesClientCert;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::lab::{DEADLINE, Lab, Node, answer_health, eventually, settings};
use crate::rogue::{Nothing, Rogue, odd_certificate, role_name};

const DAY: Duration = Duration::from_secs(86_400);

/// A few seconds are promised; the rest is for a busy machine. Well below the interval at
/// which certificates are checked again in any case.
const EXPELLED_WITHIN: Duration = Duration::from_secs(20);

/// A change to a certificate before it is signed.
type Spoil = fn(&mut CertificateParams);

/// The node that others try to connect to.
struct TargetNode {
    lab: Lab,
    node: Node,
    address: Multiaddr,
}

impl TargetNode {
    async fn new() -> TargetNode {
        let lab = Lab::new();
        let pki = lab.pki(NodeRole::Gateway);
        TargetNode::open(lab, pki, Limits::for_gateway()).await
    }

    /// A node that revokes one certificate.
    async fn revoking(
        revoked: impl FnOnce(&Lab) -> (String, IssuedCertificate),
    ) -> (TargetNode, IssuedCertificate) {
        let lab = Lab::new();
        let (crl, issued) = revoked(&lab);
        let material = lab.material(&lab.issue(NodeRole::Gateway), Some(&crl));
        let pki = Pki::from_material(&material, SystemTime::now()).unwrap();
        (TargetNode::open(lab, pki, Limits::for_gateway()).await, issued)
    }

    async fn open(lab: Lab, pki: Pki, limits: Limits) -> TargetNode {
        let mut settings = settings(NodeRole::Gateway, &[]);
        settings.limits = limits;
        let node = Node::start(settings, pki);
        let address = node.listening().await;
        TargetNode { lab, node, address }
    }

    fn refused(&self) -> u64 {
        self.node.metric("hypha_net_connections_refused")
    }

    fn let_in(&self) -> usize {
        self.node.count(|event| matches!(event, NetEvent::PeerConnected(_)))
    }

    fn socket(&self) -> SocketAddr {
        let port = self.address.iter().find_map(|part| match part {
            Protocol::Tcp(port) => Some(port),
            _ => None,
        });
        (Ipv4Addr::LOCALHOST, port.unwrap()).into()
    }

    /// Checks that a node with a valid certificate connects and is answered.
    async fn still_serves(&self) {
        let good = self.lab.node(NodeRole::Worker, &[]).await;
        let id = good.net.dial(self.address.clone()).await.unwrap();
        assert_eq!(id, self.node.id());
        assert!(good.healthy(id).await);
        self.node.joined(good.id()).await;
    }

    /// Checks that the holder of `pki` is refused with a reason, whichever side dials.
    async fn refuses(&self, pki: Pki, told: &str, says: &str) {
        let bad = Node::start(settings(NodeRole::Worker, &[]), pki);
        let (before, let_in) = (self.refused(), self.let_in());
        let error = bad.net.dial(self.address.clone()).await.unwrap_err();
        assert!(error.contains(told), "{error}");
        eventually("the refusal is counted", || async { self.refused() > before }).await;
        let error = self.node.net.dial(bad.listening().await).await.unwrap_err();
        assert!(error.contains(says), "{error}");
        assert_eq!(self.let_in(), let_in);
        self.still_serves().await;
    }

    /// Checks that a rogue with this certificate is refused with a reason.
    async fn refuses_certificate(&self, other: Arc<dyn ResolvesClientCert>, told: &str) {
        let pki = Arc::new(self.lab.pki(NodeRole::Worker));
        let rogue = Rogue::with_certificate(&pki, Some(other));
        let (before, let_in) = (self.refused(), self.let_in());
        let error = rogue.dial(self.address.clone()).await.unwrap_err();
        assert!(error.contains(told), "{error}");
        eventually("the refusal is counted", || async { self.refused() > before }).await;
        assert_eq!(self.let_in(), let_in);
        self.still_serves().await;
    }
}

/// A worker whose certificate is valid at another time than now, loaded at that time.
fn worker_at(lab: &Lab, validity: Validity, then: SystemTime) -> Pki {
    let now = SystemTime::now();
    let long = Validity { not_before: now - 9 * DAY, not_after: now + 9 * DAY };
    let ca = issue::organisation(&lab.root, "beta", long).unwrap();
    let issued = issue::node(&ca, "node", NodeRole::Worker, &[], validity).unwrap();
    Pki::from_material(&lab.material(&issued, None), then).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_of_another_authority() {
    let (target_node, other) = (TargetNode::new().await, Lab::new());
    // It trusts our root too, so only our side objects.
    let issued = other.issue(NodeRole::Worker);
    let both = other.root.cert_pem() + &target_node.lab.root.cert_pem();
    let material = Material::from_pem(&issued.cert_pem, &issued.key_pem, &both, None);
    let pki = Pki::from_material(&material, SystemTime::now()).unwrap();
    target_node.refuses(pki, "UnknownCA", "not issued under a root that is trusted").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_that_has_expired() {
    let target_node = TargetNode::new().await;
    let now = SystemTime::now();
    let past = Validity { not_before: now - 3 * DAY, not_after: now - DAY };
    let pki = worker_at(&target_node.lab, past, now - 2 * DAY);
    target_node.refuses(pki, "CertificateExpired", "has expired").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_that_is_not_valid_yet() {
    let target_node = TargetNode::new().await;
    let now = SystemTime::now();
    let soon = Validity { not_before: now + DAY / 4, not_after: now + DAY / 2 };
    let pki = worker_at(&target_node.lab, soon, now + DAY / 3);
    // TLS has one alert for both.
    target_node.refuses(pki, "CertificateExpired", "not valid yet").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_that_was_revoked() {
    let (target_node, issued) = TargetNode::revoking(|lab| {
        let issued = lab.issue(NodeRole::Worker);
        (lab.revoke(&issued), issued)
    })
    .await;
    let pki = target_node.lab.pki_of(&issued);
    target_node.refuses(pki, "CertificateRevoked", "was revoked").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_that_is_revoked_while_its_holder_is_connected() {
    let lab = Lab::new();
    let (_directory, files) = lab.files(&lab.issue(NodeRole::Gateway));
    let (pki, reloader) = Reloader::load(files.clone()).unwrap();
    let settings_of_gateway = settings(NodeRole::Gateway, &[]);
    let gateway = Node::try_start(settings_of_gateway, pki, Some(reloader), answer_health).unwrap();
    let address = gateway.listening().await;

    let issued = lab.issue(NodeRole::Worker);
    let worker = Node::start(
        settings(NodeRole::Worker, std::slice::from_ref(&address)),
        lab.pki_of(&issued),
    );
    let bystander = lab.node(NodeRole::Worker, &[&gateway]).await;
    gateway.joined(worker.id()).await;
    gateway.joined(bystander.id()).await;
    assert!(worker.healthy(gateway.id()).await);

    std::fs::write(files.crls_pem.unwrap(), lab.revoke(&issued)).unwrap();
    let left = tokio::time::timeout(EXPELLED_WITHIN, gateway.left(worker.id())).await;
    assert!(left.is_ok(), "it is still connected");
    assert_eq!(gateway.metric("hypha_net_peers_expelled"), 1);
    // It keeps reconnecting, since this is its gateway, and gets the reason of the refusal.
    worker.left(gateway.id()).await;
    let error = worker.net.dial(address).await.unwrap_err();
    assert!(error.contains("CertificateRevoked"), "{error}");
    let connected = gateway.net.peers().await;
    assert!(connected.iter().all(|peer| peer.id != worker.id()));

    assert!(bystander.healthy(gateway.id()).await);
    let lost =
        |event: &NetEvent| matches!(event, NetEvent::PeerDisconnected(id) if *id == bystander.id());
    assert_eq!(gateway.count(lost), 0, "a bystander stays connected");
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_that_break_our_rules_but_not_those_of_tls() {
    let target_node = TargetNode::new().await;
    let odd = |spoil: Spoil| odd_certificate(&target_node.lab.ca, spoil);
    let cases: [(Spoil, &str); 4] = [
        (|leaf| leaf.subject_alt_names.truncate(1), "has no role"),
        (|leaf| leaf.subject_alt_names.push(role_name("scheduler")), "more than one role"),
        // Longer than a reason may be: it is cut, and still sent.
        (
            |leaf| leaf.subject_alt_names[1] = role_name(&"king".repeat(200)),
            "unknown role `kingking",
        ),
        (
            |leaf| leaf.distinguished_name.push(DnType::OrganizationName, "beta"),
            "of organisation `beta`, its issuer is of `acme`",
        ),
    ];
    for (spoil, told) in cases {
        target_node.refuses_certificate(odd(spoil), told).await;
    }
    // Shows that the certificates are refused only for these reasons.
    let pki = Arc::new(target_node.lab.pki(NodeRole::Worker));
    Rogue::with_certificate(&pki, Some(odd(|_| ())))
        .dial(target_node.address.clone())
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn no_certificate() {
    let target_node = TargetNode::new().await;
    target_node.refuses_certificate(Arc::new(Nothing), "CertificateRequired").await;
}

#[tokio::test]
async fn a_certificate_for_another_role_than_the_node_runs_as() {
    let lab = Lab::new();
    let started = Node::try_start(
        settings(NodeRole::Scheduler, &[]),
        lab.pki(NodeRole::Worker),
        None,
        answer_health,
    );
    let Err(error) = started else { panic!("it started") };
    assert!(matches!(
        error,
        StartError::Role { certificate: NodeRole::Worker, wanted: NodeRole::Scheduler }
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn another_node_at_the_address() {
    let target_node = TargetNode::new().await;
    let other = PeerId::random();
    let wrong: Multiaddr = target_node
        .address
        .iter()
        .filter(|part| !matches!(part, Protocol::P2p(_)))
        .chain([Protocol::P2p(other)])
        .collect();
    let dialler = target_node.lab.node(NodeRole::Worker, &[]).await;
    let error = dialler.net.dial(wrong).await.unwrap_err();
    assert!(error.contains(&target_node.node.id().to_string()), "it names the node there: {error}");
    assert!(dialler.net.peers().await.is_empty());
    target_node.still_serves().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_handshakes_and_silent_connections() {
    let lab = Lab::new();
    let pki = lab.pki(NodeRole::Gateway);
    let short = Limits { handshake_timeout: Duration::from_millis(500), ..Limits::for_gateway() };
    let target_node = TargetNode::open(lab, pki, short).await;
    let tls = b"\x13/multistream/1.0.0\n\x0d/hypha/tls/1\n";
    let cases: [&[u8]; 6] = [
        b"",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        &[0xff; 4_096],
        // The right protocol, followed by invalid TLS, or nothing.
        &[tls.as_slice(), &[0x5a; 2_000]].concat(),
        tls,
    ];
    let before = target_node.refused();
    for bytes in cases {
        let mut stream = TcpStream::connect(target_node.socket()).await.unwrap();
        let _ = stream.write_all(bytes).await;
        // The node disconnects by itself: the end of the stream, or a reset.
        let mut answer = Vec::new();
        let ended = tokio::time::timeout(DEADLINE, stream.read_to_end(&mut answer)).await;
        assert!(ended.is_ok(), "still open after {bytes:?}");
    }
    let all = before + cases.len() as u64;
    eventually("each is counted", || async { target_node.refused() >= all }).await;
    target_node.still_serves().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_from_one_address_does_not_lock_out_others() {
    let target_node = TargetNode::new().await;
    let friend = target_node.lab.node(NodeRole::Worker, &[&target_node.node]).await;
    friend.has_gateway(1).await;
    let target = target_node.socket();
    let mut flood = tokio::task::JoinSet::new();
    for _ in 0..500 {
        flood.spawn(async move {
            let socket = TcpSocket::new_v4()?;
            socket.bind((Ipv4Addr::new(127, 0, 0, 9), 0).into())?;
            let mut stream = socket.connect(target).await?;
            stream.write_all(&[0xa5; 300]).await?;
            stream.read_to_end(&mut Vec::new()).await
        });
    }
    // While it lasts.
    assert!(friend.healthy(target_node.node.id()).await);
    target_node.still_serves().await;
    flood.join_all().await;
    eventually("all were refused", || async { target_node.refused() >= 500 }).await;
    target_node.still_serves().await;
}
