//! HTTP servers and task instances as workers: the engine's messages in, the engine's answers out.
//!
//! Each worker is on its own: a server's calls are one task each, an instance has one task that waits for nobody but
//! it. One that accepts connections and never answers costs nobody else anything.
//!
//! No lease runs out here: its holder is the scheduler in this process, which takes back what it gave when it
//! loses a worker.

mod file;
mod instance;
mod register;
mod secrets;
mod server;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hypha_engine::{FromWorker, ToWorker};
use hypha_model::{Epoch, Refusal, RefusalKind, Worker, WorkerId};
use ipnet::IpNet;
use tokio::runtime::Handle;
use tokio::sync::mpsc::{Sender, error::TrySendError};

use crate::transport::locked;
use file::{Place, Row};
use instance::Input;
use secrets::Secrets;
use server::ServerHand;

pub use file::OpenError;
pub use register::{NewServer, RegisterError, default_networks};

/// Tasks that wait at a worker for each that it runs at once: what a scheduler hands over ahead, at most.
const MAX_WAITING_PER_SLOT: usize = 64;
/// Results that a worker keeps until they are recorded. The scheduler is in this process and records each at
/// once; if it does not, no more is taken.
const MAX_UNRECORDED: usize = 1_024;
/// Workers that are taken: what one scheduler can ask for their health.
const MAX_WORKERS: usize = 10_000;

/// What all HTTP workers have in common.
#[derive(Clone, Debug)]
pub struct HttpSettings {
    /// Where workers may be that a client registers.
    pub allowed_networks: Vec<IpNet>,
    /// Where task instances reach this scheduler, without a path; without it they are only polled.
    pub public_url: Option<String>,
    /// Where `http-workers.json` is kept.
    pub directory: PathBuf,
    /// How long to wait before the first poll of a task that runs, and between polls at first.
    pub poll_interval: Duration,
    /// How long a worker may take to say that it is well.
    pub health_timeout: Duration,
    /// How long a task instance may take to accept a task, or to hand out a result.
    pub call_timeout: Duration,
    /// Larger results fail.
    pub max_response_bytes: usize,
}

/// Hears what a worker said. Called from many threads, without any lock of this crate held; must not wait.
pub type Hear = Arc<dyn Fn(WorkerId, FromWorker) + Send + Sync>;

/// HTTP workers of one scheduler. Cheap to clone.
#[derive(Clone)]
pub struct HttpWorkers(Arc<Shared>);

/// What a task instance says at the end of a task.
#[derive(Clone, Debug, Default)]
pub struct Notification {
    /// The id of the task: ours, or the instance's own.
    pub task: String,
    /// The secret of the attempt, if the address that was called had one.
    pub secret: Option<String>,
    /// `completed` or `failed`.
    pub status: Option<String>,
    /// The result, if it is there.
    pub result: Option<serde_json::Value>,
    /// What went wrong.
    pub error: Option<String>,
    /// How long it ran, in milliseconds.
    pub execution_time_ms: Option<f64>,
}

struct Shared {
    settings: HttpSettings,
    hear: Hear,
    epoch: Epoch,
    /// Messages may come from a thread that is not of the runtime.
    runtime: Handle,
    allowed: Arc<[IpNet]>,
    secrets: Arc<Secrets>,
    workers: Mutex<BTreeMap<WorkerId, Member>>,
    /// Held while the file is written, so that the last version is the last one written.
    file: tokio::sync::Mutex<()>,
}

struct Member {
    worker: Arc<Worker>,
    /// Its host and port, for people; the rest of an address may hold what others should not read.
    authority: String,
    /// Where it is, if that is to be found again after a restart.
    row: Option<Place>,
    hand: Hand,
    /// Removed: it may be wanted again, or make room for another.
    retired: bool,
}

/// What carries out the messages to one worker.
enum Hand {
    Server(Arc<ServerHand>),
    Instance(Sender<Input>),
}

impl HttpSettings {
    /// The usual settings, with the file in `directory`.
    pub fn new(directory: impl Into<PathBuf>) -> HttpSettings {
        HttpSettings {
            allowed_networks: default_networks(),
            public_url: None,
            directory: directory.into(),
            poll_interval: Duration::from_secs(1),
            health_timeout: Duration::from_secs(5),
            call_timeout: Duration::from_secs(10),
            max_response_bytes: crate::ServerConfig::MAX_RESPONSE_BYTES,
        }
    }
}

impl HttpWorkers {
    /// The workers that were registered before, ready to be asked for leases; what they say goes to `hear`.
    /// Must be called inside a tokio runtime, which then does the work.
    pub fn open(settings: HttpSettings, hear: Hear) -> Result<HttpWorkers, OpenError> {
        let rows = file::read(&settings.directory)?;
        let lives = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let workers = HttpWorkers(Arc::new(Shared {
            allowed: settings.allowed_networks.clone().into(),
            settings,
            hear,
            // Grows from life to life, as an epoch must; leases have random ids besides.
            epoch: Epoch(lives.as_secs()),
            runtime: Handle::current(),
            secrets: Arc::default(),
            workers: Mutex::default(),
            file: tokio::sync::Mutex::default(),
        }));
        for Row { worker, place } in rows.into_iter().take(MAX_WORKERS) {
            let hand = place
                .target()
                .map_err(RegisterError::from)
                .and_then(|target| Ok((target.authority(), workers.hand_for(&worker, &place)?)));
            match hand {
                Ok((authority, hand)) => {
                    let (id, worker, row) = (worker.id, Arc::new(worker), Some(place));
                    let member = Member { worker, authority, row, hand, retired: false };
                    locked(&workers.0.workers).insert(id, member);
                }
                Err(error) => tracing::warn!(worker = %worker.id, %error, "worker left out"),
            }
        }
        Ok(workers)
    }

    /// Whether this is one of these workers.
    pub fn knows(&self, worker: WorkerId) -> bool {
        locked(&self.0.workers).contains_key(&worker)
    }

    /// Where a worker is, for people: its host and port.
    pub fn authority(&self, worker: WorkerId) -> Option<String> {
        locked(&self.0.workers).get(&worker).map(|member| member.authority.clone())
    }

    /// All of these workers.
    pub fn all(&self) -> Vec<Arc<Worker>> {
        locked(&self.0.workers).values().map(|member| Arc::clone(&member.worker)).collect()
    }

    /// Hands a message to a worker. Never waits: a worker that has too many messages refuses.
    pub fn send(&self, worker: WorkerId, message: ToWorker) {
        let message = {
            let mut workers = locked(&self.0.workers);
            let member = workers.get_mut(&worker);
            let hand = member.map(|member| {
                // Whoever asks for its lease wants it again.
                member.retired &= !matches!(message, ToWorker::RequestLease { .. });
                &member.hand
            });
            match hand {
                Some(Hand::Server(hand)) => {
                    let hand = Arc::clone(hand);
                    drop(workers);
                    return hand.take(message);
                }
                Some(Hand::Instance(inbox)) => match inbox.try_send(Input::Said(message)) {
                    Ok(()) => return,
                    Err(TrySendError::Full(input) | TrySendError::Closed(input)) => match input {
                        Input::Said(message) => message,
                        Input::Notified { .. } => return,
                    },
                },
                None => message,
            }
        };
        if let Some(answer) = refusal_of(message) {
            answer_later(&self.0.runtime, &self.0.hear, worker, answer);
        }
    }

    /// A worker was removed, with all that it was given: it is kept in case it is wanted again, until another needs
    /// its place.
    pub fn retire(&self, worker: WorkerId) {
        if let Some(member) = locked(&self.0.workers).get_mut(&worker) {
            member.retired = true;
            member.hand.stop();
        }
    }

    /// Drops a worker with all that it was given; whatever it says later is not heard.
    pub fn forget(&self, worker: WorkerId) {
        let Some(member) = locked(&self.0.workers).remove(&worker) else { return };
        member.hand.stop();
        if member.row.is_some() {
            let this = self.clone();
            self.0.runtime.spawn(async move {
                if let Err(error) = this.save().await {
                    tracing::warn!(%error, "a removed worker is still in the list on the disk");
                }
            });
        }
    }

    /// A notification has come. Only the secret of an attempt proves it; any other is a reason to ask the
    /// instance itself, and no more.
    pub fn notified(&self, notification: Notification) {
        let Notification { task, secret, status, result, error, execution_time_ms } = notification;
        let proven = secret.and_then(|secret| self.0.secrets.of_secret(&secret));
        let (place, report) = match proven {
            Some(place) => {
                let report = instance::Report { status, result, error, execution_time_ms };
                (place, Some(Box::new(report)))
            }
            None => match self.0.secrets.of_task(&task) {
                Some(place) => (place, None),
                None => return,
            },
        };
        let workers = locked(&self.0.workers);
        if let Some(Member { hand: Hand::Instance(inbox), .. }) = workers.get(&place.worker) {
            // If there is no room for it, the next poll finds the same.
            let _ = inbox.try_send(Input::Notified { fence: place.fence, report });
        }
    }
}

impl Hand {
    fn stop(&self) {
        match self {
            Hand::Server(hand) => hand.stop(),
            // Its task ends when nobody can send to it any more.
            Hand::Instance(_) => {}
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        for member in locked(&self.workers).values() {
            member.hand.stop();
        }
    }
}

/// What is said of a message that cannot be handed to the worker; nothing where silence says it.
fn refusal_of(message: ToWorker) -> Option<FromWorker> {
    let refusal = Refusal::plain(RefusalKind::Busy);
    match message {
        ToWorker::Dispatch(dispatch) => {
            let (attempt, fence) = (dispatch.attempt, dispatch.fence);
            Some(FromWorker::Refused { attempt, fence, refusal })
        }
        ToWorker::RequestLease { request, .. } => {
            Some(FromWorker::LeaseRefused { request, refusal })
        }
        ToWorker::Heartbeat { .. }
        | ToWorker::Cancel { .. }
        | ToWorker::Recorded { .. }
        | ToWorker::ReleaseLease { .. } => None,
    }
}

/// Answers a message, but not to the very call that brought it: the scheduler may answer that with another
/// message, and so on without an end.
fn answer_later(runtime: &Handle, hear: &Hear, worker: WorkerId, answer: FromWorker) {
    let hear = Arc::clone(hear);
    runtime.spawn(async move { hear(worker, answer) });
}
