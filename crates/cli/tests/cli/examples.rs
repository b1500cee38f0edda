//! Runs the commands that the documents of the HTTP APIs show, unchanged.

use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::path::Path;
use std::process::Command;

use crate::cluster::{Cluster, builtin};
use crate::http;
use crate::process::{Node, WAIT_TIMEOUT, wait_until};

/// Below the range of ephemeral ports of Linux.
const PORTS: Range<u16> = 20_000..30_000;

/// Runs every block of commands of one document, one after the other in one shell.
#[track_caller]
fn check(file: &str) {
    let cluster = Cluster::start(&format!("example-{file}"), &[&builtin(4), &builtin(4)]);
    let (_instance, port) = instance(&cluster);
    let blocks = blocks(&read(file), "sh");
    assert!(!blocks.is_empty(), "{file} shows no commands");
    let mut script = "set -eu\n".to_owned();
    for (line, block) in blocks {
        script += &format!("echo 'the commands at line {line}'\n{block}\n");
    }
    let script = cluster.lab.file("script.sh", &(script + "echo 'all were run'\n"));
    let mut command = Command::new("sh");
    command.arg(script).env("HYPHA", cluster.url()).env("INSTANCE_PORT", port.to_string());
    let mut shell = Node::start(file, &mut command);
    shell.wait_for_line("all were run", WAIT_TIMEOUT);
    assert!(shell.wait(WAIT_TIMEOUT).success());
}

/// The task instance that the documents show.
fn instance(cluster: &Cluster) -> (Node, u16) {
    let programs = blocks(&read("task-instance.md"), "python");
    let [(_, program)] = programs.as_slice() else { panic!("not one program: {programs:?}") };
    let program = cluster.lab.file("instance.py", program);
    let port = free_port();
    let node = Node::start(
        "instance",
        Command::new("python3").args([program.as_str(), &port.to_string(), "demo"]),
    );
    wait_until("answering", WAIT_TIMEOUT, || {
        http::get((Ipv4Addr::LOCALHOST, port).into(), "/status")
            .ok()
            .filter(|(code, _)| *code == 200)
    });
    (node, port)
}

/// A free port that the system does not assign by itself. Each test starts its search elsewhere.
pub fn free_port() -> u16 {
    let first = std::process::id() as usize % PORTS.len();
    let is_free = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
    PORTS.cycle().skip(first).take(PORTS.len()).find(is_free).expect("a free port")
}

fn read(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/api").join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The blocks in `language`, each with the line that it begins at.
fn blocks(document: &str, language: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut lines = document.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        let Some(info) = line.strip_prefix("```") else { continue };
        let block: Vec<&str> =
            lines.by_ref().map(|(_, line)| line).take_while(|line| *line != "```").collect();
        if info == language {
            found.push((number + 2, block.join("\n")));
        }
    }
    found
}

#[test]
fn the_overview_s_commands_work() {
    check("README.md");
}

#[test]
fn the_commands_for_tasks_work() {
    check("tasks.md");
}

#[test]
fn the_commands_for_jobs_work() {
    check("jobs.md");
}

#[test]
fn the_commands_for_task_instances_work() {
    check("task-instances.md");
}

#[test]
fn the_commands_for_one_task_instance_work() {
    check("task-instance.md");
}

#[test]
fn the_commands_for_openai_s_protocol_work() {
    check("openai.md");
}

#[test]
fn every_document_is_run() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/api");
    let mut names: Vec<String> = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let own = include_str!("examples.rs");
    let missing: Vec<_> =
        names.iter().filter(|name| !own.contains(&format!("check(\"{name}\")"))).collect();
    assert!(missing.is_empty(), "{missing:?} are shown and never run");
}

#[test]
fn blocks_are_found_with_their_lines() {
    let document = "a\n```sh\none\ntwo\n```\n```json\n{}\n```\n```sh\nthree\n```\n";
    let expected = [(3, "one\ntwo".to_owned()), (10, "three".to_owned())];
    assert_eq!(blocks(document, "sh"), expected);
}
