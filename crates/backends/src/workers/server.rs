//! Runs of a server: each is one HTTP call.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hypha_engine::back_end::RunEnd;
use hypha_engine::{Dispatch, FromWorker, Outcome};
use hypha_model::{FailureKind, Payload, TaskError};
use tokio::time::sleep;

use super::carrier::{HttpCarrier, RunContext};
use crate::call::Answer;
use crate::server::Server;
use crate::transport::HttpError;

/// The start of a call that ends sooner is not told: it would cost as much as all the rest of it.
const SOON: Duration = Duration::from_millis(5);

/// A server that does the work of a worker.
pub(super) struct ServerBackend(pub(super) Server);

impl ServerBackend {
    pub(super) async fn check(&self) -> Result<(), HttpError> {
        self.0.health().await
    }

    pub(super) fn close_kept(&self) {
        self.0.close_kept();
    }

    pub(super) async fn run(&self, context: RunContext) -> RunEnd {
        let RunContext { carrier, dispatch, stop, .. } = context;
        if let Some(unused) = carrier.carrier().unused() {
            return unused;
        }
        let call = Call { server: &self.0, carrier: carrier.carrier(), dispatch: &dispatch };
        let outcome = tokio::select! {
            biased;
            // Dropping the call hangs up.
            () = stop.cancelled() => {
                Outcome::Failed(TaskError::new(FailureKind::WorkerFailed, "the run was stopped"))
            }
            answer = call.answer_in_time() => match answer {
                Some(Answer::Completed { payload }) => Outcome::Completed { result: payload.into() },
                Some(Answer::Failed(error)) => Outcome::Failed(error),
                Some(Answer::Unreached { error }) => Outcome::Unreached { error },
                None => Outcome::TimedOut,
            }
        };
        RunEnd::Outcome(outcome, None)
    }
}

struct Call<'a> {
    server: &'a Server,
    carrier: &'a HttpCarrier,
    dispatch: &'a Dispatch,
}

impl Call<'_> {
    /// The answer, if it is there in time.
    async fn answer_in_time(&self) -> Option<Answer> {
        let began = AtomicBool::new(false);
        let within = Duration::from_micros(self.dispatch.timeout.as_micros());
        let mut timer = pin!(sleep(SOON.min(within)));
        let mut call = pin!(self.answer(&began));
        let ends = timer.deadline().checked_add(within.saturating_sub(SOON));
        tokio::select! {
            biased;
            answer = &mut call => return Some(answer),
            () = &mut timer => {}
        }
        self.tell_begun(&began);
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

    async fn answer(&self, began: &AtomicBool) -> Answer {
        let (attempt, fence) = (self.dispatch.attempt, self.dispatch.fence);
        let spec = &self.dispatch.spec;
        let model = spec.requirement.model.as_ref();
        let model = model.or_else(|| self.carrier.worker.executors.first()?.models.first());
        let mut call = self.server.start(model, spec.form, &spec.input, spec.stream);
        while let Some(piece) = call.next().await {
            self.tell_begun(began);
            let piece = Payload::from(&*piece);
            self.carrier.say(FromWorker::Output { attempt, fence, piece });
        }
        call.answer().await
    }

    fn tell_begun(&self, began: &AtomicBool) {
        let (attempt, fence) = (self.dispatch.attempt, self.dispatch.fence);
        if !began.swap(true, Ordering::Relaxed) {
            self.carrier.say(FromWorker::Started { attempt, fence });
        }
    }
}
