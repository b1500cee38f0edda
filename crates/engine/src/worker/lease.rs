//! Who holds which part of the worker: leases are granted, renewed with more or less than before, and end in time.

use std::sync::Arc;

use hypha_market::{Answer, Ask, Granted};
use hypha_model::{Epoch, LeaseId, Refusal, RefusalKind, Requirement, SchedulerId, Span, Time};

use super::{Phase, RunId, WorkerMachine, WorkerStep, say, say_at_once};
use crate::message::FromWorker;
use crate::mutant::Mutant;

/// The longest lease that is granted, whatever is asked for: what a dead scheduler can block.
const MAX_TTL: Span = Span::from_secs(600);

impl WorkerMachine {
    pub(super) fn lease_requested(
        &mut self,
        now: Time,
        from: SchedulerId,
        mut ask: Ask,
        step: &mut WorkerStep,
    ) {
        let request = ask.request;
        ask.ttl = ask.ttl.min(MAX_TTL);
        let answer = match self.is_leaving {
            true => Answer::Refused(RefusalKind::Unavailable),
            false => self.book.request(now, from, &ask, || LeaseId::new(now, &mut self.rng)),
        };
        match answer {
            Answer::Granted(granted) => self.say_granted(now, from, request, granted, step),
            Answer::Refused(kind) => {
                let refusal = Refusal::plain(kind);
                say_at_once(step, from, FromWorker::LeaseRefused { request, refusal });
            }
            Answer::Overtaken => {}
        }
        self.choose_executors(from);
        self.ask_for_early_renewals(now, step);
    }

    fn say_granted(
        &mut self,
        now: Time,
        to: SchedulerId,
        request: u64,
        Granted { lease, ttl, portion }: Granted,
        step: &mut WorkerStep,
    ) {
        self.say_last_left(to, step);
        if !self.away.is_empty() {
            self.say_away(to, step);
        }
        let (epoch, holding) = (self.epoch, self.held_for(to));
        let granted = FromWorker::LeaseGranted { request, lease, epoch, ttl, portion, holding };
        say(step, to, granted);
        for (run, state) in &self.runs {
            if let Phase::Running { since } = state.phase
                && run.scheduler == to
            {
                let (attempt, fence) = (state.dispatch.attempt, run.fence);
                let message = FromWorker::Running { attempt, fence, elapsed: now.since(since) };
                say(step, to, message);
            }
        }
    }

    pub(super) fn renew(
        &mut self,
        now: Time,
        from: SchedulerId,
        (lease, epoch): (LeaseId, Epoch),
        (nonce, short_of): (u64, Option<Arc<Requirement>>),
        step: &mut WorkerStep,
    ) {
        let named = self.named(from, lease, epoch);
        if named && self.is_leaving {
            return self.say_left(from, step);
        }
        let renewed = named.then(|| self.book.renew(now, from, lease, short_of)).flatten();
        let Some(Granted { portion, .. }) = renewed else {
            return say_at_once(step, from, FromWorker::LeaseUnknown { lease, epoch });
        };
        self.has_heard(from);
        if !self.away.is_empty() {
            self.say_away(from, step);
        }
        self.choose_executors(from);
        let holding = self.held_for(from);
        say_at_once(step, from, FromWorker::Alive { lease, epoch, nonce, portion, holding });
        self.ask_for_early_renewals(now, step);
    }

    /// Chooses executors anew for what waits under a lease that covers something else now. What it does not cover any
    /// more waits on: the holder takes it back when it hears of it, and until then the lease may grow again.
    fn choose_executors(&mut self, holder: SchedulerId) {
        for id in self.waiting_of(holder) {
            if let Some(run) = self.runs.get_mut(&id)
                && let Ok(at) = self.book.executor_for(holder, &run.dispatch.spec.requirement)
            {
                run.executor = at;
            }
        }
    }

    /// Tells holders whose leases would cover something else to renew them.
    pub(super) fn ask_for_early_renewals(&mut self, now: Time, step: &mut WorkerStep) {
        let epoch = self.epoch;
        for (holder, lease) in self.book.early_renewals(now) {
            say_at_once(step, holder, FromWorker::RenewEarly { lease, epoch });
        }
    }

    pub(super) fn end_leases_in_time(&mut self, now: Time, step: &mut WorkerStep) {
        while let Some(holder) = self.book.expired(now) {
            self.end_lease(now, holder, step);
        }
    }

    /// A lease is over: nothing of it may go on, and nobody waits for its results.
    pub(super) fn end_lease(&mut self, now: Time, holder: SchedulerId, step: &mut WorkerStep) {
        self.book.release(holder);
        if !self.is(Mutant::RunWithoutLease) {
            let of_holder = |id: &&RunId| id.scheduler == holder;
            let runs: Vec<RunId> = self.runs.keys().filter(of_holder).copied().collect();
            for id in runs {
                self.stop(id, false, step);
            }
            self.queues.remove(&holder);
        }
        self.ask_for_early_renewals(now, step);
    }
}
