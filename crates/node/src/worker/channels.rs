//! The channels that schedulers open to this worker: what they say goes to the loop, what it says to them.

use std::io;
use std::sync::Arc;

use hypha_engine::{FromWorker, ToWorker};
use hypha_net::{ChannelReader, WorkerChannel, scheduler_id};
use hypha_wire::dispatch::Orders;
use tokio::sync::mpsc;

use super::driver::Event;
use super::runners::Runners;
use crate::frames;

/// Messages that wait for one scheduler: some for each attempt that can be here, and pieces of results.
const MAX_WAITING: usize = 16_384;

/// Where messages for a scheduler go.
pub(super) struct Outbox {
    /// Which channel it belongs to.
    pub(super) number: u64,
    pub(super) messages: mpsc::Sender<FromWorker>,
}

/// Serves channels as they come.
pub(super) async fn serve(
    mut channels: mpsc::Receiver<WorkerChannel>,
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

async fn serve_one(channel: WorkerChannel, number: u64, events: mpsc::Sender<Event>) {
    let scheduler = scheduler_id(&channel.peer);
    let (messages, waiting) = mpsc::channel(MAX_WAITING);
    let opened = Event::Opened(scheduler, Outbox { number, messages });
    if events.send(opened).await.is_err() {
        return;
    }
    tracing::info!(peer = %channel.peer, %scheduler, "a scheduler has opened a channel");
    let ended = tokio::select! {
        ended = frames::write(channel.reports, waiting) => ended,
        ended = read(channel.orders, scheduler, &events) => ended,
    };
    let why = ended.err().map_or_else(|| "it was closed".to_owned(), |error| error.to_string());
    tracing::info!(peer = %channel.peer, %scheduler, "a scheduler's channel has ended: {why}");
    let _ = events.send(Event::Closed(scheduler, number)).await;
}

async fn read(
    mut orders: ChannelReader<Orders>,
    scheduler: hypha_model::SchedulerId,
    events: &mpsc::Sender<Event>,
) -> io::Result<()> {
    while let Some(orders) = orders.next().await? {
        let messages = orders.orders.into_iter().map(ToWorker::from).collect();
        if events.send(Event::Said(scheduler, messages)).await.is_err() {
            break;
        }
    }
    Ok(())
}
