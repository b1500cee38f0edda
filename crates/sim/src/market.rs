//! Many seeds of worlds with a market, through [`crate::scenario::market`].

pub mod figures;
pub mod packer;
pub mod plain;

use crate::check::SeedOutcome;
use crate::checkers::Violation;
use crate::scenario::FaultKind;
use crate::scenario::market::{self, MarketScope};
use crate::world::MarketCounts;

/// Runs one seed.
pub fn run(seed: u64, scope: &MarketScope) -> SeedOutcome {
    run_counted(seed, scope, false).0
}

/// Runs one seed, and returns what was counted and its log.
pub fn run_counted(
    seed: u64,
    scope: &MarketScope,
    log: bool,
) -> (SeedOutcome, MarketCounts, Vec<String>) {
    let mut world = market::world(seed, scope, log);
    let deadline = market::deadline();
    let result: Result<(), Violation> = world
        .run(deadline)
        .and_then(|()| world.drain(deadline))
        .and_then(|()| world.settle(deadline));
    let counts = world.market_counts().cloned().unwrap_or_default();
    let outcome = SeedOutcome { seed, steps: world.steps(), violation: result.err() };
    (outcome, counts, world.log().to_vec())
}

/// Runs a failing seed with fewer fault kinds and jobs, as long as it breaks the same promise. `None` if it does not fail.
pub fn shrink(seed: u64, scope: &MarketScope) -> Option<(MarketScope, Violation)> {
    let mut violation = run(seed, scope).violation?;
    let mut smallest = scope.clone();
    let mut quieter: Vec<MarketScope>;
    loop {
        let before = smallest.clone();
        quieter = FaultKind::ALL
            .into_iter()
            .filter(|kind| !smallest.without.contains(kind))
            .map(|kind| MarketScope {
                without: smallest.without.iter().copied().chain([kind]).collect(),
                ..smallest.clone()
            })
            .collect();
        let fewer = [smallest.jobs / 2, smallest.jobs.saturating_sub(1)];
        let fewer = fewer.into_iter().filter(|jobs| (1..smallest.jobs).contains(jobs));
        quieter.extend(fewer.map(|jobs| MarketScope { jobs, ..smallest.clone() }));
        for scope in quieter {
            if let Some(found) = run(seed, &scope).violation
                && found.promise == violation.promise
            {
                (smallest, violation) = (scope, found);
                break;
            }
        }
        if smallest == before {
            return Some((smallest, violation));
        }
    }
}
