//! A scheduler and a worker behind two NATs, and a gateway that both can reach.

use std::time::Duration;

use serde_json::{Value, json};

use crate::cluster::{api, builtin};
use crate::command::stdout;
use crate::hosts::actor::Browser;
use crate::hosts::{Host, Mapping, Nat, Topology};
use crate::lab::{self, Lab, Member};
use crate::process::{Node, WAIT_TIMEOUT, wait_until};

/// The relayed link is up some seconds after the start; a hole takes a few attempts.
const SETTLED: Duration = Duration::from_secs(90);

/// Silence is noticed by two pings without an answer: each is 15 s after the last and waits for 10 s.
const NOTICED: Duration = Duration::from_secs(90);

const EVERYWHERE: &str = "/ip4/0.0.0.0/tcp/4001";

// Nodes first: fields are dropped in this order, and a host goes away with all that runs on it.
struct Network {
    _gateway: Node,
    scheduler: Node,
    worker: Node,
    /// On the scheduler's host.
    browser: Browser,
    worker_member: Member,
    worker_nat: Nat,
    scheduler_host: Host,
    _hosts: [Host; 2],
    _scheduler_nat: Nat,
    _lab: Lab,
    _internet: Topology,
}

impl Network {
    /// `None` where there are no namespaces. All run and are connected to the gateway.
    fn start(test: &str, mapping: Mapping) -> Option<Network> {
        Network::start_after(test, mapping, |_, _| {})
    }

    /// The same after a change to the routers of the scheduler and the worker.
    fn start_after(
        test: &str,
        mapping: Mapping,
        change: impl FnOnce(&Nat, &Nat),
    ) -> Option<Network> {
        let internet = Topology::new(&format!("nat::{test}"))?;
        let lab = Lab::new(test);
        let public = internet.public_host();
        let (scheduler_nat, worker_nat) = (internet.nat(mapping), internet.nat(mapping));
        change(&scheduler_nat, &worker_nat);
        let (scheduler_host, worker_host) = (scheduler_nat.host(), worker_nat.host());

        let listen = format!("/ip4/{}/tcp/4001", public.address());
        let gateway = lab.member_at(&listen, "gateway", "gateway", &[], "").start_on(&public);
        lab::address(&gateway);
        // A task has one attempt, and neither heartbeat nor renewal shows that a channel has ended.
        let search = "log_level = \"info,hypha_net=debug,hypha_node=debug\"\n\
                      [scheduler]\ndiscovery_interval = 5\nlease_ttl = 3600\n[scheduler.retry]\nmax_attempts = 1\n\
                      [scheduler.fault_tolerance]\nhealth_check_interval = 600\n";
        let scheduler = lab.member_at(EVERYWHERE, "scheduler", "scheduler", &[&listen], search);
        let worker_member = lab.member_at(
            EVERYWHERE,
            "worker",
            "worker",
            &[&listen],
            &format!("log_level = \"info,hypha_net=debug\"\nrecord_ttl = 10\n{}", builtin(1)),
        );
        let scheduler = scheduler.start_on(&scheduler_host);
        let worker = worker_member.start_on(&worker_host);
        for node in [&scheduler, &worker] {
            node.wait_for_line("connected to a gateway", WAIT_TIMEOUT);
        }
        Some(Network {
            _gateway: gateway,
            scheduler,
            worker,
            browser: Browser::start(&scheduler_host),
            worker_member,
            worker_nat,
            scheduler_host,
            _hosts: [public, worker_host],
            _scheduler_nat: scheduler_nat,
            _lab: lab,
            _internet: internet,
        })
    }

    /// The output of a command on the scheduler's host that queries this scheduler.
    #[track_caller]
    fn hypha(&self, arguments: &[&str]) -> String {
        let mut command = self.scheduler_host.command(env!("CARGO_BIN_EXE_hypha"));
        let url = format!("http://{}", api(&self.scheduler));
        let output = command.args(arguments).args(["--scheduler", &url]).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {error}");
        stdout(&output).trim_end().to_owned()
    }

    /// The scheduler's `/peers` entry of the worker.
    fn entry(&mut self) -> Value {
        let status = lab::status(&self.scheduler).to_string();
        lab::entry(&self.browser.get(&status, "/peers"), &self.worker_member.peer)
    }

    #[track_caller]
    fn wait_for_link(&mut self, link: Value, timeout: Duration) {
        let what = format!("linked as {link}");
        wait_until(&what, timeout, || (self.entry()["link"] == link).then_some(()));
    }
}

#[test]
fn a_relayed_link_becomes_direct_where_holes_can_be_punched() {
    let Some(mut network) = Network::start(
        "a_relayed_link_becomes_direct_where_holes_can_be_punched",
        Mapping::EndpointIndependent,
    ) else {
        return;
    };
    let joined = format!("peer connected peer={} role=worker", network.worker_member.peer);
    let joined = network.scheduler.wait_for_line(&joined, SETTLED);
    assert!(joined.ends_with("link=relayed"), "{joined}");
    network.wait_for_link(json!("direct"), SETTLED);
    let address = network.entry()["address"].to_string();
    assert!(address.contains(&network.worker_nat.outer_address().to_string()), "{address}");
    for node in [&network.scheduler, &network.worker] {
        node.wait_for_line("hole punched: the link is direct", WAIT_TIMEOUT);
    }
}

/// The channel of the task is lost with the relayed connection, which is closed some seconds after there is a direct one.
#[test]
fn a_task_uses_up_no_attempt_when_its_link_becomes_direct() {
    let name = "a_task_uses_up_no_attempt_when_its_link_becomes_direct";
    let mapping = Mapping::EndpointIndependent;
    let Some(mut network) = Network::start_after(name, mapping, |scheduler_nat, worker_nat| {
        worker_nat.block(scheduler_nat)
    }) else {
        return;
    };
    let submit = ["submit", "--model", "sleep", "--json-input", "--input", r#"{"ms": 600000}"#];
    let id = network.hypha(&submit);
    let task = |network: &Network| -> Value {
        serde_json::from_str(&network.hypha(&["tasks", &id, "--json"])).unwrap()
    };
    wait_until("running", WAIT_TIMEOUT, || (task(&network)["status"] == "running").then_some(()));
    assert_eq!(network.entry()["link"], "relayed");
    let marks = [network.scheduler.mark(), network.worker.mark()];
    network.worker_nat.unblock();
    network.wait_for_link(json!("direct"), SETTLED);
    let (ended, opened) =
        ("the channel to the worker has ended", "a scheduler has opened a channel");
    network.scheduler.wait_for_line_after(marks[0], ended, SETTLED);
    network.worker.wait_for_line_after(marks[1], opened, WAIT_TIMEOUT);
    let found = task(&network);
    assert_eq!((&found["status"], &found["attempts"]), (&json!("running"), &json!(1)), "{found}");
    assert_eq!(found["failures"], Value::Null, "{found}");
    // The scheduler reaches the run over the new channel.
    network.hypha(&["cancel", &id]);
    let after = network.hypha(&["submit", "--model", "echo", "--input", "next", "--wait"]);
    assert_eq!(after, "next");
}

#[test]
fn a_link_stays_relayed_where_no_hole_can_be_punched() {
    let Some(mut network) =
        Network::start("a_link_stays_relayed_where_no_hole_can_be_punched", Mapping::Symmetric)
    else {
        return;
    };
    network.worker.wait_for_line("hole punching failed, the link stays relayed", SETTLED);
    network.scheduler.wait_for_line("a worker answers", WAIT_TIMEOUT);
    let entry = network.entry();
    assert_eq!(entry["link"], "relayed");
    wait_until("pinged again", NOTICED, || {
        let now = network.entry();
        (now["rtt_ms"].is_number() && now["rtt_ms"] != entry["rtt_ms"]).then_some(())
    });
    assert_eq!(network.entry()["link"], "relayed");
    assert!(!network.scheduler.output().contains("link changed"));
    let relayed = network.worker.wait_for_line("reachability: ", SETTLED);
    assert!(relayed.contains("reachability: relayed through gateways"), "{relayed}");
}

#[test]
fn a_partition_is_noticed_and_heals() {
    let Some(mut network) =
        Network::start("a_partition_is_noticed_and_heals", Mapping::EndpointIndependent)
    else {
        return;
    };
    network.wait_for_link(json!("direct"), SETTLED);
    let marks = [network.scheduler.mark(), network.worker.mark()];
    network.worker_nat.partition();
    network.wait_for_link(Value::Null, NOTICED);
    network.worker.wait_for_line_after(marks[1], "lost the gateway", NOTICED);

    // Direct or relayed: the routers may still remember the link that broke.
    network.worker_nat.heal();
    network.worker.wait_for_line_after(marks[1], "connected to a gateway", SETTLED);
    network.scheduler.wait_for_line_after(marks[0], "a worker answers", SETTLED);
    assert!(!network.entry().is_null());
}
