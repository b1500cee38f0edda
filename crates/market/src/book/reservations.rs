//! Fixed leases: capacity that is reserved for an offer, accepted, and perhaps taken back.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use hypha_model::{LeaseId, Priority, Requirement, Span, Time};

use super::wants::Wants;
use super::{Holder, Lease, LeaseBook, LeaseGrant, LeaseKey, PARTIAL_AFTER, in_use};
use crate::divide::portion_for;
use crate::portion::Portion;

/// What a fixed lease is to cover.
#[derive(Clone, Debug, PartialEq)]
pub enum FixedPortion {
    /// What any one of these needs, on any devices: the reservation covers each of those that fit, and is accepted for
    /// one of them.
    AnyOf(Vec<Arc<Requirement>>),
    /// All that is free, if that is at least what this needs.
    AllFree(Arc<Requirement>),
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

impl<K: LeaseKey> LeaseBook<K> {
    /// Reserves capacity for an offer. Returns whether it holds it already; otherwise it waits for it
    /// ([`LeaseBook::cover_reservations`]). `None` if the worker could never do it, or has too many leases.
    pub fn reserve(
        &mut self,
        now: Time,
        holder: Holder,
        wanted: Reservation,
        id: impl FnOnce() -> LeaseId,
    ) -> Option<bool> {
        let could = |needs: &Arc<Requirement>| needs.satisfied_by(&self.worker).is_ok();
        let is_possible = match &wanted.portion {
            FixedPortion::AnyOf(requirements) => requirements.iter().any(could),
            FixedPortion::AllFree(needs) => could(needs),
            FixedPortion::Whole => true,
        };
        if !is_possible {
            return None;
        }
        if self.leases.contains_key(&holder) || self.is_full() {
            return None;
        }
        let mut lease = self.empty_lease(id(), Wants::fixed(&wanted.portion, &self.worker, now));
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
            Some(FixedPortion::AllFree(needs)) => {
                open.refusal_for(&self.worker, needs).is_none().then(|| open.clone())
            }
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
    pub(super) fn awaited(&self) -> BTreeMap<Holder, Portion> {
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
                Some(FixedPortion::AllFree(needs)) => {
                    self.portion_for_any(std::slice::from_ref(needs), &open)
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
            (Some(held), Some(FixedPortion::AllFree(needs))) => {
                held.limit.refusal_for(&self.worker, needs).is_none()
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
            FixedPortion::AllFree(_) => vec![(0, lease.limit.clone())],
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
        let lease = self.leases.get(&holder)?;
        let is_one_of = matches!(lease.fixed, Some(FixedPortion::AnyOf(_)));
        let chosen = match lease.is_offer && is_one_of {
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
            Some(FixedPortion::AllFree(needs)) => open.refusal_for(&self.worker, needs).is_none(),
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
}
