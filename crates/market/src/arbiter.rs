//! The worker's side of adverts: which are answered, when, and in which order.
//!
//! An advert that the worker could serve stays open for a while before it is answered, so that adverts of competing
//! schedulers are compared. One that came by gossip reached every worker: it is answered after a random delay, short for few
//! workers and shorter for those that fit better ([`answer_delay`]), and not at all if the scheduler has had enough
//! before. A scheduler has a budget of open adverts, so that a flood of them costs only its own.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use hypha_model::{AdvertId, Money, Priority, Rng, SchedulerId, Span, Time};

use crate::advert::{Advert, Advertiser};

/// How long an advert waits for others to be compared with: several times the spread of the arrivals of adverts that
/// were sent at the same time, and short against a window.
pub const COMPARISON_WINDOW: Span = Span::from_millis(50);
/// Open adverts of one scheduler. It needs one for each job or pool that grows.
pub const MAX_ADVERTS_PER_SCHEDULER: usize = 8;
/// Open adverts of all schedulers.
pub const MAX_OPEN_ADVERTS: usize = 256;
/// How long capacity stays reserved after the window of its advert: for the choice, the acceptance and one repeat of it.
pub const RESERVED_AFTER_WINDOW: Span = Span::from_secs(2);
/// The number of workers for which delays are spread. Of this many, about one answers at once.
const SPREAD_OVER: f64 = 100_000.0;
/// The share of a window in which answers are sent: the rest is for their way to the scheduler, which closes the window by
/// its own clock. Of few workers, most would otherwise answer at the very end, and too late.
const ANSWERED_WITHIN: f64 = 0.6;
/// How many reservations and leases of a scheduler are remembered.
const MAX_REMEMBERED_USES: u32 = 64;
/// With fewer, a scheduler has the best standing: one lost message says nothing.
const MIN_USES: u32 = 4;
/// How many times as likely as the worst fit the best fit is among the first to answer.
const FIT_ADVANTAGE: f64 = 10.0;

/// The adverts that a worker may answer. See the module documentation.
#[derive(Clone, Debug, Default)]
pub struct Arbiter {
    open: BTreeMap<(SchedulerId, AdvertId), OpenAdvert>,
    /// A planted fault: adverts for replacements go last.
    newcomers_first: bool,
}

/// An advert that has not been answered, or not by all that the worker has to offer.
#[derive(Clone, Debug)]
pub struct OpenAdvert {
    /// Its scheduler.
    pub from: Advertiser,
    /// The advert.
    pub advert: Arc<Advert>,
    /// Its priority, within the owner's ceiling for the organisation.
    pub priority: Priority,
    /// The roles that the worker could take, by their index in the advert, with the price that it asks for each.
    pub roles: Vec<(u16, Money)>,
    /// It came directly, and its scheduler expects an answer.
    pub is_direct: bool,
    /// The standing of its scheduler.
    pub standing: u8,
    /// Whether it goes before others of its priority.
    pub is_replacement: bool,
    /// It is not answered before this.
    answer_at: Time,
    /// It is not answered after this.
    closes_at: Time,
}

/// Why an advert is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ignored {
    /// The worker can take none of its roles.
    NoRole,
    /// It is open already.
    Repeated,
    /// Its scheduler has too many open adverts.
    OverBudget,
    /// There are too many open adverts.
    TooMany,
}

impl Arbiter {
    /// An advert arrived. `fit` says how well the worker fits, from 0 to 1; it counts if the advert came by gossip.
    /// `standing` is that of the scheduler ([`SchedulerRecord::standing`]).
    pub fn advertised(
        &mut self,
        now: Time,
        (from, advert): (Advertiser, Arc<Advert>),
        (priority, roles): (Priority, Vec<(u16, Money)>),
        (fit, standing): (Option<f64>, u8),
        rng: &mut Rng,
    ) -> Result<(), Ignored> {
        let key = (from.scheduler, advert.id);
        if roles.is_empty() {
            return Err(Ignored::NoRole);
        }
        if let Some(open) = self.open.get_mut(&key) {
            if open.is_direct || fit.is_some() {
                return Err(Ignored::Repeated);
            }
            // It came by gossip first, and its scheduler expects an answer.
            open.is_direct = true;
            open.answer_at = open.answer_at.min(now + COMPARISON_WINDOW);
            return Ok(());
        }
        let of_scheduler = self.open.keys().filter(|(scheduler, _)| *scheduler == key.0).count();
        if of_scheduler >= MAX_ADVERTS_PER_SCHEDULER {
            return Err(Ignored::OverBudget);
        }
        if self.open.len() >= MAX_OPEN_ADVERTS {
            return Err(Ignored::TooMany);
        }
        let delay = fit.map_or(Span::ZERO, |fit| answer_delay(advert.window, fit, rng));
        let answer_at = now + delay.max(COMPARISON_WINDOW).min(advert.window);
        let closes_at = now + advert.window;
        let is_direct = fit.is_none();
        let is_replacement = advert.is_replacement != self.newcomers_first;
        let open = OpenAdvert {
            from,
            advert,
            priority,
            roles,
            is_direct,
            standing,
            is_replacement,
            answer_at,
            closes_at,
        };
        self.open.insert(key, open);
        Ok(())
    }

    /// Plants a fault, to show that a checker notices. Does nothing without the `mutants` feature.
    pub fn mutate_order(&mut self) {
        self.newcomers_first = cfg!(feature = "mutants");
    }

    /// The scheduler has enough offers, or wants none any more. Returns whether the advert was open.
    pub fn closed(&mut self, scheduler: SchedulerId, advert: AdvertId) -> bool {
        self.open.remove(&(scheduler, advert)).is_some()
    }

    /// Removes and returns the adverts that are to be answered now, the best first. If one is due, those that go before
    /// it are answered with it, although they could wait: they must not find its capacity taken.
    pub fn due(&mut self, now: Time) -> Vec<OpenAdvert> {
        let is_due = |open: &OpenAdvert| open.answer_at <= now;
        let Some(last) =
            self.open.values().filter(|open| is_due(open)).map(OpenAdvert::order).max()
        else {
            return Vec::new();
        };
        let chosen = self.open.iter().filter(|(_, open)| is_due(open) || open.order() < last);
        let keys: Vec<_> = chosen.map(|(key, _)| *key).collect();
        let mut due: Vec<OpenAdvert> =
            keys.iter().filter_map(|key| self.open.remove(key)).collect();
        due.sort_by_key(OpenAdvert::order);
        due.retain(|open| open.closes_at >= now);
        due
    }

    /// When an advert is to be answered next.
    pub fn wake_at(&self) -> Option<Time> {
        self.open.values().map(|open| open.answer_at).min()
    }

    /// How many adverts are open.
    pub fn len(&self) -> usize {
        self.open.len()
    }

    /// Whether no advert is open.
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }
}

/// The order in which adverts are answered. The last part only makes it a total order.
type Order = (
    Reverse<Priority>,
    Reverse<bool>,
    Reverse<u8>,
    Reverse<Money>,
    Reverse<Span>,
    (SchedulerId, AdvertId),
);

impl OpenAdvert {
    /// For how long capacity is reserved for it.
    pub fn reserved_for(&self, now: Time) -> Span {
        self.closes_at.since(now) + RESERVED_AFTER_WINDOW
    }

    /// Lower goes first: the higher priority, then a gang that has lost a member, then the scheduler that uses what it
    /// takes, then the higher price, then the longer wait.
    fn order(&self) -> Order {
        let price = self.roles.iter().map(|(_, price)| *price).max().unwrap_or(Money::ZERO);
        (
            Reverse(self.priority),
            Reverse(self.is_replacement),
            Reverse(self.standing),
            Reverse(price),
            Reverse(self.advert.waited),
            (self.from.scheduler, self.advert.id),
        )
    }
}

/// What a worker remembers of a scheduler: how often it used what was reserved for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchedulerRecord {
    used: u32,
    unused: u32,
}

impl SchedulerRecord {
    /// A reservation was answered, and a lease was used; or not.
    pub fn record(&mut self, is_used: bool) {
        match is_used {
            true => self.used += 1,
            false => self.unused += 1,
        }
        // The older half counts less and less, so a scheduler that was mended recovers.
        if self.used + self.unused >= MAX_REMEMBERED_USES {
            (self.used, self.unused) = (self.used / 2, self.unused / 2);
        }
    }

    /// From 0 to 10: the share of reservations that were answered and leases that were used, in tenths. A scheduler that
    /// is not known has 10.
    pub fn standing(self) -> u8 {
        let all = self.used + self.unused;
        if all < MIN_USES { 10 } else { (self.used * 10 / all) as u8 }
    }
}

/// How long a worker waits before it answers an advert that every worker got. The delays of many workers are distributed so
/// that few are short, whatever the number of workers: x is uniform, and a delay shorter than a share s of [`ANSWERED_WITHIN`] of the window has
/// the probability `SPREAD_OVER^(s - 1)`. A better fit, from 0 to 1, divides x by up to [`FIT_ADVANTAGE`].
pub fn answer_delay(window: Span, fit: f64, rng: &mut Rng) -> Span {
    let fit = if fit.is_finite() { fit.clamp(0.0, 1.0) } else { 0.0 };
    let x = (1.0 - rng.unit()) / FIT_ADVANTAGE.powf(fit);
    let share = 1.0 + x.ln() / SPREAD_OVER.ln();
    window.mul_f64(ANSWERED_WITHIN * share.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::advert::WantedRole;

    const WINDOW: Span = Span::from_millis(500);

    fn at(millis: u64) -> Time {
        Time::from_micros(millis * 1_000)
    }

    fn advertiser(number: u64) -> Advertiser {
        let scheduler = SchedulerId::new(Time::ZERO, &mut Rng::new(number));
        Advertiser { scheduler, organisation: "lab".parse().unwrap() }
    }

    fn advert(number: u64) -> Advert {
        Advert {
            id: AdvertId::new(Time::ZERO, &mut Rng::new(number)),
            roles: vec![WantedRole {
                name: "worker".parse().unwrap(),
                requirement: Arc::default(),
                count: 1,
                minimum: 1,
                wants_all: false,
                bid: Money::ZERO,
            }],
            priority: Priority::default(),
            is_preemptible: false,
            is_replacement: false,
            waited: Span::ZERO,
            window: WINDOW,
            offers_wanted: 4,
            lease_ttl: Span::from_secs(30),
        }
    }

    struct Rig {
        arbiter: Arbiter,
        rng: Rng,
    }

    impl Rig {
        fn new() -> Rig {
            Rig { arbiter: Arbiter::default(), rng: Rng::new(1) }
        }

        fn receive(
            &mut self,
            now: Time,
            from: u64,
            advert: Advert,
            units: u64,
        ) -> Result<(), Ignored> {
            let (priority, price) = (advert.priority, Money::from_micros(units));
            let received = (advertiser(from), Arc::new(advert));
            let terms = (priority, vec![(0, price)]);
            self.arbiter.advertised(now, received, terms, (None, 10), &mut self.rng)
        }

        fn due(&mut self, now: Time) -> Vec<AdvertId> {
            self.arbiter.due(now).iter().map(|open| open.advert.id).collect()
        }
    }

    #[test]
    fn adverts_that_arrive_together_are_answered_by_value() {
        let mut rig = Rig::new();
        let important = Priority::new(2.0).unwrap();
        let waited = Span::from_secs(9);
        let adverts = [
            (advert(1), 5),
            (Advert { waited, ..advert(2) }, 5),
            (advert(3), 7),
            (Advert { is_replacement: true, ..advert(4) }, 1),
            (Advert { priority: important, ..advert(5) }, 0),
        ];
        let best_first: Vec<AdvertId> = adverts.iter().rev().map(|(advert, _)| advert.id).collect();
        for (number, (advert, price)) in adverts.into_iter().enumerate() {
            rig.receive(at(number as u64), number as u64, advert, price).unwrap();
        }
        assert_eq!(rig.arbiter.wake_at(), Some(at(50)));
        assert_eq!(rig.due(at(49)), [], "others may come");
        assert_eq!(
            rig.due(at(50)),
            best_first,
            "the better ones do not wait longer than the first"
        );
        assert!(rig.arbiter.is_empty());
    }

    #[test]
    fn a_worse_advert_is_not_answered_before_its_time() {
        let mut rig = Rig::new();
        rig.receive(at(0), 1, advert(1), 5).unwrap();
        rig.receive(at(40), 2, advert(2), 1).unwrap();
        assert_eq!(rig.due(at(50)), [advert(1).id]);
        assert_eq!(rig.due(at(90)), [advert(2).id]);
    }

    #[test]
    fn a_flood_of_one_scheduler_leaves_room_for_others() {
        let mut rig = Rig::new();
        for number in 0..1_000 {
            let kept = rig.receive(at(0), 1, advert(number), 5);
            assert_eq!(kept.is_ok(), (number as usize) < MAX_ADVERTS_PER_SCHEDULER);
        }
        assert_eq!(rig.receive(at(0), 2, advert(5_000), 5), Ok(()));
        assert_eq!(rig.receive(at(0), 2, advert(5_000), 5), Err(Ignored::Repeated));
        for from in 3..1_000 {
            let _ = rig.receive(at(0), from, advert(5_000 + from), 5);
        }
        assert_eq!(rig.arbiter.len(), MAX_OPEN_ADVERTS);
        let last = rig.receive(at(0), 5_000, advert(9_999), 5);
        assert_eq!(last, Err(Ignored::TooMany));
    }

    #[test]
    fn an_advert_that_came_by_gossip_and_then_directly_is_answered_like_a_direct_one() {
        let mut rig = Rig::new();
        let (priority, roles) = (Priority::default(), vec![(0, Money::ZERO)]);
        let received = (advertiser(1), Arc::new(advert(1)));
        let gossiped = (Some(0.0), 10);
        rig.arbiter.advertised(at(0), received, (priority, roles), gossiped, &mut rig.rng).unwrap();
        assert!(rig.arbiter.wake_at() > Some(at(60)));
        assert_eq!(rig.receive(at(10), 1, advert(1), 0), Ok(()));
        assert_eq!(rig.receive(at(10), 1, advert(1), 0), Err(Ignored::Repeated));
        let due = rig.arbiter.due(at(60));
        assert_eq!(due.iter().map(|open| open.is_direct).collect::<Vec<_>>(), [true]);
    }

    #[test]
    fn a_closed_advert_is_not_answered_and_only_its_scheduler_closes_it() {
        let mut rig = Rig::new();
        rig.receive(at(0), 1, advert(1), 5).unwrap();
        assert!(!rig.arbiter.closed(advertiser(2).scheduler, advert(1).id));
        assert!(rig.arbiter.closed(advertiser(1).scheduler, advert(1).id));
        assert_eq!(rig.due(at(1_000)), []);
        // A worker that was suspended does not answer what is long over.
        rig.receive(at(2_000), 1, advert(2), 5).unwrap();
        assert_eq!(rig.due(at(2_501)), []);
        assert!(rig.arbiter.is_empty());
    }

    #[test]
    fn scheduler_that_does_not_use_what_it_takes_goes_after_others() {
        let mut record = SchedulerRecord::default();
        assert_eq!(record.standing(), 10, "it is not known");
        (0..3).for_each(|_| record.record(false));
        assert_eq!(record.standing(), 10, "a few lost messages say nothing");
        (0..5).for_each(|_| record.record(false));
        assert_eq!(record.standing(), 0);
        let mut rig = Rig::new();
        let mut receive = |from: u64, standing: u8, price: u64| {
            let received = (advertiser(from), Arc::new(advert(from)));
            let terms = (Priority::default(), vec![(0, Money::from_micros(price))]);
            rig.arbiter.advertised(at(0), received, terms, (None, standing), &mut rig.rng)
        };
        assert_eq!(receive(1, record.standing(), 9), Ok(()));
        assert_eq!(receive(2, 10, 1), Ok(()));
        assert_eq!(rig.due(at(50)), [advert(2).id, advert(1).id], "whatever it bids");
        (0..64).for_each(|_| record.record(true));
        assert!(record.standing() > 5, "it recovers");
    }

    /// Answers within a share of the time for answers: what a scheduler gets before it can say that it has enough.
    fn answers(workers: usize, fit: f64, share: f64) -> usize {
        let mut rng = Rng::new(7);
        let soon = WINDOW.mul_f64(ANSWERED_WITHIN * share);
        (0..workers).filter(|_| answer_delay(WINDOW, fit, &mut rng) < soon).count()
    }

    #[test]
    fn many_workers_send_few_answers_before_the_scheduler_has_enough() {
        for fit in [0.0, 0.5, 1.0] {
            let early = answers(10_000, fit, 0.2);
            assert!(early < 30, "{early} of 10,000 answered early with fit {fit}");
            // With few workers, all answer within the window.
            assert_eq!(answers(5, fit, 1.01), 5);
        }
        let (good, poor) = (answers(100_000, 1.0, 0.3), answers(100_000, 0.0, 0.3));
        assert!(good > 5 * poor, "{good} that fit well and {poor} that fit poorly answered early");
        for fit in [f64::NAN, f64::INFINITY, -1.0] {
            assert!(answer_delay(WINDOW, fit, &mut Rng::new(1)) <= WINDOW);
        }
    }
}
