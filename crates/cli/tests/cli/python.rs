//! Third-party programs against a running scheduler: the official `openai` client, and requests that
//! `schemathesis` generates.

use std::ffi::{OsStr, OsString};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::cluster::{Cluster, builtin};
use crate::scratch::Scratch;

/// Some hundred requests take seconds; a machine busy with other tests may need ten times as long.
const LONGEST: Duration = Duration::from_secs(180);

/// Generated registrations are refused unless they name this machine, so that no other host is called.
const ONLY_HERE: &str =
    "[scheduler.api]\nbind_address = \"127.0.0.1:0\"\nallowed_networks = [\"127.0.0.0/8\"]\n";

#[test]
fn the_official_client_understands_every_answer() {
    let Some(python) = python("python::the_official_client_understands_every_answer") else {
        return;
    };
    let cluster = Cluster::start("python-openai", &[&builtin(2), &builtin(2)]);
    run(&python, "openai_client.py", &cluster.url());
}

#[test]
fn made_up_requests_get_documented_answers() {
    let Some(python) = python("python::made_up_requests_get_documented_answers") else {
        return;
    };
    let cluster = Cluster::start_with("python-generated", ONLY_HERE, &[&builtin(2), &builtin(2)]);
    run(&python, "generated.py", &cluster.url());
    // And the scheduler still does its work.
    let id = cluster.submit("echo", &json!("after all that"));
    let task = cluster.ended(&id);
    assert_eq!((&task["status"], &task["result"]), (&json!("completed"), &json!("after all that")));
}

/// The Python that has the packages of the scripts. Prints that `test` is skipped where there is none.
fn python(test: &str) -> Option<OsString> {
    let python = std::env::var_os("HYPHA_TEST_PYTHON");
    if python.is_none() {
        eprintln!("SKIPPED: {test}: HYPHA_TEST_PYTHON names no Python [needs: python]");
    }
    python
}

/// Runs a script of `tests/python` against a scheduler; if it fails or hangs, so does the test.
#[track_caller]
fn run(python: &OsStr, script: &str, url: &str) {
    let path = format!("{}/tests/python/{script}", env!("CARGO_MANIFEST_DIR"));
    // Hypothesis writes its database where it runs.
    let scratch = Scratch::new(&format!("python-{script}"));
    let mut command = Command::new(python);
    command.arg(path).arg(url).current_dir(scratch.path(""));
    // A proxy of the machine must not be used for requests to this machine.
    command.env("NO_PROXY", "*").env("no_proxy", "*");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let pid = Pid::from_child(&child);
    let (send, ended) = mpsc::sync_channel(1);
    std::thread::spawn(move || send.send(child.wait_with_output().unwrap()));
    let in_time = ended.recv_timeout(LONGEST);
    let is_late = in_time.is_err();
    let output = in_time.unwrap_or_else(|_| {
        kill_process(pid, Signal::KILL).unwrap();
        ended.recv().unwrap()
    });
    let told = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    assert!(!is_late, "{script} still runs after {LONGEST:?}: {}", told.concat());
    assert!(output.status.success(), "{script}: {}: {}", output.status, told.concat());
    println!("{}", told.concat());
}
