//! The state of a task instance: tasks that it runs, and results that wait to be fetched.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;

use serde_json::{Value, json};

use super::{JsonResponse, Mode, Shared};
use crate::http::{Client, Request};
use crate::load::lock;

/// Results that are kept: more than a scheduler fetches late.
const MAX_RESULTS: usize = 20_000;
/// The end of one task in so many is called back twice.
const TWICE_EVERY: u64 = 5;

#[derive(Default)]
pub(super) struct Tasks {
    /// Its identity. An instance with a new one has forgotten everything.
    id: u64,
    tasks: HashMap<String, Task>,
    ended: VecDeque<String>,
    completed: u64,
}

struct Task {
    input: Value,
    callback: Option<String>,
    done: bool,
}

impl Tasks {
    /// A new incarnation begins; returns the tasks that are to be run again.
    pub(super) fn begin_incarnation(&mut self, remembers: bool) -> Vec<String> {
        if !remembers {
            let (id, completed) = (self.id + 1, self.completed);
            *self = Tasks { id, completed, ..Tasks::default() };
        }
        self.tasks.iter().filter(|(_, task)| !task.done).map(|(id, _)| id.clone()).collect()
    }
}

impl Shared {
    /// Accepts a task.
    pub(super) fn enqueue(self: &Arc<Self>, body: &Value, incarnation: u64) -> JsonResponse {
        let Some(id) = body["task_id"].as_str() else {
            return (422, json!({ "message": "no task_id" }));
        };
        let callback = body["callback_url"].as_str().map(str::to_owned);
        let is_new = {
            let tasks = &mut lock(&self.state).tasks.tasks;
            match tasks.get_mut(id) {
                Some(task) if !task.done => {
                    // The scheduler did not receive our acknowledgement.
                    task.callback = callback;
                    false
                }
                _ => {
                    let task = Task { input: body["input_data"].clone(), callback, done: false };
                    tasks.insert(id.to_owned(), task);
                    true
                }
            }
        };
        if is_new {
            self.begin(id.to_owned(), incarnation);
        }
        (200, json!({ "task_id": id, "queue_size": 1, "enqueue_time": 0 }))
    }

    pub(super) fn look_up(&self, path: &str) -> JsonResponse {
        let state = lock(&self.state);
        let Tasks { id, tasks, .. } = &state.tasks;
        if path == "/status" {
            let queued = tasks.values().filter(|task| !task.done).count();
            let name = format!("{}-{id}", self.name);
            return (
                200,
                json!({ "instance_id": name, "model_type": self.model, "queue_size": queued,
                        "replicas_running": self.slots, "status": "running" }),
            );
        }
        let id = path.strip_prefix("/results/").unwrap_or_default();
        match tasks.get(id) {
            Some(task) if task.done => (200, report(id, &task.input)),
            Some(_) => (200, json!({ "task_id": id, "status": "running" })),
            None => (404, json!({ "message": "not known" })),
        }
    }

    /// Runs a task, and calls back at its end.
    pub(super) fn begin(self: &Arc<Self>, id: String, incarnation: u64) {
        let shared = Arc::clone(self);
        thread::spawn(move || {
            let input = lock(&shared.state).tasks.tasks.get(&id).map(|task| task.input.clone());
            let Some(input) = input else { return };
            if !shared.run_task(&input, incarnation) {
                return;
            }
            let (callback, twice) = {
                let mut state = lock(&shared.state);
                if state.incarnation != incarnation || state.mode == Mode::Down {
                    return;
                }
                let tasks = &mut state.tasks;
                let Some(task) = tasks.tasks.get_mut(&id) else { return };
                task.done = true;
                let callback = task.callback.clone();
                tasks.completed += 1;
                tasks.ended.push_back(id.clone());
                if tasks.ended.len() > MAX_RESULTS
                    && let Some(oldest) = tasks.ended.pop_front()
                {
                    tasks.tasks.remove(&oldest);
                }
                (callback, tasks.completed.is_multiple_of(TWICE_EVERY))
            };
            let Some((at, path)) = callback.as_deref().and_then(parts) else { return };
            let body = &report(&id, &input).to_string();
            for _ in 0..1 + u32::from(twice) {
                let request = Request { method: "POST", path, key: None, body };
                // A scheduler that misses it polls.
                let _ = Client::default().request((0, at), &request);
            }
        });
    }
}

fn report(id: &str, result: &Value) -> Value {
    json!({ "task_id": id, "status": "completed", "result": result, "error": null })
}

/// The address and the path of a URL.
fn parts(url: &str) -> Option<(SocketAddr, &str)> {
    let rest = url.strip_prefix("http://")?;
    let (at, path) = rest.split_at(rest.find('/')?);
    Some((at.parse().ok()?, path))
}
