//! Offers for the adverts of gangs, and what is known of the workers that make them.

use std::sync::Arc;

use hypha_market::{Offer, Portion, WorkerStanding};
use hypha_model::{AdvertId, Epoch, LeaseId, Money, OfferId, Requirement, Span, Time, WorkerId};

use super::{Effect, Job, MAX_CANDIDATES_EXAMINED, Scheduler, SchedulerStep};
use crate::job::MarketEventKind;
use crate::message::ToWorker;

impl Scheduler {
    pub(super) fn offered(
        &mut self,
        now: Time,
        worker: WorkerId,
        offer: &Arc<Offer>,
        step: &mut SchedulerStep,
    ) {
        let job = self.jobs.advertising(offer.advert).filter(|_| offer.worker_id() == worker);
        let Some(id) = job else {
            // A repeated offer that a gang has accepted: declining it would release the lease of a member.
            if self.jobs.active.values().any(|job| job.gang.has_offer(worker, offer.id)) {
                return;
            }
            let message = ToWorker::DeclineOffer(offer.id);
            return step.send_at_once(Effect::ToWorker { worker, message });
        };
        let standing = self.standing_of(worker);
        self.counts.offers += 1;
        let mut counts = false;
        self.with_job(now, id, step, |gang, context, actions| {
            counts = gang.offered(context, offer, standing, actions).is_some_and(|it| it.is_ok());
        });
        let price = offer.roles.iter().map(|role| role.price).min().unwrap_or(Money::ZERO);
        self.jobs.log(now, Some(id), MarketEventKind::Offered { worker, price, counts });
    }

    pub(super) fn not_offered(
        &mut self,
        now: Time,
        worker: WorkerId,
        advert: AdvertId,
        step: &mut SchedulerStep,
    ) {
        if let Some(id) = self.jobs.advertising(advert) {
            self.with_job(now, id, step, |gang, context, actions| {
                gang.not_offered(context, worker, advert, actions);
            });
        }
    }

    pub(super) fn offer_unknown(
        &mut self,
        now: Time,
        worker: WorkerId,
        offer: OfferId,
        step: &mut SchedulerStep,
    ) {
        let accepting = |job: &Job| job.gang.accepts(worker, offer);
        let found = self.jobs.active.iter().find(|(_, job)| accepting(job)).map(|(id, _)| *id);
        if let Some(id) = found {
            self.with_job(now, id, step, |gang, context, actions| {
                gang.offer_unknown(context, worker, offer, actions);
            });
        }
    }

    /// A lease was granted for an offer that a gang has accepted. Returns whether that is so.
    pub(super) fn offer_granted(
        &mut self,
        now: Time,
        (worker, request): (WorkerId, u64),
        grant: (LeaseId, Epoch, Span, Option<Portion>),
        step: &mut SchedulerStep,
    ) -> bool {
        let lease = grant.0;
        if self.jobs.by_lease.get(&lease).is_some_and(|(_, holder)| *holder != worker) {
            // The id of another worker's lease: the accept stays unanswered.
            return true;
        }
        let expected = |job: &Job| job.gang.expects(request) || job.gang.member(lease).is_some();
        let found = self.jobs.active.iter().find(|(_, job)| expected(job)).map(|(id, _)| *id);
        let Some(id) = found else {
            // It comes too late, and its decline may be lost.
            let is_late = self.jobs.accepts.contains(&request);
            if is_late {
                let message = ToWorker::ReleaseLease { lease, epoch: grant.1 };
                step.send(Effect::ToWorker { worker, message });
            }
            return is_late;
        };
        self.with_job(now, id, step, |gang, context, actions| {
            gang.granted(context, (worker, request), grant, actions);
        });
        true
    }

    /// The workers that are connected and could take a role, those with the best record first.
    pub(super) fn candidates_for(&self, needs: &Requirement, most: usize) -> Vec<WorkerId> {
        let known = self.workers.iter().flatten().take(MAX_CANDIDATES_EXAMINED);
        let could =
            known.filter(|state| state.is_connected() && needs.satisfied_by(&state.worker).is_ok());
        let mut found: Vec<(u32, WorkerId)> = could
            .map(|state| (self.standing_of(state.worker.id).granted_milli, state.worker.id))
            .collect();
        found.sort_by_key(|(granted, id)| (std::cmp::Reverse(*granted), *id));
        found.into_iter().take(most).map(|(_, id)| id).collect()
    }

    /// What is known of a worker that makes an offer.
    pub(super) fn standing_of(&self, worker: WorkerId) -> WorkerStanding {
        let record = self.jobs.grants.get(&worker).copied().unwrap_or_default();
        let unknown =
            WorkerStanding { granted_milli: record.granted_milli(), ..Default::default() };
        let Some(slot) = self.slot_of.get(&worker).copied() else { return unknown };
        let Some(Some(state)) = self.workers.get(slot.0 as usize) else { return unknown };
        // The factor multiplies run times.
        let factor = self.predictor.factor(state.predictor_key);
        let speed = (1_000.0 / factor.max(1e-3)).round().clamp(1.0, 1e6);
        let health = self.placement.health(slot).unwrap_or_default();
        WorkerStanding {
            speed_milli: Some(speed as u32),
            success_milli: (health.success_rate.clamp(0.0, 1.0) * 1e3).round() as u32,
            round_trip: self.placement.round_trip(slot).unwrap_or(unknown.round_trip),
            ..unknown
        }
    }
}
