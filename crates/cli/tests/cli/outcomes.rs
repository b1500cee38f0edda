//! Failures and results of tasks, from a program to the client.

use serde_json::{Value, json};

use crate::cluster::{Cluster, api};
use crate::http;
use crate::programs::program;

const NO_RETRIES: &str = "[scheduler.retry]\nmax_attempts = 1\n";

/// Each program fails in its own way; a client of OpenAI's protocol gets a status that shows whose fault it
/// is, and the program's message.
#[test]
fn error_of_a_program_reaches_openai_clients() {
    let script = |name, script| program(name, "sh", &["-c", script], "");
    let workers = script("picky", "echo 'there is no voice' >&2; exit 65")
        + &script("broken", "echo 'out of ink' >&2; exit 3")
        + &script("greedy", "yes 0123456 | head -c 100000")
        + "[executors.limits]\nresult = '10kB'\n";
    let cluster = Cluster::start_with("outcome-openai", NO_RETRIES, &[&workers]);
    let address = api(&cluster.scheduler.1);
    for (model, status, kind, code, words) in [
        ("picky", 400, "invalid_request_error", None, "there is no voice"),
        ("broken", 500, "server_error", Some("program_failed"), "out of ink"),
        ("greedy", 500, "server_error", Some("limit_exceeded"), "10000 bytes"),
    ] {
        for stream in [false, true] {
            let body = json!({"model": model, "messages": [], "stream": stream}).to_string();
            let line = "POST /v1/chat/completions";
            let (got, text) = http::send(address, line, "", &body).unwrap();
            assert_eq!(got, status, "{model}: {text}");
            let error = &serde_json::from_str::<Value>(&text).unwrap()["error"];
            assert_eq!((error["type"].as_str(), error["code"].as_str()), (Some(kind), code));
            assert!(error["message"].as_str().unwrap().contains(words), "{model}: {text}");
        }
        let task = cluster.ended(&cluster.submit(model, &json!("x")));
        let expected = match model {
            "picky" => "invalid_input",
            "broken" => "program_failed",
            _ => "limit_exceeded",
        };
        assert_eq!((&task["status"], &task["error_kind"]), (&json!("failed"), &json!(expected)));
        let shown = cluster.hypha(&["tasks", task["id"].as_str().unwrap()]);
        assert!(shown.contains(&format!("\nerror kind   {expected}\n")), "{shown}");
        let (_, metrics) = http::get(address, "/metrics").unwrap();
        let counted = format!("hypha_scheduler_attempts_failed_total{{kind=\"{expected}\",fault=");
        let line = metrics.lines().find(|line| line.starts_with(&counted));
        assert!(line.is_some_and(|line| line.ends_with(" 3")), "{line:?}");
    }
}

/// A result that looks like the name of an object is a result, and an object is returned intact or not at
/// all.
#[test]
fn result_is_returned_intact_or_as_an_error() {
    const BYTES: usize = 3_000_000;
    let digits = format!("yes 0123456 | head -c {BYTES}");
    let workers = program("digits", "sh", &["-c", &digits], "") + &program("same", "cat", &[], "");
    let cluster = Cluster::start_with("outcome-results", NO_RETRIES, &[&workers]);
    let large = cluster.ended(&cluster.submit("digits", &Value::Null));
    assert_eq!(large["result_object"]["bytes"], BYTES, "{large}");
    let id = large["id"].as_str().unwrap();
    let digest = large["result_object"]["digest"].as_str().unwrap();
    assert_eq!(large["result"], json!({"object": digest, "bytes": BYTES}));
    let result = format!("/api/v1/tasks/{id}/result");
    let get = |path: &str| http::get(api(&cluster.scheduler.1), path).unwrap();
    let whole = "0123456\n".repeat(BYTES / 8);
    assert!(get(&result) == (200, whole.clone()));

    // The same task's own name of it, and another task that returns it.
    let echoed = cluster.ended(&cluster.submit("same", &large["result"]));
    assert_eq!((&echoed["result"], echoed.get("result_object")), (&large["result"], None));
    let id_of_echo = echoed["id"].as_str().unwrap();
    let (status, text) = get(&format!("/api/v1/tasks/{id_of_echo}/result"));
    assert_eq!(status, 200);
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), large["result"]);
    let printed = cluster.hypha(&["tasks", id_of_echo, "--result"]);
    assert_eq!(serde_json::from_str::<Value>(&printed).unwrap(), large["result"]);

    let objects = cluster.lab.path("scheduler-data/objects");
    let mut files = std::fs::read_dir(&objects).unwrap();
    let file = files.next().unwrap().unwrap().path();
    assert!(files.next().is_none(), "one object");
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[BYTES / 2] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let (status, text) = get(&result);
    assert_eq!(status, 500, "{} bytes", text.len());
    assert!(text.contains("corrupt_object"), "{text}");
}
