//! Tasks from end to end: submitted, run by workers, recovered after crashes, and read back.

use std::collections::BTreeSet;

use hypha_api::{NewToken, Tokens};
use serde_json::{Value, json};

use crate::cluster::{Cluster, api, builtin, worker_id};
use crate::command::{done, failed, hypha, refused};
use crate::http;
use crate::lab::{self, Lab};
use crate::process::{Node, WAIT_TIMEOUT, wait_until};

/// Longer than any test takes: a task that takes this long ends only if it is ended.
const FOREVER_MS: u64 = 600_000;

#[test]
fn commands_show_the_progress_of_tasks() {
    let cluster = Cluster::start("task-commands", &[&builtin(4), &builtin(4)]);
    let submit = ["submit", "--model", "echo", "--input", "hello"];
    assert_eq!(cluster.hypha(&[&submit[..], &["--wait"]].concat()), "hello\n");
    let printed = cluster.hypha(&submit);
    let id = printed.trim();
    assert_eq!(cluster.ended(id)["result"], "hello");
    assert_eq!(cluster.hypha(&["tasks", id, "--result"]), "\"hello\"");
    let listed = cluster.hypha(&["tasks", "--status", "completed"]);
    assert_eq!(listed.lines().count(), 3, "{listed}");
    let row = listed.lines().find(|line| line.starts_with(id)).unwrap();
    assert!(row.contains("completed  echo"), "{listed}");

    let workers = cluster.hypha(&["workers"]);
    for (number, (_, node)) in cluster.workers.iter().enumerate() {
        let start = format!("worker-{number}  {}  available  echo, sleep", &worker_id(node)[..8]);
        assert!(workers.lines().any(|line| line.starts_with(&start)), "{start}: {workers}");
    }
    assert_eq!(workers.lines().count(), 3, "{workers}");
    let did_it = cluster.ended(id)["worker"].clone();
    let name = format!("worker-{}", cluster.index_of(&did_it));
    let shown = cluster.hypha(&["tasks", id]);
    let whole = format!("worker       {name} ({})", did_it.as_str().unwrap());
    assert!(shown.contains(&whole), "{shown}");
    assert!(cluster.hypha(&["tasks", "--worker", &name]).contains(id));
    let explained = cluster.hypha(&["explain", id]);
    assert!(explained.contains(&format!(", the last on {name} (")), "{explained}");
    refused(
        &["tasks", "--worker", "nobody", "--scheduler", &cluster.url()],
        "`hypha workers` lists",
    );

    let printed = cluster.hypha(&[&submit[..], &["--min-memory", "900TB"]].concat());
    let waiting = printed.trim();
    let explained = cluster.hypha(&["explain", waiting]);
    assert!(explained.starts_with(&format!("{waiting} queued: no worker can")), "{explained}");
    assert_eq!(explained.matches("needs 900 TB of memory, has ").count(), 2, "{explained}");
    let shown = cluster.hypha(&["tasks", waiting]);
    assert!(shown.contains("waiting      no worker can take it: 2 × too little memory"), "{shown}");
    let early = format!("`hypha tasks {waiting} --watch` waits for it");
    failed(1, &["tasks", waiting, "--result", "--scheduler", &cluster.url()], &early);

    let (_, figures) = http::get(api(&cluster.scheduler.1), "/metrics").unwrap();
    for line in [
        "hypha_scheduler_tasks_queued 1",
        "hypha_scheduler_tasks_completed_total 2",
        "hypha_scheduler_tasks_failed_total 0",
        "hypha_scheduler_workers_available 2",
        "hypha_scheduler_workers_busy 0",
    ] {
        assert!(figures.lines().any(|one| one == line), "{line}: {figures}");
    }
    assert!(figures.contains("hypha_scheduler_worker_selection_duration_seconds_count"));
    assert_eq!(cluster.hypha(&["cancel", waiting]), format!("{waiting} cancelled\n"));
    let unknown = "task-00000000-0000-7000-8000-000000000000";
    failed(1, &["tasks", unknown, "--scheduler", &cluster.url()], "there is no task");
    let once = format!("hypha: there is no task {unknown}, or it");
    failed(1, &["cancel", unknown, "--scheduler", &cluster.url()], &once);
    let run = [&submit[..2], &["sleep", "--input", "{\"ms\": 300}", "--json-input"]].concat();
    let sleeping = cluster.hypha(&run);
    let explained = cluster.hypha(&["explain", sleeping.trim()]);
    let guessed = "the model `sleep` has not run here yet: these times are guesses\n";
    assert!(explained.ends_with(guessed) || explained.contains(" completed after "), "{explained}");
}

#[test]
fn not_a_digit_is_changed_between_a_file_and_a_model() {
    let cluster = Cluster::start("task-digits", &[&builtin(4)]);
    let number = "12345678901234567890123";
    let input = format!("{{\"n\": 0.1000, \"m\":[{number}, 1E5]}}");
    let submit = ["submit", "--model", "echo", "--input", &input, "--json-input"];
    let id = cluster.hypha(&submit);
    let id = id.trim();
    cluster.ended(id);
    assert_eq!(cluster.hypha(&["tasks", id, "--result"]), input);
    let printed = format!("{{\n  \"n\": 0.1000,\n  \"m\": [\n    {number},\n    1E5\n  ]\n}}\n");
    assert_eq!(cluster.hypha(&[&submit[..], &["--wait"]].concat()), printed);
    let json = cluster.hypha(&["tasks", id, "--json"]);
    assert_eq!(json.matches(number).count(), 2, "the input and the result: {json}");

    let lines = format!("{{\"model\": \"echo\", \"input\": {input}}}\n");
    let (file, out) = (cluster.lab.file("tasks.jsonl", &lines), cluster.lab.path("results.jsonl"));
    cluster.hypha(&["submit", "--batch", &file, "--out", &out]);
    let results = std::fs::read_to_string(out).unwrap();
    assert!(results.contains(&format!("\"result\":{input}")), "{results}");
}

#[test]
fn failed_batch_reports_reasons() {
    let cluster = Cluster::start("task-reasons", &[&builtin(4)]);
    let lines: String = [json!("x"), json!({"ms": 1}), json!("x"), json!(7)]
        .iter()
        .map(|input| format!("{}\n", json!({"model": "sleep", "input": input})))
        .collect();
    let (file, out) = (cluster.lab.file("tasks.jsonl", &lines), cluster.lab.path("results.jsonl"));
    let url = cluster.url();
    let batch = ["submit", "--batch", &file, "--out", &out, "--scheduler", &url];
    // The second run has nothing left to do, and reports the same.
    for run in ["now", "earlier"] {
        let output = hypha(&batch);
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{run}: {told}");
        let reason = "the model does not accept this input: expected";
        assert!(told.contains(&format!("2 × {reason}")), "{run}: {told}");
        assert!(told.contains(&format!("1 × {reason}")), "{run}: {told}");
        assert!(told.contains("4 of 4 tasks done, 1 completed, 3 failed"), "{run}: {told}");
    }
}

#[test]
fn waiting_for_an_unknown_model_is_reported() {
    let cluster = Cluster::start("task-unserved", &[&builtin(4)]);
    let url = cluster.url();
    let submit = ["submit", "--model", "nope", "--input", "x", "--scheduler", &url];
    let said = "queued: no worker known so far has the model `nope` (there are echo and sleep)";
    for flag in ["--wait", "--stream"] {
        let mut waiting = Node::hypha("submit", &[&submit[..], &[flag]].concat());
        let id = waiting.wait_for_line("{} submitted", WAIT_TIMEOUT);
        waiting.wait_for_line(&format!("{id} is {said}"), WAIT_TIMEOUT);
        waiting.wait_for_line(&format!("`hypha cancel {id}` cancels the task"), WAIT_TIMEOUT);
        cluster.hypha(&["cancel", &id]);
        waiting.wait_for_line(&format!("{id} was cancelled"), WAIT_TIMEOUT);
        assert_eq!(waiting.wait(WAIT_TIMEOUT).code(), Some(1));
    }

    let lines = format!("{}\n{}\n", json!({"model": "echo"}), json!({"model": "nope"}));
    let (file, out) = (cluster.lab.file("tasks.jsonl", &lines), cluster.lab.path("results.jsonl"));
    let batch = ["submit", "--batch", &file, "--out", &out, "--scheduler", &url];
    let batch = Node::hypha("batch", &batch);
    let line = "1 of 2 tasks done, 1 completed; line 2 waits: no worker known so far has the model";
    batch.wait_for_line(line, WAIT_TIMEOUT);
}

#[test]
fn batch_for_an_unreachable_scheduler_leaves_nothing_behind() {
    let lab = Lab::new("task-nobody");
    let file = lab.file("tasks.jsonl", "{\"model\": \"echo\"}\n");
    let out = lab.path("results.jsonl");
    // Port 9 is for a service that no machine runs.
    let batch = ["submit", "--batch", &file, "--out", &out, "--scheduler", "http://127.0.0.1:9"];
    failed(1, &batch, "no scheduler answers at http://127.0.0.1:9");
    assert!(!std::path::Path::new(&out).exists());
}

#[test]
fn killed_batch_continues_where_it_stopped() {
    let cluster = Cluster::start("task-batch", &[&builtin(8), &builtin(8)]);
    let (file, out) = (cluster.lab.path("tasks.jsonl"), cluster.lab.path("results.jsonl"));
    let task = |number: u64| match number % 2 {
        0 => json!({"model": "echo", "input": number}),
        // Still in flight when the others are done and the command is killed.
        _ => json!({"model": "sleep", "input": {"ms": 8_000 + number}}),
    };
    let tasks: Vec<Value> = (0..16).map(task).collect();
    let lines: String = tasks.iter().map(|task| format!("{task}\n")).collect();
    std::fs::write(&file, lines).unwrap();
    let results = || std::fs::read_to_string(&out).unwrap_or_default();
    let url = cluster.url();
    let submit = ["submit", "--batch", &file, "--out", &out, "--scheduler", &url];

    let first = Node::hypha("batch", &submit);
    wait_until("half done", WAIT_TIMEOUT, || (results().lines().count() >= 8).then_some(()));
    lab::kill(first);
    assert_eq!(results().lines().count(), 8, "it was killed too late: {}", results());
    done(&submit);

    let results: Vec<Value> =
        results().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for result in &results {
        let number = usize::try_from(result["line"].as_u64().unwrap()).unwrap();
        assert_eq!(result["status"], "completed", "{result}");
        assert_eq!(result["result"], tasks[number - 1]["input"], "{result}");
    }
    let done: BTreeSet<_> = results.iter().map(|result| result["id"].to_string()).collect();
    assert_eq!((results.len(), done.len()), (16, 16));
    assert_eq!(cluster.get("/api/v1/scheduler")["counts"]["submitted"], 16, "none was done twice");
}

#[test]
fn a_task_outlives_the_worker_that_ran_it() {
    let mut cluster = Cluster::start("task-failover", &[&builtin(1), &builtin(1)]);
    let id = cluster.submit("sleep", &json!({"ms": 5_000}));
    let url = cluster.url();
    let watch = ["tasks", &id, "--watch", "--json", "--scheduler", &url];
    let mut events = Node::hypha("watch", &watch);
    events.wait_for_line("\"event\":\"running\"", WAIT_TIMEOUT);
    let first = cluster.get(&format!("/api/v1/tasks/{id}"))["worker"].clone();
    let (_, node) = cluster.workers.remove(cluster.index_of(&first));
    lab::kill(node);

    events.wait_for_line("\"event\":\"delayed\"", WAIT_TIMEOUT);
    assert!(events.wait(WAIT_TIMEOUT).success());
    let task = cluster.ended(&id);
    assert_eq!((&task["status"], &task["attempts"]), (&json!("completed"), &json!(2)), "{task}");
    assert_eq!(task["worker"], worker_id(&cluster.workers[0].1), "{task}");
    assert_eq!(task["result"], json!({"ms": 5_000}));
}

#[test]
fn tasks_and_the_strategy_outlive_the_scheduler() {
    let mut cluster = Cluster::start("task-restart", &[&builtin(1), &builtin(1)]);
    let chosen = cluster
        .call("PUT /api/v1/scheduler", &json!({"strategy": {"name": "weighted", "weight": 2}}));
    assert_eq!(chosen["strategy"]["name"], "weighted", "{chosen}");
    let before = cluster.submit("echo", &json!("before"));
    assert_eq!(cluster.ended(&before)["status"], "completed");
    let sleeps: Vec<String> =
        (0..6).map(|number| cluster.submit("sleep", &json!({"ms": 2_000 + number}))).collect();
    wait_until("some running, some waiting", WAIT_TIMEOUT, || {
        let count = |path: &str| cluster.get(path)["tasks"].as_array().unwrap().len();
        (1..6).contains(&count("/api/v1/tasks?status=running")).then_some(())
    });
    cluster.restart_scheduler();

    assert_eq!(cluster.get("/api/v1/scheduler")["strategy"], chosen["strategy"]);
    assert_eq!(cluster.ended(&before)["result"], "before");
    for (number, id) in sleeps.iter().enumerate() {
        let task = cluster.ended(id);
        assert_eq!(task["status"], "completed", "{task}");
        assert_eq!(task["result"]["ms"], 2_000 + number, "{task}");
    }
}

#[test]
fn a_cancelled_task_makes_room_at_its_worker() {
    let cluster = Cluster::start("task-cancel", &[&builtin(1)]);
    let [running, queued] = [(); 2].map(|()| cluster.submit("sleep", &json!({"ms": FOREVER_MS})));
    cluster.wait_for(&running, "running");
    assert_eq!(cluster.hypha(&["cancel", &queued]), format!("{queued} cancelled\n"));
    let task = cluster.ended(&queued);
    assert_eq!((&task["status"], &task["started_at"]), (&json!("cancelled"), &Value::Null));
    let next = cluster.submit("echo", &json!("next"));
    assert_eq!(cluster.get(&format!("/api/v1/tasks/{next}"))["started_at"], Value::Null);

    assert_eq!(cluster.hypha(&["cancel", &running]), format!("{running} cancelled\n"));
    // The worker has room for one task, and has stopped the endless one.
    assert_eq!(cluster.ended(&next)["result"], "next");
    assert_eq!(cluster.ended(&running)["result"], Value::Null);
}

#[test]
fn result_larger_than_a_message_is_returned_completely() {
    let cluster = Cluster::start("task-large", &[&builtin(1)]);
    // Not all the same, so that pieces in a wrong order are detected.
    let text: String = (0..400_000).map(|number| format!("{number:07} ")).collect();
    assert!(text.len() > 3_000_000);
    let task = cluster.call("POST /api/v1/tasks?wait=50", &json!({"model": "echo", "input": text}));
    let whole = format!("\"{text}\"");
    assert_eq!(task["status"], "completed");
    assert_eq!(task["result"]["bytes"], whole.len(), "{}", task["result"]);
    let id = task["id"].as_str().unwrap();
    let path = format!("GET /api/v1/tasks/{id}/result");
    let (status, body) = http::send(api(&cluster.scheduler.1), &path, "", "").unwrap();
    assert_eq!(status, 200);
    assert!(body == whole, "{} bytes of {}", body.len(), whole.len());
    assert!(cluster.hypha(&["tasks", id, "--result"]) == whole);
    let shown = cluster.hypha(&["tasks", id]);
    assert!(shown.contains("… (3.2 MB; --json has all of it)\n") && shown.len() < 2_000, "{shown}");
    let how = format!("result       3.2 MB; `hypha tasks {id} --result` prints them\n");
    assert!(shown.contains(&how), "{shown}");

    let file = format!("@{}", cluster.lab.file("input.txt", &text));
    let submit = ["submit", "--model", "echo", "--input", &file, "--wait"];
    assert!(cluster.hypha(&submit) == format!("{text}\n"), "the text itself is printed");
    let list = format!("[{whole},1.0]");
    let file = format!("@{}", cluster.lab.file("input.json", &list));
    let submit = ["submit", "--model", "echo", "--input", &file, "--json-input", "--wait"];
    assert!(cluster.hypha(&submit) == format!("{list}\n"), "JSON is printed as it is");
    let lines = format!("{{\"model\": \"echo\", \"input\": {list}}}\n");
    let (file, out) = (cluster.lab.file("tasks.jsonl", &lines), cluster.lab.path("results.jsonl"));
    cluster.hypha(&["submit", "--batch", &file, "--out", &out]);
    let results = std::fs::read_to_string(out).unwrap();
    assert!(results.contains(&format!("\"result\":{list}")), "{} bytes", results.len());
}

#[test]
fn programs_that_speak_openai_s_protocol_are_answered() {
    let cluster = Cluster::start("task-openai", &[&builtin(1), &builtin(1)]);
    assert_eq!(cluster.get("/v1/models/echo")["id"], "echo");
    let mut body = json!({"model": "echo", "messages": [{"role": "user", "content": "hello you"}]});
    let answer = cluster.call("POST /v1/chat/completions", &body);
    assert_eq!(answer["choices"][0]["message"]["content"], "hello you", "{answer}");

    body["stream"] = json!(true);
    let line = "POST /v1/chat/completions";
    let (status, stream) =
        http::send(api(&cluster.scheduler.1), line, "", &body.to_string()).unwrap();
    assert_eq!(status, 200, "{stream}");
    let mut events: Vec<&str> =
        stream.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
    assert_eq!(events.pop(), Some("[DONE]"), "{stream}");
    let piece = |event: &&str| {
        let event: Value = serde_json::from_str(event).unwrap();
        event["choices"][0]["delta"]["content"].as_str().unwrap_or_default().to_owned()
    };
    let pieces: Vec<String> = events.iter().map(piece).filter(|text| !text.is_empty()).collect();
    assert_eq!(pieces.concat(), "hello you", "{stream}");
    assert!(pieces.len() > 1, "it came in pieces: {stream}");
}

#[test]
fn two_schedulers_do_not_share_a_directory() {
    let lab = Lab::new("task-directory");
    let first = lab.member("scheduler", "first", &[], "").start();
    api(&first);
    let second = lab.member("scheduler", "second", &[], "");
    let mut second = second.start_among(&[("HYPHA_DATA_DIR", &lab.path("first-data"))]);
    assert_eq!(second.wait(WAIT_TIMEOUT).code(), Some(1));
    let line = second.wait_for_line("another process", WAIT_TIMEOUT);
    assert!(line.contains("first-data") && line.contains("a data_dir of its own"), "{line}");
}

#[test]
fn a_scheduler_off_loopback_requires_tokens() {
    let lab = Lab::new("task-tokens");
    let open = "[scheduler.api]\nbind_address = \"0.0.0.0:0\"\n";
    let member = lab.member("scheduler", "open", &[], open);
    let run = ["scheduler", "run", "-c", &member.config];
    refused(&run, "anyone who can reach this address could use the scheduler: give `tokens_file`");

    let (token, entry) = Tokens::issue(&NewToken::default());
    std::fs::write(lab.path("tokens.toml"), entry).unwrap();
    std::fs::write(lab.path("token"), &token).unwrap();
    let guarded = format!("{open}tokens_file = \"tokens.toml\"\n");
    let scheduler = lab.member("scheduler", "guarded", &[], &guarded).start();
    let port = scheduler.wait_for_line("serving the API at http://0.0.0.0:{}", WAIT_TIMEOUT);
    let address = format!("127.0.0.1:{port}");
    let status =
        |head: &str| http::send(address.parse().unwrap(), "GET /api/v1/tasks", head, "").unwrap().0;
    assert_eq!(status(""), 401);
    assert_eq!(status(&format!("Authorization: Bearer {token}x\r\n")), 401);
    assert_eq!(status(&format!("Authorization: Bearer {token}\r\n")), 200);
    let url = format!("http://{address}");
    let list = ["tasks", "--scheduler", &url];
    failed(1, &list, "set --token, --token-file or HYPHA_TOKEN");
    let file = lab.path("token");
    assert_eq!(done(&[&list[..], &["--token-file", &file]].concat()), "no tasks\n");
}
