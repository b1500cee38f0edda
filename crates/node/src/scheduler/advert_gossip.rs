//! Sends adverts and their ends by gossip, in the order in which the machine made them.

use std::sync::Arc;

use hypha_engine::Advert;
use hypha_model::AdvertId;
use hypha_net::Net;
use tokio::sync::mpsc;

/// Messages that wait for the network, which takes one within microseconds. The machine advertises again, so those
/// beyond are dropped.
const MAX_WAITING: usize = 256;

/// See the module documentation.
pub(super) struct AdvertGossip(mpsc::Sender<Message>);

enum Message {
    Advert(Arc<Advert>),
    Closed(AdvertId),
}

impl AdvertGossip {
    /// Sends until it is dropped.
    pub(super) fn start(net: Net) -> AdvertGossip {
        let (messages, mut waiting) = mpsc::channel(MAX_WAITING);
        tokio::spawn(async move {
            while let Some(message) = waiting.recv().await {
                match message {
                    Message::Advert(advert) => net.publish_advert((&*advert).into()).await,
                    Message::Closed(advert) => net.close_advert(advert).await,
                }
            }
        });
        AdvertGossip(messages)
    }

    pub(super) fn advertise(&self, advert: Arc<Advert>) {
        self.send(Message::Advert(advert));
    }

    pub(super) fn close(&self, advert: AdvertId) {
        self.send(Message::Closed(advert));
    }

    fn send(&self, message: Message) {
        if self.0.try_send(message).is_err() {
            tracing::debug!("an advert was dropped: too many wait for the network");
        }
    }
}
