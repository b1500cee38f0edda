//! The lines of a batch that are in flight: which of them wait, and why.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use hypha_client::{ClientError, Scheduler, TaskState, TaskStatus};

use crate::tasks::roster::Roster;
use crate::tasks::text::{and, clean, count, cut};
use crate::tasks::waiting;

/// Reasons that are reported at once; lines that wait mostly wait for the same one.
const MAX_REASONS: usize = 3;
/// Longer ones are in `hypha explain`.
const MAX_REASON_CHARS: usize = 300;
/// A scheduler that takes longer to explain does not delay the results that arrive meanwhile.
const EXPLAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// Each line that has no result yet, in the last state that the scheduler reported.
#[derive(Default)]
pub(super) struct InFlightLines(RefCell<BTreeMap<u64, LineState>>);

enum LineState {
    /// No answer about it yet.
    Sent,
    /// Its task, without the input, which may be large.
    Task(Box<TaskStatus>),
    /// The scheduler refuses it, or does not answer.
    Retrying(String),
}

impl InFlightLines {
    pub(super) fn sent(&self, line: u64) {
        self.0.borrow_mut().insert(line, LineState::Sent);
    }

    pub(super) fn update(&self, line: u64, task: &TaskStatus) {
        let mut task = task.clone();
        task.input = None;
        self.0.borrow_mut().insert(line, LineState::Task(Box::new(task)));
    }

    /// It is retried after this.
    pub(super) fn retrying(&self, line: u64, error: &ClientError) {
        self.0.borrow_mut().insert(line, LineState::Retrying(error.to_string()));
    }

    pub(super) fn ended(&self, line: u64) {
        self.0.borrow_mut().remove(&line);
    }

    /// Which lines wait and why, or how many are in flight: `line 2 waits: …`.
    pub(super) async fn summary(&self, scheduler: &Scheduler) -> String {
        let (mut groups, running) = self.groups();
        let others = groups.split_off(groups.len().min(MAX_REASONS));
        let mut told = match running {
            0 => Vec::new(),
            running => vec![format!("{running} in flight")],
        };
        let asked = async { Roster::fetch(scheduler).await };
        let roster = match groups.iter().any(|group| group.task.is_some()) {
            true => tokio::time::timeout(EXPLAIN_TIMEOUT, asked).await.unwrap_or_default(),
            false => Roster::default(),
        };
        for mut group in groups {
            if let Some(task) = &group.task
                && let Ok(Some(why)) =
                    tokio::time::timeout(EXPLAIN_TIMEOUT, waiting::why(scheduler, task, &roster))
                        .await
            {
                group.why = why;
            }
            told.push(group.to_string());
        }
        if !others.is_empty() {
            let lines: usize = others.iter().map(|group| group.lines.len()).sum();
            told.push(format!("{} for other reasons", count(lines as u64, "more line")));
        }
        told.join("; ")
    }

    /// Waiting lines, grouped by reason, the largest group first; and how many run.
    fn groups(&self) -> (Vec<Group>, usize) {
        let mut groups: BTreeMap<(String, String), Group> = BTreeMap::new();
        let mut running = 0;
        for (line, standing) in self.0.borrow().iter() {
            let (model, why, task) = match standing {
                LineState::Task(task) if task.status == TaskState::Queued => {
                    let why = task.reason().unwrap_or("no reason is known");
                    (task.model.clone().unwrap_or_default(), why.to_owned(), Some(task.clone()))
                }
                LineState::Retrying(why) => (String::new(), why.clone(), None),
                LineState::Task(_) | LineState::Sent => {
                    running += 1;
                    continue;
                }
            };
            let group = groups.entry((model, why.clone()));
            let group = group.or_insert_with(|| Group { lines: Vec::new(), why, task });
            group.lines.push(*line);
        }
        let mut groups: Vec<_> = groups.into_values().collect();
        groups.sort_by_key(|group| (std::cmp::Reverse(group.lines.len()), group.lines[0]));
        (groups, running)
    }
}

/// Lines that wait for the same reason.
struct Group {
    lines: Vec<u64>,
    why: String,
    /// The first of their tasks, if the scheduler has them.
    task: Option<Box<TaskStatus>>,
}

/// Lines that are named; of more than these only the first is.
const MAX_LINES: usize = 3;

impl std::fmt::Display for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let numbers: Vec<_> = self.lines.iter().map(ToString::to_string).collect();
        let why = cut(&clean(&self.why), MAX_REASON_CHARS);
        match self.lines.as_slice() {
            [one] => write!(f, "line {one} waits: {why}"),
            several if several.len() <= MAX_LINES => {
                write!(f, "lines {} wait: {why}", and(&numbers))
            }
            several => {
                let others = count(several.len() as u64 - 1, "other");
                write!(f, "line {} and {others} wait: {why}", several[0])
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn task(status: &str, model: &str, reason: &str) -> TaskStatus {
        let id = "task-01890000-0000-7000-8000-000000000001";
        let json =
            json!({"id": id, "status": status, "model": model, "reason": reason, "input": 1});
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn lines_with_the_same_reason_are_reported_together() {
        let in_flight_lines = InFlightLines::default();
        in_flight_lines.sent(1);
        in_flight_lines.update(2, &task("running", "echo", ""));
        in_flight_lines.update(3, &task("queued", "a", "nobody\nhas it"));
        (4..9).for_each(|line| in_flight_lines.update(line, &task("queued", "b", "nobody has it")));
        let busy = ClientError::TimedOut { address: "http://x".into(), after: Duration::ZERO };
        [9, 10].iter().for_each(|line| in_flight_lines.retrying(*line, &busy));
        let (groups, running) = in_flight_lines.groups();
        let told: Vec<_> = groups.iter().map(ToString::to_string).collect();
        assert_eq!(running, 2);
        assert_eq!(told[0], "line 4 and 4 others wait: nobody has it");
        assert!(told[1].starts_with("lines 9 and 10 wait: http://x did not answer"), "{told:?}");
        assert_eq!(told[2], "line 3 waits: nobody has it");
        (2..11).for_each(|line| in_flight_lines.ended(line));
        assert!(in_flight_lines.groups().0.is_empty());
    }

    #[tokio::test]
    async fn running_lines_are_counted() {
        let in_flight_lines = InFlightLines::default();
        in_flight_lines.sent(1);
        in_flight_lines.update(2, &task("running", "echo", ""));
        let nobody = Scheduler::connect("http://127.0.0.1:9", None).unwrap();
        assert_eq!(in_flight_lines.summary(&nobody).await, "2 in flight");
    }
}
