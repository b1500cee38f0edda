//! Placement: which task goes to which worker, and why.
//!
//! [`Placement`] holds what a decision needs: the pool of workers with the load of each, and the waiting tasks. The
//! caller reports what happens ([`Placement::arrive`], [`Placement::finish`], …) and requests a [`Placement::plan`]: a
//! list of actions that leaves the caller no choices. A strategy is a recipe over shared stages: order, bind, filter,
//! score, select, rebalance (`strategy.rs`).

mod capability;
mod choose;
mod deadlines;
mod decision;
mod explain;
mod fair_queue;
mod health;
mod in_flight;
mod index;
mod member;
mod model_records;
mod mutant;
mod named_gpus;
mod order;
mod parked;
mod parts;
mod plan;
mod pool;
mod price;
mod queue_cursor;
mod reasons;
mod reliability;
mod reservation;
mod statistics;
mod strategy;
mod suspended;
mod tenants;
mod turns;
mod usage;
mod waiting;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use hypha_model::{Maximise, Name, PagedSlab, Rng, Span, TaskSpec, Time};
use hypha_predict::{Estimate, Predictor, Query};
use serde::{Deserialize, Serialize};

pub use deadlines::{DeadlineOutlook, DeadlineStatus, MAX_CONSECUTIVE_URGENT};
pub use explain::{
    Candidate, Explanation, ExplanationPart, FullExplanation, MAX_RUNNERS_UP, MAX_VERDICTS,
    RefusalCounts, ScoreTerms, WorkerVerdict,
};
pub use fair_queue::{FairQueue, MAX_CONSECUTIVE_INTERACTIVE};
pub use health::Health;
pub use in_flight::MAX_BACKFILL_CANDIDATES;
pub use member::MAX_PREFETCH_PER_SLOT;
pub use mutant::PlacementMutant;
pub use named_gpus::NamedGpus;
pub use pool::WorkerView;
pub use price::MAX_RUNS_WAITED_FOR_PRICE;
pub use reasons::{MAX_WORKERS_CHECKED, WaitingReasons};
pub use statistics::Statistics;
pub use strategy::{
    LoadMetric, MAX_LOOKAHEAD, MIN_LOOKAHEAD, PROBABILISTIC_CANDIDATES, Pick, Predictive, Strategy,
    StrategyError,
};
pub use tenants::{MAX_CONSECUTIVE_BY_PRIORITY, TenantView};

use crate::choose::Scratch;
use crate::deadlines::Deadlines;
use crate::decision::{Decision, SpareDecisions};
use crate::order::RunningMean;
use crate::parked::ReconsiderCursor;
use crate::pool::Pool;
use crate::strategy::{Order, Recipe};
use crate::tenants::Tenants;
use crate::turns::Resume;
use crate::waiting::{Lane, QueuePosition, ShapeId, WaitingQueue};

/// The caller's number for a task; small and dense, reused when the task is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TaskRef(pub u32);

/// The number of a worker in the pool; small and dense, reused when the worker is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct WorkerSlot(pub u32);

/// A task as placement sees it.
#[derive(Clone, Debug)]
pub struct PlacementRequest {
    /// The task's specification.
    pub spec: Arc<TaskSpec>,
    /// The same, prepared for the predictor.
    pub query: Query,
    /// When it was submitted; a retry keeps its position.
    pub submitted: Time,
    /// Bind it at once, also under a strategy that would wait.
    pub bind_at_once: bool,
    /// Its client waits for the response: it goes before tasks whose clients do not.
    pub interactive: bool,
    /// Workers on which it failed: other workers go first.
    pub failed_on: Box<[WorkerSlot]>,
}

/// Tasks in the queue with the same requirements.
#[derive(Clone, Copy, Debug)]
pub struct WaitingShape<'a> {
    /// What they require.
    pub requirement: &'a hypha_model::Requirement,
    /// How many there are.
    pub tasks: u64,
    /// The predicted run time of the first.
    pub run: Span,
    /// When the first was submitted.
    pub submitted: Time,
}

/// One action for the caller to carry out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The task is bound to the worker and waits in its queue.
    Bind {
        /// The task.
        task: TaskRef,
        /// The worker.
        slot: WorkerSlot,
    },
    /// The task is sent to the worker.
    Dispatch {
        /// The task.
        task: TaskRef,
        /// The worker.
        slot: WorkerSlot,
    },
    /// The task moved from one worker's queue to another's.
    Move {
        /// The task.
        task: TaskRef,
        /// The worker that it was bound to.
        from: WorkerSlot,
        /// The worker that it is bound to now.
        to: WorkerSlot,
    },
}

/// How an attempt on a worker ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptEnd {
    /// It ran for this long and succeeded.
    Completed(Span),
    /// The executor failed it.
    Failed,
    /// The worker lost it.
    Lost,
    /// It was withdrawn through no fault of the worker.
    Withdrawn,
}

/// Preferences that hold under every strategy.
#[derive(Clone, Debug, PartialEq)]
pub struct Preferences {
    /// Workers farther away are refused.
    pub max_rtt: Option<Span>,
    /// Workers of this region are preferred.
    pub prefer_region: Option<Name>,
    /// What that is worth: how much longer a task may wait there than at another worker.
    pub max_local_wait: Span,
    /// At most this many tasks are in flight at a time.
    pub max_in_flight: Option<u32>,
    /// What counts when a worker is chosen for a task that does not state it.
    pub maximise: Maximise,
}

impl Default for Preferences {
    fn default() -> Preferences {
        Preferences {
            max_rtt: None,
            prefer_region: None,
            max_local_wait: Span::from_secs(1),
            max_in_flight: None,
            maximise: Maximise::default(),
        }
    }
}

/// See the crate documentation.
#[derive(Clone, Debug)]
pub struct Placement {
    strategy: Strategy,
    recipe: Recipe,
    preferences: Preferences,
    pool: Pool,
    waiting: WaitingQueue,
    tenants: Tenants,
    deadlines: Deadlines,
    tasks: PagedSlab<Task>,
    cursor: usize,
    rng: Rng,
    /// Arrivals so far.
    serial: u64,
    /// Tasks to be bound at the next plan although the strategy would let them wait.
    bind_now: Vec<TaskRef>,
    /// How many tasks are in flight.
    in_flight: u32,
    /// The sum of the predicted run times of the waiting tasks.
    waiting_s: f64,
    /// The predicted run time of a task on the reference hardware.
    mean_predicted_s: RunningMean,
    /// The predicted run time of a task where it runs. The faster a worker, the more samples it adds, so this is the
    /// usual task on the mean worker, in whatever unit speeds are.
    mean_run_s: RunningMean,
    /// When the first of the tasks that are held back although a worker is free was last looked at.
    held_back_at: Option<Time>,
    /// Scratch space for a plan: the tasks that it holds back.
    held_back: Vec<TaskRef>,
    /// Workers with bound tasks that `max_in_flight` keeps from being dispatched, the next to be served first.
    stalled: VecDeque<WorkerSlot>,
    /// Whether the next slot below `max_in_flight` goes to a task bound to a worker, not to the queue.
    bound_goes_first: bool,
    /// Workers that can run more than before, with how far the parked shapes have been reconsidered for them.
    gained_capacity: BTreeMap<WorkerSlot, ReconsiderCursor>,
    /// Tasks in the queue that have a reservation, and where, in the order in which the reservations were made.
    reservations: Vec<(TaskRef, WorkerSlot)>,
    /// How many interactive tasks were dispatched in a row while a batch task waited.
    consecutive_interactive: u32,
    /// How often a worker became able to run less than before.
    capacity_losses: u64,
    /// When the last plan was made.
    planned_at: Time,
    /// Where the last plan ended if it did not reach the end of the queue, and the state of the pool when that round
    /// began.
    ended_at: Option<(Resume, u64)>,
    scratch: Scratch,
    spare: SpareDecisions,
    statistics: Statistics,
    /// A planted fault.
    mutant: Option<PlacementMutant>,
}

/// A task that has not ended. A million of them may not have been looked at by any plan yet, so the decision is stored
/// separately.
#[derive(Clone, Debug)]
struct Task {
    request: PlacementRequest,
    stage: Stage,
    /// The number of its arrival: equals keep their order however often they return to the queue.
    serial: u64,
    /// Predicted run time on the reference hardware.
    predicted_s: f64,
    /// The same, relative to the usual task.
    size: f64,
    /// The variance of the logarithm of the prediction.
    log_variance: f64,
    /// The result of the last plan that looked at it.
    decision: Option<Box<Decision>>,
}

/// Multiplied by the waiting tasks, this is most of the memory of a long queue: an addition here must be worth it.
const _: () = assert!(size_of::<Option<Task>>() <= 192);

/// Where a task is.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Stage {
    /// In the queue, at the position of this rank.
    Waiting(ShapeId, i64),
    Bound(WorkerSlot),
    Dispatched(WorkerSlot),
}

impl Task {
    /// The position in the queue that goes with a rank.
    fn position(&self, rank: i64) -> QueuePosition {
        QueuePosition {
            rank,
            submitted_us: self.request.submitted.as_micros(),
            serial: self.serial,
        }
    }

    /// Its place in the order of arrival.
    fn arrival(&self) -> QueuePosition {
        self.position(0)
    }

    /// The run time on the worker that was chosen.
    fn estimate(&self) -> Estimate {
        self.decision.as_ref().map_or(Estimate::ZERO, |decision| decision.estimate)
    }
}

impl Placement {
    /// An empty pool under `strategy`. The same seed and the same calls give the same plans.
    pub fn new(strategy: Strategy, preferences: Preferences, seed: u64) -> Placement {
        let recipe = strategy.recipe();
        Placement {
            strategy,
            recipe,
            preferences,
            pool: Pool::new(recipe),
            waiting: WaitingQueue::default(),
            tenants: Tenants::default(),
            deadlines: Deadlines::default(),
            tasks: PagedSlab::default(),
            cursor: 0,
            rng: Rng::new(seed),
            serial: 0,
            bind_now: Vec::new(),
            in_flight: 0,
            waiting_s: 0.0,
            mean_predicted_s: RunningMean::default(),
            mean_run_s: RunningMean::default(),
            held_back_at: None,
            held_back: Vec::new(),
            stalled: VecDeque::new(),
            bound_goes_first: false,
            gained_capacity: BTreeMap::new(),
            reservations: Vec::new(),
            consecutive_interactive: 0,
            capacity_losses: 0,
            planned_at: Time::ZERO,
            ended_at: None,
            scratch: Scratch::default(),
            spare: SpareDecisions::default(),
            statistics: Statistics::default(),
            mutant: None,
        }
    }

    /// The strategy in use.
    pub fn strategy(&self) -> &Strategy {
        &self.strategy
    }

    /// Counts since the strategy was chosen.
    pub fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    /// How many tasks wait without a worker.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// How many tasks it has memory for. It follows the number of tasks, also when that falls.
    pub fn task_capacity(&self) -> usize {
        self.tasks.capacity().max(self.waiting.shape_capacity())
    }

    /// A task has arrived, or returns to be retried. It waits until the next plan.
    pub fn arrive(&mut self, task: TaskRef, request: PlacementRequest, predictor: &Predictor) {
        let stage = Stage::Waiting(ShapeId::NONE, i64::MIN);
        self.serial += 1;
        let predicted = predictor.hardware_estimate(&request.query, self.pool.reference_hardware());
        let (predicted_s, relative_error) =
            (predicted.mean_s, predicted.error_s / predicted.mean_s.max(1e-9));
        self.mean_predicted_s.add(predicted_s);
        self.tenants.arrived(request.spec.tenant.as_ref());
        let entry = Task {
            request,
            stage,
            serial: self.serial,
            predicted_s,
            size: predicted_s / self.mean_predicted_s.mean(),
            log_variance: (relative_error * relative_error).ln_1p(),
            decision: None,
        };
        self.tasks.insert(task.0 as usize, entry);
        self.wait(task);
    }

    /// A worker already has this task: a restarted scheduler learns of it from the worker.
    pub fn adopt(&mut self, task: TaskRef, slot: WorkerSlot, predictor: &Predictor, now: Time) {
        let Some(member) = self.pool.member(slot) else { return };
        let (predict, hardware) = (member.predict, member.hardware);
        self.leave_stage(task, now);
        let Some(entry) = self.tasks.get_mut(task.0 as usize) else { return };
        let decision = entry.decision.get_or_insert_with(|| self.spare.take());
        decision.estimate = predictor.estimate(&entry.request.query, predict);
        decision.base_s = predictor.hardware_estimate(&entry.request.query, hardware).mean_s;
        self.enter_dispatched(task, slot, now);
    }

    /// The worker reports that the task has begun.
    pub fn mark_started(&mut self, task: TaskRef, now: Time) {
        if let Some(Stage::Dispatched(slot)) = self.stage(task)
            && self.pool.member(slot).is_some_and(|member| member.started_unexpectedly(task, now))
        {
            self.pool.change(slot, now, |member| member.mark_started(task, now));
        }
    }

    /// The task has ended or is withdrawn, wherever it is. Its own estimate leaves the backlog with it. Returns the
    /// request, so that the task can return.
    pub fn finish(
        &mut self,
        task: TaskRef,
        ending: AttemptEnd,
        now: Time,
    ) -> Option<PlacementRequest> {
        let entry = self.tasks.get(task.0 as usize)?;
        if let Stage::Dispatched(slot) = entry.stage {
            let weight = self.learning_rate();
            let half_life_s = self.penalty_half_life_s();
            // The same for all workers, so that their speeds can be compared, whatever their hardware.
            let reference_s = entry.predicted_s.max(1e-6);
            let model = entry.request.spec.requirement.model.as_ref();
            self.in_flight -= 1;
            self.tenants.returned(&entry.request.spec);
            self.pool.change(slot, now, |member| {
                let executor = member.executor_of(task);
                member.remove_in_flight(task, now);
                match ending {
                    AttemptEnd::Completed(run) => {
                        let relative_time = run.as_secs_f64() / reference_s;
                        member.health.succeeded(run, relative_time, weight, model);
                        member.reliability.succeeded(executor, weight);
                    }
                    AttemptEnd::Failed => {
                        member.health.failed(now, weight, half_life_s, model);
                        member.reliability.failed(executor, weight);
                    }
                    AttemptEnd::Lost => {
                        member.health.failed(now, weight, half_life_s, model);
                        member.reliability.lost(weight);
                    }
                    AttemptEnd::Withdrawn => {}
                }
            });
            self.statistics.ended(ending);
        } else {
            self.leave_stage(task, now);
        }
        let gone = self.tasks.remove(task.0 as usize)?;
        self.tenants.left(&gone.request.spec);
        if let Some(decision) = gone.decision {
            self.spare.put(decision);
        }
        Some(gone.request)
    }

    /// Why the task is where it is.
    pub fn explanation(&self, task: TaskRef) -> Option<&Explanation> {
        self.tasks.get(task.0 as usize)?.decision.as_ref()?.explanation()
    }

    /// The task as the predictor sees it.
    pub fn query(&self, task: TaskRef) -> Option<&Query> {
        Some(&self.tasks.get(task.0 as usize)?.request.query)
    }

    /// Whether the worker that has the task is assumed to have begun it.
    pub fn has_started(&self, task: TaskRef) -> bool {
        match self.stage(task) {
            Some(Stage::Dispatched(slot)) => {
                self.pool.member(slot).is_some_and(|member| member.in_flight.has_started(task))
            }
            _ => false,
        }
    }

    /// The worker that the task is bound or dispatched to.
    pub fn worker_of(&self, task: TaskRef) -> Option<WorkerSlot> {
        match self.stage(task)? {
            Stage::Waiting(..) => None,
            Stage::Bound(slot) | Stage::Dispatched(slot) => Some(slot),
        }
    }

    fn stage(&self, task: TaskRef) -> Option<Stage> {
        Some(self.tasks.get(task.0 as usize)?.stage)
    }

    /// Puts a task into the queue, at the position that the strategy's order gives it.
    fn wait(&mut self, task: TaskRef) {
        let size_penalty_us = match self.recipe.order {
            Order::Predicted { ageing } => ageing * self.backlog_scale_us(),
            Order::Arrival | Order::Priority => 0.0,
        };
        let unaged = self.is(PlacementMutant::UnagedPriorities);
        let Some(entry) = self.tasks.get_mut(task.0 as usize) else { return };
        let mut position = order::queue_position_of(self.recipe.order, entry, size_penalty_us);
        let requirement = &entry.request.spec.requirement;
        if unaged && self.recipe.order != Order::Arrival {
            position.rank = (-1e3 * requirement.priority.as_f64()) as i64;
        }
        let lane = Lane::new(entry.request.interactive, false);
        let tenant = self.tenants.of(&entry.request.spec);
        let shape = self.waiting.insert(tenant, requirement, lane, position, task);
        entry.stage = Stage::Waiting(shape, position.rank);
        self.waiting_s += entry.predicted_s;
        if entry.request.bind_at_once {
            self.bind_now.push(task);
        }
        if requirement.deadline.is_some() {
            self.note_deadline(task);
        }
    }

    /// The time that scales sizes in the order, in microseconds: the run time of the usual task on the usual worker,
    /// times how much of a backlog there is. Zero while a worker has room: with nothing to wait for, overtaking by
    /// size only harms the long tasks.
    fn backlog_scale_us(&self) -> f64 {
        if self.pool.has_free() {
            return 0.0;
        }
        let queue = self.waiting_s / self.mean_predicted_s.mean();
        let saturation = queue / (queue + HALF_SATURATION * self.pool.open_slots().max(1) as f64);
        saturation * self.mean_run_s.mean() * 1e6
    }

    /// Lets a task keep its position by arrival from now on: it has left a free worker to others. Returns when it was
    /// last held back.
    fn restore_arrival_order(&mut self, task: TaskRef) -> Option<Time> {
        let entry = self.tasks.get_mut(task.0 as usize)?;
        let held = entry.decision.as_mut()?.held.as_mut()?;
        let held_at = Some(held.at);
        // Nor does its deadline let it be overtaken.
        if self.deadlines.decides_position_of(task) {
            return held_at;
        }
        let Stage::Waiting(shape, rank) = entry.stage else { return held_at };
        if std::mem::replace(&mut held.keeps_arrival_order, true) {
            return held_at;
        }
        let arrived = order::queue_position_of(self.recipe.order, entry, 0.0);
        if arrived.rank < rank {
            self.waiting.remove(shape, entry.position(rank));
            let requirement = &entry.request.spec.requirement;
            let lane = Lane::new(entry.request.interactive, false);
            let tenant = self.tenants.of(&entry.request.spec);
            let shape = self.waiting.insert(tenant, requirement, lane, arrived, task);
            entry.stage = Stage::Waiting(shape, arrived.rank);
        }
        held_at
    }

    /// Takes a task out of the queue, or away from its worker.
    fn leave_stage(&mut self, task: TaskRef, now: Time) {
        self.release_hold(task, now);
        self.release_reservation(task, now);
        let Some(entry) = self.tasks.get(task.0 as usize) else { return };
        match entry.stage {
            Stage::Waiting(shape, rank) => {
                self.waiting.remove(shape, entry.position(rank));
                self.waiting_s -= entry.predicted_s;
                if self.waiting.len() == 0 {
                    self.waiting_s = 0.0;
                }
                if entry.request.spec.requirement.deadline.is_some() {
                    self.deadlines.remove(task);
                }
            }
            Stage::Bound(slot) => {
                self.pool.change(slot, now, |member| {
                    member.unbind(task, &entry.estimate(), &entry.request.spec.requirement);
                });
            }
            Stage::Dispatched(slot) => {
                self.in_flight -= 1;
                self.tenants.returned(&entry.request.spec);
                self.pool.change(slot, now, |member| member.remove_in_flight(task, now));
            }
        }
    }

    fn learning_rate(&self) -> f64 {
        match self.strategy {
            Strategy::Adaptive { learning_rate } => learning_rate,
            _ => Health::DEFAULT_WEIGHT,
        }
    }

    fn penalty_half_life_s(&self) -> f64 {
        match self.strategy {
            Strategy::LoadBalancing { penalty_half_life_s } => penalty_half_life_s,
            // As by default, so that a switch to `load_balancing` does not count old failures in full.
            _ => strategy::default_penalty_half_life_s(),
        }
    }
}

/// A queue of this many usual runs per worker counts half as a backlog.
const HALF_SATURATION: f64 = 4.0;
