//! The scheduler's side of a gang: gets its members by adverts, all or none, renews their leases, and replaces those that
//! are lost.
//!
//! A gang advertises, collects offers, chooses a set and accepts all of it at once. If the minimum of each role is granted,
//! the gang is *formed*; otherwise all of it is released, and the next advert follows after a random, growing delay. A
//! formed gang advertises for the members that it lacks, and takes what it gets.

mod action;
mod member;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hypha_model::{
    AdvertId, Epoch, LeaseId, Maximise, Money, OfferId, Requirement, Rng, Span, Time, WorkerId,
};

use crate::advert::{Advert, Offer, WINDOW_RANGE, WantedRole};
use crate::auction::{
    Auction, Choice, Member, OfferRefusal, Shortfall, Valuation, WorkerStanding, backoff,
    offers_wanted,
};
use crate::portion::Portion;
pub use action::{GangAction, GangRole, GangSpec, Receivers};
pub use member::{GangMember, LossReason, StoredMember};

/// How long a gang waits for grants after it has accepted offers: two round trips on any link, with one repeat. Capacity
/// stays reserved for longer than this after the window.
pub const GRANT_TIMEOUT: Span = Span::from_millis(1_500);
/// When an accept that was not answered is repeated.
const REPEAT_ACCEPT_AFTER: Span = Span::from_millis(600);
/// How many times as long as the first the window of an advert may be.
const MAX_WINDOW_FACTOR: u32 = 8;
/// How long a formed gang waits before it advertises again for members that it can do without.
const GROW_INTERVAL: Span = Span::from_secs(30);
/// A worker that lost its connection has this long to come back before it is replaced.
const DISCONNECT_GRACE: Span = Span::from_secs(3);
/// A role that is asked for directly has this many times as many candidates as places.
const CANDIDATES_PER_PLACE: usize = 2;

/// What a gang needs of its scheduler.
pub struct GangContext<'a> {
    /// The time.
    pub now: Time,
    /// Randomness.
    pub rng: &'a mut Rng,
    /// A new number for a request.
    pub next_number: &'a mut dyn FnMut() -> u64,
    /// The workers that the scheduler is connected to and that could take a role, the best first, at most as many as
    /// the second argument.
    pub candidates: &'a dyn Fn(&Requirement, usize) -> Vec<WorkerId>,
}

/// See the module documentation.
#[derive(Debug)]
pub struct Gang {
    spec: Arc<GangSpec>,
    phase: Phase,
    members: BTreeMap<LeaseId, GangMember>,
    /// For each role, how many members have done their work.
    done: Vec<u32>,
    is_formed: bool,
    /// Whether it has lost a member and not replaced it.
    has_lost: bool,
    /// Adverts in a row that brought too little.
    failures: u32,
    /// Since when it lacks members of a minimum.
    short_since: Time,
    last_shortfall: Option<Box<Shortfall>>,
    mutant: Option<GangMutant>,
}

/// A fault that can be planted into a gang, to show that a checker notices. Has no effect without the `mutants` feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GangMutant {
    /// It keeps the members that it has while it is not formed.
    KeepsMembers,
    /// It pays any price.
    IgnoresMax,
    /// It does not advertise again after a failure.
    GivesUp,
}

#[derive(Debug)]
enum Phase {
    /// Nothing is advertised.
    Idle { advertise_at: Option<Time> },
    /// Offers are collected.
    Collecting { auction: Auction, advert: Advertised },
    /// Offers were accepted.
    Accepting { advert: Advertised, choice: Choice, accepts: BTreeMap<u64, Accept>, until: Time },
}

/// An advert that was sent.
#[derive(Debug)]
struct Advertised {
    id: AdvertId,
    /// For each of its roles, the role of the gang.
    roles: Vec<usize>,
    to: Receivers,
}

/// An offer that was accepted, and not granted yet.
#[derive(Debug)]
struct Accept {
    member: Member,
    sent: Time,
    /// When it was first sent, with which the holder counts.
    first_sent: Time,
    is_repeated: bool,
}

impl Gang {
    /// A gang without members, which advertises at once.
    pub fn new(spec: Arc<GangSpec>, now: Time) -> Gang {
        Gang {
            phase: Phase::Idle { advertise_at: Some(now) },
            members: BTreeMap::new(),
            done: vec![0; spec.roles.len()],
            spec,
            is_formed: false,
            has_lost: false,
            failures: 0,
            short_since: now,
            last_shortfall: None,
            mutant: None,
        }
    }

    /// Plants a fault. Does nothing without the `mutants` feature.
    pub fn mutate(&mut self, mutant: Option<GangMutant>) {
        self.mutant = mutant;
    }

    fn is(&self, mutant: GangMutant) -> bool {
        cfg!(feature = "mutants") && self.mutant == Some(mutant)
    }

    /// A gang after its scheduler's restart. Its leases are renewed at once, and not relied on before that.
    ///
    /// `done` says for each role how many members have done their work. A gang that was formed keeps the members that it
    /// has while it replaces others, as before the restart.
    pub fn recover(
        spec: Arc<GangSpec>,
        members: Vec<StoredMember>,
        (done, was_formed): (&[u32], bool),
        now: Time,
    ) -> Gang {
        let mut gang = Gang::new(spec, now);
        for (known, done) in gang.done.iter_mut().zip(done) {
            *known = *done;
        }
        let members = members.into_iter().map(|stored| GangMember::recover(stored, now));
        gang.members = members.map(|member| (member.lease, member)).collect();
        let has_minimum = gang.has_minimum();
        gang.is_formed = was_formed || has_minimum;
        gang.has_lost = was_formed && !has_minimum;
        match gang.is_formed {
            true => gang.phase = Phase::Idle { advertise_at: gang.lacks_any().then_some(now) },
            // All or none: those that it has were held for long enough.
            false => gang.members.values_mut().for_each(|member| member.expire_by(now)),
        }
        gang
    }

    /// What it is to have.
    pub fn spec(&self) -> &Arc<GangSpec> {
        &self.spec
    }

    /// Its members.
    pub fn members(&self) -> impl Iterator<Item = &GangMember> {
        self.members.values()
    }

    /// One of its members.
    pub fn member(&self, lease: LeaseId) -> Option<&GangMember> {
        self.members.get(&lease)
    }

    /// Whether all minimums were met, and the members may begin.
    pub fn is_formed(&self) -> bool {
        self.is_formed
    }

    /// Why the last advert brought too little, while that is so.
    pub fn shortfall(&self) -> Option<&Shortfall> {
        self.last_shortfall.as_deref()
    }

    /// The advert that is open, and how many offers for it count.
    pub fn open_advert(&self) -> Option<(AdvertId, usize)> {
        match &self.phase {
            Phase::Collecting { auction, advert } => Some((advert.id, auction.offers())),
            _ => None,
        }
    }

    /// Whether this is its advert, which is open or whose offers were just accepted.
    pub fn has_advert(&self, advert: AdvertId) -> bool {
        match &self.phase {
            Phase::Idle { .. } => false,
            Phase::Collecting { advert: sent, .. } | Phase::Accepting { advert: sent, .. } => {
                sent.id == advert
            }
        }
    }

    /// Whether it has accepted this offer, and it is not granted yet.
    pub fn accepts(&self, worker: WorkerId, offer: OfferId) -> bool {
        let is_it =
            |accept: &Accept| (accept.member.worker, accept.member.offer) == (worker, offer);
        matches!(&self.phase, Phase::Accepting { accepts, .. } if accepts.values().any(is_it))
    }

    /// Whether a member has joined by this offer.
    pub fn has_offer(&self, worker: WorkerId, offer: OfferId) -> bool {
        self.members.values().any(|member| (member.worker, member.offer) == (worker, offer))
    }

    /// Whether it waits for the answer to this request.
    pub fn expects(&self, request: u64) -> bool {
        matches!(&self.phase, Phase::Accepting { accepts, .. } if accepts.contains_key(&request))
    }

    /// When the next advert is sent, if none is open.
    pub fn advertises_at(&self) -> Option<Time> {
        match self.phase {
            Phase::Idle { advertise_at } => advertise_at,
            _ => None,
        }
    }

    /// When [`Gang::wake`] is to be called.
    pub fn wake_at(&self) -> Option<Time> {
        let of_phase = match &self.phase {
            Phase::Idle { advertise_at } => *advertise_at,
            Phase::Collecting { auction, .. } => Some(auction.closes_at()),
            Phase::Accepting { accepts, until, .. } => {
                let repeats = accepts.values().filter(|accept| !accept.is_repeated);
                let repeat = repeats.map(|accept| accept.sent + REPEAT_ACCEPT_AFTER).min();
                Some(repeat.map_or(*until, |repeat| repeat.min(*until)))
            }
        };
        self.members.values().map(GangMember::wake_at).chain(of_phase).min()
    }

    /// Does what is due.
    pub fn wake(&mut self, context: &mut GangContext<'_>, actions: &mut Vec<GangAction>) {
        let now = context.now;
        // First: the members of a gang that has failed are released and not renewed, also after its scheduler has stalled.
        if matches!(&self.phase, Phase::Accepting { until, .. } if *until <= now) {
            self.conclude(context, actions);
        }
        self.renew_leases(context, actions);
        match &self.phase {
            Phase::Idle { advertise_at: Some(at) } if *at <= now => {
                self.advertise(context, actions);
            }
            Phase::Collecting { auction, .. } if auction.is_complete(now) => {
                self.close(context, actions);
            }
            Phase::Accepting { accepts, .. } if accepts.is_empty() => {
                self.conclude(context, actions);
            }
            Phase::Accepting { .. } => self.repeat_accepts(context, actions),
            _ => {}
        }
    }

    /// A worker made an offer. Returns whether it is for an advert of this gang; if not, the caller declines it.
    pub fn offered(
        &mut self,
        context: &mut GangContext<'_>,
        offer: &Arc<Offer>,
        standing: WorkerStanding,
        actions: &mut Vec<GangAction>,
    ) -> Option<Result<(), OfferRefusal>> {
        let (worker, id) = (offer.worker_id(), offer.id);
        let auction = match &mut self.phase {
            Phase::Collecting { auction, advert } if advert.id == offer.advert => auction,
            // Some of those that lost were declined before, and repeat their offers.
            Phase::Accepting { advert, accepts, .. } if advert.id == offer.advert => {
                let is_accepted = |accept: &Accept| accept.member.offer == id;
                let is_member = self.members.values().any(|member| member.offer == id);
                if !is_member && !accepts.values().any(is_accepted) {
                    actions.push(GangAction::Decline { worker, offer: id });
                }
                return Some(Ok(()));
            }
            _ => return None,
        };
        let answer = auction.offered(context.now, Arc::clone(offer), standing);
        match &answer {
            Ok(displaced) => {
                let decline =
                    |(worker, offer): &_| GangAction::Decline { worker: *worker, offer: *offer };
                actions.extend(displaced.iter().map(decline));
            }
            Err(refusal) if refusal.is_repeated() => {}
            Err(_) => actions.push(GangAction::Decline { worker, offer: id }),
        }
        if auction.is_complete(context.now) {
            self.close(context, actions);
        }
        Some(answer.map(drop))
    }

    /// A worker that was asked directly makes no offer.
    pub fn not_offered(
        &mut self,
        context: &mut GangContext<'_>,
        worker: WorkerId,
        named: AdvertId,
        actions: &mut Vec<GangAction>,
    ) {
        if let Phase::Collecting { auction, advert } = &mut self.phase
            && advert.id == named
        {
            auction.declined(worker);
            if auction.is_complete(context.now) {
                self.close(context, actions);
            }
        }
    }

    /// A worker granted the lease of an offer that was accepted. Returns whether that is expected; if not, the caller
    /// releases the lease.
    pub fn granted(
        &mut self,
        context: &mut GangContext<'_>,
        (worker, request): (WorkerId, u64),
        (lease, epoch, ttl, portion): (LeaseId, Epoch, Span, Option<Portion>),
        actions: &mut Vec<GangAction>,
    ) -> bool {
        let Phase::Accepting { advert, accepts, .. } = &mut self.phase else {
            // A repeated accept has a repeated answer.
            return self.members.contains_key(&lease);
        };
        let is_expected = |accept: &Accept| accept.member.worker == worker;
        let Some(accept) = accepts.get(&request).filter(|accept| is_expected(accept)) else {
            return self.members.contains_key(&lease);
        };
        let ttl = ttl.min(self.spec.lease_ttl);
        let Some(role) = advert.roles.get(usize::from(accept.member.role)).copied() else {
            return false;
        };
        let (first_sent, offer, price) =
            (accept.first_sent, accept.member.offer, accept.member.price);
        let portion = portion.unwrap_or_else(|| accept.member.portion.clone());
        accepts.remove(&request);
        let role = u16::try_from(role).unwrap_or(u16::MAX);
        let stored = StoredMember {
            role,
            worker,
            offer,
            price,
            portion,
            lease,
            epoch,
            ttl,
            joined: context.now,
        };
        let member = GangMember::granted(stored, first_sent, context.now, context.rng);
        self.members.insert(lease, member);
        actions.push(GangAction::Answered { worker, is_granted: true });
        actions.push(GangAction::Joined(lease));
        self.conclude_if_answered(context, actions);
        true
    }

    /// A worker does not have the offer that was accepted, or no longer.
    pub fn offer_unknown(
        &mut self,
        context: &mut GangContext<'_>,
        worker: WorkerId,
        offer: OfferId,
        actions: &mut Vec<GangAction>,
    ) {
        if let Phase::Accepting { accepts, .. } = &mut self.phase {
            let before = accepts.len();
            accepts
                .retain(|_, accept| (accept.member.worker, accept.member.offer) != (worker, offer));
            if accepts.len() < before {
                actions.push(GangAction::Answered { worker, is_granted: false });
                self.conclude_if_answered(context, actions);
            }
        }
    }

    /// An offer was accepted with this request, and its worker has left since.
    pub fn not_granted(
        &mut self,
        context: &mut GangContext<'_>,
        request: u64,
        actions: &mut Vec<GangAction>,
    ) {
        if let Phase::Accepting { accepts, .. } = &mut self.phase
            && let Some(accept) = accepts.remove(&request)
        {
            let worker = accept.member.worker;
            actions.push(GangAction::Answered { worker, is_granted: false });
            self.conclude_if_answered(context, actions);
        }
    }

    /// A worker renewed a lease. Returns whether it is one of a member.
    pub fn renewed(&mut self, now: Time, named: (LeaseId, Epoch), nonce: u64) -> bool {
        self.members.get_mut(&named.0).is_some_and(|member| member.renewed(now, named.1, nonce))
    }

    /// A lease has ended, as its worker says. Returns whether it was one of a member.
    pub fn lease_ended(
        &mut self,
        context: &mut GangContext<'_>,
        lease: LeaseId,
        reason: LossReason,
        actions: &mut Vec<GangAction>,
    ) -> bool {
        let Some(member) = self.members.remove(&lease) else { return false };
        if reason == LossReason::Refused {
            // The worker still holds it for this gang.
            actions.push(member.release());
        }
        self.lost(context, member, reason, actions);
        true
    }

    /// The worker takes a lease back after `grace`. Returns whether it is one of a member, which may save its work until
    /// then.
    pub fn preempted(&mut self, now: Time, lease: LeaseId, grace: Span) -> bool {
        self.members.get_mut(&lease).is_some_and(|member| {
            member.preempted(now, grace);
            true
        })
    }

    /// The connection to a worker was lost: its leases are replaced unless it is back soon.
    pub fn disconnected(&mut self, now: Time, worker: WorkerId) {
        for member in self.members.values_mut().filter(|member| member.worker == worker) {
            member.expire_by(now + DISCONNECT_GRACE);
        }
    }

    /// The worker is connected again: its leases are renewed at once.
    pub fn reconnected(&mut self, now: Time, worker: WorkerId) {
        for member in self.members.values_mut().filter(|member| member.worker == worker) {
            member.renew_by(now);
        }
    }

    /// Ends it: everything is released.
    pub fn release(&mut self, actions: &mut Vec<GangAction>) {
        let idle = Phase::Idle { advertise_at: None };
        match std::mem::replace(&mut self.phase, idle) {
            Phase::Idle { .. } => {}
            Phase::Collecting { auction, advert } => {
                actions.push(GangAction::CloseAdvert { advert: advert.id, to: advert.to });
                let decline = |(worker, offer)| GangAction::Decline { worker, offer };
                actions.extend(auction.all().map(decline));
            }
            Phase::Accepting { accepts, .. } => {
                actions.extend(accepts.into_values().map(|accept| accept.decline()));
            }
        }
        for member in std::mem::take(&mut self.members).into_values() {
            actions.push(member.release());
        }
    }

    /// Hands its members over to the caller, which renews their leases from now on.
    pub fn take_members(&mut self) -> Vec<GangMember> {
        std::mem::take(&mut self.members).into_values().collect()
    }

    /// Releases one member, which has done its work. It is not replaced.
    pub fn release_member(&mut self, lease: LeaseId, actions: &mut Vec<GangAction>) {
        if let Some(member) = self.members.remove(&lease) {
            if let Some(done) = self.done.get_mut(usize::from(member.role)) {
                *done += 1;
            }
            actions.push(member.release());
        }
    }

    /// How many members of a role there are or were needed no longer.
    fn count(&self, role: usize) -> u32 {
        let of_role = |member: &&GangMember| usize::from(member.role) == role;
        let done = self.done.get(role).copied().unwrap_or_default();
        self.members.values().filter(of_role).count() as u32 + done
    }

    fn has_minimum(&self) -> bool {
        let mut roles = self.spec.roles.iter().enumerate();
        roles.all(|(at, role)| self.count(at) >= role.minimum)
    }

    fn lacks_any(&self) -> bool {
        let mut roles = self.spec.roles.iter().enumerate();
        roles.any(|(at, role)| self.count(at) < role.count)
    }

    fn advertise(&mut self, context: &mut GangContext<'_>, actions: &mut Vec<GangAction>) {
        let now = context.now;
        let lacking = |(at, role): (usize, &GangRole)| {
            let present = self.count(at);
            let count = role.count.saturating_sub(present);
            let minimum = role.minimum.saturating_sub(present);
            let wanted = WantedRole {
                name: role.name.clone(),
                requirement: Arc::clone(&role.requirement),
                count,
                minimum,
                wants_all: role.wants_all,
                bid: role.bid,
            };
            (count > 0).then_some((at, wanted))
        };
        let (roles, wanted): (Vec<usize>, Vec<WantedRole>) =
            self.spec.roles.iter().enumerate().filter_map(lacking).unzip();
        if wanted.is_empty() {
            self.phase = Phase::Idle { advertise_at: None };
            return;
        }
        let members = wanted.iter().map(|role| role.count).sum();
        let advert = Arc::new(Advert {
            id: AdvertId::new(now, context.rng),
            priority: self.spec.priority,
            is_preemptible: self.spec.is_preemptible,
            is_replacement: self.is_formed && self.has_lost,
            waited: now.since(self.short_since),
            window: self.window(),
            offers_wanted: offers_wanted(members),
            lease_ttl: self.spec.lease_ttl,
            roles: wanted,
        });
        let to = self.receivers(&advert, context);
        let pays_any = self.is(GangMutant::IgnoresMax);
        let max_of =
            |role: &GangRole| if pays_any { Money::from_micros(u64::MAX) } else { role.max };
        let max = roles.iter().filter_map(|at| self.spec.roles.get(*at).map(max_of)).collect();
        // Of those that hear of it by gossip, nobody knows who will answer.
        let asked = (!to.is_gossiped).then(|| to.workers.iter().copied().collect());
        let auction = Auction::new(Arc::clone(&advert), max, self.valuation(), asked, now);
        actions.push(GangAction::Advertise { advert: Arc::clone(&advert), to: to.clone() });
        self.phase = Phase::Collecting { auction, advert: Advertised { id: advert.id, roles, to } };
    }

    /// The workers that the scheduler knows are asked directly; if they may be too few, all others are too, by gossip.
    fn receivers(&self, advert: &Advert, context: &GangContext<'_>) -> Receivers {
        // The same advert went to them before, and too few had room: others may have.
        let mut is_gossiped = self.failures % 2 == 1;
        let mut workers = BTreeSet::new();
        for role in &advert.roles {
            let wanted = (role.count as usize).saturating_mul(CANDIDATES_PER_PLACE);
            let found =
                (context.candidates)(&role.requirement, wanted.max(advert.offers_wanted as usize));
            is_gossiped |= found.len() < wanted;
            workers.extend(found);
        }
        Receivers { workers: workers.into_iter().collect(), is_gossiped }
    }

    /// For how long offers are collected: longer after adverts that brought too little, since offers may have come too late.
    fn window(&self) -> Span {
        let factor = 1 + u64::from(self.failures.min(MAX_WINDOW_FACTOR - 1));
        self.spec.window.times(factor).min(WINDOW_RANGE.1).max(self.spec.window)
    }

    fn valuation(&self) -> Valuation {
        let valuation = match self.spec.maximise {
            Maximise::Speed => Valuation::SPEED,
            Maximise::Cost => Valuation::COST,
            Maximise::Balance => Valuation::BALANCE,
        };
        let paid = self.members.values().fold(Money::ZERO, |sum, m| sum.saturating_add(m.price));
        Valuation {
            budget: self.spec.budget.map(|budget| budget.saturating_sub(paid)),
            ..valuation
        }
    }

    /// The window is over, or no more offers are needed: chooses, and accepts.
    fn close(&mut self, context: &mut GangContext<'_>, actions: &mut Vec<GangAction>) {
        let idle = Phase::Idle { advertise_at: None };
        let Phase::Collecting { auction, advert } = std::mem::replace(&mut self.phase, idle) else {
            return;
        };
        actions.push(GangAction::CloseAdvert { advert: advert.id, to: advert.to.clone() });
        let choice = match auction.choose(context.now) {
            Ok(choice) => choice,
            Err(shortfall) => {
                let decline = |(worker, offer)| GangAction::Decline { worker, offer };
                actions.extend(auction.all().map(decline));
                self.failed(context, shortfall, actions);
                return;
            }
        };
        let decline = |(worker, offer)| GangAction::Decline { worker, offer };
        actions.extend(auction.losers(&choice).map(decline));
        let mut accepts = BTreeMap::new();
        for member in &choice.members {
            let request = (context.next_number)();
            let accept = Accept {
                member: member.clone(),
                sent: context.now,
                first_sent: context.now,
                is_repeated: false,
            };
            actions.push(accept.action(request, self.spec.lease_ttl));
            accepts.insert(request, accept);
        }
        let until = context.now + GRANT_TIMEOUT;
        self.phase = Phase::Accepting { advert, choice, accepts, until };
        self.conclude_if_answered(context, actions);
    }

    fn repeat_accepts(&mut self, context: &GangContext<'_>, actions: &mut Vec<GangAction>) {
        let Phase::Accepting { accepts, .. } = &mut self.phase else { return };
        for (request, accept) in accepts.iter_mut().filter(|(_, accept)| !accept.is_repeated) {
            if accept.sent + REPEAT_ACCEPT_AFTER <= context.now {
                (accept.sent, accept.is_repeated) = (context.now, true);
                actions.push(accept.action(*request, self.spec.lease_ttl));
            }
        }
    }

    fn conclude_if_answered(
        &mut self,
        context: &mut GangContext<'_>,
        actions: &mut Vec<GangAction>,
    ) {
        if matches!(&self.phase, Phase::Accepting { accepts, .. } if accepts.is_empty()) {
            self.conclude(context, actions);
        }
    }

    /// All accepts were answered, or the time for that is over.
    fn conclude(&mut self, context: &mut GangContext<'_>, actions: &mut Vec<GangAction>) {
        let idle = Phase::Idle { advertise_at: None };
        let Phase::Accepting { choice, accepts, .. } = std::mem::replace(&mut self.phase, idle)
        else {
            return;
        };
        for accept in accepts.into_values() {
            let worker = accept.member.worker;
            actions.push(GangAction::Answered { worker, is_granted: false });
            // It may have been granted, and the answer lost.
            actions.push(accept.decline());
        }
        if !self.has_minimum() {
            return self.failed(context, Shortfall::not_granted(&choice), actions);
        }
        (self.failures, self.last_shortfall) = (0, None);
        let lacks_any = self.lacks_any();
        self.has_lost &= lacks_any;
        let at = context.now + GROW_INTERVAL.mul_f64(0.5 + context.rng.unit());
        self.phase = Phase::Idle { advertise_at: lacks_any.then_some(at) };
        if !std::mem::replace(&mut self.is_formed, true) {
            actions.push(GangAction::Formed(Box::new(choice)));
        }
    }

    fn failed(
        &mut self,
        context: &mut GangContext<'_>,
        shortfall: Shortfall,
        actions: &mut Vec<GangAction>,
    ) {
        // All or none: also those that a restarted scheduler has kept.
        if !self.is_formed && !self.is(GangMutant::KeepsMembers) {
            for member in std::mem::take(&mut self.members).into_values() {
                actions.push(member.release());
            }
        }
        self.failures = self.failures.saturating_add(1);
        let at = context.now + backoff(self.failures, context.rng);
        let gives_up = self.is(GangMutant::GivesUp);
        self.phase = Phase::Idle { advertise_at: (!gives_up).then_some(at) };
        self.last_shortfall = Some(Box::new(shortfall.clone()));
        actions.push(GangAction::Short(Box::new(shortfall)));
    }

    /// Sends the renewals that are due, and gives up leases that have expired.
    fn renew_leases(&mut self, context: &mut GangContext<'_>, actions: &mut Vec<GangAction>) {
        let now = context.now;
        let is_over = |member: &&GangMember| member.is_expired(now);
        let over: Vec<LeaseId> = self.members.values().filter(is_over).map(|m| m.lease).collect();
        for lease in over {
            if let Some(member) = self.members.remove(&lease) {
                // The worker may not know yet.
                actions.push(member.release());
                let reason = member.expiry_reason();
                self.lost(context, member, reason, actions);
            }
        }
        for member in self.members.values_mut().filter(|member| member.is_renewal_due(now)) {
            let nonce = (context.next_number)();
            actions.push(member.renew(now, nonce, context.rng));
        }
    }

    fn lost(
        &mut self,
        context: &mut GangContext<'_>,
        member: GangMember,
        reason: LossReason,
        actions: &mut Vec<GangAction>,
    ) {
        if !std::mem::replace(&mut self.has_lost, true) && self.is_formed {
            self.short_since = context.now;
        }
        actions.push(GangAction::Lost { member: Box::new(member), reason });
        if let Phase::Idle { advertise_at } = &mut self.phase {
            // At once; others that are lost at the same moment are advertised with it.
            *advertise_at = Some(advertise_at.unwrap_or(context.now).min(context.now));
        }
    }
}

impl Accept {
    fn action(&self, request: u64, ttl: Span) -> GangAction {
        let Member { role, offer, worker, .. } = self.member;
        GangAction::Accept { worker, offer, role, request, ttl }
    }

    fn decline(&self) -> GangAction {
        GangAction::Decline { worker: self.member.worker, offer: self.member.offer }
    }
}

#[cfg(test)]
mod tests;
