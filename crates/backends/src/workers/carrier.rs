//! What surrounds the machine of an HTTP worker: its runs are HTTP calls, and its messages go to the scheduler of this
//! process.
//!
//! A dispatch is carried out where it arrives: the call is made on the thread of the request that it answers.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use hypha_driver::{Carrier, Shared, Stopped};
use hypha_engine::back_end::{BackEndHealth, RunEnd};
use hypha_engine::{
    Dispatch, FromWorker, Outcome, Run, RunId, Said, WorkerEffect, WorkerEvent, WorkerMachine,
};
use hypha_machine::{NoJournal, Released};
use hypha_model::{Fence, Time, Worker};
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::SchedulerSide;
use super::health::Alarms;
use super::instance::{InstanceBackend, Report};
use super::server::ServerBackend;
use crate::transport::locked;

/// Notifications about a run that wait for it. Each only makes it look, so more are not needed.
const MAX_NOTIFICATIONS: usize = 8;

/// The machine of an HTTP worker. Nothing of it is durable: what it ran is known to the scheduler.
pub(super) type HttpMachine = Shared<WorkerMachine, NoJournal, HttpCarrier>;

/// See the head of this file.
pub(super) struct HttpCarrier {
    pub(super) worker: Arc<Worker>,
    pub(super) back_end: BackEnd,
    pub(super) scheduler: SchedulerSide,
    /// Messages may come from a thread that is not of the runtime.
    pub(super) runtime: Handle,
    pub(super) machine: OnceLock<Weak<HttpMachine>>,
    pub(super) runs: Mutex<HashMap<RunId, RunEntry>>,
    pub(super) answers: Mutex<Answers>,
    /// The alarms of all workers.
    pub(super) alarms: Arc<Alarms>,
    /// The machine wants to be woken earlier than it wanted before.
    pub(super) wants_alarm: AtomicBool,
    /// When it wanted to be woken when it was last asked.
    pub(super) alarm_us: AtomicU64,
    /// Whether the back end can be used.
    pub(super) health: Mutex<BackEndHealth>,
    /// A call did not reach the back end: look at its health now.
    pub(super) missed: Notify,
    /// Whether the worker is used. One that was removed is kept, and not asked for its health.
    pub(super) used: watch::Sender<bool>,
    /// The worker is dropped.
    pub(super) closed: CancellationToken,
}

/// Answers that wait to be given, in order.
#[derive(Default)]
pub(super) struct Answers {
    messages: VecDeque<FromWorker>,
    /// Whether a task gives them.
    is_sent: bool,
}

impl Answers {
    fn next(&mut self) -> Option<FromWorker> {
        let next = self.messages.pop_front();
        self.is_sent = next.is_some();
        next
    }
}

/// What does the work.
pub(super) enum BackEnd {
    Server(ServerBackend),
    Instance(InstanceBackend),
}

/// A run that has not ended, or that was stopped before it was started: the two come from different threads.
pub(super) struct RunEntry {
    stop: CancellationToken,
    notify: Option<mpsc::Sender<Notified>>,
}

/// What is said about a run at a task instance: a report, if the caller has proven that it is the instance.
pub(super) type Notified = Option<Box<Report>>;

/// What a run knows of itself.
pub(super) struct RunContext {
    pub(super) carrier: Arc<HttpMachine>,
    pub(super) dispatch: Arc<Dispatch>,
    pub(super) stop: CancellationToken,
    pub(super) notified: mpsc::Receiver<Notified>,
}

impl HttpCarrier {
    /// Something is said about a run of this worker.
    pub(super) fn notified(&self, fence: Fence, report: Notified) {
        let id = RunId { scheduler: self.scheduler.id, fence };
        let notify = locked(&self.runs).get(&id).and_then(|entry| entry.notify.clone());
        if let Some(notify) = notify {
            // If there is no room for it, the next poll finds the same.
            let _ = notify.try_send(report);
        }
    }

    /// Ends every call: the worker is dropped.
    pub(super) fn close(&self) {
        self.closed.cancel();
        self.close_kept();
    }

    /// Closes connections that no call uses.
    pub(super) fn close_kept(&self) {
        match &self.back_end {
            BackEnd::Server(server) => server.close_kept(),
            BackEnd::Instance(instance) => instance.close_kept(),
        }
    }

    /// How many calls are in flight.
    pub(super) fn in_flight(&self) -> usize {
        locked(&self.runs).len()
    }

    /// Says something to the scheduler. Not with a lock held: it may answer at once.
    pub(super) fn say(&self, message: FromWorker) {
        (self.scheduler.hear)(self.worker.id, message);
    }

    /// A call did not reach the back end: it is given nothing until a health check passes.
    pub(super) fn not_reached(&self, error: &str) {
        locked(&self.health).missed(error);
        self.tell(WorkerEvent::Looked { executor: 0, well: false });
        self.missed.notify_one();
    }

    /// Why nothing new is sent to the back end, if that is so: the scheduler hears when it is well again.
    pub(super) fn unused(&self) -> Option<RunEnd> {
        let error = locked(&self.health).problem()?.to_owned();
        Some(RunEnd::Outcome(Outcome::Unreached { error }, None))
    }

    fn tell(&self, event: WorkerEvent) {
        if let Some(machine) = self.machine.get().and_then(Weak::upgrade) {
            machine.tell([event]);
        }
    }

    fn carry_out(&self, effects: impl Iterator<Item = WorkerEffect>) {
        let mut answers = Vec::new();
        for effect in effects {
            match effect {
                WorkerEffect::Run(Run::Start { id, dispatch, .. }) => self.start(id, dispatch),
                WorkerEffect::Run(Run::Stop(id)) => self.stop(id),
                WorkerEffect::Say(Said { message, .. }) => match message {
                    // A run says so itself if it takes a while: its end tells how long it was.
                    FromWorker::Started { fence, .. } if !self.is_running(fence) => {}
                    FromWorker::Finished { .. } => self.say(message),
                    other => answers.push(other),
                },
            }
        }
        if !answers.is_empty() {
            self.answer_later(answers);
        }
    }

    /// Answers, but not within the call that brought the question: the scheduler may answer with another message, and so
    /// on without an end.
    fn answer_later(&self, answers: Vec<FromWorker>) {
        let mut waiting = locked(&self.answers);
        waiting.messages.extend(answers);
        if std::mem::replace(&mut waiting.is_sent, true) {
            return;
        }
        let Some(machine) = self.machine.get().and_then(Weak::upgrade) else { return };
        self.runtime.spawn(async move {
            let carrier = machine.carrier();
            while let Some(answer) = locked(&carrier.answers).next() {
                carrier.say(answer);
            }
        });
    }

    fn is_running(&self, fence: Fence) -> bool {
        locked(&self.runs).contains_key(&RunId { scheduler: self.scheduler.id, fence })
    }

    fn start(&self, id: RunId, dispatch: Arc<Dispatch>) {
        let Some(machine) = self.machine.get().and_then(Weak::upgrade) else { return };
        let (notify, notified) = mpsc::channel(MAX_NOTIFICATIONS);
        let notify = matches!(self.back_end, BackEnd::Instance(_)).then_some(notify);
        let stop = {
            let mut runs = locked(&self.runs);
            // It is there already if it was stopped before it was started.
            let stop = runs.remove(&id).map_or_else(CancellationToken::new, |entry| entry.stop);
            runs.insert(id, RunEntry { stop: stop.clone(), notify });
            stop
        };
        let context = RunContext { carrier: machine, dispatch, stop, notified };
        // Next to the request that it answers, which is most often at home where we are called.
        match Handle::try_current() {
            Ok(here) => drop(here.spawn(run(id, context))),
            Err(_) => drop(self.runtime.spawn(run(id, context))),
        }
    }

    fn stop(&self, id: RunId) {
        let Some(machine) = self.machine.get().and_then(Weak::upgrade) else { return };
        {
            let mut runs = locked(&self.runs);
            let entry = runs.entry(id);
            let entry =
                entry.or_insert_with(|| RunEntry { stop: CancellationToken::new(), notify: None });
            entry.stop.cancel();
        }
        // If it has ended meanwhile, nothing will start or end under this name any more.
        if !machine.read(|machine, _| machine.has_run(id)) {
            locked(&self.runs).remove(&id);
        }
    }
}

impl BackEnd {
    async fn run(&self, id: RunId, context: RunContext) -> RunEnd {
        match self {
            BackEnd::Server(server) => server.run(context).await,
            BackEnd::Instance(instance) => instance.run(id, context).await,
        }
    }
}

/// Runs a task, and tells the machine of its end.
async fn run(id: RunId, context: RunContext) {
    let machine = Arc::clone(&context.carrier);
    let carrier = machine.carrier();
    let ended = tokio::select! {
        biased;
        () = carrier.closed.cancelled() => return,
        ended = carrier.back_end.run(id, context) => ended,
    };
    if let RunEnd::Outcome(Outcome::Unreached { error }, _) = &ended {
        carrier.not_reached(error);
    }
    machine.tell([ended.event(id)]);
    // After the machine knows: it does not stop this run from now on.
    locked(&carrier.runs).remove(&id);
}

impl Carrier<WorkerMachine> for HttpCarrier {
    type Requester = ();

    fn now(&self) -> Time {
        (self.scheduler.now)()
    }

    fn released(&self, released: &mut Released<WorkerMachine, ()>) {
        self.carry_out(released.effects.drain(..));
    }

    fn at_once(&self, effects: Vec<WorkerEffect>) {
        self.carry_out(effects.into_iter());
    }

    fn refuse(&self, (): (), _: &Stopped) {}

    fn wake_earlier(&self) {
        self.wants_alarm.store(true, Ordering::Release);
        self.alarms.ask();
    }

    fn settled(&self) {}

    fn failed(&self, _: &Stopped) {}
}
