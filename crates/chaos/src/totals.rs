//! The results of a run, and whether they are sufficient.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::faults::{FaultKind, FaultLog};
use crate::ledger::{Ledger, UnansweredSubmits};
use crate::plan::{BackEndFault, CrashPoint, NodeFault};

/// A commit may have held no submit that a client still waited for. Among so many, some did.
const MIN_HITS: u64 = 8;

#[derive(Default)]
pub(crate) struct Totals {
    pub(crate) rounds: u32,
    pub(crate) retried: u64,
    pub(crate) failed: u64,
    /// Late and duplicate results dropped, by incarnation of the scheduler, as last scraped before its end.
    pub(crate) late: BTreeMap<u32, u64>,
    nodes: BTreeMap<NodeFault, u64>,
    back_ends: BTreeMap<BackEndFault, u64>,
    points: BTreeMap<CrashPoint, (u64, UnansweredSubmits)>,
}

impl Totals {
    pub(crate) fn hit(&mut self, point: CrashPoint) {
        self.points.entry(point).or_default().0 += 1;
    }

    pub(crate) fn add_unanswered(&mut self, point: CrashPoint, more: UnansweredSubmits) {
        let (_, unanswered_submits) = self.points.entry(point).or_default();
        unanswered_submits.found += more.found;
        unanswered_submits.anew += more.anew;
    }

    pub(crate) fn count_node_fault(&mut self, fault: NodeFault) {
        *self.nodes.entry(fault).or_default() += 1;
    }

    pub(crate) fn count_back_end_fault(&mut self, fault: BackEndFault) {
        *self.back_ends.entry(fault).or_default() += 1;
    }

    /// The points that no round has hit, or never in the gap that they stand for: that nothing is lost there is not
    /// proven.
    pub(crate) fn unproven_points(&self) -> Vec<CrashPoint> {
        let shown = |point: &CrashPoint| {
            let (hits, unanswered_submits) = self.points.get(point).copied().unwrap_or_default();
            let in_the_gap = match point {
                CrashPoint::AcceptedBeforeCommit => unanswered_submits.anew > 0,
                CrashPoint::CommittedBeforeSend | CrashPoint::SentBeforeReply => {
                    unanswered_submits.found > 0
                }
                CrashPoint::ResultBeforeCommit | CrashPoint::RanBeforeReport => true,
            };
            hits > 0 && (in_the_gap || hits < MIN_HITS)
        };
        CrashPoint::ALL.into_iter().filter(|point| !shown(point)).collect()
    }

    pub(crate) fn report(&self, ledger: &Ledger, faults: &FaultLog) -> String {
        let nodes = self.nodes.iter().map(|(fault, count)| format!("{} {count}", fault.name()));
        let back_ends =
            self.back_ends.iter().map(|(fault, count)| format!("{} {count}", fault.name()));
        let all = nodes.chain(back_ends).collect::<Vec<_>>().join(", ");
        let mut text = format!("{} rounds\n  {all}\n", self.rounds);
        let _ = writeln!(
            text,
            "  workers and back ends crashed {} times, froze {} times, and answered {} times with an error",
            faults.count(FaultKind::Died),
            faults.count(FaultKind::Froze),
            faults.count_errors(),
        );
        for (point, (hits, unanswered_submits)) in &self.points {
            let _ = write!(text, "  crashed at {point} {hits} times");
            let _ = match point.is_in_worker() {
                true => writeln!(text),
                false => writeln!(
                    text,
                    "; of the submits left without an answer {} were found stored, {} newly accepted",
                    unanswered_submits.found, unanswered_submits.anew
                ),
            };
        }
        let _ = write!(
            text,
            "  {} tasks acknowledged, each ended once; {} took more than one attempt; {} failed, each after as many\n  \
             faults as it has attempts, and all others completed with their own results\n  \
             {} submits repeated without an answer, {} after an answer, {} refused temporarily\n  \
             {} late or duplicate results dropped, as last scraped before each kill\n",
            ledger.acknowledged(),
            self.retried,
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
        assert_eq!(totals.unproven_points(), CrashPoint::ALL);
        CrashPoint::ALL.into_iter().skip(1).for_each(|point| totals.hit(point));
        assert_eq!(totals.unproven_points(), [CrashPoint::AcceptedBeforeCommit]);
        (0..MIN_HITS - 1).for_each(|_| totals.hit(CrashPoint::AcceptedBeforeCommit));
        assert_eq!(totals.unproven_points(), []);
        // Hit often, but never between acceptance and commit.
        totals.hit(CrashPoint::AcceptedBeforeCommit);
        totals.add_unanswered(
            CrashPoint::AcceptedBeforeCommit,
            UnansweredSubmits { found: 3, anew: 0 },
        );
        assert_eq!(totals.unproven_points(), [CrashPoint::AcceptedBeforeCommit]);
        totals.add_unanswered(
            CrashPoint::AcceptedBeforeCommit,
            UnansweredSubmits { found: 0, anew: 1 },
        );
        assert_eq!(totals.unproven_points(), []);
        let report = totals.report(&Ledger::default(), &FaultLog::default());
        assert!(
            CrashPoint::ALL.iter().all(|point| report.contains(&point.to_string())),
            "{report}"
        );
    }
}
