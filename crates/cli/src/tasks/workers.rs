//! `hypha workers`: who works for a scheduler.

use clap::Args;
use hypha_client::WorkerStatus;
use hypha_model::Time;
use serde_json::json;

use super::reach::{Reach, block_on, failure};
use super::roster::{short_id, shown_name};
use super::text::{ago, clean, cut, fit, now, took_millis};
use crate::scheduler::{or_dash, table};
use crate::usage::{Failure, print};

/// The longest part of a reason that is shown; `--json` has all of it.
const MAX_REASON_CHARS: usize = 160;

#[derive(Args)]
pub(crate) struct Workers {
    /// Print JSON, with everything that the scheduler says of them
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    reach: Reach,
}

pub(super) fn run(workers: &Workers) -> Result<(), Failure> {
    let scheduler = workers.reach.connect()?;
    let found = block_on(async { scheduler.workers().await.map_err(failure) })?;
    match workers.json {
        true => print(&format!("{:#}\n", json!(found))),
        false if found.is_empty() => print("no workers yet; start one with `hypha worker run`\n"),
        false => print(&lines(&found, now())),
    }
}

fn lines(workers: &[WorkerStatus], now: Time) -> String {
    let header = ["worker", "id", "status", "models", "run", "queue", "wait", "seen"];
    let mut rows = vec![header.map(str::to_owned)];
    let mut workers: Vec<_> = workers.iter().collect();
    workers.sort_by_key(|worker| (&worker.name, worker.id));
    for worker in &workers {
        rows.push([
            or_dash(shown_name(worker)),
            short_id(worker.id),
            clean(&worker.status),
            match worker.models.is_empty() {
                true => "any".to_owned(),
                false => clean(&worker.models.join(", ")),
            },
            worker.running.to_string(),
            worker.queued.to_string(),
            or_dash(worker.waiting_ms.map_or(String::new(), took_millis)),
            or_dash(worker.health.last_seen.as_ref().map_or(String::new(), |at| ago(now, at))),
        ]);
    }
    fit(&mut rows, 3);
    let reasons: String = workers.iter().flat_map(|worker| reasons(worker)).collect();
    match reasons.is_empty() {
        true => table(&rows),
        false => format!("{}\n{reasons}", table(&rows)),
    }
}

/// Why a worker, or a part of it, is not used: a line for each.
fn reasons(worker: &WorkerStatus) -> Vec<String> {
    let who = match shown_name(worker) {
        name if name.is_empty() => short_id(worker.id),
        name => format!("{name} ({})", short_id(worker.id)),
    };
    let line =
        |what: &str, why: &str| format!("{who}{what}: {}\n", cut(&clean(why), MAX_REASON_CHARS));
    if let Some(why) = worker.reason() {
        return vec![line("", why)];
    }
    let alone = worker.executors_left_alone();
    alone.iter().map(|(name, why)| line(&format!(", executor {}", clean(name)), why)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hypha_client::Timestamp;

    #[test]
    fn a_table_of_workers_fits_a_terminal_with_their_names() {
        let id = "01890000-0000-7000-8000-000000000001";
        let worker: WorkerStatus = serde_json::from_value(json!({
            "id": id, "name": "worker-1", "status": "unavailable",
            "running": 12, "queued": 3, "waiting_ms": 999.9,
            "models": ["meta-llama/Llama-2-7b-chat-hf", "stable-diffusion-xl"],
            "health": {"last_seen": "2026-01-01T00:00:00.000Z"},
        }))
        .unwrap();
        let at: Timestamp = "2026-01-01T00:00:03Z".parse().unwrap();
        let other: WorkerStatus =
            serde_json::from_value(json!({"id": id, "name": "worker-2"})).unwrap();
        let text = lines(&[other, worker], at.time());
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
        let row = text.lines().nth(1).unwrap();
        assert!(
            row.starts_with("worker-1  01890000  unavail") && row.ends_with("999.9 ms  3s ago"),
            "{text}"
        );
        assert!(row.contains("meta-llama/Llama-2"), "{text}");
        assert!(text.lines().nth(2).unwrap().starts_with("worker-2  01890000"), "{text}");
        assert_eq!(text.lines().count(), 3, "{text}");
    }

    #[test]
    fn whoever_is_not_used_has_a_line_with_the_reason() {
        let id = "01890000-0000-7000-8000-000000000001";
        let worker = |more: serde_json::Value| -> WorkerStatus {
            let mut json = json!({"id": id, "status": "unavailable"});
            json.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            serde_json::from_value(json).unwrap()
        };
        let executors = json!([{"name": "a", "reason": "left\nalone"}, {"name": "b"}]);
        let lost = worker(json!({"name": "w", "reason": "lost at noon", "executors": executors}));
        let part = worker(json!({"executors": executors}));
        let text = lines(&[lost, part], Time::ZERO);
        let expected = "\n01890000, executor a: left alone\nw (01890000): lost at noon\n";
        assert!(text.ends_with(expected), "{text}");
    }
}
