//! One task, and many, as text.

use hypha_client::{FailedAttempt, Json, TaskState, TaskStatus, Timestamp};
use hypha_model::{Span, Time};

use super::roster::Roster;
use super::text::{ago, clean, cut_saying, fit, took};
use crate::scheduler::{or_dash, table};

/// A result or an input is abbreviated; `--result` and `--json` print all of it.
pub(super) const MAX_SHOWN_CHARS: usize = 400;

/// A line for each task.
pub(super) fn lines(tasks: &[TaskStatus], now: Time) -> String {
    if tasks.is_empty() {
        return "no tasks\n".to_owned();
    }
    let header = ["task", "status", "model", "submitted", "took", "attempts"];
    let mut rows = vec![header.map(str::to_owned)];
    for task in tasks {
        rows.push([
            task.id.to_string(),
            task.status.to_string(),
            or_dash(clean(task.model.as_deref().unwrap_or_default())),
            or_dash(task.submitted_at.as_ref().map_or(String::new(), |at| ago(now, at))),
            or_dash(run_time(task).unwrap_or_default()),
            task.attempts.to_string(),
        ]);
    }
    fit(&mut rows, 2);
    table(&rows)
}

/// Everything about one task, with the reason if it waits and its result in a line.
pub(super) fn details(
    task: &TaskStatus,
    why: Option<String>,
    result: Option<String>,
    roster: &Roster,
    now: Time,
) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: Option<String>| {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            text += &format!("{name:<13}{}\n", clean(&value));
        }
    };
    let at = |at: &Option<Timestamp>| at.as_ref().map(|at| format!("{at} ({})", ago(now, at)));
    let whole = "--json has all of it";
    let more = |key: &str| shown(&Json::of(task.more.get(key)?), whole);
    line("task", Some(task.id.to_string()));
    line("status", Some(status(task)));
    line("model", task.model.clone());
    line("worker", task.worker.map(|worker| roster.whole(worker)));
    line("submitted", at(&task.submitted_at));
    line("started", at(&task.started_at));
    line("finished", at(&task.finished_at));
    line("took", run_time(task));
    line("attempts", Some(task.attempts.to_string()));
    line("waiting", why);
    let next = task.delayed_until();
    line("next attempt", next.map(|at| format!("{at} (in {})", took(at.time().since(now)))));
    let failures = task.failures();
    failures.iter().for_each(|one| line("failure", Some(failed_attempt(one, roster, now))));
    line("last error", task.last_error().filter(|_| failures.is_empty()).map(str::to_owned));
    line("error", task.error.clone());
    line("error kind", task.error_kind.map(|kind| kind.to_string()));
    line("deadline", more("deadline_at").map(|at| deadline(&at, task)));
    line("tenant", more("tenant"));
    line("requirements", more("requirements"));
    line("metadata", more("metadata"));
    line("input", task.input.as_ref().and_then(|input| shown(input, whole)));
    line("result", result);
    text
}

/// The deadline, and what is expected: `2026-11-16T02:03:04.005Z (at risk, expected to end at …)`.
fn deadline(at: &str, task: &TaskStatus) -> String {
    let text = |key: &str| task.more.get(key).and_then(|value| value.as_str());
    match (text("deadline_status"), text("predicted_finish_at")) {
        (Some(status), Some(finish)) => {
            format!("{at} ({}, expected to end at {finish})", status.replace('_', " "))
        }
        _ => at.to_owned(),
    }
}

/// A failed attempt: `1 on worker-1 (8ebc2130), 12s ago: the worker has lost it`.
pub(super) fn failed_attempt(failed: &FailedAttempt, roster: &Roster, now: Time) -> String {
    let worker = failed.worker.map_or(String::new(), |id| format!(" on {}", roster.short(id)));
    let at = failed.at.as_ref().map_or(String::new(), |at| format!(", {}", ago(now, at)));
    let reason = match failed.reason.is_empty() {
        true => "no reason is known".to_owned(),
        false => clean(&failed.reason),
    };
    format!("{}{worker}{at}: {reason}", failed.attempt)
}

/// The state, and the progress where it is known.
pub(super) fn status(task: &TaskStatus) -> String {
    match task.progress {
        Some(progress) if task.status == TaskState::Running && progress > 0.0 => {
            format!("{} ({:.0} %)", task.status, progress * 100.0)
        }
        _ => task.status.to_string(),
    }
}

/// A result for people and programs: text as it is, everything else as JSON.
pub(super) fn result(json: &Json) -> String {
    ended(json.text().unwrap_or_else(|| format!("{json:#}")))
}

/// With the end of its line.
pub(super) fn ended(text: String) -> String {
    if text.ends_with('\n') { text } else { text + "\n" }
}

/// Why a task did not complete.
pub(super) fn ending(task: &TaskStatus) -> String {
    let error = task.error.as_deref().map(clean).unwrap_or_else(|| "no reason is known".to_owned());
    match task.status {
        TaskState::Cancelled => format!("{} was cancelled", task.id),
        status => format!("{} {status}: {error}", task.id),
    }
}

fn run_time(task: &TaskStatus) -> Option<String> {
    match task.finished_at.as_ref()?.since(task.started_at.as_ref()?) {
        // The API states times to the millisecond.
        Span::ZERO => Some("< 1 ms".to_owned()),
        span => Some(took(span)),
    }
}

/// JSON in a line, with how to see all of it if it is cut; nothing if it is empty.
pub(super) fn shown(json: &Json, advice: &str) -> Option<String> {
    match json.as_str() {
        "null" | "{}" => None,
        written => {
            Some(cut_saying(json.text().as_deref().unwrap_or(written), MAX_SHOWN_CHARS, advice))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::roster::tests::roster;
    use super::*;
    use serde_json::{Value, json};

    fn task(more: Value) -> TaskStatus {
        let mut json = json!({
            "id": "task-01890000-0000-7000-8000-000000000001",
            "status": "completed",
            "model": "meta-llama/Llama-2-7b-chat-hf-with-a-long-name",
            "submitted_at": "2026-01-01T00:00:00.000Z",
            "started_at": "2026-01-01T00:00:01.000Z",
            "finished_at": "2026-01-01T00:00:02.200Z",
            "attempts": 2,
        });
        json.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(json).unwrap()
    }

    fn now() -> Time {
        "2026-01-01T00:12:00Z".parse::<Timestamp>().unwrap().time()
    }

    #[test]
    fn a_table_of_tasks_fits_a_terminal_with_their_ids_whole() {
        let text = lines(&[task(json!({})), task(json!({"model": "echo\u{1b}"}))], now());
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
        let row = text.lines().nth(1).unwrap();
        assert!(row.starts_with("task-01890000-0000-7000-8000-000000000001  completed"), "{row}");
        assert!(row.contains("12m ago") && row.contains("1.20 s") && row.ends_with('2'), "{row}");
        assert!(!text.contains('\u{1b}'));
    }

    #[test]
    fn details_show_all_known_fields() {
        let text = details(
            &task(json!({
                "worker": "01890000-0000-7000-8000-000000000002",
                "input": "x".repeat(1_000),
                "last_error": "out of memory",
            })),
            Some("nobody\nserves it".to_owned()),
            Some("{\"text\":\"line\\nline \\u001b[2J\"}".to_owned()),
            &Roster::default(),
            now(),
        );
        assert!(text.contains("worker       01890000-0000-7000-8000-000000000002\n"), "{text}");
        assert!(text.contains("waiting      nobody serves it\n"), "{text}");
        assert!(text.contains("last error   out of memory\n"), "{text}");
        assert!(text.contains("finished     2026-01-01T00:00:02.200Z (11m ago)\n"), "{text}");
        assert!(text.contains("result       {\"text\":\"line\\nline \\u001b[2J\"}\n"), "{text}");
        let input = format!("input        {}… (1 kB; --json has all of it)\n", "x".repeat(399));
        assert!(text.contains(&input), "{text}");
        assert!(!text.contains("metadata") && text.len() < 1_200, "{text}");
    }

    #[test]
    fn failed_attempts_are_shown_with_their_workers() {
        let id = "8ebc2130-610d-826e-b5b1-85a378d2ca34";
        let roster = roster(json!([{"id": id, "name": "worker-1"}]));
        let failures = json!([
            {"attempt": 1, "worker": id, "reason": "it was\nlost", "at": "2026-01-01T00:11:57.000Z"},
            {"attempt": 2, "worker": null, "reason": ""},
        ]);
        let task = task(json!({"worker": id, "failures": failures, "last_error": "it was lost"}));
        let text = details(&task, None, None, &roster, now());
        let tries = "\
failure      1 on worker-1 (8ebc2130), 3s ago: it was lost
failure      2: no reason is known
";
        assert!(text.contains(tries) && !text.contains("last error"), "{text}");
        assert!(text.contains(&format!("worker       worker-1 ({id})\n")), "{text}");
    }

    #[test]
    fn ending_states_its_reason() {
        let failed = task(json!({"status": "failed", "error": "out of memory"}));
        assert!(ending(&failed).ends_with(" failed: out of memory"));
        assert!(ending(&task(json!({"status": "cancelled"}))).ends_with(" was cancelled"));
        let running = task(json!({"status": "running", "progress": 0.4}));
        assert_eq!(status(&running), "running (40 %)");
    }

    #[test]
    fn string_is_printed_as_text_and_the_rest_as_json() {
        let printed = |text: &str| result(&text.parse().unwrap());
        assert_eq!(printed(r#""a \"b\"""#), "a \"b\"\n");
        assert_eq!(printed(r#""a\n""#), "a\n");
        assert_eq!(printed("null"), "null\n");
        assert_eq!(printed("[0.10]"), "[\n  0.10\n]\n", "not a digit is changed");
    }
}
