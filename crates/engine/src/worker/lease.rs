//! Which scheduler holds which portion of the worker: leases are granted, renewed with more or less than before, and
//! expire.

use std::sync::Arc;

use hypha_market::{Holder, LeaseDecision, LeaseGrant, LeaseRequest};
use hypha_model::{Epoch, LeaseId, Refusal, RefusalKind, Requirement, SchedulerId, Span, Time};

use super::{
    RunId, RunPhase, RunState, WorkerMachine, WorkerStep, send_message, send_message_at_once,
};
use crate::message::FromWorker;
use crate::mutant::Mutant;

/// The longest lease that is granted, whatever is requested: how long a dead scheduler can block its portion.
pub(super) const MAX_TTL: Span = Span::from_secs(600);

impl WorkerMachine {
    pub(super) fn lease_requested(
        &mut self,
        now: Time,
        from: SchedulerId,
        mut wanted: LeaseRequest,
        step: &mut WorkerStep,
    ) {
        let request = wanted.request;
        wanted.ttl = wanted.ttl.min(MAX_TTL);
        let refused = match self.is_leaving {
            true => Some(RefusalKind::Unavailable),
            false => self.owner_refusal(from, step),
        };
        let answer = match refused {
            Some(kind) => LeaseDecision::Refused(kind),
            None => self.book.request(now, from, &wanted, || LeaseId::new(now, &mut self.rng)),
        };
        match answer {
            LeaseDecision::Granted(granted) => {
                self.send_grant(now, Holder::shared(from), request, granted, step);
            }
            LeaseDecision::Refused(kind) => {
                let refusal = Refusal::without_amount(kind);
                send_message_at_once(step, from, FromWorker::LeaseRefused { request, refusal });
            }
            LeaseDecision::Superseded => {}
        }
        self.choose_executors(Holder::shared(from));
        self.request_early_renewals(now, step);
    }

    pub(super) fn send_grant(
        &mut self,
        now: Time,
        holder: Holder,
        request: u64,
        LeaseGrant { lease, ttl, portion }: LeaseGrant,
        step: &mut WorkerStep,
    ) {
        let to = holder.scheduler;
        self.send_last_left(to, step);
        if self.has_unreachable() {
            self.send_unreachable(to, step);
        }
        let (epoch, holding) = (self.epoch, self.holding_for(holder));
        let granted = FromWorker::LeaseGranted { request, lease, epoch, ttl, portion, holding };
        send_message(step, to, granted);
        self.report_running(now, to, |other| other == holder, step);
    }

    /// Reports what runs under some leases to their holder, which may not know.
    pub(super) fn report_running(
        &self,
        now: Time,
        to: SchedulerId,
        is_reported: impl Fn(Holder) -> bool,
        step: &mut WorkerStep,
    ) {
        for (run, state) in &self.runs {
            if let RunPhase::Running { since } = state.phase
                && run.scheduler == to
                && is_reported(state.holder)
            {
                let (attempt, fence) = (state.dispatch.attempt, run.fence);
                if let Some(devices) = self.book.devices_of(*run) {
                    let devices = devices.to_vec();
                    let assigned = FromWorker::DevicesAssigned { attempt, fence, devices };
                    send_message(step, to, assigned);
                }
                let message = FromWorker::Running { attempt, fence, elapsed: now.since(since) };
                send_message(step, to, message);
            }
        }
    }

    pub(super) fn renew(
        &mut self,
        now: Time,
        from: SchedulerId,
        (lease, epoch): (LeaseId, Epoch),
        (nonce, demand): (u64, Option<Arc<Requirement>>),
        step: &mut WorkerStep,
    ) {
        let held = self.holder_of(from, lease, epoch);
        if held.is_some() && self.is_leaving {
            return self.send_left(from, step);
        }
        let renewed =
            held.and_then(|held| Some((held, self.book.renew(now, held, lease, demand)?)));
        let Some((holder, LeaseGrant { portion, .. })) = renewed else {
            return send_message_at_once(step, from, FromWorker::LeaseUnknown { lease, epoch });
        };
        self.acknowledge_leave(from);
        if holder.offer.is_some() {
            self.issue_receipt(now, holder, lease, false, step);
        }
        if self.has_unreachable() {
            self.send_unreachable(from, step);
        }
        if let Some(until) = self.book.taken_back(holder) {
            // The notice may have been lost, and no answer may be taken for a renewal.
            let grace = until.since(now);
            return send_message_at_once(step, from, FromWorker::Preempted { lease, epoch, grace });
        }
        self.choose_executors(holder);
        let (usage, holding) = (self.usage, self.holding_for(holder));
        let alive = FromWorker::Alive { lease, epoch, nonce, portion, usage, holding };
        send_message_at_once(step, from, alive);
        self.request_early_renewals(now, step);
    }

    /// Chooses executors again for the waiting runs of a lease whose portion has changed. Runs that the portion no
    /// longer covers keep waiting: the holder takes them back when it learns of the change, and until then the lease
    /// may grow again.
    fn choose_executors(&mut self, holder: Holder) {
        for id in self.waiting_of(holder) {
            if let Some(run) = self.runs.get_mut(&id)
                && let Ok(at) = self.book.executor_for(holder, &run.dispatch.spec.requirement)
            {
                run.executor = at;
            }
        }
    }

    /// Tells holders to renew if their leases would cover another portion.
    pub(super) fn request_early_renewals(&mut self, now: Time, step: &mut WorkerStep) {
        let epoch = self.epoch;
        for (holder, lease) in self.book.early_renewals(now) {
            let message = FromWorker::RenewEarly { lease, epoch };
            send_message_at_once(step, holder.scheduler, message);
        }
    }

    pub(super) fn expire_leases(&mut self, now: Time, step: &mut WorkerStep) {
        while let Some(holder) = self.book.expired(now) {
            self.end_lease(now, holder, step);
        }
    }

    /// A lease has ended: its runs must stop, and its holder does not wait for their results.
    pub(super) fn end_lease(&mut self, now: Time, holder: Holder, step: &mut WorkerStep) {
        if let Some((lease, until)) = self.book.lease_of(holder) {
            self.issue_receipt(now.min(until), holder, lease, true, step);
        }
        self.book.release(holder);
        self.forget_offer(holder, step);
        if !self.is(Mutant::RunWithoutLease) {
            let of_holder = |(_, run): &(&RunId, &RunState)| run.holder == holder;
            let runs: Vec<RunId> = self.runs.iter().filter(of_holder).map(|(id, _)| *id).collect();
            for id in runs {
                self.stop(id, false, step);
            }
            self.queues.remove(&holder);
        }
        self.request_early_renewals(now, step);
    }
}
