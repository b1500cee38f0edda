//! `hypha drain` and `hypha readmit`: take workers out of service, and back.

use clap::Args;
use hypha_client::{Json, Scheduler, WorkerId};

use super::connection::{ConnectionArguments, block_on, failure};
use super::roster::{Membership, Roster};
use crate::usage::{Failure, print};

#[derive(Args)]
pub(crate) struct WorkerSelection {
    /// The workers: each by its name, its id, or a prefix of its id
    #[arg(required = true, value_name = "WORKER")]
    workers: Vec<String>,
    /// Print the responses of the scheduler, each as a line of JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: ConnectionArguments,
}

/// The action to apply to them.
#[derive(Clone, Copy)]
pub(super) enum DrainAction {
    Drain,
    Readmit,
}

pub(super) fn run(selection: &WorkerSelection, action: DrainAction) -> Result<(), Failure> {
    let scheduler = selection.connection.connect()?;
    block_on(each(&scheduler, selection, action))
}

/// All of them must be known; then each is attempted, even if others fail.
async fn each(
    scheduler: &Scheduler,
    selection: &WorkerSelection,
    action: DrainAction,
) -> Result<(), Failure> {
    let roster = Roster::of(scheduler.worker_list().await.map_err(failure)?);
    let mut found = Vec::new();
    for given in &selection.workers {
        let worker = roster.find(given, action.likely())?;
        if !found.contains(&worker) {
            found.push(worker);
        }
    }
    let mut failed = None;
    for (id, membership) in found {
        let worker = Worker { scheduler, roster: &roster, id, membership };
        match worker.perform(action).await {
            Ok(done) if selection.json => print(&format!("{}\n", done.answer))?,
            Ok(done) => print(&format!("{}\n", done.line))?,
            Err(problem) => {
                // The caller reports the last one.
                if let Some(earlier) = failed.replace(problem) {
                    eprintln!("hypha: {earlier}");
                }
            }
        }
    }
    failed.map_or(Ok(()), Err)
}

impl DrainAction {
    /// The memberships of workers that this action applies to.
    fn likely(self) -> &'static [Membership] {
        match self {
            DrainAction::Drain => &[Membership::Active],
            DrainAction::Readmit => &[Membership::Draining, Membership::Removed],
        }
    }
}

/// A worker that was found.
struct Worker<'a> {
    scheduler: &'a Scheduler,
    roster: &'a Roster,
    id: WorkerId,
    membership: Membership,
}

/// The outcome, for programs and for people.
struct ActionOutcome {
    answer: Json,
    line: String,
}

impl Worker<'_> {
    async fn perform(&self, action: DrainAction) -> Result<ActionOutcome, Failure> {
        if let Some(problem) = no_op_reason(self.roster, self.id, self.membership, action) {
            return Err(Failure::work(problem));
        }
        let shown = self.roster.short(self.id);
        let asked = match action {
            DrainAction::Drain => {
                self.scheduler.drain_worker(self.id).await.map(|it| Json::of(&it))
            }
            DrainAction::Readmit => {
                self.scheduler.readmit_worker(self.id).await.map(|it| Json::of(&it))
            }
        };
        let answer =
            asked.map_err(|error| Failure::work(format!("{shown}: {}", failure(error))))?;
        let line = match action {
            DrainAction::Drain => format!(
                "{shown} gets no new tasks, and is removed when its tasks have ended; {}",
                readmit_hint(self.roster, self.id)
            ),
            DrainAction::Readmit => {
                format!("{shown} is readmitted; it is used as soon as it is available")
            }
        };
        Ok(ActionOutcome { answer, line })
    }
}

/// Why there is nothing to do.
fn no_op_reason(
    roster: &Roster,
    id: WorkerId,
    membership: Membership,
    action: DrainAction,
) -> Option<String> {
    let shown = roster.short(id);
    match (action, membership) {
        (DrainAction::Drain, Membership::Removed) => {
            Some(format!("{shown} is removed already; {}", readmit_hint(roster, id)))
        }
        (DrainAction::Readmit, Membership::Active) => {
            Some(format!("{shown} is not removed; `hypha workers` shows its state"))
        }
        // Draining again does no harm.
        (DrainAction::Drain, _) | (DrainAction::Readmit, _) => None,
    }
}

/// How to readmit a worker.
pub(super) fn readmit_hint(roster: &Roster, id: WorkerId) -> String {
    format!("`hypha readmit {}` readmits it", roster.handle(id))
}

#[cfg(test)]
mod tests {
    use super::super::roster::tests::roster;
    use super::*;
    use axum::Router;
    use axum::extract::Path;
    use axum::http::StatusCode;
    use axum::response::Json as Body;
    use axum::routing::{delete, get};
    use clap::Parser;
    use serde_json::json;
    use std::sync::{Arc, Mutex};

    #[derive(Parser)]
    struct Arguments {
        #[command(flatten)]
        selection: WorkerSelection,
    }

    /// The scheduler refuses all requests, and the test records them.
    #[tokio::test]
    async fn all_workers_must_be_known_and_a_refusal_names_its_worker() {
        let ids = ["1", "2"].map(|n| format!("8ebc{n}000-610d-826e-b5b1-85a378d2ca34"));
        let workers = json!({"workers": [
            {"id": ids[0], "name": "one"}, {"id": ids[1], "name": "two"}
        ]});
        let asked = Arc::<Mutex<Vec<String>>>::default();
        let seen = Arc::clone(&asked);
        let refuse = async move |Path(id): Path<String>| {
            seen.lock().unwrap().push(id);
            let error = json!({"error": {"code": "forbidden", "message": "this needs an admin"}});
            (StatusCode::FORBIDDEN, Body(error))
        };
        let routes = Router::new()
            .route("/api/v1/workers", get(async move || Body(workers)))
            .route("/api/v1/workers/{id}", delete(refuse));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let _serving = tokio::spawn(axum::serve(listener, routes).into_future());
        let scheduler = Scheduler::connect(&address, None).unwrap();
        let drain = async |workers: &[&str]| {
            let arguments = Arguments::parse_from([&["drain"], workers].concat());
            let outcome = each(&scheduler, &arguments.selection, DrainAction::Drain).await;
            outcome.unwrap_err().to_string()
        };
        let unknown = drain(&["one", "three"]).await;
        assert_eq!(unknown, "there is no worker `three`; `hypha workers` lists them");
        let several = drain(&["8ebc"]).await;
        let expected = format!("`8ebc` may be {}, {}; give its id", ids[0], ids[1]);
        assert_eq!((several, asked.lock().unwrap().len()), (expected, 0));
        let refused = drain(&["one", "8ebc1", "two"]).await;
        let advice = "set --token, --token-file or HYPHA_TOKEN";
        assert_eq!(refused, format!("two (8ebc2000): this needs an admin; {advice}"));
        assert_eq!(*asked.lock().unwrap(), ids, "each is requested once");
    }

    #[test]
    fn no_request_is_sent_if_nothing_would_change() {
        let id: WorkerId = "8ebc2130-610d-826e-b5b1-85a378d2ca34".parse().unwrap();
        let roster = roster(json!([{"id": id, "name": "w"}]));
        let problem = |action, membership| no_op_reason(&roster, id, membership, action);
        let removed = problem(DrainAction::Drain, Membership::Removed).unwrap();
        assert_eq!(removed, "w (8ebc2130) is removed already; `hypha readmit w` readmits it");
        let used = problem(DrainAction::Readmit, Membership::Active).unwrap();
        assert_eq!(used, "w (8ebc2130) is not removed; `hypha workers` shows its state");
        for membership in [Membership::Active, Membership::Draining] {
            assert_eq!(problem(DrainAction::Drain, membership), None);
        }
        for membership in [Membership::Draining, Membership::Removed] {
            assert_eq!(problem(DrainAction::Readmit, membership), None);
        }
    }
}
