//! How a node starts, or reports why it does not.

use std::process::Command;

use serde_json::Value;

use crate::cluster::{Cluster, builtin};
use crate::command::{done, failed, refused};
use crate::lab::{self, Lab};
use crate::process::{Node, WAIT_TIMEOUT};

/// Runs the member after one line of its configuration was replaced; expects a complaint about the new line,
/// with the file and the position.
#[track_caller]
fn refused_with(lab: &Lab, old: &str, new: &str, expected: &str) {
    let config = lab.path("worker.toml");
    let right = std::fs::read_to_string(&config).unwrap();
    let is_old = |line: &&str| line.starts_with(old);
    let line = right.lines().find(is_old).unwrap_or_else(|| panic!("no {old} in {right}"));
    std::fs::write(&config, right.replace(line, new)).unwrap();
    let number = 1 + right.lines().position(|one| one == line).unwrap();
    let place = format!("{config}:{number}:");
    refused(&["worker", "run", "-c", &config], &place);
    refused(&["worker", "run", "-c", &config], expected);
    refused(&["config", "check", "--role", "worker", &config], expected);
    refused(&["config", "check", "--role", "worker", "-c", &config], expected);
    std::fs::write(&config, right).unwrap();
}

#[test]
fn a_wrong_configuration_is_refused_with_its_place() {
    let lab = Lab::new("wrong-configuration");
    let gateway = "/ip4/127.0.0.1/tcp/4001";
    lab.member("worker", "worker", &[gateway], "record_ttl = 5\nlog_level = \"info\"");
    refused_with(&lab, "log_level", "log_levle = \"info\"", "unknown key `log_levle`");
    refused_with(&lab, "log_level", "[relay]", "it is for a gateway node");
    refused_with(&lab, "record_ttl", "record_ttl = \"long\"", "`record_ttl`: the value is not a");
    refused_with(&lab, "record_ttl", "record_ttl = 0", "`record_ttl`");
    refused_with(&lab, "listen_addresses", "listen_addresses = 4001", "`listen_addresses`");
    refused_with(&lab, "listen_addresses", "listen_addresses = [\"0:4001\"]", "malformed address");
    refused_with(&lab, "gateway_addresses", "gateway_addresses = [\"x\"]", "malformed address");
    refused_with(&lab, "cert_pem", "cert_pem = \"none.pem\"", "there is no file");
    refused_with(&lab, "key_pem", "key_pem = key", "expected");

    let config = lab.path("worker.toml");
    let run = ["worker", "run", "-c", &config];
    refused(&[&run[..], &["--listen", "0:4001"]].concat(), "--listen: malformed address");
    refused(&[&run[..], &["--gateway", "x"]].concat(), "--gateway: malformed address");
    refused(&[&run[..], &["--exclude-cidr", "10.0.0.0/40"]].concat(), "--exclude-cidr");
    refused(&["worker", "run", "-c", &lab.path("none.toml")], "cannot read the configuration");
}

#[test]
fn wrong_certificates_are_refused() {
    let lab = Lab::new("wrong-certificates");
    lab.certify("scheduler", "other");
    let key = lab.path("other-key.pem");
    let worker = lab.member("worker", "worker", &[], "");
    let right = std::fs::read_to_string(&worker.config).unwrap();
    let refused_for = |changed: &str, expected: &str| {
        std::fs::write(&worker.config, changed).unwrap();
        refused(&["worker", "run", "-c", &worker.config], expected);
    };
    let swapped = right.replace("worker-cert", "other-cert").replace("worker-key", "other-key");
    refused_for(&swapped, "the certificate is for a scheduler, and this node runs as a worker");
    refused_for(&right.replace("worker-key", "other-key"), &format!("the key in {key} does not"));
    refused_for(&right.replace("worker-cert.pem", "other-key.pem"), "there is no certificate in");

    let stranger = Lab::new("wrong-certificates-stranger");
    let trust = std::fs::read_to_string(stranger.path("lab-ca-trust.pem")).unwrap();
    std::fs::write(lab.path("worker-trust.pem"), trust).unwrap();
    refused_for(&right, "worker-cert.pem");
}

#[test]
fn taken_address_is_a_failure() {
    let lab = Lab::new("taken");
    let first = lab.member("gateway", "first", &[], "").start();
    let taken = lab::address(&first);
    let taken = taken.split("/p2p/").next().unwrap();
    let second = lab.member("gateway", "second", &[], "");
    let run = ["gateway", "run", "-c", &second.config, "--listen", taken];
    failed(1, &run, &format!("cannot listen on {taken}"));
    let metrics = format!("metrics_address = \"{}\"", lab::status(&first));
    let third = lab.member("gateway", "third", &[], "");
    let text = std::fs::read_to_string(&third.config).unwrap();
    std::fs::write(&third.config, text.replace("metrics_address = \"127.0.0.1:0\"", &metrics))
        .unwrap();
    let mut node = third.start();
    assert_eq!(node.wait(WAIT_TIMEOUT).code(), Some(1));
    node.wait_for_line("cannot listen on metrics_address", WAIT_TIMEOUT);
}

/// As a new user does it: certificates, `init`, `run`.
#[test]
fn configuration_of_init_runs_and_is_never_overwritten() {
    let lab = Lab::new("init");
    lab.certify("gateway", "front");
    let config = lab.path("front.toml");
    let init = ["gateway", "init", "-n", "front", "-o", &config];
    let printed = done(&[&init[..], &["--listen", "/ip4/127.0.0.1/tcp/0"]].concat());
    assert!(printed.contains(&format!("next: `hypha gateway run -c {config}`")), "{printed}");
    let written = std::fs::read_to_string(&config).unwrap();
    refused(&init, "give --force to replace it");
    assert_eq!(std::fs::read_to_string(&config).unwrap(), written);

    let mut node = Node::hypha("gateway", &["gateway", "run", "-c", &config]);
    assert!(lab::address(&node).starts_with("/ip4/127.0.0.1/tcp/"));
    assert_eq!(lab::ask(&node, "/healthz"), (200, "ok\n".to_owned()));
    assert!(node.terminate(WAIT_TIMEOUT).success());
    done(&[&init[..], &["--force"]].concat());
}

#[test]
fn the_environment_wins_over_the_file_and_a_flag_over_both() {
    let lab = Lab::new("environment");
    let gateway = lab.member("gateway", "front", &[], "log_format = \"human\"");
    let node = gateway.start_among(&[("HYPHA_LOG_FORMAT", "json")]);
    let line = node.wait_for_line("\"listening\"", WAIT_TIMEOUT);
    let line: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(line["fields"]["message"], "listening", "{line}");
    for line in node.output().lines() {
        serde_json::from_str::<Value>(line).unwrap_or_else(|error| panic!("{line}: {error}"));
    }

    let other = "/ip4/127.0.0.2/tcp/0";
    let listen = format!("[\"{other}\"]");
    let node = gateway.start_among(&[("HYPHA_LISTEN_ADDRESSES", &listen)]);
    assert!(lab::address(&node).starts_with("/ip4/127.0.0.2/"), "{}", node.output());

    let mut command = Command::new(env!("CARGO_BIN_EXE_hypha"));
    command.env("HYPHA_LISTEN_ADDRESSES", &listen).args(["gateway", "run", "-c", &gateway.config]);
    command.args(["--listen", "/ip4/127.0.0.3/tcp/0"]);
    let node = Node::start("gateway", &mut command);
    assert!(lab::address(&node).starts_with("/ip4/127.0.0.3/"), "{}", node.output());
}

#[test]
fn every_role_has_a_launcher() {
    for (launcher, role) in [
        (env!("CARGO_BIN_EXE_hypha-certutil"), "certutil"),
        (env!("CARGO_BIN_EXE_hypha-data"), "data"),
        (env!("CARGO_BIN_EXE_hypha-gateway"), "gateway"),
        (env!("CARGO_BIN_EXE_hypha-scheduler"), "scheduler"),
        (env!("CARGO_BIN_EXE_hypha-worker"), "worker"),
    ] {
        let launched = |argument: &str| Command::new(launcher).arg(argument).output().unwrap();
        let version = launched("--version");
        let printed = String::from_utf8(version.stdout).unwrap();
        assert!(version.status.success() && printed.starts_with(&format!("hypha-{role} ")));
        assert_eq!(printed, done(&[role, "--version"]));
        assert_eq!(launched("--no-such-flag").status.code(), Some(2), "{role}");
    }
}

#[test]
fn only_a_scheduler_takes_its_memory_in_small_pages() {
    let cluster = Cluster::start("small-pages", &[&builtin(1)]);
    let huge = |node: &Node| {
        let status = std::fs::read_to_string(format!("/proc/{}/status", node.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("THP_enabled:"));
        line.map(|value| value.trim().to_owned())
    };
    // Older kernels do not have it at all.
    let usual = huge(&cluster.workers[0].1);
    assert_ne!(usual.as_deref(), Some("0"));
    assert_eq!(huge(&cluster.scheduler.1), usual.map(|_| "0".to_owned()));
}
