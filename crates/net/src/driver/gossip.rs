//! Gossip on `hypha/worker`: announcements and farewells, checked before they are forwarded.

use std::time::Instant;

use hypha_wire::record::SignedRecord;
use hypha_wire::{decode, encode};
use libp2p::PeerId;
use libp2p::gossipsub::{Event, MessageAcceptance, PublishError};

use super::Driver;
use super::directory::found_worker;
use crate::behaviour::topic;
use crate::handle::NetEvent;
use crate::metrics::RecordSource;
use crate::rate::RateLimiter;
use crate::statement::{Statement, author_of};

/// Messages that an author may send in a second, and at once: it announces itself and changes now and then.
const PER_AUTHOR: (u32, u32) = (1, 20);
/// Messages that a neighbour may forward: a gateway forwards those of all nodes, also when all reconnect at once.
const PER_NEIGHBOUR: (u32, u32) = (200, 4_000);
/// Authors and neighbours whose rates are remembered.
const MAX_RATED_PEERS: usize = 16_384;

pub(super) struct Gossip {
    authors: RateLimiter<PeerId>,
    neighbours: RateLimiter<PeerId>,
}

impl Gossip {
    pub(super) fn new() -> Gossip {
        Gossip {
            authors: RateLimiter::new(PER_AUTHOR.0, PER_AUTHOR.1, MAX_RATED_PEERS),
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
        if !self.gossip.authors.take(author, now) {
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
            Statement::Dataset(_) => MessageAcceptance::Reject,
        }
    }
}
