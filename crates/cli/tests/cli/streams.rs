//! Pieces of a result, from the program or back end to the client.

use std::process::Command;

use crate::cluster::{Cluster, api, builtin};
use crate::command::hypha;
use crate::examples::free_port;
use crate::http;
use crate::process::{Node, WAIT_TIMEOUT};
use crate::programs::program;
use crate::scratch::Scratch;

use serde_json::{Value, json};

/// Requests the response as events.
const EVENTS: &str = "Accept: text/event-stream\r\n";

/// Sends one word after the other, and waits before the last until a file exists.
const SERVER: &str = r#"
import http.server, json, os, sys, time

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer("application/json", b'{"object": "list", "data": [{"id": "chat"}]}')

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        assert body["stream"] is True and body["messages"][0]["content"] == "hi", body
        self.answer("text/event-stream", b"")
        self.word("Hello\n")
        while not os.path.exists(sys.argv[1]):
            time.sleep(0.02)
        self.word("you")
        self.wfile.write(b"data: [DONE]\n\n")

    def word(self, text):
        chunk = json.dumps({"choices": [{"delta": {"content": text}}]})
        self.wfile.write(b"data: " + chunk.encode() + b"\n\n")
        self.wfile.flush()

    def answer(self, kind, body):
        self.send_response(200)
        self.send_header("content-type", kind)
        self.end_headers()
        self.wfile.write(body)

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print("port", server.server_address[1], flush=True)
server.serve_forever()
"#;

/// Sends a first piece, waits until a file exists, and sends another; on request, the first attempt fails
/// before that.
const PROGRAM: &str = r#"
import http.client, os, socket, sys, time

class Bridge(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(os.environ["HYPHA_BRIDGE"])

def output(piece):
    bridge = Bridge("attempt")
    secret = {"Authorization": "Bearer " + os.environ["HYPHA_BRIDGE_TOKEN"]}
    bridge.request("POST", "/v1/output", piece, secret)
    assert bridge.getresponse().status < 300

directory, fails = sys.argv[1], sys.argv[2] == "fails"
output("first\n")
while not os.path.exists(directory + "/go"):
    time.sleep(0.02)
if fails and not os.path.exists(directory + "/tried"):
    open(directory + "/tried", "w").close()
    sys.exit(3)
output("second")
"#;

/// A worker that runs [`PROGRAM`], and the directory in which it looks for files.
fn pieces(fails: &str) -> (Scratch, String) {
    let kept = Scratch::new(&format!("stream-kept-{fails}"));
    let file = kept.file("program.py", PROGRAM);
    let more = format!("write = [{:?}]", kept.path(""));
    let keys = program("pieces", "python3", &[&file, &kept.path(""), fails], &more);
    (kept, keys)
}

fn stream(cluster: &Cluster, model: &str) -> Node {
    let submit = ["submit", "--model", model, "--input", "hi", "--stream"];
    Node::hypha("submit", &[&submit[..], &["--scheduler", &cluster.url()]].concat())
}

/// What was printed since `line`.
#[track_caller]
fn after<'output>(output: &'output str, line: &str) -> &'output str {
    output.split_once(line).unwrap_or_else(|| panic!("no `{line}` in {output}")).1
}

#[test]
fn pieces_of_a_server_are_printed_as_they_arrive() {
    let kept = Scratch::new("stream-server-kept");
    let (file, go) = (kept.file("server.py", SERVER), kept.path("go"));
    let server = Node::start("server", Command::new("python3").args([&file, &go]));
    let port = server.wait_for_line("port {}", WAIT_TIMEOUT);
    let chat = format!(
        "[[executors]]\nname = \"chat\"\nruntime = \"http\"\nmodels = [\"chat\"]\n\
         url = \"http://127.0.0.1:{port}\"\n"
    );
    let cluster = Cluster::start("stream-server", &[&chat]);
    let mut reader = stream(&cluster, "chat");
    let id = reader.wait_for_line("{} submitted", WAIT_TIMEOUT);
    // The server waits for a file, and so the task has not ended.
    reader.wait_for_line("Hello", WAIT_TIMEOUT);
    let task = cluster.get(&format!("/api/v1/tasks/{id}"));
    assert_eq!((&task["status"], &task["stream"]), (&json!("running"), &json!(true)), "{task}");
    std::fs::write(&go, "").unwrap();
    assert!(reader.wait(WAIT_TIMEOUT).success());
    // Its messages about the task go elsewhere, and are read separately.
    let output = reader.output();
    let words: Vec<&str> = output.lines().filter(|line| ["Hello", "you"].contains(line)).collect();
    assert_eq!(words, ["Hello", "you"], "{output}");
    // All pieces together are the result: the server's own text.
    let result = cluster.hypha(&["tasks", &id, "--result"]);
    assert!(result.starts_with("data: {") && result.ends_with("data: [DONE]\n\n"), "{result}");

    // In one request from the beginning, as a program would read them.
    let body = json!({"model": "chat", "input": "hi", "stream": true}).to_string();
    let (status, told) =
        http::send(api(&cluster.scheduler.1), "POST /api/v1/tasks", EVENTS, &body).unwrap();
    let names: Vec<&str> = told.lines().filter_map(|line| line.strip_prefix("event: ")).collect();
    assert_eq!((status, names[0], names[names.len() - 1]), (200, "queued", "completed"), "{told}");
    assert!(names.contains(&"output"), "{told}");
}

#[test]
fn a_result_starts_over_when_its_worker_s_program_fails() {
    let (kept, keys) = pieces("fails");
    let cluster = Cluster::start("stream-again", &[&keys]);
    let mut reader = stream(&cluster, "pieces");
    reader.wait_for_line("first", WAIT_TIMEOUT);
    kept.file("go", "");
    assert!(reader.wait(WAIT_TIMEOUT).success());
    let output = reader.output();
    let rest = after(&output, "\nfirst\n");
    assert!(rest.starts_with("delayed until "), "{output}");
    let note = rest.lines().next().unwrap();
    assert!(note.ends_with("; the result starts over"), "{output}");
    assert!(output.ends_with("\nfirst\nsecond"), "{output}");
}

#[test]
fn a_stream_that_the_scheduler_s_death_cut_off_ends_with_the_whole_result() {
    let (kept, keys) = pieces("never");
    let address = format!("[scheduler.api]\nbind_address = \"127.0.0.1:{}\"\n", free_port());
    let mut cluster = Cluster::start_with("stream-lost", &address, &[&keys]);
    let mut reader = stream(&cluster, "pieces");
    reader.wait_for_line("first", WAIT_TIMEOUT);
    cluster.restart_scheduler();
    let lost = "hypha: connection lost, reconnecting; the whole result is printed at its end";
    reader.wait_for_line(lost, WAIT_TIMEOUT);
    kept.file("go", "");
    assert!(reader.wait(WAIT_TIMEOUT).success());
    let output = reader.output();
    assert!(after(&output, lost).ends_with("\nfirst\nsecond"), "{output}");
    assert_eq!(output.matches("reconnecting").count(), 1, "{output}");
    assert!(!output.contains("try again"), "{output}");
}

#[test]
fn a_task_that_asks_for_no_pieces_gives_none() {
    let (kept, keys) = pieces("none");
    kept.file("go", "");
    let cluster = Cluster::start("stream-none", &[&keys]);
    let address = api(&cluster.scheduler.1);
    for wanted in [false, true] {
        let body = json!({"model": "pieces", "stream": wanted}).to_string();
        let (_, told) = http::send(address, "POST /api/v1/tasks", EVENTS, &body).unwrap();
        assert_eq!(told.contains("event: output"), wanted, "{told}");
        let last: Value = serde_json::from_str(after(&told, "event: completed\ndata: ")).unwrap();
        assert_eq!(last["status"], "completed", "{told}");
    }
}

#[test]
fn more_pieces_than_a_channel_holds_leave_the_worker_s_other_tasks_alone() {
    let cluster = Cluster::start("stream-many", &[&builtin(4)]);
    let other = cluster.submit("sleep", &json!({"ms": 5_000}));
    let text: String = (0..50_000).map(|number| format!("w{number} ")).collect();
    let file = format!("@{}", cluster.lab.file("input.txt", &text));
    let url = cluster.url();
    let submit = ["submit", "--model", "echo", "--input", &file, "--stream", "--scheduler", &url];
    let output = hypha(&submit);
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && !told.contains("lost"), "{told}");
    assert!(output.stdout == format!("\"{text}\"\n").into_bytes(), "{}", output.stdout.len());
    let other = cluster.ended(&other);
    assert_eq!((&other["status"], &other["attempts"]), (&json!("completed"), &json!(1)), "{other}");
}
