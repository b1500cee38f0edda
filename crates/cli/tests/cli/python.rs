//! Third-party programs against a running scheduler: the official `openai` client, requests that
//! `schemathesis` generates, and llama.cpp as a back end.

use std::ffi::{OsStr, OsString};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::cluster::{Cluster, builtin};
use crate::process::{Node, WAIT_TIMEOUT};
use crate::scratch::Scratch;

/// Some hundred requests take seconds; a machine busy with other tests may need ten times as long.
const LONGEST: Duration = Duration::from_secs(180);

/// Generated registrations are refused unless they name this machine, so that no other host is called.
const ONLY_HERE: &str =
    "[scheduler.api]\nbind_address = \"127.0.0.1:0\"\nallowed_networks = [\"127.0.0.0/8\"]\n";

#[test]
fn the_official_client_understands_every_answer() {
    let Some(python) = CLIENTS.python("python::the_official_client_understands_every_answer")
    else {
        return;
    };
    let cluster = Cluster::start("python-openai", &[&builtin(2), &builtin(2)]);
    run(&python, "openai_client.py", &[&cluster.url()]);
}

#[test]
fn made_up_requests_get_documented_answers() {
    let Some(python) = CLIENTS.python("python::made_up_requests_get_documented_answers") else {
        return;
    };
    let cluster = Cluster::start_with("python-generated", ONLY_HERE, &[&builtin(2), &builtin(2)]);
    run(&python, "generated.py", &[&cluster.url()]);
    // And the scheduler still does its work.
    let id = cluster.submit("echo", &json!("after all that"));
    let task = cluster.ended(&id);
    assert_eq!((&task["status"], &task["result"]), (&json!("completed"), &json!("after all that")));
}

/// What llama.cpp serves when it is called directly, it serves behind a scheduler and behind a worker: it says that it
/// keeps connections and closes them after each stream, and it answers 500 to an image and 501 to embeddings.
#[test]
fn llama_cpp_serves_as_if_it_were_called_directly() {
    let Some(python) = LLAMA.python("python::llama_cpp_serves_as_if_it_were_called_directly")
    else {
        return;
    };
    let scratch = Scratch::new("python-llama-model");
    let mut server = Command::new(&python);
    server.arg(script("llama_server.py")).arg(scratch.path("random.gguf"));
    let server = Node::start("llama.cpp", &mut server);
    let url = server.wait_for_line("llama.cpp listens at {}", WAIT_TIMEOUT);

    // A task has one attempt, so that no failure is hidden by another.
    let strict = "[scheduler.retry]\nmax_attempts = 1\n";
    let worker = format!(
        "[[executors]]\nname = \"llama\"\nruntime = \"http\"\nurl = \"{url}\"\n\
         models = [\"behind-a-worker\"]\nconcurrency = 64\n"
    );
    let cluster = Cluster::start_with("python-llama", strict, &[&worker]);
    let at_the_scheduler = json!({"url": url, "models": ["at-the-scheduler"], "concurrency": 64});
    cluster.call("POST /api/v1/workers", &at_the_scheduler);

    let models = ["at-the-scheduler", "behind-a-worker"];
    run(&python, "llama_client.py", &[&cluster.url(), models[0], models[1]]);
    for model in models {
        let input = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3});
        let task = cluster.ended(&cluster.submit(model, &input));
        assert_eq!(
            (&task["status"], &task["attempts"]),
            (&json!("completed"), &json!(1)),
            "{task}"
        );
    }
}

/// An environment with packages that tests import.
struct Environment {
    /// The variable that names its Python.
    variable: &'static str,
    /// What `cargo xtask test` calls it.
    capability: &'static str,
}

const CLIENTS: Environment = Environment { variable: "HYPHA_TEST_PYTHON", capability: "python" };
const LLAMA: Environment = Environment { variable: "HYPHA_TEST_LLAMA_PYTHON", capability: "llama" };

impl Environment {
    /// Its Python. Prints that `test` is skipped where there is none.
    fn python(&self, test: &str) -> Option<OsString> {
        let Environment { variable, capability } = self;
        let python = std::env::var_os(variable);
        if python.is_none() {
            eprintln!("SKIPPED: {test}: {variable} names no Python [needs: {capability}]");
        }
        python
    }
}

/// The path of a script of `tests/python`.
fn script(name: &str) -> String {
    format!("{}/tests/python/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// Runs a script of `tests/python` against a scheduler; if it fails or hangs, so does the test.
#[track_caller]
fn run(python: &OsStr, name: &str, arguments: &[&str]) {
    // Hypothesis writes its database where it runs.
    let scratch = Scratch::new(&format!("python-{name}"));
    let mut command = Command::new(python);
    command.arg(script(name)).args(arguments).current_dir(scratch.path(""));
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
    assert!(!is_late, "{name} still runs after {LONGEST:?}: {}", told.concat());
    assert!(output.status.success(), "{name}: {}: {}", output.status, told.concat());
    println!("{}", told.concat());
}
