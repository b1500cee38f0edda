//! Who dies in a round, how, and when. Drawn from the seed.

use std::fmt;
use std::time::Duration;

use crate::random::Random;

/// Who is killed with SIGKILL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Victims {
    Scheduler,
    Worker,
    Both,
    /// The second time soon after its start, perhaps before it has recovered.
    SchedulerTwice,
}

impl Victims {
    pub(crate) const ALL: [Victims; 4] =
        [Victims::Scheduler, Victims::Worker, Victims::Both, Victims::SchedulerTwice];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Victims::Scheduler => "the scheduler",
            Victims::Worker => "a worker",
            Victims::Both => "scheduler and worker",
            Victims::SchedulerTwice => "the scheduler twice",
        }
    }
}

/// A gap at which a node dies by itself. The names are those of the node's `CrashPoint`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Point {
    AcceptedBeforeCommit,
    ResultBeforeCommit,
    CommittedBeforeSend,
    SentBeforeReply,
    RanBeforeReport,
}

impl Point {
    pub(crate) const ALL: [Point; 5] = [
        Point::AcceptedBeforeCommit,
        Point::ResultBeforeCommit,
        Point::CommittedBeforeSend,
        Point::SentBeforeReply,
        Point::RanBeforeReport,
    ];

    pub(crate) fn in_worker(self) -> bool {
        self == Point::RanBeforeReport
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// One round.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) point: Point,
    /// How many times the point is passed before.
    pub(crate) count: u64,
    /// The worker that the point is planted in, if it is one of a worker.
    pub(crate) planted: usize,
    pub(crate) victims: Victims,
    /// The workers that are killed, if any are.
    pub(crate) killed: Vec<usize>,
    /// From the first submit to the start of the planted node.
    pub(crate) before: Duration,
    /// From the death at the point to the node's next start.
    pub(crate) first_gap: Duration,
    /// From there to the kill.
    pub(crate) alive: Duration,
    /// From the kill to the next start.
    pub(crate) second_gap: Duration,
    /// From there to the second kill, for those who die twice.
    pub(crate) short_life: Duration,
    /// From the last start to the end of the load.
    pub(crate) after: Duration,
}

impl Plan {
    /// Kinds take turns, so that few rounds have them all; the two turns have lengths without a common divisor, so
    /// that 20 rounds have all pairs.
    pub(crate) fn draw(seed: u64, round: u32, workers: usize) -> Plan {
        let random = &mut Random::new(seed, u64::from(round) << 8);
        let turn = round as usize;
        let victims = Victims::ALL[turn % Victims::ALL.len()];
        let one = random.index(workers);
        // Now and then nobody is left to take over.
        let killed = if random.once_in(4) { (0..workers).collect() } else { vec![one] };
        Plan {
            point: Point::ALL[turn % Point::ALL.len()],
            count: random.among(2..=60),
            planted: random.index(workers),
            victims,
            killed,
            before: random.millis(100..=600),
            first_gap: random.millis(0..=400),
            alive: random.millis(50..=1_500),
            second_gap: random.millis(0..=400),
            short_life: random.millis(0..=800),
            after: random.millis(200..=800),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twenty_rounds_have_every_pair_and_five_every_point() {
        let pairs = |rounds: u32| {
            let plans = (1..=rounds).map(|round| Plan::draw(1, round, 2));
            let mut pairs: Vec<_> = plans.map(|plan| (plan.point, plan.victims)).collect();
            pairs.sort();
            pairs.dedup();
            pairs
        };
        assert_eq!(pairs(20).len(), 20);
        let mut points: Vec<_> = pairs(5).into_iter().map(|(point, _)| point).collect();
        points.dedup();
        assert_eq!(points, Point::ALL);
    }

    #[test]
    fn a_seed_is_a_plan() {
        assert_eq!(Plan::draw(5, 3, 2), Plan::draw(5, 3, 2));
        assert_ne!(Plan::draw(5, 3, 2), Plan::draw(6, 3, 2));
    }
}
