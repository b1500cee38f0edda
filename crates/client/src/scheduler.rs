//! The calls of a scheduler's API.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hypha_model::{JobId, Payload, TaskId, WorkerId};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::download::Download;
use crate::error::ClientError;
use crate::events::Events;
use crate::http::{Call, DEFAULT_RETRY_AFTER, ErrorDetail, Http, Options, sanitized};
use crate::jobs::{JobEvents, JobPage, JobState, JobStatus, Ledger, Market};
use crate::json::Json;
use crate::status::{Explanation, SchedulerStatus, TaskFilter, TaskPage};
use crate::task::Task;
use crate::task_status::TaskStatus;
use crate::workers::{DrainingWorker, ReadmittedWorker, WorkerList, WorkerStatus};

/// The longest time that one request asks the scheduler to wait. Longer waits are made of several: a proxy
/// may cut a connection that is silent for minutes.
pub const MAX_WAIT: Duration = Duration::from_secs(30);

/// Tasks in one request. The API accepts ten thousand; fewer keep a response small and the next request
/// early.
const MAX_BATCH: usize = 1_000;
/// Bytes of tasks in one request: well below the usual `max_request_size` of 10 MB.
const MAX_BATCH_BYTES: usize = 4 << 20;

/// A scheduler. Cheap to clone; clones share their connections.
#[derive(Clone)]
pub struct Scheduler {
    http: Arc<Http>,
}

impl Scheduler {
    /// The scheduler at `base_url`, such as `http://127.0.0.1:8080`. Nothing is sent before the first call.
    pub fn connect(base_url: &str, token: Option<&str>) -> Result<Scheduler, ClientError> {
        let token = token.map(str::to_owned);
        Scheduler::connect_with(base_url, Options { token, ..Options::default() })
    }

    /// The same with further settings.
    pub fn connect_with(base_url: &str, options: Options) -> Result<Scheduler, ClientError> {
        Ok(Scheduler { http: Arc::new(Http::new(base_url, options)?) })
    }

    /// The address, as messages show it.
    pub fn address(&self) -> &str {
        self.http.address()
    }

    /// Submits a task. It is durable when this returns.
    pub async fn submit_task(&self, task: Task) -> Result<TaskStatus, ClientError> {
        self.submit_and_wait(task, Duration::ZERO).await
    }

    /// Submits a task and waits for its end, in one request, at most [`MAX_WAIT`]: the status shows whether
    /// it has ended.
    pub async fn submit_and_wait(
        &self,
        mut task: Task,
        wait: Duration,
    ) -> Result<TaskStatus, ClientError> {
        let key = std::mem::take(&mut task.key);
        let body = task.into_json();
        let call = Call::post(vec!["tasks"], body, key.as_str());
        self.http.json(&call.with_wait(wait.min(MAX_WAIT))).await
    }

    /// Submits a task and streams its events from the beginning, in one request: no piece of its result is
    /// missed.
    pub async fn submit_and_follow(&self, mut task: Task) -> Result<Events, ClientError> {
        let key = std::mem::take(&mut task.key);
        let body = task.into_json();
        let call = Call::post(vec!["tasks"], body, key.as_str()).with_events();
        self.http.stream(&call).await.map(Events::new)
    }

    /// Submits tasks in as few requests as fit. Each has its own outcome, in their order. The tasks of one
    /// call are retried safely together: if all have keys, and the call is repeated with the same tasks in
    /// the same order, no task is created twice.
    pub async fn submit_tasks(&self, tasks: Vec<Task>) -> Vec<Result<TaskStatus, ClientError>> {
        let mut outcomes = Vec::with_capacity(tasks.len());
        let mut batch = Batch::default();
        for mut task in tasks {
            let key = std::mem::take(&mut task.key);
            let json = task.into_json();
            if !batch.has_room(json.len()) {
                outcomes.extend(self.submit_batch(std::mem::take(&mut batch)).await);
            }
            batch.push(&json, key.as_str());
        }
        outcomes.extend(self.submit_batch(batch).await);
        outcomes
    }

    /// A task in its present state.
    pub async fn task(&self, id: TaskId) -> Result<TaskStatus, ClientError> {
        self.fetch_task(id, Duration::ZERO).await
    }

    /// Waits until a task has ended, at most `timeout`: the status shows whether it has.
    pub async fn wait(&self, id: TaskId, timeout: Duration) -> Result<TaskStatus, ClientError> {
        let began = Instant::now();
        loop {
            let left = timeout.saturating_sub(began.elapsed());
            let task = self.fetch_task(id, left.min(MAX_WAIT)).await?;
            if task.has_ended() || left <= MAX_WAIT {
                return Ok(task);
            }
        }
    }

    /// The tasks that match `filter`, the latest first, page by page.
    pub fn tasks(&self, filter: TaskFilter) -> TaskPages {
        TaskPages { scheduler: self.clone(), filter, cursor: Cursor::Start }
    }

    /// Cancels a task. A task that has ended stays as it is.
    pub async fn cancel(&self, id: TaskId) -> Result<TaskStatus, ClientError> {
        self.http.json(&Call::delete(vec!["tasks", &id.to_string()])).await
    }

    /// The events of a task from now on, starting with its present state.
    pub async fn events(&self, id: TaskId) -> Result<Events, ClientError> {
        let id = id.to_string();
        self.http.stream(&Call::get(vec!["tasks", &id, "events"])).await.map(Events::new)
    }

    /// Why a task is on its worker, or why it waits.
    pub async fn explain(&self, id: TaskId) -> Result<Explanation, ClientError> {
        self.http.json(&Call::get(vec!["tasks", &id.to_string(), "explain"])).await
    }

    /// The bytes of a task's result, however large.
    pub async fn result(&self, id: TaskId) -> Result<Download, ClientError> {
        let id = id.to_string();
        self.http.stream(&Call::get(vec!["tasks", &id, "result"])).await.map(Download::new)
    }

    /// Submits a job, as JSON. It is durable when this returns. Not retried after a lost connection: a second submission
    /// would be a second job.
    pub async fn submit_job(&self, job: &Json) -> Result<JobStatus, ClientError> {
        self.http.json(&Call::post(vec!["jobs"], job.as_str().to_owned(), None)).await
    }

    /// A job with its members.
    pub async fn job(&self, id: JobId) -> Result<JobStatus, ClientError> {
        self.http.json(&Call::get(vec!["jobs", &id.to_string()])).await
    }

    /// Jobs, the latest first: those after `cursor`, at most `limit`.
    pub async fn jobs(
        &self,
        status: Option<JobState>,
        limit: usize,
        cursor: Option<String>,
    ) -> Result<JobPage, ClientError> {
        let call = Call::get(vec!["jobs"])
            .query("status", status.map(|status| status.to_string()))
            .query("limit", Some(limit.to_string()))
            .query("cursor", cursor);
        self.http.json(&call).await
    }

    /// Cancels a job. A job that has ended stays as it is.
    pub async fn cancel_job(&self, id: JobId) -> Result<JobStatus, ClientError> {
        self.http.json(&Call::delete(vec!["jobs", &id.to_string()])).await
    }

    /// The changes of a job from now on, starting with its present state.
    pub async fn job_events(&self, id: JobId) -> Result<JobEvents, ClientError> {
        let id = id.to_string();
        self.http.stream(&Call::get(vec!["jobs", &id, "events"])).await.map(JobEvents::new)
    }

    /// The market, with its events after a sequence.
    pub async fn market(&self, after: Option<u64>) -> Result<Market, ClientError> {
        let after = after.map(|after| after.to_string());
        self.http.json(&Call::get(vec!["market"]).query("after", after)).await
    }

    /// What was paid for leases.
    pub async fn ledger(&self) -> Result<Ledger, ClientError> {
        self.http.json(&Call::get(vec!["market", "ledger"])).await
    }

    /// The same as CSV.
    pub async fn ledger_csv(&self) -> Result<Download, ClientError> {
        let call = Call::get(vec!["market", "ledger"]).query("format", Some("csv".to_owned()));
        self.http.stream(&call).await.map(Download::new)
    }

    /// The workers that the scheduler uses.
    pub async fn workers(&self) -> Result<Vec<WorkerStatus>, ClientError> {
        Ok(self.worker_list().await?.workers)
    }

    /// The same with removed workers.
    pub async fn worker_list(&self) -> Result<WorkerList, ClientError> {
        self.http.json(&Call::get(vec!["workers"])).await
    }

    /// Drains a worker: it gets no new tasks, and is removed when its tasks have ended. A removed worker is
    /// not found.
    pub async fn drain_worker(&self, id: WorkerId) -> Result<DrainingWorker, ClientError> {
        self.http.json(&Call::delete(vec!["workers", &id.to_string()]).not_repeatable()).await
    }

    /// Readmits a removed worker, as soon as it is available. A worker that was not removed is not found.
    pub async fn readmit_worker(&self, id: WorkerId) -> Result<ReadmittedWorker, ClientError> {
        let id = id.to_string();
        self.http.json(&Call::put(vec!["workers", &id], String::new()).not_repeatable()).await
    }

    /// The scheduler's settings and statistics.
    pub async fn scheduler(&self) -> Result<SchedulerStatus, ClientError> {
        self.http.json(&Call::get(vec!["scheduler"])).await
    }

    /// Changes the strategy: a name such as `"predictive"`, or an object with `name` and its parameters.
    pub async fn set_strategy(&self, strategy: &Value) -> Result<SchedulerStatus, ClientError> {
        let body = json!({ "strategy": strategy }).to_string();
        self.http.json(&Call::put(vec!["scheduler"], body)).await
    }

    async fn fetch_task(&self, id: TaskId, wait: Duration) -> Result<TaskStatus, ClientError> {
        let id = id.to_string();
        self.http.json(&Call::get(vec!["tasks", &id]).with_wait(wait)).await
    }

    async fn submit_batch(&self, batch: Batch) -> Vec<Result<TaskStatus, ClientError>> {
        #[derive(Deserialize)]
        struct BatchResponse {
            tasks: Vec<Json>,
        }
        let expected = batch.tasks;
        if expected == 0 {
            return Vec::new();
        }
        let (body, key) = batch.into_body();
        let call = Call::post(vec!["tasks"], body, key.as_deref());
        let outcome = match self.http.json_with_outcomes::<BatchResponse>(&call).await {
            Ok(answer) if answer.tasks.len() == expected => Ok(answer.tasks),
            Ok(answer) => {
                let got = answer.tasks.len();
                Err(self.http.malformed(&format!("{got} outcomes for {expected} tasks")))
            }
            Err(error) => Err(error),
        };
        match outcome {
            Ok(tasks) => tasks.iter().map(|task| self.outcome(task)).collect(),
            Err(error) => vec![Err(error); expected],
        }
    }

    /// One element of the response to a batch: a task, or why it was refused.
    fn outcome(&self, json: &Json) -> Result<TaskStatus, ClientError> {
        #[derive(Deserialize)]
        struct Refused {
            error: ErrorDetail,
        }
        // A task that has failed has an error, too.
        let refused: Refused = match serde_json::from_str::<TaskStatus>(json.as_str()) {
            Ok(task) => return Ok(task),
            Err(error) => json.read().ok_or_else(|| self.http.malformed(&error))?,
        };
        let (code, message) = (sanitized(&refused.error.code), sanitized(&refused.error.message));
        // Within a batch only the code shows what the status would have been.
        Err(match code.as_str() {
            "too_many_tasks" | "unavailable" | "no_worker" => {
                ClientError::Busy { retry_after: DEFAULT_RETRY_AFTER, message }
            }
            "conflict" => ClientError::Refused { status: 409, code, message },
            _ => ClientError::Refused { status: 422, code, message },
        })
    }
}

/// Tasks for one request.
#[derive(Default)]
struct Batch {
    tasks: usize,
    json: String,
    keys: String,
    has_task_without_key: bool,
}

impl Batch {
    fn has_room(&self, bytes: usize) -> bool {
        self.tasks == 0
            || (self.tasks < MAX_BATCH && self.json.len() + bytes + 2 <= MAX_BATCH_BYTES)
    }

    fn push(&mut self, json: &str, key: Option<&str>) {
        self.json.push(if self.tasks == 0 { '[' } else { ',' });
        self.json.push_str(json);
        self.tasks += 1;
        match key {
            Some(key) => {
                self.keys.push_str(key);
                self.keys.push('\n');
            }
            None => self.has_task_without_key = true,
        }
    }

    /// A request has one key, and its tasks are numbered under it: it is derived from all of theirs, so that
    /// the same tasks in the same order have the same key.
    fn into_body(mut self) -> (String, Option<String>) {
        self.json.push(']');
        let key = Payload::from(self.keys.into_bytes()).digest().to_string();
        (self.json, (!self.has_task_without_key).then_some(key))
    }
}

/// Pages of tasks, each requested when it is needed.
pub struct TaskPages {
    scheduler: Scheduler,
    filter: TaskFilter,
    cursor: Cursor,
}

enum Cursor {
    Start,
    At(String),
    End,
}

impl TaskPages {
    /// The next page; `None` after the last. A page may be empty although more follow.
    pub async fn next(&mut self) -> Result<Option<TaskPage>, ClientError> {
        let cursor = match &self.cursor {
            Cursor::Start => None,
            Cursor::At(cursor) => Some(cursor.clone()),
            Cursor::End => return Ok(None),
        };
        let filter = &self.filter;
        let call = Call::get(vec!["tasks"])
            .query("status", filter.status.map(|status| status.to_string()))
            .query("model", filter.model.clone())
            .query("worker", filter.worker.map(|worker| worker.to_string()))
            .query("since", filter.since.map(|since| format!("{:.3}", since.as_secs_f64())))
            .query("limit", filter.limit.map(|limit| limit.to_string()))
            .query("cursor", cursor);
        let page: TaskPage = self.scheduler.http.json(&call).await?;
        self.cursor = page.next.clone().map_or(Cursor::End, Cursor::At);
        Ok(Some(page))
    }
}
