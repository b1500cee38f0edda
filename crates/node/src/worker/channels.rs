//! The channels that schedulers open to this worker: their messages go to the loop, and its messages to them.

use std::sync::Arc;

use hypha_engine::FromWorker;
use hypha_model::Name;
use hypha_net::{AcceptedChannel, scheduler_id};
use hypha_wire::dispatch::TaskProtocol;
use tokio::sync::mpsc;

use super::host::WorkerInput;
use super::runners::Runners;
use crate::channel::{MAX_QUEUED_MESSAGES, exchange_messages};

/// Messages for a scheduler are queued here.
pub(super) struct Outbox {
    /// The number of its channel.
    pub(super) number: u64,
    /// The scheduler's organisation, if it can be a name.
    pub(super) organisation: Option<Name>,
    pub(super) messages: mpsc::Sender<FromWorker>,
}

/// Serves channels as schedulers open them.
pub(super) async fn serve(
    mut channels: mpsc::Receiver<AcceptedChannel<TaskProtocol>>,
    events: mpsc::Sender<WorkerInput>,
    runners: Arc<Runners>,
) {
    let mut number = 0;
    while let Some(channel) = channels.recv().await {
        number += 1;
        runners.add_scheduler(scheduler_id(&channel.peer), channel.peer);
        tokio::spawn(serve_one(channel, number, events.clone()));
    }
}

async fn serve_one(
    channel: AcceptedChannel<TaskProtocol>,
    number: u64,
    events: mpsc::Sender<WorkerInput>,
) {
    let peer = channel.peer;
    let scheduler = scheduler_id(&peer);
    let (messages, waiting) = mpsc::channel(MAX_QUEUED_MESSAGES);
    let organisation = channel.organisation.parse().ok();
    let outbox = Outbox { number, organisation, messages };
    let opened = WorkerInput::ChannelOpened(scheduler, outbox);
    if events.send(opened).await.is_err() {
        return;
    }
    let organisation = &channel.organisation;
    tracing::info!(%peer, %scheduler, organisation, "a scheduler has opened a channel");
    let take = |received| {
        let sent = events.send(WorkerInput::Received(scheduler, received));
        async { sent.await.is_ok() }
    };
    let why = exchange_messages(channel, waiting, take).await;
    tracing::info!(%peer, %scheduler, "a scheduler's channel has ended: {why}");
    let _ = events.send(WorkerInput::ChannelClosed(scheduler, number)).await;
}
