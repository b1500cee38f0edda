//! `GET /api/v1/tasks/{id}/explain`: why this worker, and why not the others.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use hypha_engine::Scheduler;
use hypha_engine::scheduler::Unavailability;
use hypha_model::{Maximise, Refusal, RefusalKind, TaskId, TaskState, WorkerId};
use hypha_placement::{
    Candidate, DeadlineStatus, Explanation, FullExplanation, ScoreTerms, WorkerVerdict,
};
use serde::Serialize;
use utoipa::ToSchema;

use super::lookup::{self, TaskSnapshot};
use super::reason;
use super::view::FailureBody;
use crate::app_state::AppState;
use crate::caller::Caller;
use crate::error::Error;
use crate::params::TaskPath;
use crate::parts;
use crate::response;
use crate::timestamp::Timestamp;
use crate::unavailability;

/// Why a task is on its worker, or why it waits.
#[derive(Serialize, ToSchema)]
#[schema(as = Explanation)]
pub(crate) struct ExplainBody<'a> {
    #[schema(value_type = String)]
    id: TaskId,
    #[schema(value_type = String)]
    status: TaskState,
    /// The worker that has it, or had it at the end.
    #[schema(value_type = Option<String>, required)]
    worker: Option<WorkerId>,
    /// Attempts so far.
    attempts: u32,
    /// A summary in one sentence.
    summary: String,
    /// Whether it is expected to end before its deadline: `on_track`, `at_risk` or `unreachable`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    deadline_status: Option<DeadlineStatus>,
    /// When a task with a deadline is expected to end.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    predicted_finish_at: Option<Timestamp>,
    /// The last failed attempts, the oldest first; at most 8.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    failures: Vec<FailureBody<'a>>,
    /// The last decision; none for a task that has ended.
    #[schema(required)]
    decision: Option<DecisionBody>,
    /// Whether `workers` is the state on which the decision was based; otherwise it is the present one.
    as_decided: bool,
    /// Every worker's score or refusals, the best first, those that refuse last.
    workers: Vec<VerdictBody>,
    /// How many workers are omitted.
    left_off: u64,
}

/// A decision.
#[derive(Serialize, ToSchema)]
#[schema(as = Decision)]
pub(crate) struct DecisionBody {
    strategy: &'static str,
    #[schema(value_type = String, format = DateTime)]
    at: Timestamp,
    /// The chosen worker; none if no worker could take the task.
    #[schema(required)]
    chosen: Option<CandidateBody>,
    /// Whether it was chosen to learn about it.
    explored: bool,
    /// Whether it was chosen among the local workers: none of the others would have been sooner by enough.
    preferred_local: bool,
    /// What counted: `speed`, `cost` or `balance`.
    #[schema(value_type = String)]
    maximise: Maximise,
    runners_up: Vec<CandidateBody>,
    /// Refusals among the workers that were examined.
    refusals: Vec<RefusalCount>,
    /// Workers that an index ruled out or ranked lower without examination.
    not_looked_at: u64,
}

/// A reason, and how often it occurred.
#[derive(Serialize, ToSchema)]
pub(crate) struct RefusalCount {
    reason: String,
    count: u32,
}

/// A worker with its score.
#[derive(Serialize, ToSchema)]
#[schema(as = Candidate)]
pub(crate) struct CandidateBody {
    #[schema(value_type = String)]
    worker: WorkerId,
    /// What the strategy minimises: seconds for those that predict, otherwise their own unit.
    #[schema(required)]
    score: Option<f64>,
    /// The parts of a score in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    terms: Option<ScoreTerms>,
}

/// One worker's score or refusals.
#[derive(Serialize, ToSchema)]
#[schema(as = Verdict)]
pub(crate) struct VerdictBody {
    #[schema(value_type = String)]
    worker: WorkerId,
    /// Its score, if it does not refuse.
    #[schema(required)]
    score: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    terms: Option<ScoreTerms>,
    /// Why it cannot take the task.
    refusals: Vec<String>,
}

/// Why a task is on its worker, or why it waits: the last decision, and every worker's score or refusals.
#[utoipa::path(
    get, path = "/api/v1/tasks/{id}/explain", tag = "tasks",
    params(("id" = String, Path, description = "The task", pattern = "^task-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")),
    responses(
        (status = 200, description = "The explanation", body = ExplainBody),
        (status = 404, description = "The task is unknown", body = crate::error::ErrorBody),
    )
)]
pub(crate) async fn explain(
    State(app): State<AppState>,
    caller: Caller,
    TaskPath(id): TaskPath,
) -> Result<Response, Error> {
    let service = &*app.service;
    let snapshot = lookup::find(service, &caller, id).await?;
    let (mut full, mut unavailable) = (None, BTreeMap::new());
    if let TaskSnapshot::Open(view, _) = &snapshot {
        let wanted = &view.accepted.spec.requirement;
        let look = |scheduler: &Scheduler, verdicts: &[WorkerVerdict]| {
            let why = |verdict: &WorkerVerdict| {
                let is_refused_as_unavailable = verdict.refusals.iter().any(is_unavailable);
                let why = is_refused_as_unavailable
                    .then(|| scheduler.unavailability_of(verdict.worker, Some(wanted)));
                Some((verdict.worker, why??))
            };
            unavailable.extend(verdicts.iter().filter_map(why));
        };
        full = parts::read_explanation(service, id, look).await;
    }
    Ok(response::json(StatusCode::OK, &body(&snapshot, full, &unavailable, &caller)))
}

/// Why workers are not available.
type UnavailableWorkers = BTreeMap<WorkerId, Unavailability>;

fn is_unavailable(refusal: &Refusal) -> bool {
    refusal.kind == RefusalKind::Unavailable
}

fn body<'a>(
    snapshot: &'a TaskSnapshot,
    full: Option<FullExplanation>,
    unavailable: &UnavailableWorkers,
    caller: &Caller,
) -> ExplainBody<'a> {
    let task = snapshot.body();
    let decision = match snapshot {
        TaskSnapshot::Open(view, _) => view.explanation.as_ref(),
        TaskSnapshot::Stored(_) | TaskSnapshot::Ended(..) => None,
    };
    let (as_decided, left_off) =
        full.as_ref().map_or((false, 0), |full| (full.as_decided, full.left_off));
    ExplainBody {
        id: task.id,
        status: task.status,
        worker: task.worker,
        attempts: task.attempts,
        summary: summary(snapshot, decision, full.as_ref(), unavailable),
        deadline_status: task.deadline_status,
        predicted_finish_at: task.predicted_finish_at,
        failures: task.failures,
        decision: decision.map(DecisionBody::of),
        as_decided,
        workers: full
            .into_iter()
            .flat_map(|full| full.verdicts)
            .map(|verdict| VerdictBody::of(verdict, unavailable, caller))
            .collect(),
        left_off,
    }
}

fn summary(
    snapshot: &TaskSnapshot,
    decision: Option<&Explanation>,
    full: Option<&FullExplanation>,
    unavailable: &UnavailableWorkers,
) -> String {
    let task = snapshot.body();
    let verdicts = full.map_or(&[][..], |full| &full.verdicts);
    let undecided = decision.is_none_or(|decision| decision.chosen.is_none());
    if undecided
        && task.delayed_until.is_none()
        && !verdicts.is_empty()
        && verdicts.iter().all(|verdict| verdict.candidate.is_none())
    {
        let mut counts = BTreeMap::new();
        for verdict in verdicts {
            for refusal in &verdict.refusals {
                let unavailable =
                    unavailable.get(&verdict.worker).filter(|_| is_unavailable(refusal));
                let why = unavailable.map_or_else(
                    || refusal.kind.to_string(),
                    |unavailable| unavailability::kind_label(unavailable).to_owned(),
                );
                *counts.entry((refusal.kind, why)).or_insert(0) += 1;
            }
        }
        let counts = counts.into_iter().map(|((kind, why), count)| (kind, why, count));
        return reason::refused_by_all(counts.collect());
    }
    if let Some(reason) = task.reason {
        return reason;
    }
    let attempts = match task.attempts {
        1 => "1 attempt".to_owned(),
        count => format!("{count} attempts"),
    };
    match (task.status.is_final(), task.worker) {
        (true, Some(worker)) => {
            format!("{} after {attempts}, the last on worker {worker}", task.status)
        }
        (true, None) => format!("{} without a worker", task.status),
        (false, _) => decision.map_or_else(|| task.status.to_string(), reason::summarize_decision),
    }
}

impl DecisionBody {
    fn of(explanation: &Explanation) -> DecisionBody {
        let count = |(kind, count): (hypha_model::RefusalKind, u32)| RefusalCount {
            reason: kind.to_string(),
            count,
        };
        DecisionBody {
            strategy: explanation.strategy,
            at: Timestamp(explanation.at),
            chosen: explanation.chosen.map(CandidateBody::of),
            explored: explanation.explored,
            preferred_local: explanation.preferred_local,
            maximise: explanation.maximise,
            runners_up: explanation.runners_up.iter().copied().map(CandidateBody::of).collect(),
            refusals: explanation.refusals.iter().map(count).collect(),
            not_looked_at: explanation.not_looked_at,
        }
    }
}

impl CandidateBody {
    fn of(candidate: Candidate) -> CandidateBody {
        let Candidate { worker, score, terms } = candidate;
        CandidateBody { worker, score: score.is_finite().then_some(score), terms }
    }
}

impl VerdictBody {
    fn of(
        verdict: WorkerVerdict,
        unavailable: &UnavailableWorkers,
        caller: &Caller,
    ) -> VerdictBody {
        let why = unavailable.get(&verdict.worker);
        let told = |refusal: &Refusal| match why.filter(|_| is_unavailable(refusal)) {
            Some(why) => unavailability::describe(why, caller),
            None => reason::describe_refusal(refusal),
        };
        VerdictBody {
            worker: verdict.worker,
            score: verdict.candidate.map(|it| it.score).filter(|score| score.is_finite()),
            terms: verdict.candidate.and_then(|candidate| candidate.terms),
            refusals: verdict.refusals.iter().map(told).collect(),
        }
    }
}
