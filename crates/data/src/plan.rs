//! Which slice to fetch from which provider: a pure function from what is needed and known to a plan.

use std::collections::{BTreeMap, BTreeSet};

use crate::SliceIndex;

/// A node that serves the data set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Provider<P> {
    /// Who it is.
    pub id: P,
    /// Fetches from it that may run at the same time.
    pub max_in_flight: u32,
    /// Its failures since its last success: of two providers, the one with fewer is preferred.
    pub failures: u32,
}

/// What the plan is made from.
#[derive(Clone, Copy, Debug)]
pub struct Needs<'a, P> {
    /// The slices to fetch, the most urgent first.
    pub slices: &'a [SliceIndex],
    /// Everyone that serves them.
    pub providers: &'a [Provider<P>],
    /// Fetches that run already.
    pub in_flight: &'a BTreeMap<SliceIndex, P>,
    /// Fetches that have failed and are not to be repeated.
    pub failed: &'a BTreeSet<(SliceIndex, P)>,
    /// Differs between workers, so that those who start together do not all begin with the same provider.
    pub seed: u64,
}

/// A slice to fetch, and from whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetch<P> {
    /// The slice.
    pub slice: SliceIndex,
    /// Its provider.
    pub provider: P,
}

/// A slice that is not fetched now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The slice.
    pub slice: SliceIndex,
    /// Why not.
    pub reason: WaitingReason,
}

/// Why a slice is not fetched now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitingReason {
    /// It is being fetched already.
    InFlight,
    /// Every provider that it may come from has as many fetches as it allows.
    ProvidersBusy,
    /// All providers have failed: forget failures after a backoff, or find more providers.
    NoProviderLeft,
}

/// What to fetch, and why the rest waits. Each needed slice is in one of the two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchPlan<P> {
    /// Start these.
    pub fetches: Vec<Fetch<P>>,
    /// These wait.
    pub waiting: Vec<Waiting>,
}

/// Spreads the slices over the providers. A slice goes to a provider that has not failed it and has room: the one with
/// the fewest failures, then the fewest fetches in flight, then by a rank that differs from slice to slice.
pub fn plan_fetches<P: Clone + Ord>(needs: Needs<'_, P>) -> FetchPlan<P> {
    let mut load: BTreeMap<&P, u32> = BTreeMap::new();
    for provider in needs.in_flight.values() {
        *load.entry(provider).or_default() += 1;
    }
    let mut planned: BTreeSet<SliceIndex> = needs.in_flight.keys().copied().collect();
    let mut plan = FetchPlan { fetches: Vec::new(), waiting: Vec::new() };
    for &slice in needs.slices {
        if !planned.insert(slice) {
            plan.waiting.push(Waiting { slice, reason: WaitingReason::InFlight });
            continue;
        }
        match choose(&needs, &load, slice) {
            Ok(id) => {
                *load.entry(id).or_default() += 1;
                plan.fetches.push(Fetch { slice, provider: id.clone() });
            }
            Err(reason) => plan.waiting.push(Waiting { slice, reason }),
        }
    }
    plan
}

fn choose<'a, P: Ord + Clone>(
    needs: &Needs<'a, P>,
    load: &BTreeMap<&P, u32>,
    slice: SliceIndex,
) -> Result<&'a P, WaitingReason> {
    let in_flight = |provider: &Provider<P>| load.get(&provider.id).copied().unwrap_or(0);
    let may_serve = |provider: &Provider<P>| !needs.failed.contains(&(slice, provider.id.clone()));
    let mut candidates =
        needs.providers.iter().enumerate().filter(|(_, provider)| may_serve(provider)).peekable();
    if candidates.peek().is_none() {
        return Err(WaitingReason::NoProviderLeft);
    }
    candidates
        .filter(|(_, provider)| in_flight(provider) < provider.max_in_flight)
        .min_by_key(|(position, provider)| {
            (provider.failures, in_flight(provider), rank(needs.seed, slice, *position))
        })
        .map(|(_, provider)| &provider.id)
        .ok_or(WaitingReason::ProvidersBusy)
}

/// Mixes its arguments (the finaliser of SplitMix64).
fn rank(seed: u64, slice: SliceIndex, position: usize) -> u64 {
    let mut bits = seed
        .wrapping_add(u64::from(slice.0).wrapping_mul(0x9e37_79b9_7f4a_7c15))
        .wrapping_add((position as u64).wrapping_mul(0xd1b5_4a32_d192_ed03));
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Providers as `name:max_in_flight:failures`, pairs as `slice:name`; the plan as text.
    fn check(slices: &[u32], providers: &str, in_flight: &str, failed: &str, expected: &str) {
        let slices: Vec<SliceIndex> = slices.iter().copied().map(SliceIndex).collect();
        let providers: Vec<Provider<&str>> = providers.split_whitespace().map(provider).collect();
        let needs = Needs {
            slices: &slices,
            providers: &providers,
            in_flight: &in_flight.split_whitespace().map(pair).collect(),
            failed: &failed.split_whitespace().map(pair).collect(),
            seed: 7,
        };
        let plan = plan_fetches(needs);
        assert_eq!(plan, plan_fetches(needs), "the plan is a function of its input");
        let fetches = plan.fetches.iter().map(|one| format!("{}:{}", one.slice, one.provider));
        let waiting = plan.waiting.iter().map(|one| format!("{}:{:?}", one.slice, one.reason));
        let text: Vec<String> = fetches.chain(waiting).collect();
        assert_eq!(text.join(" "), expected);
    }

    fn provider(text: &str) -> Provider<&str> {
        let parts: Vec<&str> = text.split(':').collect();
        let number = |index: usize| parts[index].parse().unwrap();
        Provider { id: parts[0], max_in_flight: number(1), failures: number(2) }
    }

    fn pair(text: &str) -> (SliceIndex, &str) {
        let (slice, provider) = text.split_once(':').unwrap();
        (SliceIndex(slice.parse().unwrap()), provider)
    }

    #[test]
    fn slices_move_on_from_providers_that_failed_are_busy_or_unreliable() {
        check(&[3], "a:1:0", "", "", "3:a");
        check(&[3], "", "", "", "3:NoProviderLeft");
        check(&[3], "a:1:0 b:1:0", "", "3:a", "3:b");
        check(&[3], "a:1:0 b:1:0", "", "3:a 3:b", "3:NoProviderLeft");
        check(&[3], "a:1:0 b:1:0", "", "4:b 3:a", "3:b");
        check(&[3], "a:1:0 b:1:0", "9:b", "3:a", "3:ProvidersBusy");
        check(&[3], "a:2:1 b:2:0", "9:b", "", "3:b");
        check(&[3], "a:2:0 b:2:0", "9:b", "", "3:a");
        check(&[3, 3, 9], "a:2:0", "9:a", "", "3:a 3:InFlight 9:InFlight");
        check(&[1, 2, 3], "a:1:0 b:1:5", "", "", "1:a 2:b 3:ProvidersBusy");
        check(&[1], "a:0:0", "", "", "1:ProvidersBusy");
    }

    #[test]
    fn slices_are_spread_evenly_and_differently_by_seed() {
        let slices: Vec<SliceIndex> = (0..90).map(SliceIndex).collect();
        let providers: Vec<_> =
            (0..3).map(|id| Provider { id, max_in_flight: 100, failures: 0 }).collect();
        let (in_flight, failed) = (BTreeMap::new(), BTreeSet::new());
        let mut firsts = BTreeSet::new();
        for seed in 0..20 {
            let needs = Needs {
                slices: &slices,
                providers: &providers,
                in_flight: &in_flight,
                failed: &failed,
                seed,
            };
            let plan = plan_fetches(needs);
            for id in 0..3 {
                let count = plan.fetches.iter().filter(|fetch| fetch.provider == id).count();
                assert_eq!(count, 30, "seed {seed}");
            }
            firsts.insert(plan.fetches[0].provider);
        }
        assert_eq!(firsts.len(), 3, "all workers begin with the same provider");
    }
}
