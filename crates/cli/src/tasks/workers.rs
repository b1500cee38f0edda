//! `hypha workers`: the workers of a scheduler.

use clap::Args;
use hypha_client::{RemovedWorker, WorkerList, WorkerStatus};
use hypha_model::Time;
use serde_json::{Value, json};

use super::connection::{ConnectionArguments, block_on, failure};
use super::drain::readmit_hint;
use super::roster::{Roster, short_id, shown_name};
use super::text::{ago, clean, cut, fit, now, took_millis};
use crate::scheduler::{or_dash, table};
use crate::usage::{Failure, print};

/// The longest part of a reason that is shown; `--json` has all of it.
const MAX_REASON_CHARS: usize = 160;
/// Removed workers that are shown, the latest: a scheduler remembers thousands, and few of them are
/// readmitted.
const MAX_REMOVED: usize = 10;

#[derive(Args)]
pub(crate) struct Workers {
    /// Print JSON, with everything that the scheduler reports about them; removed workers are at the end
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: ConnectionArguments,
}

pub(super) fn run(workers: &Workers) -> Result<(), Failure> {
    let scheduler = workers.connection.connect()?;
    let found = block_on(async { scheduler.worker_list().await.map_err(failure) })?;
    match workers.json {
        true => print(&format!("{:#}\n", all(&found))),
        false if found.workers.is_empty() && found.removed.is_empty() => {
            print("no workers yet; start one with `hypha worker run`\n")
        }
        false => print(&lines(found, now())),
    }
}

fn all(list: &WorkerList) -> Value {
    let workers = list.workers.iter().map(|worker| json!(worker));
    workers.chain(list.removed.iter().map(|worker| json!(worker))).collect()
}

fn lines(mut list: WorkerList, now: Time) -> String {
    list.workers.sort_by(|one, other| (&one.name, one.id).cmp(&(&other.name, other.id)));
    let header = ["worker", "id", "status", "models", "run", "queue", "wait", "seen"];
    let mut rows = vec![header.map(str::to_owned)];
    rows.extend(list.workers.iter().map(|worker| row(worker, now)));
    rows.extend(list.removed.iter().take(MAX_REMOVED).map(removed_row));
    fit(&mut rows, 3);
    let roster = Roster::of(list.clone());
    let mut remarks: String =
        list.workers.iter().flat_map(|worker| reasons(worker, &roster)).collect();
    for worker in list.removed.iter().take(MAX_REMOVED) {
        remarks += &removed_line(worker, &roster, now);
    }
    let more = list.removed.len().saturating_sub(MAX_REMOVED);
    if more > 0 {
        remarks += &format!("and {more} more that were removed before; --json has all of them\n");
    }
    match remarks.is_empty() {
        true => table(&rows),
        false => format!("{}\n{remarks}", table(&rows)),
    }
}

fn row(worker: &WorkerStatus, now: Time) -> [String; 8] {
    [
        or_dash(shown_name(worker.name.as_deref())),
        short_id(worker.id),
        clean(&worker.status),
        if worker.has_no_executors() { "none".to_owned() } else { models(&worker.models) },
        worker.running.to_string(),
        worker.queued.to_string(),
        or_dash(worker.waiting_ms.map_or(String::new(), took_millis)),
        or_dash(worker.health.last_seen.as_ref().map_or(String::new(), |at| ago(now, at))),
    ]
}

/// A removed worker has no tasks and no health to report.
fn removed_row(worker: &RemovedWorker) -> [String; 8] {
    let [name, id, status, models] = [
        shown_name(worker.name.as_deref()),
        short_id(worker.id),
        "removed".to_owned(),
        worker.models.as_deref().map_or(String::new(), models),
    ]
    .map(or_dash);
    [name, id, status, models, "-".into(), "-".into(), "-".into(), "-".into()]
}

fn models(models: &[String]) -> String {
    match models.is_empty() {
        true => "any".to_owned(),
        false => clean(&models.join(", ")),
    }
}

/// Why a worker, or one of its executors, is not used: a line for each.
fn reasons(worker: &WorkerStatus, roster: &Roster) -> Vec<String> {
    let who = who(worker.name.as_deref(), short_id(worker.id));
    let line =
        |what: &str, why: &str| format!("{who}{what}: {}\n", cut(&clean(why), MAX_REASON_CHARS));
    if worker.removed_at.is_some() {
        return vec![format!("{who}: is being removed; {}\n", readmit_hint(roster, worker.id))];
    }
    if let Some(why) = worker.reason() {
        return vec![line("", why)];
    }
    let alone = worker.suspended_executors();
    alone.iter().map(|(name, why)| line(&format!(", executor {}", clean(name)), why)).collect()
}

/// When a worker was removed, and how to readmit it.
fn removed_line(worker: &RemovedWorker, roster: &Roster, now: Time) -> String {
    let who = who(worker.name.as_deref(), short_id(worker.id));
    let since = worker.removed_at.as_ref().map_or(String::new(), |at| format!(" {}", ago(now, at)));
    let unknown = match worker.name.is_none() && worker.models.is_none() {
        true => ", and not found since the scheduler started",
        false => "",
    };
    format!("{who}: removed{since}{unknown}; {}\n", readmit_hint(roster, worker.id))
}

fn who(name: Option<&str>, id: String) -> String {
    match shown_name(name) {
        name if name.is_empty() => id,
        name => format!("{name} ({id})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hypha_client::Timestamp;

    fn used(workers: Vec<WorkerStatus>) -> WorkerList {
        WorkerList { workers, removed: Vec::new() }
    }

    #[test]
    fn removed_workers_come_last_with_the_command_that_readmits_them() {
        let id = |n: usize| format!("0189{n:04}-0000-7000-8000-000000000001");
        let at = "2026-01-01T00:00:00.000Z";
        let mut removed = vec![
            json!({"id": id(2), "name": "worker-2", "removed_at": at, "models": ["echo"]}),
            json!({"id": id(3), "removed_at": at}),
        ];
        let text = |removed: &[Value]| {
            let drains = json!({"id": id(4), "name": "a", "status": "unavailable",
                "reason": "is being removed", "removed_at": at});
            let list = json!({"workers": [{"id": id(1), "name": "worker-1"}, drains],
                "removed": removed});
            let now: Timestamp = "2026-01-01T00:03:00Z".parse().unwrap();
            lines(serde_json::from_value(list).unwrap(), now.time())
        };
        let expected = "\
worker    id        status       models  run  queue  wait  seen
a         01890004  unavailable  any     0    0      -     -
worker-1  01890001               any     0    0      -     -
worker-2  01890002  removed      echo    -    -      -     -
-         01890003  removed      -       -    -      -     -

a (01890004): is being removed; `hypha readmit a` readmits it
worker-2 (01890002): removed 3m ago; `hypha readmit worker-2` readmits it
01890003: removed 3m ago, and not found since the scheduler started; \
`hypha readmit 01890003` readmits it
";
        assert_eq!(text(&removed), expected);
        removed.extend((10..20).map(|n| json!({"id": id(n), "removed_at": at})));
        let text = text(&removed);
        assert_eq!(text.matches("01890017").count(), 3, "{text}");
        let more = "\nand 2 more that were removed before; --json has all of them\n";
        assert!(text.ends_with(more) && !text.contains("01890018"), "{text}");
    }

    #[test]
    fn programs_have_those_that_were_removed_at_the_end() {
        let id = "01890000-0000-7000-8000-000000000001";
        let list = json!({"workers": [{"id": id, "status": "busy"}],
            "removed": [{"id": id, "status": "removed", "removed_at": "2026-01-01T00:00:00.000Z"}]});
        let all = all(&serde_json::from_value(list.clone()).unwrap());
        assert_eq!((&all[0]["status"], &all[1]), (&json!("busy"), &list["removed"][0]));
    }

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
        let text = lines(used(vec![other, worker]), at.time());
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

    /// Without a list of models an executor takes any, and a worker without executors none.
    #[test]
    fn a_worker_without_executors_has_no_models() {
        for (executors, models) in [(json!([]), "none"), (json!([{"name": "a"}]), "any")] {
            let id = "01890000-0000-7000-8000-000000000001";
            let worker = json!({"id": id, "models": [], "executors": executors});
            let text = lines(used(vec![serde_json::from_value(worker).unwrap()]), Time::ZERO);
            assert_eq!(text.lines().nth(1).unwrap().split_whitespace().nth(2), Some(models));
        }
    }

    #[test]
    fn an_unavailable_worker_has_a_line_with_the_reason() {
        let id = "01890000-0000-7000-8000-000000000001";
        let worker = |more: serde_json::Value| -> WorkerStatus {
            let mut json = json!({"id": id, "status": "unavailable"});
            json.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            serde_json::from_value(json).unwrap()
        };
        let executors = json!([{"name": "a", "reason": "quaran\ntined"}, {"name": "b"}]);
        let lost = worker(json!({"name": "w", "reason": "lost at noon", "executors": executors}));
        let part = worker(json!({"executors": executors}));
        let text = lines(used(vec![lost, part]), Time::ZERO);
        let expected = "\n01890000, executor a: quaran tined\nw (01890000): lost at noon\n";
        assert!(text.ends_with(expected), "{text}");
    }
}
