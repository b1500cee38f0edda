//! Leases, heartbeats and health: which workers are available.

use std::sync::Arc;

use hypha_market::{HeldLease, LeaseRequest, Portion};
use hypha_model::{
    AttemptId, Epoch, Fence, LeaseId, RefusalKind, Span, Time, Usage, Worker, WorkerId,
};
use hypha_placement::{Health, WorkerSlot};
use hypha_predict::WorkerKey;
use serde::Serialize;

use super::failure::Failure;
use super::quarantine::FailureStreaks;
use super::stall::STALLED;
use super::{Due, Effect, Scheduler, SchedulerStep};
use crate::message::{CheckedMessage, FromWorker, ToWorker};
use crate::record::Record;

/// A worker that the scheduler knows.
pub(super) struct WorkerState {
    pub(super) worker: Arc<Worker>,
    pub(super) predictor_key: WorkerKey,
    /// Its record has changed since it was last saved.
    pub(super) is_unsaved: bool,
    pub(super) streaks: FailureStreaks,
    /// It lost attempts, and has sent nothing since.
    pub(super) loss_counted: bool,
    /// When its last message arrived.
    pub(super) last_heard: Time,
    /// It has not answered a message in time, and has sent nothing since: it gets no new tasks until it does.
    pub(super) is_unresponsive: bool,
    pub(super) lease: HeldLease,
    /// What the lease covers; `None` is all of the worker.
    pub(super) portion: Option<Arc<Portion>>,
    pub(super) draining: bool,
    /// It has a new description, and still has tasks of the old one: it gets no new tasks until those are gone.
    pub(super) replaced: bool,
    pub(super) due: Option<Time>,
    pub(super) lost: Option<Lost>,
}

/// A worker that cannot be relied on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lost {
    pub(super) since: Time,
    /// Why not; `None` for a worker that was never leased.
    pub(super) reason: Option<&'static str>,
}

/// A view of a worker's lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LeaseView {
    /// The lease.
    pub lease: LeaseId,
    /// Its epoch.
    pub epoch: Epoch,
    /// Until when the holder relies on it.
    pub until: Time,
    /// What it covers; `None` is all of the worker.
    pub portion: Option<Arc<Portion>>,
}

impl WorkerState {
    /// Whether it may get tasks.
    fn is_available(&self) -> bool {
        self.unavailability().is_none()
    }

    /// Marks it as lost, and since when. A worker that was never leased cannot be lost.
    pub(super) fn mark_lost(&mut self, now: Time, reason: &'static str) {
        if self.lost.is_none() {
            self.lost = Some(Lost { since: now, reason: Some(reason) });
        }
    }

    /// Whether it can be expected to answer.
    pub(super) fn is_connected(&self) -> bool {
        self.lost.is_none_or(|lost| lost.reason.is_none())
            && !self.is_unresponsive
            && !self.draining
    }

    pub(super) fn lease(&self) -> Option<(LeaseId, Epoch)> {
        self.lease.id()
    }

    pub(super) fn lease_view(&self) -> Option<LeaseView> {
        let HeldLease::Held { lease, epoch, until, .. } = self.lease else { return None };
        Some(LeaseView { lease, epoch, until, portion: self.portion.clone() })
    }
}

impl Scheduler {
    pub(super) fn worker_found(
        &mut self,
        now: Time,
        worker: Arc<Worker>,
        step: &mut SchedulerStep,
    ) {
        if let Some(removed) = self.removed.get_mut(&worker.id) {
            let id = worker.id;
            removed.description = Some(worker);
            return self.request_lease_now(now, id, step);
        }
        if let Some(slot) = self.slot_of.get(&worker.id).copied() {
            let Some(Some(known)) = self.workers.get_mut(slot.0 as usize) else { return };
            if known.worker == worker {
                let was_draining = std::mem::take(&mut known.draining);
                let was_replaced = std::mem::take(&mut known.replaced);
                if was_draining || was_replaced {
                    self.draining.remove(&slot);
                    self.cancel_replacement(worker.id);
                    self.update_availability(now, slot);
                }
                return self.request_lease_now(now, worker.id, step);
            }
            // It has a new description: a new worker replaces the old one, with its record.
            let old = Arc::clone(&known.worker);
            known.replaced = true;
            self.placement.set_available(slot, false, now);
            let returned = Failure::Returned("the worker changed its description");
            self.fail_all_of(now, slot, returned, step);
            if !self.placement.is_idle(slot) {
                return self.defer_replacement(worker);
            }
            let health = self.placement.health(slot).unwrap_or_default();
            let streaks = self.forget_worker(now, slot, step);
            let record = health.clone();
            step.persist(Record::Worker { worker: Arc::clone(&worker), health: record });
            let slot = self.add_worker(now, worker, health, step);
            return self.inherit_streaks(now, slot, streaks, &old);
        }
        let health = Health::default();
        step.persist(Record::Worker { worker: Arc::clone(&worker), health });
        self.add_worker(now, worker, Health::default(), step);
    }

    /// A worker was found again: requests a lease without waiting for the next retry. A worker that was removed may
    /// have attempts to finish.
    fn request_lease_now(&mut self, now: Time, worker: WorkerId, step: &mut SchedulerStep) {
        let is_pooled = self.is_pooled(worker);
        if let Some((slot, state)) = self.state_of(worker) {
            if let HeldLease::Requested { retry_at, .. } = &mut state.lease
                && !is_pooled
            {
                *retry_at = now;
            }
            self.worker_due(now, slot, step);
        }
    }

    pub(super) fn add_worker(
        &mut self,
        now: Time,
        worker: Arc<Worker>,
        health: Health,
        step: &mut SchedulerStep,
    ) -> WorkerSlot {
        let first_request = if self.is_pooled(worker.id) { Time::MAX } else { now };
        let predict = self.predictor.add_worker(worker.id, worker.hardware.as_ref());
        let hardware = self.predictor.hardware(worker.hardware.as_ref());
        let slot = self.placement.add_worker(Arc::clone(&worker), predict, hardware, health, now);
        self.placement.set_factor(slot, self.predictor.factor(predict), now);
        self.slot_of.insert(worker.id, slot);
        if self.workers.len() <= slot.0 as usize {
            self.workers.resize_with(slot.0 as usize + 1, || None);
        }
        self.workers[slot.0 as usize] = Some(WorkerState {
            streaks: FailureStreaks::none(&worker),
            worker,
            predictor_key: predict,
            is_unsaved: false,
            loss_counted: false,
            last_heard: now,
            is_unresponsive: false,
            lease: HeldLease::request_at(now, first_request),
            portion: None,
            draining: false,
            replaced: false,
            due: None,
            lost: Some(Lost { since: now, reason: None }),
        });
        self.worker_due(now, slot, step);
        slot
    }

    /// Passes the predictor's factor of a worker to placement.
    pub(super) fn update_factor(&mut self, now: Time, slot: WorkerSlot) {
        if let Some(Some(state)) = self.workers.get(slot.0 as usize) {
            self.placement.set_factor(slot, self.predictor.factor(state.predictor_key), now);
        }
    }

    pub(super) fn handle_worker_message(
        &mut self,
        now: Time,
        worker: WorkerId,
        message: CheckedMessage,
        step: &mut SchedulerStep,
    ) {
        let (message, digest_matches) = message.into_parts();
        let was_unresponsive = self.record_message(now, worker);
        let Some(message) = self.handle_job_message(now, worker, message, step) else {
            self.plan_wanted = was_unresponsive;
            return;
        };
        match message {
            FromWorker::LeaseGranted { request, lease, epoch, ttl, portion, holding } => {
                let granted = (lease, epoch, ttl, portion);
                self.lease_granted(now, worker, request, granted, &holding, step);
            }
            FromWorker::LeaseRefused { request, refusal } => {
                self.plan_wanted = false;
                self.lease_refused(now, worker, request, refusal.kind);
            }
            FromWorker::Alive { lease, epoch, nonce, portion, usage, holding } => {
                self.usage_measured(now, worker, usage);
                self.heartbeat_answered(
                    now,
                    worker,
                    (lease, epoch),
                    (nonce, portion),
                    &holding,
                    step,
                );
            }
            FromWorker::RenewEarly { lease, epoch } => {
                self.plan_wanted = false;
                self.renew_early(now, worker, (lease, epoch), step);
            }
            FromWorker::LeaseUnknown { lease, epoch } => {
                let held = self.state_of(worker).and_then(|(_, state)| state.lease());
                if held == Some((lease, epoch)) {
                    self.worker_lost(now, worker, "the worker has lost the lease", step);
                }
            }
            FromWorker::Accepted { attempt, fence } => {
                self.acknowledged(now, worker, attempt, fence);
            }
            FromWorker::Delegated { attempt, fence, handle } => {
                self.delegated(now, worker, (attempt, fence), handle, step);
            }
            FromWorker::DevicesAssigned { attempt, fence, devices } => {
                self.devices_assigned(worker, (attempt, fence), devices);
            }
            FromWorker::Started { attempt, fence } => {
                self.started(now, worker, (attempt, fence), Span::ZERO, step);
            }
            FromWorker::Running { attempt, fence, elapsed } => {
                self.started(now, worker, (attempt, fence), elapsed, step);
            }
            FromWorker::Progress { attempt, fence, permille } => {
                self.progressed(worker, (attempt, fence), permille, step);
            }
            FromWorker::Output { attempt, fence, piece } => {
                self.output_received(worker, (attempt, fence), piece, step);
            }
            FromWorker::Refused { attempt, fence, refusal } => {
                self.refused(now, worker, (attempt, fence), refusal, step);
            }
            FromWorker::Finished { attempt, fence, run, outcome } => {
                let outcome = (outcome, digest_matches);
                self.finished(now, worker, (attempt, fence), run, outcome, step);
            }
            FromWorker::Unreachable { executors, owner } => {
                self.executors_unreachable(now, worker, (&executors, owner))
            }
            FromWorker::Left { epoch, lease } => self.worker_left(now, worker, epoch, lease, step),
            // Handled above.
            FromWorker::Offered(_)
            | FromWorker::NotOffered(_)
            | FromWorker::OfferUnknown(_)
            | FromWorker::ReceiptIssued(_)
            | FromWorker::Preempted { .. } => {}
        }
        // Whatever the message was, the worker may get tasks again.
        self.plan_wanted |= was_unresponsive;
    }

    /// Notes that a message of a worker arrived. Returns whether the worker was unresponsive.
    fn record_message(&mut self, now: Time, worker: WorkerId) -> bool {
        let Some((slot, state)) = self.state_of(worker) else { return false };
        state.loss_counted = false;
        state.last_heard = now;
        let was_unresponsive = std::mem::take(&mut state.is_unresponsive);
        if was_unresponsive {
            self.update_availability(now, slot);
        }
        self.placement.mark_seen(slot, now);
        was_unresponsive
    }

    /// A message sent to a worker at `sent` was not answered in time: returns whether the worker has been silent since.
    /// Such a worker is unresponsive. It gets a heartbeat at once, and tasks that have not started there go to other
    /// workers meanwhile.
    pub(super) fn check_silent_since(
        &mut self,
        now: Time,
        slot: WorkerSlot,
        sent: Time,
        step: &mut SchedulerStep,
    ) -> bool {
        let Some(Some(state)) = self.workers.get_mut(slot.0 as usize) else { return false };
        if state.last_heard > sent {
            // A message was lost in transit.
            return false;
        }
        if std::mem::replace(&mut state.is_unresponsive, true) {
            return true;
        }
        let keeps_bound = state.draining;
        let sends_heartbeat = match &mut state.lease {
            HeldLease::Held { unanswered: None, missed, next, .. } => {
                // The unanswered message counts as a missed heartbeat.
                (*missed, *next) = ((*missed).max(1), now);
                true
            }
            _ => false,
        };
        self.update_availability(now, slot);
        self.reassign_unacknowledged(now, slot, step);
        if !keeps_bound {
            self.release_bound(now, slot);
        }
        if sends_heartbeat {
            self.worker_due(now, slot, step);
        }
        true
    }

    fn lease_granted(
        &mut self,
        now: Time,
        worker: WorkerId,
        answered: u64,
        (lease, epoch, ttl, portion): (LeaseId, Epoch, Span, Option<Portion>),
        holding: &[(AttemptId, Fence)],
        step: &mut SchedulerStep,
    ) {
        // Time beyond the requested TTL is not relied on.
        let ttl = ttl.min(self.settings.lease_ttl);
        let least = self.settings.health_check_timeout.min(self.settings.lease_ttl);
        let next = now + self.settings.renewal_interval(ttl, portion.is_some());
        let Some((slot, state)) = self.state_of(worker) else {
            // The worker was removed meanwhile: the lease would not be used or renewed.
            let message = ToWorker::ReleaseLease { lease, epoch };
            return step.send(Effect::ToWorker { worker, message });
        };
        let Some((sent, until)) = state.lease.granted(now, answered, ttl) else { return };
        if ttl < least {
            // Too short to be renewed in time: treated as refused.
            return self.lease_refused(now, worker, answered, RefusalKind::TooSlow);
        }
        state.lost = None;
        state.lease =
            HeldLease::Held { lease, epoch, ttl, until, unanswered: None, missed: 0, next };
        self.placement.record_contact(slot, now.since(sent), now);
        self.set_portion(now, slot, portion, step);
        self.reconcile_after_grant(now, worker, slot, holding, step);
        self.mark_reachable(now, slot, sent);
        self.update_availability(now, slot);
        self.arm_worker(slot);
        step.send_at_once(Effect::WorkerLeased(worker));
    }

    pub(super) fn update_availability(&mut self, now: Time, slot: WorkerSlot) {
        if let Some(Some(state)) = self.workers.get(slot.0 as usize) {
            match state.draining && !state.is_unresponsive && state.lease().is_some() {
                true => self.placement.drain(slot, now),
                false => self.placement.set_available(slot, state.is_available(), now),
            }
        }
    }

    /// The request stands as if it had not been answered: it is repeated, with a growing interval.
    fn lease_refused(&mut self, now: Time, worker: WorkerId, answered: u64, why: RefusalKind) {
        let look_at = now + self.settings.health_check_timeout;
        if let Some((slot, state)) = self.state_of(worker)
            && let HeldLease::Requested { request, retry_at, refused, .. } = &mut state.lease
            && *request == answered
        {
            *refused = Some(why);
            if why == RefusalKind::Unavailable {
                // The back end behind it is unreachable, and most are back soon.
                *retry_at = (*retry_at).min(look_at);
                self.arm_worker(slot);
            }
        }
    }

    fn heartbeat_answered(
        &mut self,
        now: Time,
        worker: WorkerId,
        named: (LeaseId, Epoch),
        (answered, portion): (u64, Option<Portion>),
        holding: &[(AttemptId, Fence)],
        step: &mut SchedulerStep,
    ) {
        let Some((slot, state)) = self.state_of(worker) else { return };
        let Some(sent) = state.lease.renewed(named, answered) else { return };
        self.placement.record_contact(slot, now.since(sent), now);
        self.set_portion(now, slot, portion, step);
        if self.unreconciled.contains_key(&worker) {
            // A worker of the pool, whose lease outlived a restart of the scheduler.
            self.reconcile_after_grant(now, worker, slot, holding, step);
        }
        self.mark_reachable(now, slot, sent);
        self.arm_worker(slot);
        self.reconcile(now, worker, slot, (sent, holding), step);
    }

    /// A worker has measured how much of its machine is in use.
    fn usage_measured(&mut self, now: Time, worker: WorkerId, usage: Option<Usage>) {
        if let (Some(slot), Some(usage)) = (self.slot_of.get(&worker), usage) {
            self.placement.set_usage(*slot, usage, now);
        }
    }

    /// A worker is due: requests a lease, sends a heartbeat, or gives the lease up.
    pub(super) fn worker_due(&mut self, now: Time, slot: WorkerSlot, step: &mut SchedulerStep) {
        let (interval, timeout) =
            (self.settings.health_check_interval, self.settings.health_check_timeout);
        let next_request = self.next_request();
        let resumed = self.resumed;
        let Some(Some(state)) = self.workers.get_mut(slot.0 as usize) else { return };
        if let Some(old) = state.due.take() {
            self.agenda.remove(&(old, Due::Worker(slot)));
        }
        let id = state.worker.id;
        let mut missed_since = None;
        if let Some(Lost { since, .. }) = state.lost
            && since + self.settings.forget_worker_after <= now
            && self.take_back_all(now, slot, "the worker has been lost for too long", step)
        {
            self.forget_worker(now, slot, step);
            step.send(Effect::WorkerForgotten(id));
            return;
        }
        self.end_quarantines(now, slot);
        let Some(Some(state)) = self.workers.get_mut(slot.0 as usize) else { return };
        match &mut state.lease {
            HeldLease::Requested { retry_at, .. } => {
                if *retry_at <= now {
                    // At growing intervals, up to that of heartbeats.
                    state.lease.request_sent(now, next_request, (timeout, interval));
                    let ttl = self.settings.lease_ttl;
                    let request =
                        LeaseRequest { request: next_request, ttl, ..LeaseRequest::default() };
                    let message = ToWorker::RequestLease(request);
                    step.send(Effect::ToWorker { worker: id, message });
                }
            }
            HeldLease::Held { lease, epoch, ttl, until, unanswered, missed, next } => {
                if *until <= now {
                    let until = *until;
                    return self.lease_ran_out(now, id, until, step);
                }
                if let Some((_, sent)) = *unanswered
                    && sent.max(resumed) + timeout <= now
                {
                    *missed += 1;
                    *unanswered = None;
                    missed_since = Some(sent);
                    // A missed heartbeat is repeated at once.
                    *next = now;
                    if *missed >= self.settings.max_consecutive_failures {
                        return self.worker_lost(
                            now,
                            id,
                            "the worker did not respond in time",
                            step,
                        );
                    }
                }
                if unanswered.is_none() && *next <= now {
                    *unanswered = Some((next_request, now));
                    let (lease, epoch, nonce, ttl) = (*lease, *epoch, next_request, *ttl);
                    let is_part = state.portion.is_some();
                    *next = now + self.settings.renewal_interval(ttl, is_part);
                    let demand = self.demand_on(slot);
                    let message = ToWorker::Heartbeat { lease, epoch, nonce, demand };
                    step.send(Effect::ToWorker { worker: id, message });
                }
            }
        }
        self.arm_worker(slot);
        if let Some(sent) = missed_since {
            self.check_silent_since(now, slot, sent, step);
        }
    }

    pub(super) fn arm_worker(&mut self, slot: WorkerSlot) {
        let (timeout, resumed) = (self.settings.health_check_timeout, self.resumed);
        let forget_after = self.settings.forget_worker_after;
        let Some(Some(state)) = self.workers.get_mut(slot.0 as usize) else { return };
        let mut at = match state.lease {
            HeldLease::Requested { retry_at, .. } => retry_at,
            HeldLease::Held { until, unanswered: Some((_, sent)), .. } => {
                until.min(sent.max(resumed) + timeout)
            }
            HeldLease::Held { until, unanswered: None, next, .. } => until.min(next),
        };
        if let Some(end) = state.streaks.next_end() {
            at = at.min(end);
        }
        if let Some(Lost { since, .. }) = state.lost {
            at = at.min(since + forget_after);
        }
        if let Some(old) = state.due.replace(at) {
            self.agenda.remove(&(old, Due::Worker(slot)));
        }
        self.agenda.insert((at, Due::Worker(slot)));
    }

    /// The worker is lost: takes its attempts back, and requests a new lease.
    pub(super) fn worker_lost(
        &mut self,
        now: Time,
        worker: WorkerId,
        reason: &'static str,
        step: &mut SchedulerStep,
    ) {
        let Some(slot) = self.drop_lease(now, worker, reason, step) else { return };
        self.fail_all_of(now, slot, Failure::WorkerLost(reason.to_owned()), step);
        self.worker_due(now, slot, step);
    }

    /// A lease has expired by the scheduler's clock: the worker did not answer, or the scheduler sent no heartbeat.
    fn lease_ran_out(
        &mut self,
        now: Time,
        worker: WorkerId,
        until: Time,
        step: &mut SchedulerStep,
    ) {
        if !self.ran_out_in_stall(until) {
            return self.worker_lost(now, worker, "the lease has expired", step);
        }
        let Some(slot) = self.drop_lease(now, worker, STALLED, step) else { return };
        self.fail_all_of(now, slot, Failure::Interrupted(STALLED), step);
        self.worker_due(now, slot, step);
    }

    /// Drops a worker's lease, to request a new one.
    fn drop_lease(
        &mut self,
        now: Time,
        worker: WorkerId,
        reason: &'static str,
        step: &mut SchedulerStep,
    ) -> Option<WorkerSlot> {
        let next_request = if self.is_pooled(worker) { Time::MAX } else { now };
        self.left_pool(now, worker, step);
        let (slot, state) = self.state_of(worker)?;
        let had_lease = state.lease().is_some();
        state.mark_lost(now, reason);
        state.lease = HeldLease::request_at(now, next_request);
        self.placement.set_available(slot, false, now);
        self.counts.leases_lost += u64::from(had_lease);
        Some(slot)
    }

    /// Takes back the attempts of a worker that is about to be forgotten. Returns whether it is idle.
    fn take_back_all(
        &mut self,
        now: Time,
        slot: WorkerSlot,
        reason: &'static str,
        step: &mut SchedulerStep,
    ) -> bool {
        if !self.placement.is_idle(slot) && self.deferred.is_empty() {
            self.placement.set_available(slot, false, now);
            self.fail_all_of(now, slot, Failure::WorkerLost(reason.to_owned()), step);
        }
        self.placement.is_idle(slot)
    }

    /// Forgets an idle worker.
    pub(super) fn forget_worker(
        &mut self,
        now: Time,
        slot: WorkerSlot,
        step: &mut SchedulerStep,
    ) -> FailureStreaks {
        let Some(Some(state)) = self.workers.get_mut(slot.0 as usize).map(Option::take) else {
            return FailureStreaks::default();
        };
        if let Some(due) = state.due {
            self.agenda.remove(&(due, Due::Worker(slot)));
        }
        self.draining.remove(&slot);
        self.slot_of.remove(&state.worker.id);
        self.predictor.forget_worker(state.predictor_key);
        self.placement.remove_worker(slot, now);
        step.persist(Record::WorkerForgotten(state.worker.id));
        state.streaks
    }

    pub(super) fn state_of(&mut self, worker: WorkerId) -> Option<(WorkerSlot, &mut WorkerState)> {
        let slot = *self.slot_of.get(&worker)?;
        Some((slot, self.workers.get_mut(slot.0 as usize)?.as_mut()?))
    }
}
