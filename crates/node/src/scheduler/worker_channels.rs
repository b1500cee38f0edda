//! The channels to workers of the swarm: one for each, kept open while the worker is connected.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use hypha_engine::{FromWorker, SchedulerEvent, ToWorker};
use hypha_model::{Worker, WorkerId};
use hypha_net::{Net, OpenedChannel, PeerId};
use hypha_wire::dispatch::TaskProtocol;
use tokio::sync::{Notify, mpsc};
use tokio_util::task::AbortOnDropHandle;

use super::core::SchedulerCore;
use super::objects::Objects;
use crate::channel::{MAX_QUEUED_MESSAGES, exchange_messages};

/// How long after a failure a channel is opened again, if the worker does not connect before.
const REOPEN_DELAY: Duration = Duration::from_secs(5);

/// How long a channel may take to be opened over another connection of its worker before the worker counts as lost.
const REOPEN_TIMEOUT: Duration = Duration::from_secs(2);

/// The open channels.
pub(crate) struct WorkerChannels {
    open: Mutex<HashMap<WorkerId, OpenChannel>>,
    objects: Objects,
}

/// An open channel.
struct OpenChannel {
    worker: Arc<Worker>,
    messages: mpsc::Sender<ToWorker>,
}

/// The channel to one worker, opened again whenever it ends. Dropping this closes it.
pub(super) struct WorkerChannel {
    peer_connected: Arc<Notify>,
    worker: Arc<Mutex<Arc<Worker>>>,
    _task: AbortOnDropHandle<()>,
}

impl WorkerChannels {
    /// Begins without channels. Large results of the workers are stored in `objects`.
    pub(super) fn new(objects: Objects) -> WorkerChannels {
        WorkerChannels { open: Mutex::default(), objects }
    }

    /// Sends if there is a channel and it has room; otherwise the message is dropped, as on a network.
    pub(super) fn send(&self, worker: WorkerId, message: ToWorker) {
        let messages = self.lock().get(&worker).map(|open| open.messages.clone());
        if let Some(messages) = messages
            && messages.try_send(message).is_err()
        {
            tracing::debug!(%worker, "a message was dropped: too many are queued");
        }
    }

    /// The workers with an open channel.
    pub(super) fn workers(&self) -> Vec<Arc<Worker>> {
        self.lock().values().map(|open| Arc::clone(&open.worker)).collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<WorkerId, OpenChannel>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WorkerChannel {
    /// Keeps a channel to `peer` open from now on.
    pub(super) fn new(
        net: Net,
        core: Weak<SchedulerCore>,
        channels: Arc<WorkerChannels>,
        peer: PeerId,
        worker: Worker,
    ) -> WorkerChannel {
        let peer_connected = Arc::new(Notify::new());
        let worker = Arc::new(Mutex::new(Arc::new(worker)));
        let keeper = ChannelKeeper {
            net,
            core,
            channels,
            peer,
            peer_connected: peer_connected.clone(),
            worker: worker.clone(),
        };
        let task = AbortOnDropHandle::new(tokio::spawn(keeper.run()));
        WorkerChannel { peer_connected, worker, _task: task }
    }

    /// The worker has connected.
    pub(super) fn connected(&self) {
        self.peer_connected.notify_one();
    }

    /// The worker has published a new description of itself.
    pub(super) fn set_worker(&self, worker: &Worker) {
        *lock(&self.worker) = Arc::new(worker.clone());
    }
}

struct ChannelKeeper {
    net: Net,
    core: Weak<SchedulerCore>,
    channels: Arc<WorkerChannels>,
    peer: PeerId,
    peer_connected: Arc<Notify>,
    worker: Arc<Mutex<Arc<Worker>>>,
}

impl ChannelKeeper {
    async fn run(self) {
        let mut ended: Option<ChannelRegistration<'_>> = None;
        loop {
            // A direct connection may have replaced a relayed one: the worker is not lost then.
            let reopened = match ended.take() {
                Some(registered) => self.reopen(registered).await,
                None => None,
            };
            if let Some((registered, channel)) = reopened {
                ended = self.serve(channel, Some(registered)).await;
                continue;
            }
            match self.net.open_channel::<TaskProtocol>(self.peer).await {
                Ok(channel) => ended = self.serve(channel, None).await,
                Err(error) => {
                    tracing::debug!(peer = %self.peer, "cannot open a channel to the worker: {error}");
                    let _ =
                        tokio::time::timeout(REOPEN_DELAY, self.peer_connected.notified()).await;
                }
            }
        }
    }

    /// Opens the channel again, if the worker has another connection.
    async fn reopen<'a>(
        &'a self,
        registered: ChannelRegistration<'a>,
    ) -> Option<(ChannelRegistration<'a>, OpenedChannel<TaskProtocol>)> {
        let peers = self.net.peers().await;
        if !peers.iter().any(|peer| peer.id == self.peer) {
            return None;
        }
        let opening =
            tokio::time::timeout(REOPEN_TIMEOUT, self.net.open_channel::<TaskProtocol>(self.peer))
                .await;
        Some((registered, opening.ok()?.ok()?))
    }

    /// Exchanges messages until the channel ends. Its registration is new, or that of the channel that it replaces.
    async fn serve<'a>(
        &'a self,
        channel: OpenedChannel<TaskProtocol>,
        before: Option<ChannelRegistration<'a>>,
    ) -> Option<ChannelRegistration<'a>> {
        let worker = lock(&self.worker).clone();
        let id = worker.id;
        let (messages, waiting) = mpsc::channel(MAX_QUEUED_MESSAGES);
        let open = OpenChannel { worker: Arc::clone(&worker), messages };
        self.channels.lock().insert(id, open);
        let event = match &before {
            Some(_) => SchedulerEvent::WorkerReconnected(id),
            // The worker is reachable now: the machine requests a lease at once.
            None => SchedulerEvent::WorkerFound(worker),
        };
        // Not made unless it is used: dropping a registration reports to the machine that the worker is lost.
        let registered = before.unwrap_or_else(|| ChannelRegistration { keeper: self, id });
        self.core.upgrade()?.handle_event(event);
        let take = |mut received: Vec<FromWorker>| async move {
            for message in &mut received {
                self.channels.objects.resolve_object_ref(message).await;
            }
            let core = self.core.upgrade();
            core.map(|core| core.handle_worker_messages(id, received.into_iter())).is_some()
        };
        let why = exchange_messages(channel, waiting, take).await;
        tracing::debug!(peer = %self.peer, worker = %id, "the channel to the worker has ended: {why}");
        Some(registered)
    }
}

/// Registers a channel while it is open. When it ends permanently, the machine is notified.
struct ChannelRegistration<'a> {
    keeper: &'a ChannelKeeper,
    id: WorkerId,
}

impl Drop for ChannelRegistration<'_> {
    fn drop(&mut self) {
        self.keeper.channels.lock().remove(&self.id);
        if let Some(core) = self.keeper.core.upgrade() {
            core.handle_event(SchedulerEvent::WorkerDisconnected(self.id));
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
