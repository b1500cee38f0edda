//! Runs of a task instance: each is handed over, and then waited for until the instance notifies or a poll finds its
//! result.
//!
//! An instance cannot cancel: a run that was stopped keeps its place there until it is over.

mod protocol;

use std::sync::Arc;
use std::time::Duration;

use hypha_engine::{FromWorker, Outcome, RunId, WorkerEvent};
use hypha_model::{FailureKind, TaskError, Worker};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use self::protocol::{EnqueueError, Fetched, Instance, Verdict};
use super::HttpSettings;
use super::carrier::{Ended, HttpCarrier, Notified, RunContext};
use super::secrets::{Place, Registered, Secrets};
use crate::transport::{HttpError, Origin};

pub(super) use self::protocol::{Report, probe};

/// A task that runs is polled for after a quarter of the time that it has run: late by that at most.
const POLL_SHARE: u32 = 4;
/// Polls are never closer together than this, whatever is configured.
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Polls are never further apart than this, unless it is configured.
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(30);
/// Notifications that prove nothing make us poll for a task no more often than this.
const HINT_INTERVAL: Duration = Duration::from_millis(100);

/// A task instance that does the work of a worker.
pub(super) struct InstanceBackend {
    instance: Instance,
    health_timeout: Duration,
    poll_interval: Duration,
    secrets: Arc<Secrets>,
    /// What the instance calls itself: another one has forgotten what this one had.
    name: watch::Sender<Option<String>>,
}

impl InstanceBackend {
    pub(super) fn new(
        origin: Arc<Origin>,
        settings: &HttpSettings,
        secrets: Arc<Secrets>,
    ) -> InstanceBackend {
        InstanceBackend {
            instance: Instance {
                origin,
                public_url: settings.public_url.clone(),
                within: settings.call_timeout,
                limit_bytes: settings.max_response_bytes,
            },
            health_timeout: settings.health_timeout,
            poll_interval: settings.poll_interval.max(MIN_POLL_INTERVAL),
            secrets,
            name: watch::Sender::new(None),
        }
    }

    pub(super) async fn check(&self, worker: &Worker) -> Result<(), HttpError> {
        let status = probe(&self.instance.origin, self.health_timeout).await?;
        let problem = status.problem().or_else(|| status.another_model(worker));
        if let Some(problem) = problem {
            return Err(HttpError::Unhealthy(problem));
        }
        if status.instance.is_some() {
            self.name.send_if_modified(|name| {
                let changed = *name != status.instance;
                name.clone_from(&status.instance);
                changed
            });
        }
        Ok(())
    }

    pub(super) fn close_kept(&self) {
        self.instance.origin.close_kept();
    }

    pub(super) async fn run(&self, run: RunId, context: RunContext) -> Ended {
        let (worker, fence) = (context.carrier.carrier().worker.id, context.dispatch.fence);
        let place = Place { worker, fence };
        let task = context.dispatch.attempt.task.to_string();
        // Known before it is handed over: the instance may be done before its answer is here.
        let secret = self.secrets.register(place, &task);
        InstanceRun { backend: self, id: task, secret, run, context }.finish().await
    }
}

struct InstanceRun<'a> {
    backend: &'a InstanceBackend,
    /// The id that the instance has for the task.
    id: String,
    secret: Registered,
    run: RunId,
    context: RunContext,
}

impl InstanceRun<'_> {
    async fn finish(mut self) -> Ended {
        let names = self.backend.name.subscribe();
        let carrier = Arc::clone(&self.context.carrier);
        let handed_over = Instant::now();
        let timeout = Duration::from_micros(self.context.dispatch.timeout.as_micros());
        let ends = handed_over.checked_add(timeout);
        if self.context.stop.is_cancelled() {
            return Ended::Outcome(stopped(), None);
        }
        let is_there = match self.context.dispatch.resume.clone() {
            Some(handle) => self.find(&handle).await,
            None => None,
        };
        match is_there {
            Some(Found::Ended(ended)) => {
                self.say_started(carrier.carrier());
                return ended;
            }
            Some(Found::Running) => {}
            None => match self.hand_over().await {
                Ok(None) => {}
                Ok(Some(ended)) => {
                    self.say_started(carrier.carrier());
                    return ended;
                }
                Err(ended) => return ended,
            },
        }
        self.say_started(carrier.carrier());
        let handle = Arc::from(self.id.as_str());
        carrier.tell([WorkerEvent::Delegated { id: self.run, handle }]);
        let waiting = self.wait(handed_over, names);
        match ends {
            Some(ends) => tokio::time::timeout_at(ends, waiting)
                .await
                .unwrap_or(Ended::Outcome(Outcome::TimedOut, None)),
            None => waiting.await,
        }
    }

    /// Looks for a task that was handed over before the scheduler was restarted. An instance that knows nothing of it
    /// is given it again; one that does not answer now is asked again later.
    async fn find(&mut self, handle: &str) -> Option<Found> {
        match self.backend.instance.fetch(handle).await {
            Ok(Fetched::Unknown) => return None,
            Ok(Fetched::Report(report)) => {
                if let Some(ended) = ended_by(report.verdict()) {
                    return Some(Found::Ended(ended));
                }
            }
            Err(_) => {}
        }
        if self.id != handle {
            self.secret.also_known_as(handle);
            handle.clone_into(&mut self.id);
        }
        Some(Found::Running)
    }

    /// Hands the task over. A fast instance may have notified of its end before it answers.
    async fn hand_over(&mut self) -> Result<Option<Ended>, Ended> {
        let (dispatch, secret) = (Arc::clone(&self.context.dispatch), self.secret.shown());
        let instance = self.backend.instance.clone();
        let enqueuing = instance.enqueue(&dispatch, &secret);
        tokio::pin!(enqueuing);
        let own_id = loop {
            tokio::select! {
                biased;
                Some(notified) = self.context.notified.recv() => {
                    if let Some(ended) = notified.and_then(|report| ended_by(report.verdict())) {
                        return Ok(Some(ended));
                    }
                }
                enqueued = &mut enqueuing => break enqueued,
            }
        };
        match own_id {
            Ok(own_id) => {
                if let Some(id) = own_id.filter(|id| *id != self.id) {
                    self.secret.also_known_as(&id);
                    self.id = id;
                }
                Ok(None)
            }
            Err(EnqueueError::Busy) => Err(Ended::Declined),
            Err(EnqueueError::Failed { outcome, silent }) => {
                if let Some(error) = silent {
                    // What waits behind it would only wait for the same.
                    self.context.carrier.carrier().not_reached(&error);
                }
                Err(Ended::Outcome(outcome, None))
            }
        }
    }

    fn say_started(&self, carrier: &HttpCarrier) {
        let (attempt, fence) = (self.context.dispatch.attempt, self.context.dispatch.fence);
        carrier.say(FromWorker::Started { attempt, fence });
    }

    /// Waits until the task is over.
    async fn wait(
        &mut self,
        handed_over: Instant,
        mut names: watch::Receiver<Option<String>>,
    ) -> Ended {
        let name = names.borrow_and_update().clone();
        let interval = self.backend.poll_interval;
        let mut poll_at = handed_over + interval;
        let mut polled: Option<Instant> = None;
        loop {
            tokio::select! {
                biased;
                notified = self.context.notified.recv() => match notified {
                    Some(notified) => match said(notified) {
                        Said::Ended(ended) => return ended,
                        Said::LookNow => poll_at = Instant::now(),
                        Said::Look => {
                            let soonest = polled.map(|last| last + HINT_INTERVAL);
                            poll_at = poll_at.min(soonest.unwrap_or_else(Instant::now));
                        }
                    },
                    None => return Ended::Outcome(stopped(), None),
                },
                Ok(()) = names.changed() => {
                    let now = names.borrow_and_update().clone();
                    if name.is_some() && now != name {
                        return Ended::Outcome(lost(), None);
                    }
                }
                () = sleep_until(poll_at) => {
                    if let Some(ended) = self.poll().await {
                        return ended;
                    }
                    let now = Instant::now();
                    polled = Some(now);
                    let pause = now.duration_since(handed_over) / POLL_SHARE;
                    poll_at = now + pause.clamp(interval, MAX_POLL_INTERVAL.max(interval));
                }
            }
        }
    }

    async fn poll(&self) -> Option<Ended> {
        match self.backend.instance.fetch(&self.id).await {
            Ok(Fetched::Report(report)) => ended_by(report.verdict()),
            Err(error @ HttpError::TooLarge { .. }) => {
                let outcome = Outcome::Failed(error.into());
                Some(Ended::Outcome(outcome, None))
            }
            // Whether it is still there is for the health checks to find out.
            Ok(Fetched::Unknown) | Err(_) => None,
        }
    }
}

/// What became of a task that was handed over before.
enum Found {
    Running,
    Ended(Ended),
}

/// What a notification means.
enum Said {
    Ended(Ended),
    LookNow,
    Look,
}

fn said(notified: Notified) -> Said {
    match notified.map(|report| report.verdict()) {
        Some(Verdict::Ended { outcome, run }) => Said::Ended(Ended::Outcome(outcome, run)),
        Some(Verdict::NoResult) => Said::LookNow,
        Some(Verdict::NotYet) | None => Said::Look,
    }
}

fn ended_by(verdict: Verdict) -> Option<Ended> {
    match verdict {
        Verdict::Ended { outcome, run } => Some(Ended::Outcome(outcome, run)),
        Verdict::NoResult | Verdict::NotYet => None,
    }
}

fn lost() -> Outcome {
    let error = "the task instance was started anew and has lost the task";
    Outcome::Failed(TaskError::new(FailureKind::BackendFailed, error))
}

fn stopped() -> Outcome {
    Outcome::Failed(TaskError::new(FailureKind::WorkerFailed, "the run was stopped"))
}
