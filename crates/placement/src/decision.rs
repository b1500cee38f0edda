//! The decision of a plan about a task. Stored apart from the task, because most tasks of a long queue have not been
//! looked at.

use hypha_model::Time;
use hypha_predict::Estimate;

use crate::WorkerSlot;
use crate::explain::Explanation;
use crate::strategy::Recipe;

/// See the module documentation.
#[derive(Clone, Debug)]
pub(crate) struct Decision {
    /// The run time on the worker that was chosen.
    pub(crate) estimate: Estimate,
    /// The same on the hardware of the worker that was chosen, before the worker's factor.
    pub(crate) base_s: f64,
    /// The recipe, if it was not the strategy's own.
    pub(crate) by: Option<Recipe>,
    pub(crate) held: Option<HeldBack>,
    explanation: Explanation,
    /// Whether the explanation is this task's, and not a left-over of the previous one.
    explained: bool,
}

/// A task waits for a busy worker although another is free.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeldBack {
    pub(crate) slot: WorkerSlot,
    /// Which worker that is, of those that have been in the slot.
    pub(crate) joined: u64,
    /// How much it adds to the waiting time of the tasks behind it.
    pub(crate) share_s: f64,
    /// The expected cost of waiting when this was decided.
    pub(crate) score: f64,
    /// How fast that cost falls while time passes and all goes as expected.
    pub(crate) wait_cost_rate: f64,
    pub(crate) at: Time,
    /// Whether it keeps its position by arrival.
    pub(crate) keeps_arrival_order: bool,
}

impl Decision {
    /// Nothing decided yet.
    const NONE: Decision = Decision {
        estimate: Estimate::ZERO,
        base_s: 0.0,
        by: None,
        held: None,
        explanation: Explanation::EMPTY,
        explained: false,
    };

    /// Why the task is where it is; none for an adopted task, about which nothing was decided.
    pub(crate) fn explanation(&self) -> Option<&Explanation> {
        self.explained.then_some(&self.explanation)
    }

    /// The explanation, to be overwritten.
    pub(crate) fn explanation_mut(&mut self) -> &mut Explanation {
        self.explained = true;
        &mut self.explanation
    }
}

/// Decisions about tasks that are gone, to be overwritten.
#[derive(Clone, Debug, Default)]
#[expect(clippy::vec_box, reason = "the allocations are what is reused")]
pub(crate) struct SpareDecisions(Vec<Box<Decision>>);

/// More would only hold memory after a burst.
const MAX_SPARE_DECISIONS: usize = 64;

impl SpareDecisions {
    /// A decision in which nothing is decided.
    pub(crate) fn take(&mut self) -> Box<Decision> {
        let Some(mut spare) = self.0.pop() else { return Box::new(Decision::NONE) };
        (spare.estimate, spare.base_s) = (Estimate::ZERO, 0.0);
        (spare.by, spare.held, spare.explained) = (None, None, false);
        spare
    }

    pub(crate) fn put(&mut self, gone: Box<Decision>) {
        if self.0.len() < MAX_SPARE_DECISIONS {
            self.0.push(gone);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use hypha_model::TaskSpec;
    use hypha_predict::{Predictor, Settings};

    use super::*;
    use crate::{AttemptEnd, Placement, PlacementRequest, Preferences, Strategy, TaskRef};

    fn explained() -> Box<Decision> {
        let mut decision = Box::new(Decision { base_s: 1.0, ..Decision::NONE });
        decision.explanation_mut().strategy = "before";
        decision
    }

    #[test]
    fn spare_decision_is_reset_before_reuse() {
        let mut spare = SpareDecisions::default();
        let held = HeldBack {
            joined: 0,
            slot: WorkerSlot(1),
            share_s: 1.0,
            score: 1.0,
            wait_cost_rate: 1.0,
            at: Time::ZERO,
            keeps_arrival_order: true,
        };
        let by = Some(Strategy::Fifo.recipe());
        let estimate = Estimate::exact(1.0);
        spare.put(Box::new(Decision { estimate, by, held: Some(held), ..*explained() }));
        let again = spare.take();
        assert!(spare.0.is_empty(), "the spare decision was not reused");
        assert_eq!((again.estimate, again.base_s), (Estimate::ZERO, 0.0));
        assert!(again.by.is_none() && again.held.is_none() && again.explanation().is_none());
    }

    #[test]
    fn spare_decisions_are_bounded() {
        let mut spare = SpareDecisions::default();
        (0..2 * MAX_SPARE_DECISIONS).for_each(|_| spare.put(explained()));
        assert_eq!(spare.0.len(), MAX_SPARE_DECISIONS);
    }

    #[test]
    fn tasks_that_no_plan_looked_at_have_no_decision() {
        let mut predictor = Predictor::new(Settings::default());
        let mut placement = Placement::new(Strategy::RoundRobin, Preferences::default(), 1);
        let spec = Arc::new(TaskSpec::default());
        for task in 0..10 {
            let request = PlacementRequest {
                query: predictor.query(&spec),
                spec: Arc::clone(&spec),
                submitted: Time::ZERO,
                bind_at_once: false,
                interactive: false,
                failed_on: Box::default(),
            };
            placement.arrive(TaskRef(task), request, &predictor);
        }
        placement.plan(&predictor, Time::ZERO, &mut Vec::new());
        let decided = |placement: &Placement| {
            placement.tasks.iter().filter(|task| task.decision.is_some()).count()
        };
        // The first stands for all of its shape.
        assert_eq!(decided(&placement), 1);
        placement.finish(TaskRef(0), AttemptEnd::Withdrawn, Time::ZERO);
        assert_eq!(decided(&placement), 0);
    }
}
