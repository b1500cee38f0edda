//! A server as a worker: as many calls at once as it takes, each in a task of its own.
//!
//! There is no task between the scheduler and a call: what is dispatched is begun where it arrives. Someone
//! waits on the line for most of it.

use std::collections::{BTreeMap, VecDeque};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hypha_engine::{Dispatch, FromWorker, Outcome, ToWorker};
use hypha_model::{AttemptId, Epoch, Fence, LeaseId, Payload, Refusal, RefusalKind, Span, Worker};
use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tokio::time::sleep;

use super::{Hear, MAX_UNRECORDED, MAX_WAITING_PER_SLOT, answer_later};
use crate::call::Answer;
use crate::server::Server;
use crate::transport::locked;

/// A call that ends sooner is not told of before it ends: it would cost as much as all the rest of it.
const SOON: Duration = Duration::from_millis(5);

/// Carries out the messages to one server.
pub(super) struct ServerHand {
    worker: Arc<Worker>,
    server: Server,
    hear: Hear,
    epoch: Epoch,
    runtime: Handle,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    lease: Option<LeaseId>,
    runs: BTreeMap<Fence, Run>,
    waiting: VecDeque<Fence>,
    running: usize,
    /// The look at its health that is under way: a newer one replaces it.
    check: Option<AbortHandle>,
}

struct Run {
    dispatch: Arc<Dispatch>,
    phase: Phase,
}

enum Phase {
    Waiting,
    Running(AbortHandle),
    /// Kept until recorded.
    Ended {
        run: Span,
        outcome: Outcome,
    },
}

/// What a look at the server's health is for.
enum Check {
    Lease { request: u64, ttl: Span },
    Beat { lease: LeaseId, nonce: u64 },
}

impl ServerHand {
    pub(super) fn new(
        worker: Arc<Worker>,
        server: Server,
        hear: Hear,
        epoch: Epoch,
        runtime: Handle,
    ) -> Arc<ServerHand> {
        Arc::new(ServerHand { worker, server, hear, epoch, runtime, state: Mutex::default() })
    }

    /// Carries out a message.
    pub(super) fn take(self: &Arc<ServerHand>, message: ToWorker) {
        match message {
            ToWorker::RequestLease { request, ttl } => self.check(Check::Lease { request, ttl }),
            ToWorker::Heartbeat { lease, epoch, nonce } => {
                let held = self.holds(&locked(&self.state), lease, epoch);
                match held {
                    true => self.check(Check::Beat { lease, nonce }),
                    false => self.answer(FromWorker::LeaseUnknown { lease, epoch }),
                }
            }
            ToWorker::Dispatch(dispatch) => {
                if let Some(answer) = self.dispatched(dispatch) {
                    self.answer(answer);
                }
            }
            ToWorker::Cancel { fence, .. } => self.drop_run(&mut locked(&self.state), fence),
            ToWorker::Recorded { fence, .. } => {
                let mut state = locked(&self.state);
                let ended = |run: &Run| matches!(run.phase, Phase::Ended { .. });
                if state.runs.get(&fence).is_some_and(ended) {
                    state.runs.remove(&fence);
                }
            }
            ToWorker::ReleaseLease { lease, epoch } => {
                if self.holds(&locked(&self.state), lease, epoch) {
                    self.stop();
                }
            }
        }
    }

    /// Ends everything that is under way.
    pub(super) fn stop(self: &Arc<ServerHand>) {
        let mut state = locked(&self.state);
        state.lease = None;
        state.waiting.clear();
        if let Some(check) = state.check.take() {
            check.abort();
        }
        let fences: Vec<Fence> = state.runs.keys().copied().collect();
        for fence in fences {
            self.drop_run(&mut state, fence);
        }
        drop(state);
        self.server.close_kept();
    }

    fn holds(&self, state: &State, lease: LeaseId, epoch: Epoch) -> bool {
        epoch == self.epoch && state.lease == Some(lease)
    }

    fn answer(&self, answer: FromWorker) {
        answer_later(&self.runtime, &self.hear, self.worker.id, answer);
    }

    /// Not with a lock held: the scheduler may answer at once.
    fn say(&self, message: FromWorker) {
        (self.hear)(self.worker.id, message);
    }

    /// Looks at the server's health, and answers after that.
    fn check(self: &Arc<ServerHand>, check: Check) {
        let hand = Arc::clone(self);
        let mut state = locked(&self.state);
        let looking = self.runtime.spawn(async move {
            let health = hand.server.health().await;
            if let Err(error) = &health {
                tracing::debug!(worker = %hand.worker.id, %error, "server not well");
            }
            if let Some(answer) = hand.checked(check, health.is_ok()) {
                hand.say(answer);
            }
        });
        if let Some(old) = state.check.replace(looking.abort_handle()) {
            old.abort();
        }
    }

    fn checked(&self, check: Check, healthy: bool) -> Option<FromWorker> {
        let mut state = locked(&self.state);
        match (check, healthy) {
            (Check::Lease { request, ttl }, true) => {
                let lease = new_lease();
                state.lease = Some(lease);
                let (epoch, holding) = (self.epoch, state.holding());
                Some(FromWorker::LeaseGranted { request, lease, epoch, ttl, holding })
            }
            (Check::Lease { request, .. }, false) => {
                let refusal = Refusal::plain(RefusalKind::Unavailable);
                Some(FromWorker::LeaseRefused { request, refusal })
            }
            (Check::Beat { lease, nonce }, true) => {
                let (epoch, holding) = (self.epoch, state.holding());
                Some(FromWorker::Alive { lease, epoch, nonce, holding })
            }
            (Check::Beat { .. }, false) => None,
        }
    }

    fn dispatched(self: &Arc<ServerHand>, dispatch: Arc<Dispatch>) -> Option<FromWorker> {
        let (attempt, fence) = (dispatch.attempt, dispatch.fence);
        let mut state = locked(&self.state);
        if let Some(known) = state.runs.get(&fence) {
            return Some(known.again());
        }
        if !self.holds(&state, dispatch.lease, dispatch.epoch) {
            let (lease, epoch) = (dispatch.lease, dispatch.epoch);
            return Some(FromWorker::LeaseUnknown { lease, epoch });
        }
        let slots = self.worker.concurrency() as usize;
        let most_waiting = slots.saturating_mul(MAX_WAITING_PER_SLOT);
        let full = state.waiting.len() >= most_waiting
            || state.runs.len() >= most_waiting.saturating_add(slots + MAX_UNRECORDED);
        let refusal = match dispatch.spec.requirement.satisfied_by(&self.worker) {
            Ok(()) => full.then_some(Refusal::plain(RefusalKind::Busy)),
            Err(refusal) => Some(refusal),
        };
        if let Some(refusal) = refusal {
            return Some(FromWorker::Refused { attempt, fence, refusal });
        }
        let phase = match state.running < slots {
            true => Phase::Running(self.begin(Arc::clone(&dispatch), &mut state)),
            false => {
                state.waiting.push_back(fence);
                Phase::Waiting
            }
        };
        let waits = matches!(phase, Phase::Waiting);
        state.runs.insert(fence, Run { dispatch, phase });
        waits.then_some(FromWorker::Accepted { attempt, fence })
    }

    /// Begins a call. It cannot end before the lock on `state` is given back.
    fn begin(self: &Arc<ServerHand>, dispatch: Arc<Dispatch>, state: &mut State) -> AbortHandle {
        state.running += 1;
        let run = Arc::clone(self).run(dispatch);
        // Next to the request that it answers, which is most often at home where we are called.
        match Handle::try_current() {
            Ok(here) => here.spawn(run).abort_handle(),
            Err(_) => self.runtime.spawn(run).abort_handle(),
        }
    }

    async fn run(self: Arc<ServerHand>, dispatch: Arc<Dispatch>) {
        let (attempt, fence) = (dispatch.attempt, dispatch.fence);
        let (since, began) = (Instant::now(), AtomicBool::new(false));
        let outcome = match self.call_in_time(&dispatch, &began).await {
            Some(Answer::Completed { payload }) => {
                let digest = payload.digest();
                Outcome::Completed { result: payload, digest }
            }
            Some(Answer::Failed { error, retry }) => Outcome::Failed { error, retry },
            Some(Answer::Unreached { error }) => Outcome::Unreached { error },
            None => Outcome::TimedOut,
        };
        let run = span(since.elapsed());
        let behind = {
            let mut state = locked(&self.state);
            // If it is not there, it was cancelled at the last moment: nobody wants to hear of it.
            let Some(entry) = state.runs.get_mut(&fence) else { return };
            entry.phase = Phase::Ended { run, outcome: outcome.clone() };
            state.running -= 1;
            let behind = match &outcome {
                Outcome::Unreached { .. } => state.end_waiting(&outcome),
                _ => Vec::new(),
            };
            self.begin_next(&mut state);
            behind
        };
        self.say(FromWorker::Finished { attempt, fence, run, outcome });
        behind.into_iter().for_each(|message| self.say(message));
    }

    /// The answer, if it is there in time. That the call has begun is told only of one that takes a while: the end
    /// says how long it was.
    async fn call_in_time(&self, dispatch: &Dispatch, began: &AtomicBool) -> Option<Answer> {
        let within = Duration::from_micros(dispatch.timeout.as_micros());
        let mut timer = pin!(sleep(SOON.min(within)));
        let mut call = pin!(self.call(dispatch, began));
        let ends = timer.deadline().checked_add(within.saturating_sub(SOON));
        tokio::select! {
            biased;
            answer = &mut call => return Some(answer),
            () = &mut timer => {}
        }
        self.tell_begun(dispatch, began);
        match ends {
            Some(ends) => {
                timer.as_mut().reset(ends);
                tokio::select! {
                    biased;
                    answer = call => Some(answer),
                    () = timer => None,
                }
            }
            None => Some(call.await),
        }
    }

    fn tell_begun(&self, dispatch: &Dispatch, began: &AtomicBool) {
        let (attempt, fence) = (dispatch.attempt, dispatch.fence);
        if !began.swap(true, Ordering::Relaxed) {
            self.say(FromWorker::Started { attempt, fence });
        }
    }

    async fn call(&self, dispatch: &Dispatch, began: &AtomicBool) -> Answer {
        let (attempt, fence, spec) = (dispatch.attempt, dispatch.fence, &dispatch.spec);
        let model = spec.requirement.model.as_ref();
        let model = model.or_else(|| self.worker.executors.first()?.models.first());
        let mut call = self.server.start(model, spec.form, &spec.input, spec.stream);
        while let Some(piece) = call.next().await {
            self.tell_begun(dispatch, began);
            let piece = Payload::from(&*piece);
            self.say(FromWorker::Output { attempt, fence, piece });
        }
        call.answer().await
    }

    fn begin_next(self: &Arc<ServerHand>, state: &mut State) {
        let slots = self.worker.concurrency() as usize;
        while state.running < slots
            && let Some(fence) = state.waiting.pop_front()
        {
            let Some(run) = state.runs.get(&fence) else { continue };
            let handle = self.begin(Arc::clone(&run.dispatch), state);
            if let Some(run) = state.runs.get_mut(&fence) {
                run.phase = Phase::Running(handle);
            }
        }
    }

    /// Forgets a run, wherever it is; a call under way is dropped, which ends the request.
    fn drop_run(self: &Arc<ServerHand>, state: &mut State, fence: Fence) {
        match state.runs.remove(&fence).map(|run| run.phase) {
            Some(Phase::Waiting) => state.waiting.retain(|waiting| *waiting != fence),
            Some(Phase::Running(handle)) => {
                handle.abort();
                state.running -= 1;
                self.begin_next(state);
            }
            Some(Phase::Ended { .. }) | None => {}
        }
    }
}

impl State {
    /// Ends what waits behind a call that did not reach the server: it would only wait for the same.
    fn end_waiting(&mut self, outcome: &Outcome) -> Vec<FromWorker> {
        let mut ended = Vec::new();
        for fence in std::mem::take(&mut self.waiting) {
            if let Some(run) = self.runs.get_mut(&fence) {
                run.phase = Phase::Ended { run: Span::ZERO, outcome: outcome.clone() };
                ended.push(run.again());
            }
        }
        ended
    }

    fn holding(&self) -> Vec<(AttemptId, Fence)> {
        self.runs.iter().map(|(fence, run)| (run.dispatch.attempt, *fence)).collect()
    }
}

impl Run {
    /// What was said of it last, for a dispatch that came twice.
    fn again(&self) -> FromWorker {
        let (attempt, fence) = (self.dispatch.attempt, self.dispatch.fence);
        match &self.phase {
            Phase::Waiting => FromWorker::Accepted { attempt, fence },
            Phase::Running(_) => FromWorker::Started { attempt, fence },
            Phase::Ended { run, outcome } => {
                FromWorker::Finished { attempt, fence, run: *run, outcome: outcome.clone() }
            }
        }
    }
}

/// A lease with a random id.
pub(super) fn new_lease() -> LeaseId {
    LeaseId::from_uuid(uuid::Builder::from_random_bytes(rand::random()).into_uuid())
}

/// A duration as the model counts it.
pub(super) fn span(duration: Duration) -> Span {
    Span::from_micros(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX))
}
