//! Gossip on `hypha/worker`: announcements, farewells, adverts and their ends, checked before they are forwarded.

use std::time::Instant;

use hypha_model::{AdvertId, NodeRole};
use hypha_wire::market::Advert;
use hypha_wire::record::{AdvertClosedRecord, AdvertRecord, SignedKind, SignedRecord};
use hypha_wire::{Message, decode, encode};
use libp2p::PeerId;
use libp2p::gossipsub::{Event, MessageAcceptance, PublishError};

use super::Driver;
use super::directory::{found_worker, read_addresses, write_addresses};
use crate::behaviour::topic;
use crate::handle::NetEvent;
use crate::metrics::RecordSource;
use crate::rate::RateLimiter;
use crate::statement::{Statement, author_of, sign, unix_ms};

/// Messages that an author may send in a second, and at once: it announces itself and changes now and then.
const PER_AUTHOR: (u32, u32) = (1, 20);
/// Adverts and their ends that a scheduler may send in a second, and at once. A scheduler with some jobs that look for
/// workers advertises a few times a second, and each advert has an end, so ten are five adverts; a restart with a dozen
/// waiting jobs begins with a burst. Each costs every node of the network a signature check and some kilobytes, and a
/// scheduler that sends more only delays its own: they are ignored, and its machine advertises again after a backoff.
/// They have buckets of their own, so that adverts and announcements do not use up each other's.
const ADVERTS_PER_AUTHOR: (u32, u32) = (10, 40);
/// Messages that a neighbour may forward: a gateway forwards those of all nodes, also when all reconnect at once.
const PER_NEIGHBOUR: (u32, u32) = (200, 4_000);
/// Authors and neighbours whose rates are remembered.
const MAX_RATED_PEERS: usize = 16_384;

pub(super) struct Gossip {
    authors: RateLimiter<PeerId>,
    adverts: RateLimiter<PeerId>,
    neighbours: RateLimiter<PeerId>,
}

impl Gossip {
    pub(super) fn new() -> Gossip {
        Gossip {
            authors: RateLimiter::new(PER_AUTHOR.0, PER_AUTHOR.1, MAX_RATED_PEERS),
            adverts: RateLimiter::new(ADVERTS_PER_AUTHOR.0, ADVERTS_PER_AUTHOR.1, MAX_RATED_PEERS),
            neighbours: RateLimiter::new(PER_NEIGHBOUR.0, PER_NEIGHBOUR.1, MAX_RATED_PEERS),
        }
    }
}

impl Driver {
    /// Sends `signed` to all peers; returns whether there were any.
    pub(super) fn gossip(&mut self, signed: &SignedRecord) -> bool {
        let Ok(bytes) = encode(signed) else { return false };
        match self.swarm.behaviour_mut().gossip.publish(topic(), bytes) {
            Ok(_) | Err(PublishError::Duplicate) => true,
            Err(error) => {
                tracing::debug!("no peers to gossip to yet: {error}");
                false
            }
        }
    }

    /// Sends an advert to all peers.
    pub(super) fn publish_advert(&mut self, advert: Advert) {
        let record = AdvertRecord {
            peer: self.own().to_bytes(),
            organisation: self.gatekeeper.credentials().pki.own().organisation.clone(),
            issued_unix_ms: unix_ms(),
            advert,
            addresses: write_addresses(&self.own_addresses()),
        };
        self.gossip_of_market(SignedKind::Advert, &record);
    }

    /// Sends the end of an advert to all peers.
    pub(super) fn close_advert(&mut self, advert: AdvertId) {
        let (peer, issued_unix_ms) = (self.own().to_bytes(), unix_ms());
        let record = AdvertClosedRecord { peer, issued_unix_ms, advert };
        self.gossip_of_market(SignedKind::AdvertClosed, &record);
    }

    fn gossip_of_market<M: Message>(&mut self, kind: SignedKind, record: &M) {
        let own = self.own();
        // Every other node would ignore it.
        if !self.gossip.adverts.take(own, Instant::now()) {
            return tracing::debug!("an advert is not sent: too many were sent within seconds");
        }
        match sign(&self.gatekeeper.credentials().pki, kind, record) {
            Ok(signed) => drop(self.gossip(&signed)),
            Err(error) => tracing::warn!("cannot send an advert: {error}"),
        }
    }

    pub(super) fn on_gossip(&mut self, event: Event) {
        let Event::Message { propagation_source, message_id, message } = event else { return };
        let acceptance = self.validate_gossip(propagation_source, &message.data);
        if !matches!(acceptance, MessageAcceptance::Accept) {
            self.count_refused(RecordSource::Gossip);
        }
        self.swarm.behaviour_mut().gossip.report_message_validation_result(
            &message_id,
            &propagation_source,
            acceptance,
        );
    }

    /// Invalid bytes are the fault of the neighbour, which should not have forwarded them; a message that is merely
    /// over the rate or too old is not.
    fn validate_gossip(&mut self, neighbour: PeerId, bytes: &[u8]) -> MessageAcceptance {
        let now = Instant::now();
        if !self.gossip.neighbours.take(neighbour, now) {
            return MessageAcceptance::Ignore;
        }
        let Ok(signed) = decode::<SignedRecord>(bytes) else { return MessageAcceptance::Reject };
        let credentials = self.gatekeeper.credentials();
        let verified = match self.verifier.verify(&credentials.pki, &signed) {
            Ok(verified) => verified,
            Err(error) => {
                tracing::debug!(%neighbour, "rejected gossip: {error}");
                return match error {
                    crate::statement::StatementError::Age(_) => MessageAcceptance::Ignore,
                    _ => MessageAcceptance::Reject,
                };
            }
        };
        let author = author_of(&verified);
        let limiter = match &verified.statement {
            Statement::Advert(_) | Statement::AdvertClosed(_) => &mut self.gossip.adverts,
            _ => &mut self.gossip.authors,
        };
        if !limiter.take(author, now) {
            return MessageAcceptance::Ignore;
        }
        match &verified.statement {
            Statement::Worker(_) if self.directory.has_left(&verified) => MessageAcceptance::Ignore,
            Statement::Worker(_) => {
                if let Some(found) = found_worker(&verified) {
                    self.outbox.push(NetEvent::WorkerAnnounced(found));
                }
                MessageAcceptance::Accept
            }
            Statement::Farewell(farewell) => {
                self.directory.record_farewell(author, farewell.sequence);
                let store = self.swarm.behaviour_mut().kad.store_mut();
                store.apply_farewell(&author, farewell.sequence);
                self.outbox.push(NetEvent::NodeLeft(author));
                MessageAcceptance::Accept
            }
            Statement::Advert(record) => {
                // All nodes forward adverts, and only workers answer them.
                if self.settings.role == NodeRole::Worker {
                    self.outbox.push(NetEvent::AdvertReceived {
                        from: author,
                        organisation: verified.author.organisation.clone(),
                        addresses: read_addresses(&record.addresses),
                        advert: Box::new(record.advert.clone()),
                    });
                }
                MessageAcceptance::Accept
            }
            Statement::AdvertClosed(record) => {
                if self.settings.role == NodeRole::Worker {
                    let advert = record.advert;
                    self.outbox.push(NetEvent::AdvertClosed { from: author, advert });
                }
                MessageAcceptance::Accept
            }
            Statement::Dataset(_) => MessageAcceptance::Reject,
        }
    }
}
