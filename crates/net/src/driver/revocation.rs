//! Revocation lists between nodes: this node offers those that it uses, and follows those of its gateways.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use hypha_pki::{LearnedCrls, Pki, SignedCrl};
use hypha_wire::request::{Refusal, RefusalKind, ResponseBody};
use hypha_wire::revocation::{
    MAX_LISTS, MAX_PART_BYTES, RevocationEntry, RevocationIndex, RevocationPartQuery,
    RevocationQuery,
};
use libp2p::PeerId;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use super::{Command, Driver};
use crate::crl_follower;

/// How long a request for the index is held back while nothing changes: well within its deadline.
const MAX_HOLD: Duration = Duration::from_secs(30);

pub(super) struct Revocation {
    offered: watch::Sender<Arc<OfferedCrls>>,
    learned: Option<LearnedCrls>,
    followers: HashMap<PeerId, JoinHandle<()>>,
    /// Sends requests; weak, since the driver stops when all handles are dropped.
    commands: mpsc::WeakSender<Command>,
}

/// The lists that other nodes may get from this one.
#[derive(Default)]
pub(super) struct OfferedCrls {
    index: RevocationIndex,
    /// Their bytes, by their digests.
    lists: HashMap<Vec<u8>, Vec<u8>>,
}

impl Revocation {
    pub(super) fn new(
        learned: Option<LearnedCrls>,
        commands: mpsc::WeakSender<Command>,
    ) -> Revocation {
        let offered = watch::Sender::new(Arc::new(OfferedCrls::new(&[])));
        Revocation { offered, learned, followers: HashMap::new(), commands }
    }

    /// The index, as soon as it is not the one that `query` has seen, or after `deadline`.
    pub(super) fn index(
        &self,
        query: RevocationQuery,
        deadline: Duration,
    ) -> impl Future<Output = ResponseBody> + Send + use<> {
        let mut offered = self.offered.subscribe();
        async move {
            let is_new = |offered: &Arc<OfferedCrls>| offered.index.digest != query.seen;
            let _ = tokio::time::timeout(deadline.min(MAX_HOLD), offered.wait_for(is_new)).await;
            ResponseBody::RevocationLists(offered.borrow().index.clone())
        }
    }

    /// A part of a list that is in the index.
    pub(super) fn part(&self, query: &RevocationPartQuery) -> ResponseBody {
        let offered = self.offered.borrow();
        let list = offered.lists.get(&query.digest);
        let rest = list.and_then(|list| list.get(usize::try_from(query.offset).ok()?..));
        match rest.filter(|rest| !rest.is_empty()) {
            Some(rest) => {
                ResponseBody::RevocationPart(rest.iter().take(MAX_PART_BYTES).copied().collect())
            }
            None => {
                let message = "there is no such list here, or no such part of it";
                ResponseBody::Refused(Refusal::new(RefusalKind::NotAllowed, message))
            }
        }
    }
}

impl OfferedCrls {
    fn new(lists: &[SignedCrl]) -> OfferedCrls {
        let mut offered = OfferedCrls::default();
        for list in lists.iter().take(MAX_LISTS) {
            let bytes = list.to_bytes();
            let digest = blake3::hash(&bytes).as_bytes().to_vec();
            offered.index.lists.push(RevocationEntry {
                issuer: crl_follower::issuer_digest(list.issuer_name()),
                number: list.number(),
                digest: digest.clone(),
                bytes: bytes.len() as u64,
            });
            offered.lists.insert(digest, bytes);
        }
        let all: Vec<u8> =
            offered.index.lists.iter().flat_map(|list| list.digest.clone()).collect();
        offered.index.digest = blake3::hash(&all).as_bytes().to_vec();
        offered
    }
}

impl Driver {
    /// Offers the lists in use. Nodes that wait for a change are notified.
    pub(super) fn offer_crls(&self) {
        let credentials = self.gatekeeper.credentials();
        let lists = credentials.pki.signed_crls(&self.gatekeeper.issuers());
        let offered = OfferedCrls::new(&lists);
        self.revocation.offered.send_if_modified(|current| {
            let changed = current.index.digest != offered.index.digest;
            if changed {
                *current = Arc::new(offered);
            }
            changed
        });
    }

    /// Offers lists whose authority was unknown, if a peer that has just connected may have shown it.
    pub(super) fn offer_remaining_crls(&self) {
        let in_use = self.gatekeeper.credentials().pki.crl_numbers().count().min(MAX_LISTS);
        if self.revocation.offered.borrow().lists.len() < in_use {
            self.offer_crls();
        }
    }

    /// Follows the lists of each gateway that is connected.
    pub(super) fn follow_gateways(&mut self) {
        let Some(learned) = &self.revocation.learned else { return };
        self.revocation.followers.retain(|_, follower| !follower.is_finished());
        for gateway in self.gateways.connected() {
            let (commands, gatekeeper) = (self.revocation.commands.clone(), &self.gatekeeper);
            self.revocation.followers.entry(gateway).or_insert_with(|| {
                let (gatekeeper, learned) = (gatekeeper.clone(), learned.clone());
                tokio::spawn(crl_follower::follow(commands, gatekeeper, learned, gateway))
            });
        }
    }
}

/// The numbers of the lists in use, by the digests of their authorities' names.
pub(crate) fn numbers_in_use(pki: &Pki) -> HashMap<Vec<u8>, u64> {
    pki.crl_numbers().map(|(name, number)| (crl_follower::issuer_digest(&name), number)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn index_is_held_back_until_it_changes_or_time_is_up() {
        let (commands, _queue) = mpsc::channel(1);
        let revocation = Revocation::new(None, commands.downgrade());
        let index = |seen: &[u8]| {
            let query = RevocationQuery { seen: seen.to_vec() };
            revocation.index(query, Duration::from_secs(600))
        };
        let ResponseBody::RevocationLists(first) = index(&[]).await else { panic!("no index") };
        let began = tokio::time::Instant::now();
        assert_eq!(index(&first.digest).await, ResponseBody::RevocationLists(first.clone()));
        assert_eq!(began.elapsed(), MAX_HOLD);

        let waiting = tokio::spawn(index(&first.digest));
        tokio::task::yield_now().await;
        let (digest, bytes) = (vec![7; 32], vec![1; MAX_PART_BYTES + 5]);
        let index = RevocationIndex { digest: vec![9; 32], lists: Vec::new() };
        let lists = HashMap::from([(digest.clone(), bytes)]);
        revocation.offered.send_replace(Arc::new(OfferedCrls { index: index.clone(), lists }));
        assert_eq!(waiting.await.unwrap(), ResponseBody::RevocationLists(index));
        assert_eq!(began.elapsed(), MAX_HOLD);

        let part = |offset| {
            let query = RevocationPartQuery { digest: digest.clone(), offset };
            match revocation.part(&query) {
                ResponseBody::RevocationPart(bytes) => bytes.len(),
                _ => 0,
            }
        };
        let end = MAX_PART_BYTES as u64;
        let lengths = [part(0), part(end), part(end + 5), part(u64::MAX)];
        assert_eq!(lengths, [MAX_PART_BYTES, 5, 0, 0]);
    }
}
