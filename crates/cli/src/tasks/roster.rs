//! The workers of a scheduler as users know them: by name and by model.

use std::collections::BTreeSet;

use hypha_client::{Scheduler, WorkerId, WorkerList, WorkerStatus};
use serde_json::json;

use super::text::{and, clean, cut};
use crate::usage::Failure;

/// Names are as long as their certificates allow; this many characters distinguish them.
const MAX_NAME_CHARS: usize = 32;
/// Ids are digests: among a thousand workers, two share a prefix in one network of some thousand.
const SHORT_ID_CHARS: usize = 8;
/// A shorter prefix of an id is more likely a typo than a choice.
const MIN_ID_CHARS: usize = 4;
/// Models that are named where one is missing.
const MAX_MODELS: usize = 12;
/// Workers that are named in one sentence; `hypha workers` has the others.
const MAX_NAMED_WORKERS: usize = 4;

/// The workers, if the scheduler reported them.
#[derive(Default)]
pub(super) struct Roster {
    list: Option<WorkerList>,
}

/// Whether a worker is in use, draining or removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Membership {
    Active,
    /// It finishes its tasks.
    Draining,
    Removed,
}

/// A worker of any kind.
struct Entry<'a> {
    id: WorkerId,
    name: Option<&'a str>,
    membership: Membership,
}

impl Roster {
    /// If the scheduler does not report them, ids are shown without names: no reason to fail.
    pub(super) async fn fetch(scheduler: &Scheduler) -> Roster {
        Roster { list: scheduler.worker_list().await.ok() }
    }

    pub(super) fn of(list: WorkerList) -> Roster {
        Roster { list: Some(list) }
    }

    /// A worker in short form: `worker-1 (8ebc2130)`.
    pub(super) fn short(&self, id: WorkerId) -> String {
        match self.name(id) {
            Some(name) => format!("{name} ({})", short_id(id)),
            None => id.to_string(),
        }
    }

    /// A worker with its full id.
    pub(super) fn whole(&self, id: WorkerId) -> String {
        self.name(id).map_or_else(|| id.to_string(), |name| format!("{name} ({id})"))
    }

    /// A sentence of the scheduler's, with ids replaced by names.
    pub(super) fn named(&self, text: &str) -> String {
        let mut text = clean(text);
        for worker in self.entries().filter(|worker| worker.name.is_some()) {
            let id = worker.id.to_string();
            if text.contains(&id) {
                let short = self.short(worker.id);
                text = text.replace(&format!("worker {id}"), &short).replace(&id, &short);
            }
        }
        text
    }

    /// The worker with this name or with an id that starts like this. If several match, the one whose
    /// membership is one of `likely`.
    pub(super) fn find(
        &self,
        given: &str,
        likely: &[Membership],
    ) -> Result<(WorkerId, Membership), Failure> {
        let mut found: Vec<_> = self.entries().filter(|worker| worker.matches(given)).collect();
        if found.iter().any(|worker| likely.contains(&worker.membership)) {
            found.retain(|worker| likely.contains(&worker.membership));
        }
        let shown = cut(&clean(given), MAX_NAME_CHARS);
        match found.as_slice() {
            [worker] => Ok((worker.id, worker.membership)),
            [] => Err(Failure::usage(format!(
                "there is no worker `{shown}`; `hypha workers` lists them"
            ))),
            several => {
                let ids: Vec<_> = several.iter().map(|worker| worker.id.to_string()).collect();
                let shown_ids =
                    ids.iter().take(MAX_NAMED_WORKERS).cloned().collect::<Vec<_>>().join(", ");
                let more = match ids.len().saturating_sub(MAX_NAMED_WORKERS) {
                    0 => String::new(),
                    more => format!(" or {more} more"),
                };
                Err(Failure::usage(format!("`{shown}` may be {shown_ids}{more}; give its id")))
            }
        }
    }

    /// An unambiguous name of a worker for the command line.
    pub(super) fn handle(&self, id: WorkerId) -> String {
        let name = self.entry(id).and_then(|worker| worker.name).filter(|name| is_plain(name));
        let alone = |given: &String| self.entries().filter(|it| it.matches(given)).count() <= 1;
        let mut handles = name.map(str::to_owned).into_iter().chain([short_id(id)]);
        handles.find(alone).unwrap_or_else(|| id.to_string())
    }

    /// Which workers were drained, and how to readmit them; nothing if there are none.
    pub(super) fn drained(&self) -> Option<String> {
        let gone: Vec<_> =
            self.entries().filter(|it| it.membership != Membership::Active).collect();
        let mut shown: Vec<_> =
            gone.iter().take(MAX_NAMED_WORKERS).map(|it| self.short(it.id)).collect();
        if gone.len() > MAX_NAMED_WORKERS {
            shown.push(format!("{} more", gone.len() - MAX_NAMED_WORKERS));
        }
        let (verb, which, them) = match gone.as_slice() {
            [] => return None,
            [one] => ("was", self.handle(one.id), "it"),
            _ => ("were", "WORKER".to_owned(), "one"),
        };
        Some(format!("{} {verb} drained; `hypha readmit {which}` readmits {them}", and(&shown)))
    }

    /// Why no worker can serve a model, if that is so: there is no worker, or none has the model.
    pub(super) fn unserved(&self, model: &str) -> Option<String> {
        let WorkerList { workers, removed } = self.list.as_ref()?;
        let serves = |models: &[String]| models.is_empty() || models.iter().any(|one| one == model);
        if workers.iter().any(|worker| serves(&worker.models)) {
            return None;
        }
        let gone = removed.iter().find(|worker| worker.models.as_deref().is_some_and(serves));
        let why = match (workers.is_empty(), removed.is_empty()) {
            (true, true) => return Some("there is no worker yet".to_owned()),
            (true, false) => "there are no workers but removed ones".to_owned(),
            (false, _) => unknown_model(model, workers),
        };
        Some(match gone {
            Some(worker) => {
                let (shown, handle) = (self.short(worker.id), self.handle(worker.id));
                let again = format!("`hypha readmit {handle}` readmits it");
                format!("{why}; {shown} has the model and was removed: {again}")
            }
            None if workers.is_empty() => format!("{why}; `hypha workers` lists them"),
            None => why,
        })
    }

    /// Whether run times have been learned: some task has completed on a present worker.
    pub(super) fn has_learned(&self) -> bool {
        let Some(WorkerList { workers, .. }) = &self.list else { return true };
        let none = |worker: &WorkerStatus| worker.health.more.get("completed") == Some(&json!(0));
        !workers.iter().all(none)
    }

    fn name(&self, id: WorkerId) -> Option<String> {
        Some(shown_name(self.entry(id)?.name)).filter(|name| !name.is_empty())
    }

    fn entry(&self, id: WorkerId) -> Option<Entry<'_>> {
        self.entries().find(|worker| worker.id == id)
    }

    fn entries(&self) -> impl Iterator<Item = Entry<'_>> {
        let used = |worker: &'_ WorkerStatus| match worker.removed_at {
            Some(_) => Membership::Draining,
            None => Membership::Active,
        };
        let workers = self.list.iter().flat_map(|list| &list.workers);
        let removed = self.list.iter().flat_map(|list| &list.removed);
        workers
            .map(move |it| Entry { id: it.id, name: it.name.as_deref(), membership: used(it) })
            .chain(removed.map(|it| Entry {
                id: it.id,
                name: it.name.as_deref(),
                membership: Membership::Removed,
            }))
    }
}

impl Entry<'_> {
    fn matches(&self, given: &str) -> bool {
        let prefix = given.len() >= MIN_ID_CHARS && self.id.to_string().starts_with(given);
        prefix || self.name == Some(given)
    }
}

/// Whether a shell passes it on unchanged.
fn is_plain(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
    !name.is_empty() && !name.starts_with('-') && name.chars().all(plain)
}

/// States that no worker has a model, and lists the known models.
fn unknown_model(model: &str, workers: &[WorkerStatus]) -> String {
    let all: BTreeSet<_> = workers.iter().flat_map(|worker| &worker.models).collect();
    let mut shown: Vec<_> =
        all.iter().take(MAX_MODELS).map(|model| cut(&clean(model), 80)).collect();
    if all.len() > MAX_MODELS {
        shown.push(format!("{} more", all.len() - MAX_MODELS));
    }
    let verb = if all.len() == 1 { "is" } else { "are" };
    let model = cut(&clean(model), 80);
    let shown = and(&shown);
    format!("no worker known so far has the model `{model}` (there {verb} {shown})")
}

/// The name of a worker; empty if none is known.
pub(super) fn shown_name(name: Option<&str>) -> String {
    cut(&clean(name.unwrap_or_default()), MAX_NAME_CHARS)
}

pub(super) fn short_id(id: WorkerId) -> String {
    id.to_string().chars().take(SHORT_ID_CHARS).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use serde_json::Value;

    /// Workers given as JSON: a list of those in use, or the whole.
    pub(in crate::tasks) fn roster(workers: Value) -> Roster {
        let list = match workers.is_array() {
            true => json!({"workers": workers}),
            false => workers,
        };
        Roster::of(serde_json::from_value(list).unwrap())
    }

    /// Two of one name, one of them removed; one that drains; and one about which nothing is known.
    fn some_removed() -> Roster {
        let at = "2026-01-01T00:00:00.000Z";
        roster(json!({
            "workers": [
                {"id": "8ebc2130-610d-826e-b5b1-85a378d2ca34", "name": "twin", "models": ["echo"]},
                {"id": "87225d8e-096a-85be-af13-91cf1c588886", "name": "drains", "models": ["burn"],
                 "removed_at": at},
            ],
            "removed": [
                {"id": "8ebc0000-610d-826e-b5b1-85a378d2ca34", "name": "twin", "removed_at": at,
                 "models": ["sleep"]},
                {"id": "99990000-610d-826e-b5b1-85a378d2ca34", "removed_at": at},
            ],
        }))
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
        let found = |given: &str| {
            three().find(given, &[Membership::Active]).map_err(|failure| failure.to_string())
        };
        let first = Ok((id("8ebc2130-610d-826e-b5b1-85a378d2ca34"), Membership::Active));
        assert_eq!(
            (found("worker-1"), found("8ebc"), found("8ebc2130-61")),
            (first.clone(), first.clone(), first)
        );
        assert!(found("8eb").unwrap_err().contains("there is no worker `8eb`; `hypha workers`"));
        let two = found("8722").unwrap_err();
        assert!(two.contains("87225d8e-") && two.contains("87220000-"), "{two}");
    }

    #[test]
    fn ambiguous_name_means_the_worker_with_a_likely_membership() {
        let found = |given: &str, likely: &[Membership]| {
            let found = some_removed().find(given, likely).map_err(|failure| failure.to_string());
            found.map(|(id, membership)| (short_id(id), membership))
        };
        let gone = [Membership::Draining, Membership::Removed];
        let of = |id: &str, membership| Ok((id.to_owned(), membership));
        assert_eq!(found("twin", &[Membership::Active]), of("8ebc2130", Membership::Active));
        assert_eq!(found("twin", &gone), of("8ebc0000", Membership::Removed));
        assert_eq!(found("8ebc", &gone), of("8ebc0000", Membership::Removed));
        assert_eq!(found("drains", &[Membership::Active]), of("87225d8e", Membership::Draining));
        assert_eq!(found("9999", &[Membership::Active]), of("99990000", Membership::Removed));
        let two = found("twin", &[]).unwrap_err();
        assert!(two.contains("8ebc2130-") && two.ends_with("; give its id"), "{two}");
        let many: Vec<_> = (10..20)
            .map(|n| json!({"id": format!("8ebc2130-610d-826e-b5b1-85a378d2ca{n}"), "name": "x"}))
            .collect();
        let many = roster(json!(many)).find("x", &[]).unwrap_err().to_string();
        assert!(many.ends_with("ca13 or 6 more; give its id"), "{many}");
    }

    #[test]
    fn a_drained_worker_is_shown_with_the_command_that_readmits_it() {
        let handle = |text: &str| some_removed().handle(id(text));
        assert_eq!(handle("87225d8e-096a-85be-af13-91cf1c588886"), "drains");
        assert_eq!(handle("8ebc0000-610d-826e-b5b1-85a378d2ca34"), "8ebc0000");
        assert_eq!(handle("99990000-610d-826e-b5b1-85a378d2ca34"), "99990000");
        let odd = json!([
            {"id": "8ebc2130-610d-826e-b5b1-85a378d2ca34", "name": "$(reboot)"},
            {"id": "8ebc2130-0000-826e-b5b1-85a378d2ca34", "name": "-x"},
        ]);
        let first = "8ebc2130-610d-826e-b5b1-85a378d2ca34";
        assert_eq!(roster(odd).handle(id(first)), first);

        assert_eq!(
            some_removed().drained().unwrap(),
            "drains (87225d8e), twin (8ebc0000) and 99990000-610d-826e-b5b1-85a378d2ca34 were \
             drained; `hypha readmit WORKER` readmits one"
        );
        let mut one = some_removed();
        one.list.as_mut().unwrap().removed.clear();
        assert_eq!(
            one.drained().unwrap(),
            "drains (87225d8e) was drained; `hypha readmit drains` readmits it"
        );
        assert_eq!((three().drained(), Roster::default().drained()), (None, None));
    }

    #[test]
    fn missing_model_names_the_removed_worker_that_has_it() {
        assert_eq!(
            some_removed().unserved("sleep").unwrap(),
            "no worker known so far has the model `sleep` (there are burn and echo); \
             twin (8ebc0000) has the model and was removed: `hypha readmit 8ebc0000` readmits it"
        );
        let nope = some_removed().unserved("nope").unwrap();
        assert!(nope.ends_with("(there are burn and echo)"), "{nope}");
        let mut gone = some_removed();
        gone.list.as_mut().unwrap().workers.clear();
        let none = "there are no workers but removed ones; ";
        assert_eq!(gone.unserved("nope").unwrap(), format!("{none}`hypha workers` lists them"));
        let sleep = gone.unserved("sleep").unwrap();
        assert!(sleep.starts_with(&format!("{none}twin (8ebc0000) has the model")), "{sleep}");
    }

    #[test]
    fn missing_model_lists_the_known_models() {
        assert_eq!(three().unserved("echo"), None);
        assert_eq!(
            three().unserved("nope").unwrap(),
            "no worker known so far has the model `nope` (there are burn, echo and sleep)"
        );
        assert_eq!(roster(json!([])).unserved("echo").unwrap(), "there is no worker yet");
        assert_eq!(Roster::default().unserved("echo"), None, "an empty roster knows nothing");
        let any = json!([{"id": "8ebc2130-610d-826e-b5b1-85a378d2ca34", "models": []}]);
        assert_eq!(roster(any).unserved("nope"), None);
        let models: Vec<_> = (0..20).map(|number| format!("m{number:02}")).collect();
        let many = json!([{"id": "8ebc2130-610d-826e-b5b1-85a378d2ca34", "models": models}]);
        assert!(roster(many).unserved("x").unwrap().ends_with("m10, m11 and 8 more)"));
    }
}
