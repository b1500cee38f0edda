//! A task instance as a worker: one task that hands it work, and learns from it what became of it.
//!
//! What the instance has and how far that is stands in [`Line`]; this file moves messages and requests.

mod line;
mod protocol;

use std::sync::Arc;
use std::time::{Duration, Instant};

use hypha_engine::{Dispatch, FromWorker, Outcome, ToWorker};
use hypha_model::{Epoch, Fence, LeaseId, Refusal, RefusalKind, Span, Worker};
use tokio::sync::mpsc::Receiver;
use tokio::task::{AbortHandle, JoinSet};

use self::line::{Line, Place, Verdict};
use self::protocol::{EnqueueError, Fetched, Instance};
use super::secrets::Secrets;
use super::server::new_lease;
use super::{Hear, HttpSettings, MAX_UNRECORDED, MAX_WAITING_PER_SLOT};
use crate::transport::{HttpError, Origin};

pub(super) use self::protocol::{Report, probe};

/// Messages that wait for an instance's task: it only waits for the scheduler to hear its answers, so more
/// means that the scheduler is behind.
pub(super) const INBOX: usize = 1_024;

/// What the task of an instance needs.
pub(super) struct Context {
    pub(super) worker: Arc<Worker>,
    pub(super) origin: Arc<Origin>,
    pub(super) hear: Hear,
    pub(super) epoch: Epoch,
    pub(super) secrets: Arc<Secrets>,
    pub(super) settings: HttpSettings,
}

/// What arrives for an instance.
pub(super) enum Input {
    /// From the scheduler.
    Said(ToWorker),
    /// From the instance, or from somebody who says so: with a report if that was proven.
    Notified { fence: Fence, report: Option<Box<Report>> },
}

/// Serves the instance until nobody can send to it any more.
pub(super) async fn run(context: Context, mut inbox: Receiver<Input>) {
    let mut hand = Hand::new(context);
    loop {
        let due = hand.line.due().unwrap_or_else(|| Instant::now() + LONG);
        tokio::select! {
            input = inbox.recv() => match input {
                Some(Input::Said(message)) => hand.take(message),
                Some(Input::Notified { fence, report }) => hand.notified(fence, report),
                None => return,
            },
            Some(done) = hand.requests.join_next(), if !hand.requests.is_empty() => {
                if let Ok(done) = done {
                    hand.done(done);
                }
            }
            () = tokio::time::sleep_until(due.into()) => {}
        }
        hand.carry_on();
        let id = hand.context.worker.id;
        for message in hand.answers.drain(..) {
            (hand.context.hear)(id, message);
        }
    }
}

/// How long to sleep when nothing is due.
const LONG: Duration = Duration::from_secs(3_600);

struct Hand {
    instance: Instance,
    line: Line,
    lease: Option<LeaseId>,
    /// What the instance called itself last: another one has forgotten what this one had.
    called: Option<String>,
    requests: JoinSet<Done>,
    check: Option<AbortHandle>,
    answers: Vec<FromWorker>,
    context: Context,
}

/// A request has been answered, or will not be.
enum Done {
    Checked { check: Check, result: Result<protocol::Status, HttpError> },
    Enqueued { fence: Fence, result: Result<Option<String>, EnqueueError> },
    Fetched { fence: Fence, result: Result<Fetched, HttpError> },
}

/// What a look at the instance's health is for.
#[derive(Clone, Copy)]
enum Check {
    Lease { request: u64, ttl: Span },
    Beat { lease: LeaseId, nonce: u64 },
}

impl Hand {
    fn new(context: Context) -> Hand {
        let slots = context.worker.concurrency() as usize;
        let instance = Instance {
            origin: Arc::clone(&context.origin),
            public_url: context.settings.public_url.clone(),
            within: context.settings.call_timeout,
            limit_bytes: context.settings.max_response_bytes,
        };
        Hand {
            instance,
            line: Line::new(slots, context.settings.poll_interval),
            lease: None,
            called: None,
            requests: JoinSet::new(),
            check: None,
            answers: Vec::new(),
            context,
        }
    }

    fn take(&mut self, message: ToWorker) {
        match message {
            ToWorker::RequestLease { request, ttl } => self.check(Check::Lease { request, ttl }),
            ToWorker::Heartbeat { lease, epoch, nonce } => match self.holds(lease, epoch) {
                true => self.check(Check::Beat { lease, nonce }),
                false => self.answers.push(FromWorker::LeaseUnknown { lease, epoch }),
            },
            ToWorker::Dispatch(dispatch) => self.dispatched(dispatch),
            ToWorker::Cancel { fence, .. } => self.line.cancel(fence),
            ToWorker::Recorded { fence, .. } => self.line.recorded(fence),
            ToWorker::ReleaseLease { lease, epoch } => {
                if self.holds(lease, epoch) {
                    self.lease = None;
                    self.line.cancel_all();
                    self.context.origin.close_kept();
                }
            }
        }
    }

    fn holds(&self, lease: LeaseId, epoch: Epoch) -> bool {
        epoch == self.context.epoch && self.lease == Some(lease)
    }

    fn check(&mut self, check: Check) {
        let origin = Arc::clone(&self.context.origin);
        let within = self.context.settings.health_timeout;
        let looking = self.requests.spawn(async move {
            let result = probe(&origin, within).await;
            Done::Checked { check, result }
        });
        // The scheduler counts on the answer to its last question only.
        if let Some(old) = self.check.replace(looking) {
            old.abort();
        }
    }

    fn dispatched(&mut self, dispatch: Arc<Dispatch>) {
        let (attempt, fence) = (dispatch.attempt, dispatch.fence);
        if self.line.has(fence) {
            return self.answers.extend(self.line.again(fence));
        }
        if !self.holds(dispatch.lease, dispatch.epoch) {
            let (lease, epoch) = (dispatch.lease, dispatch.epoch);
            return self.answers.push(FromWorker::LeaseUnknown { lease, epoch });
        }
        let worker = &self.context.worker;
        let slots = worker.concurrency() as usize;
        let full = self.line.open() >= slots.saturating_mul(1 + MAX_WAITING_PER_SLOT)
            || self.line.unrecorded() >= MAX_UNRECORDED;
        let refusal = match dispatch.spec.requirement.satisfied_by(worker) {
            Ok(()) => full.then_some(Refusal::plain(RefusalKind::Busy)),
            Err(refusal) => Some(refusal),
        };
        match refusal {
            Some(refusal) => self.answers.push(FromWorker::Refused { attempt, fence, refusal }),
            None => {
                // Known before it is handed over: the instance may be done before its answer is here.
                let place = super::secrets::Place { worker: worker.id, fence };
                let task = attempt.task.to_string();
                let secret = self.context.secrets.register(place, &task);
                self.line.push(dispatch, secret);
            }
        }
    }

    fn notified(&mut self, fence: Fence, report: Option<Box<Report>>) {
        let now = Instant::now();
        match report.map(|report| report.verdict()) {
            Some(Verdict::Ended { outcome, execution }) => {
                self.line.ended(fence, outcome, execution, now, &mut self.answers);
            }
            Some(Verdict::NoResult) => self.line.poll_now(fence, now, true),
            Some(Verdict::NotYet) | None => self.line.poll_now(fence, now, false),
        }
    }

    fn done(&mut self, done: Done) {
        let now = Instant::now();
        match done {
            Done::Checked { check, result } => self.checked(check, result),
            Done::Enqueued { fence, result } => match result {
                Ok(own_id) => self.line.enqueued(fence, own_id, now, &mut self.answers),
                Err(EnqueueError::Busy) => {
                    self.line.refused(fence, &mut self.answers);
                }
                Err(EnqueueError::Failed { outcome, silent }) => {
                    self.line.enqueue_over(fence);
                    self.line.ended(fence, outcome.clone(), None, now, &mut self.answers);
                    if silent {
                        // What waits behind it would only wait for the same.
                        for fence in self.line.not_handed_over() {
                            self.line.ended(fence, outcome.clone(), None, now, &mut self.answers);
                        }
                    }
                }
            },
            Done::Fetched { fence, result } => {
                let verdict = match result {
                    Ok(Fetched::Report(report)) => report.verdict(),
                    Ok(Fetched::Unknown) => Verdict::NotYet,
                    Err(error @ HttpError::TooLarge { .. }) => {
                        let outcome = Outcome::Failed { error: error.to_string(), retry: false };
                        Verdict::Ended { outcome, execution: None }
                    }
                    // Whether it is still there is for the heartbeats to find out.
                    Err(_) => Verdict::NotYet,
                };
                match verdict {
                    Verdict::Ended { outcome, execution } => {
                        self.line.ended(fence, outcome, execution, now, &mut self.answers);
                    }
                    Verdict::NotYet | Verdict::NoResult => self.line.polled(fence, now),
                }
            }
        }
    }

    fn checked(&mut self, check: Check, result: Result<protocol::Status, HttpError>) {
        let problem = match result {
            Ok(status) => {
                let problem = status.problem().or_else(|| self.another_model(&status));
                if problem.is_none() {
                    self.meet(status.instance);
                }
                problem
            }
            Err(error) => Some(error.to_string()),
        };
        if let Some(problem) = &problem {
            tracing::debug!(worker = %self.context.worker.id, problem, "task instance not well");
        }
        let (epoch, holding) = (self.context.epoch, self.line.holding());
        match (check, problem) {
            (Check::Lease { request, ttl }, None) => {
                let lease = new_lease();
                self.lease = Some(lease);
                self.answers.push(FromWorker::LeaseGranted { request, lease, epoch, ttl, holding });
            }
            (Check::Lease { request, .. }, Some(_)) => {
                let refusal = Refusal::plain(RefusalKind::Unavailable);
                self.answers.push(FromWorker::LeaseRefused { request, refusal });
            }
            (Check::Beat { lease, nonce }, None) => {
                self.answers.push(FromWorker::Alive { lease, epoch, nonce, holding });
            }
            (Check::Beat { .. }, Some(_)) => {}
        }
    }

    /// What was registered is not there any more if the instance has another model.
    fn another_model(&self, status: &protocol::Status) -> Option<String> {
        let model = status.model.as_deref()?;
        let known = |executor: &hypha_model::Executor| {
            executor.models.iter().any(|name| name.as_str() == model)
        };
        (!self.context.worker.executors.iter().any(known))
            .then(|| "it has another model now: register it again".to_owned())
    }

    /// An instance that calls itself something else has been started anew, and has lost what it had.
    fn meet(&mut self, name: Option<String>) {
        let Some(name) = name else { return };
        if self.called.replace(name.clone()).is_some_and(|old| old != name) {
            let outcome = Outcome::Failed {
                error: "the task instance was started anew and has lost the task".to_owned(),
                retry: true,
            };
            let now = Instant::now();
            for fence in self.line.handed_over() {
                self.line.ended(fence, outcome.clone(), None, now, &mut self.answers);
            }
        }
    }

    /// Does what is due: what begins, what is asked, what has taken too long.
    fn carry_on(&mut self) {
        let now = Instant::now();
        self.line.time_out(now, &mut self.answers);
        self.line.promote(now, &mut self.answers);
        // One after the other, so that the order in which the instance runs them is known.
        if let Some((dispatch, secret)) = self.line.next_to_enqueue(now) {
            let (instance, fence) = (self.instance.clone(), dispatch.fence);
            self.requests.spawn(async move {
                let result = instance.enqueue(&dispatch, &secret).await;
                Done::Enqueued { fence, result }
            });
        }
        while let Some(Place { fence, id }) = self.line.next_to_poll(now) {
            let instance = self.instance.clone();
            self.requests.spawn(async move {
                let result = instance.fetch(&id).await;
                Done::Fetched { fence, result }
            });
        }
    }
}
