//! `hypha explain`: why a task is on its worker, or why it waits.

use clap::Args;
use hypha_client::{Explanation, Scheduler, TaskFilter, TaskId, TaskState, Verdict};
use hypha_model::Time;
use serde_json::{Value, json};

use super::connection::{ConnectionArguments, block_on, failure};
use super::roster::Roster;
use super::show::failed_attempt;
use super::text::{clean, count, cut, now};
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
    connection: ConnectionArguments,
}

pub(super) fn run(explain: &Explain) -> Result<(), Failure> {
    let scheduler = explain.connection.connect()?;
    block_on(async {
        let found = scheduler.explain(explain.id).await.map_err(failure)?;
        if explain.json {
            return print(&format!("{:#}\n", json!(found)));
        }
        let roster = Roster::fetch(&scheduler).await;
        let guessed = is_guessed(&scheduler, &found, &roster).await;
        print(&lines(&found, guessed.as_deref(), &roster, now()))
    })
}

/// The model, if its times are guesses: no task for it is known to have completed on these workers.
async fn is_guessed(scheduler: &Scheduler, found: &Explanation, roster: &Roster) -> Option<String> {
    // Only strategies that predict have terms.
    if !found.workers.iter().any(|verdict| verdict.more.contains_key("terms")) {
        return None;
    }
    let model = scheduler.task(found.id).await.ok()?.model?;
    if !roster.has_learned() {
        return Some(model);
    }
    let filter = TaskFilter {
        status: Some(TaskState::Completed),
        model: Some(model.clone()),
        limit: Some(1),
        ..TaskFilter::default()
    };
    // A page without tasks that is not the last page proves nothing.
    let page = scheduler.tasks(filter).next().await.ok()??;
    (page.tasks.is_empty() && page.next.is_none()).then_some(model)
}

fn lines(found: &Explanation, guessed: Option<&str>, roster: &Roster, now: Time) -> String {
    let (id, status) = (found.id, found.status);
    let mut text = match (roster.named(&found.summary), status.as_str()) {
        (summary, status) if summary.starts_with(status) => format!("{id} {summary}\n"),
        (summary, status) if summary.is_empty() => format!("{id} {status}\n"),
        (summary, status) => format!("{id} {status}: {summary}\n"),
    };
    for one in found.failures() {
        text += &format!("failed attempt {}\n", failed_attempt(&one, roster, now));
    }
    if let Some(status) = found.more.get("deadline_status").and_then(Value::as_str) {
        let finish = found.more.get("predicted_finish_at").and_then(Value::as_str);
        let status = clean(&status.replace('_', " "));
        text +=
            &format!("deadline {status}, expected to end at {}\n", clean(finish.unwrap_or("-")));
    }
    if let Some(decision) = found.more.get("decision").filter(|decision| decision.is_object()) {
        text += &format!("decided by {}\n", decided_by(decision));
    }
    text += &answers(found, guessed, roster);
    let nobody = found.workers.iter().all(|verdict| !verdict.refusals.is_empty());
    if let Some(drained) = roster.drained().filter(|_| nobody && status == TaskState::Queued) {
        text += &format!("{drained}\n");
    }
    text
}

/// Every worker's score or refusal; nothing for a task that has ended.
fn answers(found: &Explanation, guessed: Option<&str>, roster: &Roster) -> String {
    if found.workers.is_empty() {
        return String::new();
    }
    let mut text = match found.more.get("as_decided") == Some(&Value::Bool(true)) {
        true => "\nevery worker at the time of this decision:\n".to_owned(),
        false => "\nevery worker at present:\n".to_owned(),
    };
    let mut rows = vec![["worker", "score", "why"].map(str::to_owned)];
    for verdict in &found.workers {
        rows.extend(answer(verdict, guessed.is_none(), roster));
    }
    text += &table(&rows);
    if found.left_off > 0 {
        text += &format!("and {}\n", count(found.left_off, "more worker"));
    }
    if let Some(model) = guessed {
        let model = cut(&clean(model), MAX_MODEL_CHARS);
        text += &format!("the model `{model}` has not run here yet: these times are guesses\n");
    }
    text
}

/// A row for each reason, so that none is cut off.
fn answer(verdict: &Verdict, learned: bool, roster: &Roster) -> Vec<[String; 3]> {
    let worker = roster.short(verdict.worker);
    if verdict.refusals.is_empty() {
        let score = verdict.score.map_or("-".to_owned(), |score| format!("{score:.3}"));
        return vec![[worker, score, parts(verdict, learned)]];
    }
    let row = |(at, reason): (usize, &String)| {
        let (worker, score) = if at == 0 { (worker.as_str(), "no") } else { ("", "") };
        [worker.to_owned(), score.to_owned(), clean(reason)]
    };
    verdict.refusals.iter().enumerate().map(row).collect()
}

/// The parts of a score in seconds: `wait 0.2 + run 1.5 s`.
fn parts(verdict: &Verdict, learned: bool) -> String {
    // Only strategies that predict have parts.
    let Some(Value::Object(terms)) = verdict.more.get("terms") else { return "fits".to_owned() };
    let names = ["wait", "run", "transfer", "risk", "error", "surcharge", "cost"];
    let part = |name: &&str| {
        let seconds = terms.get(&format!("{name}_s"))?.as_f64()?;
        (seconds >= 0.0005).then(|| format!("{name} {seconds:.3}"))
    };
    let parts: Vec<_> = names.iter().filter_map(part).collect();
    match (parts.is_empty(), learned) {
        (true, true) => "expected to finish immediately".to_owned(),
        (true, false) => "no estimate yet".to_owned(),
        (false, _) => format!("{} s", parts.join(" + ")),
    }
}

/// Model names are at most paths; this many characters distinguish them.
const MAX_MODEL_CHARS: usize = 80;

fn decided_by(decision: &Value) -> String {
    let text = |key: &str| clean(decision[key].as_str().unwrap_or("-"));
    let is = |key: &str| decision[key] == json!(true);
    let because = match (is("explored"), is("preferred_local")) {
        (true, _) => ", to learn about the worker",
        (_, true) => ", among local workers",
        _ => "",
    };
    let by_price = match decision["maximise"].as_str() {
        Some(what @ ("cost" | "balance")) => format!(", maximising {what}"),
        _ => String::new(),
    };
    format!("{} at {}{because}{by_price}", text("strategy"), text("at"))
}

#[cfg(test)]
mod tests {
    use super::super::roster::tests::roster;
    use super::*;
    use hypha_client::Timestamp;

    fn explained(json: Value) -> String {
        let mut whole = json!({
            "id": "task-01890000-0000-7000-8000-000000000001",
            "status": "queued", "worker": null, "attempts": 0,
        });
        whole.as_object_mut().unwrap().extend(json.as_object().unwrap().clone());
        let roster = roster(json!([
            {"id": "01890000-0000-7000-8000-000000000002", "name": "worker-1"},
        ]));
        let now = "2026-01-01T00:00:10Z".parse::<Timestamp>().unwrap().time();
        let guessed = whole["guessed"].as_str().map(str::to_owned);
        lines(&serde_json::from_value(whole).unwrap(), guessed.as_deref(), &roster, now)
    }

    #[test]
    fn each_refusal_of_each_worker_has_a_line() {
        let text = explained(json!({
            "summary": "no worker can take it: 1 × too little memory",
            "decision": {"strategy": "predictive", "at": "2026-01-01T00:00:00.000Z",
                "chosen": null, "explored": false},
            "as_decided": false,
            "left_off": 3,
            "workers": [
                {"worker": "01890000-0000-7000-8000-000000000002", "score": 1.75,
                 "terms": {"wait_s": 0.25, "run_s": 1.5, "transfer_s": 0.0}, "refusals": []},
                {"worker": "01890000-0000-7000-8000-000000000003", "score": null,
                 "refusals": ["needs 1 EB of memory, has 16 GB", "needs 1 GPU, has 0"]},
            ],
        }));
        let expected = "\
task-01890000-0000-7000-8000-000000000001 queued: no worker can take it: 1 × too little memory
decided by predictive at 2026-01-01T00:00:00.000Z

every worker at present:
worker                                score  why
worker-1 (01890000)                   1.750  wait 0.250 + run 1.500 s
01890000-0000-7000-8000-000000000003  no     needs 1 EB of memory, has 16 GB
                                             needs 1 GPU, has 0
and 3 more workers
";
        assert_eq!(text, expected);
    }

    #[test]
    fn deadlines_and_prices_are_shown() {
        let text = explained(json!({
            "deadline_status": "at_risk", "predicted_finish_at": "2026-01-01T00:00:09.000Z",
            "decision": {"strategy": "predictive", "at": "2026-01-01T00:00:00.000Z", "maximise": "cost"},
            "workers": [{"worker": "01890000-0000-7000-8000-000000000002", "score": 11.5,
                "terms": {"run_s": 1.5, "cost_s": 10.0}, "refusals": []}],
        }));
        let expected = "\
deadline at risk, expected to end at 2026-01-01T00:00:09.000Z
decided by predictive at 2026-01-01T00:00:00.000Z, maximising cost
";
        assert!(text.contains(expected), "{text}");
        assert!(text.contains("11.500  run 1.500 + cost 10.000 s"), "{text}");
    }

    #[test]
    fn a_drained_worker_is_named_where_no_worker_takes_a_task() {
        let (used, gone) =
            ("01890000-0000-7000-8000-000000000002", "01890000-0000-7000-8000-000000000003");
        let roster = roster(json!({
            "workers": [{"id": used, "name": "worker-1"}],
            "removed": [{"id": gone, "name": "worker-2"}],
        }));
        let told = |status: &str, refusals: Value| {
            let found = json!({
                "id": "task-01890000-0000-7000-8000-000000000001", "status": status,
                "workers": [{"worker": used, "score": 1.0, "refusals": refusals}],
            });
            lines(&serde_json::from_value(found).unwrap(), None, &roster, Time::ZERO)
        };
        let advice = "worker-2 (01890000) was drained; `hypha readmit worker-2` readmits it\n";
        let refused = told("queued", json!(["needs 1 GPU, has 0"]));
        assert!(refused.ends_with(&format!("has 0\n{advice}")), "{refused}");
        for other in [told("queued", json!([])), told("running", json!(["no"]))] {
            assert!(!other.contains("readmit"), "{other}");
        }
    }

    #[test]
    fn unknown_run_times_are_shown_in_words() {
        let worker = "01890000-0000-7000-8000-000000000002";
        let why = |terms: Value, learned| {
            let verdict = json!({"worker": worker, "score": 0.0, "terms": terms});
            parts(&serde_json::from_value(verdict).unwrap(), learned)
        };
        let unknown = "no estimate yet";
        assert_eq!(why(json!({"run_s": 0.0, "transfer_s": 0.0001}), false), unknown);
        assert_eq!(why(json!({"wait_s": 0.5, "run_s": 1.0}), false), "wait 0.500 + run 1.000 s");
        let text = explained(json!({
            "guessed": "burn",
            "workers": [{"worker": worker, "score": 1.0, "terms": {"run_s": 1.0}}],
        }));
        let remark = "the model `burn` has not run here yet: these times are guesses\n";
        assert!(text.ends_with(&format!("1.000  run 1.000 s\n{remark}")), "{text}");
        assert_eq!(why(json!({"run_s": 0.0001}), true), "expected to finish immediately");
        assert_eq!(why(Value::Null, true), "fits");

        let health = |completed: u64| json!([{"id": worker, "health": {"completed": completed}}]);
        assert!(!roster(health(0)).has_learned() && roster(health(1)).has_learned());
        assert!(Roster::default().has_learned(), "an empty roster knows nothing");
    }

    #[test]
    fn an_ended_task_is_shown_once_with_its_failed_attempts() {
        let worker = "01890000-0000-7000-8000-000000000002";
        let text = explained(json!({
            "status": "completed", "attempts": 2,
            "summary": format!("completed after 2 attempts, the last on worker {worker}"),
            "failures": [{"attempt": 1, "worker": worker, "reason": "it was lost",
                "at": "2026-01-01T00:00:03.000Z"}],
        }));
        let expected = "\
task-01890000-0000-7000-8000-000000000001 completed after 2 attempts, the last on worker-1 (01890000)
failed attempt 1 on worker-1 (01890000), 7s ago: it was lost
";
        assert_eq!(text, expected);
    }
}
