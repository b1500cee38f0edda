//! A walk through the scheduler's queue in order: the first of each shape, and behind a task that stays in the queue the
//! next of its shape. It reads the queue as it goes, so what a plan does not come to costs nothing.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::TaskRef;
use crate::waiting::{Place, ShapeId, Waiting};

type Step = (Place, ShapeId, TaskRef);

/// See the head of this file.
#[derive(Debug, Default)]
pub(crate) struct Walk {
    interactive: bool,
    /// How far the first tasks of shapes have been walked through.
    at: Option<Place>,
    /// Where the last walk ended, which is where this one goes on after the front.
    resume: Option<Place>,
    /// Those behind tasks that stay.
    behind: BinaryHeap<Reverse<Step>>,
    /// Whether the last step came from there.
    was_behind: bool,
    /// The last place, and the one before.
    last: Option<Place>,
    before: Option<Place>,
    has_skipped: bool,
}

impl Walk {
    /// Through the interactive tasks, or through the others.
    pub(crate) fn new(interactive: bool, resume: Option<Place>) -> Walk {
        Walk { interactive, resume, ..Walk::default() }
    }

    /// The next task in order.
    pub(crate) fn next(&mut self, waiting: &Waiting) -> Option<Step> {
        let head = waiting.heads_after(self.interactive, self.at).next();
        let behind = self.behind.peek().map(|Reverse(step)| *step);
        self.was_behind = match (head, behind) {
            (Some(head), Some(behind)) => behind < head,
            (None, Some(_)) => true,
            _ => false,
        };
        let step = if self.was_behind { self.behind.pop().map(|Reverse(step)| step) } else { head };
        if let Some((place, ..)) = step {
            self.before = self.last.replace(place);
            if !self.was_behind {
                self.at = Some(place);
            }
        }
        step
    }

    /// The last task that was walked to has left the queue.
    pub(crate) fn gave(&mut self, shape: ShapeId, place: Place, waiting: &Waiting) {
        // The next of its shape is the first now, and comes by itself, unless another of the shape stays before it.
        if self.was_behind {
            self.left(shape, place, waiting);
        }
    }

    /// The last task that was walked to stays: the next of its shape is not the first.
    pub(crate) fn left(&mut self, shape: ShapeId, place: Place, waiting: &Waiting) {
        self.behind.extend(waiting.next_after(shape, Some(place)).map(Reverse));
    }

    /// Goes on where the last walk ended.
    pub(crate) fn go_on(&mut self) {
        if let Some(resume) = self.resume.take()
            && Some(resume) > self.at
        {
            self.at = Some(resume);
            self.has_skipped = true;
        }
    }

    /// Whether the walk left out what the last one came to.
    pub(crate) fn has_skipped(&self) -> bool {
        self.has_skipped
    }

    /// The place before the last one.
    pub(crate) fn before(&self) -> Place {
        self.before.unwrap_or(Place::FIRST)
    }
}
