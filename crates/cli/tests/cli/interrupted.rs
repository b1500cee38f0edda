//! A scheduler that dies, is restarted or cannot store anything while an HTTP worker has a task: no attempt is used up.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};

use serde_json::json;

use crate::cluster::{Cluster, api, builtin, call, get};
use crate::process::{WAIT_TIMEOUT, wait_until};

/// A JSON server that holds every response back until the test releases them.
pub struct HeldServer {
    address: SocketAddr,
    state: Arc<(Mutex<Held>, Condvar)>,
}

#[derive(Default)]
struct Held {
    asked: usize,
    released: bool,
}

impl HeldServer {
    pub fn start() -> HeldServer {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new((Mutex::new(Held::default()), Condvar::new()));
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let state = Arc::clone(&shared);
                std::thread::spawn(move || answer(stream, &state));
            }
        });
        HeldServer { address, state }
    }

    /// The keys of a worker that uses it for a model.
    pub fn as_executor(&self, model: &str) -> String {
        let url = self.url();
        format!(
            "[[executors]]\nname = \"held\"\nruntime = \"http\"\nformat = \"json\"\n\
             models = [\"{model}\"]\nurl = \"{url}\"\n"
        )
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Makes it a worker for the model `held`.
    pub fn register(&self, cluster: &Cluster) {
        cluster.call(
            "POST /api/v1/workers",
            &json!({"url": self.url(), "format": "json", "models": ["held"]}),
        );
    }

    /// How many requests it received.
    pub fn asked(&self) -> usize {
        self.state.0.lock().unwrap().asked
    }

    pub fn release(&self) {
        self.state.0.lock().unwrap().released = true;
        self.state.1.notify_all();
    }
}

/// Responds with the request's input, to every request on this connection.
fn answer(stream: TcpStream, (held, changed): &(Mutex<Held>, Condvar)) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut writer = stream;
    loop {
        let mut length = 0;
        let mut line = String::new();
        while line != "\r\n" {
            line.clear();
            if reader.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        let mut state = held.lock().unwrap();
        state.asked += 1;
        while !state.released {
            state = changed.wait(state).unwrap();
        }
        drop(state);
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n");
        if writer.write_all(&[head.as_bytes(), &body].concat()).is_err() {
            return;
        }
    }
}

#[test]
fn a_task_on_a_json_server_survives_kills_of_the_scheduler() {
    let mut cluster = Cluster::start_with("interrupted-server", "", &[]);
    let server = HeldServer::start();
    server.register(&cluster);
    let id = cluster.submit("held", &json!("kept"));
    // As many as the default number of attempts.
    for kills in 1..=3 {
        wait_until("asked", WAIT_TIMEOUT, || (server.asked() >= kills).then_some(()));
        cluster.restart_scheduler();
    }
    wait_until("asked", WAIT_TIMEOUT, || (server.asked() >= 4).then_some(()));
    server.release();
    let task = cluster.ended(&id);
    assert_eq!((&task["status"], &task["result"]), (&json!("completed"), &json!("kept")), "{task}");
}

#[test]
fn a_graceful_stop_of_the_scheduler_uses_up_no_attempt_either() {
    let only_one = "[scheduler.retry]\nmax_attempts = 2\n";
    let mut cluster = Cluster::start_with("interrupted-gently", only_one, &[]);
    let server = HeldServer::start();
    server.register(&cluster);
    let id = cluster.submit("held", &json!(1));
    for stops in 1..=3 {
        wait_until("asked", WAIT_TIMEOUT, || (server.asked() >= stops).then_some(()));
        let (member, node) = &mut cluster.scheduler;
        assert!(node.terminate(WAIT_TIMEOUT).success());
        *node = member.start();
    }
    wait_until("asked", WAIT_TIMEOUT, || (server.asked() >= 4).then_some(()));
    server.release();
    assert_eq!(cluster.ended(&id)["status"], "completed");
}

#[test]
fn large_result_survives_an_absent_scheduler_without_using_up_an_attempt() {
    let server = HeldServer::start();
    let mut cluster = Cluster::start("interrupted-large", &[&server.as_executor("large")]);
    let input = json!("x".repeat(2 << 20));
    let id = cluster.submit("large", &input);
    wait_until("asked", WAIT_TIMEOUT, || (server.asked() == 1).then_some(()));
    let (member, node) = &mut cluster.scheduler;
    node.signal(rustix::process::Signal::KILL);
    node.wait(WAIT_TIMEOUT);
    server.release();
    cluster.workers[0].1.wait_for_line("a large result is sent again", WAIT_TIMEOUT);
    *node = member.start();
    let task = cluster.ended(&id);
    assert_eq!((&task["status"], &task["attempts"]), (&json!("completed"), &json!(1)), "{task}");
    assert_eq!(cluster.get(&format!("/api/v1/tasks/{id}/result")), input);
}

/// The result of a task instance is fetched, and the task is not run again.
#[test]
fn a_task_on_an_instance_is_resumed_after_a_scheduler_kill() {
    let keys =
        format!("{}[task_instance]\nbind = \"127.0.0.1:0\"\nmodel = \"sleep\"\n", builtin(1));
    let cluster = Cluster::start("interrupted-instance", &[&keys]);
    let member = cluster.lab.member("scheduler", "other", &[], "");
    let mut other = member.start();
    let instance = cluster.workers[0].1.wait_for_line("a task instance at http://{}", WAIT_TIMEOUT);
    let port = instance.parse::<SocketAddr>().unwrap().port();
    let registered =
        call(api(&other), "POST /ti/register", &json!({"host": "127.0.0.1", "port": port}));
    assert_eq!(registered["status"], "success", "{registered}");
    let task = json!({"model_name": "sleep", "task_input": {"ms": 4_000}, "metadata": {}});
    let submitted = call(api(&other), "POST /queue/submit", &task);
    let path = format!("/api/v1/tasks/{}", submitted["task_id"].as_str().unwrap());
    let began = wait_until("running", WAIT_TIMEOUT, || {
        let task = get(api(&other), &path);
        (task["status"] == "running").then(|| task["started_at"].clone())
    });
    // The state of a running attempt is stored with the next commit, which this is.
    let echo = json!({"model": "sleep", "input": {"ms": 1}});
    call(api(&other), "POST /api/v1/tasks", &echo);
    other.signal(rustix::process::Signal::KILL);
    other.wait(WAIT_TIMEOUT);
    other = member.start();
    let task = wait_until("completed", WAIT_TIMEOUT, || {
        let task = get(api(&other), &path);
        (task["status"] == "completed").then_some(task)
    });
    assert_eq!((&task["attempts"], &task["started_at"]), (&json!(1), &began), "{task}");
}
