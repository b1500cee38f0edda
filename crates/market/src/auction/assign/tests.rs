//! The assignment, compared with a search of all assignments.

use hypha_model::{Rng, Time};
use proptest::prelude::*;

use super::*;

type Case = Vec<Vec<Option<(u64, u64)>>>;

fn check(case: &Case, places: &[(usize, usize)], run: impl FnOnce(&Gang<'_>)) {
    let rating = |(score, price): (u64, u64)| Rating { score, price };
    let ratings: Vec<Vec<Option<Rating>>> =
        case.iter().map(|roles| roles.iter().map(|r| r.map(rating)).collect()).collect();
    let worker = |at: usize| WorkerId::new(Time::ZERO, &mut Rng::new(at as u64 / 2));
    let candidates: Vec<Candidate<'_>> = ratings
        .iter()
        .enumerate()
        .map(|(at, ratings)| Candidate { worker: worker(at), ratings })
        .collect();
    let places = places.iter().map(|(minimum, count)| Places { minimum: *minimum, count: *count });
    run(&Gang { candidates: &candidates, places: places.collect() });
}

/// Every assignment.
fn all(gang: &Gang<'_>) -> Vec<Filled> {
    let mut all = vec![vec![BTreeSet::new(); gang.places.len()]];
    for at in 0..gang.candidates.len() {
        for filled in all.clone() {
            for role in 0..gang.places.len() {
                if gang.rating(at, role).is_some() && filled[role].len() < gang.places[role].count {
                    let mut more = filled.clone();
                    more[role].insert(at);
                    all.push(more);
                }
            }
        }
    }
    all
}

/// By what the best assignment is the best: places of minimums, places, score, price.
fn value(gang: &Gang<'_>, filled: &Filled) -> (usize, usize, u64, Reverse<u128>) {
    let filled_minimums = gang.places.iter().zip(filled).map(|(p, of)| of.len().min(p.minimum));
    let score = |role: usize| {
        filled[role].iter().map(|at| gang.rating(*at, role).unwrap().score).sum::<u64>()
    };
    let members = filled.iter().map(BTreeSet::len).sum();
    let score = (0..filled.len()).map(score).sum();
    (filled_minimums.sum(), members, score, Reverse(gang.price(filled)))
}

fn assert_valid(gang: &Gang<'_>, filled: &Filled) {
    let members = filled.iter().flatten().count();
    assert_eq!(filled.iter().flatten().collect::<BTreeSet<_>>().len(), members);
    for (role, of) in filled.iter().enumerate() {
        assert!(of.len() <= gang.places[role].count);
        assert!(of.iter().all(|at| gang.rating(*at, role).is_some()));
    }
}

fn workers(gang: &Gang<'_>, filled: &Filled) -> usize {
    let of = |at: &usize| gang.candidates[*at].worker;
    filled.iter().flatten().map(of).collect::<BTreeSet<_>>().len()
}

fn places() -> impl Strategy<Value = Vec<(usize, usize)>> {
    let one = (0..3usize, 0..2usize).prop_map(|(minimum, more)| (minimum, (minimum + more).max(1)));
    prop::collection::vec(one, 3)
}

fn cases() -> impl Strategy<Value = Case> {
    let rating = prop::option::of((0..6u64, 0..6u64));
    prop::collection::vec(prop::collection::vec(rating, 3), 0..7)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn the_best_assignment_is_that_of_a_full_search(case in cases(), places in places()) {
        check(&case, &places, |gang| {
            let best = gang.best();
            assert_valid(gang, &best);
            let all = all(gang);
            let expected = all.iter().map(|filled| value(gang, filled)).max().unwrap();
            assert_eq!(value(gang, &best), expected);
            let mut spread = best.clone();
            gang.spread(&mut spread);
            assert_valid(gang, &spread);
            assert_eq!(value(gang, &spread), expected);
            assert!(workers(gang, &spread) >= workers(gang, &best));
        });
    }

    #[test]
    fn a_set_within_the_budget_is_found_if_there_is_one(
        case in cases(), places in places(), budget in 0..30u128,
    ) {
        check(&case, &places, |gang| {
            let fits = |filled: &&Filled| gang.is_sufficient(filled) && gang.price(filled) <= budget;
            let all = all(gang);
            let best = all.iter().filter(fits).map(|filled| value(gang, filled)).max();
            let found = gang.within(budget);
            assert_eq!(found.is_some(), best.is_some());
            let Some(mut found) = found else { return };
            gang.spread(&mut found);
            assert_valid(gang, &found);
            assert!(fits(&&found));
            // Without need, nothing is given up.
            let unlimited = gang.best();
            if gang.price(&unlimited) <= budget {
                assert_eq!(value(gang, &found), value(gang, &unlimited));
            }
        });
    }

    /// With one role, as many members as possible on different workers.
    #[test]
    fn one_role_is_spread_over_most_workers(
        scores in prop::collection::vec(0..3u64, 1..9), count in 1..5usize,
    ) {
        let case = scores.iter().map(|score| vec![Some((*score, 1))]).collect();
        check(&case, &[(0, count)], |gang| {
            let mut found = gang.best();
            gang.spread(&mut found);
            let is_best = |filled: &&Filled| value(gang, filled) == value(gang, &found);
            let most = all(gang).iter().filter(is_best).map(|f| workers(gang, f)).max();
            assert_eq!(Some(workers(gang, &found)), most);
        });
    }
}

#[test]
fn a_budget_between_two_kinds_of_offers_buys_some_of_each() {
    // Four good ones at 10 and four others at 5: for 30 there are two of each.
    let kinds = [vec![Some((1_000, 10)); 1], vec![Some((400, 5)); 1]];
    let case: Case = (0..8).map(|at| kinds[at / 4].clone()).collect();
    check(&case, &[(4, 4)], |gang| {
        let found = gang.within(30).unwrap();
        assert_eq!(value(gang, &found), (4, 4, 2_800, Reverse(30)));
    });
    // Members beyond the minimum are left out.
    check(&case, &[(1, 4)], |gang| {
        assert_eq!(gang.price(&gang.within(12).unwrap()), 10);
        assert_eq!(gang.within(4), None);
    });
}

#[test]
fn extreme_prices_and_scores_do_not_overflow() {
    let rating = [Some((u64::MAX >> 9, u64::MAX)), Some((0, u64::MAX)), Some((u64::MAX >> 9, 0))];
    let case: Case =
        (0..8).map(|at| (0..8).map(|role| rating[(at + role) % 3]).collect()).collect();
    check(&case, &[(1, 1); 8], |gang| {
        assert!(gang.is_sufficient(&gang.best()));
        let found = gang.within(u128::from(u64::MAX) * 8).unwrap();
        assert!(gang.is_sufficient(&found));
        let _found = gang.within(u128::from(u64::MAX) * 3);
    });
}
