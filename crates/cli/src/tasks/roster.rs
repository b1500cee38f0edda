//! The workers of a scheduler as a person knows them: by their names, and by the models that they have.

use std::collections::BTreeSet;

use hypha_client::{Scheduler, WorkerId, WorkerStatus};
use serde_json::json;

use super::text::{and, clean, cut};
use crate::usage::Failure;

/// Names are as long as their certificates allow; this much tells them apart.
const MAX_NAME_CHARS: usize = 32;
/// Ids are digests: among a thousand workers two begin alike in one network of some thousand.
const SHORT_ID_CHARS: usize = 8;
/// Fewer characters of an id are more likely a slip than a choice.
const MIN_ID_CHARS: usize = 4;
/// Models that are named where one is missing; a person with more of them knows where to look.
const MAX_MODELS: usize = 12;

/// The workers, if the scheduler said who they are.
#[derive(Default)]
pub(super) struct Roster {
    workers: Option<Vec<WorkerStatus>>,
}

impl Roster {
    /// A scheduler that does not say leaves ids without names: no reason to fail.
    pub(super) async fn ask(scheduler: &Scheduler) -> Roster {
        Roster { workers: scheduler.workers().await.ok() }
    }

    /// A worker where there is little room: `worker-1 (8ebc2130)`.
    pub(super) fn short(&self, id: WorkerId) -> String {
        match self.name(id) {
            Some(name) => format!("{name} ({})", short_id(id)),
            None => id.to_string(),
        }
    }

    /// A worker with all of its id.
    pub(super) fn whole(&self, id: WorkerId) -> String {
        self.name(id).map_or_else(|| id.to_string(), |name| format!("{name} ({id})"))
    }

    /// A sentence of the scheduler's, with names in the place of ids.
    pub(super) fn named(&self, text: &str) -> String {
        let mut text = clean(text);
        for worker in self.workers.iter().flatten().filter(|worker| worker.name.is_some()) {
            let id = worker.id.to_string();
            if text.contains(&id) {
                let short = self.short(worker.id);
                text = text.replace(&format!("worker {id}"), &short).replace(&id, &short);
            }
        }
        text
    }

    /// The worker with this name, or with an id that begins like this.
    pub(super) fn find(&self, given: &str) -> Result<WorkerId, Failure> {
        let is_it = |worker: &&WorkerStatus| {
            let prefix = given.len() >= MIN_ID_CHARS && worker.id.to_string().starts_with(given);
            prefix || worker.name.as_deref() == Some(given)
        };
        let found: Vec<_> = self.workers.iter().flatten().filter(is_it).collect();
        match found.as_slice() {
            [worker] => Ok(worker.id),
            [] => Err(Failure::usage(format!(
                "--worker: there is no worker `{}`; `hypha workers` lists them",
                cut(&clean(given), MAX_NAME_CHARS)
            ))),
            several => {
                let ids: Vec<_> = several.iter().map(|worker| worker.id.to_string()).collect();
                let given = cut(&clean(given), MAX_NAME_CHARS);
                let problem = format!("--worker: `{given}` may be {}; give its id", ids.join(", "));
                Err(Failure::usage(problem))
            }
        }
    }

    /// Why nobody can serve a model, if that is so: nobody is there, or nobody has it.
    pub(super) fn unserved(&self, model: &str) -> Option<String> {
        let workers = self.workers.as_ref()?;
        if workers.is_empty() {
            return Some("there is no worker yet".to_owned());
        }
        let serves = |worker: &WorkerStatus| {
            worker.models.is_empty() || worker.models.iter().any(|one| one == model)
        };
        if workers.iter().any(serves) {
            return None;
        }
        let all: BTreeSet<_> = workers.iter().flat_map(|worker| &worker.models).collect();
        let mut shown: Vec<_> =
            all.iter().take(MAX_MODELS).map(|model| cut(&clean(model), 80)).collect();
        if all.len() > MAX_MODELS {
            shown.push(format!("{} more", all.len() - MAX_MODELS));
        }
        let verb = if all.len() == 1 { "is" } else { "are" };
        let model = cut(&clean(model), 80);
        let shown = and(&shown);
        Some(format!("no worker known so far has the model `{model}` (there {verb} {shown})"))
    }

    /// Whether anything is known of run times: some task has completed on a worker that is here.
    pub(super) fn has_learned(&self) -> bool {
        let Some(workers) = &self.workers else { return true };
        let none = |worker: &WorkerStatus| worker.health.more.get("completed") == Some(&json!(0));
        !workers.iter().all(none)
    }

    fn name(&self, id: WorkerId) -> Option<String> {
        let worker = self.workers.iter().flatten().find(|worker| worker.id == id)?;
        Some(shown_name(worker)).filter(|name| !name.is_empty())
    }
}

/// The name of a worker; empty if none is known.
pub(super) fn shown_name(worker: &WorkerStatus) -> String {
    cut(&clean(worker.name.as_deref().unwrap_or_default()), MAX_NAME_CHARS)
}

pub(super) fn short_id(id: WorkerId) -> String {
    id.to_string().chars().take(SHORT_ID_CHARS).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use serde_json::Value;

    /// Workers given as JSON.
    pub(in crate::tasks) fn roster(workers: Value) -> Roster {
        Roster { workers: serde_json::from_value(workers).unwrap() }
    }

    fn three() -> Roster {
        roster(json!([
            {"id": "8ebc2130-610d-826e-b5b1-85a378d2ca34", "name": "worker-1", "models": ["echo"]},
            {"id": "87225d8e-096a-85be-af13-91cf1c588886", "name": "work\u{1b}er-2",
             "models": ["burn", "echo"]},
            {"id": "87220000-096a-85be-af13-91cf1c588886", "models": ["sleep"]},
        ]))
    }

    fn id(text: &str) -> WorkerId {
        text.parse().unwrap()
    }

    #[test]
    fn a_worker_has_its_name_with_some_of_its_id() {
        let first = id("8ebc2130-610d-826e-b5b1-85a378d2ca34");
        assert_eq!(three().short(first), "worker-1 (8ebc2130)");
        assert_eq!(three().whole(first), "worker-1 (8ebc2130-610d-826e-b5b1-85a378d2ca34)");
        assert_eq!(
            three().short(id("87225d8e-096a-85be-af13-91cf1c588886")),
            "work er-2 (87225d8e)"
        );
        for unnamed in
            ["87220000-096a-85be-af13-91cf1c588886", "00000000-096a-85be-af13-91cf1c588886"]
        {
            assert_eq!(three().short(id(unnamed)), unnamed);
            assert_eq!(Roster::default().whole(id(unnamed)), unnamed);
        }
        assert_eq!(
            three().named(&format!("goes to worker {first} by x, not to {first}\n")),
            "goes to worker-1 (8ebc2130) by x, not to worker-1 (8ebc2130) "
        );
    }

    #[test]
    fn a_worker_is_found_by_its_name_or_the_start_of_its_id() {
        let found = |given: &str| three().find(given).map_err(|failure| failure.to_string());
        let first = Ok(id("8ebc2130-610d-826e-b5b1-85a378d2ca34"));
        assert_eq!(
            (found("worker-1"), found("8ebc"), found("8ebc2130-61")),
            (first.clone(), first.clone(), first)
        );
        assert!(found("8eb").unwrap_err().contains("there is no worker `8eb`; `hypha workers`"));
        let two = found("8722").unwrap_err();
        assert!(two.contains("87225d8e-") && two.contains("87220000-"), "{two}");
    }

    #[test]
    fn a_model_that_nobody_has_is_told_with_those_that_there_are() {
        assert_eq!(three().unserved("echo"), None);
        assert_eq!(
            three().unserved("nope").unwrap(),
            "no worker known so far has the model `nope` (there are burn, echo and sleep)"
        );
        assert_eq!(roster(json!([])).unserved("echo").unwrap(), "there is no worker yet");
        assert_eq!(Roster::default().unserved("echo"), None, "nobody was asked");
        let any = json!([{"id": "8ebc2130-610d-826e-b5b1-85a378d2ca34", "models": []}]);
        assert_eq!(roster(any).unserved("nope"), None);
        let models: Vec<_> = (0..20).map(|number| format!("m{number:02}")).collect();
        let many = json!([{"id": "8ebc2130-610d-826e-b5b1-85a378d2ca34", "models": models}]);
        assert!(roster(many).unserved("x").unwrap().ends_with("m10, m11 and 8 more)"));
    }
}
