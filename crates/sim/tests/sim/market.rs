//! Worlds of competing schedulers: every promise of the market holds, every checker works.

use hypha_engine::Mutant;
use hypha_sim::checkers::Promise;
use hypha_sim::market;
use hypha_sim::scenario::market::MarketScope;

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
