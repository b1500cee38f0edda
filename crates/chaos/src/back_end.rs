//! HTTP back ends for the scheduler: plain JSON servers and task instances. They run in this process, which knows
//! the fault of each task; the scheduler sees them die, freeze and fail like any others.

mod instance;

use std::collections::HashMap;
use std::io::{BufReader, ErrorKind, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use serde_json::{Value, json};

use crate::faults::{FaultKind, FaultLog};
use crate::http::{ReceivedRequest, read_request};
use crate::load::lock;
use crate::port;
use instance::Tasks;

/// How often a listener polls for connections, and for its end.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// How long the port of a server that was killed may stay in use before we give up.
const BIND_TIMEOUT: Duration = Duration::from_secs(30);

/// The protocol of a back end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// Accepts a task's input at its one address, and answers with the result.
    Json,
    /// A task instance.
    Instance,
}

/// A back end. It answers every task with its input. Clones are the same one.
#[derive(Clone)]
pub(crate) struct BackEnd {
    pub(crate) protocol: Protocol,
    /// The model that only it serves.
    pub(crate) model: String,
    /// How many tasks it does at once.
    pub(crate) slots: usize,
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    /// The name that the scheduler uses for it.
    name: String,
    protocol: Protocol,
    model: String,
    slots: usize,
    faults: Arc<Mutex<FaultLog>>,
    state: Mutex<State>,
    /// The state has changed.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    mode: Mode,
    /// How often it was started: tasks that an earlier incarnation began are not finished.
    incarnation: u64,
    /// Open connections, by a number.
    connections: HashMap<u64, TcpStream>,
    accepted: u64,
    /// Tasks that have waited for each other, by the name of their barrier.
    barriers: HashMap<String, usize>,
    tasks: Tasks,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Mode {
    #[default]
    Up,
    /// Nothing listens.
    Down,
    /// Connections are accepted, and nothing else happens.
    Frozen,
    /// Tasks are answered with this status.
    Failing(u16),
}

/// An answer: a status and JSON.
type JsonResponse = (u16, Value);

impl BackEnd {
    /// Starts one on any port.
    pub(crate) fn start(
        protocol: Protocol,
        model: &str,
        slots: usize,
        faults: &Arc<Mutex<FaultLog>>,
    ) -> anyhow::Result<BackEnd> {
        let listener = port::listen()?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            name: address.to_string(),
            protocol,
            model: model.to_owned(),
            slots,
            faults: Arc::clone(faults),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        lock(&shared.state).tasks.begin_incarnation(false);
        listen(&shared, listener, 0)?;
        Ok(BackEnd { protocol, model: model.to_owned(), slots, address, shared })
    }

    /// The name that the scheduler uses for it.
    pub(crate) fn name(&self) -> &str {
        &self.shared.name
    }

    /// Kills it, with all of its connections.
    pub(crate) fn kill(&self) {
        lock(&self.shared.faults).record_begin(self.name(), FaultKind::Died);
        let mut state = lock(&self.shared.state);
        state.mode = Mode::Down;
        state.incarnation += 1;
        state.barriers.clear();
        for (_, connection) in state.connections.drain() {
            // It may be closed already.
            let _ = connection.shutdown(std::net::Shutdown::Both);
        }
        self.shared.changed.notify_all();
    }

    /// Restarts it. A task instance remembers its tasks and resumes them, or has forgotten all of them.
    pub(crate) fn restart(&self, remembers: bool) -> anyhow::Result<()> {
        let until = Instant::now() + BIND_TIMEOUT;
        let listener = loop {
            match TcpListener::bind(self.address) {
                Ok(listener) => break listener,
                Err(error) if Instant::now() >= until => {
                    return Err(error)
                        .with_context(|| format!("cannot listen on {}", self.address));
                }
                Err(_) => thread::sleep(POLL_INTERVAL),
            }
        };
        let (incarnation, again) = {
            let mut state = lock(&self.shared.state);
            state.mode = Mode::Up;
            (state.incarnation, state.tasks.begin_incarnation(remembers))
        };
        listen(&self.shared, listener, incarnation)?;
        again.into_iter().for_each(|task| self.shared.begin(task, incarnation));
        lock(&self.shared.faults).record_end(self.name());
        Ok(())
    }

    pub(crate) fn freeze(&self) {
        lock(&self.shared.faults).record_begin(self.name(), FaultKind::Froze);
        self.shared.set(Mode::Frozen);
    }

    /// From now on, it answers tasks with this status.
    pub(crate) fn fail_with(&self, status: u16) {
        self.shared.set(Mode::Failing(status));
    }

    /// It is healthy again, after it was frozen or failing.
    pub(crate) fn recover(&self) {
        self.shared.set(Mode::Up);
        lock(&self.shared.faults).record_end(self.name());
    }
}

impl Shared {
    fn set(&self, mode: Mode) {
        lock(&self.state).mode = mode;
        self.changed.notify_all();
    }

    /// Waits until it is not frozen. Returns its mode, unless this incarnation is over.
    fn wait_while_frozen(&self, incarnation: u64) -> Option<Mode> {
        let state = lock(&self.state);
        let frozen =
            |state: &mut State| state.incarnation == incarnation && state.mode == Mode::Frozen;
        let waited = self.changed.wait_while(state, frozen);
        let state = waited.unwrap_or_else(std::sync::PoisonError::into_inner);
        (state.incarnation == incarnation).then_some(state.mode)
    }

    /// Runs a task, which takes as long as its input says, and waits for others if its input says so. False if this
    /// incarnation ended before.
    fn run_task(&self, input: &Value, incarnation: u64) -> bool {
        thread::sleep(Duration::from_millis(input["ms"].as_u64().unwrap_or_default()));
        if let Some(barrier) = input["with"].as_str() {
            let mut state = lock(&self.state);
            *state.barriers.entry(barrier.to_owned()).or_default() += 1;
            self.changed.notify_all();
            let incomplete = |state: &mut State| {
                state.incarnation == incarnation && state.barriers.get(barrier) < Some(&self.slots)
            };
            drop(self.changed.wait_while(state, incomplete));
        }
        self.wait_while_frozen(incarnation).is_some()
    }

    /// The answer to a request; `None` if this incarnation ends before.
    fn answer(
        self: &Arc<Self>,
        request: &ReceivedRequest,
        incarnation: u64,
    ) -> Option<JsonResponse> {
        let mode = self.wait_while_frozen(incarnation)?;
        let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
        let is_task = request.method == "POST";
        let input = match self.protocol {
            Protocol::Json => &body,
            Protocol::Instance => &body["input_data"],
        };
        if let (Mode::Failing(status), true) = (mode, is_task) {
            lock(&self.faults).record_error(&self.name, input["name"].as_str().unwrap_or_default());
            return Some((status, json!({ "message": "on purpose" })));
        }
        match (self.protocol, is_task) {
            (Protocol::Json, _) => self.run_task(input, incarnation).then_some((200, body)),
            (Protocol::Instance, true) => Some(self.enqueue(&body, incarnation)),
            (Protocol::Instance, false) => Some(self.look_up(&request.path)),
        }
    }
}

/// Accepts connections until this incarnation is over.
fn listen(shared: &Arc<Shared>, listener: TcpListener, incarnation: u64) -> anyhow::Result<()> {
    listener.set_nonblocking(true)?;
    let shared = Arc::clone(shared);
    thread::spawn(move || {
        while lock(&shared.state).incarnation == incarnation {
            match listener.accept() {
                Ok((stream, _)) => serve(&shared, stream, incarnation),
                Err(error) if error.kind() == ErrorKind::WouldBlock => thread::sleep(POLL_INTERVAL),
                Err(_) => {}
            }
        }
    });
    Ok(())
}

/// Answers the requests of one connection, one after the other.
fn serve(shared: &Arc<Shared>, stream: TcpStream, incarnation: u64) {
    let Ok(to_cut) = stream.try_clone() else { return };
    let number = {
        let mut state = lock(&shared.state);
        if state.incarnation != incarnation {
            return;
        }
        state.accepted += 1;
        let number = state.accepted;
        state.connections.insert(number, to_cut);
        number
    };
    let shared = Arc::clone(shared);
    thread::spawn(move || {
        let mut reader = BufReader::new(&stream);
        while let Ok(request) = read_request(&mut reader) {
            let Some((status, body)) = shared.answer(&request, incarnation) else { break };
            let body = body.to_string();
            let whole = format!(
                "HTTP/1.1 {status} -\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            );
            if (&stream).write_all(whole.as_bytes()).is_err() {
                break;
            }
        }
        lock(&shared.state).connections.remove(&number);
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::{Client, Request, RequestError};

    fn back_end(protocol: Protocol) -> (BackEnd, Arc<Mutex<FaultLog>>) {
        let faults = Arc::default();
        (BackEnd::start(protocol, "m", 2, &faults).expect("started"), faults)
    }

    fn post(at: SocketAddr, path: &str, body: &Value) -> Result<(u16, Value), RequestError> {
        let body = &body.to_string();
        let request = Request { method: "POST", path, key: None, body };
        Client::default()
            .request((0, at), &request)
            .map(|answer| (answer.status, serde_json::from_slice(&answer.body).unwrap_or_default()))
    }

    fn get(at: SocketAddr, path: &str) -> (u16, Value) {
        let answer = Client::default().request((0, at), &Request::get(path)).expect("an answer");
        (answer.status, serde_json::from_slice(&answer.body).unwrap_or_default())
    }

    #[test]
    fn a_server_answers_with_the_input_fails_dies_and_restarts() {
        let (server, faults) = back_end(Protocol::Json);
        let input = json!({ "name": "a", "ms": 1 });
        assert_eq!(post(server.address, "/", &input).expect("an answer"), (200, input.clone()));
        server.fail_with(429);
        assert_eq!(post(server.address, "/", &input).expect("an answer").0, 429);
        assert_eq!(lock(&faults).errors(server.name(), "a"), 1);
        server.recover();
        let at = server.address;
        let held = thread::spawn(move || post(at, "/", &json!({ "with": "no other task" })));
        while lock(&server.shared.state).barriers.is_empty() {
            thread::sleep(POLL_INTERVAL);
        }
        server.kill();
        assert!(matches!(held.join().expect("joined"), Err(RequestError::Unanswered(_))));
        assert_eq!(lock(&faults).count(FaultKind::Died), 1);
        server.restart(false).expect("started");
        assert_eq!(post(server.address, "/", &input).expect("an answer").0, 200);
    }

    #[test]
    fn tasks_that_wait_for_each_other_are_answered_together() {
        let (server, _) = back_end(Protocol::Json);
        let at = server.address;
        let both = [1, 2].map(|number| {
            thread::spawn(move || post(at, "/", &json!({ "with": "x", "number": number })))
        });
        for answer in both {
            assert_eq!(answer.join().expect("joined").expect("an answer").0, 200);
        }
    }

    #[test]
    fn an_instance_remembers_or_forgets() {
        let (instance, _) = back_end(Protocol::Instance);
        let at = instance.address;
        let id = || get(at, "/status").1["instance_id"].clone();
        let first = id();
        let enqueue = |task: &str, input: Value| {
            let task = json!({ "task_id": task, "input_data": input, "callback_url": null });
            assert_eq!(post(at, "/queue/enqueue", &task).expect("an answer").0, 200);
        };
        let completed = |task: &str| {
            while get(at, &format!("/results/{task}")).1["status"] != "completed" {
                thread::sleep(POLL_INTERVAL);
            }
        };
        enqueue("done", json!({ "name": "a" }));
        completed("done");
        assert_eq!(get(at, "/results/done").1["result"], json!({ "name": "a" }));
        enqueue("held", json!({ "name": "b", "with": "x" }));
        instance.kill();
        instance.restart(true).expect("started");
        assert_eq!(id(), first);
        // It resumes its tasks.
        enqueue("other", json!({ "name": "c", "with": "x" }));
        completed("held");
        instance.kill();
        instance.restart(false).expect("started");
        assert_ne!(id(), first);
        assert_eq!(get(at, "/results/done").0, 404);
    }
}
