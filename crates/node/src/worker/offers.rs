//! Sends offers to schedulers that have no channel to this worker: as requests, to the addresses in their adverts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hypha_engine::Offer;
use hypha_model::SchedulerId;
use hypha_net::{Multiaddr, Net, PeerId, scheduler_id};
use tokio::sync::Semaphore;

/// Schedulers whose addresses are remembered: as many as the machine knows.
const MAX_ADVERTISERS: usize = 1_024;

/// Offers that are being sent at once. Each may have to connect first; a worker offers to a few schedulers at a time.
const MAX_IN_FLIGHT: usize = 64;

/// How long an offer may take to arrive at most, connecting included: no scheduler collects offers for longer.
const MAX_SENDING: Duration = Duration::from_secs(30);

/// See the module documentation.
pub(super) struct OfferSender {
    net: Net,
    advertisers: BTreeMap<SchedulerId, (PeerId, Vec<Multiaddr>)>,
    in_flight: Arc<Semaphore>,
}

impl OfferSender {
    pub(super) fn new(net: Net) -> OfferSender {
        let in_flight = Arc::new(Semaphore::new(MAX_IN_FLIGHT));
        OfferSender { net, advertisers: BTreeMap::new(), in_flight }
    }

    /// Remembers where a scheduler that advertises is reached.
    pub(super) fn remember(&mut self, peer: PeerId, addresses: Vec<Multiaddr>) -> SchedulerId {
        let scheduler = scheduler_id(&peer);
        if self.advertisers.len() >= MAX_ADVERTISERS && !self.advertisers.contains_key(&scheduler) {
            self.advertisers.pop_first();
        }
        self.advertisers.insert(scheduler, (peer, addresses));
        scheduler
    }

    /// Sends an offer, or drops it: its reservation then ends by itself.
    pub(super) fn send(&self, to: SchedulerId, offer: &Offer) {
        let Some((peer, addresses)) = self.advertisers.get(&to).cloned() else { return };
        let Ok(permit) = Arc::clone(&self.in_flight).try_acquire_owned() else {
            return tracing::debug!(scheduler = %to, "an offer was dropped: too many are being sent");
        };
        let (net, offer_id) = (self.net.clone(), offer.id);
        let deadline = Duration::from_micros(offer.reserved_for.as_micros()).min(MAX_SENDING);
        let offer = offer.into();
        tokio::spawn(async move {
            let _permit = permit;
            match net.send_offer(peer, addresses, offer, deadline).await {
                Ok(()) => tracing::debug!(%peer, offer = %offer_id, "an offer was sent"),
                Err(error) => {
                    tracing::info!(%peer, offer = %offer_id, "an offer was not received: {error}");
                }
            }
        });
    }
}
