//! A cursor over the tasks of all tenants: always the next task of the tenant whose turn it is, from its urgent tasks or
//! from the others. Where one tenant waits, and has no urgent tasks, it is the cursor over that tenant's queue and
//! nothing more.

use crate::TaskRef;
use crate::queue_cursor::{QueueCursor, QueueEntry};
use crate::tenants::{TenantId, Turn};
use crate::waiting::{Lane, QueuePosition, ShapeId, WaitingQueue};

/// Where a plan ended in the queues of each tenant.
pub(crate) type Resume = Vec<(TenantId, Lane, QueuePosition)>;

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

/// What decides between waiting tasks.
pub(crate) trait TurnRules {
    /// What decides between the first tasks of two tenants.
    fn turn(&self, tenant: TenantId, position: QueuePosition, task: TaskRef) -> Turn;

    /// Whether the next start goes by share alone.
    fn ignores_priority(&self) -> bool;

    /// Whether an urgent task of a tenant goes before the first of its other tasks.
    fn urgent_goes_first(&self, tenant: TenantId, urgent: TaskRef, other: TaskRef) -> bool;
}

/// How far a cursor has come in the queues of one tenant.
#[derive(Debug, Default)]
struct TenantWalk {
    tenant: TenantId,
    cursor: QueueCursor,
    /// Where there are urgent tasks, how far it has come among them.
    urgent: Option<Box<UrgentWalk>>,
    /// Whether the last task came from those.
    is_urgent: bool,
    /// The next task, read ahead to compare it with those of other tenants.
    next: Option<(QueueEntry, Turn)>,
    has_ended: bool,
}

#[derive(Debug)]
struct UrgentWalk {
    cursor: QueueCursor,
    /// The next urgent task and the next other one, read ahead to be compared.
    ahead: [Option<QueueEntry>; 2],
}

impl TurnCursor {
    /// A cursor over the interactive tasks, or over the others.
    pub(crate) fn new(
        interactive: bool,
        waiting: &WaitingQueue,
        resume: &[(TenantId, Lane, QueuePosition)],
    ) -> Self {
        let cursor = |tenant: TenantId, lane: Lane| {
            let from = |(of, at, _): &&(TenantId, Lane, _)| (*of, *at) == (tenant, lane);
            QueueCursor::new(tenant, lane, resume.iter().find(from).map(|(.., from)| *from))
        };
        let walk = |tenant: TenantId| {
            let urgent = Lane::new(interactive, true);
            let urgent = waiting.has_heads(tenant, urgent).then(|| {
                Box::new(UrgentWalk { cursor: cursor(tenant, urgent), ahead: [None, None] })
            });
            let cursor = cursor(tenant, Lane::new(interactive, false));
            TenantWalk { tenant, cursor, urgent, ..TenantWalk::default() }
        };
        let mut tenants = waiting.tenants(interactive).iter().copied();
        let first = walk(tenants.next().unwrap_or_default());
        TurnCursor { first, others: tenants.map(walk).collect(), last: 0, by_priority: false }
    }

    /// The next task in order.
    #[inline]
    pub(crate) fn next(
        &mut self,
        waiting: &WaitingQueue,
        rules: &impl TurnRules,
    ) -> Option<QueueEntry> {
        match self.others.is_empty() && self.first.urgent.is_none() {
            true => self.first.cursor.next(waiting),
            false => self.next_in_turn(waiting, rules),
        }
    }

    #[inline(never)]
    fn next_in_turn(
        &mut self,
        waiting: &WaitingQueue,
        rules: &impl TurnRules,
    ) -> Option<QueueEntry> {
        let ignores_priority = rules.ignores_priority();
        let mut best: Option<(usize, Turn)> = None;
        let mut by_share = best;
        for (at, walk) in std::iter::once(&mut self.first).chain(&mut self.others).enumerate() {
            // The share of the tenant that was last served has changed, and its next task is another.
            if at == self.last || walk.next.is_none() {
                walk.read_ahead(waiting, rules);
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

    /// The tenant and the lane of the last task.
    pub(crate) fn last_lane(&mut self) -> (TenantId, Lane) {
        let walk = self.current();
        (walk.tenant, walk.cursor().lane())
    }

    /// The last task has left the queue.
    pub(crate) fn removed(
        &mut self,
        shape: ShapeId,
        position: QueuePosition,
        waiting: &WaitingQueue,
    ) {
        self.current().cursor().removed(shape, position, waiting);
    }

    /// The last task stays: the next of its shape is not the first.
    pub(crate) fn kept(&mut self, shape: ShapeId, position: QueuePosition, waiting: &WaitingQueue) {
        self.current().cursor().kept(shape, position, waiting);
    }

    /// Continues where the last plan ended.
    pub(crate) fn skip_to_resume(&mut self) {
        for walk in std::iter::once(&mut self.first).chain(&mut self.others) {
            walk.skip_to_resume();
        }
    }

    /// Whether it skipped tasks that the last plan looked at.
    pub(crate) fn has_skipped(&self) -> bool {
        self.cursors().any(|(_, cursor)| cursor.has_skipped())
    }

    /// Where to continue if the last task is not looked at.
    pub(crate) fn resume(&self) -> Resume {
        let from =
            |(tenant, cursor): (TenantId, &QueueCursor)| (tenant, cursor.lane(), cursor.previous());
        self.cursors().map(from).collect()
    }

    fn cursors(&self) -> impl Iterator<Item = (TenantId, &QueueCursor)> {
        std::iter::once(&self.first).chain(&self.others).flat_map(|walk| {
            let urgent = walk.urgent.as_ref().map(|urgent| (walk.tenant, &urgent.cursor));
            std::iter::once((walk.tenant, &walk.cursor)).chain(urgent)
        })
    }
}

impl TenantWalk {
    fn read_ahead(&mut self, waiting: &WaitingQueue, rules: &impl TurnRules) {
        if self.has_ended {
            return;
        }
        let entry = match self.next.take() {
            Some((entry, _)) => Some(entry),
            None => self.next_entry(waiting, rules),
        };
        self.has_ended = entry.is_none();
        self.next = entry.map(|entry| (entry, rules.turn(self.tenant, entry.0, entry.2)));
    }

    /// The next task of the tenant, from the lane whose turn it is.
    fn next_entry(&mut self, waiting: &WaitingQueue, rules: &impl TurnRules) -> Option<QueueEntry> {
        let Some(walk) = &mut self.urgent else { return self.cursor.next(waiting) };
        let [urgent, other] = &mut walk.ahead;
        if urgent.is_none() {
            *urgent = walk.cursor.next(waiting);
        }
        if other.is_none() {
            *other = self.cursor.next(waiting);
        }
        self.is_urgent = match (&urgent, &other) {
            (Some(urgent), Some(other)) => rules.urgent_goes_first(self.tenant, urgent.2, other.2),
            (urgent, _) => urgent.is_some(),
        };
        if self.is_urgent { urgent.take() } else { other.take() }
    }

    /// The cursor that the last task came from.
    fn cursor(&mut self) -> &mut QueueCursor {
        match &mut self.urgent {
            Some(urgent) if self.is_urgent => &mut urgent.cursor,
            _ => &mut self.cursor,
        }
    }

    fn skip_to_resume(&mut self) {
        let mut skipped = [false; 2];
        if let Some(urgent) = &mut self.urgent {
            skipped[0] = urgent.cursor.skip_to_resume();
            if skipped[0] {
                urgent.ahead[0] = None;
            }
        }
        skipped[1] = self.cursor.skip_to_resume();
        if let Some(urgent) = &mut self.urgent
            && skipped[1]
        {
            urgent.ahead[1] = None;
        }
        if skipped[usize::from(!self.is_urgent)] {
            self.next = None;
        }
        if skipped != [false; 2] {
            self.has_ended = false;
        }
    }
}
