//! The latest workers that left, so that they need not be learned again.

use std::collections::BTreeMap;

use hypha_model::WorkerId;

use crate::workers::WorkerFactor;

/// Learned factors of workers that left, by id, and by age to drop the oldest.
#[derive(Clone, Debug, Default)]
pub(crate) struct DepartedWorkers {
    by_id: BTreeMap<WorkerId, (u64, WorkerFactor)>,
    by_age: BTreeMap<u64, WorkerId>,
    next: u64,
}

impl DepartedWorkers {
    /// Remembers a worker as the latest that left.
    pub(crate) fn insert(&mut self, id: WorkerId, learned: WorkerFactor) {
        self.remove(id);
        self.by_id.insert(id, (self.next, learned));
        self.by_age.insert(self.next, id);
        self.next += 1;
    }

    /// Removes and returns what was learned of a worker.
    pub(crate) fn remove(&mut self, id: WorkerId) -> Option<WorkerFactor> {
        let (age, learned) = self.by_id.remove(&id)?;
        self.by_age.remove(&age);
        Some(learned)
    }

    /// Drops the oldest until at most `count` are left.
    pub(crate) fn keep(&mut self, count: usize) {
        while self.by_id.len() > count {
            let Some((_, oldest)) = self.by_age.pop_first() else { return };
            self.by_id.remove(&oldest);
        }
    }

    /// All, the oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (WorkerId, WorkerFactor)> {
        self.by_age.values().filter_map(|id| Some((*id, self.by_id.get(id)?.1)))
    }
}
