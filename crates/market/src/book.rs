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

mod reservations;
mod wants;

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use hypha_model::{
    Fit, LeaseId, Ledger, OfferId, Priority, Refusal, RefusalKind, Requirement, SchedulerId, Span,
    Time, Worker,
};

pub use reservations::{FixedPortion, Reservation};
use wants::Wants;

use crate::divide::{Claim, divide};
use crate::portion::{DevicePart, Portion};

/// Leases, reservations and requests that wait for a portion of one worker at a time: each decision examines all of them.
pub const MAX_HOLDERS: usize = 64;

/// How long capacity that two schedulers need and only one can have stays with one of them, if it needs it that long.
/// Enough for several round trips, so that the time is used.
pub const TURN_DURATION: Span = Span::from_secs(10);

/// How often a holder is asked to renew early after a change. Its limit settles after two or three renewals; many more
/// would be a fault in the division, and must not keep the network busy.
const MAX_EARLY_RENEWALS: u8 = 8;

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
    waiting: BTreeMap<SchedulerId, (Wants, Time)>,
    /// A planted fault: capacity that others hold is granted again. Has no effect without the `mutants` feature.
    grants_twice: bool,
}

#[derive(Clone, Debug)]
struct Lease<K> {
    id: LeaseId,
    request: u64,
    ttl: Span,
    until: Time,
    terms: Wants,
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
    /// It was told that it is taken back: renewals no longer extend it.
    is_noticed: bool,
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
            worker,
        }
    }

    /// Plants a fault, to show that a checker notices. Does nothing without the `mutants` feature.
    pub fn mutate_double_grant(&mut self) {
        self.grants_twice = cfg!(feature = "mutants");
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
            Wants::new(wanted, before.as_ref().map(|lease| &lease.terms).or(waited.as_ref()), now);
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
        let ends = self.leases.values().map(|lease| lease.until).min();
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
        let ended = |terms: &Wants| {
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
    fn empty_lease(&self, id: LeaseId, terms: Wants) -> Lease<K> {
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
        let leases = self.leases.iter().map(|(holder, lease)| {
            (*holder, &lease.terms, &lease.limit, lease.fixed_claim(&self.whole))
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

    fn terms(&self) -> impl Iterator<Item = &Wants> {
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

    /// The portion that a fixed lease has, or that a reservation of all of the worker waits for.
    fn fixed_claim<'a>(&'a self, whole: &'a Portion) -> Option<&'a Portion> {
        match &self.fixed {
            Some(FixedPortion::Whole) if self.is_pending => Some(whole),
            Some(_) if !self.is_pending => Some(&self.limit),
            _ => None,
        }
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

#[cfg(test)]
mod tests;
