//! `hypha explain`: why a task is with its worker, or why it waits.

use clap::Args;
use hypha_client::{Explanation, TaskId, Verdict};
use serde_json::{Value, json};

use super::reach::{Reach, block_on, failure};
use super::text::clean;
use crate::scheduler::table;
use crate::usage::{Failure, print};

#[derive(Args)]
pub(crate) struct Explain {
    /// The task
    id: TaskId,
    /// Print JSON, with the scores and their parts
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    reach: Reach,
}

pub(super) fn run(explain: &Explain) -> Result<(), Failure> {
    let scheduler = explain.reach.connect()?;
    let found = block_on(async { scheduler.explain(explain.id).await.map_err(failure) })?;
    match explain.json {
        true => print(&format!("{:#}\n", json!(found))),
        false => print(&lines(&found)),
    }
}

fn lines(found: &Explanation) -> String {
    let mut text = format!("{} {}: {}\n", found.id, found.status, clean(&found.summary));
    if let Some(decision) = found.more.get("decision").filter(|decision| decision.is_object()) {
        text += &format!("decided by {}\n", decided_by(decision));
    }
    if found.workers.is_empty() {
        return text;
    }
    text += match found.more.get("as_decided") == Some(&Value::Bool(true)) {
        true => "\nevery worker's answer when this was decided:\n",
        false => "\nevery worker's answer at present:\n",
    };
    let mut rows = vec![["worker", "score", "why"].map(str::to_owned)];
    for verdict in &found.workers {
        rows.extend(answer(verdict));
    }
    text += &table(&rows);
    if found.left_off > 0 {
        text += &format!("and {} more\n", found.left_off);
    }
    text
}

/// A row for each reason, so that none is cut off.
fn answer(verdict: &Verdict) -> Vec<[String; 3]> {
    let worker = verdict.worker.to_string();
    if verdict.refusals.is_empty() {
        let score = verdict.score.map_or("-".to_owned(), |score| format!("{score:.3}"));
        return vec![[worker, score, parts(verdict)]];
    }
    let row = |(at, reason): (usize, &String)| {
        let (worker, score) = if at == 0 { (worker.as_str(), "no") } else { ("", "") };
        [worker.to_owned(), score.to_owned(), clean(reason)]
    };
    verdict.refusals.iter().enumerate().map(row).collect()
}

/// What a score in seconds is the sum of: `wait 0.2 + run 1.5 s`.
fn parts(verdict: &Verdict) -> String {
    let Some(Value::Object(terms)) = verdict.more.get("terms") else { return String::new() };
    let names = ["wait", "run", "transfer", "risk", "error", "surcharge"];
    let part = |name: &&str| {
        let seconds = terms.get(&format!("{name}_s"))?.as_f64()?;
        (seconds >= 0.0005).then(|| format!("{name} {seconds:.3}"))
    };
    let parts: Vec<_> = names.iter().filter_map(part).collect();
    if parts.is_empty() { String::new() } else { format!("{} s", parts.join(" + ")) }
}

fn decided_by(decision: &Value) -> String {
    let text = |key: &str| clean(decision[key].as_str().unwrap_or("-"));
    let explored = match decision["explored"] == json!(true) {
        true => ", to learn about the worker",
        false => "",
    };
    format!("{} at {}{explored}", text("strategy"), text("at"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_worker_s_answer_is_a_line_for_each_reason() {
        let found: Explanation = serde_json::from_value(json!({
            "id": "task-01890000-0000-7000-8000-000000000001",
            "status": "queued", "worker": null, "attempts": 0,
            "summary": "no worker can take it (2 looked at): 1 × too little memory",
            "decision": {"strategy": "predictive", "at": "2026-01-01T00:00:00.000Z",
                "chosen": null, "explored": false},
            "as_decided": false,
            "left_off": 3,
            "workers": [
                {"worker": "01890000-0000-7000-8000-000000000002", "score": 1.75,
                 "terms": {"wait_s": 0.25, "run_s": 1.5, "transfer_s": 0.0}, "refusals": []},
                {"worker": "01890000-0000-7000-8000-000000000003", "score": null,
                 "refusals": ["needs 1 EB of memory, has 16 GB", "needs 1 GPU(s), has 0"]},
            ],
        }))
        .unwrap();
        let text = lines(&found);
        let expected = "\
task-01890000-0000-7000-8000-000000000001 queued: no worker can take it (2 looked at): 1 × too little memory
decided by predictive at 2026-01-01T00:00:00.000Z

every worker's answer at present:
worker                                score  why
01890000-0000-7000-8000-000000000002  1.750  wait 0.250 + run 1.500 s
01890000-0000-7000-8000-000000000003  no     needs 1 EB of memory, has 16 GB
                                             needs 1 GPU(s), has 0
and 3 more
";
        assert_eq!(text, expected);
    }
}
