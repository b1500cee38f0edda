//! Why tasks wait that no plan has looked at yet because no worker had room: the refusals of workers. Made on demand.

use std::collections::BTreeMap;

use hypha_model::{RefusalKind, Time};

use crate::explain::{Explanation, RefusalCounts};
use crate::waiting::ShapeId;
use crate::{Placement, Stage, TaskRef};

/// Workers that are checked for why a task waits. The task's full explanation has all of them; this is for lists of
/// tasks.
pub const MAX_WORKERS_CHECKED: usize = 1_000;

/// Reasons of several tasks, read one after the other in the same state: tasks with the same requirements wait for the
/// same reason.
pub struct WaitingReasons<'a> {
    placement: &'a Placement,
    known: BTreeMap<ShapeId, Explanation>,
    looked_at: usize,
}

impl Placement {
    /// Starts to read the reasons of tasks.
    pub fn waiting_reasons(&self) -> WaitingReasons<'_> {
        WaitingReasons { placement: self, known: BTreeMap::new(), looked_at: 0 }
    }
}

impl WaitingReasons<'_> {
    /// How many workers have been checked so far.
    pub fn looked_at(&self) -> usize {
        self.looked_at
    }

    /// Why a task waits.
    pub fn of(&mut self, task: TaskRef, now: Time) -> Option<Explanation> {
        let shape = match self.placement.stage(task)? {
            // A reservation is for one task of its shape.
            Stage::Waiting(shape, _) if !self.placement.is_reserved(task) => Some(shape),
            _ => None,
        };
        if let Some(known) = shape.and_then(|shape| self.known.get(&shape)) {
            return Some(known.clone());
        }
        let explanation = self.evaluate(task, now)?;
        if let Some(shape) = shape {
            self.known.insert(shape, explanation.clone());
        }
        Some(explanation)
    }

    fn evaluate(&mut self, task: TaskRef, now: Time) -> Option<Explanation> {
        let Placement { pool, tasks, strategy, .. } = self.placement;
        let requirement = &tasks.get(task.0 as usize)?.request.spec.requirement;
        let mut refusals = RefusalCounts::default();
        let asked = &pool.live()[..pool.len().min(MAX_WORKERS_CHECKED)];
        for slot in asked {
            let member = pool.member(*slot)?;
            // The run time is not predicted: a reservation counts as for the longest run.
            let now_or_never = || member.refuses_now(task, requirement, || f64::MAX, now);
            let refusal = member.refuses_ever(requirement).or_else(now_or_never);
            // A worker that would take it now gets it with the next plan, and counts as busy until then.
            refusals.count(refusal.map_or(RefusalKind::Busy, |refusal| refusal.kind));
        }
        self.looked_at += asked.len();
        Some(Explanation {
            strategy: strategy.name(),
            at: now,
            version: pool.version(),
            refusals,
            not_looked_at: (pool.len() - asked.len()) as u64,
            ..Explanation::EMPTY
        })
    }
}
