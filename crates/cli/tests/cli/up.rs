//! `hypha up`: starts a network with one command, stops it as a whole, and keeps its data.

use rustix::process::{Pid, Signal};

use crate::command::{done, failed, refused};
use crate::process::{Node, WAIT_TIMEOUT, wait_until};
use crate::scratch::Scratch;

/// Two workers; with the gateway and the scheduler four nodes.
const NODES: usize = 4;

struct Up {
    node: Node,
    url: String,
}

impl Up {
    /// All nodes are up.
    fn start(directory: &str) -> Up {
        let flags = ["--dir", directory, "--api", "127.0.0.1:0", "--workers", "2"];
        let node = Node::hypha("up", &[&["up"][..], &flags].concat());
        let line = "hypha is up: 2 workers, at {}";
        let url = node.wait_for_line(line, WAIT_TIMEOUT);
        Up { node, url }
    }

    fn hypha(&self, arguments: &[&str]) -> String {
        done(&[arguments, &["--scheduler", &self.url]].concat())
    }

    fn nodes(&self) -> Vec<u32> {
        let nodes = children(self.node.id());
        assert_eq!(nodes.len(), NODES, "{nodes:?}");
        nodes
    }
}

#[test]
fn a_whole_network_starts_and_stops_with_one_command() {
    let scratch = Scratch::new("up");
    let directory = scratch.path("network");
    let mut first = Up::start(&directory);
    let output = first.node.output();
    assert!(
        !output.contains("the gateway is unreachable"),
        "the nodes wait for the gateway: {output}"
    );
    let submit = ["submit", "--model", "echo", "--input", "hello"];
    assert_eq!(first.hypha(&[&submit[..], &["--wait"]].concat()), "hello\n");
    let listed = first.hypha(&["tasks"]);
    let id = listed.lines().nth(1).unwrap().split(' ').next().unwrap().to_owned();
    failed(1, &["up", "--dir", &directory, "--api", "127.0.0.1:0"], "another `hypha up` runs in");
    assert_eq!(first.hypha(&["tasks", &id, "--result"]), "\"hello\"");
    let nodes = first.nodes();
    assert!(first.node.terminate(WAIT_TIMEOUT).success());
    let left: Vec<_> = nodes.into_iter().filter(|pid| runs(*pid)).collect();
    assert!(left.is_empty(), "{left:?} still run");

    let second = Up::start(&directory);
    assert_eq!(second.hypha(&["tasks", &id, "--result"]), "\"hello\"");
    assert_eq!(second.hypha(&[&submit[..], &["--wait"]].concat()), "hello\n");
}

#[test]
fn no_node_outlives_the_command_that_was_killed() {
    let scratch = Scratch::new("up-killed");
    let mut up = Up::start(&scratch.path("network"));
    let nodes = up.nodes();
    up.node.signal(Signal::KILL);
    up.node.wait(WAIT_TIMEOUT);
    wait_until("all ended", WAIT_TIMEOUT, || (!nodes.iter().any(|pid| runs(*pid))).then_some(()));
}

#[test]
fn an_address_that_another_has_is_named_and_nothing_is_left_behind() {
    let scratch = Scratch::new("up-taken");
    let directory = scratch.path("network");
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let api = other.local_addr().unwrap().to_string();
    let expected = format!("cannot serve the API at {api}: another program has this address");
    failed(1, &["up", "--dir", &directory, "--api", &api], &expected);
    assert!(!std::fs::exists(directory).unwrap());
}

#[test]
fn a_slip_in_a_node_s_file_ends_all_with_the_line_that_names_it() {
    let scratch = Scratch::new("up-slip");
    let directory = scratch.path("network");
    let mut up = Up::start(&directory);
    let slip = |name: &str| {
        let file = scratch.path(&format!("network/{name}.toml"));
        let right = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, format!("dta_dir = 1\n{right}")).unwrap();
    };
    slip("worker-1");
    let is_it = |pid: &u32| {
        let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.contains("worker-1.toml")
    };
    let worker = up.nodes().into_iter().find(is_it).unwrap();
    let worker = Pid::from_raw(worker.try_into().unwrap()).unwrap();
    rustix::process::kill_process(worker, Signal::KILL).unwrap();
    let line = "hypha: worker-1 cannot run as it is configured: ";
    let line = up.node.wait_for_line(line, WAIT_TIMEOUT);
    assert!(line.contains("network/worker-1.toml:1:1: unknown key `dta_dir`"), "{line}");
    assert_eq!(up.node.wait(WAIT_TIMEOUT).code(), Some(2));

    // The scheduler's own file is read before anything runs.
    slip("scheduler");
    let up = ["up", "--dir", &directory, "--api", "127.0.0.1:0"];
    refused(&up, "network/scheduler.toml:1:1: unknown key `dta_dir`");
}

/// The processes that this one has started and that have not ended.
fn children(pid: u32) -> Vec<u32> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let started = |thread: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_to_string(thread.unwrap().path().join("children")).unwrap_or_default()
    };
    let all: Vec<String> = threads.map(started).collect();
    all.iter().flat_map(|some| some.split_whitespace()).map(|pid| pid.parse().unwrap()).collect()
}

/// Whether it is running: a zombie is not.
fn runs(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = status.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    state.is_some_and(|state| !['Z', 'X'].contains(&state))
}
