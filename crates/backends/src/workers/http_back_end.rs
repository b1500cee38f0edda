//! Runs at a back end: each is one HTTP call.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hypha_engine::back_end::RunEnd;
use hypha_engine::{Dispatch, FromWorker, Outcome};
use hypha_model::{FailureKind, Payload, TaskError};
use tokio::time::sleep;

use super::effects::{HttpEffectHandler, RunContext};
use crate::back_end::BackEnd;
use crate::call::CallOutcome;
use crate::transport::HttpError;

/// The start of a call that ends sooner is not reported: the report would cost as much as the rest of the call.
const START_REPORT_DELAY: Duration = Duration::from_millis(5);

/// A back end that runs the tasks of a worker.
pub(super) struct HttpBackEnd(pub(super) BackEnd);

impl HttpBackEnd {
    pub(super) async fn check(&self) -> Result<(), HttpError> {
        self.0.health().await
    }

    pub(super) fn close_idle(&self) {
        self.0.close_idle();
    }

    pub(super) async fn run(&self, context: RunContext) -> RunEnd {
        let RunContext { machine, dispatch, stop, .. } = context;
        if let Some(unavailable) = machine.handler().unavailable() {
            return unavailable;
        }
        let call = BackEndRun { server: &self.0, handler: machine.handler(), dispatch: &dispatch };
        let outcome = tokio::select! {
            biased;
            // Dropping the call closes its connection.
            () = stop.cancelled() => {
                Outcome::Failed(TaskError::new(FailureKind::WorkerFailed, "the run was stopped"))
            }
            outcome = call.outcome_in_time() => match outcome {
                Some(CallOutcome::Completed { payload }) => Outcome::Completed { result: payload.into() },
                Some(CallOutcome::Failed(error)) => Outcome::Failed(error),
                Some(CallOutcome::Unreachable { error }) => Outcome::Unreachable { error },
                None => Outcome::TimedOut,
            }
        };
        RunEnd::Outcome(outcome, None)
    }
}

struct BackEndRun<'a> {
    server: &'a BackEnd,
    handler: &'a HttpEffectHandler,
    dispatch: &'a Dispatch,
}

impl BackEndRun<'_> {
    /// The outcome, if the call ends before its timeout.
    async fn outcome_in_time(&self) -> Option<CallOutcome> {
        let began = AtomicBool::new(false);
        let within = Duration::from_micros(self.dispatch.timeout.as_micros());
        let mut timer = pin!(sleep(START_REPORT_DELAY.min(within)));
        let mut call = pin!(self.outcome(&began));
        let ends = timer.deadline().checked_add(within.saturating_sub(START_REPORT_DELAY));
        tokio::select! {
            biased;
            outcome = &mut call => return Some(outcome),
            () = &mut timer => {}
        }
        self.report_started(&began);
        match ends {
            Some(ends) => {
                timer.as_mut().reset(ends);
                tokio::select! {
                    biased;
                    outcome = call => Some(outcome),
                    () = timer => None,
                }
            }
            None => Some(call.await),
        }
    }

    async fn outcome(&self, began: &AtomicBool) -> CallOutcome {
        let (attempt, fence) = (self.dispatch.attempt, self.dispatch.fence);
        let spec = &self.dispatch.spec;
        let model = spec.requirement.model.as_ref();
        let model = model.or_else(|| self.handler.worker.executors.first()?.models.first());
        let mut call = self.server.start(model, spec.form, &spec.input, spec.stream);
        while let Some(piece) = call.next().await {
            self.report_started(began);
            let piece = Payload::from(&*piece);
            self.handler.send_to_scheduler(FromWorker::Output { attempt, fence, piece });
        }
        call.outcome().await
    }

    fn report_started(&self, began: &AtomicBool) {
        let (attempt, fence) = (self.dispatch.attempt, self.dispatch.fence);
        if !began.swap(true, Ordering::Relaxed) {
            self.handler.send_to_scheduler(FromWorker::Started { attempt, fence });
        }
    }
}
