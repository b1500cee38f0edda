//! Results that are too large for a message: sent to the scheduler as a bulk transfer, and referenced in the message.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use hypha_engine::{Dispatch, Outcome, RunId};
use hypha_model::{FailureKind, ObjectRef, Payload, SchedulerId, TaskError, TaskResult};
use hypha_net::{Bulk, Header, Outgoing, PeerId, SendError, Sent};
use tokio_util::sync::CancellationToken;

use crate::object::RESULT_TRANSFER_KIND;

/// The delay before a result that its scheduler could not take is sent again: most can within seconds.
const RESEND_DELAY: Duration = Duration::from_secs(1);

pub(super) struct Uploads {
    bulk: Bulk,
    max_bytes: u64,
    schedulers: Mutex<HashMap<SchedulerId, PeerId>>,
}

impl Uploads {
    pub(super) fn new(bulk: Bulk, max_bytes: u64) -> Uploads {
        Uploads { bulk, max_bytes, schedulers: Mutex::default() }
    }

    /// Records the peer of a scheduler.
    pub(super) fn add_scheduler(&self, id: SchedulerId, peer: PeerId) {
        self.schedulers.lock().unwrap_or_else(PoisonError::into_inner).insert(id, peer);
    }

    pub(super) fn is_large(&self, result: &Payload) -> bool {
        result.bytes().len() as u64 > self.max_bytes
    }

    /// Sends a result that is too large for a message, and returns the outcome to report. Results for the worker's own
    /// task instance stay as they are.
    pub(super) async fn upload_if_large(
        &self,
        id: RunId,
        dispatch: &Dispatch,
        outcome: Outcome,
        cancel: &CancellationToken,
    ) -> Outcome {
        let Outcome::Completed { result: TaskResult::Inline { payload, digest } } = &outcome else {
            return outcome;
        };
        if !self.is_large(payload) || id.scheduler == SchedulerId::LOCAL {
            return outcome;
        }
        let peer = {
            let known = self.schedulers.lock().unwrap_or_else(PoisonError::into_inner);
            known.get(&id.scheduler).copied()
        };
        let Some(peer) = peer else { return outcome };
        let bytes = Bytes::from_owner(PayloadBytes(payload.clone()));
        let object = ObjectRef { digest: *digest, bytes: bytes.len() as u64, by_digest: false };
        let header = Header {
            job: None,
            round: None,
            kind: RESULT_TRANSFER_KIND.to_owned(),
            name: dispatch.attempt.to_string(),
            length: object.bytes,
            digest: Some(hypha_wire::bulk::Digest(*digest.as_bytes())),
        };
        match self.send(peer, &header, &bytes, cancel).await {
            Ok(_) => Outcome::Completed { result: TaskResult::Object(object) },
            Err(error) => Outcome::Failed(TaskError::new(
                FailureKind::WorkerFailed,
                format!("the result could not be sent to the scheduler: {error}"),
            )),
        }
    }

    /// Sends until the scheduler has the result or the run is stopped: that a scheduler is down or has no room is no
    /// failure of this attempt. A result that it refuses is not sent again.
    async fn send(
        &self,
        peer: PeerId,
        header: &Header,
        bytes: &Bytes,
        cancel: &CancellationToken,
    ) -> Result<Sent, SendError> {
        loop {
            let outgoing =
                Outgoing { cancel: cancel.child_token(), ..Outgoing::new(header.clone()) };
            let error = match self.bulk.send(peer, outgoing, bytes.clone()).await {
                Err(
                    error @ (SendError::Ended(_)
                    | SendError::Busy(_)
                    | SendError::NoProgress { .. }),
                ) => error,
                done => return done,
            };
            tracing::warn!(attempt = header.name, "a large result is sent again: {error}");
            tokio::select! {
                () = cancel.cancelled() => return Err(error),
                () = tokio::time::sleep(RESEND_DELAY) => {}
            }
        }
    }
}

struct PayloadBytes(Payload);

impl AsRef<[u8]> for PayloadBytes {
    fn as_ref(&self) -> &[u8] {
        self.0.bytes()
    }
}
