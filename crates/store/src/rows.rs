//! Conversions between values and rows.

use std::sync::Arc;

use hypha_engine::record::{AcceptedTask, FailedAttempts, FinishedTask, StoredAttempt, StoredTask};
use hypha_model::{
    Digest, FailureKind, Fence, Name, ObjectRef, Payload, TaskError, TaskId, TaskResult, TaskSpec,
    TaskState, Time, WorkerId,
};
use rusqlite::Row;
use serde::Serialize;
use serde::de::DeserializeOwned;
use uuid::Uuid;

use crate::error::StoreError;

/// The columns of `tasks t`, `open o` and `ends e` that [`task`] reads.
pub(crate) const TASK_COLUMNS: &str = "t.id, t.submitted, t.deadline, t.bind, t.owner, t.spec, \
     o.attempts, o.failures, o.not_before, o.fence, o.worker, o.given, \
     e.state, e.attempts, e.worker, e.started, e.finished, e.digest, e.result, e.error, \
     o.failed, e.failed, o.started, o.handle, e.kind, e.status, \
     e.object";

/// Encodes with named fields, so that a later version with more fields can read the rows of this one.
pub(crate) fn encode<T: Serialize>(what: &'static str, value: &T) -> Result<Vec<u8>, StoreError> {
    let mut bytes = Vec::new();
    encode_into(&mut bytes, what, value)?;
    Ok(bytes)
}

/// The same, into `bytes`, whose contents it replaces.
pub(crate) fn encode_into<T: Serialize>(
    bytes: &mut Vec<u8>,
    what: &'static str,
    value: &T,
) -> Result<(), StoreError> {
    bytes.clear();
    rmp_serde::encode::write_named(bytes, value).map_err(|cause| StoreError::row(what, cause))
}

pub(crate) fn decode<T: DeserializeOwned>(
    what: &'static str,
    bytes: &[u8],
) -> Result<T, StoreError> {
    rmp_serde::from_slice(bytes).map_err(|cause| StoreError::row(what, cause))
}

/// SQLite has no unsigned integers. Times that do not fit mean "never", and are read back as [`Time::MAX`].
pub(crate) fn micros(time: Time) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

pub(crate) fn time(micros: i64) -> Time {
    match u64::try_from(micros) {
        Ok(micros) if micros < i64::MAX as u64 => Time::from_micros(micros),
        Ok(_) => Time::MAX,
        Err(_) => Time::ZERO,
    }
}

pub(crate) fn task_id(bytes: [u8; 16]) -> TaskId {
    TaskId::from_uuid(Uuid::from_bytes(bytes))
}

pub(crate) fn worker_id(bytes: [u8; 16]) -> WorkerId {
    WorkerId::from_uuid(Uuid::from_bytes(bytes))
}

/// The number of a state in rows. The numbers are stored in files: they must never change.
pub(crate) const fn state_number(state: TaskState) -> i64 {
    match state {
        TaskState::Queued => 0,
        TaskState::Scheduled => 1,
        TaskState::Running => 2,
        TaskState::Completed => 3,
        TaskState::Failed => 4,
        TaskState::Cancelled => 5,
        TaskState::Expired => 6,
    }
}

pub(crate) fn state(number: i64) -> Result<TaskState, StoreError> {
    let state = TaskState::ALL.into_iter().find(|state| state_number(*state) == number);
    state.ok_or_else(|| StoreError::row("a task's state", format!("{number} is not a state")))
}

/// A tenant's idempotency key as one value. Names contain no zero byte, so the values are distinct.
pub(crate) fn owner(tenant: Option<&Name>, key: &str) -> Vec<u8> {
    [tenant.map_or("", Name::as_str).as_bytes(), &[0], key.as_bytes()].concat()
}

pub(crate) fn owner_parts(owner: &[u8]) -> Result<(Option<Name>, Arc<str>), StoreError> {
    let wrong = |cause: &dyn std::fmt::Display| StoreError::row("an idempotency key", cause);
    let text = std::str::from_utf8(owner).map_err(|cause| wrong(&cause))?;
    let (tenant, key) = text.split_once('\0').ok_or_else(|| wrong(&"it has no tenant"))?;
    let tenant = match tenant {
        "" => None,
        tenant => Some(tenant.parse().map_err(|cause| wrong(&cause))?),
    };
    Ok((tenant, Arc::from(key)))
}

/// Reads a task from [`TASK_COLUMNS`]. The columns of `open` and of `ends` may be null.
pub(crate) fn task(row: &Row<'_>) -> Result<StoredTask, StoreError> {
    task_with(row, |_| {})
}

/// The same, with `refine` applied to the specification.
pub(crate) fn task_with(
    row: &Row<'_>,
    refine: impl FnOnce(&mut TaskSpec),
) -> Result<StoredTask, StoreError> {
    let id = task_id(row.get(0)?);
    let mut spec: TaskSpec = decode("a task", row.get_ref(5)?.as_blob().map_err(wrong_type)?)?;
    refine(&mut spec);
    let key = match row.get_ref(4)?.as_blob_or_null().map_err(wrong_type)? {
        Some(owner) => Some(owner_parts(owner)?.1),
        None => None,
    };
    let accepted = Arc::new(AcceptedTask {
        id,
        submitted: time(row.get(1)?),
        deadline: row.get::<_, Option<i64>>(2)?.map(time),
        bind_at_once: row.get(3)?,
        idempotency_key: key,
        spec: Arc::new(spec),
    });
    let finished = match row.get::<_, Option<i64>>(12)? {
        Some(number) => Some(finished(row, id, state(number)?)?),
        None => None,
    };
    let current = match (row.get(9)?, row.get(10)?, row.get(11)?) {
        (Some(fence), Some(worker), Some(given)) => {
            let fence = Fence(i64::cast_unsigned(fence));
            Some(StoredAttempt {
                started: row.get::<_, Option<i64>>(22)?.map(time),
                handle: row.get::<_, Option<String>>(23)?.map(Arc::from),
                ..StoredAttempt::new(fence, worker_id(worker), time(given))
            })
        }
        _ => None,
    };
    let attempts = match &finished {
        Some(finished) => finished.attempts,
        None => row.get::<_, Option<u32>>(6)?.unwrap_or(0),
    };
    Ok(StoredTask {
        accepted,
        attempts,
        failures: row.get::<_, Option<u32>>(7)?.unwrap_or(0),
        current,
        not_before: row.get::<_, Option<i64>>(8)?.map_or(Time::ZERO, time),
        failed: failed(row, 20)?,
        finished,
    })
}

fn finished(row: &Row<'_>, id: TaskId, state: TaskState) -> Result<Arc<FinishedTask>, StoreError> {
    Ok(Arc::new(FinishedTask {
        task: id,
        state,
        attempts: row.get(13)?,
        worker: row.get::<_, Option<[u8; 16]>>(14)?.map(worker_id),
        started: row.get::<_, Option<i64>>(15)?.map(time),
        finished: time(row.get(16)?),
        result: result(row)?,
        error: error(row)?,
        failed: failed(row, 21)?,
    }))
}

fn result(row: &Row<'_>) -> Result<Option<TaskResult>, StoreError> {
    let digest = row.get::<_, Option<[u8; 32]>>(17)?.map(Digest::from_bytes);
    let payload = row.get_ref(18)?.as_blob_or_null().map_err(wrong_type)?.map(Payload::from);
    let object = row.get::<_, Option<i64>>(26)?.map(i64::cast_unsigned);
    Ok(match (object, digest, payload) {
        (Some(bytes), Some(digest), payload) => {
            let by_digest = payload.is_some();
            Some(TaskResult::Object(ObjectRef { digest, bytes, by_digest }))
        }
        (None, Some(digest), Some(payload)) => Some(TaskResult::Inline { payload, digest }),
        _ => None,
    })
}

/// Rows of earlier versions have no kind.
fn error(row: &Row<'_>) -> Result<Option<TaskError>, StoreError> {
    let Some(message) = row.get::<_, Option<String>>(19)? else { return Ok(None) };
    let kind = row.get_ref(24)?.as_str_or_null().map_err(wrong_type)?;
    let kind = kind.map_or(FailureKind::Unknown, FailureKind::from);
    Ok(Some(TaskError { status: row.get(25)?, ..TaskError::new(kind, message) }))
}

/// Most tasks have no failed attempts; the column is null then.
fn failed(row: &Row<'_>, column: usize) -> Result<FailedAttempts, StoreError> {
    match row.get_ref(column)?.as_blob_or_null().map_err(wrong_type)? {
        Some(bytes) => decode(FAILED, bytes),
        None => Ok(FailedAttempts::default()),
    }
}

pub(crate) fn encode_failed(failed: &FailedAttempts) -> Result<Option<Vec<u8>>, StoreError> {
    if failed.is_empty() {
        return Ok(None);
    }
    encode(FAILED, failed).map(Some)
}

const FAILED: &str = "failed attempts";

/// An ended task with only its idempotency key, tenant, state and end time; `spec_of` makes the specification for a
/// tenant.
pub(crate) fn ended_key(
    row: &Row<'_>,
    spec_of: impl FnOnce(Option<Name>) -> Arc<TaskSpec>,
) -> Result<StoredTask, StoreError> {
    let (tenant, key) = owner_parts(row.get_ref(0)?.as_blob().map_err(wrong_type)?)?;
    let id = task_id(row.get(1)?);
    Ok(StoredTask {
        accepted: Arc::new(AcceptedTask {
            id,
            spec: spec_of(tenant),
            submitted: Time::ZERO,
            deadline: None,
            idempotency_key: Some(key),
            bind_at_once: false,
        }),
        attempts: 0,
        failures: 0,
        current: None,
        not_before: Time::ZERO,
        failed: FailedAttempts::default(),
        finished: Some(Arc::new(FinishedTask {
            task: id,
            state: state(row.get(2)?)?,
            attempts: 0,
            worker: None,
            started: None,
            finished: time(row.get(3)?),
            result: None,
            error: None,
            failed: FailedAttempts::default(),
        })),
    })
}

fn wrong_type(error: rusqlite::types::FromSqlError) -> StoreError {
    StoreError::row("a column", error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_max_round_trips() {
        for at in [Time::ZERO, Time::from_micros(1_700_000_000_000_000), Time::MAX] {
            assert_eq!(time(micros(at)), at);
        }
    }

    #[test]
    fn keys_of_different_tenants_differ() {
        let name = |text: &str| text.parse::<Name>().unwrap();
        for (tenant, key) in [(None, "k"), (Some(name("a")), "k"), (None, "a\0k"), (None, "")] {
            let parts = owner_parts(&owner(tenant.as_ref(), key)).unwrap();
            assert_eq!(parts, (tenant, Arc::from(key)));
        }
    }

    /// Rows of an earlier version lack fields, and rows of a later one have more.
    #[test]
    fn rows_of_other_versions_are_read() {
        #[derive(Serialize)]
        struct Other {
            requirement: hypha_model::Requirement,
            input: Payload,
            metadata: hypha_model::Metadata,
            tenant: Option<Name>,
            timeout: Option<hypha_model::Span>,
            not_known_yet: u32,
        }
        let expected = TaskSpec { input: Payload::from(&b"in"[..]), ..TaskSpec::default() };
        let TaskSpec { requirement, input, metadata, tenant, timeout, .. } = expected.clone();
        let other = Other { requirement, input, metadata, tenant, timeout, not_known_yet: 1 };
        let bytes = encode("a task", &other).unwrap();
        assert_eq!(decode::<TaskSpec>("a task", &bytes).unwrap(), expected);
        assert!(decode::<TaskSpec>("a task", &bytes[..bytes.len() / 2]).is_err());
    }

    #[test]
    fn failed_attempts_of_an_earlier_version_have_an_unknown_kind() {
        #[derive(Serialize)]
        struct Before {
            number: u32,
            worker: WorkerId,
            at: Time,
            reason: &'static str,
        }
        let worker = worker_id([7; 16]);
        let before = Before { number: 2, worker, at: Time::from_micros(9), reason: "why" };
        let bytes = encode(FAILED, &Some([before])).unwrap();
        let read: FailedAttempts = decode(FAILED, &bytes).unwrap();
        let [one] = &*read else { panic!("{read:?}") };
        assert_eq!((one.number, one.worker, &*one.reason), (2, worker, "why"));
        assert_eq!(one.kind, FailureKind::Unknown);
    }

    #[test]
    fn states_have_their_own_numbers() {
        for one in TaskState::ALL {
            assert_eq!(state(state_number(one)).unwrap(), one);
        }
        assert!(state(7).is_err());
    }
}
