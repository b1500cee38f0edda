//! Worlds of competing schedulers: every promise of the market holds, every checker works.

use std::collections::BTreeSet;

use hypha_engine::{Advert, Mutant};
use hypha_market::WantedRole;
use hypha_model::{AdvertId, Money, Rng, Span};
use hypha_sim::checkers::Promise;
use hypha_sim::market::figures;
use hypha_sim::market::plain::{PlainJob, PlainMarket};
use hypha_sim::market::{self, packer};
use hypha_sim::scenario::market::MarketScope;
use hypha_sim::world::{MarketCounts, Rogue, START};

/// CI runs 200 seeds in four parts that share the cores. `hypha sim market --seeds 10000` takes more.
fn check_seeds(seeds: std::ops::Range<u64>) {
    let scope = MarketScope::default();
    for seed in seeds {
        if let Some(violation) = market::run(seed, &scope).violation {
            panic!("{violation}\nagain: hypha sim market --from {seed} --seeds 1");
        }
    }
}

#[test]
fn market_promises_hold_in_seeds_0_to_50() {
    check_seeds(0..50);
}

#[test]
fn market_promises_hold_in_seeds_50_to_100() {
    check_seeds(50..100);
}

#[test]
fn market_promises_hold_in_seeds_100_to_150() {
    check_seeds(100..150);
}

#[test]
fn market_promises_hold_in_seeds_150_to_200() {
    check_seeds(150..200);
}

#[test]
fn market_seed_repeats_event_for_event() {
    let scope = MarketScope { jobs: 10, workers: 15, ..MarketScope::default() };
    for seed in 0..3 {
        let (first, _, first_log) = market::run_counted(seed, &scope, true);
        let (second, _, second_log) = market::run_counted(seed, &scope, true);
        assert_eq!(first.steps, second.steps);
        assert_eq!(first_log, second_log, "seed {seed}");
    }
}

/// A planted fault is noticed by its checker, within some smaller worlds.
#[track_caller]
fn assert_noticed(mutant: Mutant, by: Promise) {
    let mutant = Some(mutant);
    let scope = MarketScope { workers: 12, schedulers: 3, jobs: 15, mutant, ..Default::default() };
    let mut seen = Vec::new();
    for seed in 0..60 {
        if let Some(violation) = market::run(seed, &scope).violation {
            if violation.promise == by {
                return;
            }
            seen.push(violation);
        }
    }
    panic!("{mutant:?} did not break {by:?}, but {seen:?}");
}

#[test]
fn capacity_of_gangs_that_is_granted_twice_is_noticed() {
    assert_noticed(Mutant::DoubleGrant, Promise::NotBookedTwice);
}

#[test]
fn member_that_runs_without_its_lease_is_noticed() {
    assert_noticed(Mutant::RunWithoutLease, Promise::NoStrayRuns);
}

#[test]
fn gang_that_keeps_members_without_being_formed_is_noticed() {
    assert_noticed(Mutant::KeptMembers, Promise::AllOrNone);
}

#[test]
fn price_below_the_floor_is_noticed() {
    assert_noticed(Mutant::IgnoredFloor, Promise::PriceInBounds);
}

#[test]
fn price_above_max_is_noticed() {
    assert_noticed(Mutant::IgnoredMax, Promise::PriceInBounds);
}

#[test]
fn receipt_that_is_not_made_durable_is_noticed() {
    assert_noticed(Mutant::LostReceipt, Promise::ReceiptsAgree);
}

#[test]
fn lease_without_receipts_until_its_end_is_noticed() {
    assert_noticed(Mutant::SilentRenewals, Promise::ReceiptsAgree);
}

#[test]
fn gang_that_gives_up_is_noticed() {
    assert_noticed(Mutant::ForgottenGang, Promise::JobsProgress);
}

#[test]
fn newcomers_before_a_gang_that_lost_a_member_are_noticed() {
    assert_noticed(Mutant::NewcomersFirst, Promise::ReplacementFirst);
}

#[test]
fn leases_that_equals_take_from_each_other_are_noticed() {
    assert_noticed(Mutant::PreemptedByEquals, Promise::NoPreemptionLoops);
}

fn small_jobs(count: usize) -> Vec<PlainJob> {
    (0..count).map(|at| PlainJob { at_s: at as f64, roles: vec![(2, 4_000, 5.0)] }).collect()
}

fn seconds(counts: &MarketCounts) -> f64 {
    counts.last_end.unwrap().since(START).as_secs_f64()
}

/// A scheduler that answers no offer and sends adverts for everything, at a higher price than others, all the time.
#[test]
fn flood_of_adverts_keeps_no_worker_from_serving_others() {
    let jobs = small_jobs(30);
    let quiet = PlainMarket { workers: 10, schedulers: 3, ..PlainMarket::default() };
    let advert = Advert {
        id: AdvertId::new(START, &mut Rng::new(1)),
        roles: vec![WantedRole {
            name: "all".parse().unwrap(),
            requirement: Default::default(),
            count: 100,
            minimum: 1,
            wants_all: false,
            bid: Money::from_micros(1_000_000),
        }],
        priority: Default::default(),
        is_preemptible: false,
        is_replacement: false,
        waited: Span::from_secs(100),
        window: Span::from_millis(500),
        offers_wanted: 1_000,
        lease_ttl: Span::from_secs(30),
    };
    let interval = Span::from_millis(250);
    let until = START + Span::from_secs(600);
    let rogue = Rogue { advert, adverts: 50, interval, until };
    let flooded = PlainMarket { rogues: vec![rogue], ..quiet.clone() };
    let without = seconds(&figures::run(&quiet, &jobs).unwrap());
    let with = seconds(&figures::run(&flooded, &jobs).unwrap());
    assert!(with < 1.5 * without + 10.0, "{with} s with the flood, {without} s without");
}

#[test]
fn worker_that_offers_and_never_grants_is_chosen_less_and_less() {
    let cheats = BTreeSet::from([0, 1]);
    let faulty_workers = Some((Mutant::NeverGrants, cheats.clone()));
    let market =
        PlainMarket { workers: 10, schedulers: 1, faulty_workers, ..PlainMarket::default() };
    let counts = figures::run(&market, &small_jobs(40)).unwrap();
    let half = counts.accepts.len() / 2;
    let of_cheats = |accepts: &[(usize, hypha_model::Time)]| {
        accepts.iter().filter(|(worker, _)| cheats.contains(worker)).count()
    };
    let (early, late) = (of_cheats(&counts.accepts[..half]), of_cheats(&counts.accepts[half..]));
    assert!(early > 0 && late * 2 <= early, "{early} accepts early, {late} late");
}

#[test]
fn market_is_not_much_worse_than_a_packer_that_knows_everything() {
    let market = PlainMarket { workers: 20, ..PlainMarket::default() };
    let it = figures::utilisation(&market, 30).unwrap();
    assert!(it.bound_s <= it.packer_s, "{it:?}");
    assert!(it.market_s < 1.4 * it.packer_s, "{it:?}");
    assert!(packer::work_s(20, 8_000, &small_jobs(4)) > 0.0);
}
