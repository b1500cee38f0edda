//! A cursor over the queue of a tenant in order: the first task of each shape, and behind a task that stays in the
//! queue the next of its shape. It reads the queue as it goes, so tasks that a plan does not reach cost nothing.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::TaskRef;
use crate::tenants::TenantId;
use crate::waiting::{Lane, QueuePosition, ShapeId, WaitingQueue};

pub(crate) type QueueEntry = (QueuePosition, ShapeId, TaskRef);

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct QueueCursor {
    tenant: TenantId,
    lane: Lane,
    /// How far it has come among the first tasks of shapes.
    at: Option<QueuePosition>,
    /// Where the last plan ended, which is where this one continues after the front.
    resume: Option<QueuePosition>,
    /// The next of the shape behind tasks that stay.
    followers: BinaryHeap<Reverse<QueueEntry>>,
    /// Whether the last step came from `followers`.
    was_follower: bool,
    /// The last position, and the one before.
    last: Option<QueuePosition>,
    previous: Option<QueuePosition>,
    has_skipped: bool,
}

impl QueueCursor {
    /// A cursor over the tasks of one lane.
    pub(crate) fn new(tenant: TenantId, lane: Lane, resume: Option<QueuePosition>) -> QueueCursor {
        QueueCursor { tenant, lane, resume, ..QueueCursor::default() }
    }

    pub(crate) fn lane(&self) -> Lane {
        self.lane
    }

    /// The next task in order.
    pub(crate) fn next(&mut self, waiting: &WaitingQueue) -> Option<QueueEntry> {
        let head = waiting.heads_after(self.tenant, self.lane, self.at).next();
        let behind = self.followers.peek().map(|Reverse(step)| *step);
        self.was_follower = match (head, behind) {
            (Some(head), Some(behind)) => behind < head,
            (None, Some(_)) => true,
            _ => false,
        };
        let step =
            if self.was_follower { self.followers.pop().map(|Reverse(step)| step) } else { head };
        if let Some((position, ..)) = step {
            self.previous = self.last.replace(position);
            if !self.was_follower {
                self.at = Some(position);
            }
        }
        step
    }

    /// The last task has left the queue.
    pub(crate) fn removed(
        &mut self,
        shape: ShapeId,
        position: QueuePosition,
        waiting: &WaitingQueue,
    ) {
        // The next of its shape is the first now, and comes by itself, unless another of the shape stays before it.
        if self.was_follower {
            self.kept(shape, position, waiting);
        }
    }

    /// The last task stays: the next of its shape is not the first.
    pub(crate) fn kept(&mut self, shape: ShapeId, position: QueuePosition, waiting: &WaitingQueue) {
        self.followers.extend(waiting.next_after(shape, Some(position)).map(Reverse));
    }

    /// Continues where the last plan ended. Returns whether that is farther.
    pub(crate) fn skip_to_resume(&mut self) -> bool {
        let Some(resume) = self.resume.take().filter(|resume| Some(*resume) > self.at) else {
            return false;
        };
        self.at = Some(resume);
        self.has_skipped = true;
        true
    }

    /// Whether it skipped tasks that the last plan looked at.
    pub(crate) fn has_skipped(&self) -> bool {
        self.has_skipped
    }

    /// The position before the last one.
    pub(crate) fn previous(&self) -> QueuePosition {
        self.previous.unwrap_or(QueuePosition::FIRST)
    }
}
