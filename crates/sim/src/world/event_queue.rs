//! Future events in order of time; simultaneous ones in the order in which they were added.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use hypha_engine::{Command, FromWorker, RunId, ToWorker};
use hypha_model::Time;

use super::back_ends::HttpEvent;
use super::clients::Requester;
use super::faults::Fault;
use super::links::Link;
use super::market::MarketWorldEvent;
use super::nodes::Node;

/// An event. `incarnation` and `link` name the process of the receiver, and the connection, that it is meant for.
pub(super) enum WorldEvent {
    Submit { index: usize },
    Requested { scheduler: usize, incarnation: u32, from: Requester, command: Command },
    Found { scheduler: usize, worker: usize },
    ToWorker { worker: usize, scheduler: usize, link: Link, message: ToWorker },
    FromWorker { scheduler: usize, worker: usize, link: Link, message: FromWorker },
    Disconnected { scheduler: usize, incarnation: u32, worker: usize },
    Relinked { scheduler: usize, incarnation: u32, worker: usize },
    RunEnds { worker: usize, machine: u32, id: RunId },
    Http { worker: usize, incarnation: u32, event: HttpEvent },
    Node(Node, NodeEvent),
    Fault(Fault),
    Market(MarketWorldEvent),
}

/// An event that a node scheduled for itself.
#[derive(Clone, Copy, Debug)]
pub(super) enum NodeEvent {
    /// Its machine requested to be woken at this time.
    Wake { at: Time },
    /// The commit of this machine ends.
    CommitEnds { machine: u32 },
    /// Its disk works again, and a machine can begin from what is durable.
    Restart,
}

#[derive(Default)]
pub(super) struct EventQueue {
    heap: BinaryHeap<Entry>,
    serial: u64,
}

struct Entry {
    at: Time,
    serial: u64,
    event: WorldEvent,
}

impl EventQueue {
    pub(super) fn add(&mut self, at: Time, event: WorldEvent) {
        self.serial += 1;
        self.heap.push(Entry { at, serial: self.serial, event });
    }

    pub(super) fn next(&mut self) -> Option<(Time, WorldEvent)> {
        self.heap.pop().map(|entry| (entry.at, entry.event))
    }
}

impl WorldEvent {
    /// The node whose process must be running for it to happen.
    pub(super) fn required_node(&self) -> Option<Node> {
        match *self {
            WorldEvent::ToWorker { worker, .. }
            | WorldEvent::RunEnds { worker, .. }
            | WorldEvent::Fault(Fault::StopWorker { worker }) => Some(Node::Worker(worker)),
            WorldEvent::Requested { scheduler, .. }
            | WorldEvent::Found { scheduler, .. }
            | WorldEvent::FromWorker { scheduler, .. }
            | WorldEvent::Disconnected { scheduler, .. }
            | WorldEvent::Relinked { scheduler, .. } => Some(Node::Scheduler(scheduler)),
            WorldEvent::Node(node, _) => Some(node),
            // Back ends outlive their workers.
            WorldEvent::Http {
                event: HttpEvent::CallArrives(_) | HttpEvent::TaskEnds { .. },
                ..
            } => None,
            WorldEvent::Http { worker, .. } => Some(Node::Worker(worker)),
            WorldEvent::Market(ref event) => event.required_node(),
            WorldEvent::Submit { .. } | WorldEvent::Fault(_) => None,
        }
    }

    pub(super) fn describe(&self) -> String {
        match self {
            WorldEvent::Submit { index } => format!("client submits task {index}"),
            WorldEvent::Requested { scheduler, from, .. } => {
                format!("scheduler {scheduler} receives a delayed request from {from:?}")
            }
            WorldEvent::Found { scheduler, worker } => {
                format!("scheduler {scheduler} finds worker {worker}")
            }
            WorldEvent::ToWorker { worker, scheduler, message, .. } => {
                format!("worker {worker} receives from scheduler {scheduler}: {message:?}")
            }
            WorldEvent::FromWorker { scheduler, worker, message, .. } => {
                format!("scheduler {scheduler} receives from worker {worker}: {message:?}")
            }
            WorldEvent::Disconnected { scheduler, worker, .. } => {
                format!("scheduler {scheduler} loses its connection to worker {worker}")
            }
            WorldEvent::Relinked { scheduler, worker, .. } => {
                format!("scheduler {scheduler} has another connection to worker {worker}")
            }
            WorldEvent::RunEnds { worker, id, .. } => {
                format!("worker {worker}: the run {:?} ends", id.fence)
            }
            WorldEvent::Http { worker, event, .. } => {
                format!("back end of worker {worker}: {event:?}")
            }
            WorldEvent::Node(node, NodeEvent::Wake { .. }) => format!("{node} wakes"),
            WorldEvent::Node(node, NodeEvent::CommitEnds { .. }) => format!("{node} commits"),
            WorldEvent::Node(node, NodeEvent::Restart) => format!("{node} recovers"),
            WorldEvent::Fault(fault) => format!("fault: {fault:?}"),
            WorldEvent::Market(event) => event.describe(),
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
    /// Reversed: the heap returns the greatest, and the earliest is needed.
    fn cmp(&self, other: &Entry) -> Ordering {
        (other.at, other.serial).cmp(&(self.at, self.serial))
    }
}
