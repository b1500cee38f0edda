//! The transfers in progress, and those that have ended: decides what a newly opened stream belongs to.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hypha_wire::bulk::{Header, Open, OpenResponse, Refusal, RefusalKind, TransferId};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::io::BoxedStream;
use crate::limits::Limits;

/// The identity of a peer, as the carrier has it: its peer id. Limits count by it, and a transfer belongs to it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerKey(Arc<str>);

impl PeerKey {
    /// A key from this text.
    pub fn new(text: impl Into<Arc<str>>) -> PeerKey {
        PeerKey(text.into())
    }

    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PeerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Where a stream waits for the transfer that it belongs to. A newer stream replaces an older one, which the sender
/// has given up.
#[derive(Default)]
pub(crate) struct StreamSlot {
    waiting: Mutex<Waiting>,
    arrived: Notify,
}

#[derive(Default)]
enum Waiting {
    #[default]
    Empty,
    Stream(BoxedStream),
    /// The transfer has ended, and this is the response to a stream that opens too late.
    Closed(OpenResponse),
}

impl StreamSlot {
    /// Leaves a stream for the transfer. Returns it, with the response, if the transfer has ended meanwhile.
    pub(crate) fn put(&self, stream: BoxedStream) -> Result<(), (BoxedStream, OpenResponse)> {
        let mut waiting = lock(&self.waiting);
        if let Waiting::Closed(answer) = &*waiting {
            return Err((stream, answer.clone()));
        }
        *waiting = Waiting::Stream(stream);
        self.arrived.notify_one();
        Ok(())
    }

    /// The next stream. Cancel safe: it stays if this future is dropped before.
    pub(crate) async fn take(&self) -> BoxedStream {
        loop {
            if let Some(stream) = lock(&self.waiting).take() {
                return stream;
            }
            self.arrived.notified().await;
        }
    }

    /// Returns when a stream waits, and leaves it.
    pub(crate) async fn wait(&self) {
        while !matches!(&*lock(&self.waiting), Waiting::Stream(_)) {
            self.arrived.notified().await;
        }
        // The stream has yet to be taken: the next `take` must not miss it.
        self.arrived.notify_one();
    }

    fn close(&self, answer: OpenResponse) -> Option<BoxedStream> {
        let mut waiting = lock(&self.waiting);
        let stream = waiting.take();
        *waiting = Waiting::Closed(answer);
        stream
    }
}

impl Waiting {
    fn take(&mut self) -> Option<BoxedStream> {
        match std::mem::take(self) {
            Waiting::Stream(stream) => Some(stream),
            other => {
                *self = other;
                None
            }
        }
    }
}

type Key = (PeerKey, TransferId);

enum Entry {
    Running { header: Header, slot: Arc<StreamSlot> },
    Ended { answer: OpenResponse },
}

/// All transfers of a receiver.
pub(crate) struct Registry {
    limits: Limits,
    state: Mutex<RegistryState>,
}

#[derive(Default)]
struct RegistryState {
    entries: HashMap<Key, Entry>,
    running: HashMap<PeerKey, usize>,
    total: usize,
    /// The ended ones, oldest first.
    ended: VecDeque<(Instant, Key)>,
}

/// How to handle a stream that has opened.
pub(crate) enum OpenOutcome {
    /// A new transfer, with its registration.
    New(Registration),
    /// It belongs to a transfer that waits for it.
    Resumed(Arc<StreamSlot>),
    /// The response.
    Answered(OpenResponse),
}

impl Registry {
    pub(crate) fn new(limits: Limits) -> Arc<Registry> {
        Arc::new(Registry { limits, state: Mutex::default() })
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    pub(crate) fn open(self: &Arc<Registry>, peer: &PeerKey, open: Open) -> OpenOutcome {
        let mut state = lock(&self.state);
        state.expire_ended(&self.limits);
        let key = (peer.clone(), open.transfer);
        match state.entries.get(&key) {
            Some(Entry::Ended { answer }) => return OpenOutcome::Answered(answer.clone()),
            Some(Entry::Running { header, slot }) => {
                return match *header == open.header {
                    true => OpenOutcome::Resumed(Arc::clone(slot)),
                    false => OpenOutcome::Answered(refusal(
                        RefusalKind::Protocol,
                        "this transfer began with another header; use a new transfer id",
                    )),
                };
            }
            None => {}
        }
        let of_peer = state.running.get(peer).copied().unwrap_or(0);
        if of_peer >= self.limits.inbound_per_peer || state.total >= self.limits.inbound_total {
            return OpenOutcome::Answered(busy(&self.limits));
        }
        state.running.insert(peer.clone(), of_peer + 1);
        state.total += 1;
        let slot = Arc::new(StreamSlot::default());
        let running = Entry::Running { header: open.header.clone(), slot: Arc::clone(&slot) };
        state.entries.insert(key.clone(), running);
        OpenOutcome::New(Registration { registry: Arc::clone(self), key, slot, open: true })
    }

    fn end(&self, key: &Key, answer: Option<OpenResponse>) {
        let mut state = lock(&self.state);
        state.total -= 1;
        match state.running.get_mut(&key.0) {
            Some(running) if *running > 1 => *running -= 1,
            _ => drop(state.running.remove(&key.0)),
        }
        match answer {
            Some(answer) => {
                state.entries.insert(key.clone(), Entry::Ended { answer });
                state.ended.push_back((Instant::now(), key.clone()));
            }
            None => drop(state.entries.remove(key)),
        }
        state.expire_ended(&self.limits);
    }
}

impl RegistryState {
    fn expire_ended(&mut self, limits: &Limits) {
        while let Some((at, _)) = self.ended.front()
            && (self.ended.len() > limits.remembered || at.elapsed() > limits.remember_for)
        {
            if let Some((_, key)) = self.ended.pop_front() {
                self.entries.remove(&key);
            }
        }
    }
}

/// A transfer's entry among those in progress. Dropped without a response, it counts as ended by the receiver.
pub(crate) struct Registration {
    registry: Arc<Registry>,
    key: Key,
    pub(crate) slot: Arc<StreamSlot>,
    open: bool,
}

impl Registration {
    pub(crate) fn limits(&self) -> &Limits {
        &self.registry.limits
    }

    pub(crate) fn peer(&self) -> &PeerKey {
        &self.key.0
    }

    pub(crate) fn transfer(&self) -> TransferId {
        self.key.1
    }

    /// The transfer has ended, and this is the response if the sender opens it again. Returns the stream that waits, if
    /// any, so that it can be answered at once.
    pub(crate) fn finish(&mut self, answer: OpenResponse) -> Option<BoxedStream> {
        self.end(Some(answer.clone()));
        self.slot.close(answer)
    }

    /// As if it had never been opened: the sender may open it again.
    pub(crate) fn discard(&mut self) -> Option<BoxedStream> {
        self.end(None);
        self.slot.close(busy(&self.registry.limits))
    }

    fn end(&mut self, answer: Option<OpenResponse>) {
        if std::mem::take(&mut self.open) {
            self.registry.end(&self.key, answer);
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if self.open {
            self.finish(refusal(RefusalKind::Cancelled, "the receiver has ended this transfer"));
        }
    }
}

pub(crate) fn refusal(kind: RefusalKind, message: &str) -> OpenResponse {
    OpenResponse::Refuse(Refusal { kind, message: message.to_owned(), retry_after_ms: None })
}

pub(crate) fn busy(limits: &Limits) -> OpenResponse {
    OpenResponse::Refuse(Refusal {
        kind: RefusalKind::Busy,
        message: "too many transfers at once; retry later".to_owned(),
        retry_after_ms: u32::try_from(limits.busy_retry_after.as_millis()).ok(),
    })
}

/// A panic while the lock is held leaves whole entries behind: no update stops half-way.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hypha_wire::bulk::Digest;

    fn open(id: u8) -> Open {
        let header = Header {
            job: None,
            round: None,
            kind: "k".into(),
            name: "n".into(),
            length: 1,
            digest: None,
        };
        Open { transfer: TransferId([id; 16]), header }
    }

    fn peer(name: &str) -> PeerKey {
        PeerKey::new(name)
    }

    fn new(opened: OpenOutcome) -> Registration {
        match opened {
            OpenOutcome::New(registration) => registration,
            OpenOutcome::Resumed(_) => panic!("resumed"),
            OpenOutcome::Answered(answer) => panic!("{answer:?}"),
        }
    }

    fn is_busy(opened: &OpenOutcome) -> bool {
        matches!(
            opened,
            OpenOutcome::Answered(OpenResponse::Refuse(Refusal { kind: RefusalKind::Busy, .. }))
        )
    }

    #[tokio::test]
    async fn limits_hold_by_peer_and_in_total() {
        let limits = Limits { inbound_per_peer: 2, inbound_total: 3, ..Limits::default() };
        let registry = Registry::new(limits);
        let first = new(registry.open(&peer("a"), open(1)));
        let _second = new(registry.open(&peer("a"), open(2)));
        assert!(is_busy(&registry.open(&peer("a"), open(3))));
        let _third = new(registry.open(&peer("b"), open(3)));
        assert!(is_busy(&registry.open(&peer("b"), open(4))));
        drop(first);
        let _fourth = new(registry.open(&peer("b"), open(4)));
    }

    #[tokio::test]
    async fn one_peer_cannot_touch_the_transfer_of_another() {
        let registry = Registry::new(Limits::default());
        let _place = new(registry.open(&peer("a"), open(1)));
        assert!(matches!(registry.open(&peer("a"), open(1)), OpenOutcome::Resumed(_)));
        let _other = new(registry.open(&peer("b"), open(1)));
        let mut changed = open(1);
        changed.header.length = 2;
        assert!(matches!(registry.open(&peer("a"), changed), OpenOutcome::Answered(_)));
    }

    #[tokio::test(start_paused = true)]
    async fn ended_transfers_are_remembered_for_a_time_and_up_to_a_count() {
        let limits = Limits { remembered: 2, ..Limits::default() };
        let remember_for = limits.remember_for;
        let registry = Registry::new(limits);
        let have = OpenResponse::Have { digest: Digest([1; 32]) };
        for id in 1..=3 {
            new(registry.open(&peer("a"), open(id))).finish(have.clone());
        }
        let settled = |id| matches!(registry.open(&peer("a"), open(id)), OpenOutcome::Answered(_));
        assert!(settled(2) && settled(3));
        new(registry.open(&peer("a"), open(1))).discard();
        tokio::time::advance(remember_for + std::time::Duration::from_secs(1)).await;
        new(registry.open(&peer("a"), open(2))).discard();
    }

    #[tokio::test]
    async fn a_slot_returns_the_newest_stream_and_waiting_leaves_it() {
        let slot = StreamSlot::default();
        let (one, _one) = tokio::io::duplex(1);
        let (two, mut far) = tokio::io::duplex(1);
        assert!(slot.put(Box::new(one)).is_ok());
        assert!(slot.put(Box::new(two)).is_ok());
        slot.wait().await;
        let mut stream = slot.take().await;
        tokio::io::AsyncWriteExt::write_all(&mut stream, b"x").await.unwrap();
        assert_eq!(tokio::io::AsyncReadExt::read_u8(&mut far).await.unwrap(), b'x');
    }
}
