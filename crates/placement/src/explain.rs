//! Why this worker, and why not the others.

use hypha_model::{Maximise, RefusalKind, Time, WorkerId};
use serde::Serialize;

use crate::WorkerSlot;

/// How many of the next best workers a decision remembers.
pub const MAX_RUNNERS_UP: usize = 3;

/// The inputs of a decision. Bounded in size: it is kept with every task.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explanation {
    /// The strategy that decided.
    pub strategy: &'static str,
    /// When.
    pub at: Time,
    /// The version of the pool that it was decided on; it grows with each change.
    pub version: u64,
    /// The worker that was chosen. A task that still waits, waits until this worker has room; `None` means that no
    /// worker would do.
    pub chosen: Option<Candidate>,
    /// Whether it was chosen for exploration and not because it looked best.
    pub explored: bool,
    /// Whether it was chosen among the local workers: none of the others would have been sooner by enough.
    pub preferred_local: bool,
    /// What counted. `Speed` also where a task has waited too long for a cheaper worker, or no worker that meets its
    /// deadline would do.
    pub maximise: Maximise,
    /// The next best of those that were looked at.
    pub runners_up: Vec<Candidate>,
    /// Refusals among the workers that were looked at, by reason.
    pub refusals: RefusalCounts,
    /// Workers that an index ruled out or ranked behind without a look.
    pub not_looked_at: u64,
}

/// A worker with its score and what the score is the sum of.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Candidate {
    /// The worker.
    pub worker: WorkerId,
    /// What the strategy minimises: seconds for those that predict, otherwise their own unit.
    pub score: f64,
    /// The parts of a score in seconds.
    pub terms: Option<ScoreTerms>,
}

/// The parts of an expected finish.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct ScoreTerms {
    /// The wait until it begins.
    pub wait_s: f64,
    /// The run itself.
    pub run_s: f64,
    /// The round trip.
    pub transfer_s: f64,
    /// What failures are expected to add.
    pub risk_s: f64,
    /// What uncertainty adds, where a strategy counts it.
    pub error_s: f64,
    /// What waiting costs those behind, where a strategy counts it.
    pub surcharge_s: f64,
    /// What the price of the run adds, where it counts: so many seconds of a worker at the usual price, weighted.
    pub cost_s: f64,
}

impl Explanation {
    /// To be overwritten.
    pub(crate) const EMPTY: Explanation = Explanation {
        strategy: "",
        at: Time::ZERO,
        version: 0,
        chosen: None,
        explored: false,
        preferred_local: false,
        maximise: Maximise::Speed,
        runners_up: Vec::new(),
        refusals: RefusalCounts([0; RefusalKind::ALL.len()]),
        not_looked_at: 0,
    };
}

impl ScoreTerms {
    /// The sum.
    pub fn total(&self) -> f64 {
        self.wait_s
            + self.run_s
            + self.transfer_s
            + self.risk_s
            + self.error_s
            + self.surcharge_s
            + self.cost_s
    }
}

/// How often each reason was given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RefusalCounts([u32; RefusalKind::ALL.len()]);

/// The verdict of every worker on one task.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FullExplanation {
    /// Whether this is the version that the task was decided on; otherwise it is the present one.
    pub as_decided: bool,
    /// The version that was looked at.
    pub version: u64,
    /// The workers in the order of their scores, those that refuse last, at most [`MAX_VERDICTS`].
    pub verdicts: Vec<WorkerVerdict>,
    /// How many verdicts were left off.
    pub left_off: u64,
}

/// More are not useful to a reader and would make one request expensive.
pub const MAX_VERDICTS: usize = 10_000;

/// The verdicts of some workers on one task.
#[derive(Clone, Debug, PartialEq)]
pub struct ExplanationPart {
    /// Whether this is the version that the task was decided on.
    pub as_decided: bool,
    /// The version that was looked at.
    pub version: u64,
    /// The verdicts, in the order of the workers' slots.
    pub verdicts: Vec<WorkerVerdict>,
    /// Where the next part begins; `None` if this was the last.
    pub next: Option<WorkerSlot>,
}

impl FullExplanation {
    /// Merges the parts.
    pub fn of_parts(parts: Vec<ExplanationPart>) -> FullExplanation {
        let as_decided = !parts.is_empty() && parts.iter().all(|part| part.as_decided);
        let version = parts.last().map_or(0, |part| part.version);
        let mut verdicts: Vec<WorkerVerdict> =
            parts.into_iter().flat_map(|part| part.verdicts).collect();
        let score = |verdict: &WorkerVerdict| verdict.candidate.map_or(f64::INFINITY, |c| c.score);
        verdicts.sort_by(|a, b| score(a).total_cmp(&score(b)));
        let left_off = verdicts.len().saturating_sub(MAX_VERDICTS) as u64;
        verdicts.truncate(MAX_VERDICTS);
        FullExplanation { as_decided, version, verdicts, left_off }
    }
}

/// One worker's verdict on one task.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WorkerVerdict {
    /// The worker.
    pub worker: WorkerId,
    /// Its score, if it does not refuse.
    pub candidate: Option<Candidate>,
    /// Every reason why it is refused.
    pub refusals: Vec<hypha_model::Refusal>,
}

impl RefusalCounts {
    pub(crate) fn count(&mut self, kind: RefusalKind) {
        self.0[kind as usize] += 1;
    }

    pub(crate) fn add(&mut self, other: &RefusalCounts) {
        for (mine, more) in self.0.iter_mut().zip(other.0) {
            *mine = mine.saturating_add(more);
        }
    }

    /// The reasons that occurred, with their counts.
    pub fn iter(&self) -> impl Iterator<Item = (RefusalKind, u32)> {
        RefusalKind::ALL.into_iter().zip(self.0).filter(|(_, count)| *count > 0)
    }

    /// How many refusals there were.
    pub fn total(&self) -> u64 {
        self.0.iter().map(|count| u64::from(*count)).sum()
    }
}

impl Serialize for RefusalCounts {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}
