//! What a run has shown, and whether that is enough.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::faults::{Faults, Injury};
use crate::ledger::{Ledger, Traces};
use crate::plan::{BackEndFault, NodeFault, Point};

/// A commit may have held no submit that a client still waited for. Of so many, some did.
const ENOUGH: u64 = 8;

#[derive(Default)]
pub(crate) struct Totals {
    pub(crate) rounds: u32,
    pub(crate) run_again: u64,
    pub(crate) failed: u64,
    /// Late and doubled results dropped, by life of the scheduler, as last asked before its end.
    pub(crate) late: BTreeMap<u32, u64>,
    nodes: BTreeMap<NodeFault, u64>,
    back_ends: BTreeMap<BackEndFault, u64>,
    points: BTreeMap<Point, (u64, Traces)>,
}

impl Totals {
    pub(crate) fn hit(&mut self, point: Point) {
        self.points.entry(point).or_default().0 += 1;
    }

    pub(crate) fn traced(&mut self, point: Point, more: Traces) {
        let (_, traces) = self.points.entry(point).or_default();
        traces.found += more.found;
        traces.anew += more.anew;
    }

    pub(crate) fn nodes(&mut self, fault: NodeFault) {
        *self.nodes.entry(fault).or_default() += 1;
    }

    pub(crate) fn back_end(&mut self, fault: BackEndFault) {
        *self.back_ends.entry(fault).or_default() += 1;
    }

    /// The points that no round has hit, or never in the gap that they stand for: that nothing is lost there was not
    /// shown.
    pub(crate) fn not_shown(&self) -> Vec<Point> {
        let shown = |point: &Point| {
            let (hits, traces) = self.points.get(point).copied().unwrap_or_default();
            let in_the_gap = match point {
                Point::AcceptedBeforeCommit => traces.anew > 0,
                Point::CommittedBeforeSend | Point::SentBeforeReply => traces.found > 0,
                Point::ResultBeforeCommit | Point::RanBeforeReport => true,
            };
            hits > 0 && (in_the_gap || hits < ENOUGH)
        };
        Point::ALL.into_iter().filter(|point| !shown(point)).collect()
    }

    pub(crate) fn report(&self, ledger: &Ledger, faults: &Faults) -> String {
        let nodes = self.nodes.iter().map(|(fault, count)| format!("{} {count}", fault.name()));
        let back_ends =
            self.back_ends.iter().map(|(fault, count)| format!("{} {count}", fault.name()));
        let all = nodes.chain(back_ends).collect::<Vec<_>>().join(", ");
        let mut text = format!("{} rounds\n  {all}\n", self.rounds);
        let _ = writeln!(
            text,
            "  workers and back ends died {} times, froze {} times, and gave {} errors",
            faults.count(Injury::Died),
            faults.count(Injury::Froze),
            faults.count_errors(),
        );
        for (point, (hits, traces)) in &self.points {
            let _ = write!(text, "  died at {point} {hits} times");
            let _ = match point.in_worker() {
                true => writeln!(text),
                false => writeln!(
                    text,
                    "; of the submits left without an answer {} were found stored, {} accepted anew",
                    traces.found, traces.anew
                ),
            };
        }
        let _ = write!(
            text,
            "  {} tasks acknowledged, each ended once; {} took more than one attempt; {} failed, each after as many\n  \
             faults as it has attempts, and all others completed with their own results\n  \
             {} submits repeated for want of an answer, {} after an answer, {} refused for the time being\n  \
             {} late or doubled results dropped, as far as there was time to ask before each kill\n",
            ledger.acknowledged(),
            self.run_again,
            self.failed,
            ledger.repeated,
            ledger.doubled,
            ledger.refused,
            self.late.values().sum::<u64>(),
        );
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_that_was_not_hit_is_named() {
        let mut totals = Totals::default();
        assert_eq!(totals.not_shown(), Point::ALL);
        Point::ALL.into_iter().skip(1).for_each(|point| totals.hit(point));
        assert_eq!(totals.not_shown(), [Point::AcceptedBeforeCommit]);
        (0..ENOUGH - 1).for_each(|_| totals.hit(Point::AcceptedBeforeCommit));
        assert_eq!(totals.not_shown(), []);
        // So often, and never between acceptance and commit?
        totals.hit(Point::AcceptedBeforeCommit);
        totals.traced(Point::AcceptedBeforeCommit, Traces { found: 3, anew: 0 });
        assert_eq!(totals.not_shown(), [Point::AcceptedBeforeCommit]);
        totals.traced(Point::AcceptedBeforeCommit, Traces { found: 0, anew: 1 });
        assert_eq!(totals.not_shown(), []);
        let report = totals.report(&Ledger::default(), &Faults::default());
        assert!(Point::ALL.iter().all(|point| report.contains(&point.to_string())), "{report}");
    }
}
