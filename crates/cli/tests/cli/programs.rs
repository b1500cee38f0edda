//! Workers that run programs of their operators.

use std::process::Command;

use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::command::hypha;
use crate::lab::{self, Lab};
use crate::process::{Node, WAIT_TIMEOUT, wait_until};

/// One attempt a task: a program that fails once fails again.
const NO_RETRIES: &str = "[scheduler.retry]\nmax_attempts = 1\n";

const DOCUMENT: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/executors.md"));

/// The keys of an executor whose only model has its name.
pub fn program(name: &str, command: &str, arguments: &[&str], more: &str) -> String {
    format!(
        "[[executors]]\nname = \"{name}\"\nruntime = \"process\"\nmodels = [\"{name}\"]\n\
         cmd = \"{command}\"\nargs = {arguments:?}\n{more}\n"
    )
}

#[test]
fn a_program_s_output_is_the_result_and_its_complaint_the_error() {
    let upper = program("upper", "tr", &["a-z", "A-Z"], "");
    let fails = "echo a long story >&2; echo 'the very cause' >&2; exit 3";
    let fails = program("fails", "sh", &["-c", fails], "");
    let cluster = Cluster::start_with("program-output", NO_RETRIES, &[&(upper + &fails)]);
    let run = |model: &str| {
        cluster.call("POST /api/v1/tasks?wait=50", &json!({"model": model, "input": "hello"}))
    };
    let task = run("upper");
    assert_eq!(
        (&task["status"], &task["result"]),
        (&json!("completed"), &json!("HELLO")),
        "{task}"
    );
    let task = run("fails");
    assert_eq!((&task["status"], &task["result"]), (&json!("failed"), &Value::Null), "{task}");
    let error = task["error"].as_str().unwrap();
    assert!(error.contains("the very cause") && error.contains('3'), "{error}");
}

#[test]
fn a_result_may_be_as_large_as_the_configuration_says() {
    const BYTES: usize = 20_000_000;
    let count = |limit: &str| {
        let digits = format!("yes 0123456 | head -c {BYTES}");
        program("digits", "sh", &["-c", &digits], &format!("[executors.limits]\n{limit}"))
    };
    let cluster = Cluster::start_with("program-large", NO_RETRIES, &[&count("")]);
    let id = cluster.submit("digits", &Value::Null);
    assert_eq!(cluster.ended(&id)["status"], "completed");
    let result = cluster.hypha(&["tasks", &id, "--result"]);
    assert!(result == "0123456\n".repeat(BYTES / 8), "{} bytes", result.len());

    let cluster = Cluster::start_with("program-larger", NO_RETRIES, &[&count("result = '10MB'")]);
    let task = cluster.ended(&cluster.submit("digits", &Value::Null));
    assert_eq!(task["status"], "failed", "{task}");
    assert!(task["error"].as_str().unwrap().contains("10000000"), "{task}");
}

#[test]
fn a_cancelled_program_is_ended() {
    let kept = crate::scratch::Scratch::new("program-kept");
    let file = kept.path("pid");
    let script = format!("echo $$ > '{file}.new'; mv '{file}.new' '{file}'; exec sleep 600");
    let write = format!("write = [{:?}]", kept.path(""));
    let endless = program("endless", "sh", &["-c", &script], &write);
    let cluster = Cluster::start_with("program-cancel", NO_RETRIES, &[&endless]);
    let id = cluster.submit("endless", &json!(null));
    let pid = wait_until("started", WAIT_TIMEOUT, || std::fs::read_to_string(&file).ok());
    let process = format!("/proc/{}", pid.trim());
    assert!(std::fs::exists(&process).unwrap(), "{process}");
    assert_eq!(cluster.hypha(&["cancel", &id]), format!("{id} cancelled\n"));
    wait_until("ended", WAIT_TIMEOUT, || (!std::fs::exists(&process).unwrap()).then_some(()));
}

/// The program of the document, with a model that returns the id of its process.
#[test]
fn a_warm_program_runs_one_task_after_another() {
    let (_, rest) = DOCUMENT.split_once("\n```python\n").unwrap();
    let (text, _) = rest.split_once("\n```\n").unwrap();
    assert_eq!(text.matches("model = str.upper").count(), 1, "{text}");
    let text = text.replace("model = str.upper", "model = lambda word: str(os.getpid())");
    let kept = crate::scratch::Scratch::new("program-warm-kept");
    let file = kept.file("program.py", &text);
    let more = format!("warm = true\nread = [{file:?}]");
    let warm = program("warm", "python3", &[&file], &more);
    let cluster = Cluster::start_with("program-warm", NO_RETRIES, &[&warm]);
    let run = || {
        let task =
            cluster.call("POST /api/v1/tasks?wait=50", &json!({"model": "warm", "input": "word"}));
        assert_eq!(task["status"], "completed", "{task}");
        task["result"].as_u64().unwrap_or_else(|| panic!("{task}"))
    };
    assert_eq!(run(), run());
}

/// The script of the document.
#[test]
fn result_of_a_script_is_shown_as_text_json_or_bytes() {
    let (_, rest) = DOCUMENT.split_once("\n```sh\n").unwrap();
    let (script, _) = rest.split_once("\n```\n").unwrap();
    let kept = crate::scratch::Scratch::new("program-script-kept");
    let file = kept.file("words.sh", script);
    let words = program("words", "sh", &[&file], &format!("read = [{file:?}]"));
    let text = program("text", "sh", &["-c", "printf 'plain text'"], "");
    let bytes = program("bytes", "sh", &["-c", "printf '\\377\\376'"], "");
    let cluster = Cluster::start_with("program-script", NO_RETRIES, &[&(words + &text + &bytes)]);
    let run = |model: &str| {
        cluster.hypha(&["submit", "--model", model, "--input", "what is a hypha", "--wait"])
    };
    assert_eq!(run("words"), "{\n  \"words\": 4\n}\n");
    assert_eq!(run("text"), "plain text\n");
    let task = |model: &str| cluster.call("POST /api/v1/tasks?wait=50", &json!({"model": model}));
    let shown = |task: &Value| cluster.hypha(&["tasks", task["id"].as_str().unwrap()]);
    let ended = task("text");
    assert_eq!(ended["result"], json!({"base64": "cGxhaW4gdGV4dA=="}), "{ended}");
    assert!(shown(&ended).contains("\nresult       plain text\n"));
    let ended = task("bytes");
    assert!(shown(&ended).contains("\nresult       2 bytes that are not text; `hypha tasks task-"));
    let submit = ["submit", "--model", "bytes", "--input", "", "--wait"];
    let printed = hypha(&[&submit[..], &["--scheduler", &cluster.url()]].concat());
    assert_eq!(printed.stdout, b"\xff\xfe", "not a byte is added");
}

#[test]
fn a_worker_without_namespaces_says_what_its_sandbox_leaves_open() {
    let able = Command::new("unshare").args(["--user", "--map-root-user", "true"]).output();
    let lab = Lab::new("program-sandbox");
    let gateway = lab.member("gateway", "gateway", &[], "").start();
    let keys = program("upper", "tr", &["a-z", "A-Z"], "");
    let member = lab.member("worker", "worker", &[&lab::address(&gateway)], &keys);
    let worker = if able.is_ok_and(|output| output.status.success()) {
        let switch_off = "echo 0 > /proc/sys/user/max_user_namespaces && exec \"$0\" \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "sh", "-c", switch_off]);
        command.args([env!("CARGO_BIN_EXE_hypha"), "worker", "run", "-c", &member.config]);
        Node::start("worker", &mut command)
    } else {
        member.start()
    };
    let gap = "change modes, owners and dates of files";
    let logged = worker.wait_for_line("programs are confined in part: ", WAIT_TIMEOUT);
    assert!(logged.contains("cannot create namespaces") && logged.contains(gap), "{logged}");
    let address = lab::address(&worker);
    let other = lab.member("gateway", "other", &[], "");
    let probe = || hypha(&["gateway", "probe", &address, "-c", &other.config]);
    let shown = wait_until("the worker is ready", WAIT_TIMEOUT, || {
        let probe = probe();
        probe.status.success().then(|| String::from_utf8(probe.stdout).unwrap())
    });
    assert!(
        shown.contains("note: programs of executor `upper` can ") && shown.contains(gap),
        "{shown}"
    );
    let (_, ready) = lab::ask(&worker, "/readyz");
    let ready: Value = serde_json::from_str(&ready).unwrap();
    assert!(ready["notes"][0].as_str().unwrap().contains(gap), "{ready}");
}
