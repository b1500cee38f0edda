//! Jobs: a gang of workers is leased, runs, is replaced and released; with real processes.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::cluster::{Cluster, worker_id};
use crate::command::{done, failed, refused};
use crate::lab;
use crate::process::{Node, WAIT_TIMEOUT, wait_until};

/// A worker that can take either part of a job, one at a time.
const TRAINER: &str = "\
    [[executors]]\nclass = \"train\"\nname = \"diloco-transformer\"\nruntime = \"builtin\"\n\
    models = [\"count\"]\n\
    [[executors]]\nclass = \"aggregate\"\nname = \"parameter-server\"\nruntime = \"builtin\"\n\
    models = [\"count\"]\n";

/// A part that ends only when it is stopped: an hour.
const LONG: (u64, u64) = (3_600, 1_000);

/// Each member needs two thirds of the machine, so that a worker takes one part only.
fn job(workers: u32, (to, every_ms): (u64, u64)) -> Value {
    json!({
        "name": "counting",
        "resources": {
            "num_workers": workers,
            "worker": [{"type": "CPU", "min": cores()}, {"kind": "diloco-transformer"}],
            "parameter_server": [{"type": "CPU", "min": cores()}, {"kind": "parameter-server"}],
            "worker_price": {"bid": 1.25, "max": 7.654321},
            "parameter_server_price": {"bid": 0.75, "max": 7.654321},
        },
        "run": {"model": "count", "input": {"to": to, "every_ms": every_ms}},
        "parameter_server_run": {"model": "count", "input": {"to": to, "every_ms": every_ms}},
        "lease_ttl": 20,
    })
}

/// More than half of the cores of this machine.
fn cores() -> f64 {
    let all = std::thread::available_parallelism().unwrap().get();
    all as f64 * 0.66
}

fn cluster(test: &str) -> Cluster {
    Cluster::start(test, &[TRAINER; 3])
}

impl Cluster {
    #[track_caller]
    fn submit_job(&self, job: &Value) -> String {
        let job = self.call("POST /api/v1/jobs", job);
        job["id"].as_str().unwrap().to_owned()
    }

    #[track_caller]
    fn job(&self, id: &str) -> Value {
        self.get(&format!("/api/v1/jobs/{id}"))
    }

    /// The job, once `is_so`.
    #[track_caller]
    fn job_when(&self, what: &str, id: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        wait_until(what, WAIT_TIMEOUT, || Some(self.job(id)).filter(&is_so))
    }

    /// The job, once all members run.
    #[track_caller]
    fn running(&self, id: &str, members: usize) -> Value {
        self.job_when("all members running", id, |job| {
            let all = job["members"].as_array().unwrap();
            all.len() == members && all.iter().all(|member| member["status"] == "running")
        })
    }

    #[track_caller]
    fn start_worker(&mut self, name: &str) {
        let member = self.lab.member("worker", name, &[&self.gateway_address()], TRAINER);
        let node = member.start();
        self.workers.push((member, node));
    }
}

fn workers_of(job: &Value) -> Vec<String> {
    let members = job["members"].as_array().unwrap().iter();
    members.map(|member| member["worker"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_gang_runs_to_completion_with_its_members_and_prices_shown() {
    let cluster = cluster("job-runs");
    let watch = ["market", "watch", "--scheduler", &cluster.url()];
    let mut market = Node::hypha("market", &watch);
    let file = cluster.lab.file("job.json", &job(2, (300, 20)).to_string());
    let submitted = cluster.hypha(&["job", "submit", &file]);
    let id = submitted.strip_suffix(" submitted\n").unwrap().to_owned();

    let running = cluster.running(&id, 3);
    assert_eq!(running["status"], "running");
    let members = running["members"].as_array().unwrap();
    let price = |role: &str| {
        let of_role = members.iter().filter(|member| member["role"] == role);
        of_role.map(|member| member["price"].as_f64().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!((price("worker"), price("parameter_server")), (vec![1.25; 2], vec![0.75]));
    let mut names: Vec<&str> =
        members.iter().map(|member| member["worker_name"].as_str().unwrap()).collect();
    names.sort_unstable();
    assert_eq!(names, ["worker-0", "worker-1", "worker-2"]);
    let leases = cluster.get("/api/v1/market")["leases"].as_array().unwrap().len();
    assert_eq!(leases, 3);
    let shown = cluster.hypha(&["job", "show", &id]);
    assert!(shown.contains("role         worker: 2 of 2, 0 done, bid 1.25\n"), "{shown}");
    assert!(shown.contains("worker-1 ("), "{shown}");

    let ended = cluster.job_when("completed", &id, |job| job["status"] == "completed");
    let finished: Vec<&Value> =
        ended["roles"].as_array().unwrap().iter().map(|role| &role["done"]).collect();
    assert_eq!((finished, &ended["lost"]), (vec![&json!(2), &json!(1)], &json!(0)), "{ended}");
    let listed = cluster.hypha(&["jobs"]);
    assert!(listed.contains("completed") && listed.contains("3 of 3"), "{listed}");
    market.wait_for_line("3 workers wanted at 1.25 an hour", WAIT_TIMEOUT);
    for line in ["worker-0 (", " offers at ", "  leased  ", "  released  "] {
        market.wait_for_line(line, WAIT_TIMEOUT);
    }
    market.signal(Signal::INT);
    assert!(market.wait(WAIT_TIMEOUT).success());

    // What each worker was held for is in the ledger, and the private price is nowhere.
    let ledger = cluster.get("/api/v1/market/ledger");
    let entries = ledger["entries"].as_array().unwrap();
    assert_eq!(entries.len(), 3, "{ledger}");
    for entry in entries {
        assert_eq!((&entry["organisation"], &entry["leases"]), (&json!("lab"), &json!(1)));
        let held = |key: &str| entry[key].as_f64().unwrap();
        assert!(held("held_seconds") + held("unconfirmed_seconds") > 1.0, "{entry}");
        assert!(held("amount") + held("unconfirmed_amount") > 0.0, "{entry}");
    }
    let csv = cluster.hypha(&["market", "ledger", "--csv"]);
    assert!(csv.starts_with("organisation,worker,worker_name,leases,"), "{csv}");
    assert_eq!(csv.lines().count(), 4, "{csv}");
    let table = cluster.hypha(&["market", "ledger"]);
    assert!(table.contains("lab") && table.contains("worker-2 ("), "{table}");
    // The workers have the same receipts, once the last ones are countersigned.
    let sums = wait_until("all confirmed by both sides", WAIT_TIMEOUT, || {
        let ledger = cluster.get("/api/v1/market/ledger");
        let is_confirmed = |entry: &&Value| entry["unconfirmed_seconds"] == 0.0;
        let entries = ledger["entries"].as_array().unwrap();
        entries.iter().all(|entry| is_confirmed(&entry)).then(|| entries.clone())
    });
    for (member, node) in &cluster.workers {
        let own = done(&["market", "ledger", "-c", &member.config, "--json"]);
        let own: Value = serde_json::from_str(&own).unwrap();
        let id = worker_id(node);
        let same = sums.iter().find(|entry| entry["worker"] == id).unwrap();
        for key in ["organisation", "leases", "held_seconds", "amount", "unconfirmed_seconds"] {
            assert_eq!(own["entries"][0][key], same[key], "{key}: {own} and {same}");
        }
        let csv = done(&["market", "ledger", "-c", &member.config, "--csv"]);
        assert!(csv.contains(&format!("lab,{id},,1,")), "{csv}");
    }
    let all = [
        running.to_string(),
        ended.to_string(),
        shown,
        listed,
        csv,
        cluster.get("/api/v1/market").to_string(),
        cluster.scheduler.1.output(),
        cluster.workers.iter().map(|(_, node)| node.output()).collect(),
        market.output(),
    ];
    for text in all {
        assert!(!text.contains("7.65") && !text.contains("7654321"), "{text}");
    }
}

#[test]
fn a_job_that_needs_more_than_there_is_says_why_and_runs_when_a_worker_joins() {
    let mut cluster = cluster("job-waits");
    let id = cluster.submit_job(&job(3, (2, 100)));
    let waits = cluster.job_when("a reason", &id, |job| !job["shortfall"].is_null());
    assert_eq!(waits["status"], "waiting");
    let reason = waits["reason"].as_str().unwrap();
    assert!(reason.contains(" of "), "{reason}");
    assert_eq!(waits["members"], json!([]), "all or none");
    let listed = cluster.hypha(&["jobs", "--status", "waiting"]);
    assert!(listed.contains(&id), "{listed}");
    cluster.start_worker("worker-3");
    cluster.job_when("completed", &id, |job| job["status"] == "completed");
}

#[test]
fn a_cancelled_job_releases_its_workers() {
    let cluster = cluster("job-cancel");
    let id = cluster.submit_job(&job(2, LONG));
    cluster.running(&id, 3);
    let cancelled = cluster.hypha(&["job", "cancel", &id]);
    assert_eq!(cancelled, format!("{id} cancelled\n"));
    assert_eq!(cluster.get("/api/v1/market")["leases"], json!([]));
    // The next one needs all of them.
    let next = cluster.submit_job(&job(2, (2, 100)));
    cluster.job_when("completed", &next, |job| job["status"] == "completed");
    let again = cluster.hypha(&["job", "cancel", &next]);
    assert_eq!(again, format!("{next} completed\n"), "it stays as it ended");
}

#[test]
fn a_worker_that_is_killed_is_replaced_and_the_job_completes() {
    let mut cluster = cluster("job-replace");
    cluster.start_worker("worker-3");
    cluster.wait_for_workers();
    let id = cluster.submit_job(&job(2, (150, 100)));
    let before = workers_of(&cluster.running(&id, 3));
    let is_member = |node: &Node| before.contains(&worker_id(node));
    let victim = cluster.workers.iter().position(|(_, node)| is_member(node)).unwrap();
    let spare = cluster.workers.iter().position(|(_, node)| !is_member(node)).unwrap();
    let spare = worker_id(&cluster.workers[spare].1);
    let (_, node) = cluster.workers.remove(victim);
    lab::kill(node);
    let after = cluster.job_when("a replacement", &id, |job| workers_of(job).contains(&spare));
    assert_eq!(after["lost"], 1, "{after}");
    let ended = cluster.job_when("completed", &id, |job| job["status"] == "completed");
    assert_eq!(ended["lost"], 1, "{ended}");
}

#[test]
fn a_job_continues_with_its_workers_when_the_scheduler_was_killed() {
    let mut cluster = cluster("job-restart");
    let file = cluster.lab.file("job.json", &job(2, LONG).to_string());
    let submitted = cluster.hypha(&["job", "submit", &file]);
    let id = submitted.strip_suffix(" submitted\n").unwrap().to_owned();
    let mut before = leases(&cluster.running(&id, 3));
    cluster.restart_scheduler();
    let mut after = leases(&cluster.running(&id, 3));
    before.sort_unstable();
    after.sort_unstable();
    assert_eq!(after, before, "the same leases");
    assert_eq!(cluster.job(&id)["lost"], 0);
    cluster.hypha(&["job", "cancel", &id]);
    let next = cluster.submit_job(&job(2, (2, 100)));
    cluster.job_when("completed", &next, |job| job["status"] == "completed");
}

fn leases(job: &Value) -> Vec<String> {
    let members = job["members"].as_array().unwrap().iter();
    members.map(|member| member["lease"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_job_in_toml_is_submitted_and_waited_for() {
    let cluster = cluster("job-toml");
    let job = "\
        name = \"from the seed\"\n\
        [scheduler.job.resources]\nnum_workers = 2\n\
        [[scheduler.job.resources.worker]]\ntype = \"CPU\"\nmin = 0.1\n\
        [[scheduler.job.resources.worker]]\nkind = \"diloco-transformer\"\n\
        [[scheduler.job.resources.parameter_server]]\nkind = \"parameter-server\"\n\
        [run]\nmodel = \"count\"\ninput = { to = 3, every_ms = 100 }\n\
        [parameter_server_run]\nmodel = \"count\"\ninput = { to = 2, every_ms = 100 }\n";
    let file = cluster.lab.file("job.toml", job);
    let shown = cluster.hypha(&["job", "submit", &file, "--wait"]);
    assert!(shown.contains("status       completed\n"), "{shown}");
    assert!(shown.contains("role         worker: 2 of 2, 2 done, bid 0\n"), "{shown}");

    let unknown = job.replace("input = { to = 3", "input = { up_to = 3");
    let file = cluster.lab.file("fails.toml", &unknown);
    let url = cluster.url();
    let output = crate::command::hypha(&["job", "submit", &file, "--wait", "--scheduler", &url]);
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains(" failed: ") && error.contains("every_ms"), "{error}");

    let bad = cluster.lab.file("bad.toml", &job.replace("num_workers = 2", "num_workers = 0"));
    let arguments = ["job", "submit", &bad, "--scheduler", &url];
    refused(&arguments, "resources.num_workers: `0` is invalid: give at least 1");
    let missing = "job-01890000-0000-7000-8000-000000000001";
    failed(1, &["job", "show", missing, "--scheduler", &url], "there is no job-01890000");
    let json = done(&["jobs", "--json", "--scheduler", &url]);
    let jobs: Value = serde_json::from_str(&json).unwrap();
    let states: Vec<&Value> = jobs.as_array().unwrap().iter().map(|job| &job["status"]).collect();
    assert_eq!(states, ["failed", "completed"]);
}
