//! Many seeds through [`crate::scenario`], and the smallest failure of the first one that fails.

use crate::checkers::Violation;
use crate::scenario::{self, FaultKind, Scope};

/// The outcome of one seed.
#[derive(Clone, Debug)]
pub struct SeedOutcome {
    /// The seed.
    pub seed: u64,
    /// How many events there were.
    pub steps: u64,
    /// The promise that was broken, if any.
    pub violation: Option<Violation>,
}

/// A failure that has been shrunk as far as possible.
#[derive(Clone, Debug)]
pub struct ShrunkFailure {
    /// The seed.
    pub seed: u64,
    /// What is left of the scenario.
    pub scope: Scope,
    /// The promise that is broken in it.
    pub violation: Violation,
    /// What happens in it, line by line.
    pub log: Vec<String>,
}

/// Runs one seed.
pub fn run(seed: u64, scope: &Scope) -> SeedOutcome {
    let (steps, violation, _) = run_world(seed, scope, false);
    SeedOutcome { seed, steps, violation }
}

/// Runs a failing seed repeatedly with fewer fault kinds and fewer tasks, as long as it breaks the same
/// promise; returns the smallest, with its log. `None` if the seed does not fail.
pub fn shrink(seed: u64, scope: &Scope) -> Option<ShrunkFailure> {
    let promise = run(seed, scope).violation?.promise;
    let fails = |scope: &Scope| run(seed, scope).violation.is_some_and(|v| v.promise == promise);
    let mut smallest = scope.clone();
    loop {
        let before = smallest.clone();
        for kind in FaultKind::ALL {
            let mut quieter = smallest.clone();
            if !quieter.without.contains(&kind) {
                quieter.without.push(kind);
                if fails(&quieter) {
                    smallest = quieter;
                }
            }
        }
        for cut in [smallest.tasks / 2, smallest.tasks / 4, smallest.tasks / 10, 1] {
            let fewer = Scope { tasks: smallest.tasks.saturating_sub(cut), ..smallest.clone() };
            if fewer.tasks > 0 && fewer.tasks < smallest.tasks && fails(&fewer) {
                smallest = fewer;
            }
        }
        if smallest == before {
            break;
        }
    }
    let (_, violation, log) = run_world(seed, &smallest, true);
    Some(ShrunkFailure { seed, scope: smallest, violation: violation?, log })
}

/// Runs one seed and keeps its log.
pub fn replay(seed: u64, scope: &Scope) -> (SeedOutcome, Vec<String>) {
    let (steps, violation, log) = run_world(seed, scope, true);
    (SeedOutcome { seed, steps, violation }, log)
}

fn run_world(seed: u64, scope: &Scope, log: bool) -> (u64, Option<Violation>, Vec<String>) {
    let mut world = scenario::world(seed, scope, log);
    let deadline = scenario::deadline();
    let result = world.run(deadline).and_then(|()| world.drain(deadline));
    let (steps, log_of_world) = (world.steps(), world.log().to_vec());
    let has_stream =
        !scope.without.contains(&FaultKind::Stream) && seed.is_multiple_of(STREAM_EVERY);
    if result.is_err() || !has_stream {
        return (steps, result.err(), log_of_world);
    }
    let mut world = scenario::stream::world(seed, scope, log);
    let deadline = scenario::stream::deadline(scope);
    let result = world.run(deadline).and_then(|()| world.drain(deadline));
    (steps + world.steps(), result.err(), [log_of_world, world.log().to_vec()].concat())
}

/// One in so many seeds has a stream besides its world: five times the tasks, and few variations.
const STREAM_EVERY: u64 = 10;
