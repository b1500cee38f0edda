//! The worker: grants its capacity, runs what the holder of the lease dispatches, and keeps each result
//! until it is recorded.

mod image;
mod leave;
mod turns;

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;

use hypha_machine::{Machine, Step};
use hypha_model::{
    AttemptId, Epoch, Fence, Fit, LeaseId, Ledger, Refusal, RefusalKind, Rng, SchedulerId, Span,
    Time, Worker,
};
use hypha_placement::{MAX_PREFETCH_PER_SLOT, Turns};

use crate::message::{Dispatch, FromWorker, Outcome, ToWorker};
use crate::mutant::Mutant;

pub use image::WorkerImage;

/// A result that has not been recorded is sent again after this long.
const RESEND_AFTER: Span = Span::from_secs(2);
/// The longest lease that is granted, whatever is asked for: what a dead scheduler can block.
const MAX_TTL: Span = Span::from_secs(600);
/// Results that wait to be recorded. A scheduler records each within a round trip; one that does not is
/// given no room to pile them up here.
const MAX_UNRECORDED: usize = 1_024;

/// What a worker wants after a step.
pub type WorkerStep = Step<WorkerMachine>;

/// What a worker makes durable: which life it is in, and whether it ended in order. Attempts are the
/// scheduler's to remember.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerRecord {
    /// The next life begins.
    Started(Epoch),
    /// This life ends in order.
    Left(Leaving),
}

/// A life that ended in order. Whoever held its lease may not have heard of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaving {
    /// The life.
    pub epoch: Epoch,
    /// Who held the lease at its end.
    pub holder: SchedulerId,
}

/// A message to a scheduler.
#[derive(Clone, Debug, PartialEq)]
pub struct Said {
    /// To whom.
    pub to: SchedulerId,
    /// What.
    pub message: FromWorker,
}

/// What a worker wants done.
#[derive(Clone, Debug)]
pub enum WorkerEffect {
    /// Send this.
    Say(Said),
    /// Start or stop an executor.
    Run(Run),
}

/// Names an attempt on this worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunId {
    /// Whose attempt it is.
    pub scheduler: SchedulerId,
    /// Its token.
    pub fence: Fence,
}

/// What is to be run or stopped.
#[derive(Clone, Debug)]
pub enum Run {
    /// Start an executor; answer with `Ended`.
    Start {
        /// The run.
        id: RunId,
        /// What.
        dispatch: Arc<Dispatch>,
        /// By which of the worker's executors.
        executor: usize,
        /// On which devices.
        devices: Vec<u32>,
    },
    /// Stop it; answer with `Ended` when it is gone.
    Stop(RunId),
}

/// What happened.
#[derive(Clone, Debug)]
pub enum WorkerEvent {
    /// A scheduler said something.
    SchedulerSaid {
        /// Who.
        scheduler: SchedulerId,
        /// What.
        message: ToWorker,
    },
    /// A run is this far, in thousandths.
    Progressed {
        /// The run.
        id: RunId,
        /// How far.
        permille: u16,
    },
    /// A run has ended and its executor is gone.
    Ended {
        /// The run.
        id: RunId,
        /// With what.
        outcome: Outcome,
        /// How long it ran, if the executor knows that better than we do.
        run: Option<Span>,
    },
    /// What an executor forwards to has taken a run, under this id.
    Delegated {
        /// The run.
        id: RunId,
        /// The id.
        handle: Arc<str>,
    },
    /// What an executor forwards to has not taken a run: it has too much to do.
    Declined {
        /// The run.
        id: RunId,
    },
    /// Whether what an executor forwards to is there was looked at.
    Looked {
        /// The executor, by its place in the worker's list.
        executor: usize,
        /// Whether it is well.
        well: bool,
    },
    /// The worker is to end: it gives back what it has not finished, and takes nothing more.
    AskedToLeave,
    /// The time that the worker wanted to be woken at has come.
    Woke,
}

/// See the head of this file.
pub struct WorkerMachine {
    worker: Arc<Worker>,
    epoch: Epoch,
    /// How the last life ended, until the holder of its lease has heard of it.
    left: Option<Leaving>,
    is_leaving: bool,
    rng: Rng,
    lease: Option<Lease>,
    ledger: Ledger<RunId>,
    runs: BTreeMap<RunId, RunState>,
    /// Runs that wait for room, in the order of their turns.
    queue: Turns<RunId>,
    overtaken: turns::Overtaken,
    /// When something is due for a run: its end, or its result again. Each run has at most one entry.
    agenda: BTreeSet<(Time, RunId)>,
    used: Vec<u32>,
    /// Executors whose back ends are away.
    away: BTreeSet<usize>,
    mutant: Option<Mutant>,
}

#[derive(Clone, Copy, Debug)]
struct Lease {
    holder: SchedulerId,
    id: LeaseId,
    /// The request that it answers.
    request: u64,
    ttl: Span,
    until: Time,
}

struct RunState {
    dispatch: Arc<Dispatch>,
    executor: usize,
    phase: Phase,
    due: Option<Time>,
}

enum Phase {
    Waiting,
    Running {
        since: Time,
    },
    /// Told to stop; its room is not free before it is gone.
    Stopping {
        timed_out: bool,
        since: Time,
    },
    /// Ended; kept until recorded.
    Ended {
        run: Span,
        outcome: Outcome,
    },
}

impl Machine for WorkerMachine {
    type Event = WorkerEvent;
    type Record = WorkerRecord;
    type Effect = WorkerEffect;
    type Reply = Infallible;

    fn step(&mut self, now: Time, event: WorkerEvent, step: &mut WorkerStep) {
        self.end_lease_in_time(now, step);
        match event {
            WorkerEvent::SchedulerSaid { scheduler, message } => {
                self.said(now, scheduler, message, step);
            }
            WorkerEvent::Progressed { id, permille } => self.progressed(id, permille, step),
            WorkerEvent::Ended { id, outcome, run } => self.ended(now, id, (outcome, run), step),
            WorkerEvent::Delegated { id, handle } => self.delegated(id, handle, step),
            WorkerEvent::Declined { id } => self.declined(id, step),
            WorkerEvent::Looked { executor, well } => self.looked(executor, well, step),
            WorkerEvent::AskedToLeave => self.leave(step),
            WorkerEvent::Woke => self.wake(now, step),
        }
        self.begin_what_fits(now, step);
    }

    fn wake_at(&self, _: Time) -> Option<Time> {
        let of_runs = self.agenda.first().map(|(at, _)| *at);
        of_runs.into_iter().chain(self.lease.map(|lease| lease.until)).min()
    }

    fn woke() -> WorkerEvent {
        WorkerEvent::Woke
    }
}

impl WorkerMachine {
    /// The next life of a worker whose last one was `last`, and the last one that ended in order was `left`.
    pub fn start(
        worker: Arc<Worker>,
        last: Epoch,
        left: Option<Leaving>,
        seed: u64,
        step: &mut WorkerStep,
    ) -> WorkerMachine {
        let epoch = last.next();
        step.persist(WorkerRecord::Started(epoch));
        WorkerMachine {
            epoch,
            left: left.filter(|left| left.epoch == last),
            is_leaving: false,
            rng: Rng::new(seed ^ epoch.0.wrapping_mul(0x9E37_79B9_7F4A_7C15)),
            lease: None,
            ledger: Ledger::new(&worker.capacity),
            runs: BTreeMap::new(),
            queue: Turns::default(),
            overtaken: turns::Overtaken::default(),
            agenda: BTreeSet::new(),
            used: vec![0; worker.executors.len()],
            away: BTreeSet::new(),
            worker,
            mutant: None,
        }
    }

    /// Makes the machine faulty, to show that a checker notices. Does nothing without the `mutants` feature.
    pub fn mutate(&mut self, mutant: Option<Mutant>) {
        self.mutant = mutant;
    }

    /// What runs now, to be read: the run, its lease and since when.
    pub fn running(&self) -> impl Iterator<Item = (RunId, &Dispatch, Time)> {
        self.runs.iter().filter_map(|(id, run)| match run.phase {
            Phase::Running { since } => Some((*id, &*run.dispatch, since)),
            _ => None,
        })
    }

    /// How many runs have room, those included that were told to stop.
    pub fn slots_in_use(&self) -> usize {
        self.ledger.booked()
    }

    /// Whether this run is here, in whatever state.
    pub fn has_run(&self, id: RunId) -> bool {
        self.runs.contains_key(&id)
    }

    /// Until when the present lease holds, and whose it is.
    pub fn lease(&self) -> Option<(SchedulerId, LeaseId, Time)> {
        self.lease.map(|lease| (lease.holder, lease.id, lease.until))
    }

    /// Recomputes what is kept incrementally and compares.
    pub fn check(&self) -> Result<(), String> {
        self.ledger.check()?;
        let mut used = vec![0; self.used.len()];
        let mut booked = 0;
        for run in self.runs.values() {
            if matches!(run.phase, Phase::Running { .. } | Phase::Stopping { .. }) {
                used[run.executor] += 1;
                booked += 1;
            }
        }
        let due = self.runs.values().filter(|run| run.due.is_some()).count();
        if due != self.agenda.len() {
            return Err(format!("{due} runs want a time and {} have one", self.agenda.len()));
        }
        if used != self.used {
            return Err(format!("executors run {used:?} and {:?} are counted", self.used));
        }
        if booked != self.ledger.booked() {
            return Err(format!("{booked} run and {} are booked", self.ledger.booked()));
        }
        for (at, count) in used.iter().enumerate() {
            if *count > self.worker.executors[at].concurrency {
                return Err(format!("executor {at} runs {count} at once: booked twice"));
            }
        }
        Ok(())
    }

    fn is(&self, mutant: Mutant) -> bool {
        cfg!(feature = "mutants") && self.mutant == Some(mutant)
    }

    fn said(&mut self, now: Time, from: SchedulerId, message: ToWorker, step: &mut WorkerStep) {
        match message {
            ToWorker::RequestLease { request, ttl } => self.grant(now, from, request, ttl, step),
            ToWorker::Heartbeat { lease, epoch, nonce } => {
                let named = self.named(from, lease, epoch);
                if named && self.is_leaving {
                    return self.say_left(step);
                }
                if named && !self.away.is_empty() {
                    self.say_away(from, step);
                }
                let holding = self.held_for(from);
                let message = match &mut self.lease {
                    Some(held) if named => {
                        held.until = now + held.ttl;
                        self.left = None;
                        FromWorker::Alive { lease, epoch, nonce, holding }
                    }
                    _ => FromWorker::LeaseUnknown { lease, epoch },
                };
                say_at_once(step, from, message);
            }
            ToWorker::Dispatch(dispatch) => self.dispatched(now, from, dispatch, step),
            ToWorker::Cancel { fence, .. } => {
                self.stop(RunId { scheduler: from, fence }, false, step);
            }
            ToWorker::Recorded { fence, .. } => {
                let id = RunId { scheduler: from, fence };
                let ended = |run: &RunState| matches!(run.phase, Phase::Ended { .. });
                if self.runs.get(&id).is_some_and(ended) {
                    self.forget(id);
                }
            }
            ToWorker::ReleaseLease { lease, epoch } => {
                if self.named(from, lease, epoch) {
                    self.lose_lease(step);
                }
            }
        }
    }

    /// Whether `from` holds this very lease of this life.
    fn named(&self, from: SchedulerId, lease: LeaseId, epoch: Epoch) -> bool {
        epoch == self.epoch
            && self.lease.is_some_and(|held| held.holder == from && held.id == lease)
    }

    /// Grants everything to one scheduler at a time.
    fn grant(
        &mut self,
        now: Time,
        from: SchedulerId,
        request: u64,
        ttl: Span,
        step: &mut WorkerStep,
    ) {
        if self.lease.is_some_and(|lease| lease.holder == from && lease.request > request) {
            // A later request has overtaken it, and the holder goes by that one's answer.
            return;
        }
        let other = self.lease.is_some_and(|lease| lease.holder != from);
        let other = other && !self.is(Mutant::DoubleGrant);
        if other || self.is_leaving {
            let kind = if other { RefusalKind::Busy } else { RefusalKind::Unavailable };
            let refusal = Refusal::plain(kind);
            let message = FromWorker::LeaseRefused { request, refusal };
            say_at_once(step, from, message);
            return;
        }
        let ttl = ttl.min(MAX_TTL);
        // A request that comes twice is granted once: the holder goes by the first answer.
        let again = self.lease.filter(|lease| lease.holder == from && lease.request == request);
        let id = again.map_or_else(|| LeaseId::new(now, &mut self.rng), |lease| lease.id);
        self.lease = Some(Lease { holder: from, id, request, ttl, until: now + ttl });
        self.say_last_left(from, step);
        if !self.away.is_empty() {
            self.say_away(from, step);
        }
        let holding = self.held_for(from);
        let message =
            FromWorker::LeaseGranted { request, lease: id, epoch: self.epoch, ttl, holding };
        say(step, from, message);
        for (run, state) in &self.runs {
            if let Phase::Running { since } = state.phase
                && run.scheduler == from
            {
                let (attempt, fence) = (state.dispatch.attempt, run.fence);
                let message = FromWorker::Running { attempt, fence, elapsed: now.since(since) };
                say(step, from, message);
            }
        }
    }

    fn looked(&mut self, executor: usize, well: bool, step: &mut WorkerStep) {
        let is_news = match well {
            true => self.away.remove(&executor),
            false => executor < self.worker.executors.len() && self.away.insert(executor),
        };
        if let Some(lease) = self.lease.filter(|_| is_news) {
            self.say_away(lease.holder, step);
        }
    }

    /// Says which executors should be given nothing.
    fn say_away(&self, to: SchedulerId, step: &mut WorkerStep) {
        let executors = &self.worker.executors;
        let away = self.away.iter().filter_map(|at| Some(executors.get(*at)?.name.clone()));
        let message = FromWorker::Away { executors: away.collect() };
        say_at_once(step, to, message);
    }

    /// The attempts of a scheduler that are here and of which it will hear more.
    fn held_for(&self, scheduler: SchedulerId) -> Vec<(AttemptId, Fence)> {
        let held = |(run, state): (&RunId, &RunState)| {
            let is_stopped = matches!(state.phase, Phase::Stopping { timed_out: false, .. });
            (run.scheduler == scheduler && !is_stopped)
                .then_some((state.dispatch.attempt, run.fence))
        };
        self.runs.iter().filter_map(held).collect()
    }

    fn dispatched(
        &mut self,
        now: Time,
        from: SchedulerId,
        dispatch: Arc<Dispatch>,
        step: &mut WorkerStep,
    ) {
        let id = RunId { scheduler: from, fence: dispatch.fence };
        let fence = dispatch.fence;
        if dispatch.resume.is_some() && self.named(from, dispatch.lease, dispatch.epoch) {
            self.take_up(now, id, dispatch.timeout);
        }
        if let Some(known) = self.runs.get(&id) {
            // It came twice: say again where it is.
            let attempt = known.dispatch.attempt;
            let message = match &known.phase {
                Phase::Waiting => FromWorker::Accepted { attempt, fence },
                Phase::Running { .. } => FromWorker::Started { attempt, fence },
                Phase::Stopping { .. } => return,
                Phase::Ended { run, outcome } => {
                    FromWorker::Finished { attempt, fence, run: *run, outcome: outcome.clone() }
                }
            };
            say_at_once(step, from, message);
            return;
        }
        if from != SchedulerId::LOCAL && !self.named(from, dispatch.lease, dispatch.epoch) {
            let message = FromWorker::LeaseUnknown { lease: dispatch.lease, epoch: dispatch.epoch };
            say_at_once(step, from, message);
            return;
        }
        if self.is_leaving && from != SchedulerId::LOCAL {
            return self.say_left(step);
        }
        if from != SchedulerId::LOCAL {
            // The holder has heard of this life.
            self.left = None;
        }
        let attempt = dispatch.attempt;
        let requirement = &dispatch.spec.requirement;
        let executor = match requirement.satisfied_by(&self.worker) {
            Ok(()) if self.is_leaving => Err(Refusal::plain(RefusalKind::Unavailable)),
            Ok(()) if self.is_full() => Err(Refusal::plain(RefusalKind::Busy)),
            Ok(()) => requirement.executor_of(&self.worker).map(|found| {
                let is_it = |executor: &hypha_model::Executor| std::ptr::eq(executor, found);
                self.worker.executors.iter().position(is_it).unwrap_or(0)
            }),
            Err(refusal) => Err(refusal),
        };
        match executor {
            Ok(executor) => {
                let phase = Phase::Waiting;
                let interactive = dispatch.interactive;
                self.runs.insert(id, RunState { dispatch, executor, phase, due: None });
                self.queue.push(id, interactive);
                if !self.may_begin(id) {
                    say_at_once(step, from, FromWorker::Accepted { attempt, fence });
                }
            }
            Err(refusal) => {
                let message = FromWorker::Refused { attempt, fence, refusal };
                say_at_once(step, from, message);
            }
        }
    }

    /// A run that its lease ended is wanted again, and its back end, which cannot be told to stop, still has it.
    fn take_up(&mut self, now: Time, id: RunId, timeout: Span) {
        if let Some(run) = self.runs.get_mut(&id)
            && let Phase::Stopping { timed_out: false, since } = run.phase
        {
            run.phase = Phase::Running { since };
            self.set_due(id, Some(now + timeout));
        }
    }

    /// Whether no more is taken, not even to wait.
    fn is_full(&self) -> bool {
        let slots = self.worker.concurrency() as usize;
        let most_waiting = slots.saturating_mul(MAX_PREFETCH_PER_SLOT);
        self.queue.len() >= most_waiting
            || self.runs.len() >= most_waiting.saturating_add(slots).saturating_add(MAX_UNRECORDED)
    }

    fn fits(&self, id: RunId) -> bool {
        let Some(run) = self.runs.get(&id) else { return false };
        let concurrency = self.worker.executors[run.executor].concurrency;
        self.used[run.executor] < concurrency
            && self.ledger.fits(&run.dispatch.spec.requirement).is_ok()
    }

    fn begin(&mut self, now: Time, id: RunId, step: &mut WorkerStep) {
        let Some(run) = self.runs.get_mut(&id) else { return };
        let requirement = &run.dispatch.spec.requirement;
        if self.ledger.allocate(id, requirement, Fit::First).is_err() {
            return;
        }
        self.used[run.executor] += 1;
        run.phase = Phase::Running { since: now };
        let ends_by = now + run.dispatch.timeout;
        let devices = self.ledger.devices_of(id).map(<[u32]>::to_vec).unwrap_or_default();
        let (dispatch, executor) = (Arc::clone(&run.dispatch), run.executor);
        let (attempt, fence) = (dispatch.attempt, dispatch.fence);
        say_at_once(step, id.scheduler, FromWorker::Started { attempt, fence });
        step.send_at_once(WorkerEffect::Run(Run::Start { id, dispatch, executor, devices }));
        self.set_due(id, Some(ends_by));
    }

    fn progressed(&mut self, id: RunId, permille: u16, step: &mut WorkerStep) {
        if let Some(run) = self.runs.get(&id)
            && matches!(run.phase, Phase::Running { .. })
        {
            let (attempt, fence) = (run.dispatch.attempt, id.fence);
            let message = FromWorker::Progress { attempt, fence, permille };
            say_at_once(step, id.scheduler, message);
        }
    }

    fn ended(
        &mut self,
        now: Time,
        id: RunId,
        (outcome, ran): (Outcome, Option<Span>),
        step: &mut WorkerStep,
    ) {
        if self.is(Mutant::StuckSlot) && self.is_stopping(id) {
            return;
        }
        let Some(phase) = self.free_room(id) else { return };
        let (since, outcome) = match phase {
            Phase::Running { since } => (since, Some(outcome)),
            Phase::Stopping { since, timed_out } => (since, timed_out.then_some(Outcome::TimedOut)),
            Phase::Waiting | Phase::Ended { .. } => return,
        };
        let Some(run) = self.runs.get_mut(&id) else { return };
        match outcome {
            None => self.forget(id),
            Some(outcome) => {
                // It cannot have run for longer than it was here.
                let elapsed = now.since(since);
                let elapsed = ran.map_or(elapsed, |ran| ran.min(elapsed));
                let (attempt, fence) = (run.dispatch.attempt, id.fence);
                let message =
                    FromWorker::Finished { attempt, fence, run: elapsed, outcome: outcome.clone() };
                say_at_once(step, id.scheduler, message);
                run.phase = Phase::Ended { run: elapsed, outcome };
                self.set_due(id, Some(now + RESEND_AFTER));
            }
        }
    }

    fn delegated(&self, id: RunId, handle: Arc<str>, step: &mut WorkerStep) {
        if let Some(run) = self.runs.get(&id)
            && matches!(run.phase, Phase::Running { .. })
        {
            let (attempt, fence) = (run.dispatch.attempt, id.fence);
            say_at_once(step, id.scheduler, FromWorker::Delegated { attempt, fence, handle });
        }
    }

    /// What was to run it has not taken it.
    fn declined(&mut self, id: RunId, step: &mut WorkerStep) {
        let Some(phase) = self.free_room(id) else { return };
        // Also if its time was over meanwhile: the scheduler waits to hear of it.
        if let Phase::Running { .. } | Phase::Stopping { timed_out: true, .. } = phase
            && let Some(run) = self.runs.get(&id)
        {
            let (attempt, fence) = (run.dispatch.attempt, id.fence);
            let refusal = Refusal::plain(RefusalKind::Busy);
            say_at_once(step, id.scheduler, FromWorker::Refused { attempt, fence, refusal });
        }
        self.forget(id);
    }

    fn is_stopping(&self, id: RunId) -> bool {
        let run = self.runs.get(&id);
        run.is_some_and(|run| matches!(run.phase, Phase::Stopping { .. }))
    }

    /// Frees the room of a run that is over. Returns the phase that it was in; none if it had no room.
    fn free_room(&mut self, id: RunId) -> Option<Phase> {
        let run = self.runs.get_mut(&id)?;
        let phase = match run.phase {
            Phase::Running { since } => Phase::Running { since },
            Phase::Stopping { timed_out, since } => Phase::Stopping { timed_out, since },
            Phase::Waiting | Phase::Ended { .. } => return None,
        };
        self.used[run.executor] -= 1;
        self.overtaken.ended(id);
        // It was booked when it began; `check` would tell if it were not.
        let _ = self.ledger.release(id);
        Some(phase)
    }

    /// Stops a run, wherever it is. Its room is free when it is gone.
    fn stop(&mut self, id: RunId, timed_out: bool, step: &mut WorkerStep) {
        let Some(run) = self.runs.get_mut(&id) else { return };
        match run.phase {
            Phase::Waiting => {
                self.forget(id);
                self.queue.remove(id);
            }
            Phase::Running { since } => {
                run.phase = Phase::Stopping { timed_out, since };
                step.send_at_once(WorkerEffect::Run(Run::Stop(id)));
                self.set_due(id, None);
            }
            Phase::Stopping { since, .. } => run.phase = Phase::Stopping { timed_out, since },
            Phase::Ended { .. } => self.forget(id),
        }
    }

    fn forget(&mut self, id: RunId) {
        self.set_due(id, None);
        self.runs.remove(&id);
    }

    fn set_due(&mut self, id: RunId, at: Option<Time>) {
        let Some(run) = self.runs.get_mut(&id) else { return };
        if let Some(old) = run.due {
            self.agenda.remove(&(old, id));
        }
        run.due = at;
        if let Some(at) = at {
            self.agenda.insert((at, id));
        }
    }

    fn wake(&mut self, now: Time, step: &mut WorkerStep) {
        while let Some((at, id)) = self.agenda.first().copied()
            && at <= now
            // The end of time never comes: what is due then would come up again and again.
            && at < Time::MAX
        {
            self.set_due(id, None);
            let Some(run) = self.runs.get(&id) else { continue };
            match &run.phase {
                Phase::Running { .. } => self.stop(id, true, step),
                Phase::Ended { .. } => {
                    self.report_end(id, step);
                    self.set_due(id, Some(now + RESEND_AFTER));
                }
                Phase::Waiting | Phase::Stopping { .. } => {}
            }
        }
    }

    /// Says with what a run has ended, again.
    fn report_end(&self, id: RunId, step: &mut WorkerStep) {
        let Some(run) = self.runs.get(&id) else { return };
        if let Phase::Ended { run: elapsed, outcome } = &run.phase {
            let (attempt, outcome) = (run.dispatch.attempt, outcome.clone());
            let message = FromWorker::Finished { attempt, fence: id.fence, run: *elapsed, outcome };
            say_at_once(step, id.scheduler, message);
        }
    }

    fn end_lease_in_time(&mut self, now: Time, step: &mut WorkerStep) {
        if self.lease.is_some_and(|lease| lease.until <= now) {
            self.lose_lease(step);
        }
    }

    /// The lease is over: nothing of it may go on, and nobody waits for its results.
    fn lose_lease(&mut self, step: &mut WorkerStep) {
        let Some(lease) = self.lease.take() else { return };
        if self.is(Mutant::RunWithoutLease) {
            return;
        }
        let of_holder = |id: &&RunId| id.scheduler == lease.holder;
        let runs: Vec<RunId> = self.runs.keys().filter(of_holder).copied().collect();
        for id in runs {
            self.stop(id, false, step);
        }
    }
}

fn say(step: &mut WorkerStep, to: SchedulerId, message: FromWorker) {
    step.send(WorkerEffect::Say(Said { to, message }));
}

/// Says what relies on nothing that is not durable yet: the epoch is before a lease is granted in it, and everything
/// that a lease allows comes after that.
fn say_at_once(step: &mut WorkerStep, to: SchedulerId, message: FromWorker) {
    step.send_at_once(WorkerEffect::Say(Said { to, message }));
}
