//! The worker as a task instance: tasks that arrive over HTTP go to the same machine, with the same ledger, as those
//! that schedulers dispatch.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use hypha_api::{
    EnqueueError, EnqueueRequest, EnqueueResponse, Instance, InstanceHealth, InstanceResult,
    InstanceStatus, InstanceTaskState,
};
use hypha_backends::{BackEnd, BackEndSettings, CallOutcome, Format, default_networks};
use hypha_engine::{Dispatch, FromWorker, Outcome, ToWorker};
use hypha_model::{
    AttemptId, Epoch, Fence, InputKind, LeaseId, Name, Payload, Requirement, Rng, SchedulerId,
    Span, TaskId, TaskResult, TaskSpec, Worker,
};
use serde::Serialize;
use serde_json::value::RawValue;
use tokio::sync::{mpsc, oneshot};

use super::host::WorkerInput;
use crate::clock::Clock;

/// Results that are kept to be fetched; the oldest are dropped first.
const MAX_RESULTS: usize = 10_000;
/// Bytes of such results: a result of the largest size that a worker accepts still leaves room for others, and a worker
/// has more memory than this.
const MAX_RESULT_BYTES: usize = 256 << 20;

/// How long one task may run: the scheduler's default.
const TASK_TIMEOUT: Span = Span::from_secs(300);

/// How many times a callback is attempted; the scheduler polls as well.
const CALLBACK_ATTEMPTS: u32 = 3;

/// The delay between two attempts.
const CALLBACK_BACKOFF: Duration = Duration::from_secs(1);

/// After how many seconds a refused scheduler should retry.
const RETRY_AFTER_S: u32 = 1;

#[derive(Clone)]
pub(super) struct LocalInstance {
    worker: Arc<Worker>,
    model: Name,
    clock: Clock,
    events: mpsc::Sender<WorkerInput>,
    state: Arc<Mutex<InstanceState>>,
}

struct InstanceState {
    rng: Rng,
    fences: u64,
    tasks: HashMap<String, TaskEntry>,
    by_fence: HashMap<u64, String>,
    /// Names of tasks that are done, in the order of their ends.
    done: VecDeque<String>,
    /// The bytes of their results and errors, and the limit.
    done_bytes: usize,
    max_done_bytes: usize,
}

struct TaskEntry {
    stage: InstanceTaskState,
    callback: Option<String>,
    /// The enqueue request that waits until the task is admitted or refused.
    admitted: Option<oneshot::Sender<Result<(), EnqueueError>>>,
}

impl LocalInstance {
    /// Starts the instance. The machine's messages to it come through `messages`.
    pub(super) fn start(
        worker: Arc<Worker>,
        model: Name,
        clock: Clock,
        events: mpsc::Sender<WorkerInput>,
        messages: mpsc::Receiver<FromWorker>,
    ) -> LocalInstance {
        let state = Arc::new(Mutex::new(InstanceState::new()));
        let instance = LocalInstance { worker, model, clock, events, state };
        tokio::spawn(instance.clone().receive(messages));
        instance
    }

    async fn receive(self, mut messages: mpsc::Receiver<FromWorker>) {
        while let Some(message) = messages.recv().await {
            self.on_message(message);
        }
    }

    fn on_message(&self, message: FromWorker) {
        let mut state = self.lock();
        match message {
            FromWorker::Accepted { fence, .. } => state.admitted(fence, Ok(())),
            FromWorker::Started { fence, .. } => {
                state.admitted(fence, Ok(()));
                if let Some(entry) = state.entry(fence) {
                    entry.stage = InstanceTaskState::Running;
                }
            }
            FromWorker::Refused { fence, .. } => {
                let refused = EnqueueError::QueueFull { retry_after_s: RETRY_AFTER_S };
                state.admitted(fence, Err(refused));
                state.forget(fence);
            }
            FromWorker::Finished { attempt, fence, run, outcome } => {
                let ended = state.ended(fence, run, outcome);
                drop(state);
                self.send(ToWorker::Recorded { attempt, fence });
                if let Some((Some(callback), result)) = ended {
                    tokio::spawn(notify(callback, self.worker.id.to_string(), result));
                }
            }
            // Clients of an instance get no pieces and no progress, and there are no leases.
            _ => {}
        }
    }

    /// Sends from a task of its own: the loop that receives it may wait for the caller.
    fn send(&self, message: ToWorker) {
        let events = self.events.clone();
        tokio::spawn(async move {
            let _ = events.send(WorkerInput::Received(SchedulerId::LOCAL, vec![message])).await;
        });
    }

    fn admit(&self, task: EnqueueRequest) -> Admission {
        let now = self.clock.now();
        let mut state = self.lock();
        let id = TaskId::new(now, &mut state.rng);
        let name = task.task_id.unwrap_or_else(|| id.to_string());
        if let Some(known) = state.tasks.get_mut(&name)
            && matches!(known.stage, InstanceTaskState::Queued | InstanceTaskState::Running)
        {
            known.callback = task.callback_url;
            return Admission { name, dispatch: None };
        }
        state.fences += 1;
        let fence = state.fences;
        let (admitted, admission) = oneshot::channel();
        let (stage, callback) = (InstanceTaskState::Queued, task.callback_url);
        state.forget_result(&name);
        state.tasks.insert(name.clone(), TaskEntry { stage, callback, admitted: Some(admitted) });
        state.by_fence.insert(fence, name.clone());
        let requirement = Requirement { model: Some(self.model.clone()), ..Default::default() };
        let dispatch = Dispatch {
            lease: LeaseId::new(now, &mut state.rng),
            epoch: Epoch::default(),
            attempt: AttemptId { task: id, number: 1 },
            fence: Fence(fence),
            spec: Arc::new(TaskSpec {
                requirement,
                input: task.input,
                metadata: task.metadata,
                ..TaskSpec::default()
            }),
            timeout: TASK_TIMEOUT,
            interactive: false,
            resume: None,
        };
        Admission { name, dispatch: Some((dispatch, admission)) }
    }

    fn lock(&self) -> MutexGuard<'_, InstanceState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Admission {
    name: String,
    /// None if it is in flight already.
    dispatch: Option<(Dispatch, oneshot::Receiver<Result<(), EnqueueError>>)>,
}

impl InstanceState {
    fn new() -> InstanceState {
        InstanceState {
            rng: Rng::new(rand::random()),
            fences: 0,
            tasks: HashMap::new(),
            by_fence: HashMap::new(),
            done: VecDeque::new(),
            done_bytes: 0,
            max_done_bytes: MAX_RESULT_BYTES,
        }
    }

    fn entry(&mut self, fence: Fence) -> Option<&mut TaskEntry> {
        self.tasks.get_mut(self.by_fence.get(&fence.0)?)
    }

    fn admitted(&mut self, fence: Fence, outcome: Result<(), EnqueueError>) {
        if let Some(admitted) = self.entry(fence).and_then(|entry| entry.admitted.take()) {
            let _ = admitted.send(outcome);
        }
    }

    fn forget(&mut self, fence: Fence) {
        if let Some(name) = self.by_fence.remove(&fence.0) {
            self.tasks.remove(&name);
        }
    }

    fn ended(
        &mut self,
        fence: Fence,
        run: Span,
        outcome: Outcome,
    ) -> Option<(Option<String>, InstanceResult)> {
        let name = self.by_fence.remove(&fence.0)?;
        let entry = self.tasks.get_mut(&name)?;
        entry.stage = match outcome {
            Outcome::Completed { result: TaskResult::Inline { payload, .. } } => {
                InstanceTaskState::Completed { result: payload, run }
            }
            // Results for a task instance are never uploaded.
            Outcome::Completed { result: TaskResult::Object(_) } => {
                InstanceTaskState::Failed { error: "the result was sent elsewhere".to_owned(), run }
            }
            Outcome::Failed(error) => InstanceTaskState::Failed { error: error.to_string(), run },
            Outcome::Unreachable { error } => InstanceTaskState::Failed { error, run },
            Outcome::TimedOut => {
                let error = format!("it took longer than {TASK_TIMEOUT}");
                InstanceTaskState::Failed { error, run }
            }
        };
        let result = InstanceResult { task_id: name.clone(), stage: entry.stage.clone() };
        let callback = entry.callback.take();
        self.done_bytes += kept_bytes(&entry.stage);
        self.done.push_back(name);
        self.drop_oldest_results();
        Some((callback, result))
    }

    /// Drops results beyond the limits; the latest is kept in any case.
    fn drop_oldest_results(&mut self) {
        while self.done.len() > 1
            && (self.done.len() > MAX_RESULTS || self.done_bytes > self.max_done_bytes)
        {
            let Some(oldest) = self.done.pop_front() else { return };
            self.remove_result(&oldest);
        }
    }

    /// A task of this name is run again.
    fn forget_result(&mut self, name: &str) {
        if let Some(at) = self.done.iter().position(|done| done == name) {
            self.done.remove(at);
            self.remove_result(name);
        }
    }

    fn remove_result(&mut self, name: &str) {
        let removed = self.tasks.remove(name);
        self.done_bytes -= removed.map_or(0, |entry| kept_bytes(&entry.stage));
    }

    fn open_tasks(&self) -> u32 {
        u32::try_from(self.by_fence.len()).unwrap_or(u32::MAX)
    }
}

/// The bytes of a result or an error.
fn kept_bytes(stage: &InstanceTaskState) -> usize {
    match stage {
        InstanceTaskState::Completed { result, .. } => result.bytes().len(),
        InstanceTaskState::Failed { error, .. } => error.len(),
        InstanceTaskState::Queued | InstanceTaskState::Running => 0,
    }
}

impl Instance for LocalInstance {
    fn status(&self) -> InstanceStatus {
        let serves = self.worker.executors.iter().filter(|one| one.serves(&self.model));
        InstanceStatus {
            instance_id: self.worker.id.to_string(),
            model_type: self.model.to_string(),
            replicas_running: serves.map(|one| one.concurrency).fold(0, u32::saturating_add),
            queue_size: self.lock().open_tasks(),
            status: InstanceHealth::Running,
        }
    }

    fn enqueue(
        &self,
        task: EnqueueRequest,
    ) -> BoxFuture<'static, Result<EnqueueResponse, EnqueueError>> {
        let this = self.clone();
        async move {
            let Admission { name, dispatch } = this.admit(task);
            if let Some((dispatch, admission)) = dispatch {
                let stopping = || EnqueueError::Unavailable("the worker is stopping".to_owned());
                let message = ToWorker::Dispatch(Arc::new(dispatch));
                let messages = WorkerInput::Received(SchedulerId::LOCAL, vec![message]);
                this.events.send(messages).await.map_err(|_| stopping())?;
                admission.await.map_err(|_| stopping())??;
            }
            Ok(EnqueueResponse {
                task_id: name,
                queue_size: this.lock().open_tasks(),
                enqueue_time: this.clock.now().as_secs_f64(),
            })
        }
        .boxed()
    }

    fn result(&self, id: &str) -> BoxFuture<'static, Option<InstanceResult>> {
        let found = self
            .lock()
            .tasks
            .get(id)
            .map(|entry| InstanceResult { task_id: id.to_owned(), stage: entry.stage.clone() });
        std::future::ready(found).boxed()
    }
}

/// Calls the client back when a task is done. Only loopback and private networks are called: an open endpoint must
/// not let clients reach arbitrary addresses.
async fn notify(callback: String, instance: String, done: InstanceResult) {
    let body = match notification(&instance, &done) {
        Ok(body) => Payload::from(body),
        Err(error) => return tracing::debug!("a callback cannot be written: {error}"),
    };
    let config = BackEndSettings {
        allowed_networks: Some(default_networks().into()),
        ..BackEndSettings::new(callback, Format::Json)
    };
    let server = match BackEnd::new(config) {
        Ok(server) => server,
        Err(error) => return tracing::debug!("a callback address cannot be used: {error}"),
    };
    for attempt in 1..=CALLBACK_ATTEMPTS {
        match server.start(None, InputKind::Task, &body, false).outcome().await {
            CallOutcome::Completed { .. } => return,
            CallOutcome::Failed(error) => tracing::debug!(attempt, "a callback failed: {error}"),
            CallOutcome::Unreachable { error } => {
                tracing::debug!(attempt, "a callback failed: {error}")
            }
        }
        tokio::time::sleep(CALLBACK_BACKOFF).await;
    }
}

/// The body of a callback.
#[derive(Serialize)]
struct Notification<'a> {
    task_id: &'a str,
    instance_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    execution_time: Option<f64>,
    /// As the executor wrote it. A result that is not JSON is left out: the client fetches it.
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
}

fn notification(instance: &str, done: &InstanceResult) -> serde_json::Result<Vec<u8>> {
    let (status, run, result, error) = match &done.stage {
        InstanceTaskState::Completed { result, run } => {
            let shown = serde_json::from_slice(result.bytes()).ok();
            (Some("completed"), Some(run), shown, None)
        }
        InstanceTaskState::Failed { error, run } => {
            (Some("failed"), Some(run), None, Some(error.as_str()))
        }
        InstanceTaskState::Queued | InstanceTaskState::Running => (None, None, None, None),
    };
    serde_json::to_vec(&Notification {
        task_id: &done.task_id,
        instance_id: instance,
        status,
        execution_time: run.map(|run| run.as_millis_f64()),
        result,
        error,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callback_has_the_result_as_it_is() {
        let body = |result: &str| {
            let result = Payload::from(result.as_bytes());
            let stage = InstanceTaskState::Completed { result, run: Span::from_millis(2) };
            let done = InstanceResult { task_id: "t".to_owned(), stage };
            String::from_utf8(notification("i", &done).unwrap()).unwrap()
        };
        let start = r#"{"task_id":"t","instance_id":"i","status":"completed","execution_time":2.0"#;
        let odd = r#"{"z": 18446744073709551616, "a": 1.10}"#;
        assert_eq!(body(odd), format!("{start},\"result\":{odd}}}"));
        assert_eq!(body("not JSON"), format!("{start}}}"));
    }

    /// Runs a task to its end.
    fn run(state: &mut InstanceState, name: &str, bytes: usize) {
        state.forget_result(name);
        state.fences += 1;
        let entry = TaskEntry { stage: InstanceTaskState::Running, callback: None, admitted: None };
        state.tasks.insert(name.to_owned(), entry);
        state.by_fence.insert(state.fences, name.to_owned());
        let result = TaskResult::of(Payload::from(vec![b'1'; bytes]));
        state.ended(Fence(state.fences), Span::from_secs(1), Outcome::Completed { result });
    }

    #[test]
    fn kept_results_are_bounded_in_number_and_bytes() {
        let mut state = InstanceState { max_done_bytes: 40_000, ..InstanceState::new() };
        let large = 10_000;
        for at in 0..10 {
            run(&mut state, &format!("large-{at}"), large);
        }
        assert_eq!((state.tasks.len(), state.done_bytes), (4, 4 * large));
        assert!(state.tasks.contains_key("large-9") && !state.tasks.contains_key("large-5"));
        for _ in 0..10 {
            run(&mut state, "again", large);
        }
        assert_eq!((state.tasks.len(), state.done_bytes), (4, 4 * large), "counted once");
        run(&mut state, "huge", 40_001);
        assert_eq!(state.tasks.len(), 1, "the latest is kept");
        for at in 0..2 * MAX_RESULTS {
            run(&mut state, &format!("small-{at}"), 1);
        }
        assert_eq!((state.tasks.len(), state.done.len()), (MAX_RESULTS, MAX_RESULTS));
        assert_eq!(state.done_bytes, MAX_RESULTS);
    }
}
