//! The scheduler: accepts tasks, places them, and sees them through whatever happens to workers.
//!
//! The rest of the machine is in the files below: `submit.rs` (what clients ask), `attempts.rs` (the life
//! of an attempt), `failure.rs` (what comes of one that gave no result), `workers.rs` (leases, heartbeats),
//! `portion.rs` (how much of a worker is leased), `quarantine.rs` (who is quarantined for failing), `unreachable.rs` (who cannot be reached), `leave.rs` (workers that go), `recover.rs` (a new life from what is
//! durable), `stall.rs` (time in which it did not run), `deferred.rs` (what is too much for one step), `views.rs`, `parts.rs` and `availability.rs` (what may be read).

mod attempts;
mod availability;
mod deferred;
mod failure;
mod leave;
mod parts;
mod portion;
mod quarantine;
mod reconnect;
mod recover;
mod settings;
mod stall;
mod submit;
mod unreachable;
mod views;
mod workers;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use hypha_machine::{Machine, Step};
use hypha_model::{
    Epoch, Fence, Map, Name, PagedSlab, Payload, Rng, SchedulerId, ShardedMap, Span, TaskId,
    TaskState, Time, Worker, WorkerId,
};
use hypha_placement::{Action, Placement, TaskRef, WorkerSlot};
use hypha_predict::Predictor;

pub use availability::{Unavailability, Unschedulable};
pub use hypha_market::HOLDER_SHARE;
pub use parts::{Part, TASKS_PER_PART, WORKERS_PER_PART};
pub use quarantine::Quarantine;
pub use settings::{RetryPolicy, Settings};
pub use submit::{Command, NewTask, Reply, SubmitRejection, Submitted};
pub use views::{Counts, FailureCounts, RemovedWorkerView, TaskView};
pub use workers::LeaseView;

use crate::message::{FromWorker, ToWorker};
use crate::mutant::Mutant;
use crate::record::{AcceptedTask, FailedAttempts, FinishedTask, Record};
use deferred::Deferred;
use leave::RemovedWorker;
use workers::WorkerState;

/// How long what can wait for the next commit waits if there is none.
const FLUSH_AFTER: Span = Span::from_secs(1);

/// What a scheduler wants after a step.
pub type SchedulerStep = Step<Scheduler>;

/// What happened.
#[derive(Clone, Debug)]
pub enum SchedulerEvent {
    /// A client asks for something, and gets a reply.
    CommandReceived(Command),
    /// A search found a worker, or the worker says something new of itself.
    WorkerFound(Arc<Worker>),
    /// The connection to a worker was lost.
    WorkerDisconnected(WorkerId),
    /// The connection to a worker ended and another took its place at once.
    WorkerReconnected(WorkerId),
    /// A worker said something.
    WorkerMessageReceived {
        /// Who.
        worker: WorkerId,
        /// What.
        message: FromWorker,
    },
    /// The time that the scheduler wanted to be woken at has come.
    Woke,
}

/// What a scheduler wants done.
#[derive(Clone, Debug)]
pub enum Effect {
    /// To a worker.
    ToWorker {
        /// Whom.
        worker: WorkerId,
        /// What.
        message: ToWorker,
    },
    /// A worker has granted a lease, for those who wait for that.
    WorkerLeased(WorkerId),
    /// A worker is forgotten: what was kept to reach it is not needed any more, unless it is known again by now.
    WorkerForgotten(WorkerId),
    /// The attempt with this token streams its result: what it gives from now on goes to those who watch the task,
    /// without the machine, until the task is given to another worker or ends.
    ForwardOutput {
        /// The task.
        task: TaskId,
        /// Where the attempt is.
        worker: WorkerId,
        /// Its token.
        fence: Fence,
    },
    /// For those who watch a task.
    Notice {
        /// The task.
        task: TaskId,
        /// What is new.
        notice: Notice,
    },
}

/// What is new about a task.
#[derive(Clone, Debug, PartialEq)]
pub enum Notice {
    /// It runs.
    Running,
    /// It is bound to a worker.
    Scheduled(WorkerId),
    /// It is this far, in thousandths.
    Progress(u16),
    /// A piece of its result has come.
    Output(Payload),
    /// It has ended, for good.
    Ended {
        /// As it was accepted.
        accepted: Arc<AcceptedTask>,
        /// How it ended.
        finished: Arc<FinishedTask>,
    },
    /// An attempt failed, and the next is not made before this.
    Delayed {
        /// When the next attempt may begin.
        until: Time,
        /// Why.
        reason: String,
    },
}

/// See the head of this file.
pub struct Scheduler {
    id: SchedulerId,
    settings: Settings,
    epoch: Epoch,
    rng: Rng,
    last_id: Option<TaskId>,
    predictor: Predictor,
    placement: Placement,
    tasks: PagedSlab<Task>,
    by_id: ShardedMap<TaskId, TaskRef>,
    /// How many tasks of each tenant have not ended.
    by_tenant: BTreeMap<Name, u32>,
    /// Chosen by clients, hence no hash map.
    by_key: BTreeMap<Key, TaskId>,
    /// Keys of tasks that have ended, with the time at which they are forgotten; in the order of times.
    old_keys: VecDeque<(Time, Key, TaskId)>,
    workers: Vec<Option<WorkerState>>,
    slot_of: Map<WorkerId, WorkerSlot>,
    /// After a restart: the tasks whose attempts are with workers that have not been heard of yet.
    unreconciled: BTreeMap<WorkerId, Vec<TaskRef>>,
    /// Workers that are to be removed once they have nothing left.
    draining: BTreeSet<WorkerSlot>,
    /// Workers that were removed: they are not taken back because a search finds them again.
    removed: BTreeMap<WorkerId, RemovedWorker>,
    agenda: BTreeSet<(Time, Due)>,
    fences: u64,
    requests: u64,
    /// When this life began, or last went on after it did not run for a while.
    resumed: Time,
    /// Whether something waits to be made durable with the next commit.
    flushes: bool,
    counts: Counts,
    actions: Vec<Action>,
    /// The worker whose factor was looked at last because of another's completion.
    next_factor: usize,
    /// Whether the event of this step may have changed what can be placed.
    plan_wanted: bool,
    /// What was too much for the steps so far.
    deferred: Deferred,
    /// How many more items this step may handle.
    budget: usize,
}

/// An idempotency key, with the tenant whose key it is.
type Key = (Option<Name>, Arc<str>);

/// What a time in the agenda is for. Each task and each worker has at most one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    Task(TaskRef),
    Worker(WorkerSlot),
    /// Saves what was learned, and brings up to date what drifts.
    Save,
    /// Makes durable what could wait.
    Flush,
}

/// A task that has not ended. There may be a million that were never tried, so what comes of trying is kept
/// apart, and is read through the task as if it were always there.
struct Task {
    accepted: Arc<AcceptedTask>,
    /// Whether it survives this life.
    stored: bool,
    state: TaskState,
    due: Option<Time>,
    /// `None` for a task that was never tried.
    history: Option<Box<AttemptHistory>>,
}

/// Times the tasks that wait, this is part of what a long queue costs: what grows here must be worth it.
const _: () = assert!(size_of::<Option<Task>>() <= 40);

/// What came of trying a task so far.
struct AttemptHistory {
    attempts: u32,
    failures: u32,
    refusals: u32,
    current: Option<Attempt>,
    /// The attempt before the current one.
    last: Option<Attempt>,
    /// Workers that failed or refused it, each once.
    failed_on: Vec<WorkerId>,
    not_before: Time,
    progress_permille: u16,
    /// Whether a piece of the result has gone out: it cannot be taken back.
    has_output: bool,
    failed: FailedAttempts,
    /// The id under which a back end has the current attempt.
    handle: Option<Arc<str>>,
}

impl AttemptHistory {
    const NONE: AttemptHistory = AttemptHistory {
        attempts: 0,
        failures: 0,
        refusals: 0,
        current: None,
        last: None,
        failed_on: Vec::new(),
        not_before: Time::ZERO,
        progress_permille: 0,
        has_output: false,
        failed: FailedAttempts::NONE,
        handle: None,
    };
}

impl Deref for Task {
    type Target = AttemptHistory;
    fn deref(&self) -> &AttemptHistory {
        static NO_ATTEMPTS: AttemptHistory = AttemptHistory::NONE;
        self.history.as_deref().unwrap_or(&NO_ATTEMPTS)
    }
}

/// Makes room for them first: whoever only may have something to write looks before.
impl DerefMut for Task {
    fn deref_mut(&mut self) -> &mut AttemptHistory {
        self.history.get_or_insert_with(|| Box::new(AttemptHistory::NONE))
    }
}

/// The attempt under way.
#[derive(Clone, Copy, Debug)]
struct Attempt {
    fence: Fence,
    worker: WorkerId,
    /// `None` until a worker that a restarted scheduler has not met again says that it has it.
    slot: Option<WorkerSlot>,
    /// When it was handed over.
    dispatched_at: Time,
    /// When that was last repeated.
    sent: Time,
    started: Option<Time>,
    /// When its present run began: later than that if it was handed over again after a restart.
    run_started: Option<Time>,
    /// When the worker first said that it has it.
    acknowledged: Option<Time>,
    resends: u32,
}

impl Effect {
    /// Adds it to `step`: to leave when what was before it is durable, or at once if nothing of it is stored.
    fn send_for_task(self, stored: bool, step: &mut SchedulerStep) {
        match stored {
            true => step.send(self),
            false => step.send_at_once(self),
        }
    }
}

impl Machine for Scheduler {
    type Event = SchedulerEvent;
    type Record = Record;
    type Effect = Effect;
    type Reply = Reply;

    fn step(&mut self, now: Time, event: SchedulerEvent, step: &mut SchedulerStep) {
        self.budget = self.settings.items_per_step;
        self.notice_stall(now, step);
        self.plan_wanted = true;
        match event {
            SchedulerEvent::CommandReceived(command) => self.handle_command(now, command, step),
            SchedulerEvent::WorkerFound(worker) => self.worker_found(now, worker, step),
            SchedulerEvent::WorkerDisconnected(worker) => {
                self.worker_lost(now, worker, "the connection to the worker was lost", step)
            }
            SchedulerEvent::WorkerReconnected(worker) => self.worker_reconnected(now, worker, step),
            SchedulerEvent::WorkerMessageReceived { worker, message } => {
                self.handle_worker_message(now, worker, message, step);
            }
            SchedulerEvent::Woke => self.wake(now, step),
        }
        self.forget_drained(now, step);
        // Leases that ran out while the scheduler did not run are not relied on.
        if self.is_stalled(now) {
            return;
        }
        if self.plan_wanted || self.placement.plan_at().is_some_and(|at| at <= now) {
            self.execute_plan(now, step);
        }
    }

    fn wake_at(&self, now: Time) -> Option<Time> {
        if !self.deferred.is_empty() {
            return Some(now);
        }
        let agenda = self.agenda.first().map(|(at, _)| *at);
        // A plan that is due now and found nothing to do is not repeated at once.
        let plan = self.placement.plan_at().map(|at| at.max(now + self.settings.min_plan_interval));
        match (agenda, plan) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    fn woke() -> SchedulerEvent {
        SchedulerEvent::Woke
    }
}

impl Scheduler {
    fn wake(&mut self, now: Time, step: &mut SchedulerStep) {
        while self.budget > 0
            && let Some((at, due)) = self.agenda.first().copied()
            && at <= now
            // The end of time never comes: what is due then would come up again and again.
            && at < Time::MAX
        {
            self.agenda.pop_first();
            self.budget -= 1;
            match due {
                Due::Task(task) => self.task_due(now, task, step),
                Due::Worker(slot) => self.worker_due(now, slot, step),
                Due::Save => self.save(now, step),
                Due::Flush => {
                    self.flushes = false;
                    step.flush();
                }
            }
        }
        self.forget_old_keys(now);
        self.continue_deferred(now, step);
    }

    /// Asks placement what to do now, and does it.
    fn execute_plan(&mut self, now: Time, step: &mut SchedulerStep) {
        let mut actions = std::mem::take(&mut self.actions);
        self.placement.plan(&self.predictor, now, &mut actions);
        for action in actions.drain(..) {
            match action {
                Action::Bind { task, slot } => self.bind(task, slot, step),
                Action::Move { task, to, .. } => {
                    self.counts.stolen += 1;
                    self.bind(task, to, step);
                }
                Action::Dispatch { task, slot } => self.dispatch(now, task, slot, step),
            }
        }
        self.actions = actions;
    }

    /// Sets the one time at which a task wants attention.
    fn set_task_due(&mut self, task: TaskRef, at: Option<Time>) {
        let Some(entry) = self.tasks.get_mut(task.0 as usize) else { return };
        if entry.due == at {
            return;
        }
        if let Some(old) = entry.due {
            self.agenda.remove(&(old, Due::Task(task)));
        }
        entry.due = at;
        if let Some(at) = at {
            self.agenda.insert((at, Due::Task(task)));
        }
    }

    fn is(&self, mutant: Mutant) -> bool {
        cfg!(feature = "mutants") && self.settings.mutant == Some(mutant)
    }

    fn task(&self, task: TaskRef) -> Option<&Task> {
        self.tasks.get(task.0 as usize)
    }

    fn task_mut(&mut self, task: TaskRef) -> Option<&mut Task> {
        self.tasks.get_mut(task.0 as usize)
    }

    fn next_fence(&mut self) -> Fence {
        self.fences += 1;
        Fence(self.with_epoch(self.fences))
    }

    /// The number of the next request to a worker, so that its answer is known from others.
    fn next_request(&mut self) -> u64 {
        self.requests += 1;
        self.with_epoch(self.requests)
    }

    /// With the epoch in the upper bits, every number of this life is larger than those of earlier ones.
    fn with_epoch(&self, number: u64) -> u64 {
        (self.epoch.0 << EPOCH_SHIFT) | number
    }

    /// Notes more about the attempt of a task, with the next commit, or soon: a restart would know less.
    fn note_attempt(
        &mut self,
        now: Time,
        (task, fence): (TaskId, Fence),
        (started, handle): (Option<Time>, Option<Arc<str>>),
        step: &mut SchedulerStep,
    ) {
        step.persist_later(Record::AttemptUpdated { task, fence, started, handle });
        if !std::mem::replace(&mut self.flushes, true) {
            self.agenda.insert((now + FLUSH_AFTER, Due::Flush));
        }
    }

    /// Saves what was learned since the last time.
    fn save(&mut self, now: Time, step: &mut SchedulerStep) {
        self.agenda.insert((now + self.settings.save_interval, Due::Save));
        self.placement.refresh(now);
        if std::mem::take(&mut self.counts.learned_since_save) > 0 {
            step.persist(Record::Predictor(Box::new(self.predictor.snapshot())));
        }
        self.save_workers(0, step);
    }
}

/// Tokens of one life: 2^44, a million a second for 200 days; lives: 2^20, one a minute for two years.
const EPOCH_SHIFT: u32 = 44;
