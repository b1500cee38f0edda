//! Back ends and task instances as workers of a scheduler.
//!
//! Each is a worker machine, the same that drives a worker of the swarm; its runs are HTTP calls. A back end that
//! accepts connections and never responds does not affect the others.

mod effects;
mod file;
mod health;
mod http_back_end;
mod instance;
mod register;
mod secrets;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hypha_engine::back_end::BackEndHealth;
use hypha_engine::{
    FromWorker, InstanceNotification, ToWorker, WorkerEvent, WorkerMachine, WorkerStep,
};
use hypha_machine::NoJournal;
use hypha_model::{Epoch, Refusal, RefusalKind, SchedulerId, Time, Worker, WorkerId};
use ipnet::IpNet;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::transport::lock;
use effects::{HttpEffectHandler, HttpMachine, WorkerBackEnd};
use file::{Location, SavedWorker};
use health::AlarmNotifier;
use secrets::Secrets;

pub use file::OpenError;
pub use register::{NewBackEnd, RegisterError, default_networks};

/// Workers that can be registered: as many as one scheduler can check the health of.
const MAX_WORKERS: usize = 10_000;

/// Settings that all HTTP workers share.
#[derive(Clone, Debug)]
pub struct HttpSettings {
    /// The networks of workers that clients may register.
    pub allowed_networks: Vec<IpNet>,
    /// The URL at which task instances reach this scheduler, without a path; without it they are only polled.
    pub public_url: Option<String>,
    /// The directory of `http-workers.json`.
    pub directory: PathBuf,
    /// The delay before the first poll of a running task, and between polls at first.
    pub poll_interval: Duration,
    /// How often the health of a back end is checked; an unhealthy one is checked at least once a second.
    pub health_interval: Duration,
    /// How long a health check may take.
    pub health_timeout: Duration,
    /// How long a task instance may take to accept a task, or to return a result.
    pub call_timeout: Duration,
    /// Larger results fail.
    pub max_response_bytes: usize,
}

/// Receives the messages of workers. Called from many threads, without any lock of this crate held; must not block.
pub type MessageHandler = Arc<dyn Fn(WorkerId, FromWorker) + Send + Sync>;

/// The scheduler that these workers belong to.
#[derive(Clone)]
pub struct SchedulerHandle {
    /// Its id.
    pub id: SchedulerId,
    /// Its clock.
    pub now: Arc<dyn Fn() -> Time + Send + Sync>,
    /// Receives the messages of workers.
    pub on_message: MessageHandler,
}

/// HTTP workers of one scheduler. Cheap to clone.
#[derive(Clone)]
pub struct HttpWorkers(Arc<Inner>);

struct Inner {
    settings: HttpSettings,
    scheduler: SchedulerHandle,
    /// The last epoch that a worker was started in. It grows with each incarnation, as an epoch must.
    epoch: AtomicU64,
    /// Messages may be sent from a thread outside of the runtime.
    runtime: Handle,
    allowed: Arc<[IpNet]>,
    secrets: Arc<Secrets>,
    alarms: Arc<AlarmNotifier>,
    members: Mutex<BTreeMap<WorkerId, HttpWorkerEntry>>,
    /// Held while the file is written, so that the newest version is written last.
    file: tokio::sync::Mutex<()>,
}

struct HttpWorkerEntry {
    worker: Arc<Worker>,
    /// Its host and port, for display; the rest of an address may hold secrets.
    authority: String,
    /// Where it is, if it is restored after a restart.
    location: Option<Location>,
    machine: Arc<HttpMachine>,
    /// Removed by an operator: it may be readmitted, or be evicted for another worker.
    removed: bool,
}

impl HttpWorkerEntry {
    fn set_removed(&mut self, removed: bool) {
        self.removed = removed;
        self.machine
            .handler()
            .used
            .send_if_modified(|used| std::mem::replace(used, !removed) == removed);
    }
}

impl HttpSettings {
    /// The default settings, with the file in `directory`.
    pub fn new(directory: impl Into<PathBuf>) -> HttpSettings {
        HttpSettings {
            allowed_networks: default_networks(),
            public_url: None,
            directory: directory.into(),
            poll_interval: Duration::from_secs(1),
            health_interval: Duration::from_secs(10),
            health_timeout: Duration::from_secs(5),
            call_timeout: Duration::from_secs(10),
            max_response_bytes: crate::BackEndSettings::MAX_RESPONSE_BYTES,
        }
    }
}

impl HttpWorkers {
    /// Restores the workers that were registered before; leases can be requested from them. Must be called inside a
    /// tokio runtime, which then runs their tasks.
    pub fn open(
        settings: HttpSettings,
        scheduler: SchedulerHandle,
    ) -> Result<HttpWorkers, OpenError> {
        let rows = file::read(&settings.directory)?;
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let workers = HttpWorkers(Arc::new(Inner {
            allowed: settings.allowed_networks.clone().into(),
            settings,
            scheduler,
            epoch: AtomicU64::new(since_1970.as_secs()),
            runtime: Handle::current(),
            secrets: Arc::default(),
            alarms: Arc::default(),
            members: Mutex::default(),
            file: tokio::sync::Mutex::default(),
        }));
        workers.0.runtime.spawn(health::wake(Arc::downgrade(&workers.0)));
        for SavedWorker { worker, location } in rows.into_iter().take(MAX_WORKERS) {
            let opened = location
                .target()
                .map_err(RegisterError::from)
                .and_then(|target| Ok((target.authority(), workers.back_end_at(&location)?)));
            match opened {
                Ok((authority, back_end)) => {
                    let (id, worker, location) = (worker.id, Arc::new(worker), Some(location));
                    let unseen = Some("its health has not been checked yet".to_owned());
                    let machine = workers.start(Arc::clone(&worker), back_end, unseen);
                    let member =
                        HttpWorkerEntry { worker, authority, location, machine, removed: false };
                    lock(&workers.0.members).insert(id, member);
                }
                Err(error) => {
                    tracing::warn!(worker = %worker.id, %error, "a saved worker cannot be used; skipped")
                }
            }
        }
        Ok(workers)
    }

    /// Starts the machine of a worker whose back end has this problem, if it has one.
    fn start(
        &self,
        worker: Arc<Worker>,
        back_end: WorkerBackEnd,
        problem: Option<String>,
    ) -> Arc<HttpMachine> {
        let inner = &self.0;
        let last = Epoch(inner.epoch.fetch_add(1, Ordering::Relaxed));
        let mut step = WorkerStep::default();
        let seed = rand::random();
        let machine = WorkerMachine::start(Arc::clone(&worker), last, None, seed, &mut step);
        let unhealthy = problem.is_some();
        let handler = HttpEffectHandler {
            worker,
            back_end,
            scheduler: inner.scheduler.clone(),
            runtime: inner.runtime.clone(),
            machine: OnceLock::new(),
            runs: Mutex::default(),
            outbox: Mutex::default(),
            alarms: Arc::clone(&inner.alarms),
            wants_alarm: AtomicBool::new(false),
            alarm_us: AtomicU64::new(u64::MAX),
            health: Mutex::new(BackEndHealth::new(problem)),
            check_soon: tokio::sync::Notify::new(),
            used: watch::Sender::new(true),
            closed: CancellationToken::new(),
        };
        let machine = Arc::new(HttpMachine::new(machine, step, NoJournal, handler));
        let _ = machine.handler().machine.set(Arc::downgrade(&machine));
        machine.start();
        if unhealthy {
            machine.step_events([WorkerEvent::BackEndChecked { executor: 0, is_healthy: false }]);
        }
        let interval = inner.settings.health_interval;
        inner.runtime.spawn(health::monitor(Arc::downgrade(&machine), interval));
        machine
    }

    /// Whether the worker is one of these.
    pub fn knows(&self, worker: WorkerId) -> bool {
        lock(&self.0.members).contains_key(&worker)
    }

    /// The host and port of a worker, for display.
    pub fn authority(&self, worker: WorkerId) -> Option<String> {
        lock(&self.0.members).get(&worker).map(|member| member.authority.clone())
    }

    /// All of these workers.
    pub fn all(&self) -> Vec<Arc<Worker>> {
        lock(&self.0.members).values().map(|member| Arc::clone(&member.worker)).collect()
    }

    /// Sends a message to a worker. Never blocks.
    pub fn send(&self, worker: WorkerId, message: ToWorker) {
        let machine = {
            let mut members = lock(&self.0.members);
            members.get_mut(&worker).map(|member| {
                // A scheduler that requests a lease has readmitted the worker.
                if matches!(message, ToWorker::RequestLease { .. }) {
                    member.set_removed(false);
                }
                Arc::clone(&member.machine)
            })
        };
        match (machine, message) {
            (Some(machine), message) => {
                let scheduler = self.0.scheduler.id;
                machine.step_events([WorkerEvent::SchedulerMessageReceived { scheduler, message }]);
            }
            (None, ToWorker::Dispatch(dispatch)) => {
                let (attempt, fence) = (dispatch.attempt, dispatch.fence);
                let refusal = Refusal::without_amount(RefusalKind::Unavailable);
                let response = FromWorker::Refused { attempt, fence, refusal };
                let on_message = Arc::clone(&self.0.scheduler.on_message);
                self.0.runtime.spawn(async move { on_message(worker, response) });
            }
            // An unknown worker does not respond.
            (None, _) => {}
        }
    }

    /// Marks a worker as removed: it is kept in case it is readmitted, until another needs its place.
    pub fn mark_removed(&self, worker: WorkerId) {
        if let Some(member) = lock(&self.0.members).get_mut(&worker) {
            member.set_removed(true);
            member.machine.handler().close_idle();
        }
    }

    /// Drops a worker with all its attempts; its later messages are ignored.
    pub fn forget(&self, worker: WorkerId) {
        let Some(member) = lock(&self.0.members).remove(&worker) else { return };
        member.machine.handler().close();
        if member.location.is_some() {
            let this = self.clone();
            self.0.runtime.spawn(async move {
                if let Err(error) = this.save().await {
                    tracing::warn!(%error, "cannot delete a removed worker from http-workers.json");
                }
            });
        }
    }

    /// Ends all calls without a report: the process stops.
    pub fn close(&self) {
        self.0.close();
    }

    /// Whether this is the secret of an attempt that has not ended.
    pub fn knows_secret(&self, secret: &str) -> bool {
        self.0.secrets.find_by_secret(secret).is_some()
    }

    /// Handles a notification. Only the secret of an attempt proves that it is authentic; any other notification only
    /// triggers a poll of the instance.
    pub fn notified(&self, notification: InstanceNotification) {
        let InstanceNotification { task, secret, status, result, error, execution_time_ms } =
            notification;
        let proven = secret.and_then(|secret| self.0.secrets.find_by_secret(&secret));
        let (attempt, report) = match proven {
            Some(attempt) => {
                let report = instance::InstanceReport { status, result, error, execution_time_ms };
                (attempt, Some(Box::new(report)))
            }
            None => match self.0.secrets.find_by_task(&task) {
                Some(attempt) => (attempt, None),
                None => return,
            },
        };
        let machine =
            lock(&self.0.members).get(&attempt.worker).map(|member| Arc::clone(&member.machine));
        if let Some(machine) = machine {
            machine.handler().notified(attempt.fence, report);
        }
    }
}

impl Inner {
    fn close(&self) {
        for member in lock(&self.members).values() {
            member.machine.handler().close();
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.close();
    }
}
