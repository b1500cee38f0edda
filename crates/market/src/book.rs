//! The owner's side: which scheduler holds which portion of a worker, and the one ledger in which all its runs are
//! booked.
//!
//! A lease has a *limit*: no run begins beyond it. It *holds* its limit and the runs that still exceed it, which end in
//! time and are not replaced. All leases together never hold more than the worker has, so a limit only grows into
//! capacity that no other lease holds, and only shrinks when its lease is renewed and its holder learns it.
//!
//! Each scheduler has at most one *shared* lease, whose limit follows what others want, and any number of *fixed* ones. A
//! fixed lease begins as a reservation for an offer: it holds nothing until all that it wants is free, then exactly that
//! until it ends. While it waits, the shared leases shrink to make room.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use hypha_model::{
    Fit, LeaseId, Ledger, OfferId, Priority, Refusal, RefusalKind, Requirement, SchedulerId, Span,
    Time, Worker,
};

use crate::divide::{Claim, divide, portion_for};
use crate::portion::{DevicePart, Portion};

/// Leases, reservations and requests that wait for a portion of one worker at a time: each decision examines all of them.
pub const MAX_HOLDERS: usize = 64;

/// How long capacity that two schedulers need and only one can have stays with one of them, if it needs it that long.
/// Enough for several round trips, so that the time is used.
pub const TURN_DURATION: Span = Span::from_secs(10);

/// How often a holder is asked to renew early after a change. Its limit settles after two or three renewals; many more
/// would be a fault in the division, and must not keep the network busy.
const MAX_EARLY_RENEWALS: u8 = 8;

/// How long a reservation waits for shared leases to give up what all of its requirements need, before it takes what some
/// of them need: two round trips, in which holders are asked to renew and do.
const PARTIAL_AFTER: Span = Span::from_millis(250);

/// The key of a booking.
pub trait LeaseKey: Ord + Copy {
    /// The scheduler that holds the lease that it is booked under.
    fn scheduler(&self) -> SchedulerId;
}

/// Names a lease in the book: the shared one of a scheduler, or the fixed one that an offer became.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Holder {
    /// The scheduler that holds it.
    pub scheduler: SchedulerId,
    /// The offer; `None` for the shared lease.
    pub offer: Option<OfferId>,
}

/// What a fixed lease is to cover.
#[derive(Clone, Debug, PartialEq)]
pub enum FixedPortion {
    /// What any one of these needs, on any devices: the reservation covers each of those that fit, and is accepted for
    /// one of them.
    AnyOf(Vec<Arc<Requirement>>),
    /// All of the worker.
    Whole,
}

/// What a reservation is for.
#[derive(Clone, Debug, PartialEq)]
pub struct Reservation {
    /// What it is to cover.
    pub portion: FixedPortion,
    /// For how long it is held without being accepted.
    pub time: Span,
    /// The priority of the advert, within the owner's ceiling.
    pub priority: Priority,
    /// Whether the lease may be taken back, with notice.
    pub is_preemptible: bool,
    /// Whether it is for a gang that has lost a member.
    pub is_replacement: bool,
    /// The standing of its scheduler ([`SchedulerRecord::standing`](crate::SchedulerRecord::standing)).
    pub standing: u8,
}

/// A scheduler's request for a lease.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LeaseRequest {
    /// The number of the request: a later one replaces an earlier one.
    pub request: u64,
    /// For how long.
    pub ttl: Span,
    /// The lease never covers less than this; if it cannot, it is refused.
    pub minimum: Option<Arc<Requirement>>,
    /// No more than this; `None` is all that is free.
    pub maximum: Option<Arc<Requirement>>,
    /// The requirement of a queued task.
    pub demand: Option<Arc<Requirement>>,
}

/// The decision on a request.
#[derive(Clone, Debug, PartialEq)]
pub enum LeaseDecision {
    /// It is granted.
    Granted(LeaseGrant),
    /// It is refused. If too much is held, the request is remembered, and other leases cover less when they renew.
    Refused(RefusalKind),
    /// The same scheduler has sent a later request, whose answer it uses.
    Superseded,
}

/// A lease as it is granted or renewed.
#[derive(Clone, Debug, PartialEq)]
pub struct LeaseGrant {
    /// The lease.
    pub lease: LeaseId,
    /// For how long.
    pub ttl: Span,
    /// What it covers; `None` is all of the worker.
    pub portion: Option<Portion>,
}

/// The leases of one worker. See the module documentation.
#[derive(Clone, Debug)]
pub struct LeaseBook<K> {
    worker: Arc<Worker>,
    whole: Portion,
    ledger: Ledger<K>,
    /// For each executor, how many runs it has.
    used: Vec<u32>,
    leases: BTreeMap<Holder, Lease<K>>,
    /// Leases that have ended, while runs under them have not.
    ending: BTreeMap<Holder, Lease<K>>,
    /// Schedulers whose last request was refused, and until when another request is expected.
    waiting: BTreeMap<SchedulerId, (Terms, Time)>,
    /// A planted fault: capacity that others hold is granted again. Has no effect without the `mutants` feature.
    grants_twice: bool,
    /// A planted fault: leases are taken back for equals.
    preempts_equals: bool,
}

#[derive(Clone, Debug)]
struct Lease<K> {
    id: LeaseId,
    request: u64,
    ttl: Span,
    until: Time,
    terms: Terms,
    limit: Portion,
    /// The runs under it, booked against the limit.
    ledger: Ledger<K>,
    used: Vec<u32>,
    early_renewals: u8,
    /// For a fixed lease, what it covers.
    fixed: Option<FixedPortion>,
    /// A reservation that waits for its capacity, and holds nothing until all of it is free.
    is_pending: bool,
    /// A reservation that no scheduler has accepted.
    is_offer: bool,
    priority: Priority,
    is_preemptible: bool,
    /// Which of the reservations that wait gets its capacity first.
    rank: Rank,
    /// It was told that it is taken back: renewals no longer extend it.
    is_noticed: bool,
}

/// Lower goes first: the higher priority, then a gang that has lost a member, then the scheduler that uses what it takes.
type Rank = (Reverse<Priority>, Reverse<bool>, Reverse<u8>);

/// What a scheduler wants, and since when it has it or is short of it.
#[derive(Clone, Debug)]
struct Terms {
    minimum: Option<Arc<Requirement>>,
    maximum: Option<Arc<Requirement>>,
    demand: Option<Arc<Requirement>>,
    is_short: bool,
    since: Time,
}

impl<K: LeaseKey> LeaseBook<K> {
    /// The book of a worker without leases.
    pub fn new(worker: Arc<Worker>) -> LeaseBook<K> {
        LeaseBook {
            whole: Portion::whole(&worker),
            ledger: Ledger::new(&worker.capacity),
            used: vec![0; worker.executors.len()],
            leases: BTreeMap::new(),
            ending: BTreeMap::new(),
            waiting: BTreeMap::new(),
            grants_twice: false,
            preempts_equals: false,
            worker,
        }
    }

    /// Plants a fault, to show that a checker notices. Does nothing without the `mutants` feature.
    pub fn mutate_double_grant(&mut self) {
        self.grants_twice = cfg!(feature = "mutants");
    }

    /// Plants another. Does nothing without the `mutants` feature.
    pub fn mutate_preemption(&mut self) {
        self.preempts_equals = cfg!(feature = "mutants");
    }

    /// A scheduler requests a lease. A new request replaces its earlier lease, and runs under that continue.
    pub fn request(
        &mut self,
        now: Time,
        scheduler: SchedulerId,
        wanted: &LeaseRequest,
        id: impl FnOnce() -> LeaseId,
    ) -> LeaseDecision {
        let holder = Holder::shared(scheduler);
        let known = self.leases.get(&holder);
        if known.is_some_and(|lease| lease.request > wanted.request) {
            return LeaseDecision::Superseded;
        }
        if known.is_none() && self.is_full() {
            return LeaseDecision::Refused(RefusalKind::Busy);
        }
        if let Some(Err(refusal)) =
            wanted.minimum.as_ref().map(|minimum| minimum.satisfied_by(&self.worker))
        {
            return LeaseDecision::Refused(refusal.kind);
        }
        // A repeated request is granted once: the holder uses the first answer.
        let again = known.filter(|lease| lease.request == wanted.request).map(|lease| lease.id);
        let id = again.unwrap_or_else(id);
        let before = known.cloned();
        let waited = self.waiting.remove(&scheduler).map(|(terms, _)| terms);
        let terms =
            Terms::new(wanted, before.as_ref().map(|lease| &lease.terms).or(waited.as_ref()), now);
        // Runs of an earlier lease that have not ended count against the new one.
        let earlier = before.clone().or_else(|| self.ending.remove(&holder));
        let mut lease = earlier.unwrap_or_else(|| self.empty_lease(id, terms.clone()));
        (lease.id, lease.request, lease.terms) = (id, wanted.request, terms);
        (lease.ttl, lease.until) = (wanted.ttl, now + wanted.ttl);
        self.leases.insert(holder, lease);
        let granted = self.adjust_limit(now, holder);
        self.allow_early_renewals();
        let lacks_minimum = |lease: &Lease<K>| {
            let minimum = lease.terms.minimum.as_deref();
            minimum.is_some_and(|minimum| lease.limit.refusal_for(&self.worker, minimum).is_some())
        };
        if self.leases.get(&holder).is_some_and(lacks_minimum)
            && let Some(refused) = self.leases.remove(&holder)
        {
            match before {
                // It keeps its earlier lease.
                Some(mut lease) => {
                    lease.terms.demand = refused.terms.demand;
                    self.leases.insert(holder, lease);
                }
                None => {
                    self.waiting.insert(scheduler, (refused.terms.clone(), refused.until));
                    self.keep_running(holder, refused);
                }
            }
            return LeaseDecision::Refused(RefusalKind::Busy);
        }
        granted.map_or(LeaseDecision::Superseded, LeaseDecision::Granted)
    }

    /// A holder renews its lease, which may cover less than before, or more. `None` if it holds no such lease.
    pub fn renew(
        &mut self,
        now: Time,
        holder: Holder,
        id: LeaseId,
        demand: Option<Arc<Requirement>>,
    ) -> Option<LeaseGrant> {
        let lease =
            self.leases.get_mut(&holder).filter(|lease| lease.id == id && !lease.is_offer)?;
        if !lease.is_noticed {
            lease.until = now + lease.ttl;
        }
        if lease.fixed.is_some() {
            return Some(lease.grant());
        }
        let news = lease.terms.demand.is_some() != demand.is_some();
        lease.terms.demand = demand;
        let granted = self.adjust_limit(now, holder);
        if news {
            self.allow_early_renewals();
        }
        granted
    }

    /// Reserves capacity for an offer. Returns whether it holds it already; otherwise it waits for it
    /// ([`LeaseBook::cover_reservations`]). `None` if the worker could never do it, or has too many leases.
    pub fn reserve(
        &mut self,
        now: Time,
        holder: Holder,
        wanted: Reservation,
        id: impl FnOnce() -> LeaseId,
    ) -> Option<bool> {
        if let FixedPortion::AnyOf(requirements) = &wanted.portion
            && !requirements.iter().any(|needs| needs.satisfied_by(&self.worker).is_ok())
        {
            return None;
        }
        if self.leases.contains_key(&holder) || self.is_full() {
            return None;
        }
        let mut lease = self.empty_lease(id(), Terms::fixed(&wanted.portion, &self.worker, now));
        (lease.ttl, lease.until) = (wanted.time, now + wanted.time);
        (lease.priority, lease.is_preemptible) = (wanted.priority, wanted.is_preemptible);
        lease.rank =
            (Reverse(wanted.priority), Reverse(wanted.is_replacement), Reverse(wanted.standing));
        (lease.fixed, lease.is_pending, lease.is_offer) = (Some(wanted.portion), true, true);
        self.leases.insert(holder, lease);
        self.allow_early_renewals();
        let promised = self.promised_before(holder);
        Some(self.cover_reservation(now, holder, &promised))
    }

    /// The reservations that have got their capacity since the last time.
    pub fn cover_reservations(&mut self, now: Time) -> Vec<Holder> {
        let is_pending = |(_, lease): &(&Holder, &Lease<K>)| lease.is_pending;
        let mut pending: Vec<_> = self.leases.iter().filter(is_pending).collect();
        pending.sort_by_key(|(holder, lease)| (lease.rank, lease.terms.since, **holder));
        let pending: Vec<Holder> = pending.into_iter().map(|(holder, _)| *holder).collect();
        let (obtainable, awaited) = (self.obtainable(), self.awaited());
        let mut promised = Portion::empty(&self.worker);
        let mut covered = Vec::new();
        for holder in pending {
            if self.cover_reservation(now, holder, &promised) {
                covered.push(holder);
            } else if let Some(wanted) = awaited.get(&holder).filter(|it| obtainable.covers(it)) {
                // It gets this soon, and those behind it must not take it.
                promised = promised.plus(wanted);
            }
        }
        covered
    }

    /// Gives a reservation its capacity beside what is promised to others, if all that one of its requirements needs is free.
    fn cover_reservation(&mut self, now: Time, holder: Holder, promised: &Portion) -> bool {
        let Some(lease) = self.leases.get(&holder).filter(|lease| lease.is_pending) else {
            return false;
        };
        let open = self.available_to(holder).minus(promised);
        let limit = match &lease.fixed {
            Some(FixedPortion::Whole) => Some(self.whole.clone()),
            Some(FixedPortion::AnyOf(requirements)) => self.portion_for_any(requirements, &open),
            None => None,
        };
        let Some(limit) = limit.filter(|limit| open.covers(limit)) else { return false };
        // An offer for some roles only, while others could be served soon, would leave those without offers.
        if let Some(FixedPortion::AnyOf(requirements)) = &lease.fixed
            && now < lease.terms.since + PARTIAL_AFTER
            && self.covered_by(requirements, &limit)
                < self.covered_by(requirements, &self.obtainable())
        {
            return false;
        }
        let Some(lease) = self.leases.get_mut(&holder) else { return false };
        lease.ledger.resize(&limit.capacity(&self.worker));
        (lease.limit, lease.is_pending) = (limit, false);
        (lease.terms.is_short, lease.terms.since) = (false, now);
        true
    }

    /// How many of the requirements a portion covers, one at a time.
    fn covered_by(&self, requirements: &[Arc<Requirement>], portion: &Portion) -> usize {
        let is_covered = |needs: &&Arc<Requirement>| {
            needs.satisfied_by(&self.worker).is_ok()
                && portion.refusal_for(&self.worker, needs).is_none()
        };
        requirements.iter().filter(is_covered).count()
    }

    /// What fixed leases and runs leave: shared leases give up the rest when they renew.
    fn obtainable(&self) -> Portion {
        let open = self.leases.values().fold(self.whole.clone(), |open, lease| {
            match lease.fixed.is_some() {
                true => open.minus(&lease.held()),
                false => open.minus(&in_use(&lease.ledger, &lease.used)),
            }
        });
        self.ending.values().fold(open, |open, lease| open.minus(&lease.held()))
    }

    /// For each reservation that waits, what it is to get, in the order in which they get it.
    fn awaited(&self) -> BTreeMap<Holder, Portion> {
        let mut pending: Vec<_> =
            self.leases.iter().filter(|(_, lease)| lease.is_pending).collect();
        pending.sort_by_key(|(holder, lease)| (lease.rank, lease.terms.since, **holder));
        if pending.is_empty() {
            return BTreeMap::new();
        }
        let mut open = self.obtainable();
        let mut awaited = BTreeMap::new();
        for (holder, lease) in pending {
            let wanted = match &lease.fixed {
                Some(FixedPortion::AnyOf(requirements)) => {
                    self.portion_for_any(requirements, &open)
                }
                _ => Some(self.whole.clone()),
            };
            // All of a worker that is not free soon does not keep others from a part of it.
            let Some(wanted) = wanted else { continue };
            if open.covers(&wanted) {
                open = open.minus(&wanted);
            }
            awaited.insert(*holder, wanted);
        }
        awaited
    }

    /// What reservations that wait and go before `holder` are about to get.
    fn promised_before(&self, holder: Holder) -> Portion {
        let order = |holder: &Holder, lease: &Lease<K>| (lease.rank, lease.terms.since, *holder);
        let own = self.leases.get(&holder).map(|lease| order(&holder, lease));
        let nothing = Portion::empty(&self.worker);
        let pending = self.leases.iter().filter(|(_, lease)| lease.is_pending);
        if pending.clone().count() < 2 {
            return nothing;
        }
        let obtainable = self.obtainable();
        let awaited = self.awaited();
        let before = pending.filter(|(other, lease)| Some(order(other, lease)) < own);
        let promised = before.filter_map(|(other, _)| awaited.get(other));
        promised.filter(|it| obtainable.covers(it)).fold(nothing, |sum, it| sum.plus(it))
    }

    /// Whether what `holder` has would do for each requirement of a reservation that waits.
    pub fn would_suffice(&self, holder: Holder, waiting: Holder) -> bool {
        let held = self.leases.get(&holder).filter(|lease| !lease.is_pending);
        let waiting = self.leases.get(&waiting).filter(|lease| lease.is_pending);
        match (held, waiting.and_then(|lease| lease.fixed.as_ref())) {
            (Some(held), Some(FixedPortion::AnyOf(needs))) => {
                self.covered_by(needs, &held.limit) == self.covered_by(needs, &self.whole)
            }
            (Some(held), Some(FixedPortion::Whole)) => held.limit.covers(&self.whole),
            _ => false,
        }
    }

    /// A portion of what is `open` that covers each of the requirements that fit, though not all of them at once. `None`
    /// if none fits.
    fn portion_for_any(
        &self,
        requirements: &[Arc<Requirement>],
        open: &Portion,
    ) -> Option<Portion> {
        requirements.iter().fold(None, |covered: Option<Portion>, needs| {
            let nothing = Portion::empty(&self.worker);
            let holds = covered.as_ref().unwrap_or(&nothing);
            match portion_for(&self.worker, open, holds, needs) {
                Some(portion) => Some(portion.max(holds)),
                None => covered,
            }
        })
    }

    /// What a reservation that holds its capacity would cover if it were accepted for each of its requirements, by
    /// their index. A reservation of all of the worker covers all of it, whichever is accepted.
    pub fn choices(&self, holder: Holder) -> Vec<(usize, Portion)> {
        let held = self.leases.get(&holder).filter(|lease| !lease.is_pending);
        let Some((lease, fixed)) = held.and_then(|lease| Some((lease, lease.fixed.as_ref()?)))
        else {
            return Vec::new();
        };
        match fixed {
            FixedPortion::Whole => vec![(0, self.whole.clone())],
            FixedPortion::AnyOf(requirements) => {
                let choice = |(at, needs): (usize, &Arc<Requirement>)| {
                    Some((at, portion_for(&self.worker, &lease.limit, &lease.limit, needs)?))
                };
                requirements.iter().enumerate().filter_map(choice).collect()
            }
        }
    }

    /// An offer was accepted for one of its requirements, by its index: the reservation becomes a lease of what that
    /// needs. A repeated acceptance renews it. `None` if the reservation has ended or does not hold its capacity.
    pub fn accept(
        &mut self,
        now: Time,
        holder: Holder,
        choice: usize,
        ttl: Span,
    ) -> Option<LeaseGrant> {
        let is_offer = self.leases.get(&holder)?.is_offer;
        let whole = matches!(self.leases.get(&holder)?.fixed, Some(FixedPortion::Whole));
        let chosen = match is_offer && !whole {
            true => {
                let mut choices = self.choices(holder).into_iter();
                Some(choices.find(|(at, _)| *at == choice)?.1)
            }
            false => None,
        };
        let lease = self.leases.get_mut(&holder).filter(|lease| !lease.is_pending)?;
        lease.fixed.as_ref()?;
        if let Some(limit) = chosen {
            lease.ledger.resize(&limit.capacity(&self.worker));
            lease.limit = limit;
        }
        if !lease.is_noticed {
            (lease.ttl, lease.until, lease.is_offer) = (ttl, now + ttl, false);
        }
        let grant = lease.grant();
        self.allow_early_renewals();
        Some(grant)
    }

    /// Takes back leases that may be taken back, and whose priority is lower, for a reservation that waits for capacity
    /// and would wait for longer than its holders use it: those with the lowest priority first, and no more than it
    /// needs. They end after `grace`, and are no longer renewed. Returns those that are to be told.
    pub fn preempt_for(
        &mut self,
        now: Time,
        holder: Holder,
        grace: Span,
    ) -> Vec<(Holder, LeaseId)> {
        let Some(lease) = self.leases.get(&holder).filter(|lease| lease.is_pending) else {
            return Vec::new();
        };
        let is_fixed = |(other, lease): &(&Holder, &Lease<K>)| {
            lease.fixed.is_some() && !lease.is_pending && **other != holder
        };
        // What shared leases hold is given up at their next renewal, and what was taken back before is free soon.
        let kept = self.leases.iter().filter(is_fixed).filter(|(_, lease)| !lease.is_noticed);
        let mut open = kept.fold(self.whole.clone(), |open, (_, lease)| open.minus(&lease.held()));
        let suffices = |open: &Portion| match &lease.fixed {
            Some(FixedPortion::Whole) => open.covers(&self.whole),
            Some(FixedPortion::AnyOf(needs)) => self.portion_for_any(needs, open).is_some(),
            None => false,
        };
        let mut victims: Vec<_> = self
            .leases
            .iter()
            .filter(is_fixed)
            .filter(|(_, other)| {
                // Reservations end by themselves, soon.
                other.is_preemptible
                    && !other.is_offer
                    && !other.is_noticed
                    && (other.priority < lease.priority
                        || self.preempts_equals && other.priority == lease.priority)
            })
            .collect();
        victims.sort_by_key(|(holder, lease)| (lease.priority, **holder));
        let mut chosen = Vec::new();
        for (victim, lease) in victims {
            if suffices(&open) {
                break;
            }
            open = open.plus(&lease.held());
            chosen.push((*victim, lease.id));
        }
        if !suffices(&open) {
            return Vec::new();
        }
        for (victim, _) in &chosen {
            self.notice(now, *victim, grace);
        }
        chosen
    }

    /// Takes back all leases that may be taken back, after `grace`. Returns those that are to be told.
    pub fn preempt_all(&mut self, now: Time, grace: Span) -> Vec<(Holder, LeaseId)> {
        let is_victim = |(_, lease): &(&Holder, &Lease<K>)| {
            lease.is_preemptible && !lease.is_offer && !lease.is_noticed
        };
        let victims: Vec<_> = self
            .leases
            .iter()
            .filter(is_victim)
            .map(|(holder, lease)| (*holder, lease.id))
            .collect();
        for (victim, _) in &victims {
            self.notice(now, *victim, grace);
        }
        victims
    }

    fn notice(&mut self, now: Time, holder: Holder, grace: Span) {
        if let Some(lease) = self.leases.get_mut(&holder) {
            lease.is_noticed = true;
            lease.until = lease.until.min(now + grace);
        }
    }

    /// Until when a lease that was taken back is left to its holder.
    pub fn taken_back(&self, holder: Holder) -> Option<Time> {
        self.leases.get(&holder).filter(|lease| lease.is_noticed).map(|lease| lease.until)
    }

    /// The holder of a lease, if `scheduler` holds it.
    pub fn holder_of(&self, scheduler: SchedulerId, id: LeaseId) -> Option<Holder> {
        let holds = |(_, lease): &(&Holder, &Lease<K>)| lease.id == id && !lease.is_offer;
        self.leases_of(scheduler).find(holds).map(|(holder, _)| *holder)
    }

    /// Whether `scheduler` holds exactly this lease.
    pub fn holds(&self, scheduler: SchedulerId, id: LeaseId) -> bool {
        self.holder_of(scheduler, id).is_some()
    }

    /// The holders of leases, without reservations.
    pub fn holders(&self) -> impl Iterator<Item = Holder> {
        self.leases.iter().filter(|(_, lease)| !lease.is_offer).map(|(holder, _)| *holder)
    }

    /// The reservations that are not accepted.
    pub fn reservations(&self) -> impl Iterator<Item = Holder> {
        self.leases.iter().filter(|(_, lease)| lease.is_offer).map(|(holder, _)| *holder)
    }

    /// A holder's lease, and until when it holds.
    pub fn lease_of(&self, holder: Holder) -> Option<(LeaseId, Time)> {
        self.leases.get(&holder).map(|lease| (lease.id, lease.until))
    }

    /// What a holder's lease covers.
    pub fn limit_of(&self, holder: Holder) -> Option<&Portion> {
        self.leases.get(&holder).map(|lease| &lease.limit)
    }

    fn leases_of(&self, scheduler: SchedulerId) -> impl Iterator<Item = (&Holder, &Lease<K>)> {
        self.leases.range(Holder::all_of(scheduler))
    }

    fn is_full(&self) -> bool {
        self.leases.len() + self.waiting.len() >= MAX_HOLDERS
    }

    /// A lease has ended. Runs under it keep their room until they have ended.
    pub fn release(&mut self, holder: Holder) {
        if let Some(lease) = self.leases.remove(&holder) {
            self.keep_running(holder, lease);
        }
        self.allow_early_renewals();
    }

    fn keep_running(&mut self, holder: Holder, mut lease: Lease<K>) {
        if lease.ledger.booking_count() > 0 {
            lease.limit = Portion::empty(&self.worker);
            lease.ledger.resize(&lease.limit.capacity(&self.worker));
            self.ending.insert(holder, lease);
        }
    }

    /// A holder whose lease has expired. The lease does not end until it is released.
    pub fn expired(&mut self, now: Time) -> Option<Holder> {
        self.waiting.retain(|_, (_, until)| *until > now);
        let over = |(_, lease): &(&Holder, &Lease<K>)| lease.until <= now;
        self.leases.iter().find(over).map(|(holder, _)| *holder)
    }

    /// When a lease expires, or a holder's turn ends while others wait for theirs.
    pub fn wake_at(&self, now: Time) -> Option<Time> {
        let partial = |lease: &Lease<K>| lease.terms.since + PARTIAL_AFTER;
        let has_choice = |fixed: &FixedPortion| match fixed {
            FixedPortion::AnyOf(requirements) => requirements.len() > 1,
            FixedPortion::Whole => false,
        };
        let waits =
            |lease: &&Lease<K>| lease.is_pending && lease.fixed.as_ref().is_some_and(has_choice);
        let pending = self.leases.values().filter(waits).map(partial);
        let ends = self.leases.values().map(|lease| lease.until);
        let ends = ends.chain(pending.filter(|at| *at > now)).min();
        if !self.is_shared() || !self.terms().any(|terms| terms.is_short) {
            return ends;
        }
        let turns = self.terms().filter(|terms| terms.has_turn(now));
        turns.map(|terms| terms.since + TURN_DURATION).chain(ends).min()
    }

    /// Holders that should renew now: their leases would cover another portion. Each is notified a few times at most.
    pub fn early_renewals(&mut self, now: Time) -> Vec<(Holder, LeaseId)> {
        let alone = self.leases.len() + self.waiting.len() == 1;
        if alone && self.leases.values().all(|lease| lease.limit == self.whole) {
            return Vec::new();
        }
        let fair_shares = self.fair_shares(now);
        let mut due = Vec::new();
        for (holder, target) in fair_shares {
            let open = self.available_to(holder);
            let Some(lease) = self.leases.get_mut(&holder) else { continue };
            let is_shared = lease.fixed.is_none();
            if is_shared && lease.early_renewals > 0 && target.min(&open) != lease.limit {
                lease.early_renewals -= 1;
                due.push((holder, lease.id));
            }
        }
        due
    }

    /// Returns whether a holder's turn has ended, while others wait for theirs.
    pub fn end_turns(&mut self, now: Time) -> bool {
        let ended = |terms: &Terms| {
            !terms.is_short && terms.demand.is_some() && terms.since + TURN_DURATION <= now
        };
        let any =
            self.is_shared() && self.terms().any(|terms| terms.is_short) && self.terms().any(ended);
        if any {
            self.allow_early_renewals();
        }
        any
    }

    /// The executor that would run this under a holder's lease if nothing else ran, or why none would. Without a lease,
    /// all of the worker counts.
    pub fn executor_for(
        &self,
        holder: Holder,
        requirement: &Requirement,
    ) -> Result<usize, Refusal> {
        requirement.satisfied_by(&self.worker)?;
        let limit = self.limit_of(holder).unwrap_or(&self.whole);
        if let Some(refusal) = limit.refusal_for(&self.worker, requirement) {
            return Err(refusal);
        }
        let mut executors = requirement.executors_of(&self.worker);
        executors
            .find(|at| limit.slots.get(*at).is_some_and(|slots| *slots > 0))
            .ok_or(Refusal::without_amount(RefusalKind::Busy))
    }

    /// Whether a run would fit now, in the lease of its holder and on the worker.
    pub fn fits(&self, holder: Holder, requirement: &Requirement, executor: usize) -> bool {
        if !self.has_slot(holder, executor) {
            return false;
        }
        let Some(lease) = self.leases.get(&holder) else {
            return self.ledger.fits(requirement).is_ok();
        };
        lease.ledger.fits(requirement).is_ok()
            && self
                .ledger
                .fits_where(requirement, |device| lease.ledger.has_room_on(device, requirement))
                .is_ok()
    }

    /// Whether an executor has a free slot for a holder.
    pub fn has_slot(&self, holder: Holder, executor: usize) -> bool {
        let has_slot = |lease: &Lease<K>| lease.used[executor] < lease.limit.slots[executor];
        self.used[executor] < self.whole.slots[executor]
            && self.leases.get(&holder).is_none_or(has_slot)
    }

    /// Books a run. Returns its GPUs; `None` if it does not fit.
    pub fn begin(
        &mut self,
        key: K,
        holder: Holder,
        requirement: &Requirement,
        executor: usize,
    ) -> Option<Vec<u32>> {
        let lease = self.leases.get_mut(&holder);
        let ledger = lease.as_ref().map(|lease| &lease.ledger);
        let may_use = |device| ledger.is_none_or(|ledger| ledger.has_room_on(device, requirement));
        self.ledger.allocate_where(key, requirement, Fit::First, may_use).ok()?;
        let devices = self.ledger.devices_of(key).map(<[u32]>::to_vec).unwrap_or_default();
        if let Some(lease) = lease {
            let same = |device| devices.contains(&device);
            // It fits, as the caller has checked; otherwise `check` fails.
            let _ = lease.ledger.allocate_where(key, requirement, Fit::First, same);
            lease.used[executor] += 1;
        }
        self.used[executor] += 1;
        Some(devices)
    }

    /// The GPUs of a run; `None` if it has none.
    pub fn devices_of(&self, key: K) -> Option<&[u32]> {
        self.ledger.devices_of(key).filter(|devices| !devices.is_empty())
    }

    /// A run has ended: its room is free.
    pub fn end(&mut self, key: K, executor: usize) {
        if self.ledger.release(key).is_err() {
            return;
        }
        self.used[executor] -= 1;
        let of_scheduler = Holder::all_of(key.scheduler());
        // Its lease may have ended before it.
        let ending = self.ending.range_mut(of_scheduler.clone());
        for (_, lease) in self.leases.range_mut(of_scheduler).chain(ending) {
            if lease.ledger.release(key).is_ok() {
                lease.used[executor] -= 1;
            }
        }
        self.ending.retain(|_, lease| lease.ledger.booking_count() > 0);
    }

    /// Whether more than one scheduler wants a portion.
    pub fn is_shared(&self) -> bool {
        self.leases.len() + self.waiting.len() > 1
    }

    /// The ledger of a holder's lease, or of the worker for a holder that needs no lease.
    pub fn ledger_of(&self, holder: Holder) -> &Ledger<K> {
        self.leases.get(&holder).map_or(&self.ledger, |lease| &lease.ledger)
    }

    /// How many tasks an executor may run at once for a holder.
    pub fn slots_of(&self, holder: Holder, executor: usize) -> u32 {
        self.limit_of(holder).unwrap_or(&self.whole).slots.get(executor).copied().unwrap_or(0)
    }

    /// How many runs are booked.
    pub fn booked(&self) -> usize {
        self.ledger.booking_count()
    }

    /// Recomputes all sums and compares: nothing is booked twice, and the leases together hold no more than the worker
    /// has.
    pub fn check(&self) -> Result<(), String> {
        self.ledger.check()?;
        if self.ledger.is_overbooked() {
            return Err("more is booked than the worker has".to_owned());
        }
        for (at, (used, most)) in self.used.iter().zip(&self.whole.slots).enumerate() {
            if used > most {
                return Err(format!("executor {at} runs {used} at once: booked twice"));
            }
        }
        let mut held = Portion::empty(&self.worker);
        for (holder, lease) in self.leases.iter().chain(&self.ending) {
            lease.ledger.check().map_err(|error| format!("lease of {holder:?}: {error}"))?;
            let booked: u32 = lease.used.iter().sum();
            if booked as usize != lease.ledger.booking_count() {
                let count = lease.ledger.booking_count();
                return Err(format!(
                    "lease of {holder:?}: {count} are booked and {booked} counted"
                ));
            }
            held = held.plus(&lease.held());
        }
        if !self.whole.covers(&held) {
            return Err(format!("leases hold {held:?} of {:?}: granted twice", self.whole));
        }
        Ok(())
    }

    /// A lease of an empty portion.
    fn empty_lease(&self, id: LeaseId, terms: Terms) -> Lease<K> {
        let limit = Portion::empty(&self.worker);
        Lease {
            id,
            request: 0,
            ttl: Span::ZERO,
            until: Time::ZERO,
            terms,
            ledger: Ledger::new(&limit.capacity(&self.worker)),
            limit,
            used: vec![0; self.used.len()],
            early_renewals: 0,
            fixed: None,
            is_pending: false,
            is_offer: false,
            priority: Priority::default(),
            is_preemptible: false,
            rank: Rank::default(),
            is_noticed: false,
        }
    }

    /// Sets the limit of a lease to its fair share, as far as no other lease holds it.
    fn adjust_limit(&mut self, now: Time, holder: Holder) -> Option<LeaseGrant> {
        let target = self.fair_shares(now).remove(&holder)?;
        let limit = target.min(&self.available_to(holder));
        let (worker, whole) = (&self.worker, &self.whole);
        let lease = self.leases.get_mut(&holder)?;
        if lease.limit != limit {
            lease.ledger.resize(&limit.capacity(worker));
            lease.limit = limit;
        }
        lease.terms.update(now, worker, &lease.limit);
        let portion = (lease.limit != *whole).then(|| lease.limit.clone());
        Some(LeaseGrant { portion, ..lease.grant() })
    }

    /// The fair share of each, whatever is held.
    fn fair_shares(&self, now: Time) -> BTreeMap<Holder, Portion> {
        let nothing = Portion::empty(&self.worker);
        let awaited = self.awaited();
        let leases = self.leases.iter().map(|(holder, lease)| {
            let fixed = (lease.fixed.is_some() && !lease.is_pending).then_some(&lease.limit);
            (*holder, &lease.terms, &lease.limit, fixed.or_else(|| awaited.get(holder)))
        });
        let waiting = self.waiting.iter();
        let waiting = waiting
            .map(|(scheduler, (terms, _))| (Holder::shared(*scheduler), terms, &nothing, None));
        let mut claims: Vec<_> = leases.chain(waiting).collect();
        claims.sort_by_key(|(holder, terms, ..)| (terms.turn_order(now), *holder));
        let wanted: Vec<Claim<'_>> =
            claims.iter().map(|(_, terms, holds, fixed)| terms.claim(holds, *fixed)).collect();
        let parts =
            divide(&self.worker, &self.whole.minus(&in_use(&self.ledger, &self.used)), &wanted);
        claims.iter().map(|(holder, ..)| *holder).zip(parts).collect()
    }

    /// The portion that no lease but that of `holder` holds.
    fn available_to(&self, holder: Holder) -> Portion {
        let all = self.leases.iter().chain(&self.ending);
        let others = all.filter(|(other, _)| **other != holder && !self.grants_twice);
        others.fold(self.whole.clone(), |open, (_, lease)| open.minus(&lease.held()))
    }

    fn terms(&self) -> impl Iterator<Item = &Terms> {
        let waiting = self.waiting.values().map(|(terms, _)| terms);
        self.leases.values().map(|lease| &lease.terms).chain(waiting)
    }

    /// Something has changed, so that other holders may be asked to renew early.
    fn allow_early_renewals(&mut self) {
        for lease in self.leases.values_mut() {
            lease.early_renewals = MAX_EARLY_RENEWALS;
        }
    }
}

impl Holder {
    /// The shared lease of a scheduler.
    pub const fn shared(scheduler: SchedulerId) -> Holder {
        Holder { scheduler, offer: None }
    }

    /// The lease for an offer to a scheduler.
    pub const fn offer(scheduler: SchedulerId, offer: OfferId) -> Holder {
        Holder { scheduler, offer: Some(offer) }
    }

    fn all_of(scheduler: SchedulerId) -> RangeInclusive<Holder> {
        Holder::shared(scheduler)..=Holder::offer(scheduler, OfferId::MAX)
    }
}

impl<K: LeaseKey> Lease<K> {
    fn grant(&self) -> LeaseGrant {
        LeaseGrant { lease: self.id, ttl: self.ttl, portion: Some(self.limit.clone()) }
    }

    /// Its limit, and the runs that exceed it.
    fn held(&self) -> Portion {
        self.limit.max(&in_use(&self.ledger, &self.used))
    }
}

/// What the runs of a ledger use, with the slots in use.
fn in_use<K: LeaseKey>(ledger: &Ledger<K>, used: &[u32]) -> Portion {
    let (cpu_milli, memory_bytes, storage_bytes, devices) = ledger.in_use();
    let part = |(memory_bytes, milli_gpu)| DevicePart { memory_bytes, milli_gpu };
    let (devices, slots) = (devices.map(part).collect(), used.to_vec());
    Portion { cpu_milli, memory_bytes, storage_bytes, devices, slots }
}

impl Terms {
    /// The terms of a request, by a scheduler whose terms were `before`.
    fn new(wanted: &LeaseRequest, before: Option<&Terms>, now: Time) -> Terms {
        Terms {
            minimum: wanted.minimum.clone(),
            maximum: wanted.maximum.clone(),
            demand: wanted.demand.clone().or_else(|| wanted.minimum.clone()),
            is_short: before.is_some_and(|before| before.is_short),
            since: before.map_or(now, |before| before.since),
        }
    }

    /// The terms of a reservation, which waits for the first of its requirements that the worker could cover until it
    /// holds one of them.
    fn fixed(wanted: &FixedPortion, worker: &Worker, now: Time) -> Terms {
        let requirement = match wanted {
            FixedPortion::AnyOf(requirements) => {
                requirements.iter().find(|needs| needs.satisfied_by(worker).is_ok()).cloned()
            }
            FixedPortion::Whole => None,
        };
        Terms {
            minimum: requirement.clone(),
            maximum: requirement,
            demand: None,
            is_short: true,
            since: now,
        }
    }

    fn claim<'a>(&'a self, holds: &'a Portion, fixed: Option<&'a Portion>) -> Claim<'a> {
        let (minimum, maximum) = (self.minimum.as_deref(), self.maximum.as_deref());
        Claim { holds, fixed, minimum, maximum, demand: self.demand.as_deref() }
    }

    /// Updates whether the limit covers the demand.
    fn update(&mut self, now: Time, worker: &Worker, limit: &Portion) {
        let needs = self.demand.as_deref();
        let is_short = needs.is_some_and(|needs| limit.refusal_for(worker, needs).is_some());
        if std::mem::replace(&mut self.is_short, is_short) != is_short {
            self.since = now;
        }
    }

    /// Whether it has what it needs, and has not had it for a whole turn.
    fn has_turn(&self, now: Time) -> bool {
        self.demand.is_some() && !self.is_short && self.since + TURN_DURATION > now
    }

    /// Lower goes first: the holder that has its turn, then the one that has been short for longest, then the others.
    fn turn_order(&self, now: Time) -> (u8, Time) {
        let class = match (self.has_turn(now), self.is_short) {
            (true, _) => 0,
            (false, true) => 1,
            (false, false) => 2,
        };
        (class, self.since)
    }
}

#[cfg(test)]
mod tests;
