//! What is going to happen, in the order of time; what happens at once, in the order it was entered.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use hypha_engine::{Command, FromWorker, RunId, ToWorker};
use hypha_model::Time;

use super::back_ends::HttpEvent;
use super::clients::Requester;
use super::faults::Fault;
use super::links::Link;
use super::nodes::Node;

/// Something that happens. `life` and `link` name the process of the receiver, and the connection, that it is meant for.
pub(super) enum Happening {
    Submit { index: usize },
    Requested { scheduler: usize, life: u32, from: Requester, command: Command },
    Found { scheduler: usize, worker: usize },
    ToWorker { worker: usize, scheduler: usize, link: Link, message: ToWorker },
    FromWorker { scheduler: usize, worker: usize, link: Link, message: FromWorker },
    Disconnected { scheduler: usize, life: u32, worker: usize },
    Relinked { scheduler: usize, life: u32, worker: usize },
    RunEnds { worker: usize, machine: u32, id: RunId },
    Http { worker: usize, life: u32, event: HttpEvent },
    Turn(Node, Turn),
    Fault(Fault),
}

/// What a node has set itself.
#[derive(Clone, Copy, Debug)]
pub(super) enum Turn {
    /// Its machine wanted to be woken at this time.
    Wakes { at: Time },
    /// The commit of this machine ends.
    Commits { machine: u32 },
    /// Its disk works again, and a machine can begin from what is durable.
    Restarts,
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
    /// The node whose process must be running for it to happen.
    pub(super) fn wants(&self) -> Option<Node> {
        match *self {
            Happening::ToWorker { worker, .. }
            | Happening::RunEnds { worker, .. }
            | Happening::Fault(Fault::StopWorker { worker }) => Some(Node::Worker(worker)),
            Happening::Requested { scheduler, .. }
            | Happening::Found { scheduler, .. }
            | Happening::FromWorker { scheduler, .. }
            | Happening::Disconnected { scheduler, .. }
            | Happening::Relinked { scheduler, .. } => Some(Node::Scheduler(scheduler)),
            Happening::Turn(node, _) => Some(node),
            // Back ends have a life of their own.
            Happening::Http {
                event: HttpEvent::Arrives(_) | HttpEvent::JobEnds { .. }, ..
            } => None,
            Happening::Http { worker, .. } => Some(Node::Worker(worker)),
            Happening::Submit { .. } | Happening::Fault(_) => None,
        }
    }

    pub(super) fn describe(&self) -> String {
        match self {
            Happening::Submit { index } => format!("client submits task {index}"),
            Happening::Requested { scheduler, from, .. } => {
                format!("scheduler {scheduler} hears from {from:?} late")
            }
            Happening::Found { scheduler, worker } => {
                format!("scheduler {scheduler} finds worker {worker}")
            }
            Happening::ToWorker { worker, scheduler, message, .. } => {
                format!("worker {worker} hears from scheduler {scheduler}: {message:?}")
            }
            Happening::FromWorker { scheduler, worker, message, .. } => {
                format!("scheduler {scheduler} hears from worker {worker}: {message:?}")
            }
            Happening::Disconnected { scheduler, worker, .. } => {
                format!("scheduler {scheduler} loses its connection to worker {worker}")
            }
            Happening::Relinked { scheduler, worker, .. } => {
                format!("scheduler {scheduler} has another connection to worker {worker}")
            }
            Happening::RunEnds { worker, id, .. } => {
                format!("worker {worker}: the run {:?} ends", id.fence)
            }
            Happening::Http { worker, event, .. } => {
                format!("back end of worker {worker}: {event:?}")
            }
            Happening::Turn(node, Turn::Wakes { .. }) => format!("{node} wakes"),
            Happening::Turn(node, Turn::Commits { .. }) => format!("{node} commits"),
            Happening::Turn(node, Turn::Restarts) => format!("{node} begins anew"),
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
