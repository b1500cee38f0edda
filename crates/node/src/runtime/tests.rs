//! Nodes of all roles in one process, through the market: an advert by gossip, an offer to a scheduler that does not know
//! the worker, a lease, a run, and receipts that both sides signed.

use std::time::SystemTime;

use hypha_config::{Flags, RoleConfig};
use hypha_engine::job::{JobPlan, JobState};
use hypha_engine::{Command, Reply};
use hypha_model::{
    AdvertId, JobId, Money, Name, OfferId, Payload, Requirement, Rng, Span, TaskSpec, Time,
};
use hypha_net::{Multiaddr, PeerId, Publication, RequestError, worker_id};
use hypha_pki::issue::{self, Authority, Validity};
use hypha_wire::market::OfferedRole;
use tempfile::TempDir;

use super::*;

/// Longer than anything here takes, even on a busy machine.
const DEADLINE: Duration = Duration::from_secs(60);

struct Lab {
    root: Authority,
    ca: Authority,
    directory: TempDir,
}

impl Lab {
    fn new() -> Lab {
        let validity = Validity::days(SystemTime::now(), 1);
        let root = issue::root("lab", validity).unwrap();
        let ca = issue::organisation(&root, "acme", validity).unwrap();
        Lab { root, ca, directory: tempfile::tempdir().unwrap() }
    }

    fn config<C: RoleConfig>(&self, gateways: &[Multiaddr], more: &str) -> C {
        let role = C::ROLE.as_str();
        let validity = Validity::days(SystemTime::now(), 1);
        let issued = issue::node(&self.ca, role, C::ROLE, &[], validity).unwrap();
        let file = |name: &str, text: &str| {
            let path = self.directory.path().join(format!("{role}-{name}"));
            std::fs::write(&path, text).unwrap();
            path
        };
        file("cert.pem", &issued.cert_pem);
        file("key.pem", &issued.key_pem);
        file("trust.pem", &self.root.cert_pem());
        let gateways: Vec<String> = gateways.iter().map(ToString::to_string).collect();
        let text = format!(
            "cert_pem = \"{role}-cert.pem\"\n\
             key_pem = \"{role}-key.pem\"\n\
             trust_pem = \"{role}-trust.pem\"\n\
             listen_addresses = [\"/ip4/127.0.0.1/tcp/0\"]\n\
             gateway_addresses = {gateways:?}\n\
             metrics_address = \"127.0.0.1:0\"\n\
             {more}"
        );
        let path = file("config.toml", &text);
        hypha_config::load(&path, &[], &Flags::default()).unwrap()
    }
}

/// Starts a node, and handles its events.
async fn run_node(config: NodeConfig) -> Arc<Node> {
    let metrics = Metrics::new("test", config.role().as_str());
    let mut node = start(&config, "test", &metrics).await.unwrap();
    let mut events = std::mem::replace(&mut node.events, mpsc::channel(1).1);
    let node = Arc::new(node);
    let handler = Arc::clone(&node);
    tokio::spawn(async move {
        while let Some(event) = events.recv().await {
            handler.on_event(event);
        }
    });
    node
}

async fn eventually<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    let until = Instant::now() + DEADLINE;
    while !holds().await {
        assert!(Instant::now() < until, "{what}: not within {DEADLINE:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn job() -> JobPlan {
    let requirement = Requirement { model: Some(Name::literal("sleep")), ..Requirement::default() };
    let spec = hypha_market::GangSpec {
        roles: vec![hypha_market::GangRole {
            name: Name::literal("worker"),
            requirement: Arc::new(requirement.clone()),
            count: 1,
            minimum: 1,
            wants_all: false,
            bid: Money::from_micros(3_600_000_000),
            max: Money::from_micros(7_200_000_000),
        }],
        priority: Default::default(),
        is_preemptible: false,
        maximise: Default::default(),
        budget: None,
        window: Span::from_millis(500),
        lease_ttl: Span::from_secs(10),
    };
    let input = Payload::from(&b"{\"ms\": 300}"[..]);
    let program = TaskSpec { requirement, input, ..TaskSpec::default() };
    JobPlan { name: None, tenant: None, gang: Arc::new(spec), programs: vec![Arc::new(program)] }
}

fn offer_of(peer: PeerId) -> hypha_wire::Offer {
    let rng = &mut Rng::new(1);
    let role = OfferedRole { role: 0, price_micros: 1, portion: Default::default() };
    hypha_wire::Offer {
        id: OfferId::new(Time::ZERO, rng),
        advert: AdvertId::new(Time::ZERO, rng),
        worker_id: worker_id(&peer),
        worker: Default::default(),
        epoch: 1,
        roles: vec![role],
        reserved_for_us: 1_000_000,
        speed_milli: None,
        backlog_us: 0,
        is_relayed: false,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_runs_on_a_worker_that_its_scheduler_did_not_know() {
    let lab = Lab::new();
    let gateway = run_node(NodeConfig::Gateway(lab.config(&[], ""))).await;
    eventually("the gateway listens", || async { !gateway.net.addresses().await.is_empty() }).await;
    let gateways = [gateway.net.addresses().await.remove(0)];
    let scheduler =
        "data_dir = \"scheduler-data\"\n[scheduler.api]\nbind_address = \"127.0.0.1:0\"\n";
    let scheduler = lab.config(&gateways, scheduler);
    let scheduler = run_node(NodeConfig::Scheduler(Box::new(scheduler))).await;
    let worker = "data_dir = \"worker-data\"\n[[executors]]\nname = \"builtin\"\n\
                  runtime = \"builtin\"\nmodels = [\"sleep\"]\n";
    let worker = run_node(NodeConfig::Worker(Box::new(lab.config(&gateways, worker)))).await;
    // Before the worker's first record: it is in no list and was not announced, as in a network with more workers than
    // lists hold.
    let nothing = Publication::Datasets { names: Vec::new(), ttl: Duration::from_secs(60) };
    worker.net.publish(nothing).await;
    for node in [&scheduler, &worker] {
        eventually("it has a gateway", || async { !node.net.peers().await.is_empty() }).await;
    }

    let RunningRole::Scheduler(machine) = &scheduler.running_role else { panic!("no scheduler") };
    let own = worker_id(&worker.net.own());
    assert!(!machine.read(|scheduler| scheduler.knows_worker(own)));
    let mut changed = machine.job_changed();
    let Reply::JobSubmitted(Some(id)) = machine.execute(Command::SubmitJob(Arc::new(job()))).await
    else {
        panic!("the job was not accepted")
    };
    let state = |id: JobId| machine.read(|scheduler| scheduler.job(id)).map(|view| view.state);
    let ended = async {
        while matches!(state(id), Some(JobState::Waiting | JobState::Running)) {
            changed.changed().await.unwrap();
        }
    };
    if tokio::time::timeout(DEADLINE, ended).await.is_err() {
        panic!("{:#?}", machine.read(|scheduler| scheduler.job(id)));
    }
    assert_eq!(state(id), Some(JobState::Completed));

    // Nobody else may offer in its name, and no other role may offer at all.
    for (node, in_name_of) in [(&worker, &gateway), (&gateway, &gateway), (&gateway, &worker)] {
        let offer = offer_of(in_name_of.net.own());
        let sent = node.net.send_offer(scheduler.net.own(), Vec::new(), offer, DEADLINE).await;
        let Err(RequestError::Refused(refusal)) = sent else { panic!("{sent:?}") };
        assert_eq!(refusal.kind, RefusalKind::NotAllowed);
    }

    // The lease was released: its last receipt is signed by both, and both know the same sum.
    let data_dir = lab.directory.path().join("worker-data");
    let read = || crate::worker_receipts(&data_dir).unwrap();
    eventually("the last receipt is countersigned", || async {
        read().iter().any(|stored| stored.issued.receipt.is_final && stored.is_confirmed())
    })
    .await;
    let receipts = read();
    assert_eq!(receipts.len(), 1);
    let receipt = &receipts[0].issued.receipt;
    assert_eq!(receipt.organisation.as_str(), "acme");
    assert_eq!(receipt.worker, own);
    let sums = machine.read_at(|scheduler, now| scheduler.ledger(now));
    let sum = &sums[&(receipt.organisation.clone(), receipt.worker)];
    assert_eq!((sum.leases, sum.held, sum.amount), (1, receipt.held, receipt.amount()));
}
