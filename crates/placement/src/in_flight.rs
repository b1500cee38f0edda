//! What a worker has been given and has not given back: what runs, what waits there for its turn, and sums over both.
//!
//! The sums are kept, not added up for each decision: a worker may run hundreds of tasks at once. Each run's expected
//! end stands for a while (`hypha_predict::Rest`). What no longer stands is told again by [`InFlight::update`], which is
//! called before a full worker's bounds go into a tree; a reader in between gets those few predicted again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hypha_model::{Capacity, Executor, Fit, Ledger, Refusal, Requirement, TaskSpec, Time, Worker};
use hypha_predict::{Backlog, Estimate, Rest, Rests};

use crate::TaskRef;
use crate::turns::Turns;

/// How many of those that wait on a worker are looked at for one that may overtake the first.
const MOST_OVERTAKING: usize = 64;

/// A task that began later than was thought by less than this share of its run began about then: predictions are further
/// off than that. Most begin when the message has travelled.
const ABOUT_THEN: f64 = 0.02;

/// One task that the worker has been given.
#[derive(Clone, Debug)]
struct Run {
    estimate: Estimate,
    spec: Arc<TaskSpec>,
    /// None if the worker says that it has a task that it offers no executor for.
    executor: Option<usize>,
    /// When it began and when it is expected to end; `None` while it waits on the worker.
    begun: Option<(Time, Rest)>,
    /// What it began beside.
    beside: Option<Beside>,
}

/// A task as it is handed over.
pub(crate) struct Given {
    pub(crate) estimate: Estimate,
    pub(crate) spec: Arc<TaskSpec>,
    pub(crate) executor: Option<usize>,
    /// Whether it goes before others that wait.
    pub(crate) interactive: bool,
    pub(crate) beside: Option<Beside>,
}

/// What a task may begin beside: one that stays first although this overtakes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Beside {
    /// The first of those that wait on the worker.
    First,
    /// The task in the scheduler's queue that room is kept for.
    Kept,
}

/// What is left of some of the tasks: of those that run, and of those that have not begun.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Left {
    rests: Rests,
    waiting: Backlog,
}

/// See the head of this file.
#[derive(Clone, Debug)]
pub(crate) struct InFlight {
    runs: BTreeMap<TaskRef, Run>,
    /// Those that have not begun, in the order in which the worker begins them.
    queue: Turns<TaskRef>,
    running: u32,
    slots: u32,
    /// For each executor how many tasks it runs at once, and how many it runs now.
    at_once: Vec<u32>,
    used: Vec<u32>,
    ledger: Ledger<TaskRef>,
    /// Whether there may be more in flight than fits: there was room when it was given.
    resized: bool,
    all: Left,
    by_executor: Vec<Left>,
    /// Until when each expected end stands.
    stands: BTreeSet<(Time, TaskRef)>,
    /// The first of those that wait, and how many that were given later began before it.
    overtaken: (Option<TaskRef>, u32),
    /// How many of the tasks began beside each.
    beside: [u32; 2],
    /// Grows with whatever changes what fits.
    changes: u64,
}

impl InFlight {
    pub(crate) fn new(worker: &Worker) -> InFlight {
        let at_once: Vec<u32> = worker.executors.iter().map(concurrency).collect();
        InFlight {
            runs: BTreeMap::new(),
            queue: Turns::default(),
            running: 0,
            slots: at_once.iter().copied().fold(0, u32::saturating_add).max(1),
            used: vec![0; at_once.len()],
            ledger: Ledger::new(&worker.capacity),
            resized: false,
            all: Left::default(),
            by_executor: vec![Left::default(); at_once.len()],
            at_once,
            stands: BTreeSet::new(),
            overtaken: (None, 0),
            beside: [0; 2],
            changes: 0,
        }
    }

    /// Offers this much from now on.
    pub(crate) fn resize(&mut self, capacity: &Capacity, slots: &[u32], now: Time) {
        for (at, most) in self.at_once.iter_mut().enumerate() {
            *most = slots.get(at).copied().unwrap_or(0);
        }
        self.slots = self.at_once.iter().copied().fold(0, u32::saturating_add).max(1);
        self.ledger.resize(capacity);
        self.resized = true;
        self.changes += 1;
        self.begin_what_fits(now);
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

    /// Whether what is free would do for `requirement`, or the first reason that it would not.
    pub(crate) fn fits(&self, requirement: &Requirement) -> Result<(), Refusal> {
        self.ledger.fits(requirement)
    }

    /// Whether an executor runs all that it can at once.
    pub(crate) fn is_full(&self, executor: usize) -> bool {
        self.used[executor] >= self.at_once[executor]
    }

    /// How many tasks an executor runs at once.
    pub(crate) fn at_once(&self, executor: usize) -> u32 {
        self.at_once[executor]
    }

    /// The executor that runs a task.
    pub(crate) fn executor_of(&self, task: TaskRef) -> Option<usize> {
        self.runs.get(&task)?.executor
    }

    /// Whether a task is taken to have begun.
    pub(crate) fn has_begun(&self, task: TaskRef) -> bool {
        self.runs.get(&task).is_some_and(|run| run.begun.is_some())
    }

    /// Whether a task is there and was not taken to begin at about `now`.
    pub(crate) fn began_otherwise(&self, task: TaskRef, now: Time) -> bool {
        let is_late = |run: &Run, since: Time| {
            now.since(since).as_secs_f64() > ABOUT_THEN * run.estimate.mean_s
        };
        let run = self.runs.get(&task);
        run.is_some_and(|run| run.begun.is_none_or(|(since, _)| is_late(run, since)))
    }

    /// Hands a task over: it begins if there is room, and waits on the worker otherwise.
    pub(crate) fn give(&mut self, task: TaskRef, given: Given, now: Time) {
        let Given { estimate, spec, executor, interactive, beside } = given;
        self.changes += 1;
        self.beside
            .iter_mut()
            .zip(BESIDE)
            .for_each(|(count, of)| *count += u32::from(beside == Some(of)));
        // Most begin at once: nothing waits before them, and there is room.
        let begins = self.queue.is_empty()
            && self.running < self.slots
            && self.may_begin(&spec.requirement, executor, 0);
        self.runs.insert(task, Run { estimate, spec, executor, begun: None, beside });
        if begins {
            self.is_first(task);
            return self.begin(task, now);
        }
        self.each_sum(executor, |left| {
            left.waiting.add(&estimate);
        });
        self.queue.push(task, interactive);
        self.begin_what_fits(now);
    }

    /// The worker says that it has begun the task: its run time counts from here.
    pub(crate) fn begun(&mut self, task: TaskRef, now: Time) {
        let Some(run) = self.runs.get_mut(&task) else { return };
        let Some((since, rest)) = &mut run.begun else {
            let (spec, executor) = (Arc::clone(&run.spec), run.executor);
            // It was taken to wait. If there is room for it, it is believed.
            if self.running < self.slots && self.may_begin(&spec.requirement, executor, 0) {
                self.queue.take(task);
                self.changes += 1;
                self.begin_waiting(task, now);
            }
            return;
        };
        let (before, executor) = (*rest, run.executor);
        let after = Rest::of(&run.estimate, now, now);
        (*since, *rest) = (now, after);
        self.stands.remove(&(before.stands_until(), task));
        self.replace(task, executor, &before, &after);
    }

    /// Takes a task out, finished or not; what waited for its room begins. Returns what it asked for.
    pub(crate) fn take_back(&mut self, task: TaskRef, now: Time) -> Option<Arc<TaskSpec>> {
        let run = self.runs.remove(&task)?;
        self.changes += 1;
        if let Some(of) = run.beside {
            self.beside[of as usize] -= 1;
        }
        match run.begun {
            Some((_, rest)) => {
                self.running -= 1;
                if let Some(executor) = run.executor {
                    self.used[executor] -= 1;
                }
                // It was booked when it began, so this cannot be refused; `check` would tell.
                let _ = self.ledger.release(task);
                self.stands.remove(&(rest.stands_until(), task));
                self.each_sum(run.executor, |left| left.rests.remove(&rest));
            }
            None => {
                self.queue.remove(task);
                self.each_sum(run.executor, |left| {
                    left.waiting.remove(&run.estimate);
                });
            }
        }
        self.begin_what_fits(now);
        Some(run.spec)
    }

    /// Begins what fits, in the order in which it was given. What does not fit may be overtaken, but not for ever: by as
    /// many as run at once, and then only by what fits beside it.
    fn begin_what_fits(&mut self, now: Time) {
        let mut at = 0;
        while self.running < self.slots
            && at < MOST_OVERTAKING
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
                // Now it is the turn of another.
                at = 0;
            }
        }
    }

    /// Notes which task is first of those that wait: others may overtake it, but not for ever.
    fn is_first(&mut self, task: TaskRef) {
        if self.overtaken.0 != Some(task) {
            self.overtaken = (Some(task), 0);
            self.forget_beside(Beside::First);
        }
    }

    /// Whether a task at this place of the queue, or behind all of it, may begin now.
    fn may_begin(&self, requirement: &Requirement, executor: Option<usize>, at: usize) -> bool {
        if executor.is_some_and(|at| self.is_full(at)) || self.ledger.fits(requirement).is_err() {
            return false;
        }
        at == 0
            || self.overtaken.1 < self.slots
            || self.fits_beside_the_first(requirement, executor)
    }

    /// Whether a task that is given now would begin at once although others wait.
    pub(crate) fn would_begin(&self, requirement: &Requirement, executor: Option<usize>) -> bool {
        self.running < self.slots && self.may_begin(requirement, executor, self.queue.len())
    }

    /// Whether the first of those that wait lacks more than a slot: others may take what it waits for.
    pub(crate) fn is_blocked(&self) -> bool {
        let first = self.queue.front().and_then(|first| self.runs.get(&first));
        let lacks = |run: &Run| self.ledger.fits(&run.spec.requirement).is_err();
        self.running < self.slots && first.is_some_and(lacks)
    }

    fn fits_beside_the_first(&self, requirement: &Requirement, executor: Option<usize>) -> bool {
        let first = self.queue.front().and_then(|first| self.runs.get(&first));
        let first = first.and_then(|run| Some((&run.spec.requirement, run.executor?)));
        first
            .zip(executor)
            .is_some_and(|(first, executor)| self.fit_together(first, (requirement, executor)))
    }

    /// Begins a task that was counted among those that wait.
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
            // Beside the first, if it can be: that does not use up what may overtake it.
            match self.fits_beside_the_first(&run.spec.requirement, run.executor) {
                true => self.mark_beside(task),
                false => self.overtaken.1 += 1,
            }
        }
        let Some(run) = self.runs.get_mut(&task) else { return };
        // It fits, as was just seen; `check` would tell.
        let _ = self.ledger.allocate(task, &run.spec.requirement, Fit::First);
        let rest = Rest::of(&run.estimate, now, now);
        run.begun = Some((now, rest));
        let executor = run.executor;
        self.running += 1;
        if let Some(executor) = executor {
            self.used[executor] += 1;
        }
        self.stands.insert((rest.stands_until(), task));
        self.each_sum(executor, |left| left.rests.add(&rest));
    }

    /// Grows with whatever changes what fits.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    fn mark_beside(&mut self, task: TaskRef) {
        // What began beside a task that room is kept for stays so: that is the stronger promise.
        if let Some(run) = self.runs.get_mut(&task).filter(|run| run.beside.is_none()) {
            run.beside = Some(Beside::First);
            self.beside[Beside::First as usize] += 1;
        }
    }

    /// What began beside one task has not begun beside another.
    pub(crate) fn forget_beside(&mut self, of: Beside) {
        if std::mem::take(&mut self.beside[of as usize]) > 0 {
            for run in self.runs.values_mut() {
                run.beside.take_if(|beside| *beside == of);
            }
        }
    }

    /// Whether both tasks would fit with everything gone but what has begun beside, the first or another.
    pub(crate) fn fit_together(
        &self,
        (first, its_executor): (&Requirement, usize),
        (second, executor): (&Requirement, usize),
    ) -> bool {
        let beside =
            || self.runs.values().filter(|run| run.beside.is_some() && run.begun.is_some());
        let same = usize::from(executor == its_executor);
        let in_use = beside().filter(|run| run.executor == Some(its_executor)).count();
        if beside().count() + 2 > self.slots as usize
            || in_use + 1 + same > self.at_once[its_executor] as usize
        {
            return false;
        }
        let mut idle = self.ledger.clone();
        for (task, run) in self.runs.iter().filter(|(_, run)| run.beside.is_none()) {
            if run.begun.is_some() {
                let _ = idle.release(*task);
            }
        }
        idle.allocate(LAST, second, Fit::First).is_ok() && idle.fits(first).is_ok()
    }

    /// When a task is predicted to fit, if nothing else begins.
    pub(crate) fn fits_at(&self, requirement: &Requirement, executor: usize, now: Time) -> Time {
        let mut ends: Vec<(Time, TaskRef, Option<usize>)> = self
            .runs
            .iter()
            .filter_map(|(task, run)| Some((run.begun?.1.ends(), *task, run.executor)))
            .collect();
        ends.sort_unstable();
        let (mut ledger, mut running, mut used) =
            (self.ledger.clone(), self.running, self.used[executor]);
        let mut at = now;
        for (end, task, its_executor) in ends {
            let has_slot = running < self.slots && used < self.at_once[executor];
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

    /// What is left of all that is in flight: mean in seconds, and variance.
    pub(crate) fn left(&self, now: Time) -> (f64, f64) {
        self.left_in(self.all, now, |_| true)
    }

    /// The same of what one executor has.
    pub(crate) fn left_of(&self, executor: usize, now: Time) -> (f64, f64) {
        self.left_in(self.by_executor[executor], now, |run| run.executor == Some(executor))
    }

    fn left_in(&self, mut left: Left, now: Time, counts: impl Fn(&Run) -> bool) -> (f64, f64) {
        // Mostly there is none.
        let late = self.stands.first().is_some_and(|(until, _)| *until <= now);
        let late = late.then(|| self.stands.range(..=(now, LAST))).into_iter().flatten();
        for (_, task) in late {
            if let Some(run) = self.runs.get(task).filter(|run| counts(run))
                && let Some((since, rest)) = run.begun
            {
                left.rests.remove(&rest);
                left.rests.add(&Rest::of(&run.estimate, since, now));
            }
        }
        let ((mean_s, variance), (waiting_s, error_s)) =
            (left.rests.left(now), left.waiting.estimate());
        (mean_s + waiting_s, variance + error_s * error_s)
    }

    /// Tells again what no longer stands.
    pub(crate) fn update(&mut self, now: Time) {
        while let Some((until, task)) = self.stands.first().copied()
            && until <= now
            // At the end of time nothing stands any longer, however often it is told.
            && until < Time::MAX
        {
            self.stands.pop_first();
            let Some(run) = self.runs.get_mut(&task) else { return };
            let Some((since, rest)) = &mut run.begun else { return };
            let (before, executor) = (*rest, run.executor);
            let after = Rest::of(&run.estimate, *since, now);
            *rest = after;
            self.replace(task, executor, &before, &after);
        }
    }

    /// Puts what is told of a run now in the place of what was told before, and no longer stands.
    fn replace(&mut self, task: TaskRef, executor: Option<usize>, before: &Rest, after: &Rest) {
        self.stands.insert((after.stands_until(), task));
        self.each_sum(executor, |left| {
            left.rests.remove(before);
            left.rests.add(after);
        });
    }

    fn each_sum(&mut self, executor: Option<usize>, change: impl Fn(&mut Left)) {
        change(&mut self.all);
        if let Some(executor) = executor {
            change(&mut self.by_executor[executor]);
        }
    }

    /// Adds everything up anew and compares.
    pub(crate) fn check(&self) -> Result<(), String> {
        self.ledger.check().map_err(|error| format!("ledger: {error}"))?;
        let sum = |counts: &dyn Fn(&Run) -> bool| {
            let mut left = Left::default();
            for run in self.runs.values().filter(|run| counts(run)) {
                match &run.begun {
                    Some((_, rest)) => left.rests.add(rest),
                    None => left.waiting.add(&run.estimate),
                }
            }
            left
        };
        let whole = sum(&|_| true);
        if self.all != whole {
            return Err(format!("{:?} is left and {whole:?} is in flight", self.all));
        }
        for (at, left) in self.by_executor.iter().enumerate() {
            let part = sum(&|run| run.executor == Some(at));
            if *left != part {
                return Err(format!("{left:?} is left at executor {at} and it has {part:?}"));
            }
        }
        let begun = || self.runs.iter().filter_map(|(task, run)| Some((*task, run.begun?.1)));
        let stands: BTreeSet<_> = begun().map(|(task, rest)| (rest.stands_until(), task)).collect();
        if stands != self.stands || stands.len() != self.running as usize {
            return Err(format!("{} run, {} ends stand", self.running, self.stands.len()));
        }
        if !self.resized && (self.running > self.slots || self.ledger.is_overbooked()) {
            return Err("it runs more than it can at once".to_owned());
        }
        let waits = |task: TaskRef| self.runs.get(&task).is_some_and(|run| run.begun.is_none());
        if self.queue.len() + stands.len() != self.runs.len() || !self.queue.iter().all(waits) {
            return Err("what waits there is not what has not begun".to_owned());
        }
        let beside =
            BESIDE.map(|of| self.runs.values().filter(|run| run.beside == Some(of)).count());
        if beside != self.beside.map(|count| count as usize) {
            return Err(format!("{beside:?} began beside, and {:?} were counted", self.beside));
        }
        if self.runs.is_empty() && (self.all != Left::default() || self.ledger.booked() != 0) {
            return Err("nothing is in flight and something is left".to_owned());
        }
        Ok(())
    }
}

const BESIDE: [Beside; 2] = [Beside::First, Beside::Kept];
const LAST: TaskRef = TaskRef(u32::MAX);

/// How many tasks an executor runs at once. It should say so; nothing at all would be no executor.
fn concurrency(executor: &Executor) -> u32 {
    executor.concurrency.max(1)
}
