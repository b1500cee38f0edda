//! Follows the revocation lists of one gateway: gets those that are newer than this node's, and verifies them.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use hypha_pki::{LearnedCrls, MAX_SIGNED_CRL_BYTES, SignedCrl};
use hypha_wire::request::{RefusalKind, RequestBody, ResponseBody};
use hypha_wire::revocation::{
    RevocationEntry, RevocationIndex, RevocationPartQuery, RevocationQuery,
};
use libp2p::PeerId;
use tokio::sync::{mpsc, oneshot};

use crate::driver::{Command, numbers_in_use};
use crate::gatekeeper::Gatekeeper;
use crate::handle::RequestError;

/// How long a request may take: the gateway holds one back for half of it while nothing changes.
const DEADLINE: Duration = Duration::from_secs(60);
/// The delay after a failure.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// A gateway that does not support this is restarted with a newer release at some time.
const UNSUPPORTED_RETRY_INTERVAL: Duration = Duration::from_secs(600);

/// The digest under which an authority's list is offered.
pub(crate) fn issuer_digest(name: &[u8]) -> Vec<u8> {
    blake3::hash(name).as_bytes().to_vec()
}

/// Runs until a request fails, and for a while longer: then it is started again.
pub(crate) async fn follow(
    commands: mpsc::WeakSender<Command>,
    gatekeeper: Arc<Gatekeeper>,
    learned: LearnedCrls,
    gateway: PeerId,
) {
    let follower = CrlFollower { commands, gatekeeper, learned, gateway };
    let mut seen = Vec::new();
    let error = loop {
        match follower.next_index(seen).await {
            Ok(index) => match follower.learn(&index).await {
                Ok(()) => seen = index.digest,
                Err(error) => break error,
            },
            Err(error) => break error,
        }
    };
    tracing::debug!(%gateway, "cannot follow the gateway's revocation lists: {error}");
    let unsupported = matches!(&error, RequestError::Refused(refusal) if refusal.kind == RefusalKind::UnknownRequest);
    let delay = if unsupported { UNSUPPORTED_RETRY_INTERVAL } else { RETRY_INTERVAL };
    tokio::time::sleep(delay).await;
}

struct CrlFollower {
    commands: mpsc::WeakSender<Command>,
    gatekeeper: Arc<Gatekeeper>,
    learned: LearnedCrls,
    gateway: PeerId,
}

impl CrlFollower {
    async fn next_index(&self, seen: Vec<u8>) -> Result<RevocationIndex, RequestError> {
        match self.request(RequestBody::RevocationLists(RevocationQuery { seen })).await? {
            ResponseBody::RevocationLists(index) => Ok(index),
            _ => Err(unexpected()),
        }
    }

    /// Gets the lists that are newer than those in use, and uses them if they are valid.
    async fn learn(&self, index: &RevocationIndex) -> Result<(), RequestError> {
        let in_use = numbers_in_use(&self.gatekeeper.credentials().pki);
        let newer = |list: &&RevocationEntry| {
            in_use.get(&list.issuer).is_none_or(|number| *number < list.number)
        };
        for entry in index.lists.iter().filter(newer) {
            let bytes = self.fetch(entry).await?;
            self.accept(&bytes);
        }
        Ok(())
    }

    async fn fetch(&self, entry: &RevocationEntry) -> Result<Vec<u8>, RequestError> {
        let mut bytes = Vec::new();
        while (bytes.len() as u64) < entry.bytes && bytes.len() <= MAX_SIGNED_CRL_BYTES {
            let (digest, offset) = (entry.digest.clone(), bytes.len() as u64);
            let query = RevocationPartQuery { digest, offset };
            match self.request(RequestBody::RevocationPart(query)).await? {
                ResponseBody::RevocationPart(part) => bytes.extend(part),
                _ => return Err(unexpected()),
            }
        }
        Ok(bytes)
    }

    fn accept(&self, bytes: &[u8]) {
        let gateway = self.gateway;
        let pki = &self.gatekeeper.credentials().pki;
        let list = SignedCrl::from_bytes(bytes).and_then(|list| {
            pki.verify_crl(&list, SystemTime::now())?;
            Ok(list)
        });
        match list {
            Ok(list) => {
                let number = list.number();
                tracing::info!(%gateway, number, "got a newer revocation list from a gateway");
                if let Err(error) = self.learned.add(list) {
                    tracing::warn!(
                        "a revocation list is used, and cannot be stored for the next start: {error}"
                    );
                }
            }
            Err(error) => {
                tracing::warn!(%gateway, "a revocation list of a gateway is not used: {error}");
            }
        }
    }

    async fn request(&self, body: RequestBody) -> Result<ResponseBody, RequestError> {
        let (reply, response) = oneshot::channel();
        let (peer, deadline) = (self.gateway, DEADLINE);
        let command = Command::Request {
            peer,
            addresses: Vec::new(),
            body,
            deadline,
            traceparent: None,
            reply,
        };
        // Not held while the request is pending: the network stops when the last handle is dropped.
        let commands = self.commands.upgrade().ok_or(RequestError::Stopped)?;
        commands.send(command).await.map_err(|_| RequestError::Stopped)?;
        drop(commands);
        match tokio::time::timeout(DEADLINE, response).await {
            Ok(Ok(Ok(ResponseBody::Refused(refusal)))) => Err(RequestError::Refused(refusal)),
            Ok(Ok(response)) => response,
            Ok(Err(_)) => Err(RequestError::Stopped),
            Err(_) => Err(RequestError::TimedOut(DEADLINE)),
        }
    }
}

fn unexpected() -> RequestError {
    RequestError::InvalidResponse("it belongs to another request".to_owned())
}
