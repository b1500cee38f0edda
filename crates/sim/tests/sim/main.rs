//! Whole worlds: every promise holds, every checker works, every run repeats.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on should stop")]

use hypha_engine::Mutant;
use hypha_sim::check;
use hypha_sim::checkers::Promise;
use hypha_sim::scenario::{self, FaultKind, Scope};

mod compare;
mod market;
mod options;
mod store;

/// CI runs 10,000 seeds of 200 tasks in four parts that share the cores. A nightly run takes more:
/// `hypha sim check --seeds 1000000 --from 10000`.
fn check_seeds(seeds: std::ops::Range<u64>) {
    let scope = Scope::default();
    for seed in seeds {
        if let Some(violation) = check::run(seed, &scope).violation {
            panic!("{violation}\nagain: hypha sim check --from {seed} --seeds 1");
        }
    }
}

#[test]
fn promises_hold_in_seeds_0_to_2500() {
    check_seeds(0..2_500);
}

#[test]
fn promises_hold_in_seeds_2500_to_5000() {
    check_seeds(2_500..5_000);
}

#[test]
fn promises_hold_in_seeds_5000_to_7500() {
    check_seeds(5_000..7_500);
}

#[test]
fn promises_hold_in_seeds_7500_to_10000() {
    check_seeds(7_500..10_000);
}

/// A planted fault is noticed by its checker, within a few worlds.
#[track_caller]
fn assert_noticed(mutant: Mutant, by: &[Promise]) {
    let scope = Scope { mutant: Some(mutant), ..Scope::default() };
    let mut seen = Vec::new();
    for seed in 0..3_000 {
        if let Some(violation) = check::run(seed, &scope).violation {
            if by.contains(&violation.promise) {
                return;
            }
            seen.push(violation);
        }
    }
    panic!("{mutant:?} broke no promise of {by:?} in 3,000 worlds, but {seen:?}");
}

#[test]
fn a_task_that_is_not_made_durable_is_noticed() {
    assert_noticed(Mutant::LostAccept, &[Promise::NothingLost]);
}

#[test]
fn an_end_that_is_not_made_durable_is_noticed() {
    assert_noticed(Mutant::LostResult, &[Promise::NothingLost]);
}

#[test]
fn a_request_that_is_stored_is_noticed() {
    assert_noticed(Mutant::StoredInteractive, &[Promise::NotStored]);
}

#[test]
fn a_retry_that_is_forgotten_is_noticed() {
    assert_noticed(Mutant::DroppedRetry, &[Promise::NothingLost]);
}

#[test]
fn an_attempt_that_a_restart_uses_up_is_noticed() {
    assert_noticed(Mutant::CountedInterruption, &[Promise::NoWrongfulFailure]);
}

#[test]
fn a_busy_back_end_that_uses_up_an_attempt_is_noticed() {
    assert_noticed(Mutant::CountedBusy, &[Promise::NoWrongfulFailure]);
}

#[test]
fn an_attempt_that_a_replaced_connection_uses_up_is_noticed() {
    assert_noticed(Mutant::LostReplacedLink, &[Promise::NoWrongfulFailure]);
}

#[test]
fn a_result_of_a_void_attempt_is_noticed() {
    assert_noticed(Mutant::UnfencedResult, &[Promise::OneResult]);
}

#[test]
fn a_task_that_stays_in_the_backlog_is_noticed() {
    assert_noticed(Mutant::LeakedBacklog, &[Promise::BackToZero]);
}

#[test]
fn a_refusal_without_a_reason_is_noticed() {
    assert_noticed(Mutant::UnexplainedWait, &[Promise::EveryRefusalExplained]);
}

#[test]
fn a_worker_with_two_holders_is_noticed() {
    assert_noticed(Mutant::DoubleGrant, &[Promise::NotBookedTwice]);
}

#[test]
fn a_worker_that_runs_too_much_is_noticed() {
    assert_noticed(Mutant::OverbookedWorker, &[Promise::NotBookedTwice]);
}

#[test]
fn a_run_without_a_lease_is_noticed() {
    assert_noticed(Mutant::RunWithoutLease, &[Promise::NoStrayRuns]);
}

#[test]
fn an_attempt_that_an_instance_runs_twice_at_once_is_noticed() {
    assert_noticed(Mutant::BlindRedispatch, &[Promise::NotRunTwice]);
}

#[test]
fn a_slot_that_stays_in_use_is_noticed() {
    assert_noticed(Mutant::StuckSlot, &[Promise::BackToZero]);
}

#[test]
fn a_large_task_that_starves_in_the_queue_is_noticed() {
    assert_noticed(Mutant::NoReservations, &[Promise::NothingStarves]);
}

#[test]
fn a_task_that_waits_for_a_lost_worker_is_noticed() {
    assert_noticed(Mutant::StuckBound, &[Promise::NothingStarves]);
}

#[test]
fn a_priority_that_keeps_others_out_is_noticed() {
    assert_noticed(Mutant::UnagedPriorities, &[Promise::NothingStarves]);
}

#[test]
fn an_interactive_request_behind_batches_is_noticed() {
    assert_noticed(Mutant::QueuedInteractive, &[Promise::NothingStarves]);
}

/// Everything but these fault kinds is left out.
fn with_only(kinds: &[FaultKind]) -> Scope {
    let without = FaultKind::ALL.into_iter().filter(|one| !kinds.contains(one)).collect();
    Scope { without, ..Scope::default() }
}

/// A fault kind is injected in its worlds, and nowhere else.
#[test]
fn store_failures_group_commits_and_clock_steps_strike() {
    let lines = |kind, line: &str| -> usize {
        let log = |seed| check::replay(seed, &with_only(&[kind])).1;
        (0..10).flat_map(log).filter(|entry| entry.contains(line)).count()
    };
    let strikes = [
        (FaultKind::StoreFailure, "scheduler 0: the disk is full"),
        (FaultKind::StoreFailure, "scheduler 0 recovers"),
        (FaultKind::GroupCommit, "scheduler 0 commits"),
        (FaultKind::Relink, "scheduler 0 has another connection to worker"),
        (FaultKind::ClockStep, "fault: SetClock { node: Scheduler(0)"),
    ];
    for (kind, line) in strikes {
        assert!(lines(kind, line) > 3, "{kind}: {line}");
        assert_eq!(lines(FaultKind::Cancel, line), 0, "{line}");
    }
}

/// Leases that are lost in some worlds with these fault kinds.
fn leases_lost(kinds: &[FaultKind]) -> u64 {
    let scope = with_only(kinds);
    let lost = |seed| {
        let mut world = scenario::world(seed, &scope, false);
        world.run(scenario::deadline()).unwrap();
        world.scheduler(0).unwrap().counts().leases_lost
    };
    (0..10).map(lost).sum()
}

#[test]
fn leases_are_lost_when_workers_or_schedulers_are_frozen_for_long() {
    assert_eq!(leases_lost(&[]), 0);
    assert!(leases_lost(&[FaultKind::WorkerFreeze]) > 3);
    assert!(leases_lost(&[FaultKind::SchedulerFreeze]) > 3);
}

#[test]
fn a_failure_shrinks_and_repeats() {
    let scope = Scope { mutant: Some(Mutant::LeakedBacklog), ..Scope::default() };
    let failure = check::shrink(0, &scope).expect("the mutant fails in every world");
    assert!(failure.scope.tasks < 20, "{} tasks are left", failure.scope.tasks);
    assert!(!failure.log.is_empty());
    let (outcome, log) = check::replay(failure.seed, &failure.scope);
    assert_eq!(outcome.violation, Some(failure.violation));
    assert_eq!(log, failure.log);
}

#[test]
fn a_seed_repeats_event_for_event() {
    for seed in 0..20 {
        let (first, first_log) = check::replay(seed, &Scope::default());
        let (second, second_log) = check::replay(seed, &Scope::default());
        assert_eq!(first.steps, second.steps);
        assert_eq!(first_log, second_log, "seed {seed}");
    }
}
