//! One worker of the pool, as placement sees it: what it offers, its load, its record.

use std::sync::Arc;

use hypha_model::{Ledger, Money, Refusal, RefusalKind, Requirement, TaskSpec, Time, Worker};
use hypha_predict::{Backlog, Estimate, HardwareKey, WorkerKey};

use crate::TaskRef;
use crate::capability;
use crate::fair_queue::FairQueue;
use crate::health::Health;
use crate::in_flight::{Backfill, DispatchedTask, InFlight};
use crate::index::Bounds;
use crate::model_records::PastRuns;
use crate::reliability::Reliability;
use crate::reservation::Reservation;
use crate::strategy::{Bind, LoadMetric, Recipe, Score};
use crate::tenants::Holdings;
use crate::usage::MeasuredUsage;

/// At most this many tasks wait on a worker for each that it can run at once. It covers round trips of many run times
/// (no-op tasks over a LAN), and bounds what a worker must hold and what its death delays.
pub const MAX_PREFETCH_PER_SLOT: usize = 64;

/// A round trip of less than this share of a run costs less than having the next task wait on the worker.
const MIN_TRIP_SHARE: f64 = 0.01;

/// A tie break is a number: the share of slots in use in its upper 16 bits, the time of the last dispatch in the
/// others. Shares are distinguished to a 256th of the slots, and up to 255 times all of them.
const TIE_BREAK_TIME_BITS: u32 = 48;
const IN_USE_STEPS: u64 = 256;
const MAX_IN_USE: u64 = (1 << (64 - TIE_BREAK_TIME_BITS)) - 1;
/// Times in a tie break are distinguished to 32 µs, so that 48 bits last beyond the year 2200.
const TIE_BREAK_TIME_SHIFT: u32 = 5;

/// See the module documentation.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) worker: Arc<Worker>,
    pub(crate) predict: WorkerKey,
    /// The version of the pool that it joined with: unique to this worker.
    pub(crate) joined: u64,
    pub(crate) hardware: HardwareKey,
    pub(crate) factor: f64,
    /// The factor in steps: see `pool.rs`.
    pub(crate) speed_step: i32,
    pub(crate) available: bool,
    /// Not available, but it still gets the tasks bound to it before.
    pub(crate) draining: bool,
    /// For each executor whether it is suspended.
    suspended: Vec<bool>,
    /// How many executors get no tasks, because they are suspended or none of their slots is leased.
    closed: usize,
    pub(crate) rtt_s: f64,
    /// For an hour.
    pub(crate) price: Money,
    pub(crate) local: bool,
    pub(crate) health: Health,
    pub(crate) reliability: Reliability,
    /// Tasks bound to this worker and not yet dispatched.
    pub(crate) bound: FairQueue<TaskRef>,
    pub(crate) bound_backlog: Backlog,
    pub(crate) in_flight: InFlight,
    pub(crate) last_dispatched: Time,
    /// The task in the scheduler's queue that has a reservation here.
    pub(crate) reservation: Option<Reservation>,
    /// How many tasks in the scheduler's queue wait for this worker, and how long they will occupy it.
    held_back_tasks: u32,
    held_back_s: f64,
    /// Wide: the tasks of a queue may require more, in all, than a worker can have.
    pub(crate) demanded_cpu_milli: u128,
    pub(crate) demanded_memory_bytes: u128,
    /// The last measurement of its machine.
    pub(crate) measured: Option<MeasuredUsage>,
    capabilities: u64,
    /// What it offers, as it was added to what the pool offers.
    pub(crate) counted_offer: Holdings,
}

/// How long a task waits until it begins: mean and standard deviation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Wait {
    pub(crate) mean_s: f64,
    pub(crate) error_s: f64,
}

impl Wait {
    const NONE: Wait = Wait { mean_s: 0.0, error_s: 0.0 };
}

impl Member {
    pub(crate) fn new(
        worker: Arc<Worker>,
        predict: WorkerKey,
        hardware: HardwareKey,
        local: bool,
        health: Health,
    ) -> Member {
        Member {
            predict,
            joined: 0,
            hardware,
            factor: 1.0,
            speed_step: 0,
            available: false,
            draining: false,
            suspended: vec![false; worker.executors.len()],
            closed: 0,
            rtt_s: 0.0,
            price: Money::ZERO,
            local,
            reliability: Reliability::new(&worker.executors, &health),
            health,
            bound: FairQueue::default(),
            bound_backlog: Backlog::default(),
            in_flight: InFlight::new(&worker),
            last_dispatched: Time::ZERO,
            reservation: None,
            held_back_tasks: 0,
            held_back_s: 0.0,
            demanded_cpu_milli: 0,
            demanded_memory_bytes: 0,
            measured: None,
            counted_offer: Holdings::default(),
            capabilities: capability::capabilities_of(&worker, &[], local),
            worker,
        }
    }

    /// Its record, with that of its executors.
    pub(crate) fn health_record(&self) -> Health {
        let mut health = self.health.clone();
        health.executors = self.reliability.recorded(&self.worker.executors);
        health
    }

    /// Why it could not run the task even when idle.
    pub(crate) fn refuses_ever(&self, requirement: &Requirement) -> Option<Refusal> {
        if !self.is_available() {
            return Some(Refusal::without_amount(RefusalKind::Unavailable));
        }
        let lacks_executor = || self.lacks_usable_executor(requirement);
        let unavailable = Refusal::without_amount(RefusalKind::Unavailable);
        requirement
            .satisfied_by(&self.worker)
            .err()
            .or_else(|| lacks_executor().then_some(unavailable))
    }

    /// Whether it may get tasks.
    pub(crate) fn is_available(&self) -> bool {
        self.available && (self.closed == 0 || self.closed < self.suspended.len())
    }

    /// Suspends an executor, or resumes it.
    pub(crate) fn set_suspended(&mut self, executor: usize, suspended: bool) {
        if let Some(was) = self.suspended.get_mut(executor) {
            *was = suspended;
            self.update_closed();
        }
    }

    /// Offers no more than `worker` and `slots` from now on.
    pub(crate) fn resize(&mut self, worker: Arc<Worker>, slots: &[u32], now: Time) {
        self.worker = worker;
        self.in_flight.resize(&self.worker.capacity, slots, now);
        self.update_closed();
    }

    fn update_closed(&mut self) {
        let closed: Vec<bool> = (0..self.suspended.len()).map(|at| self.is_closed(at)).collect();
        self.closed = closed.iter().filter(|closed| **closed).count();
        self.capabilities = capability::capabilities_of(&self.worker, &closed, self.local);
    }

    /// Whether an executor gets no tasks.
    fn is_closed(&self, executor: usize) -> bool {
        self.suspended[executor] || self.in_flight.concurrency(executor) == 0
    }

    pub(crate) fn is_suspended(&self, executor: usize) -> bool {
        self.suspended.get(executor).copied().unwrap_or(false)
    }

    /// Whether every executor that would do is closed.
    pub(crate) fn lacks_usable_executor(&self, requirement: &Requirement) -> bool {
        self.closed > 0 && self.executor_for(requirement).is_none()
    }

    /// Why it could not begin the task now, if the run takes `run_s`.
    pub(crate) fn refuses_now(
        &self,
        task: TaskRef,
        requirement: &Requirement,
        run_s: impl FnOnce() -> f64,
        now: Time,
    ) -> Option<Refusal> {
        self.lacks(task, requirement).or_else(|| {
            let kept = self.conflicting_reservation(task, requirement, run_s, now);
            kept.map(|_| Refusal::without_amount(RefusalKind::Reserved))
        })
    }

    /// The reservation of another task that this one would delay.
    pub(crate) fn conflicting_reservation(
        &self,
        task: TaskRef,
        requirement: &Requirement,
        run_s: impl FnOnce() -> f64,
        now: Time,
    ) -> Option<&Reservation> {
        let other = self.reservation.as_ref().filter(|other| other.task != task)?;
        let executor = self.executor_for(requirement)?;
        other.is_delayed_by(&self.in_flight, (requirement, executor), run_s(), now).then_some(other)
    }

    /// Sets or removes the reservation.
    pub(crate) fn set_reservation(&mut self, reservation: Option<Reservation>) {
        self.reservation = reservation;
        self.in_flight.clear_backfill(Backfill::Reservation);
    }

    /// What it lacks to begin the task now.
    fn lacks(&self, task: TaskRef, requirement: &Requirement) -> Option<Refusal> {
        let Some(executor) = self.executor_for(requirement) else {
            return Some(Refusal::without_amount(RefusalKind::Executor));
        };
        let is_kept = self.reservation.as_ref().is_some_and(|kept| kept.task == task);
        // Tasks that wait on the worker, or are bound to it, go before new ones.
        if (!self.bound.is_empty() && !is_kept)
            || self.in_flight.len() >= self.slots() as usize
            || self.in_flight.is_full(executor)
        {
            return Some(Refusal::without_amount(RefusalKind::Busy));
        }
        self.in_flight.fits(requirement).err()
    }

    /// How many tasks it runs at once; none while it is not available.
    pub(crate) fn open_slots(&self) -> u64 {
        if self.is_available() { u64::from(self.slots()) } else { 0 }
    }

    /// Tasks bound to it, begun or not.
    pub(crate) fn load(&self) -> usize {
        self.bound.len() + self.in_flight.len()
    }

    /// Ranks equally good workers: the one with the smaller share of its slots in use goes first, and among those the
    /// one whose last dispatch is longest ago.
    fn tie_break(&self) -> u64 {
        let in_use = (self.load() as u64).saturating_mul(IN_USE_STEPS) / u64::from(self.slots());
        let last_dispatched = self.last_dispatched.as_micros() >> TIE_BREAK_TIME_SHIFT;
        (in_use.min(MAX_IN_USE) << TIE_BREAK_TIME_BITS)
            | last_dispatched.min((1 << TIE_BREAK_TIME_BITS) - 1)
    }

    pub(crate) fn running(&self) -> u32 {
        self.in_flight.running()
    }

    pub(crate) fn slots(&self) -> u32 {
        self.in_flight.slots()
    }

    pub(crate) fn ledger(&self) -> &Ledger<TaskRef> {
        self.in_flight.ledger()
    }

    /// Whether the number of tasks leaves room to begin another.
    fn has_slot(&self) -> bool {
        self.running() < self.slots() && self.bound.is_empty()
    }

    /// How long a new task would wait until it begins: a sum of independent remaining times, shared by the tasks that
    /// run at once. Exactly zero when a task could begin at once.
    pub(crate) fn wait(&self, now: Time) -> Wait {
        if self.has_slot() {
            return Wait::NONE;
        }
        self.wait_behind(self.in_flight.remaining(now), self.slots())
    }

    /// How long this task would wait. A worker that has room for another may have none for it: its executor is in use,
    /// or the running tasks leave too little of some resource.
    pub(crate) fn wait_for(&self, task: TaskRef, requirement: &Requirement, now: Time) -> Wait {
        if !self.has_slot() {
            return self.wait(now);
        }
        if self.in_flight.is_empty() || self.lacks(task, requirement).is_none() {
            return Wait::NONE;
        }
        match self.executor_for(requirement) {
            Some(executor) if self.in_flight.is_full(executor) => self.wait_behind(
                self.in_flight.remaining_of(executor, now),
                self.in_flight.concurrency(executor),
            ),
            _ => self.wait_behind(self.in_flight.remaining(now), self.running().max(1)),
        }
    }

    /// The time of the tasks bound here and of the rest of those in flight, `concurrency` at a time.
    fn wait_behind(&self, (left_s, variance): (f64, f64), concurrency: u32) -> Wait {
        let (bound_s, error_s) = self.bound_backlog.estimate();
        let concurrency = f64::from(concurrency);
        let error_s = (error_s * error_s + variance).sqrt();
        Wait { mean_s: (bound_s + left_s) / concurrency, error_s: error_s / concurrency }
    }

    /// Updates what time alone has changed, as far as `recipe` uses it.
    pub(crate) fn update(&mut self, recipe: &Recipe, now: Time) {
        if recipe.is_time_based() && !self.has_slot() {
            self.in_flight.update(now);
        }
    }

    /// Whether a task may be dispatched now although it must wait there: the worker would otherwise be idle while the
    /// next task travels.
    pub(crate) fn wants_prefetch(
        &self,
        task: TaskRef,
        requirement: &Requirement,
        now: Time,
    ) -> bool {
        self.reservation.as_ref().is_none_or(|kept| kept.task == task)
            && self.in_flight.len() < self.most_in_flight()
            && self.rtt_s > 0.0
            && self.wait_for(task, requirement, now).mean_s <= self.rtt_s
    }

    /// Whether the head of its own queue may be dispatched. A bound task would run here anyway, so the worker gets one
    /// more task for each that it can run at once, and more where the round trip is long compared with its runs. Where
    /// the round trip is short it gets none: an interactive task would have to wait behind it.
    pub(crate) fn wants_bound(&self) -> bool {
        let ahead = match self.health.completed {
            0 => 1,
            _ => {
                let runs = self.rtt_s / self.health.avg_completion_time.as_secs_f64().max(1e-6);
                match runs < MIN_TRIP_SHARE {
                    true => 0,
                    false => 1 + runs.min(MAX_PREFETCH_PER_SLOT as f64) as usize,
                }
            }
        };
        let slots = self.slots() as usize;
        let most = slots.saturating_mul(1 + ahead).min(self.most_in_flight());
        self.in_flight.len() < most
    }

    /// A worker with many slots covers the round trip by their number: one more task for each slot is enough, and a
    /// longer queue there would only take tasks away from other workers.
    fn most_in_flight(&self) -> usize {
        let slots = self.slots() as usize;
        slots.saturating_add(slots.max(MAX_PREFETCH_PER_SLOT))
    }

    /// Records that a task waits for this worker: the tasks behind it will wait longer.
    pub(crate) fn add_held_back(&mut self, share_s: f64) {
        self.held_back_tasks += 1;
        self.held_back_s += share_s;
    }

    /// Undoes that. The sum is exactly zero when no task waits.
    pub(crate) fn remove_held_back(&mut self, share_s: f64) {
        self.held_back_tasks = self.held_back_tasks.saturating_sub(1);
        self.held_back_s = if self.held_back_tasks == 0 { 0.0 } else { self.held_back_s - share_s };
    }

    pub(crate) fn held_back_s(&self) -> f64 {
        self.held_back_s
    }

    /// Whether a task could begin at once, as far as the number of tasks goes.
    pub(crate) fn is_open(&self) -> bool {
        self.is_available() && self.bound.is_empty() && self.in_flight.len() < self.slots() as usize
    }

    /// Binds a task: it will run here, before the last bound tasks that `goes_before` is true of.
    pub(crate) fn bind(
        &mut self,
        (task, interactive): (TaskRef, bool),
        goes_before: impl Fn(TaskRef) -> bool,
        estimate: &Estimate,
        requirement: &Requirement,
    ) {
        self.bound.insert(task, interactive, goes_before);
        self.bound_backlog.add(estimate);
        self.add_demand(requirement);
    }

    /// Takes a task out of the queue of bound tasks.
    pub(crate) fn unbind(&mut self, task: TaskRef, estimate: &Estimate, requirement: &Requirement) {
        if self.bound.remove(task) {
            self.bound_backlog.remove(estimate);
            self.remove_demand(requirement);
        }
    }

    /// Takes out the next of the tasks bound here.
    pub(crate) fn unbind_next(
        &mut self,
        task: TaskRef,
        estimate: &Estimate,
        requirement: &Requirement,
    ) {
        if self.bound.take(task) {
            self.bound_backlog.remove(estimate);
            self.remove_demand(requirement);
        }
    }

    fn add_demand(&mut self, requirement: &Requirement) {
        self.demanded_cpu_milli += u128::from(requirement.cpu_milli);
        self.demanded_memory_bytes += u128::from(requirement.memory_bytes);
    }

    fn remove_demand(&mut self, requirement: &Requirement) {
        self.demanded_cpu_milli -= u128::from(requirement.cpu_milli);
        self.demanded_memory_bytes -= u128::from(requirement.memory_bytes);
    }

    /// Dispatches a task: it begins if there is room, and waits on the worker otherwise.
    pub(crate) fn dispatch(
        &mut self,
        task: TaskRef,
        interactive: bool,
        estimate: Estimate,
        spec: Arc<TaskSpec>,
        now: Time,
    ) {
        // A worker keeps the tasks that it has, also if their executor is suspended by now.
        let executor = self
            .executor_for(&spec.requirement)
            .or_else(|| spec.requirement.executors_of(&self.worker).next());
        self.add_demand(&spec.requirement);
        let late = |kept: &&Reservation| kept.task != task && kept.would_delay(&estimate, now);
        let backfill = self.reservation.as_ref().filter(late).map(|_| Backfill::Reservation);
        let dispatched = DispatchedTask { estimate, spec, executor, interactive, backfill };
        self.in_flight.dispatch(task, dispatched, now);
        self.last_dispatched = now;
    }

    /// Whether the task was not expected to begin at `now`.
    pub(crate) fn started_unexpectedly(&self, task: TaskRef, now: Time) -> bool {
        self.in_flight.started_unexpectedly(task, now)
    }

    /// The worker reports that it has begun the task: its run time counts from here.
    pub(crate) fn mark_started(&mut self, task: TaskRef, now: Time) {
        self.in_flight.mark_started(task, now);
    }

    /// Takes a task out, finished or not; tasks that waited for its room begin.
    pub(crate) fn remove_in_flight(&mut self, task: TaskRef, now: Time) {
        if let Some(spec) = self.in_flight.remove_in_flight(task, now) {
            self.remove_demand(&spec.requirement);
        }
    }

    /// The first executor that would do and is not closed.
    pub(crate) fn executor_for(&self, requirement: &Requirement) -> Option<usize> {
        requirement.executors_of(&self.worker).find(|at| !self.is_closed(*at))
    }

    /// The executor that runs a task dispatched to the worker.
    pub(crate) fn executor_of(&self, task: TaskRef) -> Option<usize> {
        self.in_flight.executor_of(task)
    }

    /// How many attempts of such a task a success is expected to take here, less one.
    pub(crate) fn extra_attempts(&self, requirement: &Requirement) -> f64 {
        self.reliability.extra_attempts(|| self.executor_for(requirement))
    }

    /// The bounds of this worker in the tree of `recipe`.
    pub(crate) fn bounds(&self, recipe: &Recipe, now: Time) -> Bounds {
        if !self.is_available() {
            return Bounds::NONE;
        }
        let is_time_based = recipe.is_time_based();
        let open = self.has_slot();
        let begins = open && self.in_flight.len() < self.slots() as usize;
        let free_at_s =
            if open || !is_time_based { 0.0 } else { now.as_secs_f64() + self.wait(now).mean_s };
        let room_at_s = if begins {
            0.0
        } else if recipe.bind == Bind::Late
            && self.rtt_s > 0.0
            && self.in_flight.len() < self.most_in_flight()
        {
            free_at_s - self.rtt_s
        } else {
            f64::INFINITY
        };
        let key = match recipe.bind {
            Bind::WithRoom if !begins => f64::INFINITY,
            _ if is_time_based && self.held_back_tasks > 0 => {
                free_at_s.max(now.as_secs_f64()) + self.held_back_s
            }
            _ if is_time_based => free_at_s,
            _ => self.key(&recipe.score, now),
        };
        let (factor, rtt_s) = match recipe.score {
            Score::ExpectedFinish { .. } => {
                (self.factor * (1.0 + self.reliability.min_extra_attempts()), self.rtt_s)
            }
            _ => (self.factor, 0.0),
        };
        let mut bounds = Bounds {
            key,
            room_at_s,
            factor: factor as f32,
            rtt_s: rtt_s as f32,
            tie_break: self.tie_break(),
            load_or_price: match is_time_based {
                true => ((factor * self.price.as_f64()) as f32).to_bits(),
                false => self.load() as u32,
            },
            capabilities: self.capabilities,
            ..Bounds::NONE
        };
        let capacity = &self.worker.capacity;
        let gpu_memory =
            || capacity.devices.iter().map(|device| device.memory_bytes).max().unwrap_or(0);
        // Free amounts shrink and grow; totals do not. Only a recipe that needs room now uses free amounts. GPUs count
        // by their number in both cases; the leaf checks the rest.
        let free = self.ledger().free();
        let (cpu_milli, memory_bytes, storage_bytes) = match recipe.bind {
            Bind::WithRoom => (free.cpu_milli, free.memory_bytes, free.storage_bytes),
            Bind::AtSubmit | Bind::Late => {
                (capacity.cpu_milli, capacity.memory_bytes, capacity.storage_bytes)
            }
        };
        capability::set_amounts(
            &mut bounds,
            cpu_milli,
            memory_bytes,
            storage_bytes,
            capacity.devices.len() as u32,
            gpu_memory(),
        );
        bounds
    }

    /// The key that a recipe minimises if it does not depend on the task.
    pub(crate) fn key(&self, score: &Score, now: Time) -> f64 {
        let load = self.load() as f64;
        match *score {
            Score::Nothing => 0.0,
            Score::QueueLength | Score::Load(LoadMetric::TaskCount) => load,
            Score::Load(metric) => self.used_share(metric),
            // A lower bound over all models.
            Score::PastPerformance | Score::Learned { .. } => {
                let scores =
                    self.health.each_past_runs().map(|runs| self.record_score(score, runs));
                scores.fold(f64::INFINITY, f64::min)
            }
            Score::GpuLoad { penalty_half_life_s } => {
                let gpus = self.worker.capacity.devices.len().max(1) as f64;
                load / gpus + self.health.penalty(now, penalty_half_life_s)
            }
            Score::FreeAmount => self.free_amount(),
            Score::NegatedFreeAmount => -self.free_amount(),
            Score::Finish { .. } | Score::SampledFinish | Score::ExpectedFinish { .. } => {
                now.as_secs_f64() + self.wait(now).mean_s
            }
        }
    }

    /// The score of a task, where that does not depend on predictions.
    pub(crate) fn score_of(&self, score: &Score, requirement: &Requirement, now: Time) -> f64 {
        match score {
            Score::PastPerformance | Score::Learned { .. } => {
                self.record_score(score, self.health.past_runs(requirement.model.as_ref()))
            }
            _ => self.key(score, now),
        }
    }

    fn record_score(&self, score: &Score, runs: PastRuns) -> f64 {
        let load = self.load() as f64;
        let gpus = self.worker.capacity.devices.len();
        match score {
            // By its capacity: its GPUs, or what it runs at once if it has none.
            Score::Learned { .. } => {
                let capacity = if gpus > 0 { gpus as f64 } else { f64::from(self.slots()) };
                runs.relative_time * (1.0 + load / capacity)
            }
            _ => {
                let travel = if runs.run_s > 0.0 { self.rtt_s / runs.run_s } else { 0.0 };
                runs.relative_time * (1.0 + load / f64::from(self.slots())) + travel
            }
        }
    }

    /// The free amount of all resources in one unit: a core, 4 GiB of memory, 64 GiB of disk, an eighth of a GPU and 4
    /// GiB on it count the same. A common unit (and not each worker's own total) makes the order of workers the same
    /// for every task.
    fn free_amount(&self) -> f64 {
        const GIB: f64 = (1u64 << 30) as f64;
        let free = self.ledger().free();
        free.cpu_milli as f64 / 1e3
            + free.memory_bytes as f64 / (4.0 * GIB)
            + free.storage_bytes as f64 / (64.0 * GIB)
            + free.milli_gpu as f64 * 8.0 / 1e3
            + free.gpu_memory_bytes as f64 / (4.0 * GIB)
    }
}
