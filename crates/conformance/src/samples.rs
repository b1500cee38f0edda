//! Records for tests.

use std::sync::Arc;

use hypha_engine::Record;
use hypha_engine::record::{AcceptedTask, FailedAttempt, FailedAttempts, FinishedTask};
use hypha_model::{
    AttemptId, Capacity, Executor, ExecutorClass, FailureKind, Fence, Metadata, MetadataValue,
    Money, Name, ObjectRef, Payload, Requirement, Rng, Span, TaskError, TaskId, TaskResult,
    TaskSpec, TaskState, Time, Worker, WorkerId,
};
use hypha_placement::Health;

/// The millisecond in which the first task is submitted.
pub const START: Time = Time::from_micros(1_700_000_000_000_000);

/// This many milliseconds later.
pub fn at(millis: u64) -> Time {
    START + Span::from_millis(millis)
}

/// The id of the task that is submitted at `at(number)`.
pub fn id(number: u64) -> TaskId {
    TaskId::new(at(number), &mut Rng::new(number))
}

/// The id of a worker.
pub fn worker_id(number: u64) -> WorkerId {
    WorkerId::new(START, &mut Rng::new(number))
}

/// Every second task is of the tenant `acme`; the models rotate.
pub fn spec(number: u64) -> TaskSpec {
    let model = format!("model-{}", number % 3).parse().unwrap();
    let metadata = [
        (Arc::from("tokens"), MetadataValue::Number(number as f64)),
        (Arc::from("kind"), MetadataValue::Text("chat".into())),
    ];
    TaskSpec {
        requirement: Requirement { model: Some(model), cpu_milli: 500, ..Default::default() },
        input: Payload::from(format!("{{\"prompt\": \"say {number}\"}}").into_bytes()),
        metadata: Metadata::new(metadata).unwrap(),
        tenant: (number.is_multiple_of(2)).then(|| "acme".parse().unwrap()),
        timeout: Some(Span::from_secs(30)),
        stream: number.is_multiple_of(4),
        ..TaskSpec::default()
    }
}

/// The task is submitted; every third has a key.
pub fn accepted(number: u64) -> Record {
    Record::Accepted(Arc::new(AcceptedTask {
        id: id(number),
        spec: Arc::new(spec(number)),
        submitted: at(number),
        deadline: (number.is_multiple_of(5)).then_some(at(number + 60_000)),
        idempotency_key: (number.is_multiple_of(3)).then(|| format!("key-{number}").into()),
        bind_at_once: number.is_multiple_of(7),
    }))
}

/// The tenant and the key of the task, if it has a key.
pub fn key_of(number: u64) -> Option<(Option<Name>, Arc<str>)> {
    let Record::Accepted(task) = accepted(number) else { return None };
    Some((task.spec.tenant.clone(), task.idempotency_key.clone()?))
}

/// The task is dispatched to a worker.
pub fn attempted(number: u64, attempt: u32, worker: u64) -> Record {
    Record::AttemptDispatched {
        attempt: AttemptId { task: id(number), number: attempt },
        // The upper bits are those of a late incarnation.
        fence: Fence(u64::MAX - number - u64::from(attempt)),
        worker: worker_id(worker),
        at: at(number + 1),
    }
}

/// An update of the attempt of [`attempted`].
pub fn began(number: u64, attempt: u32, handle: Option<&str>) -> Record {
    Record::AttemptUpdated {
        task: id(number),
        fence: Fence(u64::MAX - number - u64::from(attempt)),
        started: handle.is_none().then(|| at(number + u64::from(attempt))),
        handle: handle.map(Arc::from),
    }
}

/// The attempt is void, and the task waits.
pub fn requeued(number: u64, failures: u32) -> Record {
    Record::Requeued {
        task: id(number),
        failures,
        not_before: at(number + 1_000),
        failed: failed(failures + 1),
    }
}

/// The task ends, two milliseconds after it was submitted.
pub fn finished(number: u64, state: TaskState) -> Record {
    let completed = state == TaskState::Completed;
    Record::Finished(Arc::new(FinishedTask {
        task: id(number),
        state,
        attempts: 1,
        worker: completed.then(|| worker_id(number % 4)),
        started: completed.then(|| at(number + 1)),
        finished: at(number + 2),
        result: completed.then(|| result_of(number)),
        error: (!completed).then(|| TaskError {
            status: Some(500),
            ..TaskError::new(FailureKind::BackendFailed, "no luck")
        }),
        failed: failed(number as u32 % 3),
    }))
}

/// The result of a task: sometimes an object.
pub fn result_of(number: u64) -> TaskResult {
    let payload = Payload::from(format!("result {number}").into_bytes());
    match number % 5 {
        3 => TaskResult::Object(ObjectRef {
            digest: payload.digest(),
            bytes: 1 << 40,
            by_digest: false,
        }),
        _ => TaskResult::of(payload),
    }
}

/// This many attempts that gave no result.
pub fn failed(count: u32) -> FailedAttempts {
    (1..=count).fold(FailedAttempts::default(), |failed, number| {
        let worker = worker_id(number.into());
        let reason = format!("it broke {number} times").into();
        let kind = FailureKind::ALL[number as usize % FailureKind::ALL.len()];
        failed.with(FailedAttempt { number, worker, at: at(number.into()), kind, reason })
    })
}

/// The worker is removed.
pub fn removed(worker: u64) -> Record {
    Record::WorkerRemoved { worker: worker_id(worker), at: at(worker) }
}

/// The worker, as it describes itself.
pub fn worker(number: u64) -> Arc<Worker> {
    Arc::new(Worker {
        id: worker_id(number),
        capacity: Capacity { cpu_milli: 8_000, memory_bytes: 1 << 34, ..Default::default() },
        executors: vec![Executor {
            class: ExecutorClass::Inference,
            name: "vllm".parse().unwrap(),
            models: vec!["model-1".parse().unwrap()],
            concurrency: 4,
        }],
        hardware: Some("a100".parse().unwrap()),
        region: None,
        price: Money::default(),
    })
}

/// The statistics of a worker.
pub fn health() -> Health {
    let mut health = Health::default();
    health.success_rate = 0.75;
    health.completed = 12;
    health.last_seen = at(3);
    health
}
