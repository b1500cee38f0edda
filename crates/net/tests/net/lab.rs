//! Nodes of a test: their own authority, loopback addresses, and the events they received.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use hypha_model::{
    Capacity, Device, Executor, ExecutorClass, Money, NodeRole, Worker, resource::WHOLE_GPU,
};
use hypha_net::{
    Limits, Multiaddr, Net, NetEvent, PeerId, PeerRequest, RelayLimits, Settings, StartError,
    multiaddr::Protocol, worker_id,
};
use hypha_pki::issue::{self, Authority, IssuedCertificate, Validity};
use hypha_pki::{CertificateFiles, Material, Pki, Reloader};
use hypha_wire::request::{Health, RequestBody, ResponseBody};
use prometheus_client::registry::Registry;
use tempfile::TempDir;
use tokio::sync::{Notify, mpsc};

/// Longer than anything here takes, even on a busy machine.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// How often a condition without an event is polled.
const POLL: Duration = Duration::from_millis(50);

/// Each node of a test is a process of its own, as far as its peers can see.
static NEXT_INCARNATION: AtomicU64 = AtomicU64::new(1);

/// An operator with one organisation.
pub(crate) struct Lab {
    pub(crate) root: Authority,
    pub(crate) ca: Authority,
}

impl Lab {
    pub(crate) fn new() -> Lab {
        // `RUST_LOG=hypha_net=debug cargo nextest run …` shows what the nodes of a test do.
        let filter = tracing_subscriber::EnvFilter::from_default_env();
        let _ = tracing_subscriber::fmt().with_env_filter(filter).with_test_writer().try_init();
        let validity = validity();
        let root = issue::root("lab", validity).unwrap();
        let ca = issue::organisation(&root, "acme", validity).unwrap();
        Lab { root, ca }
    }

    pub(crate) fn issue(&self, role: NodeRole) -> IssuedCertificate {
        issue::node(&self.ca, "node", role, &[], validity()).unwrap()
    }

    pub(crate) fn revoke(&self, issued: &IssuedCertificate) -> String {
        issue::revoke(&self.ca, None, &[&issued.cert_pem], SystemTime::now()).unwrap().crl_pem
    }

    pub(crate) fn material(&self, issued: &IssuedCertificate, crls: Option<&str>) -> Material {
        Material::from_pem(&issued.cert_pem, &issued.key_pem, &self.root.cert_pem(), crls)
    }

    pub(crate) fn pki_of(&self, issued: &IssuedCertificate) -> Pki {
        Pki::from_material(&self.material(issued, None), SystemTime::now()).unwrap()
    }

    pub(crate) fn pki(&self, role: NodeRole) -> Pki {
        self.pki_of(&self.issue(role))
    }

    pub(crate) async fn gateway(&self) -> Node {
        let node = Node::start(settings(NodeRole::Gateway, &[]), self.pki(NodeRole::Gateway));
        node.listening().await;
        node
    }

    pub(crate) async fn node(&self, role: NodeRole, gateways: &[&Node]) -> Node {
        Node::start(settings(role, &addresses(gateways).await), self.pki(role))
    }

    /// The files of a node, in a directory that is removed with the test.
    pub(crate) fn files(&self, issued: &IssuedCertificate) -> (TempDir, CertificateFiles) {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = directory.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let empty = issue::empty_crl(&self.ca, SystemTime::now()).unwrap();
        let files = CertificateFiles {
            cert_pem: file("cert.pem", &issued.cert_pem),
            key_pem: file("key.pem", &issued.key_pem),
            trust_pem: file("trust.pem", &self.root.cert_pem()),
            crls_pem: Some(file("crls.pem", &empty)),
            learned_crls: None,
            require_crl: false,
        };
        (directory, files)
    }
}

pub(crate) async fn addresses(gateways: &[&Node]) -> Vec<Multiaddr> {
    let mut addresses = Vec::new();
    for gateway in gateways {
        addresses.push(gateway.listening().await);
    }
    addresses
}

pub(crate) fn validity() -> Validity {
    Validity::days(SystemTime::now(), 1)
}

pub(crate) fn loopback() -> Multiaddr {
    loopback_at(Ipv4Addr::LOCALHOST)
}

/// Another address of this machine, so that one node can be excluded and the next not.
pub(crate) fn loopback_at(ip: Ipv4Addr) -> Multiaddr {
    Multiaddr::from(ip).with(Protocol::Tcp(0))
}

pub(crate) fn settings(role: NodeRole, gateways: &[Multiaddr]) -> Settings {
    let is_gateway = role == NodeRole::Gateway;
    Settings {
        role,
        agent: "hypha/test".into(),
        incarnation: Some(NEXT_INCARNATION.fetch_add(1, Ordering::Relaxed)),
        listen: vec![loopback()],
        external: Vec::new(),
        gateways: gateways.to_vec(),
        excluded: Vec::new(),
        excluded_is_configured: false,
        relay_circuit: true,
        relay: is_gateway.then_some(RelayLimits {
            max_reservations: 1_024,
            max_reservations_per_peer: 4,
            max_circuits: 256,
            max_circuits_per_peer: 16,
            reservation_duration: Duration::from_secs(3_600),
            max_circuit_duration: Duration::from_secs(3_600),
            max_circuit_bytes: 1 << 36,
        }),
        bulk_listen: Vec::new(),
        bulk_external: Vec::new(),
        limits: if is_gateway { Limits::for_gateway() } else { Limits::for_node() },
    }
}

/// A node that records its events, and answers health requests unless configured otherwise.
pub(crate) struct Node {
    pub(crate) net: Net,
    registry: Registry,
    log: Arc<EventLog>,
}

#[derive(Default)]
struct EventLog {
    events: Mutex<Vec<NetEvent>>,
    more: Notify,
}

impl Node {
    pub(crate) fn start(settings: Settings, pki: Pki) -> Node {
        Node::try_start(settings, pki, None, answer_health).unwrap()
    }

    pub(crate) fn try_start(
        settings: Settings,
        pki: Pki,
        reloader: Option<Reloader>,
        answer: impl FnMut(PeerRequest) + Send + 'static,
    ) -> Result<Node, StartError> {
        let mut registry = Registry::default();
        let (net, events) = Net::start(settings, pki, reloader, &mut registry)?;
        let log = Arc::new(EventLog::default());
        tokio::spawn(listen(events, log.clone(), answer));
        Ok(Node { net, registry, log })
    }

    pub(crate) fn id(&self) -> PeerId {
        self.net.own()
    }

    /// The first event for which `wanted` has a value, waiting for it if need be.
    pub(crate) async fn wait_for_event<T>(
        &self,
        what: &str,
        wanted: impl Fn(&NetEvent) -> Option<T>,
    ) -> T {
        self.wait_for_nth_event(1, what, wanted).await
    }

    /// The same for the event that is the `times`-th of its kind.
    pub(crate) async fn wait_for_nth_event<T>(
        &self,
        times: usize,
        what: &str,
        wanted: impl Fn(&NetEvent) -> Option<T>,
    ) -> T {
        let until = Instant::now() + DEADLINE;
        loop {
            let more = self.log.more.notified();
            if let Some(found) =
                self.log.events.lock().unwrap().iter().filter_map(&wanted).nth(times - 1)
            {
                return found;
            }
            let left = until.saturating_duration_since(Instant::now());
            if tokio::time::timeout(left, more).await.is_err() {
                panic!("{what} was not received; received: {:#?}", self.log.events.lock().unwrap());
            }
        }
    }

    /// How often such an event was received so far.
    pub(crate) fn count(&self, wanted: impl Fn(&NetEvent) -> bool) -> usize {
        self.log.events.lock().unwrap().iter().filter(|event| wanted(event)).count()
    }

    pub(crate) async fn listening(&self) -> Multiaddr {
        let listening = |event: &NetEvent| match event {
            NetEvent::Listening(address) => Some(address.clone()),
            _ => None,
        };
        self.wait_for_event("a listener", listening).await
    }

    pub(crate) async fn joined(&self, peer: PeerId) {
        let joined = |event: &NetEvent| {
            matches!(event, NetEvent::PeerConnected(joined) if joined.id == peer).then_some(())
        };
        self.wait_for_event("a peer that joined", joined).await;
    }

    pub(crate) async fn left(&self, peer: PeerId) {
        let left = |event: &NetEvent| {
            matches!(event, NetEvent::PeerDisconnected(id) if *id == peer).then_some(())
        };
        self.wait_for_event("a peer that left", left).await;
    }

    /// Waits until a gateway was connected `times` times.
    pub(crate) async fn has_gateway(&self, times: usize) {
        let gateway =
            |event: &NetEvent| matches!(event, NetEvent::GatewayChanged(_, Some(_))).then_some(());
        self.wait_for_nth_event(times, "a gateway", gateway).await;
    }

    pub(crate) async fn healthy(&self, peer: PeerId) -> bool {
        let asked =
            self.net.request(peer, RequestBody::Health, Duration::from_secs(10), None).await;
        matches!(asked, Ok(ResponseBody::Health(health)) if health.ready)
    }

    /// The sum of the metrics whose name and labels begin with this.
    pub(crate) fn metric(&self, name: &str) -> u64 {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).unwrap();
        let lines = text.lines().filter(|line| line.starts_with(name));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum::<f64>() as u64
    }
}

pub(crate) fn answer_health(request: PeerRequest) {
    let health = Health { ready: true, ..Health::default() };
    let _ = request.responder.send(ResponseBody::Health(health));
}

async fn listen(
    mut events: mpsc::Receiver<NetEvent>,
    log: Arc<EventLog>,
    mut answer: impl FnMut(PeerRequest),
) {
    while let Some(event) = events.recv().await {
        match event {
            NetEvent::RequestReceived(request) => answer(request),
            event => {
                log.events.lock().unwrap().push(event);
                log.more.notify_waiters();
            }
        }
    }
}

/// Polls until `holds` returns true.
pub(crate) async fn eventually<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    let until = Instant::now() + DEADLINE;
    while !holds().await {
        assert!(Instant::now() < until, "{what}: not within {DEADLINE:?}");
        tokio::time::sleep(POLL).await;
    }
}

/// A worker of a test. `gpus` are GiB of memory.
pub(crate) fn worker(
    peer: PeerId,
    executor: &str,
    models: &[&str],
    gpus: &[u64],
    memory_gib: u64,
) -> Worker {
    Worker {
        id: worker_id(&peer),
        capacity: Capacity {
            cpu_milli: 4_000,
            memory_bytes: memory_gib << 30,
            storage_bytes: 1 << 40,
            devices: gpus
                .iter()
                .map(|gib| Device {
                    model: "A100".parse().unwrap(),
                    memory_bytes: gib << 30,
                    milli_gpu: WHOLE_GPU,
                })
                .collect(),
        },
        executors: vec![Executor {
            class: ExecutorClass::Inference,
            name: executor.parse().unwrap(),
            models: models.iter().map(|model| model.parse().unwrap()).collect(),
            concurrency: 2,
        }],
        hardware: None,
        region: Some("lab".parse().unwrap()),
        price: Money::from_micros(1_500_000),
    }
}

/// An ordinary worker.
pub(crate) fn plain_worker(peer: PeerId) -> Worker {
    worker(peer, "vllm", &["llama"], &[24], 32)
}
