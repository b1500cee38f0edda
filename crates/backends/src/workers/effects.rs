//! The effect handler of an HTTP worker's machine: its runs are HTTP calls, and its messages go to the scheduler of
//! this process.
//!
//! A dispatch is carried out where it arrives: the call is made on the thread of the client's request.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use hypha_driver::{EffectHandler, SharedMachine, Stopped};
use hypha_engine::back_end::{BackEndHealth, RunEnd};
use hypha_engine::{
    Dispatch, FromWorker, Outcome, OutgoingMessage, RunCommand, RunId, WorkerEffect, WorkerEvent,
    WorkerMachine,
};
use hypha_machine::{NoJournal, Released};
use hypha_model::{FailureKind, Fence, Time, Worker};
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::SchedulerHandle;
use super::health::AlarmNotifier;
use super::http_back_end::HttpBackEnd;
use super::instance::{InstanceBackEnd, InstanceReport};
use crate::transport::lock;

/// Notifications that are queued for a run. Each only triggers a check, so more are not needed.
const MAX_NOTIFICATIONS: usize = 8;

/// The machine of an HTTP worker. It has no durable state: the scheduler records its attempts.
pub(super) type HttpMachine = SharedMachine<WorkerMachine, NoJournal, HttpEffectHandler>;

/// See the module documentation.
pub(super) struct HttpEffectHandler {
    pub(super) worker: Arc<Worker>,
    pub(super) back_end: WorkerBackEnd,
    pub(super) scheduler: SchedulerHandle,
    /// Messages may be sent from a thread outside of the runtime.
    pub(super) runtime: Handle,
    pub(super) machine: OnceLock<Weak<HttpMachine>>,
    pub(super) runs: Mutex<HashMap<RunId, RunEntry>>,
    pub(super) outbox: Mutex<Outbox>,
    /// The alarms of all workers.
    pub(super) alarms: Arc<AlarmNotifier>,
    /// The machine requests to be woken earlier than before.
    pub(super) wants_alarm: AtomicBool,
    /// The time at which the machine is to be woken, as of the last check.
    pub(super) alarm_us: AtomicU64,
    /// Whether the back end can be used.
    pub(super) health: Mutex<BackEndHealth>,
    /// A call did not reach the back end, or got an error from it: check its health soon.
    pub(super) check_soon: Notify,
    /// Whether the worker is used. A removed worker is kept, and its health is not checked.
    pub(super) used: watch::Sender<bool>,
    /// The worker is dropped.
    pub(super) closed: CancellationToken,
}

/// Messages that wait to be sent to the scheduler, in order.
#[derive(Default)]
pub(super) struct Outbox {
    messages: VecDeque<FromWorker>,
    /// Whether a task sends them.
    is_draining: bool,
}

impl Outbox {
    fn next(&mut self) -> Option<FromWorker> {
        let next = self.messages.pop_front();
        self.is_draining = next.is_some();
        next
    }
}

/// The back end that runs the tasks of a worker.
pub(super) enum WorkerBackEnd {
    Http(HttpBackEnd),
    Instance(InstanceBackEnd),
}

/// A run that has not ended, or that was stopped before it was started: the two come from different threads.
pub(super) struct RunEntry {
    stop: CancellationToken,
    notify: Option<mpsc::Sender<RunNotification>>,
}

/// A notification about a run at a task instance: a report, if the caller has proven that it is the instance.
pub(super) type RunNotification = Option<Box<InstanceReport>>;

/// What a run needs.
pub(super) struct RunContext {
    pub(super) machine: Arc<HttpMachine>,
    pub(super) dispatch: Arc<Dispatch>,
    pub(super) stop: CancellationToken,
    /// Of a run at a task instance: the notifications about it.
    pub(super) notified: Option<mpsc::Receiver<RunNotification>>,
}

impl RunContext {
    /// The next notification about the run.
    pub(super) async fn next_notified(&mut self) -> Option<RunNotification> {
        self.notified.as_mut()?.recv().await
    }
}

impl HttpEffectHandler {
    /// Passes a notification to a run of this worker.
    pub(super) fn notified(&self, fence: Fence, report: RunNotification) {
        let id = RunId { scheduler: self.scheduler.id, fence };
        let notify = lock(&self.runs).get(&id).and_then(|entry| entry.notify.clone());
        if let Some(notify) = notify {
            // If the queue is full, the next poll finds the same.
            let _ = notify.try_send(report);
        }
    }

    /// Ends every call: the worker is dropped.
    pub(super) fn close(&self) {
        self.closed.cancel();
        self.close_idle();
    }

    /// Closes connections that no call uses.
    pub(super) fn close_idle(&self) {
        match &self.back_end {
            WorkerBackEnd::Http(server) => server.close_idle(),
            WorkerBackEnd::Instance(instance) => instance.close_idle(),
        }
    }

    /// How many calls are in flight.
    pub(super) fn in_flight(&self) -> usize {
        lock(&self.runs).len()
    }

    /// Sends a message to the scheduler. Must not be called with a lock held: the scheduler may respond at once.
    pub(super) fn send_to_scheduler(&self, message: FromWorker) {
        (self.scheduler.on_message)(self.worker.id, message);
    }

    /// A call did not reach the back end: it gets no tasks until a health check passes.
    pub(super) fn mark_unreachable(&self, error: &str) {
        lock(&self.health).call_failed(error);
        self.tell(WorkerEvent::BackEndChecked { executor: 0, is_healthy: false });
        self.check_soon.notify_one();
    }

    /// The end of a new run if the back end is unavailable: the scheduler is notified when it is healthy again.
    pub(super) fn unavailable(&self) -> Option<RunEnd> {
        let error = lock(&self.health).problem()?.to_owned();
        Some(RunEnd::Outcome(Outcome::Unreachable { error }, None))
    }

    fn tell(&self, event: WorkerEvent) {
        if let Some(machine) = self.machine.get().and_then(Weak::upgrade) {
            machine.step_events([event]);
        }
    }

    fn handle_effects(&self, effects: impl Iterator<Item = WorkerEffect>) {
        let mut messages = Vec::new();
        for effect in effects {
            match effect {
                WorkerEffect::Run(RunCommand::Start { id, dispatch, .. }) => {
                    self.start(id, dispatch)
                }
                WorkerEffect::Run(RunCommand::Stop(id)) => self.stop(id),
                WorkerEffect::Send(OutgoingMessage { message, .. }) => match message {
                    // A run that takes a while reports its start itself; the report of the end has the run time.
                    FromWorker::Started { fence, .. } if !self.is_running(fence) => {}
                    FromWorker::Finished { .. } => self.send_to_scheduler(message),
                    other => messages.push(other),
                },
            }
        }
        if !messages.is_empty() {
            self.send_later(messages);
        }
    }

    /// Sends messages, but not within the call that caused them: the scheduler may respond with another message, and so
    /// on without an end.
    fn send_later(&self, messages: Vec<FromWorker>) {
        let mut waiting = lock(&self.outbox);
        waiting.messages.extend(messages);
        if std::mem::replace(&mut waiting.is_draining, true) {
            return;
        }
        let Some(machine) = self.machine.get().and_then(Weak::upgrade) else { return };
        self.runtime.spawn(async move {
            let handler = machine.handler();
            while let Some(message) = lock(&handler.outbox).next() {
                handler.send_to_scheduler(message);
            }
        });
    }

    fn is_running(&self, fence: Fence) -> bool {
        lock(&self.runs).contains_key(&RunId { scheduler: self.scheduler.id, fence })
    }

    fn start(&self, id: RunId, dispatch: Arc<Dispatch>) {
        let Some(machine) = self.machine.get().and_then(Weak::upgrade) else { return };
        let (notify, notified) = match self.back_end {
            WorkerBackEnd::Instance(_) => {
                let (notify, notified) = mpsc::channel(MAX_NOTIFICATIONS);
                (Some(notify), Some(notified))
            }
            WorkerBackEnd::Http(_) => (None, None),
        };
        let stop = {
            let mut runs = lock(&self.runs);
            // The entry exists already if the run was stopped before it was started.
            let stop = runs.remove(&id).map_or_else(CancellationToken::new, |entry| entry.stop);
            runs.insert(id, RunEntry { stop: stop.clone(), notify });
            stop
        };
        let context = RunContext { machine, dispatch, stop, notified };
        // On the runtime of the client's request, which is most often the current one.
        match Handle::try_current() {
            Ok(here) => drop(here.spawn(run(id, context))),
            Err(_) => drop(self.runtime.spawn(run(id, context))),
        }
    }

    fn stop(&self, id: RunId) {
        let Some(machine) = self.machine.get().and_then(Weak::upgrade) else { return };
        {
            let mut runs = lock(&self.runs);
            let entry = runs.entry(id);
            let entry =
                entry.or_insert_with(|| RunEntry { stop: CancellationToken::new(), notify: None });
            entry.stop.cancel();
        }
        // If the run has ended meanwhile, no run with this id will start or end any more.
        if !machine.read(|machine, _| machine.has_run(id)) {
            lock(&self.runs).remove(&id);
        }
    }
}

impl WorkerBackEnd {
    async fn run(&self, id: RunId, context: RunContext) -> RunEnd {
        match self {
            WorkerBackEnd::Http(server) => server.run(context).await,
            WorkerBackEnd::Instance(instance) => instance.run(id, context).await,
        }
    }
}

/// Runs a task, and reports its end to the machine.
async fn run(id: RunId, context: RunContext) {
    let machine = Arc::clone(&context.machine);
    let handler = machine.handler();
    let ended = tokio::select! {
        biased;
        () = handler.closed.cancelled() => return,
        ended = handler.back_end.run(id, context) => ended,
    };
    match &ended {
        RunEnd::Outcome(Outcome::Unreachable { error }, _) => handler.mark_unreachable(error),
        // The answer alone does not show whether it can work on other requests.
        RunEnd::Outcome(Outcome::Failed(error), _) if error.kind == FailureKind::BackendError => {
            handler.check_soon.notify_one();
        }
        RunEnd::Outcome(..) | RunEnd::Declined => {}
    }
    machine.step_events([ended.event(id)]);
    // After the machine knows of the end: it does not stop this run from now on.
    lock(&handler.runs).remove(&id);
}

impl EffectHandler<WorkerMachine> for HttpEffectHandler {
    type Requester = ();

    fn now(&self) -> Time {
        (self.scheduler.now)()
    }

    fn handle_released(&self, released: &mut Released<WorkerMachine, ()>) {
        self.handle_effects(released.effects.drain(..));
    }

    fn handle_at_once(&self, effects: Vec<WorkerEffect>) {
        self.handle_effects(effects.into_iter());
    }

    fn refuse(&self, (): (), _: &Stopped) {}

    fn wake_earlier(&self) {
        self.wants_alarm.store(true, Ordering::Release);
        self.alarms.request();
    }

    fn settled(&self) {}

    fn journal_failed(&self, _: &Stopped) {}
}
