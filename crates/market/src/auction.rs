//! The scheduler's side of one advert: collects offers, and chooses the best set of them.

mod assign;
mod score;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use hypha_model::amount::FieldError;
use hypha_model::{Money, Name, OfferId, Rng, Span, Time, WorkerId};
use serde::Serialize;

use crate::advert::{Advert, MAX_OFFERS_WANTED, Offer, WantedRole};
use crate::portion::Portion;
use assign::{Candidate, Filled, Gang, Places, Rating};
pub use score::{GrantRecord, ScoreParts, Valuation, WorkerStanding};

/// How many of the next best offers of each role an explanation has.
const MAX_RUNNERS_UP: usize = 3;
/// The first delay after a failed gang, and the longest: some round trips, and what a person would wait for. With 8 s, gangs
/// that wait reserve what others could use, and the simulator measures a lower utilisation.
const BACKOFF_RANGE: (Span, Span) = (Span::from_millis(100), Span::from_secs(30));

/// The least time that is left for an accept to reach its worker, beside the round trip: both ends may be busy.
const ACCEPT_MARGIN: Span = Span::from_millis(50);
/// Ids of offers that are remembered, so that a repeated one is not counted twice: four times what is asked for. In a flood
/// of more, repeated offers may be counted again; the choice does not depend on it.
const MAX_REMEMBERED: usize = 4 * MAX_OFFERS_WANTED as usize;

/// The offers for one advert, collected until it closes.
///
/// Each role keeps the best offers for it, as many as the advert wants in all, so that many offers for one role do not
/// displace the few for another. Which ones are kept, counted and chosen does not depend on the order of arrival.
pub struct Auction {
    advert: Arc<Advert>,
    /// Private: in no message, no log and no explanation.
    max: Vec<Money>,
    valuation: Valuation,
    closes_at: Time,
    /// The workers that were asked directly and have not answered.
    unanswered: Option<BTreeSet<WorkerId>>,
    /// The offers that count for at least one role.
    offers: BTreeMap<OfferKey, Entry>,
    /// For each role the offers that count for it, the worst first.
    kept: Vec<BTreeSet<Rank>>,
    remembered: BTreeSet<OfferKey>,
    not_counted: Vec<NotCountedBy>,
}

type OfferKey = (WorkerId, OfferId);
/// By score, then price, then id: the lowest is the worst.
type Rank = (u64, Reverse<u64>, Reverse<OfferKey>);

struct Entry {
    offer: Arc<Offer>,
    standing: WorkerStanding,
    /// Until when an accept that is sent reaches the worker in time.
    usable_until: Time,
    /// For each role, if it counts for it.
    ratings: Vec<Option<Rating>>,
}

/// How many offers did not count for a role, by reason.
pub type NotCountedBy = BTreeMap<NotCounted, u32>;

/// Why an offer does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NotCounted {
    /// It does not answer the advert, or offers too little.
    Invalid,
    /// It costs more than the scheduler pays.
    TooExpensive,
    /// It came after the advert had closed.
    Late,
    /// There is an offer with this id.
    Repeated,
    /// There are as many better ones as are kept.
    TooMany,
    /// Its capacity is not reserved for long enough.
    Expired,
}

/// An offer that does not count.
#[derive(Clone, Debug, PartialEq)]
pub struct OfferRefusal {
    /// The reason.
    pub kind: NotCounted,
    /// What is invalid.
    pub error: Option<FieldError>,
}

/// The chosen set.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Choice {
    /// Its members, by role.
    pub members: Vec<Member>,
    /// For each role, why these and not others.
    pub explanation: Vec<RoleExplanation>,
}

/// A member of the chosen set.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Member {
    /// The role, by its index in the advert.
    pub role: u16,
    /// The offer.
    pub offer: OfferId,
    /// The worker.
    pub worker: WorkerId,
    /// What an hour costs.
    pub price: Money,
    /// What the lease covers.
    pub portion: Portion,
}

/// Why the members of a role were chosen.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RoleExplanation {
    /// The role.
    pub role: Name,
    /// The chosen offers.
    pub chosen: Vec<Scored>,
    /// The next best.
    pub runners_up: Vec<Scored>,
    /// Offers that did not count, by reason.
    pub not_counted: NotCountedBy,
}

/// An offer with its score.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Scored {
    /// The worker.
    pub worker: WorkerId,
    /// The offer.
    pub offer: OfferId,
    /// The weighted sum of the parts; higher is better.
    pub score: u64,
    /// The parts.
    pub parts: ScoreParts,
}

/// The minimum of some role cannot be met.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Shortfall {
    /// Whether the offers suffice, but not the budget.
    pub is_over_budget: bool,
    /// Whether the offers suffice, but too few of those that were accepted were granted.
    pub is_not_granted: bool,
    /// Every role.
    pub roles: Vec<RoleShortfall>,
}

/// What a role lacks.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RoleShortfall {
    /// The role.
    pub role: Name,
    /// How many members it could have.
    pub present: u32,
    /// How many its minimum lacks.
    pub missing: u32,
    /// Offers that did not count, by reason.
    pub not_counted: NotCountedBy,
}

impl Auction {
    /// Begins when the advert is sent. `max` is the private highest price of an hour of each role; a role without one
    /// pays its bid. `asked` are the workers that it was sent to directly, `None` for gossip.
    pub fn new(
        advert: Arc<Advert>,
        mut max: Vec<Money>,
        valuation: Valuation,
        asked: Option<BTreeSet<WorkerId>>,
        now: Time,
    ) -> Auction {
        let roles = advert.roles.len();
        max.truncate(roles);
        max.extend(advert.roles.iter().skip(max.len()).map(|role| role.bid));
        Auction {
            closes_at: now + advert.window,
            unanswered: asked,
            offers: BTreeMap::new(),
            kept: vec![BTreeSet::new(); roles],
            remembered: BTreeSet::new(),
            not_counted: vec![NotCountedBy::new(); roles],
            advert,
            max,
            valuation,
        }
    }

    /// An offer arrived. `Ok`: it counts, and these earlier offers, which are worse, no longer do: decline them.
    /// `Err`: why it does not count. Of different offers with one id, the first counts.
    pub fn offered(
        &mut self,
        now: Time,
        offer: Arc<Offer>,
        standing: WorkerStanding,
    ) -> Result<Vec<(WorkerId, OfferId)>, OfferRefusal> {
        let key = (offer.worker_id(), offer.id);
        self.declined(key.0);
        if let Err(error) = offer.validate(&self.advert) {
            (0..self.not_counted.len()).for_each(|role| self.count(role, NotCounted::Invalid));
            return Err(OfferRefusal { kind: NotCounted::Invalid, error: Some(error) });
        }
        let refusal = |kind| Err(OfferRefusal { kind, error: None });
        if self.offers.contains_key(&key) || self.remembered.contains(&key) {
            return refusal(NotCounted::Repeated);
        }
        if self.remembered.len() < MAX_REMEMBERED {
            self.remembered.insert(key);
        }
        let roles: Vec<usize> = offer.roles.iter().map(|offered| offered.role.into()).collect();
        if now >= self.closes_at {
            roles.iter().for_each(|role| self.count(*role, NotCounted::Late));
            return refusal(NotCounted::Late);
        }
        let ratings = self.ratings(&offer, &standing);
        for role in roles.iter().filter(|role| rating_of(&ratings, **role).is_none()) {
            self.count(*role, NotCounted::TooExpensive);
        }
        if ratings.iter().all(Option::is_none) {
            return refusal(NotCounted::TooExpensive);
        }
        let usable_until = now + (offer.reserved_for - (standing.round_trip + ACCEPT_MARGIN));
        self.offers.insert(key, Entry { offer, standing, usable_until, ratings });
        let displaced: Vec<OfferKey> =
            roles.into_iter().filter_map(|role| self.keep(key, role)).collect();
        if displaced.contains(&key) { refusal(NotCounted::TooMany) } else { Ok(displaced) }
    }

    /// A worker that was asked directly will make no offer.
    pub fn declined(&mut self, worker: WorkerId) {
        if let Some(unanswered) = &mut self.unanswered {
            unanswered.remove(&worker);
        }
    }

    /// When the window is over.
    pub fn closes_at(&self) -> Time {
        self.closes_at
    }

    /// Whether the window is over, no more can come, or the offers that were wanted are in, with enough for each role.
    pub fn is_complete(&self, now: Time) -> bool {
        let mut roles = self.advert.roles.iter().zip(&self.kept);
        let is_enough = self.offers.len() >= self.advert.offers_wanted as usize
            && roles.all(|(wanted, kept)| kept.len() >= wanted.count as usize);
        now >= self.closes_at
            || is_enough
            || self.unanswered.as_ref().is_some_and(BTreeSet::is_empty)
    }

    /// The best set of the offers that can still be accepted.
    pub fn choose(&self, now: Time) -> Result<Choice, Shortfall> {
        let mut not_counted = self.not_counted.clone();
        let mut entries: Vec<&Entry> = Vec::with_capacity(self.offers.len());
        for entry in self.offers.values() {
            if now < entry.usable_until {
                entries.push(entry);
                continue;
            }
            let roles = entry.ratings.iter().zip(&mut not_counted);
            for (_, counts) in roles.filter(|(rating, _)| rating.is_some()) {
                *counts.entry(NotCounted::Expired).or_default() += 1;
            }
        }
        let candidates = entries
            .iter()
            .map(|entry| Candidate { worker: entry.offer.worker_id(), ratings: &entry.ratings });
        let candidates: Vec<Candidate<'_>> = candidates.collect();
        let places = self
            .advert
            .roles
            .iter()
            .map(|role| Places { minimum: role.minimum as usize, count: role.count as usize });
        let gang = Gang { candidates: &candidates, places: places.collect() };
        let best = gang.best();
        if !gang.is_sufficient(&best) {
            return Err(self.shortfall(&best, not_counted, false));
        }
        let mut filled = match self.valuation.budget.map(|budget| budget.as_micros().into()) {
            Some(budget) if gang.price(&best) > budget => match gang.within(budget) {
                Some(filled) => filled,
                None => return Err(self.shortfall(&best, not_counted, true)),
            },
            _ => best,
        };
        gang.spread(&mut filled);
        Ok(self.explain(&gang, &entries, &filled, not_counted))
    }

    /// How many offers count.
    pub fn offers(&self) -> usize {
        self.offers.len()
    }

    /// The offers that count.
    pub fn all(&self) -> impl Iterator<Item = (WorkerId, OfferId)> {
        self.offers.keys().copied()
    }

    /// The offers that were not chosen.
    pub fn losers(&self, choice: &Choice) -> impl Iterator<Item = (WorkerId, OfferId)> {
        let won: BTreeSet<OfferKey> =
            choice.members.iter().map(|member| (member.worker, member.offer)).collect();
        self.offers.keys().copied().filter(move |key| !won.contains(key))
    }

    /// For each role what the offer is worth, unless it does not offer for it or is too expensive.
    fn ratings(&self, offer: &Offer, standing: &WorkerStanding) -> Vec<Option<Rating>> {
        let rating = |(role, (wanted, max)): (usize, (&WantedRole, &Money))| {
            let offered = offer.for_role(role as u16).filter(|offered| offered.price <= *max)?;
            let parts = ScoreParts::of(wanted, offered, offer, standing);
            let score = self.valuation.score(&parts);
            Some(Rating { score, price: offered.price.as_micros() })
        };
        self.advert.roles.iter().zip(&self.max).enumerate().map(rating).collect()
    }

    /// Keeps an offer for a role instead of the worst one. Returns the offer that then counts for no role, if any.
    fn keep(&mut self, key: OfferKey, role: usize) -> Option<OfferKey> {
        // An offer for each place of the advert is enough for the best set, whatever other roles take.
        let most = self.advert.offers_wanted.max(self.advert.members()) as usize;
        let rating = rating_of(&self.offers.get(&key)?.ratings, role)?;
        let kept = self.kept.get_mut(role)?;
        kept.insert((rating.score, Reverse(rating.price), Reverse(key)));
        if kept.len() <= most {
            return None;
        }
        let (_, _, Reverse(worst)) = kept.pop_first()?;
        self.count(role, NotCounted::TooMany);
        let entry = self.offers.get_mut(&worst)?;
        *entry.ratings.get_mut(role)? = None;
        if entry.ratings.iter().any(Option::is_some) {
            return None;
        }
        self.offers.remove(&worst);
        Some(worst)
    }

    fn count(&mut self, role: usize, kind: NotCounted) {
        if let Some(counts) = self.not_counted.get_mut(role) {
            *counts.entry(kind).or_default() += 1;
        }
    }

    fn explain(
        &self,
        gang: &Gang<'_>,
        entries: &[&Entry],
        filled: &Filled,
        not_counted: Vec<NotCountedBy>,
    ) -> Choice {
        let is_member = gang.taken(filled);
        let is_free: Vec<bool> = is_member.iter().map(|is_member| !is_member).collect();
        let mut choice = Choice { members: Vec::new(), explanation: Vec::new() };
        let roles = self.advert.roles.iter().zip(filled).zip(not_counted).enumerate();
        for (role, ((wanted, members), not_counted)) in roles {
            let scored = |at: usize| {
                let (offer, standing) = (&entries.get(at)?.offer, &entries.get(at)?.standing);
                let parts = ScoreParts::of(wanted, offer.for_role(role as u16)?, offer, standing);
                let score = self.valuation.score(&parts);
                Some(Scored { worker: offer.worker_id(), offer: offer.id, score, parts })
            };
            let member = |at: usize| {
                let offer = &entries.get(at)?.offer;
                let offered = offer.for_role(role as u16)?;
                Some(Member {
                    role: role as u16,
                    offer: offer.id,
                    worker: offer.worker_id(),
                    price: offered.price,
                    portion: offered.portion.clone(),
                })
            };
            choice.members.extend(members.iter().filter_map(|at| member(*at)));
            let next = gang.ranked(role, MAX_RUNNERS_UP, &is_free);
            choice.explanation.push(RoleExplanation {
                role: wanted.name.clone(),
                chosen: members.iter().filter_map(|at| scored(*at)).collect(),
                runners_up: next.into_iter().filter_map(scored).collect(),
                not_counted,
            });
        }
        choice
    }

    fn shortfall(
        &self,
        filled: &Filled,
        not_counted: Vec<NotCountedBy>,
        is_over_budget: bool,
    ) -> Shortfall {
        let roles = self.advert.roles.iter().zip(filled).zip(not_counted);
        let roles = roles.map(|((wanted, members), not_counted)| RoleShortfall {
            role: wanted.name.clone(),
            present: members.len() as u32,
            missing: wanted.minimum.saturating_sub(members.len() as u32),
            not_counted,
        });
        Shortfall { is_over_budget, is_not_granted: false, roles: roles.collect() }
    }
}

impl OfferRefusal {
    /// Whether the offer counts already: it must not be declined.
    pub fn is_repeated(&self) -> bool {
        self.kind == NotCounted::Repeated
    }
}

impl Shortfall {
    /// The chosen set, of which too little was granted.
    pub fn not_granted(choice: &Choice) -> Shortfall {
        let role = |role: &RoleExplanation| RoleShortfall {
            role: role.role.clone(),
            present: role.chosen.len() as u32,
            missing: 0,
            not_counted: role.not_counted.clone(),
        };
        let roles = choice.explanation.iter().map(role).collect();
        Shortfall { is_over_budget: false, is_not_granted: true, roles }
    }
}

fn rating_of(ratings: &[Option<Rating>], role: usize) -> Option<Rating> {
    ratings.get(role).copied().flatten()
}

impl fmt::Debug for Auction {
    /// Without `max`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Auction")
            .field("advert", &self.advert.id)
            .field("closes_at", &self.closes_at)
            .field("offers", &self.offers.len())
            .finish_non_exhaustive()
    }
}

/// How many offers are enough for an advert that calls for `members`: each may fail once, and small gangs have a choice.
pub fn offers_wanted(members: u32) -> u32 {
    members.saturating_mul(2).saturating_add(8).min(MAX_OFFERS_WANTED)
}

/// The delay before the next advert of a gang that has failed `attempts` times: random between half and all of a span
/// that doubles.
pub fn backoff(attempts: u32, rng: &mut Rng) -> Span {
    let doubled = 1u64 << attempts.saturating_sub(1).min(20);
    BACKOFF_RANGE.0.times(doubled).min(BACKOFF_RANGE.1).mul_f64(0.5 + 0.5 * rng.unit())
}

#[cfg(test)]
mod tests;
