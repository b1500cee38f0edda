//! An organisation with its nodes: certificates and configurations in a directory of the test.

use std::net::SocketAddr;
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;

use crate::command::done;
use crate::hosts::Host;
use crate::http;
use crate::process::{Node, WAIT_TIMEOUT};
use crate::scratch::Scratch;

const LOOPBACK: &str = "/ip4/127.0.0.1/tcp/0";

/// An authority that can issue certificates. Its files are removed with it.
pub struct Lab {
    scratch: Scratch,
}

/// A node that can be run, any number of times.
pub struct Member {
    pub role: &'static str,
    pub peer: String,
    /// The path of its configuration.
    pub config: String,
}

impl Lab {
    pub fn new(test: &str) -> Lab {
        let lab = Lab { scratch: Scratch::new(test) };
        let directory = lab.path("");
        done(&["certutil", "root", "-o", "lab", "-d", &directory]);
        let [cert, key] = ["cert", "key"].map(|what| lab.path(&format!("lab-root-ca-{what}.pem")));
        let root = ["--root-cert", &cert, "--root-key", &key];
        done(&[&["certutil", "org", "-o", "lab", "-d", &directory][..], &root].concat());
        lab
    }

    pub fn path(&self, name: &str) -> String {
        self.scratch.path(name)
    }

    /// Writes a file, and returns its path.
    pub fn file(&self, name: &str, text: &str) -> String {
        self.scratch.file(name, text)
    }

    /// A member on this machine, with `keys` as further lines of its configuration.
    pub fn member(&self, role: &'static str, name: &str, gateways: &[&str], keys: &str) -> Member {
        self.member_at(LOOPBACK, role, name, gateways, keys)
    }

    pub fn member_at(
        &self,
        listen: &str,
        role: &'static str,
        name: &str,
        gateways: &[&str],
        keys: &str,
    ) -> Member {
        let peer = self.certify(role, name);
        let own = match role {
            "scheduler" | "worker" => format!("data_dir = \"{name}-data\"\n"),
            _ => String::new(),
        };
        let api = match role == "scheduler" && !keys.contains("[scheduler.api]") {
            true => "[scheduler.api]\nbind_address = \"127.0.0.1:0\"\n",
            false => "",
        };
        let config = format!(
            "cert_pem = \"{name}-cert.pem\"\n\
             key_pem = \"{name}-key.pem\"\n\
             trust_pem = \"{name}-trust.pem\"\n\
             listen_addresses = [\"{listen}\"]\n\
             gateway_addresses = {gateways:?}\n\
             metrics_address = \"127.0.0.1:0\"\n\
             {own}{keys}\n{api}"
        );
        Member { role, peer, config: self.scratch.file(&format!("{name}.toml"), &config) }
    }

    /// Makes a certificate, and returns the peer id.
    pub fn certify(&self, role: &str, name: &str) -> String {
        let [cert, key] = self.authority();
        let authority = ["--ca-cert", &cert, "--ca-key", &key];
        let node = ["certutil", "node", "-n", name, "--role", role, "-d", &self.path("")];
        let printed = done(&[&node[..], &authority].concat());
        printed.lines().last().unwrap().strip_prefix("peer id ").unwrap().to_owned()
    }

    /// The organisation's revocation list.
    pub fn revocations(&self) -> String {
        self.path("lab-ca-crl.pem")
    }

    pub fn revoke(&self, name: &str) {
        let [cert, key] = self.authority();
        let authority = ["--ca-cert", &cert, "--ca-key", &key, "--crl", &self.revocations()];
        let revoked = self.path(&format!("{name}-cert.pem"));
        done(&[&["certutil", "revoke", &revoked][..], &authority].concat());
    }

    fn authority(&self) -> [String; 2] {
        ["cert", "key"].map(|what| self.path(&format!("lab-ca-{what}.pem")))
    }
}

impl Member {
    pub fn start(&self) -> Node {
        self.start_with(&[])
    }

    pub fn start_with(&self, flags: &[&str]) -> Node {
        Node::hypha(self.role, &[&[self.role, "run", "-c", &self.config][..], flags].concat())
    }

    pub fn start_on(&self, host: &Host) -> Node {
        Node::hypha_on(host, self.role, &[self.role, "run", "-c", &self.config])
    }

    /// With variables of the environment.
    pub fn start_among(&self, variables: &[(&str, &str)]) -> Node {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hypha"));
        command.args([self.role, "run", "-c", &self.config]).envs(variables.iter().copied());
        Node::start(self.role, &mut command)
    }

    /// What `hypha scheduler workers` lists with this member's configuration: peer ids.
    #[track_caller]
    pub fn workers(&self, flags: &[&str]) -> Vec<String> {
        let listed = ["scheduler", "workers", "-c", &self.config, "--json"];
        let listed: Value = serde_json::from_str(&done(&[&listed[..], flags].concat())).unwrap();
        let peer = |one: &Value| one["peer"].as_str().unwrap().to_owned();
        listed.as_array().unwrap().iter().map(peer).collect()
    }
}

/// The address that a node listens on, once it does.
#[track_caller]
pub fn address(node: &Node) -> String {
    node.wait_for_line("listening address={}", WAIT_TIMEOUT)
}

/// The address of a node's health and metrics.
#[track_caller]
pub fn status(node: &Node) -> SocketAddr {
    node.wait_for_line("metrics at http://{}/metrics", WAIT_TIMEOUT).parse().unwrap()
}

/// The entry of `peer` in a node's `/peers`; null if they are not connected.
#[track_caller]
pub fn entry(peers: &str, peer: &str) -> Value {
    let peers: Vec<Value> = serde_json::from_str(peers).unwrap();
    peers.into_iter().find(|one| one["peer"] == peer).unwrap_or_default()
}

/// A node's response to `path`, with its status.
#[track_caller]
pub fn ask(node: &Node, path: &str) -> (u16, String) {
    http::get(status(node), path).unwrap()
}

/// Kills a node, without a graceful stop.
pub fn kill(mut node: Node) {
    node.signal(Signal::KILL);
    node.wait(WAIT_TIMEOUT);
}
