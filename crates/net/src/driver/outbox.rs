//! Events on their way to the node. The network never waits for the node: if it reads too slowly, the oldest events
//! are dropped and counted.

use std::collections::VecDeque;

use tokio::sync::mpsc;

use crate::figures::Figures;
use crate::handle::NetEvent;

/// Events held back beyond the channel's own: a burst of a few thousand peers that come at once.
const MAX_WAITING: usize = 8_192;

pub(super) struct Outbox {
    events: mpsc::Sender<NetEvent>,
    waiting: VecDeque<NetEvent>,
    figures: Figures,
}

impl Outbox {
    pub(super) fn new(events: mpsc::Sender<NetEvent>, figures: Figures) -> Outbox {
        Outbox { events, waiting: VecDeque::new(), figures }
    }

    pub(super) fn push(&mut self, event: NetEvent) {
        if self.waiting.len() >= MAX_WAITING {
            self.waiting.pop_front();
            self.figures.lost_events.inc();
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
