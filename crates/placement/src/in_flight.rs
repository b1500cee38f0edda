//! The tasks that are in flight on a worker: those that run, those that wait there to begin, and sums over both.
//!
//! The sums are maintained, not added up for each decision: a worker may run hundreds of tasks at once. Each run's
//! expected end is valid for a while (`hypha_predict::Remaining`). [`InFlight::update`] predicts the expired ones
//! again; it is called before a full worker's bounds go into a tree. A reader in between gets those few predicted
//! again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hypha_model::{Capacity, Executor, Fit, Ledger, Refusal, Requirement, TaskSpec, Time, Worker};
use hypha_predict::{Backlog, Estimate, Remaining, RemainingSum};

use crate::TaskRef;
use crate::fair_queue::FairQueue;

/// How many of the tasks that wait on a worker are searched for one that may overtake the first.
pub const MAX_BACKFILL_CANDIDATES: usize = 64;

/// A task that began later than expected by less than this share of its run began about then: predictions are further
/// off than that. Most begin when the message has travelled.
const START_TOLERANCE: f64 = 0.02;

/// One task dispatched to the worker.
#[derive(Clone, Debug)]
struct Run {
    estimate: Estimate,
    spec: Arc<TaskSpec>,
    /// `None` if the worker reports a task that it offers no executor for.
    executor: Option<usize>,
    /// When it began and when it is expected to end; `None` while it waits on the worker.
    begun: Option<(Time, Remaining)>,
    /// The task that it runs beside, as backfill.
    backfill: Option<Backfill>,
}

/// A task as it is dispatched.
pub(crate) struct DispatchedTask {
    pub(crate) estimate: Estimate,
    pub(crate) spec: Arc<TaskSpec>,
    pub(crate) executor: Option<usize>,
    /// Whether it goes before waiting batch tasks.
    pub(crate) interactive: bool,
    pub(crate) backfill: Option<Backfill>,
}

/// What a task may backfill beside: a task that stays first although this one overtakes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backfill {
    /// The first of the tasks that wait on the worker.
    QueueHead,
    /// The task in the scheduler's queue that has a reservation here.
    Reservation,
}

/// The remaining work of some of the tasks: of those that run, and of those that have not begun.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct RemainingWork {
    remaining: RemainingSum,
    waiting: Backlog,
}

/// See the module documentation.
#[derive(Clone, Debug)]
pub(crate) struct InFlight {
    runs: BTreeMap<TaskRef, Run>,
    /// Tasks that have not begun, in the order in which the worker begins them.
    queue: FairQueue<TaskRef>,
    running: u32,
    slots: u32,
    /// For each executor how many tasks it can run at once, and how many it runs now.
    concurrency: Vec<u32>,
    used: Vec<u32>,
    ledger: Ledger<TaskRef>,
    /// Whether more may be in flight than fits: there was room when it was dispatched.
    resized: bool,
    all: RemainingWork,
    by_executor: Vec<RemainingWork>,
    /// Until when each expected end is valid.
    valid_until: BTreeSet<(Time, TaskRef)>,
    /// The first of the waiting tasks, and how many later ones began before it.
    overtaken: (Option<TaskRef>, u32),
    /// How many of the tasks run as backfill of each kind.
    backfill: [u32; 2],
    /// Grows with every change to what fits.
    changes: u64,
}

impl InFlight {
    pub(crate) fn new(worker: &Worker) -> InFlight {
        let concurrency: Vec<u32> = worker.executors.iter().map(concurrency).collect();
        InFlight {
            runs: BTreeMap::new(),
            queue: FairQueue::default(),
            running: 0,
            slots: concurrency.iter().copied().fold(0, u32::saturating_add).max(1),
            used: vec![0; concurrency.len()],
            ledger: Ledger::new(&worker.capacity),
            resized: false,
            all: RemainingWork::default(),
            by_executor: vec![RemainingWork::default(); concurrency.len()],
            concurrency,
            valid_until: BTreeSet::new(),
            overtaken: (None, 0),
            backfill: [0; 2],
            changes: 0,
        }
    }

    /// Sets what it offers from now on.
    pub(crate) fn resize(&mut self, capacity: &Capacity, slots: &[u32], now: Time) {
        for (at, most) in self.concurrency.iter_mut().enumerate() {
            *most = slots.get(at).copied().unwrap_or(0);
        }
        self.slots = self.concurrency.iter().copied().fold(0, u32::saturating_add).max(1);
        self.ledger.resize(capacity);
        self.resized = true;
        self.changes += 1;
        self.start_fitting(now);
    }

    pub(crate) fn len(&self) -> usize {
        self.runs.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    pub(crate) fn tasks(&self) -> impl Iterator<Item = TaskRef> {
        self.runs.keys().copied()
    }

    pub(crate) fn running(&self) -> u32 {
        self.running
    }

    /// How many tasks run at once.
    pub(crate) fn slots(&self) -> u32 {
        self.slots
    }

    pub(crate) fn ledger(&self) -> &Ledger<TaskRef> {
        &self.ledger
    }

    /// Whether the free amounts satisfy `requirement`, or the first reason why not.
    pub(crate) fn fits(&self, requirement: &Requirement) -> Result<(), Refusal> {
        self.ledger.fits(requirement)
    }

    /// Whether an executor runs as many tasks as it can.
    pub(crate) fn is_full(&self, executor: usize) -> bool {
        self.used[executor] >= self.concurrency[executor]
    }

    /// How many tasks an executor runs at once.
    pub(crate) fn concurrency(&self, executor: usize) -> u32 {
        self.concurrency[executor]
    }

    /// The executor that runs a task.
    pub(crate) fn executor_of(&self, task: TaskRef) -> Option<usize> {
        self.runs.get(&task)?.executor
    }

    /// Whether a task was dispatched to the worker.
    pub(crate) fn has(&self, task: TaskRef) -> bool {
        self.runs.contains_key(&task)
    }

    /// The rest of the run of a task, or all of it if it has not begun.
    pub(crate) fn remaining_run(&self, task: TaskRef, now: Time) -> Option<Estimate> {
        let run = self.runs.get(&task)?;
        Some(match run.begun {
            Some((since, _)) => run.estimate.remaining(now.since(since).as_secs_f64()),
            None => run.estimate,
        })
    }

    /// Whether a task is assumed to have begun.
    pub(crate) fn has_started(&self, task: TaskRef) -> bool {
        self.runs.get(&task).is_some_and(|run| run.begun.is_some())
    }

    /// Whether a task is here and was not expected to begin at about `now`.
    pub(crate) fn started_unexpectedly(&self, task: TaskRef, now: Time) -> bool {
        let is_late = |run: &Run, since: Time| {
            now.since(since).as_secs_f64() > START_TOLERANCE * run.estimate.mean_s
        };
        let run = self.runs.get(&task);
        run.is_some_and(|run| run.begun.is_none_or(|(since, _)| is_late(run, since)))
    }

    /// Dispatches a task: it begins if there is room, and waits on the worker otherwise.
    pub(crate) fn dispatch(&mut self, task: TaskRef, dispatched: DispatchedTask, now: Time) {
        let DispatchedTask { estimate, spec, executor, interactive, backfill } = dispatched;
        self.changes += 1;
        self.backfill
            .iter_mut()
            .zip(BACKFILL_KINDS)
            .for_each(|(count, of)| *count += u32::from(backfill == Some(of)));
        // Most begin at once: nothing waits before them, and there is room.
        let begins = self.queue.is_empty()
            && self.running < self.slots
            && self.may_begin(&spec.requirement, executor, 0);
        self.runs.insert(task, Run { estimate, spec, executor, begun: None, backfill });
        if begins {
            self.is_first(task);
            return self.begin(task, now);
        }
        self.each_sum(executor, |left| {
            left.waiting.add(&estimate);
        });
        self.queue.push(task, interactive);
        self.start_fitting(now);
    }

    /// The worker reports that it has begun the task: its run time counts from here.
    pub(crate) fn mark_started(&mut self, task: TaskRef, now: Time) {
        let Some(run) = self.runs.get_mut(&task) else { return };
        let Some((since, remaining)) = &mut run.begun else {
            let (spec, executor) = (Arc::clone(&run.spec), run.executor);
            // It was assumed to wait. If there is room for it, the report is believed.
            if self.running < self.slots && self.may_begin(&spec.requirement, executor, 0) {
                self.queue.take(task);
                self.changes += 1;
                self.begin_waiting(task, now);
            }
            return;
        };
        let (before, executor) = (*remaining, run.executor);
        let after = Remaining::of(&run.estimate, now, now);
        (*since, *remaining) = (now, after);
        self.valid_until.remove(&(before.valid_until(), task));
        self.replace(task, executor, &before, &after);
    }

    /// Takes a task out, finished or not; tasks that waited for its room begin. Returns its specification.
    pub(crate) fn remove_in_flight(&mut self, task: TaskRef, now: Time) -> Option<Arc<TaskSpec>> {
        let run = self.runs.remove(&task)?;
        self.changes += 1;
        if let Some(of) = run.backfill {
            self.backfill[of as usize] -= 1;
        }
        match run.begun {
            Some((_, remaining)) => {
                self.running -= 1;
                if let Some(executor) = run.executor {
                    self.used[executor] -= 1;
                }
                // It was booked when it began, so this cannot fail; `check` would notice.
                let _ = self.ledger.release(task);
                self.valid_until.remove(&(remaining.valid_until(), task));
                self.each_sum(run.executor, |left| left.remaining.remove(&remaining));
            }
            None => {
                self.queue.remove(task);
                self.each_sum(run.executor, |left| {
                    left.waiting.remove(&run.estimate);
                });
            }
        }
        self.start_fitting(now);
        Some(run.spec)
    }

    /// Begins the tasks that fit, in the order in which they were dispatched. A task that does not fit may be
    /// overtaken, but not for ever: by as many as run at once, and then only by tasks that fit beside it.
    fn start_fitting(&mut self, now: Time) {
        let mut at = 0;
        while self.running < self.slots
            && at < MAX_BACKFILL_CANDIDATES
            && let Some(task) = self.queue.get(at)
        {
            if at == 0 {
                self.is_first(task);
            }
            let Some((spec, executor)) =
                self.runs.get(&task).map(|run| (Arc::clone(&run.spec), run.executor))
            else {
                return;
            };
            if !self.may_begin(&spec.requirement, executor, at) {
                at += 1;
                continue;
            }
            let first = self.queue.front();
            self.queue.take(task);
            self.begin_waiting(task, now);
            if self.queue.front() != first {
                // Now another is first.
                at = 0;
            }
        }
    }

    /// Records which of the waiting tasks is first: others may overtake it, but not for ever.
    fn is_first(&mut self, task: TaskRef) {
        if self.overtaken.0 != Some(task) {
            self.overtaken = (Some(task), 0);
            self.clear_backfill(Backfill::QueueHead);
        }
    }

    /// Whether a task at this position of the queue, or behind all of it, may begin now.
    fn may_begin(&self, requirement: &Requirement, executor: Option<usize>, at: usize) -> bool {
        if executor.is_some_and(|at| self.is_full(at)) || self.ledger.fits(requirement).is_err() {
            return false;
        }
        at == 0 || self.overtaken.1 < self.slots || self.fits_as_backfill(requirement, executor)
    }

    /// Whether a task that is dispatched now would begin at once although others wait.
    pub(crate) fn would_begin(&self, requirement: &Requirement, executor: Option<usize>) -> bool {
        self.running < self.slots && self.may_begin(requirement, executor, self.queue.len())
    }

    /// Whether the first of the waiting tasks lacks more than a slot: others may take what it waits for.
    pub(crate) fn is_blocked(&self) -> bool {
        let first = self.queue.front().and_then(|first| self.runs.get(&first));
        let lacks = |run: &Run| self.ledger.fits(&run.spec.requirement).is_err();
        self.running < self.slots && first.is_some_and(lacks)
    }

    fn fits_as_backfill(&self, requirement: &Requirement, executor: Option<usize>) -> bool {
        let first = self.queue.front().and_then(|first| self.runs.get(&first));
        let first = first.and_then(|run| Some((&run.spec.requirement, run.executor?)));
        first
            .zip(executor)
            .is_some_and(|(first, executor)| self.fit_together(first, (requirement, executor)))
    }

    /// Begins a task that was counted as waiting.
    fn begin_waiting(&mut self, task: TaskRef, now: Time) {
        let Some((estimate, executor)) =
            self.runs.get(&task).map(|run| (run.estimate, run.executor))
        else {
            return;
        };
        self.each_sum(executor, |left| {
            left.waiting.remove(&estimate);
        });
        self.begin(task, now);
    }

    fn begin(&mut self, task: TaskRef, now: Time) {
        let first = self.overtaken.0.filter(|first| *first != task);
        let Some(run) = self.runs.get(&task) else { return };
        if first.is_some() {
            // As backfill, if possible: that does not use up the limit of overtaking.
            match self.fits_as_backfill(&run.spec.requirement, run.executor) {
                true => self.mark_backfill(task),
                false => self.overtaken.1 += 1,
            }
        }
        let Some(run) = self.runs.get_mut(&task) else { return };
        // The caller has checked that it fits; `check` would notice.
        let _ = self.ledger.allocate(task, &run.spec.requirement, Fit::First);
        let remaining = Remaining::of(&run.estimate, now, now);
        run.begun = Some((now, remaining));
        let executor = run.executor;
        self.running += 1;
        if let Some(executor) = executor {
            self.used[executor] += 1;
        }
        self.valid_until.insert((remaining.valid_until(), task));
        self.each_sum(executor, |left| left.remaining.add(&remaining));
    }

    /// Grows with every change to what fits.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    fn mark_backfill(&mut self, task: TaskRef) {
        // Backfill beside a reservation stays so: that is the stronger promise.
        if let Some(run) = self.runs.get_mut(&task).filter(|run| run.backfill.is_none()) {
            run.backfill = Some(Backfill::QueueHead);
            self.backfill[Backfill::QueueHead as usize] += 1;
        }
    }

    /// Backfill beside one task does not count as backfill beside the next.
    pub(crate) fn clear_backfill(&mut self, of: Backfill) {
        if std::mem::take(&mut self.backfill[of as usize]) > 0 {
            for run in self.runs.values_mut() {
                run.backfill.take_if(|backfill| *backfill == of);
            }
        }
    }

    /// Whether both tasks would fit if nothing else ran but backfill of either kind.
    pub(crate) fn fit_together(
        &self,
        (first, its_executor): (&Requirement, usize),
        (second, executor): (&Requirement, usize),
    ) -> bool {
        let backfill =
            || self.runs.values().filter(|run| run.backfill.is_some() && run.begun.is_some());
        let same = usize::from(executor == its_executor);
        let in_use = backfill().filter(|run| run.executor == Some(its_executor)).count();
        if backfill().count() + 2 > self.slots as usize
            || in_use + 1 + same > self.concurrency[its_executor] as usize
        {
            return false;
        }
        let mut idle = self.ledger.clone();
        for (task, run) in self.runs.iter().filter(|(_, run)| run.backfill.is_none()) {
            if run.begun.is_some() {
                let _ = idle.release(*task);
            }
        }
        idle.allocate(LAST_TASK, second, Fit::First).is_ok() && idle.fits(first).is_ok()
    }

    /// When a task is predicted to fit, if nothing else begins.
    pub(crate) fn fits_at(&self, requirement: &Requirement, executor: usize, now: Time) -> Time {
        let mut ends: Vec<(Time, TaskRef, Option<usize>)> = self
            .runs
            .iter()
            .filter_map(|(task, run)| Some((run.begun?.1.expected_end(), *task, run.executor)))
            .collect();
        ends.sort_unstable();
        let (mut ledger, mut running, mut used) =
            (self.ledger.clone(), self.running, self.used[executor]);
        let mut at = now;
        for (end, task, its_executor) in ends {
            let has_slot = running < self.slots && used < self.concurrency[executor];
            if has_slot && ledger.fits(requirement).is_ok() {
                return at;
            }
            let _ = ledger.release(task);
            running -= 1;
            used -= u32::from(its_executor == Some(executor));
            at = at.max(end);
        }
        at
    }

    /// The remaining work of all tasks in flight: mean in seconds, and variance.
    pub(crate) fn remaining(&self, now: Time) -> (f64, f64) {
        self.remaining_in(self.all, now, |_| true)
    }

    /// The same for one executor.
    pub(crate) fn remaining_of(&self, executor: usize, now: Time) -> (f64, f64) {
        self.remaining_in(self.by_executor[executor], now, |run| run.executor == Some(executor))
    }

    fn remaining_in(
        &self,
        mut left: RemainingWork,
        now: Time,
        counts: impl Fn(&Run) -> bool,
    ) -> (f64, f64) {
        // Mostly there is none.
        let late = self.valid_until.first().is_some_and(|(until, _)| *until <= now);
        let late = late.then(|| self.valid_until.range(..=(now, LAST_TASK))).into_iter().flatten();
        for (_, task) in late {
            if let Some(run) = self.runs.get(task).filter(|run| counts(run))
                && let Some((since, remaining)) = run.begun
            {
                left.remaining.remove(&remaining);
                left.remaining.add(&Remaining::of(&run.estimate, since, now));
            }
        }
        let ((mean_s, variance), (waiting_s, error_s)) =
            (left.remaining.remaining_at(now), left.waiting.estimate());
        (mean_s + waiting_s, variance + error_s * error_s)
    }

    /// Predicts again the ends that are no longer valid.
    pub(crate) fn update(&mut self, now: Time) {
        while let Some((until, task)) = self.valid_until.first().copied()
            && until <= now
            // At the end of time no prediction is valid, however often it is renewed.
            && until < Time::MAX
        {
            self.valid_until.pop_first();
            let Some(run) = self.runs.get_mut(&task) else { return };
            let Some((since, remaining)) = &mut run.begun else { return };
            let (before, executor) = (*remaining, run.executor);
            let after = Remaining::of(&run.estimate, *since, now);
            *remaining = after;
            self.replace(task, executor, &before, &after);
        }
    }

    /// Replaces an expired prediction of a run by a new one.
    fn replace(
        &mut self,
        task: TaskRef,
        executor: Option<usize>,
        before: &Remaining,
        after: &Remaining,
    ) {
        self.valid_until.insert((after.valid_until(), task));
        self.each_sum(executor, |left| {
            left.remaining.remove(before);
            left.remaining.add(after);
        });
    }

    fn each_sum(&mut self, executor: Option<usize>, change: impl Fn(&mut RemainingWork)) {
        change(&mut self.all);
        if let Some(executor) = executor {
            change(&mut self.by_executor[executor]);
        }
    }

    /// Adds everything up again and compares.
    pub(crate) fn check(&self) -> Result<(), String> {
        self.ledger.check().map_err(|error| format!("ledger: {error}"))?;
        let sum = |counts: &dyn Fn(&Run) -> bool| {
            let mut left = RemainingWork::default();
            for run in self.runs.values().filter(|run| counts(run)) {
                match &run.begun {
                    Some((_, remaining)) => left.remaining.add(remaining),
                    None => left.waiting.add(&run.estimate),
                }
            }
            left
        };
        let whole = sum(&|_| true);
        if self.all != whole {
            return Err(format!(
                "the sum of remaining work is {:?}, the tasks in flight add up to {whole:?}",
                self.all
            ));
        }
        for (at, left) in self.by_executor.iter().enumerate() {
            let part = sum(&|run| run.executor == Some(at));
            if *left != part {
                return Err(format!(
                    "the sum of executor {at} is {left:?}, its tasks add up to {part:?}"
                ));
            }
        }
        let begun = || self.runs.iter().filter_map(|(task, run)| Some((*task, run.begun?.1)));
        let valid_until: BTreeSet<_> =
            begun().map(|(task, remaining)| (remaining.valid_until(), task)).collect();
        if valid_until != self.valid_until || valid_until.len() != self.running as usize {
            return Err(format!(
                "{} run, {} predicted ends are valid",
                self.running,
                self.valid_until.len()
            ));
        }
        if !self.resized && (self.running > self.slots || self.ledger.is_overbooked()) {
            return Err("more tasks run than the worker can run at once".to_owned());
        }
        let waits = |task: TaskRef| self.runs.get(&task).is_some_and(|run| run.begun.is_none());
        if self.queue.len() + valid_until.len() != self.runs.len() || !self.queue.iter().all(waits)
        {
            return Err("the queue and the tasks that have not begun differ".to_owned());
        }
        let backfill = BACKFILL_KINDS
            .map(|of| self.runs.values().filter(|run| run.backfill == Some(of)).count());
        if backfill != self.backfill.map(|count| count as usize) {
            return Err(format!(
                "{backfill:?} tasks are backfill, {:?} were counted",
                self.backfill
            ));
        }
        if self.runs.is_empty()
            && (self.all != RemainingWork::default() || self.ledger.booking_count() != 0)
        {
            return Err("no task is in flight, but the sums are not zero".to_owned());
        }
        Ok(())
    }
}

const BACKFILL_KINDS: [Backfill; 2] = [Backfill::QueueHead, Backfill::Reservation];
const LAST_TASK: TaskRef = TaskRef(u32::MAX);

/// How many tasks an executor runs at once. It should state this; zero would make it no executor.
fn concurrency(executor: &Executor) -> u32 {
    executor.concurrency.max(1)
}
