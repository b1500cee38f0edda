//! Tasks that name the GPUs to run on: whether a worker has these, and has them free.

use hypha_model::{Requirement, Span};

use crate::capability::need_of;
use crate::member::Member;
use crate::{Placement, WorkerSlot};

/// How many workers are checked for a task that names GPUs, at less than a microsecond each. Where more have such GPUs
/// and none of these has them free, the task is accepted and waits.
const MAX_WORKERS_CHECKED: usize = 256;

/// Whether the GPUs that a task names can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamedGpus {
    /// On some worker they are free.
    Free,
    /// Every worker that has them has booked them.
    Taken,
    /// No available worker that could run the task has them.
    Unknown,
}

impl Placement {
    /// Whether a worker that could run a task with `requirement` has the GPUs that it names, and has them free.
    pub fn named_gpus(&self, requirement: &Requirement) -> NamedGpus {
        let need = need_of(requirement).ignoring_free_amounts();
        let max_rtt_s = self.preferences.max_rtt.map_or(f64::INFINITY, Span::as_secs_f64);
        let gpus_alone =
            Requirement { cpu_milli: 0, memory_bytes: 0, storage_bytes: 0, ..requirement.clone() };
        let mut have_them = 0;
        let mut is_free = |slot: WorkerSlot| {
            let could = |member: &&Member| {
                member.refuses_ever(requirement).is_none() && member.rtt_s <= max_rtt_s
            };
            let Some(member) = self.pool.member(slot).filter(could) else { return false };
            have_them += 1;
            member.in_flight.fits(&gpus_alone).is_ok() || have_them > MAX_WORKERS_CHECKED
        };
        let found = self.pool.trees().iter().enumerate().any(|(at, tree)| {
            let mut accept = |position| self.pool.slot_at(at, position).is_some_and(&mut is_free);
            tree.first_from(0, &need, &mut accept).is_some()
        });
        match (found, have_them) {
            (true, _) => NamedGpus::Free,
            (false, 0) => NamedGpus::Unknown,
            (false, _) => NamedGpus::Taken,
        }
    }
}
