//! A network of processes on this machine: discovery, requests, losses and reconnects.

use std::net::TcpListener;
use std::time::Duration;

use rustix::process::Signal;

use crate::command::{done, failed, refused};
use crate::lab::{self, Lab, Member};
use crate::process::{Node, WAIT_TIMEOUT, wait_until};

/// A worker that can run something, and is forgotten soon after it vanishes.
const OFFER: &str = "record_ttl = 5
region = \"here\"
[[executors]]
name = \"chat\"
runtime = \"builtin\"
models = [\"llama\"]";

/// Much longer than the TTL of [`OFFER`], and shorter than a worker's default of a minute.
const FORGOTTEN: Duration = Duration::from_secs(40);

/// What the documentation promises after a restart of a gateway.
const BACK: Duration = Duration::from_secs(30);

/// A gateway, a scheduler and a worker.
struct Swarm {
    lab: Lab,
    gateway: Node,
    /// Where the gateway listens.
    front: String,
    scheduler: (Member, Node),
    worker: (Member, Node),
}

impl Swarm {
    /// All are connected and the scheduler has found the worker.
    fn start(test: &str, gateway_keys: impl Fn(&Lab) -> String) -> Swarm {
        let lab = Lab::new(test);
        let keys = gateway_keys(&lab);
        let gateway = lab.member("gateway", "gateway", &[], &keys).start();
        let front = lab::address(&gateway);
        let start = |member: Member| {
            let node = member.start();
            (member, node)
        };
        let search = "[scheduler]\ndiscovery_interval = 1";
        let scheduler = start(lab.member("scheduler", "scheduler", &[&front], search));
        let worker = start(lab.member("worker", "worker", &[&front], OFFER));
        let swarm = Swarm { lab, gateway, front, scheduler, worker };
        swarm.scheduler.1.wait_for_line(&swarm.found(), WAIT_TIMEOUT);
        swarm
    }

    fn found(&self) -> String {
        format!("found a worker peer={}", self.worker.0.peer)
    }

    fn gone(&self) -> String {
        format!("a worker left the network: it sent a farewell peer={}", self.worker.0.peer)
    }

    fn wait_until_listed(&self, flags: &[&str]) {
        wait_until("listed", WAIT_TIMEOUT, || {
            (self.scheduler.0.workers(flags) == [self.worker.0.peer.clone()]).then_some(())
        });
    }
}

#[test]
fn workers_and_data_sets_are_found_by_what_they_offer() {
    let swarm = Swarm::start("offers", |_| String::new());
    let plain = swarm.lab.member("worker", "plain", &[&swarm.front], "record_ttl = 5");
    let _plain_node = plain.start();
    let datasets = format!("[[datasets]]\nname = \"digits\"\npath = \"{}\"", swarm.lab.path(""));
    let data = swarm.lab.member("data", "data", &[&swarm.front], &datasets);
    let _data_node = data.start();
    let (member, peer) = (&swarm.scheduler.0, swarm.worker.0.peer.clone());
    wait_until("both listed", WAIT_TIMEOUT, || (member.workers(&[]).len() == 2).then_some(()));

    for (query, expected) in [
        (&["models=llama"][..], vec![peer.clone()]),
        (&["models=llama", "executor=chat", "cpu_cores=0.5"], vec![peer.clone()]),
        (&["models=mistral"], vec![]),
        (&["models=llama", "min_memory=1000TB"], vec![]),
    ] {
        let flags: Vec<&str> = query.iter().flat_map(|part| ["--query", *part]).collect();
        assert_eq!(member.workers(&flags), expected, "{query:?}");
    }
    let list = ["scheduler", "workers", "-c", &member.config];
    let table = done(&[&list[..], &["--query", "models=llama"]].concat());
    assert_eq!(table.lines().count(), 2, "{table}");
    assert!(table.contains("chat (llama)") && table.contains("here"), "{table}");
    assert_eq!(done(&[&list[..], &["--query", "models=none"]].concat()), "no worker matches\n");
    refused(&[&list[..], &["--query", "colour=red"]].concat(), "--query colour: no such key");
    refused(&[&list[..], &["--query", "min_memory=much"]].concat(), "--query min_memory");

    let datasets = |name: &str| done(&["scheduler", "datasets", name, "-c", &member.config]);
    wait_until("served", WAIT_TIMEOUT, || datasets("digits").contains(&data.peer).then_some(()));
    assert_eq!(datasets("letters"), "no node serves it\n");
}

#[test]
fn nodes_say_how_they_are() {
    let swarm = Swarm::start("status", |_| String::new());
    let (scheduler, node) = &swarm.scheduler;
    let probe = |address: &str| {
        done(&["scheduler", "probe", address, "-c", &scheduler.config, "--timeout", "20"])
    };
    for (role, address) in
        [("gateway", swarm.front.clone()), ("worker", lab::address(&swarm.worker.1))]
    {
        let said = probe(&address);
        assert!(said.starts_with(&format!("ready: {role} of lab, version ")), "{said}");
    }
    assert!(probe(&lab::address(node)).starts_with("alive: scheduler of lab"));

    let (code, figures) = lab::ask(node, "/metrics");
    assert_eq!(code, 200);
    for line in ["hypha_build_info{", "hypha_net_peers{role=\"worker\",link=\"direct\"} 1"] {
        assert!(figures.contains(line), "{line}: {figures}");
    }
    assert_eq!(lab::ask(node, "/readyz").0, 200);
    assert_eq!(lab::ask(node, "/none").0, 404);
    let (_, peers) = lab::ask(node, "/peers");
    assert_eq!(lab::entry(&peers, &swarm.worker.0.peer)["link"], "direct", "{peers}");

    let run = |code, address: &str, expected: &str| {
        let probe = ["scheduler", "probe", address, "-c", &scheduler.config, "--timeout", "1"];
        failed(code, &probe, expected);
    };
    run(2, "nonsense", "malformed address nonsense: expected");
    run(1, "/ip4/127.0.0.1/tcp/9", "cannot reach /ip4/127.0.0.1/tcp/9: Connection refused");
    // A listener that never sends anything.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    run(1, &format!("/ip4/127.0.0.1/tcp/{port}"), "no answer within 1s");
    let other = lab::address(&swarm.worker.1).replace(&swarm.worker.0.peer, &scheduler.peer);
    run(1, &other, "not the one that the address names");

    lab::kill(swarm.gateway);
    wait_until("not ready", WAIT_TIMEOUT, || (lab::ask(node, "/readyz").0 == 503).then_some(()));
    run(1, &lab::address(&swarm.worker.1), "not ready: no gateway is connected");
}

#[test]
fn a_worker_that_stops_says_farewell() {
    let mut swarm = Swarm::start("farewell", |_| String::new());
    let ended = swarm.worker.1.terminate(WAIT_TIMEOUT);
    assert_eq!(ended.code(), Some(0));
    swarm.worker.1.wait_for_line("SIGTERM: stopping", WAIT_TIMEOUT);
    swarm.scheduler.1.wait_for_line(&swarm.gone(), WAIT_TIMEOUT);
    // Immediately, not only when its record expires.
    assert_eq!(swarm.scheduler.0.workers(&[]), [""; 0]);

    let mark = swarm.scheduler.1.mark();
    swarm.worker.1 = swarm.worker.0.start();
    swarm.scheduler.1.wait_for_line_after(mark, &swarm.found(), WAIT_TIMEOUT);
}

/// Its collector accepts requests and never responds, so that stopping takes seconds.
#[test]
fn a_second_signal_stops_at_once() {
    let lab = Lab::new("second-signal");
    let collector = TcpListener::bind("127.0.0.1:0").unwrap();
    let keys = format!("telemetry_endpoint = \"http://{}\"", collector.local_addr().unwrap());
    let mut node = lab.member("gateway", "gateway", &[], &keys).start();
    lab::address(&node);
    node.signal(Signal::TERM);
    // It has left the network, and waits for the collector. Two signals at the same time would count as one.
    node.wait_for_line("runtime: stopped", WAIT_TIMEOUT);
    node.signal(Signal::INT);
    assert_eq!(node.wait(WAIT_TIMEOUT).code(), Some(130));
    node.wait_for_line("SIGINT again: stopping at once", WAIT_TIMEOUT);
}

#[test]
fn a_worker_that_vanished_is_forgotten() {
    let swarm = Swarm::start("vanished", |_| String::new());
    swarm.wait_until_listed(&[]);
    lab::kill(swarm.worker.1);
    wait_until("forgotten", FORGOTTEN, || swarm.scheduler.0.workers(&[]).is_empty().then_some(()));
    swarm
        .scheduler
        .1
        .wait_for_line("a worker left the network: its record has expired", WAIT_TIMEOUT);
}

#[test]
fn all_are_back_after_the_gateway_was_restarted() {
    let mut swarm = Swarm::start("restart", |_| String::new());
    lab::kill(swarm.gateway);
    let (scheduler, worker) = (&swarm.scheduler.1, &swarm.worker.1);
    for node in [scheduler, worker] {
        node.wait_for_line("lost the gateway", WAIT_TIMEOUT);
    }
    let marks = [scheduler.mark(), worker.mark()];
    let listen = swarm.front.split("/p2p/").next().unwrap();
    let gateway = swarm.lab.path("gateway.toml");
    let run = ["gateway", "run", "-c", &gateway, "--listen", listen];
    swarm.gateway = Node::hypha("gateway", &run);
    assert_eq!(lab::address(&swarm.gateway), swarm.front);
    for (node, mark) in [scheduler, worker].into_iter().zip(marks) {
        node.wait_for_line_after(mark, "connected to a gateway", BACK);
    }
    swarm.wait_until_listed(&[]);
}

#[test]
fn the_loss_of_one_of_two_gateways_is_not_noticed() {
    let lab = Lab::new("two-gateways");
    let first = lab.member("gateway", "first", &[], "").start();
    let first_address = lab::address(&first);
    let second = lab.member("gateway", "second", &[&first_address], "").start();
    let second_address = lab::address(&second);
    let both = [first_address.as_str(), second_address.as_str()];
    let scheduler = lab.member("scheduler", "scheduler", &both, "");
    let worker = lab.member("worker", "worker", &both, OFFER);
    let (scheduler_node, worker_node) = (scheduler.start(), worker.start());
    for node in [&scheduler_node, &worker_node] {
        for address in both {
            node.wait_for_line(&format!("connected to a gateway address={address}"), WAIT_TIMEOUT);
        }
    }
    let found = format!("found a worker peer={}", worker.peer);
    scheduler_node.wait_for_line(&found, WAIT_TIMEOUT);

    lab::kill(first);
    for node in [&scheduler_node, &worker_node] {
        node.wait_for_line("lost the gateway", WAIT_TIMEOUT);
        assert_eq!(lab::ask(node, "/readyz").0, 200);
    }
    for flags in [&[][..], &["--gateway", &second_address]] {
        wait_until("listed", WAIT_TIMEOUT, || {
            (scheduler.workers(flags) == [worker.peer.clone()]).then_some(())
        });
    }
    let (_, peers) = lab::ask(&scheduler_node, "/peers");
    assert!(!lab::entry(&peers, &worker.peer).is_null(), "{peers}");
    assert!(
        !scheduler_node.output().contains("a worker left the network"),
        "{}",
        scheduler_node.output()
    );
}

#[test]
fn a_revoked_worker_is_disconnected_and_cannot_rejoin() {
    let swarm = Swarm::start("revoked", |lab| format!("crls_pem = \"{}\"", lab.revocations()));
    swarm.wait_until_listed(&[]);
    let (peer, worker) = (&swarm.worker.0.peer, &swarm.worker.1);
    let mark = worker.mark();
    swarm.lab.revoke("worker");
    let turned_out = swarm.gateway.wait_for_line("disconnected: ", WAIT_TIMEOUT);
    assert!(turned_out.contains("revoked") && turned_out.contains(peer), "{turned_out}");
    worker.wait_for_line_after(mark, "lost the gateway", WAIT_TIMEOUT);
    let refused =
        worker.wait_for_line_after(mark, "the other side refused this node", WAIT_TIMEOUT);
    assert!(refused.contains("CertificateRevoked"), "{refused}");
    swarm.gateway.wait_for_line("refused a connection: ", WAIT_TIMEOUT);
    wait_until("forgotten", FORGOTTEN, || swarm.scheduler.0.workers(&[]).is_empty().then_some(()));
    let (_, peers) = lab::ask(&swarm.gateway, "/peers");
    assert!(lab::entry(&peers, peer).is_null(), "{peers}");
    assert!(!lab::entry(&peers, &swarm.scheduler.0.peer).is_null(), "others stay: {peers}");
}
