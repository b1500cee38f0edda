//! Events queued for the node. The network never waits for the node: if it reads too slowly, the oldest events
//! are dropped and counted.

use std::collections::VecDeque;

use tokio::sync::mpsc;

use crate::handle::NetEvent;
use crate::metrics::Metrics;

/// Events queued beyond the channel's own: a burst of a few thousand peers that connect at once.
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

    /// Sends one event when the node has room; waits forever when there is none to send.
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
            // The receiver is dropped; the end of the commands will stop the driver.
            Err(_) => self.waiting.clear(),
        }
    }
}
