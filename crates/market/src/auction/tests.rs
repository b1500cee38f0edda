//! Which offers count and which are chosen, compared with a search of all sets.

use hypha_model::{AdvertId, Capacity, Epoch, Executor, ExecutorClass, Requirement, Rng, Worker};
use proptest::prelude::*;

use super::*;
use crate::advert::OfferedRole;

const SECOND: Span = Span::from_secs(1);

/// A role as count, minimum and bid; an offer as its worker, its id, and its role and price for each of its roles.
type RoleCase = (u32, u32, u64);
type OfferCase = (u64, u64, Vec<(u16, u64)>);
type Change = dyn Fn(&mut Offer, &mut WorkerStanding);

fn id<T>(make: impl Fn(Time, &mut Rng) -> T, seed: u64) -> T {
    make(Time::ZERO, &mut Rng::new(seed))
}

fn advert(roles: &[RoleCase], offers_wanted: u32) -> Arc<Advert> {
    let role = |(at, (count, minimum, bid)): (usize, &RoleCase)| WantedRole {
        name: format!("role{at}").parse().unwrap(),
        requirement: Arc::new(Requirement { cpu_milli: 1_000, ..Requirement::default() }),
        count: *count,
        minimum: *minimum,
        wants_all: false,
        bid: Money::from_micros(*bid),
    };
    Arc::new(Advert {
        id: id(AdvertId::new, 1),
        roles: roles.iter().enumerate().map(role).collect(),
        priority: Default::default(),
        is_preemptible: false,
        is_replacement: false,
        waited: Span::ZERO,
        window: SECOND,
        offers_wanted,
        lease_ttl: Span::from_secs(30),
    })
}

fn offer((worker, seed, roles): &OfferCase) -> Offer {
    let executor = Executor {
        class: ExecutorClass::default(),
        name: "echo".parse().unwrap(),
        models: Vec::new(),
        concurrency: 1,
    };
    let worker = Worker {
        id: id(WorkerId::new, 1_000 + *worker),
        capacity: Capacity { cpu_milli: 1_000, ..Capacity::default() },
        executors: vec![executor],
        hardware: None,
        region: None,
        price: Money::default(),
    };
    let portion = Portion::whole(&worker);
    let role = |(role, price): &(u16, u64)| OfferedRole {
        role: *role,
        price: Money::from_micros(*price),
        portion: portion.clone(),
    };
    Offer {
        id: id(OfferId::new, 9_000 + seed),
        advert: id(AdvertId::new, 1),
        roles: roles.iter().map(role).collect(),
        worker: Arc::new(worker),
        epoch: Epoch::default(),
        reserved_for: Span::from_secs(10),
        speed_milli: None,
        backlog: Span::ZERO,
        is_relayed: false,
    }
}

fn auction(roles: &[RoleCase], offers_wanted: u32, max: &[u64], valuation: Valuation) -> Auction {
    let max = max.iter().map(|max| Money::from_micros(*max)).collect();
    Auction::new(advert(roles, offers_wanted), max, valuation, None, Time::ZERO)
}

fn send(auction: &mut Auction, offer: Offer) -> Result<Vec<(WorkerId, OfferId)>, NotCounted> {
    auction
        .offered(Time::ZERO, Arc::new(offer), WorkerStanding::default())
        .map_err(|refusal| refusal.kind)
}

fn key(offer: &Offer) -> (WorkerId, OfferId) {
    (offer.worker_id(), offer.id)
}

fn chosen(choice: &Choice, role: u16) -> BTreeSet<OfferId> {
    choice.members.iter().filter(|m| m.role == role).map(|m| m.offer).collect()
}

fn not_counted(auction: &Auction, role: usize, kind: NotCounted) -> u32 {
    auction.not_counted[role].get(&kind).copied().unwrap_or(0)
}

fn offer_cases(roles: u16, most: usize) -> impl Strategy<Value = Vec<OfferCase>> {
    let prices = prop::collection::btree_map(0..roles, 1..8u64, 1..=usize::from(roles));
    let one = (0..6u64, prices);
    prop::collection::vec(one, 0..most).prop_map(|offers| {
        let case = |(at, (worker, prices)): (usize, (u64, BTreeMap<u16, u64>))| {
            (worker, at as u64, prices.into_iter().collect())
        };
        offers.into_iter().enumerate().map(case).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Also if offers are repeated, too expensive, invalid, or more than are kept.
    #[test]
    fn order_of_arrival_changes_nothing(
        cases in offer_cases(2, 24),
        (wanted, budget, seed) in (1..12u32, prop::option::of(1..40u64), any::<u64>()),
    ) {
        let valuation =
            Valuation { budget: budget.map(Money::from_micros), ..Valuation::BALANCE };
        let mut offers: Vec<Offer> = cases.iter().map(offer).collect();
        offers.extend(offers.clone().into_iter().step_by(3));
        for invalid in offers.iter_mut().skip(1).step_by(7) {
            invalid.roles.clear();
        }
        // A valid and an invalid offer with one id are two offers: only the valid one is remembered.
        let run = |offers: &[Offer]| {
            let mut auction = auction(&[(3, 2, 4), (1, 1, 4)], wanted, &[6, 5], valuation);
            for offer in offers {
                let _refused = send(&mut auction, offer.clone());
            }
            let kept: Vec<_> = auction.offers.keys().copied().collect();
            (auction.choose(Time::ZERO + SECOND), auction.not_counted, kept)
        };
        let expected = run(&offers);
        let mut rng = Rng::new(seed);
        for last in (1..offers.len()).rev() {
            offers.swap(last, rng.below(last as u64 + 1) as usize);
        }
        prop_assert_eq!(run(&offers), expected);
    }
}

#[test]
fn a_displaced_offer_is_returned_and_counted_for_each_role() {
    let mut auction = auction(&[(1, 1, 10)], 2, &[], Valuation::BALANCE);
    let [dear, fair, cheap] =
        [(1, 9), (2, 5), (3, 2)].map(|(at, price)| offer(&(at, at, vec![(0, price)])));
    assert_eq!(send(&mut auction, dear.clone()), Ok(vec![]));
    assert_eq!(send(&mut auction, fair), Ok(vec![]));
    assert_eq!(send(&mut auction, cheap), Ok(vec![key(&dear)]));
    assert_eq!(not_counted(&auction, 0, NotCounted::TooMany), 1);
    assert_eq!(send(&mut auction, dear), Err(NotCounted::Repeated));
    assert_eq!(send(&mut auction, offer(&(4, 4, vec![(0, 10)]))), Err(NotCounted::TooMany));
    assert_eq!(not_counted(&auction, 0, NotCounted::TooMany), 2);
    assert_eq!(auction.offers.len(), 2);
}

#[test]
fn many_good_offers_do_not_displace_the_only_one_for_a_rare_role() {
    let mut auction = auction(&[(4, 4, 10), (1, 1, 10)], 8, &[], Valuation::BALANCE);
    let server = offer(&(100, 100, vec![(0, 10), (1, 10)]));
    assert_eq!(send(&mut auction, server.clone()), Ok(vec![]));
    for at in 0..50 {
        let _kept = send(&mut auction, offer(&(at, at, vec![(0, 1)])));
    }
    assert_eq!(auction.offers.len(), 9);
    let choice = auction.choose(Time::ZERO).unwrap();
    assert_eq!(chosen(&choice, 1), BTreeSet::from([server.id]));
    assert_eq!(chosen(&choice, 0).len(), 4);
}

#[test]
fn an_auction_is_complete_when_every_role_has_offers_or_no_more_can_come() {
    let mut by_gossip = auction(&[(1, 1, 10), (1, 1, 10)], 2, &[], Valuation::BALANCE);
    for at in 0..3 {
        send(&mut by_gossip, offer(&(at, at, vec![(0, 1)]))).unwrap_or_default();
    }
    assert!(!by_gossip.is_complete(Time::ZERO));
    assert!(by_gossip.is_complete(by_gossip.closes_at()));
    send(&mut by_gossip, offer(&(5, 5, vec![(1, 1)]))).unwrap();
    assert!(by_gossip.is_complete(Time::ZERO));

    let [first, second] = [1, 2].map(|at| offer(&(at, at, vec![(0, 1)])));
    let asked = BTreeSet::from([first.worker_id(), second.worker_id()]);
    let advert = advert(&[(2, 2, 10)], 12);
    let mut direct = Auction::new(advert, vec![], Valuation::BALANCE, Some(asked), Time::ZERO);
    send(&mut direct, first).unwrap();
    assert!(!direct.is_complete(Time::ZERO));
    direct.declined(second.worker_id());
    assert!(direct.is_complete(Time::ZERO));
}

#[test]
fn late_invalid_and_expensive_offers_do_not_count_and_counter_offers_do() {
    let mut auction = auction(&[(2, 1, 10), (1, 0, 10)], 12, &[15], Valuation::BALANCE);
    let mut other = offer(&(1, 1, vec![(0, 1)]));
    other.advert = id(AdvertId::new, 2);
    assert_eq!(send(&mut auction, other), Err(NotCounted::Invalid));
    assert_eq!(send(&mut auction, offer(&(1, 2, vec![(0, 16)]))), Err(NotCounted::TooExpensive));
    // Role 1 has no maximum and pays its bid.
    assert_eq!(send(&mut auction, offer(&(1, 3, vec![(0, 15), (1, 11)]))), Ok(vec![]));
    let late = Arc::new(offer(&(1, 4, vec![(1, 1)])));
    let closed = auction.closes_at();
    let refused = auction.offered(closed, late, WorkerStanding::default()).unwrap_err();
    assert_eq!(refused, OfferRefusal { kind: NotCounted::Late, error: None });
    let counts = |role: usize| auction.not_counted[role].clone().into_iter().collect::<Vec<_>>();
    assert_eq!(counts(0), [(NotCounted::Invalid, 1), (NotCounted::TooExpensive, 1)]);
    assert_eq!(
        counts(1),
        [(NotCounted::Invalid, 1), (NotCounted::TooExpensive, 1), (NotCounted::Late, 1)]
    );
    assert_eq!(chosen(&auction.choose(closed).unwrap(), 0).len(), 1);
}

#[test]
fn a_shortfall_names_the_role_and_what_it_lacks() {
    let mut auction = auction(&[(4, 3, 10), (1, 1, 10)], 12, &[], Valuation::BALANCE);
    send(&mut auction, offer(&(1, 1, vec![(0, 1), (1, 1)]))).unwrap();
    send(&mut auction, offer(&(2, 2, vec![(0, 1)]))).unwrap();
    let shortfall = auction.choose(Time::ZERO).unwrap_err();
    assert!(!shortfall.is_over_budget);
    let lacks: Vec<_> = shortfall.roles.iter().map(|role| (role.present, role.missing)).collect();
    assert_eq!(lacks.iter().map(|(_, missing)| missing).sum::<u32>(), 2);
    assert_eq!(lacks.iter().map(|(present, _)| present).sum::<u32>(), 2);
}

#[test]
fn offers_whose_reservation_has_run_out_are_not_chosen() {
    let mut auction = auction(&[(1, 1, 10)], 12, &[], Valuation::BALANCE);
    let mut short = offer(&(1, 1, vec![(0, 1)]));
    short.reserved_for = SECOND;
    send(&mut auction, short.clone()).unwrap();
    let standing = WorkerStanding::default();
    let last = Time::ZERO + (SECOND - (standing.round_trip + ACCEPT_MARGIN));
    let before = last - Span::from_micros(1);
    assert_eq!(chosen(&auction.choose(before).unwrap(), 0), BTreeSet::from([short.id]));
    let shortfall = auction.choose(last).unwrap_err();
    assert_eq!(shortfall.roles[0].not_counted, BTreeMap::from([(NotCounted::Expired, 1)]));
    // A worse offer that can still be accepted is chosen instead.
    let long = offer(&(2, 2, vec![(0, 9)]));
    send(&mut auction, long.clone()).unwrap();
    let choice = auction.choose(last).unwrap();
    assert_eq!(chosen(&choice, 0), BTreeSet::from([long.id]));
    assert_eq!(auction.losers(&choice).collect::<Vec<_>>(), [key(&short)]);
    let mut nothing = offer(&(3, 3, vec![(0, 1)]));
    nothing.reserved_for = Span::ZERO;
    send(&mut auction, nothing.clone()).unwrap();
    assert_eq!(chosen(&auction.choose(last).unwrap(), 0), BTreeSet::from([long.id]));
}

#[test]
fn of_equal_offers_members_on_different_workers_are_preferred() {
    let mut auction = auction(&[(3, 3, 10), (1, 1, 10)], 12, &[], Valuation::BALANCE);
    // Two workers offer three times each, and two others once.
    for seed in 0..6 {
        send(&mut auction, offer(&(1 + seed % 2, seed, vec![(0, 5), (1, 5)]))).unwrap();
    }
    for worker in [3, 4] {
        send(&mut auction, offer(&(worker, 10 + worker, vec![(0, 5), (1, 5)]))).unwrap();
    }
    let choice = auction.choose(Time::ZERO).unwrap();
    let workers: BTreeSet<_> = choice.members.iter().map(|member| member.worker).collect();
    assert_eq!((choice.members.len(), workers.len()), (4, 4));
    // A better offer goes before another worker.
    let better = offer(&(1, 50, vec![(0, 1)]));
    let also = offer(&(1, 51, vec![(0, 1)]));
    send(&mut auction, better.clone()).unwrap();
    send(&mut auction, also.clone()).unwrap();
    let choice = auction.choose(Time::ZERO).unwrap();
    assert!(chosen(&choice, 0).is_superset(&BTreeSet::from([better.id, also.id])));
}

#[test]
fn a_relay_a_backlog_a_price_and_broken_promises_lower_the_score() {
    let score = |change: &Change| {
        let mut standing = WorkerStanding::default();
        let mut offer = offer(&(1, 1, vec![(0, 5)]));
        change(&mut offer, &mut standing);
        let advert = advert(&[(1, 1, 10)], 12);
        let parts = ScoreParts::of(&advert.roles[0], &offer.roles[0], &offer, &standing);
        Valuation::BALANCE.score(&parts)
    };
    let usual = score(&|_, _| ());
    let worse: [&Change; 7] = [
        &|offer, _| offer.is_relayed = true,
        &|offer, _| offer.backlog = SECOND,
        &|offer, _| offer.roles[0].price = Money::from_micros(6),
        &|offer, _| offer.speed_milli = Some(900),
        &|_, standing| standing.granted_milli = 900,
        &|_, standing| standing.success_milli = 900,
        &|_, standing| standing.round_trip = SECOND,
    ];
    for (at, change) in worse.into_iter().enumerate() {
        assert!(score(change) < usual, "change {at}");
    }
    // What the scheduler has measured goes before what the worker says, and no number overflows.
    let claimed = score(&|offer, standing| {
        (offer.speed_milli, standing.speed_milli) = (Some(u32::MAX), Some(1_000));
    });
    assert_eq!(claimed, usual);
    let extreme = score(&|offer, standing| {
        offer.backlog = Span::MAX;
        standing.round_trip = Span::MAX;
        offer.roles[0].price = Money::MAX;
    });
    assert!(extreme < usual);
}

#[test]
fn max_is_in_no_text() {
    const MAX: u64 = 7_654_321;
    let texts = ["7654321", "7_654_321", "7.654321", "7,654,321"];
    let mut shown = String::new();
    let mut auction =
        auction(&[(1, 1, 1_000_000), (1, 0, 1_000_000)], 12, &[MAX, MAX], Valuation::COST);
    let mut show = |text: &dyn fmt::Debug| shown.push_str(&format!("{text:?} {text:#?}\n"));
    let mut invalid = offer(&(1, 1, vec![(0, 1)]));
    invalid.roles[0].portion.cpu_milli = 0;
    for sent in [offer(&(1, 2, vec![(0, MAX + 1), (1, MAX + 2)])), invalid] {
        let refused = auction.offered(Time::ZERO, Arc::new(sent), WorkerStanding::default());
        let refused = refused.unwrap_err();
        show(&refused);
        show(&refused.error.as_ref().map(ToString::to_string));
    }
    let shortfall = auction.choose(Time::ZERO).unwrap_err();
    show(&shortfall);
    show(&serde_json::to_string(&shortfall).unwrap());
    // An offer at exactly this price would show it.
    send(&mut auction, offer(&(2, 3, vec![(0, MAX - 1), (1, MAX - 2)]))).unwrap();
    send(&mut auction, offer(&(3, 4, vec![(0, MAX - 3)]))).unwrap();
    let choice = auction.choose(Time::ZERO).unwrap();
    show(&choice);
    show(&serde_json::to_string(&choice).unwrap());
    show(&auction);
    assert!(shown.contains("7654320") || shown.contains("7654318"));
    for text in texts {
        assert!(!shown.contains(text), "{shown}");
    }
}

#[test]
fn what_is_kept_and_remembered_is_bounded() {
    let mut auction = auction(&[(1, 1, 10), (1, 1, 10)], 3, &[], Valuation::BALANCE);
    for at in 0..MAX_REMEMBERED as u64 + 50 {
        let _kept = send(&mut auction, offer(&(at, at, vec![((at % 2) as u16, 1 + at % 9)])));
    }
    assert_eq!((auction.offers.len(), auction.remembered.len()), (6, MAX_REMEMBERED));
    assert_eq!(auction.kept.iter().map(BTreeSet::len).collect::<Vec<_>>(), [3, 3]);
    assert!(offers_wanted(u32::MAX) <= MAX_OFFERS_WANTED);
    assert!(offers_wanted(crate::advert::MAX_MEMBERS) >= crate::advert::MAX_MEMBERS);
}

#[test]
fn backoff_is_random_grows_and_is_bounded() {
    let mut rng = Rng::new(1);
    let mut last = Span::ZERO;
    for attempts in [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 30, u32::MAX] {
        let drawn: BTreeSet<Span> = (0..100).map(|_| backoff(attempts, &mut rng)).collect();
        let (least, most) = (*drawn.first().unwrap(), *drawn.last().unwrap());
        assert!(drawn.len() > 90, "{attempts}");
        assert!(least >= BACKOFF_RANGE.0.mul_f64(0.5) && most <= BACKOFF_RANGE.1, "{attempts}");
        if (2..=9).contains(&attempts) {
            assert!(least >= last.mul_f64(0.9) && most > last, "{attempts}: {least} to {most}");
        }
        last = most;
    }
    assert!(last >= BACKOFF_RANGE.1.mul_f64(0.9));
}
