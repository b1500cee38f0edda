//! A gateway, a scheduler and workers on this machine that run tasks.

use std::net::SocketAddr;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::command::done;
use crate::http;
use crate::lab::{self, Lab, Member};
use crate::process::{Node, WAIT_TIMEOUT, wait_until};

/// Workers are found soon after they have started.
const SEARCH: &str = "[scheduler]\ndiscovery_interval = 1\n";

pub struct Cluster {
    pub lab: Lab,
    pub scheduler: (Member, Node),
    pub workers: Vec<(Member, Node)>,
    gateway: Node,
}

/// The keys of a worker with the built-in models, `concurrency` tasks at once.
pub fn builtin(concurrency: u32) -> String {
    format!(
        "[[executors]]\nname = \"builtin\"\nruntime = \"builtin\"\n\
         models = [\"echo\", \"sleep\"]\nconcurrency = {concurrency}\n"
    )
}

impl Cluster {
    /// A worker for each of `workers`, which are their keys. All are available when this returns.
    pub fn start(test: &str, workers: &[&str]) -> Cluster {
        Cluster::start_with(test, "", workers)
    }

    /// The same with further sections of the scheduler's configuration.
    pub fn start_with(test: &str, scheduler: &str, workers: &[&str]) -> Cluster {
        Cluster::start_around(test, |_| String::new(), scheduler, workers)
    }

    /// The same with further keys of the gateway.
    pub fn start_around(
        test: &str,
        gateway: impl FnOnce(&Lab) -> String,
        scheduler: &str,
        workers: &[&str],
    ) -> Cluster {
        let lab = Lab::new(test);
        let gateway = lab.member("gateway", "gateway", &[], &gateway(&lab)).start();
        let front = lab::address(&gateway);
        let run = |member: Member| {
            let node = member.start();
            (member, node)
        };
        let keys = format!("{SEARCH}{scheduler}");
        let scheduler = run(lab.member("scheduler", "scheduler", &[&front], &keys));
        let worker = |(number, keys): (usize, &&str)| {
            run(lab.member("worker", &format!("worker-{number}"), &[&front], keys))
        };
        let workers = workers.iter().enumerate().map(worker).collect();
        let cluster = Cluster { lab, scheduler, workers, gateway };
        cluster.wait_for_workers();
        cluster
    }

    /// Kills the gateway, without a graceful stop.
    pub fn stop_gateway(&mut self) {
        self.gateway.signal(Signal::KILL);
        self.gateway.wait(WAIT_TIMEOUT);
    }

    /// The gateway's address for another node.
    pub fn gateway_address(&self) -> String {
        lab::address(&self.gateway)
    }

    /// Waits until all running workers are available to the scheduler.
    #[track_caller]
    pub fn wait_for_workers(&self) {
        wait_until("all workers available", WAIT_TIMEOUT, || {
            let known = self.get("/api/v1/workers");
            let takes_tasks = |one: &&Value| one["status"] != "unavailable";
            let available = known["workers"].as_array().unwrap().iter().filter(takes_tasks);
            (available.count() == self.workers.len()).then_some(())
        });
    }

    /// Kills the scheduler, without a graceful stop, and starts it again.
    pub fn restart_scheduler(&mut self) {
        let (member, node) = &mut self.scheduler;
        node.signal(Signal::KILL);
        node.wait(WAIT_TIMEOUT);
        *node = member.start();
    }

    /// The index in `workers` of the one with this id.
    #[track_caller]
    pub fn index_of(&self, worker: &Value) -> usize {
        let is = |(_, node): &(Member, Node)| worker_id(node) == *worker;
        self.workers.iter().position(is).unwrap_or_else(|| panic!("no worker {worker}"))
    }

    #[track_caller]
    pub fn get(&self, path: &str) -> Value {
        get(api(&self.scheduler.1), path)
    }

    #[track_caller]
    pub fn call(&self, line: &str, body: &Value) -> Value {
        call(api(&self.scheduler.1), line, body)
    }

    /// Submits a task, and returns its id.
    #[track_caller]
    pub fn submit(&self, model: &str, input: &Value) -> String {
        let task = self.call("POST /api/v1/tasks", &json!({"model": model, "input": input}));
        task["id"].as_str().unwrap().to_owned()
    }

    /// The task, once it has ended.
    #[track_caller]
    pub fn ended(&self, id: &str) -> Value {
        self.get(&format!("/api/v1/tasks/{id}?wait=50"))
    }

    /// The task, once its status is this.
    #[track_caller]
    pub fn wait_for(&self, id: &str, status: &str) -> Value {
        wait_until(status, WAIT_TIMEOUT, || {
            let task = self.get(&format!("/api/v1/tasks/{id}"));
            (task["status"] == status).then_some(task)
        })
    }

    /// The output of a command that queries this scheduler.
    #[track_caller]
    pub fn hypha(&self, arguments: &[&str]) -> String {
        done(&[arguments, &["--scheduler", &self.url()]].concat())
    }

    pub fn url(&self) -> String {
        format!("http://{}", api(&self.scheduler.1))
    }
}

/// The address of a scheduler's API.
#[track_caller]
pub fn api(scheduler: &Node) -> SocketAddr {
    scheduler.wait_for_line("serving the API at http://{}", WAIT_TIMEOUT).parse().unwrap()
}

/// The id of a worker, as schedulers report it.
#[track_caller]
pub fn worker_id(worker: &Node) -> String {
    worker.wait_for_line("offering worker={}", WAIT_TIMEOUT)
}

#[track_caller]
pub fn get(address: SocketAddr, path: &str) -> Value {
    answer(&format!("GET {path}"), http::send(address, &format!("GET {path}"), "", "").unwrap())
}

/// Sends JSON; `line` has the method and the path.
#[track_caller]
pub fn call(address: SocketAddr, line: &str, body: &Value) -> Value {
    answer(line, http::send(address, line, "", &body.to_string()).unwrap())
}

#[track_caller]
fn answer(line: &str, (status, body): (u16, String)) -> Value {
    assert!((200..300).contains(&status), "{line}: {status} {body}");
    serde_json::from_str(&body).unwrap_or_else(|error| panic!("{line}: {error}: {body}"))
}
