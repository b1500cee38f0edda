//! The open streams to workers of the swarm: one for each, kept open while the worker is connected.

use std::collections::HashMap;
use std::future::ready;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use hypha_engine::{SchedulerEvent, ToWorker};
use hypha_model::{Worker, WorkerId};
use hypha_net::{Net, Opened, PeerId};
use hypha_wire::dispatch::Tasks;
use tokio::sync::{Notify, mpsc};
use tokio_util::task::AbortOnDropHandle;

use super::core::Core;
use crate::channel::{MAX_WAITING, carry};

/// How long after a failed try a stream is opened again, if the worker does not connect before.
const RETRY: Duration = Duration::from_secs(5);

/// All of them.
#[derive(Default)]
pub(crate) struct Links {
    open: Mutex<HashMap<WorkerId, Open>>,
}

/// An open stream.
struct Open {
    worker: Arc<Worker>,
    messages: mpsc::Sender<ToWorker>,
}

/// One worker's stream, opened whenever it is gone. Dropping it closes it.
pub(super) struct Link {
    came: Arc<Notify>,
    worker: Arc<Mutex<Arc<Worker>>>,
    _task: AbortOnDropHandle<()>,
}

impl Links {
    /// Sends, if there is a stream and it has room: what does not fit is dropped, as on a network.
    pub(super) fn send(&self, worker: WorkerId, message: ToWorker) {
        let messages = self.lock().get(&worker).map(|open| open.messages.clone());
        if let Some(messages) = messages
            && messages.try_send(message).is_err()
        {
            tracing::debug!(%worker, "a message was dropped: too many wait");
        }
    }

    /// The workers to which there is a stream.
    pub(super) fn workers(&self) -> Vec<Arc<Worker>> {
        self.lock().values().map(|open| Arc::clone(&open.worker)).collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<WorkerId, Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Link {
    /// Keeps a stream to `peer` open from now on.
    pub(super) fn new(
        net: Net,
        core: Weak<Core>,
        links: Arc<Links>,
        peer: PeerId,
        worker: Worker,
    ) -> Link {
        let came = Arc::new(Notify::new());
        let worker = Arc::new(Mutex::new(Arc::new(worker)));
        let keeper = Keeper { net, core, links, peer, came: came.clone(), worker: worker.clone() };
        let task = AbortOnDropHandle::new(tokio::spawn(keeper.run()));
        Link { came, worker, _task: task }
    }

    /// The worker has connected.
    pub(super) fn connected(&self) {
        self.came.notify_one();
    }

    /// The worker describes itself anew.
    pub(super) fn describe(&self, worker: &Worker) {
        *lock(&self.worker) = Arc::new(worker.clone());
    }
}

struct Keeper {
    net: Net,
    core: Weak<Core>,
    links: Arc<Links>,
    peer: PeerId,
    came: Arc<Notify>,
    worker: Arc<Mutex<Arc<Worker>>>,
}

impl Keeper {
    async fn run(self) {
        loop {
            match self.net.open_channel::<Tasks>(self.peer).await {
                Ok(channel) => self.serve(channel).await,
                Err(error) => {
                    tracing::debug!(peer = %self.peer, "no stream to the worker: {error}");
                    let _ = tokio::time::timeout(RETRY, self.came.notified()).await;
                }
            }
        }
    }

    async fn serve(&self, channel: Opened<Tasks>) {
        let worker = lock(&self.worker).clone();
        let id = worker.id;
        let (messages, waiting) = mpsc::channel(MAX_WAITING);
        let open = Open { worker: Arc::clone(&worker), messages };
        let guard = Registered::new(self, id, open);
        let Some(core) = self.core.upgrade() else { return };
        // Now that it can be reached, it is asked for a lease at once.
        core.tell(SchedulerEvent::WorkerFound(worker));
        drop(core);
        let take = |said: Vec<_>| {
            ready(match self.core.upgrade() {
                Some(core) => {
                    core.worker_said(id, said.into_iter());
                    true
                }
                None => false,
            })
        };
        let why = carry(channel, waiting, take).await;
        tracing::debug!(peer = %self.peer, worker = %id, "the stream to the worker has ended: {why}");
        drop(guard);
    }
}

/// A stream is entered while it is open; when it ends, the machine is told.
struct Registered<'a> {
    keeper: &'a Keeper,
    id: WorkerId,
}

impl<'a> Registered<'a> {
    fn new(keeper: &'a Keeper, id: WorkerId, open: Open) -> Registered<'a> {
        keeper.links.lock().insert(id, open);
        Registered { keeper, id }
    }
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        self.keeper.links.lock().remove(&self.id);
        if let Some(core) = self.keeper.core.upgrade() {
            core.tell(SchedulerEvent::WorkerDisconnected(self.id));
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
