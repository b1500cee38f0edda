//! Adverts and offers: the worker's arbiter. It compares adverts, reserves capacity in the one lease book, and offers what
//! is reserved. A reservation that is accepted is a lease like any other.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hypha_market::{
    Advert, Advertiser, Arbiter, FixedPortion, Holder, Offer, OfferedRole, OpenAdvert, Portion,
    Pricing, Reservation, SchedulerRecord, Terms, WantedRole, portion_for,
};
use hypha_model::{
    AdvertId, LeaseId, Money, OfferId, Priority, Requirement, SchedulerId, Span, Time,
};

use super::lease::MAX_TTL;
use super::{WorkerMachine, WorkerStep, send_message_at_once};
use crate::message::FromWorker;
use crate::mutant::Mutant;

/// Schedulers that a worker remembers: more than are ever connected to one.
const MAX_SCHEDULERS: usize = 1_024;
/// How long what runs under a lease has to save its work before the lease is taken back: enough for a checkpoint of some
/// gigabytes.
const PREEMPTION_GRACE: Span = Span::from_secs(30);
/// Offers of one scheduler that are not accepted yet, at one worker. It needs one for each gang or pool that grows.
const MAX_OFFERS_PER_SCHEDULER: usize = 8;
/// How much worse a worker fits that is reached through a relay.
const RELAYED_FIT: f64 = 0.5;

/// The worker's side of the market.
#[derive(Default)]
pub(super) struct Market {
    pub(super) terms: Terms,
    /// Whether others reach this worker through a relay.
    is_relayed: bool,
    arbiter: Arbiter,
    /// Offers that were made or wait for their capacity, and those that became leases, until those end.
    offers: BTreeMap<OfferId, OpenOffer>,
    schedulers: BTreeMap<SchedulerId, KnownScheduler>,
}

struct OpenOffer {
    holder: Holder,
    priority: Priority,
    /// When it was reserved, and when it was sent.
    since: Time,
    sent: Option<Time>,
    advert: Arc<Advert>,
    /// The roles that it is for.
    roles: Vec<u16>,
    is_direct: bool,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// It waits for its capacity.
    Waiting,
    /// It was sent.
    Sent,
    /// It was accepted.
    Leased {
        /// A run began under the lease.
        is_used: bool,
    },
}

struct KnownScheduler {
    organisation: hypha_model::Name,
    record: SchedulerRecord,
}

impl Market {
    pub(super) fn mutate_order(&mut self) {
        self.arbiter.mutate_order();
    }
}

impl WorkerMachine {
    /// An incarnation that is offered on these terms.
    pub fn with_terms(mut self, terms: Terms) -> WorkerMachine {
        self.market.terms = terms;
        self
    }

    /// An incarnation that others reach through a relay, if `is_relayed`.
    pub fn with_reachability(mut self, is_relayed: bool) -> WorkerMachine {
        self.market.is_relayed = is_relayed;
        self
    }

    /// The terms on which it is offered.
    pub fn terms(&self) -> &Terms {
        &self.market.terms
    }

    /// The organisation of a scheduler that has connected.
    pub(super) fn organisation_of(&self, scheduler: SchedulerId) -> Option<&hypha_model::Name> {
        self.market.schedulers.get(&scheduler).map(|known| &known.organisation)
    }

    pub(super) fn scheduler_connected(&mut self, from: Advertiser) {
        let schedulers = &mut self.market.schedulers;
        if let Some(known) = schedulers.get_mut(&from.scheduler) {
            known.organisation = from.organisation;
            return;
        }
        let is_full = schedulers.len() >= MAX_SCHEDULERS;
        if is_full {
            // The new one replaces one without a lease, whose organisation is learned again when it reconnects.
            let holders: BTreeSet<SchedulerId> =
                self.book.holders().map(|holder| holder.scheduler).collect();
            let unused = schedulers.keys().find(|known| !holders.contains(known)).copied();
            let Some(unused) = unused else { return };
            schedulers.remove(&unused);
        }
        let (organisation, record) = (from.organisation, SchedulerRecord::default());
        schedulers.insert(from.scheduler, KnownScheduler { organisation, record });
    }

    pub(super) fn reachability_changed(&mut self, is_relayed: bool) {
        self.market.is_relayed = is_relayed;
    }

    /// An advert arrived from a scheduler on its channel.
    pub(super) fn advertised_directly(
        &mut self,
        now: Time,
        scheduler: SchedulerId,
        advert: Arc<Advert>,
        step: &mut WorkerStep,
    ) {
        let id = advert.id;
        let is_taken = match self.organisation_of(scheduler).cloned() {
            Some(organisation) => {
                self.advertised(now, Advertiser { scheduler, organisation }, advert, true)
            }
            None => false,
        };
        if !is_taken {
            send_message_at_once(step, scheduler, FromWorker::NotOffered(id));
        }
    }

    /// An advert arrived. Returns whether it may be answered with an offer.
    pub(super) fn advertised(
        &mut self,
        now: Time,
        from: Advertiser,
        advert: Arc<Advert>,
        is_direct: bool,
    ) -> bool {
        if self.is_leaving || advert.validate().is_err() {
            return false;
        }
        // A repeated advert: an offer for it is in flight.
        let is_known = |offer: &OpenOffer| {
            (offer.holder.scheduler, offer.advert.id) == (from.scheduler, advert.id)
        };
        if self.market.offers.values().any(is_known) {
            return true;
        }
        let roles: Vec<(u16, Money)> = (0..)
            .zip(&advert.roles)
            .filter_map(|(at, role)| Some((at, self.asked_price(&from, role)?)))
            .collect();
        let fit = (!is_direct).then(|| self.fit(&advert, &roles));
        let ceiling = self.market.terms.priority_ceiling(&from.organisation);
        let priority =
            ceiling.map_or(advert.priority, |ceiling: Priority| ceiling.min(advert.priority));
        let record = self.market.schedulers.get(&from.scheduler).map(|known| known.record);
        let standing = record.unwrap_or_default().standing();
        let received = (from, advert);
        let market = &mut self.market;
        market
            .arbiter
            .advertised(now, received, (priority, roles), (fit, standing), &mut self.rng)
            .is_ok()
    }

    /// What an hour of a role would cost, if the worker could take it under the owner's terms.
    fn asked_price(&self, from: &Advertiser, role: &WantedRole) -> Option<Money> {
        let terms = &self.market.terms;
        if terms.refusal_in(self.owner, from, role, &self.worker).is_some() {
            return None;
        }
        let portion = self.whole_portion_for(&role.requirement)?;
        Some(terms.price(role.bid, &portion))
    }

    /// What a role would get if nothing else were leased.
    fn whole_portion_for(&self, requirement: &Requirement) -> Option<Portion> {
        requirement.satisfied_by(&self.worker).ok()?;
        let (whole, nothing) = (Portion::whole(&self.worker), Portion::empty(&self.worker));
        match self.market.terms.pricing {
            Pricing::Whole => Some(whole),
            Pricing::Flexible => portion_for(&self.worker, &whole, &nothing, requirement),
        }
    }

    /// How well the worker fits an advert, from 0 to 1: by its price, by how much of it the role would use, and less if
    /// it is relayed.
    fn fit(&self, advert: &Advert, roles: &[(u16, Money)]) -> f64 {
        let of_role = |(at, price): &(u16, Money)| {
            let role = advert.roles.get(usize::from(*at))?;
            let price = price.as_micros().max(1) as f64;
            let by_price = (role.bid.as_micros().max(1) as f64 / price).min(1.0);
            let by_use = self.share_used_by(&role.requirement);
            Some(f64::midpoint(by_price, by_use))
        };
        let best = roles.iter().filter_map(of_role).fold(0.0, f64::max);
        if self.market.is_relayed { best * RELAYED_FIT } else { best }
    }

    /// The largest share of a resource of the worker that a role would use.
    fn share_used_by(&self, requirement: &Requirement) -> f64 {
        let (whole, nothing) = (Portion::whole(&self.worker), Portion::empty(&self.worker));
        let Some(part) = portion_for(&self.worker, &whole, &nothing, requirement) else {
            return 0.0;
        };
        let gpus = |portion: &Portion| portion.devices.iter().map(|d| u64::from(d.milli_gpu)).sum();
        let shares = [
            (part.cpu_milli, whole.cpu_milli),
            (part.memory_bytes, whole.memory_bytes),
            (gpus(&part), gpus(&whole)),
        ];
        let share = |(used, all): (u64, u64)| if all == 0 { 0.0 } else { used as f64 / all as f64 };
        shares.into_iter().map(share).fold(0.0, f64::max)
    }

    pub(super) fn advert_closed(
        &mut self,
        now: Time,
        scheduler: SchedulerId,
        advert: AdvertId,
        step: &mut WorkerStep,
    ) {
        self.market.arbiter.closed(scheduler, advert);
        // Offers that were sent are accepted or declined one by one.
        let is_waiting = |(_, offer): &(&OfferId, &OpenOffer)| {
            offer.stage == Stage::Waiting
                && (offer.holder.scheduler, offer.advert.id) == (scheduler, advert)
        };
        let waiting: Vec<Holder> =
            self.market.offers.iter().filter(is_waiting).map(|(_, offer)| offer.holder).collect();
        for holder in waiting {
            self.end_lease(now, holder, step);
        }
    }

    /// Answers the adverts that are due, and sends the offers that have got their capacity.
    pub(super) fn make_offers(&mut self, now: Time, step: &mut WorkerStep) {
        for open in self.market.arbiter.due(now) {
            self.reserve(now, open, step);
        }
        if self.market.offers.values().any(|offer| offer.stage == Stage::Waiting) {
            for holder in self.book.cover_reservations(now) {
                self.send_offer(now, holder, step);
            }
        }
    }

    fn reserve(&mut self, now: Time, open: OpenAdvert, step: &mut WorkerStep) {
        let scheduler = open.from.scheduler;
        let of_scheduler = |offer: &&OpenOffer| {
            offer.holder.scheduler == scheduler && !matches!(offer.stage, Stage::Leased { .. })
        };
        let open_offers = self.market.offers.values().filter(of_scheduler).count();
        let is_allowed =
            self.takes_new_work() && !self.is_leaving && open_offers < MAX_OFFERS_PER_SCHEDULER;
        let id = OfferId::new(now, &mut self.rng);
        let holder = Holder::offer(scheduler, id);
        let reserved = is_allowed.then(|| {
            let needs = |(at, _): &(u16, Money)| {
                Some(Arc::clone(&open.advert.roles.get(usize::from(*at))?.requirement))
            };
            let of_pool = || {
                let role = open.advert.roles.get(usize::from(open.roles.first()?.0))?;
                role.wants_all.then(|| FixedPortion::AllFree(Arc::clone(&role.requirement)))
            };
            let portion = match self.market.terms.pricing {
                Pricing::Whole => FixedPortion::Whole,
                Pricing::Flexible if let Some(all) = of_pool() => all,
                Pricing::Flexible => {
                    FixedPortion::AnyOf(open.roles.iter().filter_map(needs).collect())
                }
            };
            let wanted = Reservation {
                portion,
                time: open.reserved_for(now),
                priority: open.priority,
                is_preemptible: open.advert.is_preemptible,
                is_replacement: open.is_replacement,
                standing: open.standing,
            };
            self.book.reserve(now, holder, wanted, || LeaseId::new(now, &mut self.rng))
        });
        let Some(is_held) = reserved.flatten() else {
            if open.is_direct {
                let message = FromWorker::NotOffered(open.advert.id);
                send_message_at_once(step, scheduler, message);
            }
            return;
        };
        let offer = OpenOffer {
            holder,
            priority: open.priority,
            since: now,
            sent: None,
            advert: open.advert,
            roles: open.roles.iter().map(|(at, _)| *at).collect(),
            is_direct: open.is_direct,
            stage: Stage::Waiting,
        };
        self.market.offers.insert(id, offer);
        match is_held {
            true => self.send_offer(now, holder, step),
            false => {
                let taken_back = self.book.preempt_for(now, holder, PREEMPTION_GRACE);
                self.send_preempted(&taken_back, step);
                self.request_early_renewals(now, step);
            }
        }
    }

    fn send_offer(&mut self, now: Time, holder: Holder, step: &mut WorkerStep) {
        let Some((id, (_, until))) = holder.offer.zip(self.book.lease_of(holder)) else { return };
        let choices = self.book.choices(holder);
        let ignores_floor = self.is(Mutant::IgnoredFloor);
        let Some(open) = self.market.offers.get_mut(&id) else { return };
        let terms = &self.market.terms;
        let offered = |(at, role): (usize, &u16)| {
            // Whichever role is accepted, a worker that is leased as a whole is.
            let chosen = match terms.pricing {
                Pricing::Whole => choices.first(),
                Pricing::Flexible => choices.iter().find(|(choice, _)| *choice == at),
            };
            let bid = open.advert.roles.get(usize::from(*role))?.bid;
            let portion = chosen?.1.clone();
            let price = if ignores_floor { bid } else { terms.price(bid, &portion) };
            Some(OfferedRole { role: *role, price, portion })
        };
        let roles: Vec<OfferedRole> = open.roles.iter().enumerate().filter_map(offered).collect();
        (open.stage, open.sent) = (Stage::Sent, Some(now));
        let offer = Offer {
            id,
            advert: open.advert.id,
            worker: Arc::clone(&self.worker),
            epoch: self.epoch,
            roles,
            reserved_for: until.since(now),
            speed_milli: None,
            backlog: Span::ZERO,
            is_relayed: self.market.is_relayed,
        };
        send_message_at_once(step, holder.scheduler, FromWorker::Offered(Arc::new(offer)));
    }

    pub(super) fn offer_accepted(
        &mut self,
        now: Time,
        from: SchedulerId,
        (offer, role, request, ttl): (OfferId, u16, u64, Span),
        step: &mut WorkerStep,
    ) {
        let grants = !self.is(Mutant::NeverGrants);
        let open = self.market.offers.get_mut(&offer).filter(|open| open.holder.scheduler == from);
        let accepted =
            open.filter(|open| grants && open.stage != Stage::Waiting).and_then(|open| {
                let choice = open.roles.iter().position(|at| *at == role)?;
                let bid = open.advert.roles.get(usize::from(role))?.bid;
                let granted = self.book.accept(now, open.holder, choice, ttl.min(MAX_TTL))?;
                if open.stage == Stage::Sent {
                    open.stage = Stage::Leased { is_used: false };
                }
                Some((open.holder, granted, bid))
            });
        match accepted {
            Some((holder, granted, bid)) if !self.is_leaving => {
                let portion =
                    granted.portion.clone().unwrap_or_else(|| Portion::whole(&self.worker));
                let price = self.market.terms.price(bid, &portion);
                self.open_account(now, from, granted.lease, (price, portion));
                self.send_grant(now, holder, request, granted, step);
                self.request_early_renewals(now, step);
            }
            _ => send_message_at_once(step, from, FromWorker::OfferUnknown(offer)),
        }
    }

    pub(super) fn offer_declined(
        &mut self,
        now: Time,
        from: SchedulerId,
        offer: OfferId,
        step: &mut WorkerStep,
    ) {
        let open = self.market.offers.get_mut(&offer).filter(|open| open.holder.scheduler == from);
        let Some(open) = open else { return };
        let holder = open.holder;
        if open.stage == Stage::Sent {
            // An answer is as good as an acceptance.
            open.stage = Stage::Waiting;
            if let Some(known) = self.market.schedulers.get_mut(&from) {
                known.record.record(true);
            }
        }
        self.end_lease(now, holder, step);
    }

    /// A run began under a lease.
    pub(super) fn mark_used(&mut self, holder: Holder) {
        if let Some(id) = holder.offer
            && let Some(OpenOffer { stage: Stage::Leased { is_used }, .. }) =
                self.market.offers.get_mut(&id)
        {
            *is_used = true;
        }
    }

    /// A lease or a reservation has ended.
    pub(super) fn forget_offer(&mut self, holder: Holder, step: &mut WorkerStep) {
        let Some(open) = holder.offer.and_then(|id| self.market.offers.remove(&id)) else { return };
        let is_used = match open.stage {
            Stage::Waiting => {
                // Its capacity did not get free in time.
                if open.is_direct {
                    let message = FromWorker::NotOffered(open.advert.id);
                    send_message_at_once(step, holder.scheduler, message);
                }
                return;
            }
            Stage::Sent => false,
            Stage::Leased { is_used } => is_used,
        };
        if let Some(known) = self.market.schedulers.get_mut(&holder.scheduler) {
            known.record.record(is_used);
        }
    }

    /// Leases that may be taken back end after a grace, because the owner needs the machine.
    pub(super) fn preempt_for_owner(&mut self, now: Time, step: &mut WorkerStep) {
        let taken_back = self.book.preempt_all(now, PREEMPTION_GRACE);
        self.send_preempted(&taken_back, step);
    }

    fn send_preempted(&self, taken_back: &[(Holder, LeaseId)], step: &mut WorkerStep) {
        for (holder, lease) in taken_back {
            let message =
                FromWorker::Preempted { lease: *lease, epoch: self.epoch, grace: PREEMPTION_GRACE };
            send_message_at_once(step, holder.scheduler, message);
        }
    }

    /// Checks that no newcomer was offered what a gang of the same priority that has lost a member waits for.
    pub fn check_order(&self) -> Result<(), String> {
        let offers = self.market.offers.values();
        let is_replacing =
            |open: &&OpenOffer| open.stage == Stage::Waiting && open.advert.is_replacement;
        for waiting in offers.clone().filter(is_replacing) {
            let overtook = |open: &&OpenOffer| {
                !open.advert.is_replacement
                    && open.priority <= waiting.priority
                    && open.sent.is_some_and(|sent| sent >= waiting.since)
                    && self.book.would_suffice(open.holder, waiting.holder)
            };
            if let Some(newcomer) = offers.clone().find(overtook) {
                return Err(format!(
                    "{:?} was offered what the replacement {:?} waits for",
                    newcomer.holder, waiting.holder
                ));
            }
        }
        Ok(())
    }

    /// When an advert is to be answered.
    pub(super) fn market_wake_at(&self) -> Option<Time> {
        self.market.arbiter.wake_at()
    }
}
