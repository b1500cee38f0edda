//! Clients that submit continuously and persistently: an unanswered submit is repeated with the same key.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail};
use serde_json::{Value, json};

use crate::faults::now_ms;
use crate::http::{Client, HttpResponse, Request, RequestError};
use crate::ledger::{LARGE_BYTES, Ledger, SubmittedTask};
use crate::network::{ApiAddress, INSTANCE_MODELS, SHARED_MODEL};
use crate::random::Random;

/// Enough that commits hold submits of several clients, few enough for a machine with two cores.
const CLIENTS: u64 = 4;
/// The most tasks in one request: some commits are large.
const MAX_BATCH: u64 = 40;
/// How long a client keeps repeating one submit: longer than a scheduler is ever down or frozen.
const SUBMIT_TIMEOUT: Duration = Duration::from_secs(240);
/// Before a submit is repeated.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);
/// One task in so many takes long, so that faults strike while it runs.
const LONG_ONCE_IN: u64 = 25;
/// One task in so many has a result that is stored as an object. They take most of the space.
const LARGE_ONCE_IN: u64 = 500;
/// Between two submits of a client, at most. With default settings a round takes half a minute, and its tasks
/// have to be completed, and listed, on a machine with two cores.
const MAX_SUBMIT_INTERVAL_MS: u64 = 200;

pub(crate) struct Load {
    clients: Vec<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
    /// Why a client gave up, if one did.
    failure: Arc<Mutex<Option<String>>>,
}

impl Load {
    pub(crate) fn start(
        seed: u64,
        round: u32,
        address: &Arc<ApiAddress>,
        ledger: &Arc<Mutex<Ledger>>,
    ) -> Load {
        let stop = Arc::<AtomicBool>::default();
        let failure = Arc::<Mutex<Option<String>>>::default();
        let clients = (1..=CLIENTS).map(|number| {
            let submitter = Submitter {
                name: format!("{round}-{number}"),
                random: Random::new(seed, u64::from(round) << 8 | number),
                address: Arc::clone(address),
                ledger: Arc::clone(ledger),
                client: Client::default(),
                past: Vec::new(),
            };
            let (stop, failure) = (Arc::clone(&stop), Arc::clone(&failure));
            thread::spawn(move || {
                if let Err(error) = submitter.run(&stop) {
                    lock(&failure).get_or_insert(format!("{error:#}"));
                }
            })
        });
        Load { clients: clients.collect(), stop, failure }
    }

    /// Fails if a client has given up.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        lock(&self.failure).as_ref().map_or(Ok(()), |why| Err(anyhow!(why.clone())))
    }

    /// Stops new submits; those in flight are completed.
    pub(crate) fn finish(mut self) -> anyhow::Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        for client in self.clients.drain(..) {
            client.join().map_err(|_| anyhow!("a client panicked"))?;
        }
        self.check()
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Submitter {
    name: String,
    random: Random,
    address: Arc<ApiAddress>,
    ledger: Arc<Mutex<Ledger>>,
    client: Client,
    /// The submits of this round.
    past: Vec<Submit>,
}

struct Submit {
    key: String,
    tasks: Vec<SubmittedTask>,
    batch: bool,
}

/// A request that was sent and not answered.
struct UnansweredRequest {
    /// Which incarnation of the scheduler it was sent to.
    incarnation: u32,
    sent_ms: u64,
}

impl Submitter {
    fn run(mut self, stop: &AtomicBool) -> anyhow::Result<()> {
        while !stop.load(Ordering::Relaxed) {
            if !self.past.is_empty() && self.random.once_in(20) {
                let at = self.random.index(self.past.len());
                let submit = self.past.swap_remove(at);
                self.submit_until_acknowledged(&submit)?;
                lock(&self.ledger).doubled += 1;
                self.past.push(submit);
            } else {
                let submit = self.draw();
                self.submit_until_acknowledged(&submit)?;
                self.past.push(submit);
            }
            thread::sleep(self.random.millis(0..=MAX_SUBMIT_INTERVAL_MS));
        }
        Ok(())
    }

    fn draw(&mut self) -> Submit {
        let number = self.past.len();
        let key = format!("{}-{number}", self.name);
        let batch = self.random.once_in(8);
        let count = if batch { self.random.in_range(1..=MAX_BATCH) } else { 1 };
        let tasks = (0..count).map(|at| self.task(&format!("{key}#{at}"))).collect();
        Submit { key, tasks, batch }
    }

    fn task(&mut self, name: &str) -> SubmittedTask {
        let long = self.random.once_in(LONG_ONCE_IN);
        let ms = self.random.in_range(if long { 500..=3_000 } else { 1..=50 });
        let large = self.random.once_in(LARGE_ONCE_IN);
        let bytes = if large { LARGE_BYTES } else { 0 } + self.random.index(200);
        let timed = json!({ "name": name, "ms": ms });
        let (model, input) = match self.random.index(24) {
            0..=8 => ("echo", json!({ "name": name, "padding": "x".repeat(bytes) })),
            9..=12 => ("sleep", json!({ "ms": ms })),
            13..=18 => (SHARED_MODEL, timed),
            19..=20 => (INSTANCE_MODELS[0], timed),
            21..=22 => (INSTANCE_MODELS[1], timed),
            // Each starts a process, which is expensive.
            _ => ("program", timed),
        };
        SubmittedTask { model: model.to_owned(), input }
    }

    /// Repeats a submit until it is acknowledged.
    fn submit_until_acknowledged(&mut self, submit: &Submit) -> anyhow::Result<()> {
        let body = submit.body();
        let request =
            Request { method: "POST", path: "/api/v1/tasks", key: Some(&submit.key), body: &body };
        let until = Instant::now() + SUBMIT_TIMEOUT;
        let mut lost: Vec<UnansweredRequest> = Vec::new();
        let mut last = "the scheduler does not serve its API".to_owned();
        while Instant::now() < until {
            if let Some(at @ (incarnation, _)) = self.address.current() {
                let sent_ms = now_ms();
                match self.client.request(at, &request) {
                    Ok(answer) if matches!(answer.status, 429 | 503) => {
                        lock(&self.ledger).refused += 1;
                        last = shown(&answer);
                    }
                    Ok(answer) => {
                        let ids = submit.ids(&answer)?;
                        return self.acknowledged(submit, &ids, &lost, sent_ms);
                    }
                    Err(RequestError::Unreachable(error)) => last = error.to_string(),
                    Err(RequestError::Unanswered(error)) => {
                        lock(&self.ledger).repeated += 1;
                        lost.push(UnansweredRequest { incarnation, sent_ms });
                        last = error.to_string();
                    }
                }
            }
            thread::sleep(RETRY_INTERVAL);
        }
        bail!("the submit {} was not acknowledged within {SUBMIT_TIMEOUT:?}: {last}", submit.key)
    }

    fn acknowledged(
        &self,
        submit: &Submit,
        ids: &[String],
        lost: &[UnansweredRequest],
        sent_ms: u64,
    ) -> anyhow::Result<()> {
        let mut ledger = lock(&self.ledger);
        for (at, (submitted, id)) in submit.tasks.iter().zip(ids).enumerate() {
            let key = format!("{}#{at}", submit.key);
            ledger.acknowledge(&key, submitted, id).map_err(|why| anyhow!(why))?;
        }
        // A task's id begins with the time at which it was accepted: this shows which of the requests created it.
        let Some(accepted_ms) = ids.first().and_then(|id| accepted_ms(id)) else { return Ok(()) };
        let ends = lost.iter().skip(1).map(|next| next.sent_ms).chain([sent_ms]);
        for (request, end) in lost.iter().zip(ends) {
            let unanswered_submits =
                ledger.unanswered_submits.entry(request.incarnation).or_default();
            match (request.sent_ms..end).contains(&accepted_ms) {
                true => unanswered_submits.found += 1,
                false => unanswered_submits.anew += 1,
            }
        }
        Ok(())
    }
}

impl Submit {
    fn body(&self) -> String {
        let task = |SubmittedTask { model, input }: &SubmittedTask| json!({ "model": model, "input": input });
        match self.batch {
            true => Value::from_iter(self.tasks.iter().map(task)).to_string(),
            false => self.tasks.iter().map(task).map(|task| task.to_string()).collect(),
        }
    }

    /// The ids in an answer, one for each task.
    fn ids(&self, answer: &HttpResponse) -> anyhow::Result<Vec<String>> {
        let wrong = || anyhow!("the submit {} was answered by {}", self.key, shown(answer));
        if !(200..300).contains(&answer.status) {
            return Err(wrong());
        }
        let body: Value = serde_json::from_slice(&answer.body).map_err(|_| wrong())?;
        let tasks = match self.batch {
            true => body["tasks"].as_array().cloned().unwrap_or_default(),
            false => vec![body],
        };
        let ids: Vec<String> =
            tasks.iter().filter_map(|task| task["id"].as_str().map(str::to_owned)).collect();
        if ids.len() == self.tasks.len() && ids.len() == tasks.len() {
            return Ok(ids);
        }
        Err(wrong())
    }
}

fn shown(answer: &HttpResponse) -> String {
    let text = String::from_utf8_lossy(&answer.body);
    format!("{} {}", answer.status, text.chars().take(300).collect::<String>())
}

/// The time in an id: the first 48 bits of its UUID are milliseconds since 1970.
pub(crate) fn accepted_ms(id: &str) -> Option<u64> {
    let uuid = id.get(id.len().checked_sub(36)?..)?;
    u64::from_str_radix(&format!("{}{}", uuid.get(..8)?, uuid.get(9..13)?), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn submitted(input: Value) -> SubmittedTask {
        SubmittedTask { model: "echo".to_owned(), input }
    }

    #[test]
    fn the_time_in_an_id_is_parsed() {
        assert_eq!(accepted_ms("019a8d2f-3c01-7aaa-8bbb-0123456789ab"), Some(0x019a_8d2f_3c01));
        assert_eq!(
            accepted_ms("task-019a8d2f-3c01-7aaa-8bbb-0123456789ab"),
            Some(0x019a_8d2f_3c01)
        );
        assert_eq!(accepted_ms("short"), None);
    }

    #[test]
    fn an_answer_must_name_every_task() {
        let answer = |status, body: &str| HttpResponse { status, body: body.into() };
        let one = Submit { key: "k".into(), tasks: vec![submitted(json!(1))], batch: false };
        assert_eq!(one.body(), r#"{"input":1,"model":"echo"}"#);
        assert_eq!(one.ids(&answer(202, r#"{"id":"a"}"#)).expect("an id"), ["a"]);
        for (status, body) in [(409, r#"{"id":"a"}"#), (200, "{}"), (200, "x"), (500, "")] {
            assert!(one.ids(&answer(status, body)).is_err(), "{status} {body}");
        }
        let tasks = vec![submitted(json!(1)), submitted(json!(2))];
        let two = Submit { key: "k".into(), tasks, batch: true };
        assert!(two.body().starts_with('['));
        let both = answer(202, r#"{"tasks":[{"id":"a"},{"id":"b"}]}"#);
        assert_eq!(two.ids(&both).expect("two ids"), ["a", "b"]);
        let half = answer(202, r#"{"tasks":[{"id":"a"},{"error":{"code":"x"}}]}"#);
        assert!(two.ids(&half).is_err());
    }
}
