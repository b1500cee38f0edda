//! Carries out what the scheduler's machine wants: messages to workers, replies and notices to clients.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use hypha_api::{Accepted, Unavailable, Watch};
use hypha_driver::{Carrier, Shared, Stopped};
use hypha_engine::store::AnyStore;
use hypha_engine::{Effect, Notice, Record, Reject, Reply, Scheduler, Submitted, ToWorker};
use hypha_machine::Released;
use hypha_model::{Fence, Payload, TaskId, Time, Worker, WorkerId};
use tokio::sync::{Notify, oneshot};

use super::figures::Figures;
use super::watchers::Watchers;
use crate::clock::Clock;
use crate::crash::{CrashPoint, crash_point};

/// How messages get to workers.
pub(crate) trait Transport: Send + Sync {
    /// Sends, or drops: the machine expects that messages are lost. Never waits.
    fn send(&self, worker: WorkerId, message: ToWorker);

    /// The machine has forgotten this worker.
    fn forget(&self, worker: WorkerId);

    /// The same, but an operator removed it and may want it again.
    fn retire(&self, worker: WorkerId);

    /// Workers that are known here without being searched for.
    fn known(&self) -> Vec<Arc<Worker>>;

    /// Workers that are connected now.
    fn connected(&self) -> Vec<Arc<Worker>>;
}

/// How the requester of an event gets its reply.
pub(crate) enum Requester {
    /// A command.
    Command(oneshot::Sender<Result<Reply, Unavailable>>),
    /// Tasks that are to be durable, and whether they are watched.
    Submit { answer: oneshot::Sender<Result<Vec<Accepted>, Unavailable>>, watch: bool },
    /// Its caller waits for the step itself.
    OnTheLine,
}

/// The machine with what makes it durable and what carries out its effects.
pub(crate) type SchedulerMachine = Shared<Scheduler, AnyStore, SchedulerCarrier>;

/// See the head of this file.
pub(crate) struct SchedulerCarrier {
    machine: OnceLock<Weak<SchedulerMachine>>,
    watchers: Mutex<Watchers>,
    transport: Box<dyn Transport>,
    figures: Figures,
    /// How many tasks the machine had placed after its last step.
    assigned: AtomicU64,
    pub(super) clock: Clock,
    /// The machine wants to be woken earlier than it wanted before.
    pub(super) earlier: Notify,
    /// A worker has granted a lease.
    pub(super) leased: Notify,
    /// The store has failed.
    pub(super) broken: Notify,
    /// Nothing is left to be committed.
    pub(super) settled: Notify,
}

impl SchedulerCarrier {
    pub(super) fn new(
        clock: Clock,
        figures: Figures,
        transport: Box<dyn Transport>,
    ) -> SchedulerCarrier {
        SchedulerCarrier {
            machine: OnceLock::new(),
            watchers: Mutex::default(),
            transport,
            figures,
            assigned: AtomicU64::new(0),
            clock,
            earlier: Notify::new(),
            leased: Notify::new(),
            broken: Notify::new(),
            settled: Notify::new(),
        }
    }

    /// This is the machine.
    pub(super) fn serve(&self, machine: &Arc<SchedulerMachine>) {
        let _ = self.machine.set(Arc::downgrade(machine));
    }

    pub(super) fn transport(&self) -> &dyn Transport {
        &*self.transport
    }

    /// Watches a task from now on.
    pub(super) fn watch(&self, task: TaskId) -> Watch {
        lock(&self.watchers).add(task)
    }

    /// Passes a piece of a streamed result on to those who watch its task. Given back if the machine has to see it.
    pub(super) fn pass_on(
        &self,
        worker: WorkerId,
        fence: Fence,
        piece: Payload,
    ) -> Option<Payload> {
        lock(&self.watchers).pass_on(worker, fence, piece)
    }

    /// Each answer, with a watch if it is wanted. A repeated task may have ended long ago; its watch is simply never
    /// told anything.
    pub(super) fn accept(
        &self,
        answers: Vec<Result<Submitted, Reject>>,
        watch: bool,
    ) -> Vec<Accepted> {
        let mut watchers = watch.then(|| lock(&self.watchers));
        let mut accept = |submitted: Submitted| {
            let watch = watchers.as_mut().map(|watchers| watchers.add(submitted.task));
            (submitted, watch)
        };
        answers.into_iter().map(|answer| answer.map(&mut accept)).collect()
    }

    /// Carries out effects: notices first, since a fast worker's answer leads to more of them while we send.
    fn carry_out(&self, effects: &mut Vec<Effect>) {
        self.notify(effects);
        for effect in effects.drain(..) {
            match effect {
                Effect::ToWorker { worker, message } => self.transport.send(worker, message),
                Effect::WorkerLeased(_) => self.leased.notify_waiters(),
                Effect::WorkerForgotten(worker) => self.forget(worker),
                Effect::Notice { .. } | Effect::Streams { .. } => {}
            }
        }
    }

    /// A worker may be known again by now.
    fn forget(&self, worker: WorkerId) {
        let Some(machine) = self.machine.get().and_then(Weak::upgrade) else { return };
        let (known, removed) = machine
            .read(|scheduler, _| (scheduler.knows_worker(worker), scheduler.is_removed(worker)));
        match (known, removed) {
            (true, _) => {}
            (false, true) => self.transport.retire(worker),
            (false, false) => self.transport.forget(worker),
        }
    }

    fn notify(&self, effects: &[Effect]) {
        let concerns =
            |effect: &Effect| matches!(effect, Effect::Notice { .. } | Effect::Streams { .. });
        if !effects.iter().any(concerns) {
            return;
        }
        let mut watchers = lock(&self.watchers);
        for effect in effects {
            match effect {
                Effect::Streams { task, worker, fence } => watchers.stream(*task, *worker, *fence),
                Effect::Notice { task, notice } => {
                    if let Notice::Ended { accepted, finished } = notice {
                        self.figures.ended(accepted, finished);
                    }
                    watchers.notify(*task, notice);
                }
                Effect::ToWorker { .. } | Effect::WorkerLeased(_) | Effect::WorkerForgotten(_) => {}
            }
        }
    }
}

impl Carrier<Scheduler> for SchedulerCarrier {
    type Requester = Requester;

    fn now(&self) -> Time {
        self.clock.now()
    }

    fn stepped(&self, machine: &Scheduler, began: Time) {
        let assigned = machine.strategy().1.assigned;
        let before = self.assigned.swap(assigned, Ordering::Relaxed);
        // A new strategy counts anew.
        let decided = assigned.saturating_sub(before);
        if decided > 0 {
            self.figures.selected(decided, self.clock.now().since(began));
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

    fn released(&self, released: &mut Released<Scheduler, Requester>) {
        let is_dispatch = |effect: &Effect| {
            matches!(effect, Effect::ToWorker { message: ToWorker::Dispatch(_), .. })
        };
        let replies = !released.replies.is_empty();
        if cfg!(feature = "crash-points") && (replies || released.effects.iter().any(is_dispatch)) {
            crash_point(CrashPoint::CommittedBeforeSend);
        }
        // Watches begin before anything is sent: a fast worker answers while we are here, and a client that watches its
        // task is to miss nothing of it.
        let accept = |(requester, reply): (Requester, Reply)| {
            requester.answer(reply, |answers, watch| self.accept(answers, watch))
        };
        let answers: Vec<Answer> = released.replies.drain(..).map(accept).collect();
        self.carry_out(&mut released.effects);
        if replies {
            crash_point(CrashPoint::SentBeforeReply);
        }
        answers.into_iter().for_each(Answer::give);
    }

    fn at_once(&self, mut effects: Vec<Effect>) {
        self.carry_out(&mut effects);
    }

    fn refuse(&self, requester: Requester, why: &Stopped) {
        let why = Unavailable(why.to_string());
        // A client that has gone does not want to know.
        match requester {
            Requester::Command(answer) => drop(answer.send(Err(why))),
            Requester::Submit { answer, .. } => drop(answer.send(Err(why))),
            Requester::OnTheLine => {}
        }
    }

    fn wake_earlier(&self) {
        self.earlier.notify_one();
    }

    fn settled(&self) {
        self.settled.notify_waiters();
    }

    fn failed(&self, why: &Stopped) {
        tracing::error!("the scheduler stops: {why}; nothing is acknowledged until it can");
        lock(&self.watchers).clear();
        self.broken.notify_one();
    }
}

impl Requester {
    /// What the requester is to be told; `accept` makes watches for submitted tasks.
    pub(super) fn answer(
        self,
        reply: Reply,
        accept: impl FnOnce(Vec<Result<Submitted, Reject>>, bool) -> Vec<Accepted>,
    ) -> Answer {
        match (self, reply) {
            (Requester::Command(answer), reply) => Answer::Command(answer, reply),
            (Requester::Submit { answer, watch }, Reply::Submitted(answers)) => {
                Answer::Submit(answer, Ok(accept(answers, watch)))
            }
            (Requester::Submit { answer, .. }, _) => {
                let error = Unavailable("the scheduler answered something else".into());
                Answer::Submit(answer, Err(error))
            }
            (Requester::OnTheLine, _) => Answer::None,
        }
    }
}

/// An answer that is ready to be given.
pub(super) enum Answer {
    Command(oneshot::Sender<Result<Reply, Unavailable>>, Reply),
    Submit(oneshot::Sender<Result<Vec<Accepted>, Unavailable>>, Result<Vec<Accepted>, Unavailable>),
    None,
}

impl Answer {
    pub(super) fn give(self) {
        // A client that has gone does not want to know.
        match self {
            Answer::Command(to, reply) => drop(to.send(Ok(reply))),
            Answer::Submit(to, accepted) => drop(to.send(accepted)),
            Answer::None => {}
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
