//! What a plan that looked at a task made of it. Apart from the task, because most of a long queue has not been
//! looked at.

use hypha_model::Time;
use hypha_predict::Estimate;

use crate::Slot;
use crate::explain::Explanation;
use crate::strategy::Recipe;

/// See the head of this file.
#[derive(Clone, Debug)]
pub(crate) struct Decision {
    /// The run time on the worker that was chosen.
    pub(crate) estimate: Estimate,
    /// On the hardware of the worker that was chosen.
    pub(crate) base_s: f64,
    /// The recipe, where it was not the strategy's own.
    pub(crate) by: Option<Recipe>,
    pub(crate) held: Option<Held>,
    explanation: Explanation,
    /// Whether that is this task's, and not of the one before.
    explained: bool,
}

/// A task waits for a worker that is busy, although another is free.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    pub(crate) slot: Slot,
    /// What it adds to the waiting of those behind it.
    pub(crate) share_s: f64,
    /// What waiting was expected to cost when this was decided.
    pub(crate) score: f64,
    /// How fast that falls while time passes and all goes as expected.
    pub(crate) wait_costs: f64,
    pub(crate) at: Time,
    /// Whether it keeps its place by arrival.
    pub(crate) forgiven: bool,
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

    /// Why the task is where it is; a task that a worker already had was not decided about.
    pub(crate) fn explanation(&self) -> Option<&Explanation> {
        self.explained.then_some(&self.explanation)
    }

    /// The explanation, to be written over.
    pub(crate) fn explain(&mut self) -> &mut Explanation {
        self.explained = true;
        &mut self.explanation
    }
}

/// Decisions about tasks that are gone, to be written over: with what they hold, their allocations are what is
/// reused.
#[derive(Clone, Debug, Default)]
#[expect(clippy::vec_box, reason = "the allocations are what is reused")]
pub(crate) struct Spare(Vec<Box<Decision>>);

/// More would only hold memory after a burst.
const MOST_SPARE: usize = 64;

impl Spare {
    /// A decision in which nothing is decided.
    pub(crate) fn take(&mut self) -> Box<Decision> {
        let Some(mut spare) = self.0.pop() else { return Box::new(Decision::NONE) };
        let explanation = std::mem::replace(&mut spare.explanation, Explanation::EMPTY);
        *spare = Decision { explanation, ..Decision::NONE };
        spare
    }

    pub(crate) fn put(&mut self, gone: Box<Decision>) {
        if self.0.len() < MOST_SPARE {
            self.0.push(gone);
        }
    }
}
