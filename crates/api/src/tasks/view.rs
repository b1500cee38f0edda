//! A task as the API shows it.

use std::borrow::Cow;

use data_encoding::BASE64;
use hypha_engine::Submitted;
use hypha_engine::record::{AcceptedTask, FailedAttempt, FailedAttempts, FinishedTask, StoredTask};
use hypha_engine::scheduler::TaskView;
use hypha_model::{
    DeadlinePolicy, FailureKind, Maximise, Name, Payload, Requirement, TaskId, TaskResult,
    TaskSpec, TaskState, Time, WorkerId,
};
use hypha_placement::{DeadlineOutlook, DeadlineStatus};
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::reason;
use crate::json::PortableJson;
use crate::timestamp::Timestamp;

/// A task.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = Task)]
pub(crate) struct TaskBody<'a> {
    /// Its id, `task-` and a UUID.
    #[schema(value_type = String, example = "task-018bcfe5-6800-7000-8000-000000000000")]
    pub(crate) id: TaskId,
    /// `queued`, `scheduled`, `running`, `completed`, `failed`, `cancelled` or `expired`.
    #[schema(value_type = String, example = "completed")]
    pub(crate) status: TaskState,
    /// The model.
    #[schema(required)]
    pub(crate) model: Option<&'a str>,
    /// The input of the executor; only where a single task is requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub(crate) input: Option<Cow<'a, RawValue>>,
    /// The worker that has it, or had it at the end.
    #[schema(value_type = Option<String>, required)]
    pub(crate) worker: Option<WorkerId>,
    /// The GPUs that the attempt has, by their numbers on the worker, while it has any.
    #[serde(skip_serializing_if = "<[u32]>::is_empty")]
    pub(crate) devices: &'a [u32],
    /// When it was submitted.
    #[schema(value_type = String, format = DateTime)]
    pub(crate) submitted_at: Timestamp,
    /// When the last attempt began to run.
    #[schema(value_type = Option<String>, format = DateTime, required)]
    pub(crate) started_at: Option<Timestamp>,
    /// When it ended.
    #[schema(value_type = Option<String>, format = DateTime, required)]
    pub(crate) finished_at: Option<Timestamp>,
    /// Attempts so far.
    pub(crate) attempts: u32,
    /// The progress of the attempt, from 0 to 1, if the executor reports it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) progress: Option<f64>,
    /// The result, as JSON; if it is not JSON, `{"base64": …}`, and an object `{"object": …, "bytes": …}`.
    #[schema(value_type = Option<serde_json::Value>, required)]
    pub(crate) result: Option<Cow<'a, RawValue>>,
    /// Only if the result is an object, too large to be kept with its task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) result_object: Option<ObjectBody>,
    /// Why it did not complete.
    #[schema(required)]
    pub(crate) error: Option<Cow<'a, str>>,
    /// The kind of failure, for programs, such as `invalid_input`, `program_failed` or `timed_out`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "program_failed")]
    pub(crate) error_kind: Option<FailureKind>,
    /// When the next attempt may start, after a failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub(crate) delayed_until: Option<Timestamp>,
    /// Why the last attempt failed, while the task waits for the next.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) last_error: Option<Cow<'a, str>>,
    /// The last failed attempts, the oldest first; at most 8.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) failures: Vec<FailureBody<'a>>,
    /// Why it waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    /// When the result is no longer useful.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub(crate) deadline_at: Option<Timestamp>,
    /// Whether it is expected to end before that: `on_track`, `at_risk` or `unreachable`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "at_risk")]
    pub(crate) deadline_status: Option<DeadlineStatus>,
    /// When a task with a deadline is expected to end.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub(crate) predicted_finish_at: Option<Timestamp>,
    /// Whether pieces of the result are sent as they arrive.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    pub(crate) stream: bool,
    /// The tenant on whose behalf it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tenant: Option<&'a str>,
    /// What the worker must have.
    #[serde(skip_serializing_if = "RequirementsBody::is_empty")]
    #[schema(value_type = Option<RequirementsBody>)]
    pub(crate) requirements: RequirementsBody<'a>,
    /// The features for the predictor.
    #[serde(skip_serializing_if = "is_none_or_empty")]
    #[schema(value_type = Option<Object>)]
    pub(crate) metadata: Option<&'a hypha_model::Metadata>,
}

/// A result that is kept separately; `/api/v1/tasks/{id}/result` returns its bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = TaskResultObject)]
pub(crate) struct ObjectBody {
    /// The BLAKE3 digest of its bytes.
    digest: String,
    /// How many bytes it has.
    bytes: u64,
}

impl ObjectBody {
    fn of(result: &TaskResult) -> Option<ObjectBody> {
        let TaskResult::Object(object) = result else { return None };
        Some(ObjectBody { digest: object.digest.to_string(), bytes: object.bytes })
    }
}

/// A failed attempt.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = TaskFailure)]
pub(crate) struct FailureBody<'a> {
    /// The number of the attempt.
    attempt: u32,
    /// The worker of the attempt.
    #[schema(value_type = String)]
    worker: WorkerId,
    /// Why it failed.
    reason: &'a str,
    /// The kind of failure, for programs.
    #[schema(value_type = String, example = "worker_lost")]
    kind: FailureKind,
    /// When it ended.
    #[schema(value_type = String, format = DateTime)]
    at: Timestamp,
}

/// The requirements of a task; those that were not given are left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
#[schema(as = TaskRequirements)]
pub(crate) struct RequirementsBody<'a> {
    #[serde(skip_serializing_if = "is_zero")]
    min_memory: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu_cores: Option<f64>,
    #[serde(skip_serializing_if = "is_zero")]
    min_storage: u64,
    #[serde(skip_serializing_if = "is_zero")]
    min_gpus: u64,
    #[serde(skip_serializing_if = "is_zero")]
    min_gpu_memory: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    gpu_ids: Vec<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gpu_share: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    estimated_time: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    priority: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deadline: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    deadline_policy: Option<DeadlinePolicy>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    maximise: Option<Maximise>,
    #[serde(skip_serializing_if = "Option::is_none")]
    executor_class: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    executor: Option<&'a str>,
}

impl<'a> TaskBody<'a> {
    /// A task that was just accepted.
    pub(crate) fn submitted(submitted: &Submitted, spec: &'a TaskSpec) -> Self {
        let Submitted { task: id, worker, deadline, .. } = *submitted;
        let status = if worker.is_some() { TaskState::Scheduled } else { TaskState::Queued };
        let body = TaskBody { worker, ..TaskBody::bare(id, status, spec, submission_time(id)) };
        body.with_outlook(deadline)
    }

    fn with_outlook(self, outlook: Option<DeadlineOutlook>) -> Self {
        TaskBody {
            deadline_status: outlook.map(|outlook| outlook.status),
            predicted_finish_at: outlook.map(|outlook| Timestamp(outlook.finish)),
            ..self
        }
    }

    /// A task that has not ended, as the machine sees it.
    pub(crate) fn open(view: &'a TaskView, now: Time) -> Self {
        let accepted = &view.accepted;
        let delayed = view.not_before.filter(|until| *until > now && view.worker.is_none());
        let waits = view.state == TaskState::Queued;
        let body = TaskBody {
            worker: view.worker,
            started_at: view.started.map(Timestamp),
            devices: &view.devices,
            attempts: view.attempts,
            progress: (view.state == TaskState::Running)
                .then(|| f64::from(view.progress_permille) / 1_000.0),
            delayed_until: delayed.map(Timestamp),
            last_error: view.last_error.as_deref().filter(|_| waits).map(Cow::Borrowed),
            failures: FailureBody::all(&view.failed),
            reason: waits.then(|| reason::queued_reason(view, delayed, now)),
            ..TaskBody::of(accepted, view.state)
        };
        body.with_outlook(view.deadline)
    }

    /// A task as it is on the disk.
    pub(crate) fn stored(stored: &'a StoredTask) -> Self {
        if let Some(finished) = &stored.finished {
            return TaskBody::ended(&stored.accepted, finished);
        }
        let started = stored.current.as_ref().and_then(|current| current.started);
        let status = match (&stored.current, started) {
            (Some(_), Some(_)) => TaskState::Running,
            (Some(_), None) => TaskState::Scheduled,
            (None, _) => TaskState::Queued,
        };
        TaskBody {
            worker: stored.current.as_ref().map(|current| current.worker),
            started_at: started.map(Timestamp),
            attempts: stored.attempts,
            failures: FailureBody::all(&stored.failed),
            ..TaskBody::of(&stored.accepted, status)
        }
    }

    /// A task that has ended.
    pub(crate) fn ended(accepted: &'a AcceptedTask, finished: &'a FinishedTask) -> Self {
        TaskBody {
            worker: finished.worker,
            started_at: finished.started.map(Timestamp),
            finished_at: Some(Timestamp(finished.finished)),
            attempts: finished.attempts,
            progress: (finished.state == TaskState::Completed).then_some(1.0),
            result: finished.result.as_ref().map(result_json),
            result_object: finished.result.as_ref().and_then(ObjectBody::of),
            error: finished.error.as_ref().map(|error| Cow::Owned(error.to_string())),
            error_kind: finished.error.as_ref().map(|error| error.kind),
            failures: FailureBody::all(&finished.failed),
            ..TaskBody::of(accepted, finished.state)
        }
    }

    /// The same with its input.
    pub(crate) fn with_input(mut self, spec: &'a TaskSpec) -> Self {
        self.input = Some(payload_json(&spec.input));
        self
    }

    fn of(accepted: &'a AcceptedTask, status: TaskState) -> Self {
        TaskBody {
            deadline_at: accepted.deadline.map(Timestamp),
            ..TaskBody::bare(accepted.id, status, &accepted.spec, accepted.submitted)
        }
    }

    fn bare(id: TaskId, status: TaskState, spec: &'a TaskSpec, submitted: Time) -> Self {
        TaskBody {
            id,
            status,
            model: spec.requirement.model.as_ref().map(Name::as_str),
            input: None,
            worker: None,
            submitted_at: Timestamp(submitted),
            started_at: None,
            devices: &[],
            finished_at: None,
            attempts: 0,
            progress: None,
            result: None,
            result_object: None,
            error: None,
            error_kind: None,
            delayed_until: None,
            last_error: None,
            failures: Vec::new(),
            reason: None,
            deadline_at: None,
            deadline_status: None,
            predicted_finish_at: None,
            stream: spec.stream,
            tenant: spec.tenant.as_ref().map(Name::as_str),
            requirements: RequirementsBody::of(&spec.requirement),
            metadata: Some(&spec.metadata),
        }
    }
}

impl<'a> FailureBody<'a> {
    fn all(failed: &'a FailedAttempts) -> Vec<Self> {
        let body = |one: &'a FailedAttempt| FailureBody {
            attempt: one.number,
            worker: one.worker,
            reason: &one.reason,
            kind: one.kind,
            at: Timestamp(one.at),
        };
        failed.iter().map(body).collect()
    }
}

impl<'a> RequirementsBody<'a> {
    fn of(requirement: &'a Requirement) -> Self {
        let usual = Requirement::default();
        let milli = |milli: u64| milli as f64 / 1_000.0;
        RequirementsBody {
            min_memory: requirement.memory_bytes,
            cpu_cores: (requirement.cpu_milli > 0).then(|| milli(requirement.cpu_milli)),
            min_storage: requirement.storage_bytes,
            min_gpus: requirement.min_gpus.into(),
            min_gpu_memory: requirement.gpu_memory_bytes,
            gpu_ids: requirement.gpu_ids.iter().collect(),
            gpu_share: (requirement.milli_gpu != usual.milli_gpu)
                .then(|| milli(requirement.milli_gpu.into())),
            estimated_time: requirement.estimated_time.map(|span| span.as_secs_f64()),
            priority: (requirement.priority != usual.priority)
                .then(|| requirement.priority.as_f64()),
            deadline: requirement.deadline.map(|span| span.as_secs_f64()),
            deadline_policy: (requirement.deadline_policy != usual.deadline_policy)
                .then_some(requirement.deadline_policy),
            maximise: requirement.maximise,
            executor_class: (requirement.class != usual.class)
                .then(|| requirement.class.to_string()),
            executor: requirement.executor.as_ref().map(Name::as_str),
        }
    }

    fn is_empty(&self) -> bool {
        *self == RequirementsBody::default()
    }
}

/// When a task with this id was submitted, to the millisecond: the id starts with it.
pub(crate) fn submission_time(id: TaskId) -> Time {
    let millis = id.uuid().as_u128() >> 80;
    Time::from_micros((millis as u64).saturating_mul(1_000))
}

/// A result as JSON.
pub(crate) fn result_json(result: &TaskResult) -> Cow<'_, RawValue> {
    match result {
        TaskResult::Inline { payload, .. } => payload_json(payload),
        TaskResult::Object(object) => raw(object.to_json()),
    }
}

/// A payload as JSON.
pub(crate) fn payload_json(payload: &Payload) -> Cow<'_, RawValue> {
    let bytes = payload.bytes();
    if serde_json::from_slice::<PortableJson>(bytes).is_ok()
        && let Ok(raw) = serde_json::from_slice::<&RawValue>(bytes)
    {
        return Cow::Borrowed(raw);
    }
    raw(format!("{{\"base64\":\"{}\"}}", BASE64.encode(bytes)))
}

fn raw(json: String) -> Cow<'static, RawValue> {
    Cow::Owned(RawValue::from_string(json).unwrap_or_else(|_| RawValue::NULL.to_owned()))
}

fn is_zero(amount: &u64) -> bool {
    *amount == 0
}

fn is_none_or_empty(metadata: &Option<&hypha_model::Metadata>) -> bool {
    metadata.is_none_or(hypha_model::Metadata::is_empty)
}

#[cfg(test)]
mod tests {
    use hypha_model::Rng;

    use super::*;

    #[test]
    fn payloads_are_shown_as_json_or_in_base64() {
        let show = |bytes: &[u8]| payload_json(&Payload::from(bytes)).get().to_owned();
        assert_eq!(show(b" {\"n\": 1.50} "), "{\"n\": 1.50}");
        assert_eq!(show(b"\"a\""), "\"a\"");
        assert_eq!(show(b"plain"), "{\"base64\":\"cGxhaW4=\"}");
        assert_eq!(show(b"\xff"), "{\"base64\":\"/w==\"}");
        assert_eq!(show(b""), "{\"base64\":\"\"}");
        assert_eq!(show(b"1e999"), "{\"base64\":\"MWU5OTk=\"}");
    }

    #[test]
    fn id_contains_the_time_of_submission() {
        let now = Time::from_micros(1_700_000_000_123_456);
        let id = TaskId::new(now, &mut Rng::new(1));
        assert_eq!(submission_time(id).as_millis(), now.as_millis());
    }
}
