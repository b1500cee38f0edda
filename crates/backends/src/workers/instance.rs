//! Runs at a task instance. [`InstanceRun`] decides what each does next; this module has the calls and the timers.

mod protocol;

use std::sync::Arc;
use std::time::Duration;

use hypha_engine::back_end::{
    EnqueueOutcome, InstanceHandle, InstanceRun, NextAction, RunEnd, RunSettings, RunUpdate,
};
use hypha_engine::{FromWorker, RunId, WorkerEvent};
use hypha_model::{Span, Time, Worker};
use tokio::sync::watch;
use tokio::time::timeout;

use self::protocol::{EnqueueResponse, InstanceClient};
use super::HttpSettings;
use super::effects::{HttpEffectHandler, RunContext};
use super::secrets::{AttemptKey, AttemptSecret, Secrets};
use crate::transport::{HttpError, Origin};

pub(super) use self::protocol::{InstanceReport, probe};

/// Longer names of instances are truncated: the scheduler stores the name with each attempt there.
const MAX_NAME_CHARS: usize = 128;

/// A task instance that runs the tasks of a worker.
pub(super) struct InstanceBackEnd {
    instance: InstanceClient,
    health_timeout: Duration,
    poll_interval: Duration,
    secrets: Arc<Secrets>,
    /// The name that the instance reports.
    name: watch::Sender<Option<Arc<str>>>,
}

impl InstanceBackEnd {
    pub(super) fn new(
        origin: Arc<Origin>,
        settings: &HttpSettings,
        secrets: Arc<Secrets>,
    ) -> InstanceBackEnd {
        InstanceBackEnd {
            instance: InstanceClient {
                origin,
                public_url: settings.public_url.clone(),
                timeout: settings.call_timeout,
                limit_bytes: settings.max_response_bytes,
                is_submit: Arc::default(),
            },
            health_timeout: settings.health_timeout,
            poll_interval: settings.poll_interval,
            secrets,
            name: watch::Sender::new(None),
        }
    }

    pub(super) async fn check(&self, worker: &Worker) -> Result<(), HttpError> {
        let status = probe(&self.instance.origin, self.health_timeout).await?;
        let problem = status.problem().or_else(|| status.model_mismatch(worker));
        if let Some(problem) = problem {
            return Err(HttpError::Unhealthy(problem));
        }
        if let Some(instance) = status.instance {
            let instance: String = instance.chars().take(MAX_NAME_CHARS).collect();
            self.name.send_if_modified(|name| {
                let changed = name.as_deref() != Some(instance.as_str());
                *name = Some(Arc::from(instance));
                changed
            });
        }
        Ok(())
    }

    pub(super) fn close_idle(&self) {
        self.instance.origin.close_idle();
    }

    pub(super) async fn run(&self, run: RunId, context: RunContext) -> RunEnd {
        if context.stop.is_cancelled() {
            return RunEnd::Declined;
        }
        let (worker, fence) = (context.machine.handler().worker.id, context.dispatch.fence);
        let task = context.dispatch.attempt.task.to_string();
        // Registered before the task is enqueued: the instance may be done before its response arrives.
        let mut secret = self.secrets.register(AttemptKey { worker, fence }, &task);
        let resume = context.dispatch.resume.as_deref().map(InstanceHandle::from_text);
        if let Some(resume) = resume.as_ref().filter(|resume| *resume.id != *task) {
            secret.add_task_name(&resume.id);
        }
        let mut names = self.name.subscribe();
        let name = names.borrow_and_update().clone();
        let settings = RunSettings {
            timeout: context.dispatch.timeout,
            poll_interval: span(self.poll_interval),
        };
        let now = hypha_driver::EffectHandler::now(context.machine.handler());
        let (run_state, next) = InstanceRun::new(task.into(), resume, name, settings, now);
        InstanceRunner { backend: self, run_state, secret, run, names, context }.finish(next).await
    }
}

struct InstanceRunner<'a> {
    backend: &'a InstanceBackEnd,
    run_state: InstanceRun,
    secret: AttemptSecret,
    run: RunId,
    names: watch::Receiver<Option<Arc<str>>>,
    context: RunContext,
}

impl InstanceRunner<'_> {
    async fn finish(mut self, mut next: NextAction) -> RunEnd {
        loop {
            self.report_progress();
            next = match next {
                NextAction::HandOver => match self.handler().unavailable() {
                    Some(unavailable) => NextAction::End(unavailable),
                    None => self.enqueue().await,
                },
                NextAction::Fetch(id) => {
                    let fetching = self.backend.instance.fetch(&id);
                    let left = until(self.run_state.ends(), self.now());
                    match timeout(left, fetching).await {
                        Ok(fetched) => self.run_state.fetched(self.now(), fetched),
                        Err(_) => self.run_state.woke(self.now()),
                    }
                }
                NextAction::Wait(at) => self.wait(at).await,
                NextAction::End(end) => return end,
            };
        }
    }

    /// Enqueues the task. A fast instance may send the notification of its end before the response.
    async fn enqueue(&mut self) -> NextAction {
        let (dispatch, secret) = (Arc::clone(&self.context.dispatch), self.secret.to_hex());
        let instance = self.backend.instance.clone();
        let worker = Arc::clone(&self.handler().worker);
        let model = dispatch.spec.requirement.model.as_ref();
        let model = model.or_else(|| worker.executors.first()?.models.first());
        let enqueuing = instance.enqueue(&dispatch, model, &secret);
        tokio::pin!(enqueuing);
        let EnqueueResponse { enqueued, unreachable } = loop {
            tokio::select! {
                biased;
                Some(notified) = self.context.next_notified() => {
                    let report = notified.map(|report| report.verdict());
                    if let Some(next) = self.run_state.notified(self.now(), report) {
                        return next;
                    }
                }
                enqueued = &mut enqueuing => break enqueued,
            }
        };
        if let Some(error) = unreachable {
            // Tasks that are queued behind it would only wait for the same timeout.
            self.handler().mark_unreachable(&error);
        }
        if let EnqueueOutcome::Accepted(Some(id)) = &enqueued
            && id != self.run_state.id()
        {
            self.secret.add_task_name(id);
        }
        self.run_state.enqueued(self.now(), enqueued)
    }

    /// Waits for a notification or a change of the instance's name until `at`.
    async fn wait(&mut self, at: Time) -> NextAction {
        let sleep = tokio::time::sleep(until(at, self.now()));
        tokio::pin!(sleep);
        loop {
            let next = tokio::select! {
                biased;
                notified = self.context.next_notified() => match notified {
                    Some(notified) => {
                        let report = notified.map(|report| report.verdict());
                        self.run_state.notified(self.now(), report)
                    }
                    None => return NextAction::End(RunEnd::Declined),
                },
                Ok(()) = self.names.changed() => {
                    let name = self.names.borrow_and_update().clone();
                    name.and_then(|name| self.run_state.instance_seen(&name))
                }
                () = &mut sleep => Some(self.run_state.woke(self.now())),
            };
            if let Some(next) = next {
                return next;
            }
        }
    }

    fn report_progress(&mut self) {
        let Some(progress) = self.run_state.take_update() else { return };
        let (attempt, fence) = (self.context.dispatch.attempt, self.context.dispatch.fence);
        self.handler().send_to_scheduler(FromWorker::Started { attempt, fence });
        if let RunUpdate::Delegated(handle) = progress {
            let handle = handle.to_text();
            self.context.machine.step_events([WorkerEvent::Delegated { id: self.run, handle }]);
        }
    }

    fn handler(&self) -> &HttpEffectHandler {
        self.context.machine.handler()
    }

    fn now(&self) -> Time {
        hypha_driver::EffectHandler::now(self.handler())
    }
}

fn span(duration: Duration) -> Span {
    Span::from_micros(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX))
}

/// The time from `now` to `at`, plus a microsecond, because a timer may fire a little early.
fn until(at: Time, now: Time) -> Duration {
    Duration::from_micros(at.since(now).as_micros().saturating_add(1))
}
