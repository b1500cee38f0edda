//! Notices peers whose key is used by several nodes at once: a copied key, or two machines from one image.
//!
//! Each process of a node sends a random number of its own with its agent string. Two connections of one peer with
//! different numbers belong to two processes, once both have responded after both were identified: a connection that
//! a restarted node left behind responds no more. Peers do not tell the nodes themselves, whose operators see it in
//! the logs and metrics of the nodes that they connect to, gateways above all.

use std::collections::{HashMap, HashSet};
use std::time::Instant;

use libp2p::PeerId;
use libp2p::swarm::ConnectionId;

/// Separates the number from the rest of the agent string.
const MARK: &str = " incarnation/";

/// The agent string of a process.
pub(crate) fn agent(program: &str, incarnation: Option<u64>) -> String {
    match incarnation {
        Some(incarnation) => format!("{program}{MARK}{incarnation:016x}"),
        None => program.to_owned(),
    }
}

fn incarnation_of(agent: &str) -> Option<u64> {
    u64::from_str_radix(agent.rsplit_once(MARK)?.1, 16).ok()
}

/// The connections of identified peers. Entries end with their connections, whose number is limited.
#[derive(Default)]
pub(super) struct SharedKeys {
    connections: HashMap<ConnectionId, IdentifiedConnection>,
    shared: HashSet<PeerId>,
}

struct IdentifiedConnection {
    peer: PeerId,
    incarnation: u64,
    since: Instant,
    responded: Option<Instant>,
}

impl SharedKeys {
    /// A peer has sent its agent string; it may do so repeatedly.
    pub(super) fn identified(
        &mut self,
        now: Instant,
        connection: ConnectionId,
        peer: PeerId,
        agent: &str,
    ) {
        let Some(incarnation) = incarnation_of(agent) else { return };
        self.connections.entry(connection).or_insert(IdentifiedConnection {
            peer,
            incarnation,
            since: now,
            responded: None,
        });
    }

    /// The peer has responded on a connection. Returns it if its key has just turned out to be shared.
    pub(super) fn responded(&mut self, now: Instant, connection: ConnectionId) -> Option<PeerId> {
        let one = self.connections.get_mut(&connection)?;
        one.responded = Some(now);
        let peer = one.peer;
        (self.is_shared(peer) && self.shared.insert(peer)).then_some(peer)
    }

    pub(super) fn closed(&mut self, connection: ConnectionId) {
        if let Some(closed) = self.connections.remove(&connection)
            && self.shared.contains(&closed.peer)
            && !self.is_shared(closed.peer)
        {
            self.shared.remove(&closed.peer);
        }
    }

    /// Peers whose keys are shared at present.
    pub(super) fn count(&self) -> usize {
        self.shared.len()
    }

    fn is_shared(&self, peer: PeerId) -> bool {
        let of_peer = || self.connections.values().filter(|one| one.peer == peer);
        let after = |one: &IdentifiedConnection, other: &IdentifiedConnection| {
            one.responded.is_some_and(|at| at > other.since)
        };
        of_peer().any(|one| {
            of_peer().any(|other| {
                one.incarnation != other.incarnation && after(one, other) && after(other, one)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const PROGRAM: &str = "hypha/1";

    /// Events in order, each a second after the one before: (connection, incarnation to identify; `None` to respond).
    fn noticed(events: &[(usize, Option<u64>)]) -> (usize, SharedKeys) {
        let (start, peer, mut keys) = (Instant::now(), PeerId::random(), SharedKeys::default());
        let count = events.iter().zip(1..).filter(|((connection, incarnation), second)| {
            let now = start + Duration::from_secs(*second);
            let connection = ConnectionId::new_unchecked(*connection);
            match incarnation {
                Some(incarnation) => {
                    keys.identified(now, connection, peer, &agent(PROGRAM, Some(*incarnation)));
                    false
                }
                None => keys.responded(now, connection).is_some(),
            }
        });
        (count.count(), keys)
    }

    #[test]
    fn two_processes_are_noticed_once_both_have_responded() {
        let (count, mut keys) = noticed(&[
            (1, Some(7)),
            (1, None),
            (2, Some(8)),
            (2, None),
            (1, None),
            (2, None),
            (1, None),
        ]);
        assert_eq!((count, keys.count()), (1, 1));
        keys.closed(ConnectionId::new_unchecked(2));
        assert_eq!(keys.count(), 0);
        keys.closed(ConnectionId::new_unchecked(1));
        assert!(keys.connections.is_empty());
    }

    #[test]
    fn several_connections_of_one_process_and_restarts_are_not_noticed() {
        for events in [
            // A relayed and a direct connection; identification may be repeated.
            &[(1, Some(7)), (2, Some(7)), (1, None), (2, None), (1, Some(7)), (1, None)][..],
            // A restart whose old connection was not closed yet.
            &[(1, Some(7)), (1, None), (2, Some(8)), (2, None), (2, None)],
            // One has never responded.
            &[(1, Some(7)), (2, Some(8)), (2, None)],
        ] {
            assert_eq!(noticed(events).0, 0, "{events:?}");
        }
    }

    #[test]
    fn agents_without_an_incarnation_are_ignored() {
        assert_eq!(incarnation_of(&agent(PROGRAM, Some(0xfe))), Some(0xfe));
        for text in [&agent(PROGRAM, None), "", "x incarnation/", "x incarnation/zz"] {
            assert_eq!(incarnation_of(text), None, "{text}");
        }
    }
}
