//! A queue in which interactive tasks go first, up to a share, and otherwise in the order of arrival. Used by a
//! worker, by the scheduler's view of a worker, and by the queue of tasks bound to a worker.

use std::collections::VecDeque;

/// This many interactive tasks in a row may go before a waiting batch task: while batch tasks wait, at least a fifth of
/// the tasks served are batch tasks.
pub const MAX_CONSECUTIVE_INTERACTIVE: u32 = 4;

/// See the module documentation.
#[derive(Clone, Debug)]
pub struct FairQueue<K> {
    batch: VecDeque<K>,
    interactive: VecDeque<K>,
    /// Interactive tasks taken in a row while a batch task waited.
    consecutive_interactive: u32,
}

impl<K> Default for FairQueue<K> {
    fn default() -> FairQueue<K> {
        FairQueue {
            batch: VecDeque::new(),
            interactive: VecDeque::new(),
            consecutive_interactive: 0,
        }
    }
}

impl<K: Copy + Eq> FairQueue<K> {
    /// How many tasks wait.
    pub fn len(&self) -> usize {
        self.batch.len() + self.interactive.len()
    }

    /// Whether no task waits.
    pub fn is_empty(&self) -> bool {
        self.batch.is_empty() && self.interactive.is_empty()
    }

    /// Adds a task behind those of its kind.
    pub fn push(&mut self, task: K, interactive: bool) {
        if interactive { &mut self.interactive } else { &mut self.batch }.push_back(task);
    }

    /// Adds a task before those of its kind at the end of which `goes_before` is true.
    pub fn insert(&mut self, task: K, interactive: bool, goes_before: impl Fn(K) -> bool) {
        let queue = if interactive { &mut self.interactive } else { &mut self.batch };
        let at = queue.iter().rposition(|other| !goes_before(*other)).map_or(0, |at| at + 1);
        queue.insert(at, task);
    }

    fn batch_goes_first(&self) -> bool {
        self.consecutive_interactive >= MAX_CONSECUTIVE_INTERACTIVE && !self.batch.is_empty()
    }

    /// The task that goes next.
    pub fn front(&self) -> Option<K> {
        self.get(0)
    }

    /// The task at this position of the order.
    pub fn get(&self, at: usize) -> Option<K> {
        let (first, second) = match self.batch_goes_first() {
            true => (&self.batch, &self.interactive),
            false => (&self.interactive, &self.batch),
        };
        first.get(at).or_else(|| second.get(at - first.len())).copied()
    }

    /// All tasks, in the order of arrival within each kind.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = K> {
        self.interactive.iter().chain(&self.batch).copied()
    }

    /// Takes out a task that is served. False if it is not here.
    pub fn take(&mut self, task: K) -> bool {
        let batch_waits = !self.batch.is_empty();
        if remove_from(&mut self.interactive, task) {
            self.consecutive_interactive += u32::from(batch_waits);
            return true;
        }
        let was_here = remove_from(&mut self.batch, task);
        if was_here {
            self.consecutive_interactive = 0;
        }
        was_here
    }

    /// Removes a task without serving it: it was moved or cancelled. False if it is not here.
    pub fn remove(&mut self, task: K) -> bool {
        let was_here =
            remove_from(&mut self.interactive, task) || remove_from(&mut self.batch, task);
        if self.batch.is_empty() {
            self.consecutive_interactive = 0;
        }
        was_here
    }
}

fn remove_from<K: Copy + Eq>(queue: &mut VecDeque<K>, task: K) -> bool {
    // The first is served, the last is stolen; only a cancelled task is somewhere between.
    let at = match queue.front() {
        Some(first) if *first == task => Some(0),
        _ => queue.iter().rposition(|other| *other == task),
    };
    at.and_then(|at| queue.remove(at)).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn task_is_inserted_before_later_ones_of_its_kind() {
        let mut queue = FairQueue::default();
        for task in [3, 1, 2, 5, 4] {
            queue.insert(task, false, |other| task < other);
        }
        queue.insert(0, true, |other| 0 < other);
        assert_eq!(queue.iter().collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn every_fifth_task_is_a_batch_task() {
        let mut queue = FairQueue::default();
        (0..3).for_each(|task| queue.push(task, false));
        (10..20).for_each(|task| queue.push(task, true));
        assert!(queue.remove(19) && !queue.remove(19), "removed once");
        let mut order = Vec::new();
        while let Some(next) = queue.front() {
            let all: Vec<u32> = (0..queue.len()).filter_map(|at| queue.get(at)).collect();
            assert_eq!((all.len(), all[0]), (queue.len(), next));
            assert!(queue.take(next));
            order.push(next);
        }
        assert_eq!(order, [10, 11, 12, 13, 0, 14, 15, 16, 17, 1, 18, 2]);
    }
}
