//! What a run has shown, and whether that is enough.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::ledger::{Ledger, Traces};
use crate::plan::{Point, Victims};

/// A commit may have held no submit that a client still waited for. Of so many, some did.
const ENOUGH: u64 = 8;

#[derive(Default)]
pub(crate) struct Totals {
    pub(crate) rounds: u32,
    pub(crate) scheduler_kills: u64,
    pub(crate) worker_kills: u64,
    pub(crate) run_again: u64,
    /// Late and doubled results dropped, by life of the scheduler, as last asked before its end.
    pub(crate) late: BTreeMap<u32, u64>,
    victims: BTreeMap<Victims, u64>,
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

    pub(crate) fn killed(&mut self, victims: Victims) {
        *self.victims.entry(victims).or_default() += 1;
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

    pub(crate) fn report(&self, ledger: &Ledger) -> String {
        let mut text = format!(
            "{} rounds; kill -9 of the scheduler {} times, of a worker {} times\n",
            self.rounds, self.scheduler_kills, self.worker_kills
        );
        let rounds =
            self.victims.iter().map(|(victims, count)| format!("{} {count}", victims.name()));
        let _ = writeln!(text, "  rounds by victims: {}", rounds.collect::<Vec<_>>().join(", "));
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
            "  {} tasks acknowledged, each completed once with its own result; {} took more than one attempt\n  \
             {} submits repeated for want of an answer, {} after an answer, {} refused for the time being\n  \
             {} late or doubled results dropped, as far as there was time to ask before each kill\n",
            ledger.acknowledged(),
            self.run_again,
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
        let report = totals.report(&Ledger::default());
        assert!(Point::ALL.iter().all(|point| report.contains(&point.to_string())), "{report}");
    }
}
