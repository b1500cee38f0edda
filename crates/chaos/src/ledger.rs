//! The tasks that the scheduler has acknowledged, and must complete.

use std::collections::{BTreeMap, HashMap, HashSet};

use anyhow::Context;
use hypha_model::FailureKind;
use serde::Deserialize;
use serde_json::Value;

use crate::failures::{EndedTask, FailedAttempt, FailureChecker};
use crate::load::accepted_ms;

/// How many violations of a kind are shown, and how much of each: some inputs are large.
const SHOWN: usize = 5;
const SHOWN_CHARS: usize = 1_500;

/// A task as it was submitted. All models answer with their input.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SubmittedTask {
    pub(crate) model: String,
    pub(crate) input: Value,
}

/// Results up to this size are stored with the task, larger ones as objects: the default of `max_result_size`.
pub(crate) const LARGE_BYTES: usize = 1 << 20;

impl SubmittedTask {
    /// Whether the result is too large to appear in the list.
    pub(crate) fn is_large(&self) -> bool {
        self.result_bytes() > LARGE_BYTES
    }

    fn result_bytes(&self) -> usize {
        self.input.to_string().len()
    }

    /// Whether a result in the list is that of this task, or names an object of its size.
    fn is_expected_result(&self, result: Option<&Value>) -> bool {
        match result {
            Some(result) if self.is_large() => {
                result["object"].is_string() && result["bytes"] == self.result_bytes()
            }
            result => result == Some(&self.input),
        }
    }
}

/// A task as the scheduler lists it.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct ListedTask {
    pub(crate) id: String,
    status: String,
    attempts: usize,
    result: Option<Value>,
    error: Option<String>,
    #[serde(default)]
    failures: Vec<FailedAttempt>,
}

impl ListedTask {
    pub(crate) fn is_completed(&self) -> bool {
        self.status == "completed"
    }

    fn is_failed(&self) -> bool {
        self.status == "failed"
    }
}

/// The tasks that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Everything.
    Whole,
    /// Those that were not verified before.
    Latest,
}

/// The outcomes of submits that an incarnation of the scheduler received and did not answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct UnansweredSubmits {
    /// The repeat found them stored.
    pub(crate) found: u64,
    /// The repeat was the first that was stored.
    pub(crate) anew: u64,
}

#[derive(Default)]
pub(crate) struct Ledger {
    tasks: HashMap<String, SubmittedTask>,
    /// Tasks that were verified.
    verified: HashSet<String>,
    /// Tasks that we have cancelled.
    cancelled: HashSet<String>,
    ids: HashMap<String, String>,
    /// By the incarnation of the scheduler that died with them.
    pub(crate) unanswered_submits: BTreeMap<u32, UnansweredSubmits>,
    /// Submits that were repeated because there was no answer.
    pub(crate) repeated: u64,
    /// Submits that were repeated although there was one.
    pub(crate) doubled: u64,
    /// Submits that were refused temporarily.
    pub(crate) refused: u64,
}

impl Ledger {
    /// The scheduler answered that the task of this key has this id. A key that was acknowledged before must still have
    /// the same id.
    pub(crate) fn acknowledge(
        &mut self,
        key: &str,
        submitted: &SubmittedTask,
        id: &str,
    ) -> Result<(), String> {
        match self.ids.get(key) {
            Some(first) if first == id => return Ok(()),
            Some(first) => {
                return Err(format!("the key {key} had the task {first} and has {id} now"));
            }
            None => {}
        }
        if let Some(other) = self.tasks.get(id) {
            return Err(format!("{id} was assigned to the key {key} and, before, to {other:?}"));
        }
        self.ids.insert(key.to_owned(), id.to_owned());
        self.tasks.insert(id.to_owned(), submitted.clone());
        Ok(())
    }

    pub(crate) fn acknowledged(&self) -> usize {
        self.tasks.len()
    }

    /// A task was cancelled, and need not complete.
    pub(crate) fn cancel(&mut self, id: &str) {
        self.cancelled.insert(id.to_owned());
    }

    pub(crate) fn submitted_task(&self, id: &str) -> Option<&SubmittedTask> {
        self.tasks.get(id)
    }

    pub(crate) fn is_verified(&self, id: &str) -> bool {
        self.verified.contains(id)
    }

    /// Compares the acknowledged tasks with those that the scheduler has, and returns the violations.
    pub(crate) fn compare(
        &self,
        listed: &[ListedTask],
        scope: Scope,
        checker: &FailureChecker,
    ) -> Vec<String> {
        let mut violations = Violations::default();
        let mut seen: HashMap<&str, &ListedTask> = HashMap::new();
        for task in listed {
            if seen.insert(&task.id, task).is_some() {
                violations.add("listed twice", task.id.clone());
            }
            let Some(submitted) = self.tasks.get(&task.id) else {
                // Each key was repeated until it was acknowledged, so every stored task is known by now.
                violations.add("stored, and belongs to no key", format!("{task:?}"));
                continue;
            };
            if task.status == "cancelled" && self.cancelled.contains(&task.id) {
                continue;
            }
            if !(task.is_completed() || task.is_failed())
                || task.is_failed() == task.error.is_none()
            {
                violations.add("neither completed nor failed", format!("{task:?}"));
            } else if task.is_completed() && !submitted.is_expected_result(task.result.as_ref()) {
                violations.add("with a wrong result", format!("{task:?} of {submitted:?}"));
            } else if task.is_completed() && task.attempts == 0 {
                violations.add("completed without an attempt", format!("{task:?}"));
            } else if let Some(wrong) = checker.check(&EndedTask {
                name: submitted.input["name"].as_str(),
                submitted_ms: accepted_ms(&task.id).unwrap_or_default(),
                completed: task.is_completed(),
                attempts: task.attempts,
                failures: &task.failures,
            }) {
                violations.add(wrong, format!("{task:?} of {submitted:?}"));
            }
        }
        for (id, submitted) in &self.tasks {
            let wanted = scope == Scope::Whole || !self.is_verified(id);
            if wanted && !seen.contains_key(id.as_str()) {
                violations.add("acknowledged and lost", format!("{id}: {submitted:?}"));
            }
        }
        violations.shown()
    }

    /// Shows that [`Ledger::compare`] notices each violation: it must report each of these lists, which are the
    /// scheduler's with one thing changed.
    pub(crate) fn test_checker(
        &self,
        listed: &[ListedTask],
        checker: &FailureChecker,
    ) -> anyhow::Result<()> {
        let plain = |task: &ListedTask| {
            task.is_completed() && task.attempts == 1 && !self.is_verified(&task.id)
        };
        let at = listed.iter().position(plain).context("no task completed at the first attempt")?;
        let changed = |change: &dyn Fn(&mut Vec<ListedTask>)| {
            let mut listed = listed.to_vec();
            change(&mut listed);
            listed
        };
        let blamed = |listed: &mut Vec<ListedTask>, kind: FailureKind, count: usize| {
            let failure = FailedAttempt {
                worker: "a worker without a fault".to_owned(),
                kind,
                at: "2026-01-01T00:00:00.000Z".to_owned(),
            };
            listed[at].attempts += count;
            listed[at].failures = vec![failure; count];
        };
        let doctored = [
            ("a lost task", changed(&|listed| drop(listed.remove(at)))),
            ("a doubled task", changed(&|listed| listed.push(listed[at].clone()))),
            ("a wrong result", changed(&|listed| listed[at].result = Some(Value::Null))),
            (
                "a task that never ends",
                changed(&|listed| listed[at].status = "scheduled".to_owned()),
            ),
            (
                "an attempt that was lost without a fault",
                changed(&|listed| blamed(listed, FailureKind::WorkerLost, 1)),
            ),
            (
                "a task that failed because the scheduler restarted",
                changed(&|listed| {
                    blamed(listed, FailureKind::Interrupted, 2);
                    listed[at].attempts = 2;
                    (listed[at].status, listed[at].result) = ("failed".to_owned(), None);
                    listed[at].error = Some("lost".to_owned());
                }),
            ),
        ];
        for (what, listed) in doctored {
            if self.compare(&listed, Scope::Latest, checker).is_empty() {
                anyhow::bail!("the checker does not notice {what}");
            }
        }
        Ok(())
    }

    /// The first few tasks that have not ended.
    pub(crate) fn unfinished(listed: &[ListedTask]) -> impl Iterator<Item = &ListedTask> {
        let open = |task: &&ListedTask| ["queued", "scheduled", "running"].contains(&&*task.status);
        listed.iter().filter(open).take(SHOWN)
    }

    /// Marks these as verified. Returns how many of them took more than one attempt, and how many have failed.
    pub(crate) fn mark_verified(&mut self, listed: &[ListedTask]) -> (u64, u64) {
        let new = |task: &&ListedTask| self.verified.insert(task.id.clone());
        let new: Vec<&ListedTask> = listed.iter().filter(new).collect();
        let count = |is: fn(&ListedTask) -> bool| new.iter().filter(|task| is(task)).count() as u64;
        (count(|task| task.attempts > 1), count(ListedTask::is_failed))
    }
}

/// Violations by kind, the first few of each.
#[derive(Default)]
struct Violations(BTreeMap<&'static str, (u64, Vec<String>)>);

impl Violations {
    fn add(&mut self, kind: &'static str, what: String) {
        let (count, some) = self.0.entry(kind).or_default();
        *count += 1;
        if some.len() < SHOWN {
            some.push(what.chars().take(SHOWN_CHARS).collect());
        }
    }

    fn shown(self) -> Vec<String> {
        let line = |(kind, (count, some)): (_, (u64, Vec<String>))| {
            format!("{count} {kind}, such as\n    {}", some.join("\n    "))
        };
        self.0.into_iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::faults::FaultLog;

    fn ledger() -> Ledger {
        let mut ledger = Ledger::default();
        for (key, id) in [("a", "t1"), ("b", "t2")] {
            let submitted =
                SubmittedTask { model: "echo".to_owned(), input: json!({ "key": key }) };
            ledger.acknowledge(key, &submitted, id).expect("new");
        }
        ledger
    }

    fn listed(id: &str, key: &str) -> ListedTask {
        let (status, result) = ("completed".to_owned(), Some(json!({ "key": key })));
        ListedTask { id: id.to_owned(), status, attempts: 1, result, error: None, failures: vec![] }
    }

    /// Compares, in a run without faults.
    fn compare(ledger: &Ledger, listed: &[ListedTask], scope: Scope) -> Vec<String> {
        let (faults, names) = (FaultLog::default(), HashMap::new());
        ledger.compare(listed, scope, &FailureChecker { faults: &faults, names: &names })
    }

    #[test]
    fn acknowledged_tasks_are_accepted_in_any_order() {
        assert_eq!(
            compare(&ledger(), &[listed("t2", "b"), listed("t1", "a")], Scope::Whole),
            [""; 0]
        );
    }

    #[test]
    fn every_violation_is_named() {
        let check = |tasks: Vec<ListedTask>, kind: &str| {
            let violations = compare(&ledger(), &tasks, Scope::Whole);
            assert_eq!(violations.len(), 1, "{violations:?}");
            assert!(violations[0].starts_with(kind), "{violations:?}");
        };
        let (a, b) = (|| listed("t1", "a"), || listed("t2", "b"));
        check(vec![a()], "1 acknowledged and lost");
        check(vec![a(), b(), listed("t3", "a")], "1 stored, and belongs to no key");
        check(vec![a(), b(), b()], "1 listed twice");
        check(vec![a(), listed("t2", "a")], "1 with a wrong result");
        check(vec![a(), ListedTask { result: None, ..b() }], "1 with a wrong result");
        let status = |status: &str| ListedTask { status: status.into(), ..b() };
        check(vec![a(), status("queued")], "1 neither completed nor failed");
        check(vec![a(), status("cancelled")], "1 neither completed nor failed");
        check(vec![a(), status("failed")], "1 neither completed nor failed");
        let error = Some("x".to_owned());
        check(
            vec![a(), ListedTask { error: error.clone(), ..b() }],
            "1 neither completed nor failed",
        );
        let failed = ListedTask { error, attempts: 0, ..status("failed") };
        check(vec![a(), failed], "1 failed with attempts left");
        check(vec![a(), ListedTask { attempts: 2, ..b() }], "1 with attempts and failures");
        check(vec![a(), ListedTask { attempts: 0, ..b() }], "1 completed without an attempt");
    }

    #[test]
    fn verified_tasks_are_compared_only_in_the_whole_scope() {
        let mut ledger = ledger();
        let again = ListedTask { attempts: 2, ..listed("t1", "a") };
        assert_eq!(ledger.mark_verified(&[again]), (1, 0));
        assert_eq!(ledger.mark_verified(&[listed("t1", "a")]), (0, 0));
        assert_eq!(compare(&ledger, &[listed("t2", "b")], Scope::Latest), [""; 0]);
        assert_eq!(compare(&ledger, &[listed("t2", "b")], Scope::Whole).len(), 1);
        assert_eq!(compare(&ledger, &[listed("t1", "a")], Scope::Latest).len(), 1);
        let cancelled =
            ListedTask { status: "cancelled".into(), result: None, ..listed("t2", "b") };
        ledger.cancel("t2");
        assert_eq!(compare(&ledger, &[cancelled], Scope::Latest), [""; 0]);
    }

    #[test]
    fn a_large_result_is_checked_by_its_size() {
        let submitted =
            SubmittedTask { model: "echo".to_owned(), input: json!("x".repeat(LARGE_BYTES)) };
        assert!(
            submitted
                .is_expected_result(Some(&json!({ "object": "ab", "bytes": LARGE_BYTES + 2 })))
        );
        assert!(
            !submitted.is_expected_result(Some(&json!({ "object": "ab", "bytes": LARGE_BYTES })))
        );
        assert!(!submitted.is_expected_result(Some(&submitted.input)));
        let small =
            SubmittedTask { model: "echo".to_owned(), input: json!("x".repeat(LARGE_BYTES - 2)) };
        assert!(small.is_expected_result(Some(&small.input)) && !small.is_expected_result(None));
    }

    #[test]
    fn a_key_keeps_its_task_and_a_task_its_key() {
        let mut ledger = ledger();
        let submitted = SubmittedTask { model: "echo".to_owned(), input: json!({ "key": "a" }) };
        assert_eq!(ledger.acknowledge("a", &submitted, "t1"), Ok(()));
        assert_eq!(ledger.acknowledged(), 2);
        assert!(ledger.acknowledge("a", &submitted, "t9").is_err());
        assert!(ledger.acknowledge("c", &submitted, "t1").is_err());
    }
}
