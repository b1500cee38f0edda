//! What is going to happen, in the order of time; what happens at once, in the order it was entered.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use hypha_engine::{FromWorker, RunId, ToWorker};
use hypha_model::Time;

use super::faults::Fault;

/// Something that happens. `life` names the life of the receiver that it was meant for.
pub(super) enum Happening {
    Submit { index: usize },
    ToWorker { worker: usize, scheduler: usize, life: u32, message: ToWorker },
    FromWorker { scheduler: usize, worker: usize, life: u32, message: FromWorker },
    SchedulerWakes { scheduler: usize, at: Time },
    WorkerWakes { worker: usize, at: Time },
    RunEnds { worker: usize, life: u32, id: RunId },
    Disconnected { scheduler: usize, life: u32, worker: usize },
    Fault(Fault),
}

#[derive(Default)]
pub(super) struct Agenda {
    heap: BinaryHeap<Entry>,
    serial: u64,
}

struct Entry {
    at: Time,
    serial: u64,
    happening: Happening,
}

impl Agenda {
    pub(super) fn add(&mut self, at: Time, happening: Happening) {
        self.serial += 1;
        self.heap.push(Entry { at, serial: self.serial, happening });
    }

    pub(super) fn next(&mut self) -> Option<(Time, Happening)> {
        self.heap.pop().map(|entry| (entry.at, entry.happening))
    }
}

impl Happening {
    /// The worker whose process must be running for it to happen.
    pub(super) fn wants_worker(&self) -> Option<usize> {
        match *self {
            Happening::ToWorker { worker, .. }
            | Happening::WorkerWakes { worker, .. }
            | Happening::RunEnds { worker, .. }
            | Happening::Fault(Fault::StopWorker { worker }) => Some(worker),
            _ => None,
        }
    }

    pub(super) fn describe(&self) -> String {
        match self {
            Happening::Submit { index } => format!("client submits task {index}"),
            Happening::ToWorker { worker, scheduler, message, .. } => {
                format!("worker {worker} hears from scheduler {scheduler}: {message:?}")
            }
            Happening::FromWorker { scheduler, worker, message, .. } => {
                format!("scheduler {scheduler} hears from worker {worker}: {message:?}")
            }
            Happening::SchedulerWakes { scheduler, .. } => format!("scheduler {scheduler} wakes"),
            Happening::WorkerWakes { worker, .. } => format!("worker {worker} wakes"),
            Happening::RunEnds { worker, id, .. } => {
                format!("worker {worker}: the run {:?} ends", id.fence)
            }
            Happening::Disconnected { scheduler, worker, .. } => {
                format!("scheduler {scheduler} loses its connection to worker {worker}")
            }
            Happening::Fault(fault) => format!("fault: {fault:?}"),
        }
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Entry) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Entry) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    /// Reversed: the heap gives the greatest, and the earliest is wanted.
    fn cmp(&self, other: &Entry) -> Ordering {
        (other.at, other.serial).cmp(&(self.at, self.serial))
    }
}
