//! Events on their way to the node. The network never waits for the node: if it reads too slowly, the oldest events
//! are dropped and counted.

use std::collections::VecDeque;

use tokio::sync::mpsc;

use crate::handle::NetEvent;
use crate::metrics::Metrics;

/// Events held back beyond the channel's own: a burst of a few thousand peers that come at once.
const MAX_WAITING: usize = 8_192;

pub(super) struct Outbox {
    events: mpsc::Sender<NetEvent>,
    waiting: VecDeque<NetEvent>,
    metrics: Metrics,
}

impl Outbox {
    pub(super) fn new(events: mpsc::Sender<NetEvent>, metrics: Metrics) -> Outbox {
        Outbox { events, waiting: VecDeque::new(), metrics }
    }

    pub(super) fn push(&mut self, event: NetEvent) {
        if self.waiting.len() >= MAX_WAITING {
            self.waiting.pop_front();
            self.metrics.lost_events.inc();
        }
        self.waiting.push_back(event);
    }

    /// Hands one event over when the node has room; waits forever when there is none to hand over.
    pub(super) async fn flush(&mut self) {
        if self.waiting.is_empty() {
            return std::future::pending().await;
        }
        match self.events.reserve().await {
            Ok(room) => {
                if let Some(event) = self.waiting.pop_front() {
                    room.send(event);
                }
            }
            // Nobody listens any more; the commands' end will stop the driver.
            Err(_) => self.waiting.clear(),
        }
    }
}
