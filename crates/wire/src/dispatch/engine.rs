//! The messages of the engine as those of the wire, and back.

use std::sync::Arc;

use hypha_engine::{Dispatch, FromWorker, Outcome, ToWorker};
use hypha_model::{AttemptId, Epoch, Fence, Span, TaskSpec};

use super::{Attempt, MAX_ERROR_BYTES, MAX_EXECUTORS, Order, Report, Work};

impl Attempt {
    fn of((attempt, fence): (AttemptId, Fence)) -> Attempt {
        Attempt { task: attempt.task, number: attempt.number, fence: fence.0 }
    }

    fn id(self) -> AttemptId {
        AttemptId { task: self.task, number: self.number }
    }

    fn fence(self) -> Fence {
        Fence(self.fence)
    }
}

impl From<ToWorker> for Order {
    fn from(message: ToWorker) -> Order {
        match message {
            ToWorker::RequestLease { request, ttl } => {
                Order::RequestLease { request, ttl_us: ttl.as_micros() }
            }
            ToWorker::Heartbeat { lease, epoch, nonce } => {
                Order::Heartbeat { lease, epoch: epoch.0, nonce }
            }
            ToWorker::Dispatch(dispatch) => Order::Dispatch(Box::new(Work::of(&dispatch))),
            ToWorker::Cancel { attempt, fence } => Order::Cancel(Attempt::of((attempt, fence))),
            ToWorker::Recorded { attempt, fence } => Order::Recorded(Attempt::of((attempt, fence))),
            ToWorker::ReleaseLease { lease, epoch } => {
                Order::ReleaseLease { lease, epoch: epoch.0 }
            }
        }
    }
}

impl From<Order> for ToWorker {
    fn from(order: Order) -> ToWorker {
        match order {
            Order::RequestLease { request, ttl_us } => {
                ToWorker::RequestLease { request, ttl: Span::from_micros(ttl_us) }
            }
            Order::Heartbeat { lease, epoch, nonce } => {
                ToWorker::Heartbeat { lease, epoch: Epoch(epoch), nonce }
            }
            Order::Dispatch(work) => ToWorker::Dispatch(Arc::new(work.dispatch())),
            Order::Cancel(attempt) => {
                ToWorker::Cancel { attempt: attempt.id(), fence: attempt.fence() }
            }
            Order::Recorded(attempt) => {
                ToWorker::Recorded { attempt: attempt.id(), fence: attempt.fence() }
            }
            Order::ReleaseLease { lease, epoch } => {
                ToWorker::ReleaseLease { lease, epoch: Epoch(epoch) }
            }
        }
    }
}

impl Work {
    fn of(dispatch: &Dispatch) -> Work {
        let spec = &*dispatch.spec;
        Work {
            lease: dispatch.lease,
            epoch: dispatch.epoch.0,
            attempt: Attempt::of((dispatch.attempt, dispatch.fence)),
            timeout_us: dispatch.timeout.as_micros(),
            requirement: spec.requirement.clone(),
            input: spec.input.clone(),
            metadata: spec.metadata.clone(),
            tenant: spec.tenant.clone(),
            form: spec.form,
            stream: spec.stream,
            interactive: dispatch.interactive,
            resume: dispatch.resume.as_deref().map(str::to_owned),
        }
    }

    fn dispatch(self) -> Dispatch {
        let timeout = Span::from_micros(self.timeout_us);
        Dispatch {
            lease: self.lease,
            epoch: Epoch(self.epoch),
            attempt: self.attempt.id(),
            fence: self.attempt.fence(),
            timeout,
            interactive: self.interactive,
            resume: self.resume.map(Arc::from),
            spec: Arc::new(TaskSpec {
                requirement: self.requirement,
                input: self.input,
                metadata: self.metadata,
                tenant: self.tenant,
                timeout: Some(timeout),
                form: self.form,
                stream: self.stream,
            }),
        }
    }
}

impl From<FromWorker> for Report {
    fn from(message: FromWorker) -> Report {
        let list = |holding: Vec<_>| holding.into_iter().map(Attempt::of).collect();
        match message {
            FromWorker::LeaseGranted { request, lease, epoch, ttl, holding } => {
                let (epoch, ttl_us, holding) = (epoch.0, ttl.as_micros(), list(holding));
                Report::LeaseGranted { request, lease, epoch, ttl_us, holding }
            }
            FromWorker::LeaseRefused { request, refusal } => {
                Report::LeaseRefused { request, refusal }
            }
            FromWorker::Alive { lease, epoch, nonce, holding } => {
                Report::Alive { lease, epoch: epoch.0, nonce, holding: list(holding) }
            }
            FromWorker::LeaseUnknown { lease, epoch } => {
                Report::LeaseUnknown { lease, epoch: epoch.0 }
            }
            FromWorker::Accepted { attempt, fence } => {
                Report::Accepted(Attempt::of((attempt, fence)))
            }
            FromWorker::Delegated { attempt, fence, handle } => Report::Delegated {
                attempt: Attempt::of((attempt, fence)),
                handle: handle.as_ref().to_owned(),
            },
            FromWorker::Refused { attempt, fence, refusal } => {
                Report::Refused { attempt: Attempt::of((attempt, fence)), refusal }
            }
            FromWorker::Started { attempt, fence } => {
                Report::Started(Attempt::of((attempt, fence)))
            }
            FromWorker::Running { attempt, fence, elapsed } => Report::Running {
                attempt: Attempt::of((attempt, fence)),
                run_us: elapsed.as_micros(),
            },
            FromWorker::Progress { attempt, fence, permille } => {
                Report::Progress { attempt: Attempt::of((attempt, fence)), permille }
            }
            FromWorker::Output { attempt, fence, piece } => {
                Report::Output { attempt: Attempt::of((attempt, fence)), piece }
            }
            FromWorker::Finished { attempt, fence, run, outcome } => {
                let (attempt, run_us) = (Attempt::of((attempt, fence)), run.as_micros());
                match outcome {
                    Outcome::Completed { result, digest } => {
                        Report::Completed { attempt, run_us, result, digest }
                    }
                    Outcome::Failed { error, retry } => {
                        let (error, unreached) = (cut(error), false);
                        Report::Failed { attempt, run_us, error, retry, unreached }
                    }
                    Outcome::TimedOut => Report::TimedOut { attempt, run_us },
                    Outcome::Unreached { error } => {
                        let (error, retry, unreached) = (cut(error), true, true);
                        Report::Failed { attempt, run_us, error, retry, unreached }
                    }
                }
            }
            FromWorker::Away { mut executors } => {
                executors.truncate(MAX_EXECUTORS);
                Report::Away { executors }
            }
            FromWorker::Left { epoch, lease } => Report::Left { epoch: epoch.0, lease },
        }
    }
}

impl From<Report> for FromWorker {
    fn from(report: Report) -> FromWorker {
        let list = |holding: Vec<Attempt>| {
            holding.into_iter().map(|attempt| (attempt.id(), attempt.fence())).collect()
        };
        let finished = |attempt: Attempt, run_us, outcome| FromWorker::Finished {
            attempt: attempt.id(),
            fence: attempt.fence(),
            run: Span::from_micros(run_us),
            outcome,
        };
        match report {
            Report::LeaseGranted { request, lease, epoch, ttl_us, holding } => {
                let (epoch, ttl) = (Epoch(epoch), Span::from_micros(ttl_us));
                FromWorker::LeaseGranted { request, lease, epoch, ttl, holding: list(holding) }
            }
            Report::LeaseRefused { request, refusal } => {
                FromWorker::LeaseRefused { request, refusal }
            }
            Report::Alive { lease, epoch, nonce, holding } => {
                FromWorker::Alive { lease, epoch: Epoch(epoch), nonce, holding: list(holding) }
            }
            Report::LeaseUnknown { lease, epoch } => {
                FromWorker::LeaseUnknown { lease, epoch: Epoch(epoch) }
            }
            Report::Accepted(attempt) => {
                FromWorker::Accepted { attempt: attempt.id(), fence: attempt.fence() }
            }
            Report::Delegated { attempt, handle } => FromWorker::Delegated {
                attempt: attempt.id(),
                fence: attempt.fence(),
                handle: Arc::from(handle),
            },
            Report::Refused { attempt, refusal } => {
                FromWorker::Refused { attempt: attempt.id(), fence: attempt.fence(), refusal }
            }
            Report::Started(attempt) => {
                FromWorker::Started { attempt: attempt.id(), fence: attempt.fence() }
            }
            Report::Running { attempt, run_us } => FromWorker::Running {
                attempt: attempt.id(),
                fence: attempt.fence(),
                elapsed: Span::from_micros(run_us),
            },
            Report::Progress { attempt, permille } => {
                FromWorker::Progress { attempt: attempt.id(), fence: attempt.fence(), permille }
            }
            Report::Output { attempt, piece } => {
                FromWorker::Output { attempt: attempt.id(), fence: attempt.fence(), piece }
            }
            Report::Completed { attempt, run_us, result, digest } => {
                finished(attempt, run_us, Outcome::Completed { result, digest })
            }
            Report::Failed { attempt, run_us, error, unreached: true, .. } => {
                finished(attempt, run_us, Outcome::Unreached { error })
            }
            Report::Failed { attempt, run_us, error, retry, unreached: false } => {
                finished(attempt, run_us, Outcome::Failed { error, retry })
            }
            Report::TimedOut { attempt, run_us } => finished(attempt, run_us, Outcome::TimedOut),
            Report::Away { executors } => FromWorker::Away { executors },
            Report::Left { epoch, lease } => FromWorker::Left { epoch: Epoch(epoch), lease },
        }
    }
}

/// A text that is too long for the wire, without its end.
fn cut(mut text: String) -> String {
    if text.len() > MAX_ERROR_BYTES {
        let end = (0..=MAX_ERROR_BYTES).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
    }
    text
}
