//! The scheduler: accepts tasks, places them, and retries them when workers fail.
//!
//! The rest of the machine is in the files below: `submit.rs` (commands of clients), `attempts.rs` (the life cycle of
//! an attempt), `failure.rs` (attempts that gave no result), `workers.rs` (leases, heartbeats), `portion.rs` (how much
//! of a worker is leased), `reconnect.rs` (a connection that replaces another), `quarantine.rs` (failure streaks),
//! `unreachable.rs` (executors that are unreachable), `leave.rs` (workers that stop or are removed), `recover.rs` (a
//! new incarnation from the durable state), `stall.rs` (time in which it did not run), `deferred.rs` (work that is too
//! much for one step), `pool.rs` (workers that are leased for tasks at a price), `jobs.rs` (gangs of workers that run a job), `receipts.rs` (what they cost), `views.rs`, `parts.rs` and `availability.rs` (views).

mod attempts;
mod availability;
mod deferred;
mod failure;
mod jobs;
mod leave;
mod parts;
mod pool;
mod portion;
mod quarantine;
mod receipts;
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
use hypha_market::{Advert, Notary};
use hypha_model::{
    AdvertId, Epoch, Fence, JobId, Map, Name, PagedSlab, Payload, Rng, SchedulerId, ShardedMap,
    Span, TaskId, TaskState, Time, Worker, WorkerId,
};
use hypha_placement::{Action, Placement, TaskRef, WorkerSlot};
use hypha_predict::Predictor;

pub use availability::{Unavailability, Unschedulable};
pub use hypha_market::HOLDER_SHARE;
pub use jobs::{MAX_JOBS, MarketFigures};
pub use parts::{Part, TASKS_PER_PART, WORKERS_PER_PART};
pub use pool::{PoolView, TaskKind};
pub use quarantine::Quarantine;
pub use settings::{RetryPolicy, Settings};
pub use submit::{Command, NewTask, Reply, SubmitRejection, Submitted};
pub use views::{Counts, FailureCounts, RemovedWorkerView, TaskView};
pub use workers::LeaseView;

use crate::message::{CheckedMessage, ToWorker};
use crate::mutant::Mutant;
use crate::record::{AcceptedTask, FailedAttempts, FinishedTask, Record};
use deferred::Deferred;
use leave::RemovedWorker;
use workers::WorkerState;

/// How long records that can wait for the next commit wait if there is none.
const FLUSH_AFTER: Span = Span::from_secs(1);

/// What a scheduler wants after a step.
pub type SchedulerStep = Step<Scheduler>;

/// What happened.
#[derive(Clone, Debug)]
pub enum SchedulerEvent {
    /// A client sent a command, and gets a reply.
    CommandReceived(Command),
    /// A search found a worker, or the worker has a new description.
    WorkerFound(Arc<Worker>),
    /// The connection to a worker was lost.
    WorkerDisconnected(WorkerId),
    /// The connection to a worker ended and another took its place at once.
    WorkerReconnected(WorkerId),
    /// A worker sent a message.
    WorkerMessageReceived {
        /// The sender.
        worker: WorkerId,
        /// What, with the verdict on its result.
        message: CheckedMessage,
    },
    /// The time of [`Machine::wake_at`] has come.
    Woke,
}

/// What a scheduler wants done.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Send a message to a worker.
    ToWorker {
        /// The receiver.
        worker: WorkerId,
        /// The message.
        message: ToWorker,
    },
    /// A worker has granted a lease, for callers that wait for that.
    WorkerLeased(WorkerId),
    /// A worker is forgotten: its connection is no longer needed, unless the worker is known again by now.
    WorkerForgotten(WorkerId),
    /// The attempt with this token streams its result: from now on its pieces go to the watches of the task, bypassing
    /// the machine, until the task is dispatched to another worker or ends.
    ForwardOutput {
        /// The task.
        task: TaskId,
        /// Where the attempt is.
        worker: WorkerId,
        /// Its token.
        fence: Fence,
    },
    /// Send an advert to all workers, by gossip.
    GossipAdvert(Arc<Advert>),
    /// End an advert that went out by gossip.
    GossipAdvertClosed(AdvertId),
    /// A job has changed, for those who watch it.
    JobChanged(JobId),
    /// Notify the watches of a task.
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
    /// A piece of its result has arrived.
    Output(Payload),
    /// It has ended permanently.
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

/// The scheduler's machine. See the module documentation.
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
    /// Keys of ended tasks, with the times at which they are forgotten; ordered by time.
    old_keys: VecDeque<(Time, Key, TaskId)>,
    workers: Vec<Option<WorkerState>>,
    slot_of: Map<WorkerId, WorkerSlot>,
    /// After a restart: the tasks with attempts at workers that have not been reconciled yet.
    unreconciled: BTreeMap<WorkerId, BTreeSet<TaskRef>>,
    /// Workers that are removed once they are idle.
    draining: BTreeSet<WorkerSlot>,
    /// Workers that were removed: they are not taken back when a search finds them again.
    removed: BTreeMap<WorkerId, RemovedWorker>,
    agenda: BTreeSet<(Time, Due)>,
    fences: u64,
    requests: u64,
    /// When this incarnation began, or last resumed after a stall.
    resumed: Time,
    /// Whether a flush of records that wait for the next commit is on the agenda.
    flushes: bool,
    counts: Counts,
    actions: Vec<Action>,
    /// The worker whose factor was last updated because of another's completion.
    next_factor: usize,
    /// Whether the event of this step may have changed what can be placed.
    plan_wanted: bool,
    /// Work that was too much for the steps so far.
    deferred: Deferred,
    jobs: jobs::Jobs,
    pool: pool::Pool,
    /// Workers that were registered: they are used whether there is a pool or not.
    registered: BTreeSet<WorkerId>,
    notary: Option<Arc<dyn Notary>>,
    /// How many more items this step may handle.
    budget: usize,
}

/// An idempotency key, with the tenant whose key it is.
type Key = (Option<Name>, Arc<str>);

/// What is due at a time of the agenda. Each task and each worker has at most one entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    Task(TaskRef),
    Worker(WorkerSlot),
    /// Saves what was learned, and refreshes values that drift with time.
    Save,
    /// Makes the records durable that wait for the next commit.
    Flush,
}

/// A task that has not ended. There may be a million without an attempt, so the history of attempts is allocated
/// separately, and is read through the task as if it were always there.
struct Task {
    accepted: Arc<AcceptedTask>,
    /// Whether it survives this incarnation.
    stored: bool,
    state: TaskState,
    due: Option<Time>,
    /// `None` for a task without an attempt.
    history: Option<Box<AttemptHistory>>,
}

/// A long queue costs this times its length: what grows here must be worth it.
const _: () = assert!(size_of::<Option<Task>>() <= 40);

/// The attempts of a task so far.
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
    /// Whether a piece of the result has been sent out: it cannot be taken back.
    has_output: bool,
    failed: FailedAttempts,
    /// The id under which a back end has the current attempt.
    handle: Option<Arc<str>>,
    /// The GPUs that the current attempt has, as its worker reported them.
    devices: Vec<u32>,
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
        devices: Vec::new(),
    };
}

impl Deref for Task {
    type Target = AttemptHistory;
    fn deref(&self) -> &AttemptHistory {
        static NO_ATTEMPTS: AttemptHistory = AttemptHistory::NONE;
        self.history.as_deref().unwrap_or(&NO_ATTEMPTS)
    }
}

/// Allocates the history first: a caller that may have nothing to write checks before.
impl DerefMut for Task {
    fn deref_mut(&mut self) -> &mut AttemptHistory {
        self.history.get_or_insert_with(|| Box::new(AttemptHistory::NONE))
    }
}

/// The attempt in flight.
#[derive(Clone, Copy, Debug)]
struct Attempt {
    fence: Fence,
    worker: WorkerId,
    /// After a restart, `None` until its worker is reconciled.
    slot: Option<WorkerSlot>,
    /// When it was first dispatched.
    dispatched_at: Time,
    /// When it was last dispatched.
    sent: Time,
    started: Option<Time>,
    /// When its present run began: later than `started` if it was dispatched again after a restart.
    run_started: Option<Time>,
    /// When the worker first acknowledged it.
    acknowledged: Option<Time>,
    resends: u32,
}

impl Effect {
    /// Adds it to `step`: to be sent when the records before it are durable, or at once if the task is not stored.
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
            SchedulerEvent::WorkerFound(worker) => {
                self.jobs_reconnected(now, worker.id);
                self.worker_found(now, worker, step);
            }
            SchedulerEvent::WorkerDisconnected(worker) => {
                self.jobs_disconnected(now, worker);
                self.worker_lost(now, worker, "the connection to the worker was lost", step)
            }
            SchedulerEvent::WorkerReconnected(worker) => {
                self.jobs_reconnected(now, worker);
                self.worker_reconnected(now, worker, step);
            }
            SchedulerEvent::WorkerMessageReceived { worker, message } => {
                self.handle_worker_message(now, worker, message, step);
            }
            SchedulerEvent::Woke => self.wake(now, step),
        }
        self.wake_jobs(now, step);
        self.wake_pool(now, step);
        self.forget_drained(now, step);
        // Leases that expired while the scheduler did not run are not relied on.
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
        agenda.into_iter().chain(plan).chain(self.jobs_wake_at()).chain(self.pool_wake_at()).min()
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
            // `Time::MAX` never comes: an entry at it would be handled repeatedly.
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

    /// Gets a plan from placement, and executes it.
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

    /// Sets the one time at which a task is due.
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

    /// The number of the next request to a worker, which tells its answer from others.
    fn next_request(&mut self) -> u64 {
        self.requests += 1;
        self.with_epoch(self.requests)
    }

    fn with_epoch(&self, number: u64) -> u64 {
        with_epoch(self.epoch, number)
    }

    /// Stores more about the attempt of a task, with the next commit or soon, for a restart.
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

/// Tokens of one incarnation: 2^44, a million a second for 200 days; incarnations: 2^20, one a minute for two years.
const EPOCH_SHIFT: u32 = 44;

/// With the epoch in the upper bits, every number of this incarnation is larger than those of earlier ones.
fn with_epoch(epoch: Epoch, number: u64) -> u64 {
    (epoch.0 << EPOCH_SHIFT) | number
}
