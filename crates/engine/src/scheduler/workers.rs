//! Leases, heartbeats and health: which workers may be given tasks.

use std::sync::Arc;

use hypha_market::{Ask, HeldLease, Portion};
use hypha_model::{AttemptId, Epoch, Fence, LeaseId, RefusalKind, Span, Time, Worker, WorkerId};
use hypha_placement::{Health, Slot};
use hypha_predict::WorkerKey;
use serde::Serialize;

use super::blame::Blames;
use super::failed::Failure;
use super::stall::STALLED;
use super::{Due, Effect, Scheduler, SchedulerStep};
use crate::message::{FromWorker, ToWorker};
use crate::record::Record;

/// A worker that the scheduler knows.
pub(super) struct WorkerState {
    pub(super) worker: Arc<Worker>,
    pub(super) predict: WorkerKey,
    /// Its record has changed since it was last saved.
    pub(super) changed: bool,
    pub(super) blames: Blames,
    /// It lost attempts, and has said nothing since.
    pub(super) loss_counted: bool,
    /// When it last said something.
    pub(super) heard: Time,
    /// It owes an answer, and has said nothing since it was asked: nothing new is given to it until it does.
    pub(super) late: bool,
    pub(super) lease: HeldLease,
    /// What the lease covers; all of the worker if there is none.
    pub(super) portion: Option<Arc<Portion>>,
    pub(super) draining: bool,
    /// It describes itself anew, and still has something that it was given before: it gets nothing new until then.
    pub(super) replaced: bool,
    pub(super) due: Option<Time>,
    pub(super) lost: Option<Lost>,
}

/// A worker that cannot be relied on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lost {
    pub(super) since: Time,
    /// Why not; `None` of one that was never leased.
    pub(super) reason: Option<&'static str>,
}

/// A worker's lease, to be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LeaseView {
    /// The lease.
    pub lease: LeaseId,
    /// Its epoch.
    pub epoch: Epoch,
    /// Until when the holder counts on it.
    pub until: Time,
    /// What it covers; all of the worker if it does not say.
    pub portion: Option<Arc<Portion>>,
}

impl WorkerState {
    /// Whether it may be given tasks.
    fn is_usable(&self) -> bool {
        self.unused().is_none()
    }

    /// Notes that it cannot be relied on, and since when. One that was never leased cannot be lost.
    pub(super) fn lose(&mut self, now: Time, reason: &'static str) {
        if self.lost.is_none() {
            self.lost = Some(Lost { since: now, reason: Some(reason) });
        }
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
            removed.seen = Some(worker);
            return self.ask_at_once(now, id, step);
        }
        if let Some(slot) = self.slot_of.get(&worker.id).copied() {
            let Some(Some(known)) = self.workers.get_mut(slot.0 as usize) else { return };
            if known.worker == worker {
                let was_draining = std::mem::take(&mut known.draining);
                let was_replaced = std::mem::take(&mut known.replaced);
                if was_draining || was_replaced {
                    self.draining.remove(&slot);
                    self.enter_no_more(worker.id);
                    self.update_availability(now, slot);
                }
                return self.ask_at_once(now, worker.id, step);
            }
            // It says something new of itself: a new worker in the old one's place, with its record.
            let old = Arc::clone(&known.worker);
            known.replaced = true;
            self.placement.set_available(slot, false, now);
            let returned = Failure::Returned("the worker describes itself anew");
            self.fail_all_of(now, slot, returned, step);
            if !self.placement.has_nothing(slot) {
                return self.enter_later(worker);
            }
            let health = self.placement.health(slot).unwrap_or_default();
            let blames = self.forget_worker(now, slot, step);
            let record = health.clone();
            step.persist(Record::Worker { worker: Arc::clone(&worker), health: record });
            let slot = self.enter_worker(now, worker, health, step);
            return self.inherit(now, slot, blames, &old);
        }
        let health = Health::default();
        step.persist(Record::Worker { worker: Arc::clone(&worker), health });
        self.enter_worker(now, worker, Health::default(), step);
    }

    /// A worker is seen again: do not wait for the next try to lease it. One that was removed may have something to
    /// finish.
    fn ask_at_once(&mut self, now: Time, worker: WorkerId, step: &mut SchedulerStep) {
        if let Some((slot, state)) = self.state_of(worker) {
            if let HeldLease::Requested { again_at, .. } = &mut state.lease {
                *again_at = now;
            }
            self.worker_due(now, slot, step);
        }
    }

    pub(super) fn enter_worker(
        &mut self,
        now: Time,
        worker: Arc<Worker>,
        health: Health,
        step: &mut SchedulerStep,
    ) -> Slot {
        let predict = self.predictor.add_worker(worker.id, worker.hardware.as_ref());
        let hardware = self.predictor.hardware(worker.hardware.as_ref());
        let slot = self.placement.add_worker(Arc::clone(&worker), predict, hardware, health, now);
        self.placement.set_factor(slot, self.predictor.factor(predict), now);
        self.slot_of.insert(worker.id, slot);
        if self.workers.len() <= slot.0 as usize {
            self.workers.resize_with(slot.0 as usize + 1, || None);
        }
        self.workers[slot.0 as usize] = Some(WorkerState {
            blames: Blames::none(&worker),
            worker,
            predict,
            changed: false,
            loss_counted: false,
            heard: now,
            late: false,
            lease: HeldLease::wanted(now, now),
            portion: None,
            draining: false,
            replaced: false,
            due: None,
            lost: Some(Lost { since: now, reason: None }),
        });
        self.worker_due(now, slot, step);
        slot
    }

    /// Tells placement what the predictor thinks of a worker's speed.
    pub(super) fn tell_factor(&mut self, now: Time, slot: Slot) {
        if let Some(Some(state)) = self.workers.get(slot.0 as usize) {
            self.placement.set_factor(slot, self.predictor.factor(state.predict), now);
        }
    }

    pub(super) fn worker_said(
        &mut self,
        now: Time,
        worker: WorkerId,
        message: FromWorker,
        step: &mut SchedulerStep,
    ) {
        let was_late = self.heard_of(now, worker);
        match message {
            FromWorker::LeaseGranted { request, lease, epoch, ttl, portion, holding } => {
                let granted = (lease, epoch, ttl, portion);
                self.granted(now, worker, request, granted, &holding, step);
            }
            FromWorker::LeaseRefused { request, refusal } => {
                self.plan_wanted = false;
                self.lease_refused(now, worker, request, refusal.kind);
            }
            FromWorker::Alive { lease, epoch, nonce, portion, holding } => {
                self.alive(now, worker, (lease, epoch), (nonce, portion), &holding, step);
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
                self.produced(worker, (attempt, fence), piece, step);
            }
            FromWorker::Refused { attempt, fence, refusal } => {
                self.refused(now, worker, (attempt, fence), refusal, step);
            }
            FromWorker::Finished { attempt, fence, run, outcome } => {
                self.finished(now, worker, (attempt, fence), run, outcome, step);
            }
            FromWorker::Away { executors } => self.said_away(now, worker, &executors),
            FromWorker::Left { epoch, lease } => self.left(now, worker, epoch, lease, step),
        }
        // Whatever it said, it may be given tasks again.
        self.plan_wanted |= was_late;
    }

    /// Notes that a worker has said something. Says whether it was late with it.
    fn heard_of(&mut self, now: Time, worker: WorkerId) -> bool {
        let Some((slot, state)) = self.state_of(worker) else { return false };
        state.loss_counted = false;
        state.heard = now;
        let was_late = std::mem::take(&mut state.late);
        if was_late {
            self.update_availability(now, slot);
        }
        was_late
    }

    /// What a worker was told at `sent` was not answered in time: says whether it has been silent since. Such a worker
    /// is late. It is asked at once whether it is there, and whatever does not run there goes to others meanwhile.
    pub(super) fn is_silent_since(
        &mut self,
        now: Time,
        slot: Slot,
        sent: Time,
        step: &mut SchedulerStep,
    ) -> bool {
        let Some(Some(state)) = self.workers.get_mut(slot.0 as usize) else { return false };
        if state.heard > sent {
            // Something was lost on the way.
            return false;
        }
        if std::mem::replace(&mut state.late, true) {
            return true;
        }
        let keeps_bound = state.draining;
        let asks = match &mut state.lease {
            HeldLease::Held { open: None, missed, next, .. } => {
                // What it did not answer counts as a heartbeat that it did not.
                (*missed, *next) = ((*missed).max(1), now);
                true
            }
            _ => false,
        };
        self.update_availability(now, slot);
        self.hand_on_unacknowledged(now, slot, step);
        if !keeps_bound {
            self.release_bound(now, slot);
        }
        if asks {
            self.worker_due(now, slot, step);
        }
        true
    }

    fn granted(
        &mut self,
        now: Time,
        worker: WorkerId,
        answered: u64,
        (lease, epoch, ttl, portion): (LeaseId, Epoch, Span, Option<Portion>),
        holding: &[(AttemptId, Fence)],
        step: &mut SchedulerStep,
    ) {
        // What was not asked for is not counted on.
        let ttl = ttl.min(self.settings.lease_ttl);
        let least = self.settings.health_check_timeout.min(self.settings.lease_ttl);
        let next = now + self.settings.renewal_interval(ttl, portion.is_some());
        let Some((slot, state)) = self.state_of(worker) else {
            // It was removed meanwhile: nobody would use or renew the lease.
            let message = ToWorker::ReleaseLease { lease, epoch };
            return step.send(Effect::ToWorker { worker, message });
        };
        let Some((sent, until)) = state.lease.granted(now, answered, ttl) else { return };
        if ttl < least {
            // Too short to be renewed in time: as good as refused.
            return self.lease_refused(now, worker, answered, RefusalKind::TooSlow);
        }
        state.lost = None;
        state.lease = HeldLease::Held { lease, epoch, ttl, until, open: None, missed: 0, next };
        self.placement.saw(slot, Some(now.since(sent)), now);
        self.covers(now, slot, portion, step);
        self.meet_again(now, worker, slot, holding, step);
        self.found_well(now, slot, sent);
        self.update_availability(now, slot);
        self.arm_worker(slot);
        step.send_at_once(Effect::WorkerLeased(worker));
    }

    pub(super) fn update_availability(&mut self, now: Time, slot: Slot) {
        if let Some(Some(state)) = self.workers.get(slot.0 as usize) {
            match state.draining && !state.late && state.lease().is_some() {
                true => self.placement.drain(slot, now),
                false => self.placement.set_available(slot, state.is_usable(), now),
            }
        }
    }

    /// The request stands as if it had not been answered: it is repeated, rarer and rarer.
    fn lease_refused(&mut self, now: Time, worker: WorkerId, answered: u64, why: RefusalKind) {
        let look_at = now + self.settings.health_check_timeout;
        if let Some((slot, state)) = self.state_of(worker)
            && let HeldLease::Requested { request, again_at, refused, .. } = &mut state.lease
            && *request == answered
        {
            *refused = Some(why);
            if why == RefusalKind::Unavailable {
                // What it stands for is away, and most who are away are back soon.
                *again_at = (*again_at).min(look_at);
                self.arm_worker(slot);
            }
        }
    }

    fn alive(
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
        self.placement.saw(slot, Some(now.since(sent)), now);
        self.covers(now, slot, portion, step);
        self.found_well(now, slot, sent);
        self.arm_worker(slot);
        self.reconcile(now, worker, slot, (sent, holding), step);
    }

    /// A worker's time has come: ask for a lease, send a heartbeat, or give it up.
    pub(super) fn worker_due(&mut self, now: Time, slot: Slot, step: &mut SchedulerStep) {
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
            && self.has_given_up(now, slot, "the worker is gone", step)
        {
            self.forget_worker(now, slot, step);
            step.send(Effect::WorkerForgotten(id));
            return;
        }
        self.end_pauses(now, slot);
        let Some(Some(state)) = self.workers.get_mut(slot.0 as usize) else { return };
        match &mut state.lease {
            HeldLease::Requested { again_at, .. } => {
                if *again_at <= now {
                    // Rarer and rarer, up to the interval of heartbeats.
                    state.lease.ask(now, next_request, (timeout, interval));
                    let ttl = self.settings.lease_ttl;
                    let ask = Ask { request: next_request, ttl, ..Ask::default() };
                    let message = ToWorker::RequestLease(ask);
                    step.send(Effect::ToWorker { worker: id, message });
                }
            }
            HeldLease::Held { lease, epoch, ttl, until, open, missed, next } => {
                if *until <= now {
                    let until = *until;
                    return self.lease_ran_out(now, id, until, step);
                }
                if let Some((_, sent)) = *open
                    && sent.max(resumed) + timeout <= now
                {
                    *missed += 1;
                    *open = None;
                    missed_since = Some(sent);
                    // A missed heartbeat is repeated at once.
                    *next = now;
                    if *missed >= self.settings.max_consecutive_failures {
                        return self.worker_lost(now, id, "the worker does not answer", step);
                    }
                }
                if open.is_none() && *next <= now {
                    *open = Some((next_request, now));
                    let (lease, epoch, nonce, ttl) = (*lease, *epoch, next_request, *ttl);
                    let is_part = state.portion.is_some();
                    *next = now + self.settings.renewal_interval(ttl, is_part);
                    let short_of = self.short_of(slot);
                    let message = ToWorker::Heartbeat { lease, epoch, nonce, short_of };
                    step.send(Effect::ToWorker { worker: id, message });
                }
            }
        }
        self.arm_worker(slot);
        if let Some(sent) = missed_since {
            self.is_silent_since(now, slot, sent, step);
        }
    }

    pub(super) fn arm_worker(&mut self, slot: Slot) {
        let (timeout, resumed) = (self.settings.health_check_timeout, self.resumed);
        let forget_after = self.settings.forget_worker_after;
        let Some(Some(state)) = self.workers.get_mut(slot.0 as usize) else { return };
        let mut at = match state.lease {
            HeldLease::Requested { again_at, .. } => again_at,
            HeldLease::Held { until, open: Some((_, sent)), .. } => {
                until.min(sent.max(resumed) + timeout)
            }
            HeldLease::Held { until, open: None, next, .. } => until.min(next),
        };
        if let Some(end) = state.blames.next_end() {
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

    /// The worker cannot be relied on any more: take back what it has, and ask for a new lease.
    pub(super) fn worker_lost(
        &mut self,
        now: Time,
        worker: WorkerId,
        reason: &'static str,
        step: &mut SchedulerStep,
    ) {
        let Some(slot) = self.lose_lease(now, worker, reason) else { return };
        self.fail_all_of(now, slot, Failure::Worker(reason.to_owned()), step);
        self.worker_due(now, slot, step);
    }

    /// A lease has run out by our own clock: the worker does not answer, or we did not ask.
    fn lease_ran_out(
        &mut self,
        now: Time,
        worker: WorkerId,
        until: Time,
        step: &mut SchedulerStep,
    ) {
        if !self.ran_out_in_stall(until) {
            return self.worker_lost(now, worker, "the lease has run out", step);
        }
        let Some(slot) = self.lose_lease(now, worker, STALLED) else { return };
        self.fail_all_of(now, slot, Failure::Interrupted(STALLED), step);
        self.worker_due(now, slot, step);
    }

    /// Forgets a worker's lease, to ask for a new one.
    fn lose_lease(&mut self, now: Time, worker: WorkerId, reason: &'static str) -> Option<Slot> {
        let (slot, state) = self.state_of(worker)?;
        let had_lease = state.lease().is_some();
        state.lose(now, reason);
        state.lease = HeldLease::wanted(now, now);
        self.placement.set_available(slot, false, now);
        self.counts.leases_lost += u64::from(had_lease);
        Some(slot)
    }

    /// Takes back what a worker has that is to be forgotten. Says whether nothing is left.
    fn has_given_up(
        &mut self,
        now: Time,
        slot: Slot,
        reason: &'static str,
        step: &mut SchedulerStep,
    ) -> bool {
        if !self.placement.has_nothing(slot) && self.deferred.is_empty() {
            self.placement.set_available(slot, false, now);
            self.fail_all_of(now, slot, Failure::Worker(reason.to_owned()), step);
        }
        self.placement.has_nothing(slot)
    }

    /// Forgets a worker that has nothing.
    pub(super) fn forget_worker(
        &mut self,
        now: Time,
        slot: Slot,
        step: &mut SchedulerStep,
    ) -> Blames {
        let Some(Some(state)) = self.workers.get_mut(slot.0 as usize).map(Option::take) else {
            return Blames::default();
        };
        if let Some(due) = state.due {
            self.agenda.remove(&(due, Due::Worker(slot)));
        }
        self.draining.remove(&slot);
        self.slot_of.remove(&state.worker.id);
        self.predictor.forget_worker(state.predict);
        self.placement.remove_worker(slot, now);
        step.persist(Record::WorkerForgotten(state.worker.id));
        state.blames
    }

    pub(super) fn state_of(&mut self, worker: WorkerId) -> Option<(Slot, &mut WorkerState)> {
        let slot = *self.slot_of.get(&worker)?;
        Some((slot, self.workers.get_mut(slot.0 as usize)?.as_mut()?))
    }
}
