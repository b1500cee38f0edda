//! A cursor over the tasks of all tenants: always the next task of the tenant whose turn it is. Where one tenant waits,
//! it is the cursor over that tenant's queue and nothing more.

use crate::TaskRef;
use crate::queue_cursor::{QueueCursor, QueueEntry};
use crate::tenants::{TenantId, Turn};
use crate::waiting::{QueuePosition, ShapeId, WaitingQueue};

/// Where a plan ended in the queue of each tenant.
pub(crate) type Resume = Vec<(TenantId, QueuePosition)>;

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct TurnCursor {
    first: TenantWalk,
    others: Vec<TenantWalk>,
    /// Which of them the last task came from; 0 is the first.
    last: usize,
    /// Whether it was taken for its priority, against the order by share.
    by_priority: bool,
}

/// How far a cursor has come in the queue of one tenant.
#[derive(Debug, Default)]
struct TenantWalk {
    tenant: TenantId,
    cursor: QueueCursor,
    /// The next task, read ahead to compare it with those of other tenants.
    next: Option<(QueueEntry, Turn)>,
    has_ended: bool,
}

impl TurnCursor {
    /// A cursor over the interactive tasks, or over the others.
    pub(crate) fn new(
        interactive: bool,
        waiting: &WaitingQueue,
        resume: &[(TenantId, QueuePosition)],
    ) -> Self {
        let walk = |tenant: TenantId| {
            let from = resume.iter().find(|(other, _)| *other == tenant).map(|(_, at)| *at);
            let cursor = QueueCursor::new(tenant, interactive, from);
            TenantWalk { tenant, cursor, ..TenantWalk::default() }
        };
        let mut tenants = waiting.tenants(interactive).iter().copied();
        let first = walk(tenants.next().unwrap_or_default());
        TurnCursor { first, others: tenants.map(walk).collect(), last: 0, by_priority: false }
    }

    /// The next task in order. `turn` compares tasks of different tenants.
    pub(crate) fn next(
        &mut self,
        waiting: &WaitingQueue,
        ignores_priority: bool,
        turn: impl Fn(TenantId, QueuePosition, TaskRef) -> Turn,
    ) -> Option<QueueEntry> {
        if self.others.is_empty() {
            return self.first.cursor.next(waiting);
        }
        let mut best: Option<(usize, Turn)> = None;
        let mut by_share = best;
        for (at, walk) in std::iter::once(&mut self.first).chain(&mut self.others).enumerate() {
            // The share of the tenant that was last served has changed, and its next task is another.
            if at == self.last || walk.next.is_none() {
                walk.read_ahead(waiting, &turn);
            }
            let Some((_, turn)) = walk.next else { continue };
            let goes_before = |other: Option<(usize, Turn)>, ignores: bool| {
                other.is_none_or(|(_, other)| turn.cmp(&other, ignores).is_lt())
            };
            if goes_before(best, ignores_priority) {
                best = Some((at, turn));
            }
            if goes_before(by_share, true) {
                by_share = Some((at, turn));
            }
        }
        let (at, _) = best?;
        self.last = at;
        self.by_priority = by_share.is_some_and(|(other, _)| other != at);
        self.current().next.take().map(|(entry, _)| entry)
    }

    fn current(&mut self) -> &mut TenantWalk {
        match self.last.checked_sub(1).and_then(|at| self.others.get_mut(at)) {
            Some(walk) => walk,
            None => &mut self.first,
        }
    }

    /// Whether the last task was taken for its priority, against the order by share.
    pub(crate) fn is_by_priority(&self) -> bool {
        self.by_priority
    }

    /// The last task has left the queue.
    pub(crate) fn removed(
        &mut self,
        shape: ShapeId,
        position: QueuePosition,
        waiting: &WaitingQueue,
    ) {
        self.current().cursor.removed(shape, position, waiting);
    }

    /// The last task stays: the next of its shape is not the first.
    pub(crate) fn kept(&mut self, shape: ShapeId, position: QueuePosition, waiting: &WaitingQueue) {
        self.current().cursor.kept(shape, position, waiting);
    }

    /// Continues where the last plan ended.
    pub(crate) fn skip_to_resume(&mut self) {
        for walk in std::iter::once(&mut self.first).chain(&mut self.others) {
            if walk.cursor.skip_to_resume() {
                walk.next = None;
                walk.has_ended = false;
            }
        }
    }

    /// Whether it skipped tasks that the last plan looked at.
    pub(crate) fn has_skipped(&self) -> bool {
        std::iter::once(&self.first).chain(&self.others).any(|walk| walk.cursor.has_skipped())
    }

    /// Where to continue if the last task is not looked at.
    pub(crate) fn resume(&self) -> Resume {
        let walks = std::iter::once(&self.first).chain(&self.others);
        walks.map(|walk| (walk.tenant, walk.cursor.previous())).collect()
    }
}

impl TenantWalk {
    fn read_ahead(
        &mut self,
        waiting: &WaitingQueue,
        turn: &impl Fn(TenantId, QueuePosition, TaskRef) -> Turn,
    ) {
        if self.has_ended {
            return;
        }
        let entry = match self.next.take() {
            Some((entry, _)) => Some(entry),
            None => self.cursor.next(waiting),
        };
        self.has_ended = entry.is_none();
        self.next = entry.map(|entry| (entry, turn(self.tenant, entry.0, entry.2)));
    }
}
