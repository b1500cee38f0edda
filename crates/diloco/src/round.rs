//! When a round closes: with a quorum and a grace that adapts to the measured spread of arrivals, never by waiting for
//! members that are lost.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use hypha_model::{Span, Time};
use serde::{Deserialize, Serialize};

use crate::slices::AssignmentId;

/// How many arrivals the grace is derived from: several rounds of a few members, and recent enough to follow a change.
const MAX_ARRIVALS: usize = 64;
/// With fewer arrivals than this, their spread says nothing.
const MIN_ARRIVALS: usize = 4;
/// How many median absolute deviations a member may be later than the median. Of a normal distribution, one in 25,000 is
/// later than six (four standard deviations).
const DEVIATIONS: u64 = 6;
/// The least grace: the jitter of a network, which quiet rounds do not show.
const MIN_GRACE: Span = Span::from_millis(100);

/// How many deltas a round needs to close before all are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Quorum {
    /// Exactly as many, whoever is lost meanwhile: a round is the same whatever fails.
    All(u32),
    /// This part, in thousandths, of those that are expected; those of lost members are not.
    Milli(u32),
}

/// The time after a round's deadline that members may be late: median + k · MAD of recent arrivals.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grace {
    /// How long after the deadline deltas arrived.
    arrivals: VecDeque<Span>,
}

impl Grace {
    /// A delta arrived at `at`.
    pub fn observe(&mut self, deadline: Time, at: Time) {
        if self.arrivals.len() == MAX_ARRIVALS {
            self.arrivals.pop_front();
        }
        self.arrivals.push_back(at.since(deadline));
    }

    /// The grace for rounds of `target`: at most half of it, which is also what is given before anything was measured.
    pub fn limit(&self, target: Span) -> Span {
        let most = target.mul_f64(0.5).max(MIN_GRACE);
        if self.arrivals.len() < MIN_ARRIVALS {
            return most;
        }
        let middle = median(self.arrivals.iter().copied());
        let deviation =
            median(self.arrivals.iter().map(|arrival| (*arrival - middle).max(middle - *arrival)));
        (middle + deviation.times(DEVIATIONS)).clamp(MIN_GRACE, most)
    }
}

fn median(spans: impl Iterator<Item = Span>) -> Span {
    let mut spans: Vec<Span> = spans.collect();
    spans.sort_unstable();
    spans.get(spans.len() / 2).copied().unwrap_or_default()
}

/// Why a round closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CloseReason {
    /// Every delta that is expected is there.
    Complete,
    /// There is a quorum, and the grace is over.
    GraceOver,
    /// There is no quorum, and a whole further round has passed.
    Overdue,
}

/// Whether a round closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Now, for this reason.
    Close(CloseReason),
    /// Not before this time, unless a delta arrives or a member is lost.
    Wait(Time),
}

/// The deltas of an open round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Round {
    /// Its number, from 0.
    pub number: u64,
    /// When members stop training.
    pub deadline: Time,
    /// How long rounds are, as configured.
    pub target: Span,
    /// Deltas that are expected, of members that are not lost.
    expected: BTreeSet<AssignmentId>,
    /// Deltas that the parameter server has accepted, and the samples that went into each.
    accepted: BTreeMap<AssignmentId, u64>,
}

impl Round {
    /// A round that expects nothing yet.
    pub fn new(number: u64, deadline: Time, target: Span) -> Round {
        Round { number, deadline, target, expected: BTreeSet::new(), accepted: BTreeMap::new() }
    }

    /// A delta is expected.
    pub fn expect(&mut self, assignment: AssignmentId) {
        if !self.accepted.contains_key(&assignment) {
            self.expected.insert(assignment);
        }
    }

    /// A delta is no longer expected: its member is lost, or it was rejected.
    pub fn give_up(&mut self, assignment: AssignmentId) {
        self.expected.remove(&assignment);
    }

    /// The parameter server has accepted a delta. Returns whether that is news.
    pub fn accept(&mut self, assignment: AssignmentId, samples: u64) -> bool {
        self.expected.remove(&assignment);
        self.accepted.insert(assignment, samples).is_none()
    }

    /// The parameter server has none of the deltas that it had accepted: they are expected again.
    pub fn forget_accepted(&mut self) {
        self.expected.extend(std::mem::take(&mut self.accepted).into_keys());
    }

    /// Whether the delta is expected.
    pub fn is_expected(&self, assignment: AssignmentId) -> bool {
        self.expected.contains(&assignment)
    }

    /// Whether the delta was accepted.
    pub fn is_accepted(&self, assignment: AssignmentId) -> bool {
        self.accepted.contains_key(&assignment)
    }

    /// The deltas that were accepted, and the samples that went into each.
    pub fn accepted(&self) -> impl Iterator<Item = (AssignmentId, u64)> + '_ {
        self.accepted.iter().map(|(id, samples)| (*id, *samples))
    }

    /// Whether the round closes at `now`.
    pub fn verdict(&self, now: Time, quorum: Quorum, grace: Span) -> Verdict {
        let (accepted, expected) = (self.accepted.len(), self.expected.len());
        let is_quorate = match quorum {
            Quorum::All(members) => {
                let is_complete = accepted >= members as usize;
                return if is_complete {
                    Verdict::Close(CloseReason::Complete)
                } else {
                    Verdict::Wait(Time::MAX)
                };
            }
            Quorum::Milli(milli) => {
                let needed = ((accepted + expected) as u64 * u64::from(milli)).div_ceil(1_000);
                accepted as u64 >= needed.max(1)
            }
        };
        let grace_over = self.deadline + grace;
        let overdue = grace_over.max(self.deadline + self.target);
        match () {
            () if expected == 0 => Verdict::Close(CloseReason::Complete),
            () if is_quorate && now >= grace_over => Verdict::Close(CloseReason::GraceOver),
            () if now >= overdue => Verdict::Close(CloseReason::Overdue),
            () if is_quorate => Verdict::Wait(grace_over),
            () => Verdict::Wait(overdue),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: u64) -> Time {
        Time::ZERO + Span::from_secs(secs)
    }

    /// A round with a deadline at 10 s that expects deltas 0 to 3, of which `accepted` are there and `lost` given up.
    #[track_caller]
    fn check(accepted: u64, lost: u64, quorum: Quorum, now_s: u64, expected: Verdict) {
        let mut round = Round::new(0, at(10), Span::from_secs(8));
        (0..4).for_each(|it| round.expect(AssignmentId(it)));
        (0..accepted).for_each(|it| assert!(round.accept(AssignmentId(it), 1)));
        (4 - lost..4).for_each(|it| round.give_up(AssignmentId(it)));
        assert_eq!(round.verdict(at(now_s), quorum, Span::from_secs(2)), expected);
    }

    #[test]
    fn round_closes_with_a_quorum_after_the_grace_and_never_waits_for_the_lost() {
        use CloseReason::*;
        use Verdict::*;
        let half = Quorum::Milli(500);
        check(4, 0, half, 5, Close(Complete));
        check(3, 1, half, 5, Close(Complete));
        check(0, 4, half, 5, Close(Complete));
        check(2, 0, half, 11, Wait(at(12)));
        check(2, 0, half, 12, Close(GraceOver));
        check(1, 0, half, 12, Wait(at(18)));
        check(1, 2, half, 12, Close(GraceOver));
        check(1, 0, half, 18, Close(Overdue));
        check(0, 0, half, 18, Close(Overdue));
        check(3, 1, Quorum::All(4), 99, Wait(Time::MAX));
        check(4, 0, Quorum::All(4), 1, Close(Complete));
    }

    #[test]
    fn grace_follows_the_spread_and_is_bounded() {
        let target = Span::from_secs(8);
        let limit = |late_ms: &[u64]| {
            let mut grace = Grace::default();
            late_ms.iter().for_each(|ms| grace.observe(at(10), at(10) + Span::from_millis(*ms)));
            grace.limit(target)
        };
        assert_eq!(limit(&[]), Span::from_secs(4));
        assert_eq!(limit(&[10; 20]), MIN_GRACE);
        // Median 300, deviations 100, 0, 100, 200: one outlier changes nothing.
        assert_eq!(limit(&[200, 300, 400, 500, 200]), Span::from_millis(900));
        assert_eq!(limit(&[200, 300, 400, 90_000, 200]), Span::from_millis(900));
        assert_eq!(limit(&[0, 9_000, 0, 9_000, 20_000]), Span::from_secs(4));
        // Only the last 64 count.
        let moved: Vec<u64> = [vec![900; 64], vec![200; 64]].concat();
        assert_eq!(limit(&moved), Span::from_millis(200));
    }
}
