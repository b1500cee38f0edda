//! Carries out the effects of the scheduler's machine: messages to workers, replies and notices to clients.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use hypha_api::{ServiceUnavailable, SubmitResult, Watch};
use hypha_driver::{EffectHandler, SharedMachine, Stopped};
use hypha_engine::store::AnyStore;
use hypha_engine::{
    Advert, Effect, Notice, Record, Reply, Scheduler, SubmitRejection, Submitted, ToWorker,
};
use hypha_machine::Released;
use hypha_model::{AdvertId, Fence, Payload, TaskId, Time, Worker, WorkerId};
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot, watch};

use super::metrics::SchedulerMetrics;
use super::watchers::Watchers;
use crate::clock::Clock;
use crate::crash::{CrashPoint, crash_point};

/// Sends messages to workers.
pub(crate) trait Transport: Send + Sync {
    /// Sends a message, or drops it: the machine expects that messages are lost. Never blocks.
    fn send(&self, worker: WorkerId, message: ToWorker);

    /// Sends an advert to all workers of the network, or drops it. Never blocks.
    fn advertise(&self, advert: Arc<Advert>);

    /// Ends an advert that was sent to all workers.
    fn close_advert(&self, advert: AdvertId);

    /// The machine has forgotten this worker.
    fn forget(&self, worker: WorkerId);

    /// The machine has forgotten this worker because an operator removed it; it may be readmitted.
    fn mark_removed(&self, worker: WorkerId);

    /// Workers that were registered, and are not found by discovery.
    fn registered_workers(&self) -> Vec<Arc<Worker>>;

    /// Workers that are connected now.
    fn connected_workers(&self) -> Vec<Arc<Worker>>;
}

/// How the requester of an event gets its reply.
pub(crate) enum Requester {
    /// A command.
    Command(oneshot::Sender<Result<Reply, ServiceUnavailable>>),
    /// Stored tasks, whether they are watched, and the runtime that waits for the reply.
    Submit {
        answer: oneshot::Sender<Result<Vec<SubmitResult>, ServiceUnavailable>>,
        watch: bool,
        runtime: Option<Handle>,
    },
    /// The caller takes the reply from the step itself.
    Synchronous,
}

/// The machine with its store and its effect handler.
pub(crate) type SchedulerMachine = SharedMachine<Scheduler, AnyStore, SchedulerEffectHandler>;

/// See the module documentation.
pub(crate) struct SchedulerEffectHandler {
    machine: OnceLock<Weak<SchedulerMachine>>,
    watchers: Mutex<Watchers>,
    transport: Box<dyn Transport>,
    metrics: SchedulerMetrics,
    /// How many tasks the machine had placed after its last step.
    assigned: AtomicU64,
    pub(super) clock: Clock,
    /// The machine requests to be woken earlier than before.
    pub(super) earlier: Notify,
    /// A worker has granted a lease.
    pub(super) leased: Notify,
    /// How often a job has changed.
    pub(super) job_changes: watch::Sender<u64>,
    /// The store has failed.
    pub(super) store_failed: Notify,
    /// All records are committed.
    pub(super) settled: Notify,
}

impl SchedulerEffectHandler {
    pub(super) fn new(
        clock: Clock,
        metrics: SchedulerMetrics,
        transport: Box<dyn Transport>,
    ) -> SchedulerEffectHandler {
        SchedulerEffectHandler {
            machine: OnceLock::new(),
            watchers: Mutex::default(),
            transport,
            metrics,
            assigned: AtomicU64::new(0),
            clock,
            earlier: Notify::new(),
            leased: Notify::new(),
            job_changes: watch::Sender::new(0),
            store_failed: Notify::new(),
            settled: Notify::new(),
        }
    }

    /// Sets the machine whose effects are carried out.
    pub(super) fn set_machine(&self, machine: &Arc<SchedulerMachine>) {
        let _ = self.machine.set(Arc::downgrade(machine));
    }

    pub(super) fn transport(&self) -> &dyn Transport {
        &*self.transport
    }

    /// Watches a task from now on.
    pub(super) fn watch(&self, task: TaskId) -> Watch {
        lock(&self.watchers).add(task)
    }

    /// Forwards a piece of a streamed result to the watches of its task. Returns it if the machine has to see it.
    pub(super) fn forward_output(
        &self,
        worker: WorkerId,
        fence: Fence,
        piece: Payload,
    ) -> Option<Payload> {
        lock(&self.watchers).forward_output(worker, fence, piece)
    }

    /// Each result, with a watch if one is requested. A repeated task may have ended long ago; its watch then never
    /// delivers a notice.
    pub(super) fn accept(
        &self,
        answers: Vec<Result<Submitted, SubmitRejection>>,
        watch: bool,
    ) -> Vec<SubmitResult> {
        let mut watchers = watch.then(|| lock(&self.watchers));
        let mut accept = |submitted: Submitted| {
            let watch = watchers.as_mut().map(|watchers| watchers.add(submitted.task));
            (submitted, watch)
        };
        answers.into_iter().map(|answer| answer.map(&mut accept)).collect()
    }

    /// Carries out effects: notices first, since a fast worker's response causes more of them while messages are sent.
    fn handle_effects(&self, effects: &mut Vec<Effect>) {
        self.notify(effects);
        for effect in effects.drain(..) {
            match effect {
                Effect::ToWorker { worker, message } => self.transport.send(worker, message),
                Effect::WorkerLeased(_) => self.leased.notify_waiters(),
                Effect::WorkerForgotten(worker) => self.forget(worker),
                Effect::GossipAdvert(advert) => self.transport.advertise(advert),
                Effect::GossipAdvertClosed(advert) => self.transport.close_advert(advert),
                Effect::JobChanged(_) => {
                    self.job_changes.send_modify(|changes| *changes = changes.wrapping_add(1));
                }
                Effect::Notice { .. } | Effect::ForwardOutput { .. } => {}
            }
        }
    }

    /// Forgets a worker, unless the machine knows it again by now.
    fn forget(&self, worker: WorkerId) {
        let Some(machine) = self.machine.get().and_then(Weak::upgrade) else { return };
        let (known, removed) = machine
            .read(|scheduler, _| (scheduler.knows_worker(worker), scheduler.is_removed(worker)));
        match (known, removed) {
            (true, _) => {}
            (false, true) => self.transport.mark_removed(worker),
            (false, false) => self.transport.forget(worker),
        }
    }

    fn notify(&self, effects: &[Effect]) {
        let concerns = |effect: &Effect| {
            matches!(effect, Effect::Notice { .. } | Effect::ForwardOutput { .. })
        };
        if !effects.iter().any(concerns) {
            return;
        }
        let mut watchers = lock(&self.watchers);
        for effect in effects {
            match effect {
                Effect::ForwardOutput { task, worker, fence } => {
                    watchers.start_stream(*task, *worker, *fence)
                }
                Effect::Notice { task, notice } => {
                    if let Notice::Ended { accepted, finished } = notice {
                        self.metrics.observe_end(accepted, finished);
                    }
                    watchers.notify(*task, notice);
                }
                _ => {}
            }
        }
    }
}

impl EffectHandler<Scheduler> for SchedulerEffectHandler {
    type Requester = Requester;

    fn now(&self) -> Time {
        self.clock.now()
    }

    fn stepped(&self, machine: &Scheduler, began: Time) {
        let assigned = machine.strategy().1.assigned;
        let before = self.assigned.swap(assigned, Ordering::Relaxed);
        // A new strategy counts from zero.
        let decided = assigned.saturating_sub(before);
        if decided > 0 {
            self.metrics.observe_selection(decided, self.clock.now().since(began));
        }
    }

    fn committing(&self, records: &[Record]) {
        if cfg!(feature = "crash-points") {
            if records.iter().any(|record| matches!(record, Record::Accepted(_))) {
                crash_point(CrashPoint::AcceptedBeforeCommit);
            }
            if records.iter().any(|record| matches!(record, Record::Finished(_))) {
                crash_point(CrashPoint::ResultBeforeCommit);
            }
        }
    }

    fn handle_released(&self, released: &mut Released<Scheduler, Requester>) {
        let is_dispatch = |effect: &Effect| {
            matches!(effect, Effect::ToWorker { message: ToWorker::Dispatch(_), .. })
        };
        let replies = !released.replies.is_empty();
        if cfg!(feature = "crash-points") && (replies || released.effects.iter().any(is_dispatch)) {
            crash_point(CrashPoint::CommittedBeforeSend);
        }
        // Watches begin before messages are sent: a fast worker responds during this call, and a client that watches
        // its task must not miss a notice.
        let accept = |(requester, reply): (Requester, Reply)| {
            requester.into_reply(reply, |answers, watch| self.accept(answers, watch))
        };
        let answers: Vec<PendingReply> = released.replies.drain(..).map(accept).collect();
        self.handle_effects(&mut released.effects);
        if replies {
            crash_point(CrashPoint::SentBeforeReply);
        }
        send_all(answers);
    }

    fn handle_at_once(&self, mut effects: Vec<Effect>) {
        self.handle_effects(&mut effects);
    }

    fn refuse(&self, requester: Requester, why: &Stopped) {
        let why = ServiceUnavailable(why.to_string());
        // The client may have disconnected.
        match requester {
            Requester::Command(answer) => drop(answer.send(Err(why))),
            Requester::Submit { answer, .. } => drop(answer.send(Err(why))),
            Requester::Synchronous => {}
        }
    }

    fn wake_earlier(&self) {
        self.earlier.notify_one();
    }

    fn settled(&self) {
        self.settled.notify_waiters();
    }

    fn journal_failed(&self, why: &Stopped) {
        tracing::error!(
            "the scheduler stops acknowledging: {why}; it recovers when the store works again"
        );
        lock(&self.watchers).clear();
        self.store_failed.notify_one();
    }
}

impl Requester {
    /// The reply for this requester; `accept` adds watches to submitted tasks.
    pub(super) fn into_reply(
        self,
        reply: Reply,
        accept: impl FnOnce(Vec<Result<Submitted, SubmitRejection>>, bool) -> Vec<SubmitResult>,
    ) -> PendingReply {
        match (self, reply) {
            (Requester::Command(answer), reply) => PendingReply::Command(answer, reply),
            (Requester::Submit { answer, watch, runtime }, Reply::Submitted(answers)) => {
                PendingReply::Submit(answer, Ok(accept(answers, watch)), runtime)
            }
            (Requester::Submit { answer, runtime, .. }, _) => {
                let error = ServiceUnavailable("the scheduler returned an unexpected reply".into());
                PendingReply::Submit(answer, Err(error), runtime)
            }
            (Requester::Synchronous, _) => PendingReply::None,
        }
    }
}

/// A reply that is ready to be sent.
pub(super) enum PendingReply {
    Command(oneshot::Sender<Result<Reply, ServiceUnavailable>>, Reply),
    Submit(
        oneshot::Sender<Result<Vec<SubmitResult>, ServiceUnavailable>>,
        Result<Vec<SubmitResult>, ServiceUnavailable>,
        Option<Handle>,
    ),
    None,
}

impl PendingReply {
    pub(super) fn send(self) {
        // The client may have disconnected.
        match self {
            PendingReply::Command(to, reply) => drop(to.send(Ok(reply))),
            PendingReply::Submit(to, accepted, _) => drop(to.send(accepted)),
            PendingReply::None => {}
        }
    }

    fn runtime(&self) -> Option<&Handle> {
        match self {
            PendingReply::Submit(_, _, runtime) => runtime.as_ref(),
            PendingReply::Command(..) | PendingReply::None => None,
        }
    }
}

/// Sends replies. Those that one runtime waits for are sent from that runtime, after one wake-up: to wake a runtime
/// from here is a system call, and its own tasks wake each other without one.
fn send_all(replies: Vec<PendingReply>) {
    let mut together: Vec<(Handle, Vec<PendingReply>)> = Vec::new();
    for reply in replies {
        let Some(runtime) = reply.runtime() else {
            reply.send();
            continue;
        };
        match together.iter_mut().find(|(one, _)| one.id() == runtime.id()) {
            Some((_, replies)) => replies.push(reply),
            None => together.push((runtime.clone(), vec![reply])),
        }
    }
    for (runtime, mut replies) in together {
        match replies.len() {
            1 => replies.drain(..).for_each(PendingReply::send),
            _ => {
                drop(runtime.spawn(async move { replies.into_iter().for_each(PendingReply::send) }))
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
