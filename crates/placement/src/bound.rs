//! A worker's own queue in the scheduler: tasks that are bound to it and not handed over. In the order in which they were
//! bound, but interactive ones go first, up to a share.

use std::collections::VecDeque;

use crate::TaskRef;

/// So many interactive tasks in a row may go before one that waits and is not: these get at least a fifth of the turns.
pub(crate) const INTERACTIVE_IN_A_ROW: u32 = 4;

/// See the head of this file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bound {
    batch: VecDeque<TaskRef>,
    interactive: VecDeque<TaskRef>,
    /// Interactive tasks that were taken since one that is not waits.
    passed: u32,
}

impl Bound {
    pub(crate) fn len(&self) -> usize {
        self.batch.len() + self.interactive.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.batch.is_empty() && self.interactive.is_empty()
    }

    pub(crate) fn push(&mut self, task: TaskRef, interactive: bool) {
        if interactive { &mut self.interactive } else { &mut self.batch }.push_back(task);
    }

    /// The task that goes next.
    pub(crate) fn front(&self) -> Option<TaskRef> {
        let batch_first = self.passed >= INTERACTIVE_IN_A_ROW && !self.batch.is_empty();
        let interactive = self.interactive.front().filter(|_| !batch_first);
        interactive.or(self.batch.front()).copied()
    }

    /// All of them, those that go last last.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = TaskRef> {
        self.interactive.iter().chain(&self.batch).copied()
    }

    /// Takes a task out, because its turn has come or because it is wanted elsewhere. False if it is not here.
    pub(crate) fn remove(&mut self, task: TaskRef) -> bool {
        let is_next = self.front() == Some(task);
        // The first is handed over, the last is stolen; only a cancelled one is somewhere between.
        let take = |queue: &mut VecDeque<TaskRef>| {
            let at = match queue.front() {
                Some(first) if *first == task => Some(0),
                _ => queue.iter().rposition(|other| *other == task),
            };
            at.and_then(|at| queue.remove(at)).is_some()
        };
        if take(&mut self.interactive) {
            if is_next && !self.batch.is_empty() {
                self.passed += 1;
            }
            return true;
        }
        let was_here = take(&mut self.batch);
        if was_here && (is_next || self.batch.is_empty()) {
            self.passed = 0;
        }
        was_here
    }
}
