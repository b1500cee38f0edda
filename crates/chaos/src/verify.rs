//! Verification after a round: every acknowledged task has ended, once, with its own result, and there are no others.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::back_end::Protocol;
use crate::failures::FailureChecker;
use crate::faults::FaultLog;
use crate::http::{Client, Request};
use crate::ledger::{Ledger, ListedTask, Scope, SubmittedTask};
use crate::load::lock;
use crate::network::{ApiAddress, Network};
use crate::random::Random;

/// How long the last task may take to end after the last submit, when all nodes are healthy again. With default
/// settings a worker or back end that has failed three times in a row is quarantined for half a minute, twice as long
/// the next time, and an attempt that a restarted scheduler does not find is given up when its lease has ended; the
/// remaining time is for machines with other load.
pub(crate) const DRAIN_TIMEOUT: Duration = Duration::from_secs(300);
/// How long it may take until all workers are back and idle.
const IDLE_TIMEOUT: Duration = Duration::from_secs(180);
/// How long to wait for the last commit before the list is compared again, and how often.
const COMMIT_WAIT: Duration = Duration::from_millis(500);
const MAX_COMPARISONS: u32 = 10;
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Tasks in a page of the list: the scheduler's maximum.
const PAGE: usize = 1_000;
/// Tasks that are fetched in full, not only as rows of the list, besides all tasks with a large result.
const SAMPLE: usize = 20;
/// Metrics that show what recovery did; a renamed one would be a blind spot.
const METRICS: [&str; 8] = [
    "tasks_submitted_total",
    "tasks_completed_total",
    "tasks_failed_total",
    "attempts_retried_total",
    "late_results_total",
    "leases_lost_total",
    "tasks_open",
    "tasks_queued",
];

pub(crate) struct Verifier {
    client: Client,
    address: Arc<ApiAddress>,
    random: Random,
    logs: PathBuf,
    workers: usize,
    /// The names of workers by their ids.
    names: HashMap<String, String>,
    /// Tasks that were fetched in full.
    seen: HashSet<String>,
}

/// The measurements of a round without violations.
pub(crate) struct RoundResult {
    pub(crate) time: Duration,
    /// From there until all nodes were healthy and idle.
    pub(crate) idle_after: Duration,
    pub(crate) retried: u64,
    pub(crate) failed: u64,
}

#[derive(Deserialize)]
struct Page {
    tasks: Vec<ListedTask>,
    next: Option<String>,
}

#[derive(Deserialize)]
struct Queues {
    queues: Vec<Queue>,
}

#[derive(Debug, Deserialize)]
struct Queue {
    ti_uuid: String,
    waiting_time_expect: f64,
    waiting_time_error: f64,
}

#[derive(Deserialize)]
struct Workers {
    workers: Vec<Worker>,
}

/// A worker as the scheduler reports it.
#[derive(Debug, Deserialize)]
pub(crate) struct Worker {
    id: String,
    pub(crate) name: Option<String>,
    pub(crate) running: usize,
}

impl Verifier {
    pub(crate) fn new(network: &Network, seed: u64, logs: PathBuf) -> Verifier {
        Verifier {
            client: Client::default(),
            address: Arc::clone(&network.address),
            random: Random::new(seed, u64::MAX),
            logs,
            workers: network.workers.len() + network.back_ends.len(),
            names: HashMap::new(),
            seen: HashSet::new(),
        }
    }

    /// Registers the task instances, which the scheduler then remembers. HTTP servers are in its configuration.
    pub(crate) fn register(&mut self, network: &mut Network) -> anyhow::Result<()> {
        let ports: Vec<u16> =
            network.back_ends(Protocol::Instance).iter().map(|it| it.address.port()).collect();
        for port in ports {
            let body = json!({ "host": "127.0.0.1", "port": port }).to_string();
            self.retry_until(
                network,
                IDLE_TIMEOUT,
                "a task instance was not registered",
                |this| this.call("POST", "/ti/register", &body).map(drop),
            )?;
        }
        Ok(())
    }

    /// What must be true after a round: see docs/chaos.md.
    pub(crate) fn verify_round(
        &mut self,
        network: &mut Network,
        ledger: &mut Ledger,
        faults: &Mutex<FaultLog>,
        (round, scope): (u32, Scope),
    ) -> anyhow::Result<RoundResult> {
        let began = Instant::now();
        let drained = self.wait_until_drained(network);
        let time = began.elapsed();
        self.compare_or_fail(ledger, faults, scope, drained)?;
        let began = Instant::now();
        self.wait_until_idle(network)?;
        let probed = self.probe(network, ledger, round);
        let idle_after = began.elapsed();
        let listed = self.compare_or_fail(ledger, faults, scope, probed)?;
        let sample = (0..SAMPLE).filter_map(|_| listed.get(self.random.index(listed.len())));
        let mut whole: Vec<&ListedTask> = sample.collect();
        let large = |task: &&ListedTask| {
            ledger.submitted_task(&task.id).is_some_and(SubmittedTask::is_large)
        };
        whole.extend(listed.iter().filter(large).filter(|task| !self.seen.contains(&task.id)));
        for task in whole.into_iter().filter(|task| task.is_completed()) {
            self.check_whole_task(&task.id, ledger)?;
            self.seen.insert(task.id.clone());
        }
        self.wait_until_idle(network)?;
        self.check_metrics()?;
        self.check_logs()?;
        let checker = FailureChecker { faults: &lock(faults), names: &self.names };
        ledger.test_checker(&listed, &checker)?;
        let (retried, failed) = ledger.mark_verified(&listed);
        Ok(RoundResult { time, idle_after, retried, failed })
    }

    /// Compares the list with the acknowledged tasks, and explains why each task that should have ended has not.
    fn compare_or_fail(
        &mut self,
        ledger: &Ledger,
        faults: &Mutex<FaultLog>,
        scope: Scope,
        drained: anyhow::Result<()>,
    ) -> anyhow::Result<Vec<ListedTask>> {
        for Worker { id, name, .. } in self.workers()? {
            self.names.extend(name.map(|name| (id, name)));
        }
        let (listed, mut violations) = self.compare(ledger, faults, scope)?;
        if let Err(error) = drained {
            violations.push(format!("{error:#}"));
        }
        for task in Ledger::unfinished(&listed) {
            let why: anyhow::Result<Value> =
                self.json(&format!("/api/v1/tasks/{}/explain", task.id));
            violations.push(format!("{}: {why:?}", task.id));
        }
        if !violations.is_empty() {
            bail!("{}", violations.join("\n  "));
        }
        Ok(listed)
    }

    /// Compares the list with the acknowledged tasks. A violation is checked again: the scheduler counts a task as
    /// ended when it knows the result, and lists it as such when the result is on the disk.
    fn compare(
        &mut self,
        ledger: &Ledger,
        faults: &Mutex<FaultLog>,
        scope: Scope,
    ) -> anyhow::Result<(Vec<ListedTask>, Vec<String>)> {
        for look in 1.. {
            let listed = self.list(ledger, scope).context("cannot list the tasks")?;
            let checker = FailureChecker { faults: &lock(faults), names: &self.names };
            let violations = ledger.compare(&listed, scope, &checker);
            if violations.is_empty() || look == MAX_COMPARISONS {
                return Ok((listed, violations));
            }
            thread::sleep(COMMIT_WAIT);
        }
        bail!("the list was not compared")
    }

    /// Waits until all workers accept tasks and none are pending, as at the start of a run.
    pub(crate) fn wait_until_idle(&mut self, network: &mut Network) -> anyhow::Result<()> {
        self.retry_until(network, IDLE_TIMEOUT, "the workers are not all back and idle", |this| {
            let Queues { queues } = this.json("/queue/info")?;
            let workers: BTreeSet<_> = queues.iter().map(|queue| &queue.ti_uuid).collect();
            let zero =
                |queue: &Queue| queue.waiting_time_expect == 0.0 && queue.waiting_time_error == 0.0;
            match workers.len() == this.workers && queues.iter().all(zero) {
                true => Ok(()),
                false => Err(anyhow!("waiting times that are not all exactly 0: {queues:?}")),
            }
        })
    }

    /// Records how many late and duplicate results this incarnation of the scheduler has dropped, if it is reachable.
    pub(crate) fn scrape(&mut self, late: &mut BTreeMap<u32, u64>) {
        let incarnation = self.address.current().map(|(incarnation, _)| incarnation);
        let dropped = self.metric("late_results_total");
        if let (Some(incarnation), Ok(dropped)) = (incarnation, dropped) {
            late.insert(incarnation, dropped as u64);
        }
    }

    pub(crate) fn wait_until_drained(&mut self, network: &mut Network) -> anyhow::Result<()> {
        self.retry_until(network, DRAIN_TIMEOUT, "the queue was not drained", |this| {
            match this.metric("tasks_open")? {
                0.0 => Ok(()),
                open => Err(anyhow!("{open} tasks have not ended")),
            }
        })
    }

    /// Retries until the check passes or the time is over.
    pub(crate) fn retry_until(
        &mut self,
        network: &mut Network,
        timeout: Duration,
        otherwise: &str,
        mut look: impl FnMut(&mut Self) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let until = Instant::now() + timeout;
        loop {
            network.check_alive()?;
            let Err(error) = look(self) else { return Ok(()) };
            if Instant::now() >= until {
                return Err(error.context(format!("{otherwise} within {timeout:?}")));
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// The tasks that the scheduler has, by pages, the latest first: all of them, or down to those that were verified
    /// in earlier rounds.
    fn list(&mut self, ledger: &Ledger, scope: Scope) -> anyhow::Result<Vec<ListedTask>> {
        let expected = ledger.acknowledged();
        let mut listed = Vec::new();
        let mut path = format!("/api/v1/tasks?limit={PAGE}");
        // A list many times longer than expected is a violation anyway; pages may be partly filled.
        for _ in 0..4 * expected / PAGE + 16 {
            let Page { tasks, next } = self.json(&path)?;
            let known = !tasks.is_empty() && tasks.iter().all(|task| ledger.is_verified(&task.id));
            listed.extend(tasks);
            match next {
                Some(_) if known && scope == Scope::Latest => return Ok(listed),
                Some(cursor) => path = format!("/api/v1/tasks?limit={PAGE}&cursor={cursor}"),
                None => return Ok(listed),
            }
        }
        bail!("the list has no end: {} tasks so far, {expected} are known", listed.len())
    }

    fn check_whole_task(&mut self, id: &str, ledger: &Ledger) -> anyhow::Result<()> {
        let Some(submitted) = ledger.submitted_task(id) else { bail!("{id} is not known") };
        let whole: Value = self.json(&format!("/api/v1/tasks/{id}"))?;
        let result: Value = self.json(&format!("/api/v1/tasks/{id}/result"))?;
        if whole["model"] != submitted.model
            || whole["input"] != submitted.input
            || result != submitted.input
        {
            let short = |what: String| what.chars().take(400).collect::<String>();
            let (submitted, whole) = (short(format!("{submitted:?}")), short(whole.to_string()));
            bail!(
                "{id} was {submitted} and is {whole} with the result {}",
                short(result.to_string())
            );
        }
        Ok(())
    }

    fn check_metrics(&mut self) -> anyhow::Result<()> {
        METRICS.iter().try_for_each(|name| self.metric(name).map(drop))
    }

    /// A node that panics in a thread may keep running and look healthy.
    fn check_logs(&self) -> anyhow::Result<()> {
        for entry in fs::read_dir(&self.logs)? {
            let path = entry?.path();
            let said = fs::read_to_string(&path).unwrap_or_default();
            if let Some(line) = said.lines().find(|line| line.contains("panicked at")) {
                bail!("a panic in {path:?}: {line}");
            }
        }
        Ok(())
    }

    fn metric(&mut self, name: &str) -> anyhow::Result<f64> {
        let text = String::from_utf8(self.get("/metrics")?)?;
        value_of(&text, name).ok_or_else(|| anyhow!("/metrics has no hypha_scheduler_{name}"))
    }

    fn json<T: for<'de> Deserialize<'de>>(&mut self, path: &str) -> anyhow::Result<T> {
        let body = self.get(path)?;
        serde_json::from_slice(&body).with_context(|| format!("the answer to {path} is invalid"))
    }

    /// All workers that the scheduler knows.
    pub(crate) fn workers(&mut self) -> anyhow::Result<Vec<Worker>> {
        let Workers { workers } = self.json("/api/v1/workers")?;
        Ok(workers)
    }

    fn get(&mut self, path: &str) -> anyhow::Result<Vec<u8>> {
        self.request(&Request::get(path))
    }

    pub(crate) fn call(&mut self, method: &str, path: &str, body: &str) -> anyhow::Result<Vec<u8>> {
        self.request(&Request { method, path, key: None, body })
    }

    fn request(&mut self, request: &Request) -> anyhow::Result<Vec<u8>> {
        let path = request.path;
        let at = self.address.current().context("the scheduler does not serve its API yet")?;
        let answer = self
            .client
            .request(at, request)
            .map_err(|error| anyhow!("no answer to {path}: {error:?}"))?;
        match answer.status {
            200..300 => Ok(answer.body),
            status => {
                bail!("{path} is answered by {status} {}", String::from_utf8_lossy(&answer.body))
            }
        }
    }
}

fn value_of(metrics: &str, name: &str) -> Option<f64> {
    let named = |line: &str| {
        let (word, value) = line.strip_prefix("hypha_scheduler_")?.split_once(' ')?;
        (word == name).then(|| value.trim().parse().ok())?
    };
    metrics.lines().find_map(named)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_is_found_by_its_full_name() {
        let text = "# TYPE hypha_scheduler_tasks_open gauge\nhypha_scheduler_tasks_open 3\n\
                    hypha_scheduler_tasks_open_more 4\nhypha_scheduler_late_results_total 12\n";
        assert_eq!(value_of(text, "tasks_open"), Some(3.0));
        assert_eq!(value_of(text, "late_results_total"), Some(12.0));
        assert_eq!(value_of(text, "late_results"), None);
    }
}
