//! Which offer fills which role.
//!
//! Without a budget the assignment is exact: places are filled one after another by the best augmenting path over the
//! roles, as in a flow of least cost. With a budget it is a heuristic that finds a set whenever there is one.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::iter::Peekable;
use std::vec::IntoIter;

use hypha_model::WorkerId;

/// What an offer is worth for a role, and what an hour of it costs, in millionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rating {
    pub(super) score: u64,
    pub(super) price: u64,
}

/// An offer: for each role its rating, if it counts for it. Candidates are ordered by worker and offer.
#[derive(Debug)]
pub(super) struct Candidate<'a> {
    pub(super) worker: WorkerId,
    pub(super) ratings: &'a [Option<Rating>],
}

/// For each role its members, by their index among the candidates.
pub(super) type Filled = Vec<BTreeSet<usize>>;

/// The places of a role.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    pub(super) minimum: usize,
    pub(super) count: usize,
}

/// A value, and what decides among equal ones. Pairs are added and compared as numbers with two digits.
type Worth = (i128, i128);

/// More than any score and any price: another member is worth more than better ones.
const MEMBER: i128 = 1 << 70;
/// Fractional bits of a rate at which money is exchanged for score.
const RATE_BITS: u32 = 32;
/// The steps of rates between two powers of two: rates are tried to a precision of 1 in 64 or better.
const RATE_STEPS: u32 = 64;
/// The highest rate is 2^56, which is beyond any that prices in millionths need, and 16 products of it and a price fit in
/// 128 bits.
const RATES: u32 = 50 * RATE_STEPS;

/// The candidates for the places of all roles.
#[derive(Debug)]
pub(super) struct Gang<'a> {
    pub(super) candidates: &'a [Candidate<'a>],
    pub(super) places: Vec<Places>,
}

impl Gang<'_> {
    /// The assignment that fills most places of the minimums, then most places, then has the highest sum of scores, and
    /// then the lowest price.
    pub(super) fn best(&self) -> Filled {
        self.assign(|rating| (MEMBER + i128::from(rating.score), -i128::from(rating.price)))
    }

    /// An assignment within a budget that fills every minimum; `None` if there is none. A heuristic: money is exchanged
    /// for score at one rate, the lowest at which the set fits, so that whatever price is saved costs the least score.
    /// Then what is left of the budget is spent.
    pub(super) fn within(&self, budget: u128) -> Option<Filled> {
        let minimums = self.places.iter().map(|at| Places { count: at.minimum, ..*at });
        let minimums = Gang { candidates: self.candidates, places: minimums.collect() };
        let mut fits =
            minimums.assign(|rating| (MEMBER - i128::from(rating.price), i128::from(rating.score)));
        if !self.is_sufficient(&fits) || self.price(&fits) > budget {
            return None;
        }
        let mut exceeds = self.best();
        if self.price(&exceeds) <= budget {
            return Some(exceeds);
        }
        let (mut low, mut high) = (0, RATES);
        while low < high {
            let middle = low.midpoint(high);
            let rate = i128::from(RATE_STEPS + middle % RATE_STEPS) << (middle / RATE_STEPS);
            let filled = self.assign(|rating| {
                let score = i128::from(rating.score);
                ((score << RATE_BITS) - rate * i128::from(rating.price), score)
            });
            if self.price(&filled) <= budget {
                (fits, high) = (filled, middle);
            } else {
                (exceeds, low) = (filled, middle + 1);
            }
        }
        self.spend(budget, &mut fits, &exceeds);
        Some(fits)
    }

    /// Whether every minimum is filled.
    pub(super) fn is_sufficient(&self, filled: &Filled) -> bool {
        self.places.iter().zip(filled).all(|(places, members)| members.len() >= places.minimum)
    }

    /// The sum of the prices, in millionths.
    pub(super) fn price(&self, filled: &Filled) -> u128 {
        let roles = filled.iter().enumerate();
        let ratings = roles.flat_map(|(role, of)| of.iter().map(move |at| (role, *at)));
        ratings.filter_map(|(role, at)| self.rating(at, role)).map(|r| u128::from(r.price)).sum()
    }

    /// Replaces members on workers that have several by offers of the same score and price of workers that have none.
    pub(super) fn spread(&self, filled: &mut Filled) {
        let mut members: BTreeMap<WorkerId, u32> = BTreeMap::new();
        for at in filled.iter().flatten() {
            *members.entry(self.candidates[*at].worker).or_default() += 1;
        }
        if members.values().all(|members| *members == 1) {
            return;
        }
        let mut taken = self.taken(filled);
        for (role, of_role) in filled.iter_mut().enumerate() {
            let key = |at: usize| self.rating(at, role).map(|rating| (rating.score, rating.price));
            let crowded = |at: &usize, members: &BTreeMap<WorkerId, u32>| {
                members.get(&self.candidates[*at].worker).is_some_and(|members| *members > 1)
            };
            let from: Vec<usize> =
                of_role.iter().copied().filter(|at| crowded(at, &members)).collect();
            let mut spare: BTreeMap<Option<(u64, u64)>, Vec<usize>> =
                from.iter().map(|at| (key(*at), Vec::new())).collect();
            for at in (0..self.candidates.len()).rev().filter(|at| !taken[*at]) {
                if let Some(alike) = spare.get_mut(&key(at)) {
                    alike.push(at);
                }
            }
            for member in from {
                let Some(alike) = spare.get_mut(&key(member)) else { continue };
                while crowded(&member, &members)
                    && let Some(at) = alike.pop()
                {
                    let worker = self.candidates[at].worker;
                    if members.contains_key(&worker) {
                        continue;
                    }
                    members.insert(worker, 1);
                    *members.entry(self.candidates[member].worker).or_default() -= 1;
                    taken[at] = true;
                    of_role.remove(&member);
                    of_role.insert(at);
                    break;
                }
            }
        }
    }

    /// The best candidates for a role that pass, the best first.
    pub(super) fn ranked(&self, role: usize, most: usize, is_free: &[bool]) -> Vec<usize> {
        let worth = |rating: Rating| (i128::from(rating.score), -i128::from(rating.price));
        let passing = (0..self.candidates.len()).filter(|at| is_free[*at]);
        best_of(passing.filter_map(|at| Some((worth(self.rating(at, role)?), at))), most)
    }

    /// For each candidate, whether it is a member.
    pub(super) fn taken(&self, filled: &Filled) -> Vec<bool> {
        let mut taken = vec![false; self.candidates.len()];
        filled.iter().flatten().for_each(|at| taken[*at] = true);
        taken
    }

    fn rating(&self, at: usize, role: usize) -> Option<Rating> {
        self.candidates[at].ratings[role]
    }

    /// Spends what is left of the budget: on members of `wanted`, which is a better set that is too expensive, in free
    /// places and instead of worse members; then on anything else in free places.
    fn spend(&self, budget: u128, filled: &mut Filled, wanted: &Filled) {
        let mut taken = self.taken(filled);
        let mut left = budget.saturating_sub(self.price(filled));
        for role in 0..self.places.len() {
            let score = |at: &usize| self.rating(*at, role).map(|rating| rating.score);
            let price = |at: usize| self.rating(at, role).map_or(0, |r| u128::from(r.price));
            let mut wishes: Vec<usize> = wanted[role].iter().copied().collect();
            wishes.sort_by_key(|at| (Reverse(score(at)), *at));
            let unwanted = filled[role].difference(&wanted[role]).copied();
            let mut unwanted: Vec<usize> = unwanted.collect();
            unwanted.sort_by_key(|at| (score(at), *at));
            let free: Vec<bool> = taken.iter().map(|taken| !taken).collect();
            wishes.extend(self.ranked(role, self.members(), &free));
            for wish in wishes {
                if taken[wish] {
                    continue;
                }
                let has_place = filled[role].len() < self.places[role].count;
                let replaced = if has_place {
                    None
                } else {
                    let fits =
                        |at: &usize| score(at) < score(&wish) && price(wish) <= left + price(*at);
                    let Some(found) = unwanted.iter().position(fits) else { continue };
                    Some(unwanted.remove(found))
                };
                let refund = replaced.map_or(0, price);
                if price(wish) > left + refund {
                    continue;
                }
                left = left + refund - price(wish);
                if let Some(at) = replaced {
                    taken[at] = false;
                    filled[role].remove(&at);
                }
                taken[wish] = true;
                filled[role].insert(wish);
            }
        }
    }

    /// How many members all roles have at most.
    fn members(&self) -> usize {
        self.places.iter().map(|places| places.count).sum()
    }

    fn assign(&self, worth: impl Fn(Rating) -> Worth) -> Filled {
        Assignment::new(self, worth).run()
    }
}

/// An assignment in progress.
struct Assignment<'a, W> {
    gang: &'a Gang<'a>,
    worth: W,
    /// For each role the candidates that may fill it, the best first.
    lists: Vec<Peekable<IntoIter<usize>>>,
    taken: Vec<bool>,
    filled: Filled,
    /// For each pair of roles, the members of the first and what their move to the second changes.
    moves: Vec<Vec<Moves>>,
}

/// Members by what their move changes, the best last.
type Moves = BTreeSet<(Worth, Reverse<usize>)>;

/// For each role, what the best path adds that ends with one member more in it, and which member of which role moves to it
/// last; without one, the best free candidate fills it.
type Paths = Vec<(Option<Worth>, Option<(usize, usize)>)>;

impl<'a, W: Fn(Rating) -> Worth> Assignment<'a, W> {
    fn new(gang: &'a Gang<'a>, worth: W) -> Assignment<'a, W> {
        let roles = gang.places.len();
        let list = |role: usize| {
            let rated = (0..gang.candidates.len())
                .filter_map(|at| gang.rating(at, role).map(|rating| (worth(rating), at)));
            // The other members take fewer than all places, so one of so many is always free.
            best_of(rated, gang.members()).into_iter().peekable()
        };
        Assignment {
            lists: (0..roles).map(list).collect(),
            gang,
            worth,
            taken: vec![false; gang.candidates.len()],
            filled: vec![BTreeSet::new(); roles],
            moves: vec![vec![BTreeSet::new(); roles]; roles],
        }
    }

    fn run(mut self) -> Filled {
        loop {
            let paths = self.paths();
            let end = |(role, places): (usize, &Places)| {
                let (has, worth) = (self.filled[role].len(), paths[role].0?);
                let is_useful = has < places.minimum || worth.0 >= 0;
                let end = (has < places.minimum, worth, Reverse(role));
                (has < places.count && is_useful).then_some(end)
            };
            let best = self.gang.places.iter().enumerate().filter_map(end).max();
            let Some((_, _, Reverse(mut role))) = best else { return self.filled };
            while let Some((before, member)) = paths[role].1 {
                self.leave(member, before);
                self.join(member, role);
                role = before;
            }
            let Some(at) = self.lists[role].next() else { return self.filled };
            self.taken[at] = true;
            self.join(at, role);
        }
    }

    /// The longest paths, by the method of Bellman and Ford. No cycle of moves gains anything, since the members so far are
    /// assigned in the best way.
    fn paths(&mut self) -> Paths {
        let roles = self.filled.len();
        let mut paths: Paths = Vec::with_capacity(roles);
        for (role, list) in self.lists.iter_mut().enumerate() {
            while list.next_if(|at| self.taken[*at]).is_some() {}
            let rating = list.peek().and_then(|at| self.gang.rating(*at, role));
            paths.push((rating.map(&self.worth), None));
        }
        for _ in 1..roles {
            let mut is_changed = false;
            for (a, b) in (0..roles).flat_map(|a| (0..roles).map(move |b| (a, b))) {
                let (Some(reached), Some((change, Reverse(member)))) =
                    (paths[a].0, self.moves[a][b].last())
                else {
                    continue;
                };
                let total = (reached.0 + change.0, reached.1 + change.1);
                if paths[b].0.is_none_or(|known| total > known) {
                    paths[b] = (Some(total), Some((a, *member)));
                    is_changed = true;
                }
            }
            if !is_changed {
                break;
            }
        }
        paths
    }

    fn join(&mut self, at: usize, role: usize) {
        self.filled[role].insert(at);
        for (to, change) in self.changes(at, role) {
            self.moves[role][to].insert((change, Reverse(at)));
        }
    }

    fn leave(&mut self, at: usize, role: usize) {
        self.filled[role].remove(&at);
        for (to, change) in self.changes(at, role) {
            self.moves[role][to].remove(&(change, Reverse(at)));
        }
    }

    /// What a move of a member to each other role changes.
    fn changes(&self, at: usize, from: usize) -> Vec<(usize, Worth)> {
        let worth = |role: usize| self.gang.rating(at, role).map(&self.worth);
        let Some(here) = worth(from) else { return Vec::new() };
        let others = (0..self.filled.len()).filter(|to| *to != from);
        others
            .filter_map(|to| worth(to).map(|there| (to, (there.0 - here.0, there.1 - here.1))))
            .collect()
    }
}

/// At most `most` of the candidates, the best first; of equal ones, the first first.
fn best_of(rated: impl Iterator<Item = (Worth, usize)>, most: usize) -> Vec<usize> {
    let mut list: Vec<(Reverse<Worth>, usize)> =
        rated.map(|(worth, at)| (Reverse(worth), at)).collect();
    if most < list.len() {
        list.select_nth_unstable(most);
        list.truncate(most);
    }
    list.sort_unstable();
    list.into_iter().map(|(_, at)| at).collect()
}

#[cfg(test)]
mod tests;
