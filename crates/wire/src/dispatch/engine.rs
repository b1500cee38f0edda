//! Conversions between the engine's messages and those of the wire.

use std::sync::Arc;

use hypha_engine::{DevicePart, Dispatch, FromWorker, LeaseRequest, Outcome, ToWorker};
use hypha_model::{
    AttemptId, Epoch, FailureKind, Fence, ObjectRef, Payload, Requirement, Span, TaskError,
    TaskResult, TaskSpec,
};

use super::{
    AttemptKey, DispatchBody, MAX_DEVICES, MAX_ERROR_BYTES, MAX_EXECUTORS, Order, Portion, Report,
    ResultObject,
};
use crate::market::{Advert, Offer, SignedReceipt};

impl AttemptKey {
    fn of((attempt, fence): (AttemptId, Fence)) -> AttemptKey {
        AttemptKey { task: attempt.task, number: attempt.number, fence: fence.0 }
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
            ToWorker::RequestLease(LeaseRequest {
                request,
                ttl,
                minimum: least,
                maximum: wish,
                demand: short_of,
            }) => Order::RequestLease {
                request,
                ttl_us: ttl.as_micros(),
                least: least.map(boxed),
                wish: wish.map(boxed),
                short_of: short_of.map(boxed),
            },
            ToWorker::Heartbeat { lease, epoch, nonce, demand: short_of } => {
                let short_of = short_of.map(boxed);
                Order::Heartbeat { lease, epoch: epoch.0, nonce, short_of }
            }
            ToWorker::Dispatch(dispatch) => Order::Dispatch(Box::new(DispatchBody::of(&dispatch))),
            ToWorker::Cancel { attempt, fence } => Order::Cancel(AttemptKey::of((attempt, fence))),
            ToWorker::Recorded { attempt, fence } => {
                Order::Recorded(AttemptKey::of((attempt, fence)))
            }
            ToWorker::ReleaseLease { lease, epoch } => {
                Order::ReleaseLease { lease, epoch: epoch.0 }
            }
            ToWorker::Advertise(advert) => Order::Advertise(Box::new(Advert::from(&*advert))),
            ToWorker::CloseAdvert(advert) => Order::CloseAdvert(advert),
            ToWorker::AcceptOffer { offer, role, request, ttl } => {
                Order::AcceptOffer { offer, role, request, ttl_us: ttl.as_micros() }
            }
            ToWorker::DeclineOffer(offer) => Order::DeclineOffer(offer),
            ToWorker::ReceiptCountersigned(signed) => {
                Order::ReceiptCountersigned(Box::new(SignedReceipt::from(&*signed)))
            }
        }
    }
}

impl From<Order> for ToWorker {
    fn from(order: Order) -> ToWorker {
        match order {
            Order::RequestLease { request, ttl_us, least, wish, short_of } => {
                ToWorker::RequestLease(LeaseRequest {
                    request,
                    ttl: Span::from_micros(ttl_us),
                    minimum: least.map(Arc::from),
                    maximum: wish.map(Arc::from),
                    demand: short_of.map(Arc::from),
                })
            }
            Order::Heartbeat { lease, epoch, nonce, short_of } => {
                let short_of = short_of.map(Arc::from);
                ToWorker::Heartbeat { lease, epoch: Epoch(epoch), nonce, demand: short_of }
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
            Order::Advertise(advert) => ToWorker::Advertise(Arc::new((*advert).into())),
            Order::CloseAdvert(advert) => ToWorker::CloseAdvert(advert),
            Order::AcceptOffer { offer, role, request, ttl_us } => {
                let ttl = Span::from_micros(ttl_us);
                ToWorker::AcceptOffer { offer, role, request, ttl }
            }
            Order::DeclineOffer(offer) => ToWorker::DeclineOffer(offer),
            Order::ReceiptCountersigned(signed) => {
                ToWorker::ReceiptCountersigned(Arc::new((*signed).into()))
            }
        }
    }
}

impl DispatchBody {
    fn of(dispatch: &Dispatch) -> DispatchBody {
        let spec = &*dispatch.spec;
        DispatchBody {
            lease: dispatch.lease,
            epoch: dispatch.epoch.0,
            attempt: AttemptKey::of((dispatch.attempt, dispatch.fence)),
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

fn boxed(requirement: Arc<Requirement>) -> Box<Requirement> {
    Box::new(Arc::unwrap_or_clone(requirement))
}

impl From<hypha_engine::Portion> for Portion {
    fn from(portion: hypha_engine::Portion) -> Portion {
        let device = |part: DevicePart| (part.memory_bytes, part.milli_gpu);
        Portion {
            cpu_milli: portion.cpu_milli,
            memory_bytes: portion.memory_bytes,
            storage_bytes: portion.storage_bytes,
            devices: portion.devices.into_iter().map(device).collect(),
            slots: portion.slots,
        }
    }
}

impl From<Portion> for hypha_engine::Portion {
    fn from(portion: Portion) -> hypha_engine::Portion {
        let device = |(memory_bytes, milli_gpu)| DevicePart { memory_bytes, milli_gpu };
        hypha_engine::Portion {
            cpu_milli: portion.cpu_milli,
            memory_bytes: portion.memory_bytes,
            storage_bytes: portion.storage_bytes,
            devices: portion.devices.into_iter().map(device).collect(),
            slots: portion.slots,
        }
    }
}

impl From<FromWorker> for Report {
    fn from(message: FromWorker) -> Report {
        let list = |holding: Vec<_>| holding.into_iter().map(AttemptKey::of).collect();
        match message {
            FromWorker::LeaseGranted { request, lease, epoch, ttl, portion, holding } => {
                let (epoch, ttl_us, holding) = (epoch.0, ttl.as_micros(), list(holding));
                let portion = portion.map(Portion::from);
                Report::LeaseGranted { request, lease, epoch, ttl_us, portion, holding }
            }
            FromWorker::LeaseRefused { request, refusal } => {
                Report::LeaseRefused { request, refusal }
            }
            FromWorker::Alive { lease, epoch, nonce, portion, usage, holding } => {
                let (portion, holding) = (portion.map(Portion::from), list(holding));
                Report::Alive { lease, epoch: epoch.0, nonce, portion, usage, holding }
            }
            FromWorker::RenewEarly { lease, epoch } => Report::RenewEarly { lease, epoch: epoch.0 },
            FromWorker::LeaseUnknown { lease, epoch } => {
                Report::LeaseUnknown { lease, epoch: epoch.0 }
            }
            FromWorker::Accepted { attempt, fence } => {
                Report::Accepted(AttemptKey::of((attempt, fence)))
            }
            FromWorker::Delegated { attempt, fence, handle } => Report::Delegated {
                attempt: AttemptKey::of((attempt, fence)),
                handle: handle.as_ref().to_owned(),
            },
            FromWorker::DevicesAssigned { attempt, fence, mut devices } => {
                devices.truncate(MAX_DEVICES);
                Report::DevicesAssigned { attempt: AttemptKey::of((attempt, fence)), devices }
            }
            FromWorker::Refused { attempt, fence, refusal } => {
                Report::Refused { attempt: AttemptKey::of((attempt, fence)), refusal }
            }
            FromWorker::Started { attempt, fence } => {
                Report::Started(AttemptKey::of((attempt, fence)))
            }
            FromWorker::Running { attempt, fence, elapsed } => Report::Running {
                attempt: AttemptKey::of((attempt, fence)),
                run_us: elapsed.as_micros(),
            },
            FromWorker::Progress { attempt, fence, permille } => {
                Report::Progress { attempt: AttemptKey::of((attempt, fence)), permille }
            }
            FromWorker::Output { attempt, fence, piece } => {
                Report::Output { attempt: AttemptKey::of((attempt, fence)), piece }
            }
            FromWorker::Finished { attempt, fence, run, outcome } => {
                let (attempt, run_us) = (AttemptKey::of((attempt, fence)), run.as_micros());
                match outcome {
                    Outcome::Completed { result: TaskResult::Inline { payload, digest } } => {
                        let (result, object) = (payload, None);
                        Report::Completed { attempt, run_us, result, digest, object }
                    }
                    Outcome::Completed { result: TaskResult::Object(object) } => {
                        let result = Payload::from(object.to_json().into_bytes());
                        let digest = result.digest();
                        let ObjectRef { digest: of_object, bytes, .. } = object;
                        let object = Some(ResultObject { digest: of_object, bytes });
                        Report::Completed { attempt, run_us, result, digest, object }
                    }
                    Outcome::Failed(TaskError { kind, message, status, retry_after_s }) => {
                        Report::Failed {
                            attempt,
                            run_us,
                            error: cut(message),
                            retry: kind.is_retryable(),
                            unreachable: false,
                            kind,
                            status,
                            retry_after_s,
                        }
                    }
                    Outcome::TimedOut => Report::TimedOut { attempt, run_us },
                    Outcome::Unreachable { error } => Report::Failed {
                        attempt,
                        run_us,
                        error: cut(error),
                        retry: true,
                        unreachable: true,
                        kind: FailureKind::Unknown,
                        status: None,
                        retry_after_s: None,
                    },
                }
            }
            FromWorker::Unreachable { mut executors, owner } => {
                executors.truncate(MAX_EXECUTORS);
                Report::Unreachable { executors, owner }
            }
            FromWorker::Offered(offer) => Report::Offered(Box::new(Offer::from(&*offer))),
            FromWorker::NotOffered(advert) => Report::NotOffered(advert),
            FromWorker::OfferUnknown(offer) => Report::OfferUnknown(offer),
            FromWorker::ReceiptIssued(signed) => {
                Report::ReceiptIssued(Box::new(SignedReceipt::from(&*signed)))
            }
            FromWorker::Preempted { lease, epoch, grace } => {
                Report::Preempted { lease, epoch: epoch.0, grace_us: grace.as_micros() }
            }
            FromWorker::Left { epoch, lease } => Report::Left { epoch: epoch.0, lease },
        }
    }
}

impl From<Report> for FromWorker {
    fn from(report: Report) -> FromWorker {
        let list = |holding: Vec<AttemptKey>| {
            holding.into_iter().map(|attempt| (attempt.id(), attempt.fence())).collect()
        };
        let finished = |attempt: AttemptKey, run_us, outcome| FromWorker::Finished {
            attempt: attempt.id(),
            fence: attempt.fence(),
            run: Span::from_micros(run_us),
            outcome,
        };
        match report {
            Report::LeaseGranted { request, lease, epoch, ttl_us, portion, holding } => {
                let (epoch, ttl) = (Epoch(epoch), Span::from_micros(ttl_us));
                let (portion, holding) = (portion.map(hypha_engine::Portion::from), list(holding));
                FromWorker::LeaseGranted { request, lease, epoch, ttl, portion, holding }
            }
            Report::LeaseRefused { request, refusal } => {
                FromWorker::LeaseRefused { request, refusal }
            }
            Report::Alive { lease, epoch, nonce, portion, usage, holding } => {
                let (portion, holding) = (portion.map(hypha_engine::Portion::from), list(holding));
                FromWorker::Alive { lease, epoch: Epoch(epoch), nonce, portion, usage, holding }
            }
            Report::RenewEarly { lease, epoch } => {
                FromWorker::RenewEarly { lease, epoch: Epoch(epoch) }
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
            Report::DevicesAssigned { attempt, devices } => FromWorker::DevicesAssigned {
                attempt: attempt.id(),
                fence: attempt.fence(),
                devices,
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
            Report::Completed { attempt, run_us, object: Some(object), .. } => {
                let ResultObject { digest, bytes } = object;
                let object = ObjectRef { digest, bytes, by_digest: false };
                finished(attempt, run_us, Outcome::Completed { result: TaskResult::Object(object) })
            }
            Report::Completed { attempt, run_us, result, digest, object: None } => {
                let result = TaskResult::Inline { payload: result, digest };
                finished(attempt, run_us, Outcome::Completed { result })
            }
            Report::Failed { attempt, run_us, error, unreachable: true, .. } => {
                finished(attempt, run_us, Outcome::Unreachable { error })
            }
            Report::Failed {
                attempt,
                run_us,
                error,
                retry,
                unreachable: false,
                kind,
                status,
                retry_after_s,
            } => {
                let kind = match kind {
                    FailureKind::Unknown => FailureKind::unknown(retry),
                    known => known,
                };
                finished(
                    attempt,
                    run_us,
                    Outcome::Failed(TaskError { kind, message: error, status, retry_after_s }),
                )
            }
            Report::TimedOut { attempt, run_us } => finished(attempt, run_us, Outcome::TimedOut),
            Report::Unreachable { executors, owner } => {
                FromWorker::Unreachable { executors, owner }
            }
            // A message that was decoded holds a valid worker; without one there is no offer.
            Report::Offered(offer) => match (offer.advert, hypha_engine::Offer::try_from(*offer)) {
                (_, Ok(offer)) => FromWorker::Offered(Arc::new(offer)),
                (advert, Err(_)) => FromWorker::NotOffered(advert),
            },
            Report::NotOffered(advert) => FromWorker::NotOffered(advert),
            Report::OfferUnknown(offer) => FromWorker::OfferUnknown(offer),
            Report::ReceiptIssued(signed) => FromWorker::ReceiptIssued(Arc::new((*signed).into())),
            Report::Preempted { lease, epoch, grace_us } => FromWorker::Preempted {
                lease,
                epoch: Epoch(epoch),
                grace: Span::from_micros(grace_us),
            },
            Report::Left { epoch, lease } => FromWorker::Left { epoch: Epoch(epoch), lease },
        }
    }
}

/// Cuts a text that is too long for the wire.
fn cut(mut text: String) -> String {
    if text.len() > MAX_ERROR_BYTES {
        let end = (0..=MAX_ERROR_BYTES).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
    }
    text
}
