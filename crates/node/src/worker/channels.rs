//! The channels that schedulers open to this worker: what they say goes to the loop, what it says to them.

use std::sync::Arc;

use hypha_engine::FromWorker;
use hypha_net::{Taken, scheduler_id};
use hypha_wire::dispatch::Tasks;
use tokio::sync::mpsc;

use super::driver::Event;
use super::runners::Runners;
use crate::channel::{MAX_WAITING, carry};

/// Where messages for a scheduler go.
pub(super) struct Outbox {
    /// Which channel it belongs to.
    pub(super) number: u64,
    pub(super) messages: mpsc::Sender<FromWorker>,
}

/// Serves channels as they come.
pub(super) async fn serve(
    mut channels: mpsc::Receiver<Taken<Tasks>>,
    events: mpsc::Sender<Event>,
    runners: Arc<Runners>,
) {
    let mut number = 0;
    while let Some(channel) = channels.recv().await {
        number += 1;
        runners.know(scheduler_id(&channel.peer), channel.peer);
        tokio::spawn(serve_one(channel, number, events.clone()));
    }
}

async fn serve_one(channel: Taken<Tasks>, number: u64, events: mpsc::Sender<Event>) {
    let peer = channel.peer;
    let scheduler = scheduler_id(&peer);
    let (messages, waiting) = mpsc::channel(MAX_WAITING);
    let opened = Event::Opened(scheduler, Outbox { number, messages });
    if events.send(opened).await.is_err() {
        return;
    }
    tracing::info!(%peer, %scheduler, "a scheduler has opened a channel");
    let take = |said| {
        let sent = events.send(Event::Said(scheduler, said));
        async { sent.await.is_ok() }
    };
    let why = carry(channel, waiting, take).await;
    tracing::info!(%peer, %scheduler, "a scheduler's channel has ended: {why}");
    let _ = events.send(Event::Closed(scheduler, number)).await;
}
