//! Workers that are unavailable for a while: removed and readmitted, unreachable, or quarantined.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use serde_json::{Value, json};

use crate::cluster::{Cluster, api, builtin, worker_id};
use crate::http;
use crate::process::{WAIT_TIMEOUT, wait_until};

/// A task has one attempt, and unreachable back ends are checked often.
const STRICT: &str = "[scheduler.retry]\nmax_attempts = 1\n\
                      [scheduler.fault_tolerance]\nquarantine = 3600\n\
                      health_check_interval = 1\nhealth_check_timeout = 1\n";

/// The server's response to every request: the list of its models, and every completion.
const SAYS: &str = r#"{"data":[{"id":"m"}]}"#;

#[test]
fn a_drained_worker_can_be_readmitted() {
    let cluster = Cluster::start("away-drained", &[&builtin(1)]);
    let worker = worker_id(&cluster.workers[0].1);
    for round in 0..2 {
        remove(&cluster, &worker);
        let waits = cluster.submit("echo", &json!(round));
        cluster.call(&format!("PUT /api/v1/workers/{worker}"), &Value::Null);
        assert_eq!(cluster.ended(&waits)["result"], json!(round));
        let named = cluster.hypha(&["workers"]);
        assert!(named.contains("worker-0  "), "{named}");
    }
}

#[test]
fn a_drained_http_server_can_be_readmitted() {
    let mut cluster = Cluster::start_with("away-server", STRICT, &[]);
    let server = Server::start();
    let worker = server.register(&cluster);
    assert_eq!(cluster.ended(&cluster.submit("m", &json!("hi")))["status"], "completed");
    for restarted in [false, true] {
        remove(&cluster, &worker);
        if restarted {
            cluster.restart_scheduler();
            assert_eq!(cluster.get("/api/v1/workers")["workers"], json!([]), "it stays removed");
        }
        let waits = cluster.submit("m", &json!("hi"));
        cluster.call(&format!("PUT /api/v1/workers/{worker}"), &Value::Null);
        let task = cluster.ended(&waits);
        assert_eq!((&task["status"], &task["worker"]), (&json!("completed"), &json!(worker)));
    }
}

/// The configuration does not override the operator's removal.
#[test]
fn a_drained_configured_server_stays_removed_until_readmitted() {
    let mut server = Server::start();
    // The server is not up yet: the cluster is complete without it.
    server.stop();
    let keys = format!(
        "{STRICT}[[scheduler.backends]]\nurl = \"http://{}\"\nmodels = [\"m\"]\n",
        server.address
    );
    let mut cluster = Cluster::start_with("away-configured", &keys, &[]);
    server.start_again();
    let task = cluster.ended(&cluster.submit("m", &json!("hi")));
    assert_eq!(task["status"], "completed", "{task}");
    let worker = task["worker"].as_str().unwrap().to_owned();
    remove(&cluster, &worker);
    for _ in 0..2 {
        cluster.restart_scheduler();
        let how = "since it was removed: `hypha readmit {}` readmits it";
        assert_eq!(cluster.scheduler.1.wait_for_line(how, WAIT_TIMEOUT), worker);
        assert_eq!(cluster.get("/api/v1/workers")["workers"], json!([]), "it stays removed");
    }
    let waits = cluster.submit("m", &json!("hi"));
    cluster.call(&format!("PUT /api/v1/workers/{worker}"), &Value::Null);
    assert_eq!(cluster.ended(&waits)["status"], "completed");
    cluster.restart_scheduler();
    let task = cluster.ended(&cluster.submit("m", &json!("hi")));
    assert_eq!((&task["status"], &task["worker"]), (&json!("completed"), &json!(worker)));
}

#[test]
fn a_task_waits_for_its_only_back_end_and_uses_up_no_attempt() {
    let cluster = Cluster::start_with("away-unreached", STRICT, &[]);
    let mut server = Server::start();
    server.register(&cluster);
    server.stop();
    let id = cluster.submit("m", &json!("hi"));
    let waits = wait_until("tried", WAIT_TIMEOUT, || {
        let task = cluster.get(&format!("/api/v1/tasks/{id}"));
        task["failures"].is_array().then_some(task)
    });
    assert_eq!(waits["status"], "queued", "{waits}");
    let why = waits["failures"][0]["reason"].as_str().unwrap();
    assert!(why.starts_with("no connection to 127.0.0.1:"), "{why}");
    let workers = cluster.hypha(&["workers"]);
    let told = [": unreachable since ", ": lost at "].map(|why| workers.contains(why));
    assert!(workers.contains("unavailable") && told.contains(&true), "{workers}");
    server.start_again();
    let task = cluster.ended(&id);
    assert_eq!((&task["status"], &task["attempts"]), (&json!("completed"), &json!(2)), "{task}");

    // An interactive request does not wait long for an unreachable server. Soon it fails without an attempt.
    server.stop();
    let request = r#"{"model": "m", "messages": []}"#;
    let address = api(&cluster.scheduler.1);
    for reason in ["", "all workers that serve this model are unavailable "] {
        let (status, body) = http::send(address, "POST /v1/chat/completions", "", request).unwrap();
        assert_eq!(status, 503, "{body}");
        assert!(body.contains(&format!("no worker is available for it: {reason}")), "{body}");
    }
}

/// The worker serves two models, one of them from an unreachable server.
#[test]
fn a_task_waits_for_the_back_end_behind_its_worker_and_uses_up_no_attempt() {
    let mut server = Server::start();
    let cluster = Cluster::start_with("away-behind", STRICT, &[&(builtin(1) + &server.behind())]);
    assert_eq!(cluster.ended(&cluster.submit("m", &json!("hi")))["status"], "completed");
    server.stop();
    // Until the worker has noticed, attempts fail without being counted; then none is dispatched to it.
    let first = cluster.submit("m", &json!("hi"));
    wait_until("away", WAIT_TIMEOUT, || {
        cluster
            .hypha(&["workers"])
            .contains(", executor forwards: unreachable since ")
            .then_some(())
    });
    let waits = cluster.call("POST /api/v1/tasks", &json!({"model": "m", "input": "hi"}));
    let ends = json!({"model": "m", "input": "hi", "requirements": {"deadline": 1}});
    let ends = cluster.call("POST /api/v1/tasks", &ends);
    assert_eq!(cluster.ended(ends["id"].as_str().unwrap())["status"], "expired");
    assert_eq!(cluster.ended(&cluster.submit("echo", &json!("fine")))["result"], "fine");
    let explained = cluster.hypha(&["explain", waits["id"].as_str().unwrap()]);
    assert!(explained.contains("no worker can take it: 1 × unreachable"), "{explained}");
    server.start_again();
    for id in [&first, waits["id"].as_str().unwrap()] {
        let task = cluster.ended(id);
        assert_eq!(task["status"], "completed", "{task}");
        assert!(task["attempts"].as_u64().unwrap() <= 2, "{task}");
    }
}

/// The worker serves two models, and one of its programs fails.
#[test]
fn a_failing_program_does_not_quarantine_its_whole_worker() {
    let fails = "[[executors]]\nname = \"fails\"\nruntime = \"process\"\nmodels = [\"fails\"]\n\
                 cmd = \"sh\"\nargs = [\"-c\", \"echo no such input >&2; exit 1\"]\n";
    let cluster = Cluster::start_with("away-program", STRICT, &[&(builtin(1) + fails)]);
    for _ in 0..3 {
        assert_eq!(cluster.ended(&cluster.submit("fails", &json!("x")))["status"], "failed");
    }
    assert_eq!(cluster.ended(&cluster.submit("echo", &json!("fine")))["result"], "fine");
    let waits = cluster.submit("fails", &json!("x"));
    let explained = cluster.hypha(&["explain", &waits]);
    assert!(
        explained.contains("no worker can take it: 1 × quarantined after failures"),
        "{explained}"
    );
    assert!(explained.contains(" after 3 failures in a row, the last: "), "{explained}");
    let workers = cluster.hypha(&["workers"]);
    assert!(workers.contains(", executor fails: quarantined until "), "{workers}");
    assert_eq!(cluster.get("/api/v1/workers")["workers"][0]["status"], "available");
}

/// Drains a worker, and waits until it is gone.
fn remove(cluster: &Cluster, worker: &str) {
    cluster.call(&format!("DELETE /api/v1/workers/{worker}"), &Value::Null);
    wait_until("gone", WAIT_TIMEOUT, || {
        (cluster.get("/api/v1/workers")["workers"] == json!([])).then_some(())
    });
}

/// A small model server that can be stopped and started again at its address.
struct Server {
    address: SocketAddr,
    serving: Option<(Arc<AtomicBool>, JoinHandle<()>)>,
    /// Keeps the port while the server is stopped.
    reserved: Option<socket2::Socket>,
}

impl Server {
    fn start() -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        Server { address, serving: Some(serve(listener)), reserved: None }
    }

    /// The keys of an executor that forwards to it.
    fn behind(&self) -> String {
        format!(
            "[[executors]]\nname = \"forwards\"\nruntime = \"http\"\nmodels = [\"m\"]\n\
             url = \"http://{}\"\n",
            self.address
        )
    }

    fn register(&self, cluster: &Cluster) -> String {
        let form = json!({"url": format!("http://{}", self.address), "models": ["m"]});
        cluster.call("POST /api/v1/workers", &form)["id"].as_str().unwrap().to_owned()
    }

    fn stop(&mut self) {
        let Some((stopped, thread)) = self.serving.take() else { return };
        stopped.store(true, Ordering::SeqCst);
        drop(TcpStream::connect(self.address));
        thread.join().unwrap();
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
        let socket = socket.unwrap();
        socket.set_reuse_address(true).unwrap();
        socket.bind(&self.address.into()).unwrap();
        self.reserved = Some(socket);
    }

    fn start_again(&mut self) {
        let socket = self.reserved.take().unwrap();
        socket.listen(16).unwrap();
        self.serving = Some(serve(socket.into()));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// One request a connection, until it is stopped.
fn serve(listener: TcpListener) -> (Arc<AtomicBool>, JoinHandle<()>) {
    let stopped = Arc::new(AtomicBool::new(false));
    let ends = Arc::clone(&stopped);
    let thread = std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            if ends.load(Ordering::SeqCst) {
                return;
            }
            let mut request = Vec::new();
            let mut piece = [0; 4_096];
            while !is_whole(&request) {
                match stream.read(&mut piece) {
                    Ok(count) if count > 0 => request.extend_from_slice(&piece[..count]),
                    _ => break,
                }
            }
            let length = SAYS.len();
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n");
            let _ = write!(stream, "{head}connection: close\r\n\r\n{SAYS}");
        }
    });
    (stopped, thread)
}

/// Whether a request is complete with its body.
fn is_whole(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request).to_ascii_lowercase();
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    body.len() >= length.map_or(0, |length| length.trim().parse().unwrap())
}
