//! Runs of a task instance. What each does next is decided by [`InstanceRun`]; here are the calls and the timers.

mod protocol;

use std::sync::Arc;
use std::time::Duration;

use hypha_engine::back_end::{
    Enqueued, InstanceHandle, InstanceRun, Next, Progress, RunEnd, RunSettings,
};
use hypha_engine::{FromWorker, RunId, WorkerEvent};
use hypha_model::{Span, Time, Worker};
use tokio::sync::watch;
use tokio::time::timeout;

use self::protocol::{Answer, Instance};
use super::HttpSettings;
use super::carrier::{HttpCarrier, RunContext};
use super::secrets::{Place, Registered, Secrets};
use crate::transport::{HttpError, Origin};

pub(super) use self::protocol::{Report, probe};

/// The part of an instance's name that is looked at: the scheduler stores it with each attempt there.
const MAX_NAME_CHARS: usize = 128;

/// A task instance that does the work of a worker.
pub(super) struct InstanceBackend {
    instance: Instance,
    health_timeout: Duration,
    poll_interval: Duration,
    secrets: Arc<Secrets>,
    /// What the instance calls itself.
    name: watch::Sender<Option<Arc<str>>>,
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
            poll_interval: settings.poll_interval,
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

    pub(super) fn close_kept(&self) {
        self.instance.origin.close_kept();
    }

    pub(super) async fn run(&self, run: RunId, context: RunContext) -> RunEnd {
        if context.stop.is_cancelled() {
            return RunEnd::Declined;
        }
        let (worker, fence) = (context.carrier.carrier().worker.id, context.dispatch.fence);
        let task = context.dispatch.attempt.task.to_string();
        // Known before it is handed over: the instance may be done before its answer is here.
        let mut secret = self.secrets.register(Place { worker, fence }, &task);
        let resume = context.dispatch.resume.as_deref().map(InstanceHandle::of_text);
        if let Some(resume) = resume.as_ref().filter(|resume| *resume.id != *task) {
            secret.also_known_as(&resume.id);
        }
        let mut names = self.name.subscribe();
        let name = names.borrow_and_update().clone();
        let settings = RunSettings {
            timeout: context.dispatch.timeout,
            poll_interval: span(self.poll_interval),
        };
        let now = hypha_driver::Carrier::now(context.carrier.carrier());
        let (decides, next) = InstanceRun::new(task.into(), resume, name, settings, now);
        Runner { backend: self, decides, secret, run, names, context }.finish(next).await
    }
}

struct Runner<'a> {
    backend: &'a InstanceBackend,
    decides: InstanceRun,
    secret: Registered,
    run: RunId,
    names: watch::Receiver<Option<Arc<str>>>,
    context: RunContext,
}

impl Runner<'_> {
    async fn finish(mut self, mut next: Next) -> RunEnd {
        loop {
            self.tell_progress();
            next = match next {
                Next::HandOver => match self.carrier().unused() {
                    Some(unused) => Next::End(unused),
                    None => self.hand_over().await,
                },
                Next::Fetch(id) => {
                    let fetching = self.backend.instance.fetch(&id);
                    let left = until(self.decides.ends(), self.now());
                    match timeout(left, fetching).await {
                        Ok(fetched) => self.decides.fetched(self.now(), fetched),
                        Err(_) => self.decides.woke(self.now()),
                    }
                }
                Next::Wait(at) => self.wait(at).await,
                Next::End(end) => return end,
            };
        }
    }

    /// Hands the task over. A fast instance may have notified of its end before it answers.
    async fn hand_over(&mut self) -> Next {
        let (dispatch, secret) = (Arc::clone(&self.context.dispatch), self.secret.shown());
        let instance = self.backend.instance.clone();
        let enqueuing = instance.enqueue(&dispatch, &secret);
        tokio::pin!(enqueuing);
        let Answer { enqueued, silent } = loop {
            tokio::select! {
                biased;
                Some(notified) = self.context.notified.recv() => {
                    let report = notified.map(|report| report.verdict());
                    if let Some(next) = self.decides.notified(self.now(), report) {
                        return next;
                    }
                }
                enqueued = &mut enqueuing => break enqueued,
            }
        };
        if let Some(error) = silent {
            // What waits behind it would only wait for the same.
            self.carrier().not_reached(&error);
        }
        if let Enqueued::Taken(Some(id)) = &enqueued
            && id != self.decides.id()
        {
            self.secret.also_known_as(id);
        }
        self.decides.enqueued(self.now(), enqueued)
    }

    /// Waits for news until then.
    async fn wait(&mut self, at: Time) -> Next {
        let sleep = tokio::time::sleep(until(at, self.now()));
        tokio::pin!(sleep);
        loop {
            let next = tokio::select! {
                biased;
                notified = self.context.notified.recv() => match notified {
                    Some(notified) => {
                        let report = notified.map(|report| report.verdict());
                        self.decides.notified(self.now(), report)
                    }
                    None => return Next::End(RunEnd::Declined),
                },
                Ok(()) = self.names.changed() => {
                    let name = self.names.borrow_and_update().clone();
                    name.and_then(|name| self.decides.seen(&name))
                }
                () = &mut sleep => Some(self.decides.woke(self.now())),
            };
            if let Some(next) = next {
                return next;
            }
        }
    }

    fn tell_progress(&mut self) {
        let Some(progress) = self.decides.take_progress() else { return };
        let (attempt, fence) = (self.context.dispatch.attempt, self.context.dispatch.fence);
        self.carrier().say(FromWorker::Started { attempt, fence });
        if let Progress::Delegated(handle) = progress {
            let handle = handle.to_text();
            self.context.carrier.tell([WorkerEvent::Delegated { id: self.run, handle }]);
        }
    }

    fn carrier(&self) -> &HttpCarrier {
        self.context.carrier.carrier()
    }

    fn now(&self) -> Time {
        hypha_driver::Carrier::now(self.carrier())
    }
}

fn span(duration: Duration) -> Span {
    Span::from_micros(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX))
}

/// How long it is until then; a timer may be a little early, so a little more.
fn until(at: Time, now: Time) -> Duration {
    Duration::from_micros(at.since(now).as_micros().saturating_add(1))
}
