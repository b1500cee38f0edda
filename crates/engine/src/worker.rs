//! The worker: leases parts of itself, runs what the holders of leases dispatch, and keeps each result until it is
//! recorded.
//!
//! The rest of the machine is in the files below: `lease.rs` (which scheduler holds which portion), `run_queue.rs` (the
//! order in which runs begin), `market.rs` (adverts and offers), `receipts.rs` (what leases cost), `leave.rs` (a graceful
//! stop), `owner.rs` (the owner's terms, and an owner who lets nothing new begin), `image.rs` (the durable state).

mod image;
mod lease;
mod leave;
mod market;
mod owner;
mod receipts;
mod run_queue;

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;

use hypha_machine::{Machine, Step};
use hypha_market::{Advert, Advertiser, Holder, LeaseBook, LeaseKey, OwnerState, Portion};
use hypha_model::{
    AdvertId, AttemptId, Epoch, Fence, LeaseId, Refusal, RefusalKind, Rng, SchedulerId, Span, Time,
    Usage, Worker,
};
use hypha_placement::MAX_PREFETCH_PER_SLOT;

use crate::message::{Dispatch, FromWorker, Outcome, ToWorker};
use crate::mutant::Mutant;

pub use image::WorkerImage;
pub use receipts::StoredReceipts;

/// A result that has not been recorded is sent again after this long.
const RESEND_AFTER: Span = Span::from_secs(2);
/// Results that wait to be recorded. A scheduler records each within a round trip; one that does not must
/// not pile them up here.
const MAX_UNRECORDED: usize = 1_024;

/// What a worker wants after a step.
pub type WorkerStep = Step<WorkerMachine>;

/// What a worker makes durable: its incarnation, and whether it stopped gracefully. The scheduler stores the
/// attempts.
#[derive(Clone, Debug, PartialEq)]
pub enum WorkerRecord {
    /// The next incarnation begins.
    Started(Epoch),
    /// This incarnation stops gracefully.
    Left(Leaving),
    /// A receipt was signed or countersigned.
    Receipt(StoredReceipts),
}

/// An incarnation that stopped gracefully. The holders of its leases may not know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaving {
    /// The incarnation.
    pub epoch: Epoch,
    /// The schedulers that held a lease at its end.
    pub holders: Vec<SchedulerId>,
}

/// A message to a scheduler.
#[derive(Clone, Debug, PartialEq)]
pub struct OutgoingMessage {
    /// The receiver.
    pub to: SchedulerId,
    /// The message.
    pub message: FromWorker,
}

/// What a worker wants done.
#[derive(Clone, Debug)]
pub enum WorkerEffect {
    /// Send this.
    Send(OutgoingMessage),
    /// Start or stop an executor.
    Run(RunCommand),
}

/// Names an attempt on this worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunId {
    /// The scheduler that dispatched it.
    pub scheduler: SchedulerId,
    /// Its token.
    pub fence: Fence,
}

/// What is to be run or stopped.
#[derive(Clone, Debug)]
pub enum RunCommand {
    /// Start an executor; report its end with `Ended`.
    Start {
        /// The run.
        id: RunId,
        /// What to run.
        dispatch: Arc<Dispatch>,
        /// The executor, by its index in the worker's list.
        executor: usize,
        /// On which devices.
        devices: Vec<u32>,
    },
    /// Stop it; report with `Ended` when it is gone.
    Stop(RunId),
}

/// What happened.
#[derive(Clone, Debug)]
pub enum WorkerEvent {
    /// A scheduler has connected. Its organisation is the one that its certificate names.
    SchedulerConnected(Advertiser),
    /// A scheduler sent a message.
    SchedulerMessageReceived {
        /// The sender.
        scheduler: SchedulerId,
        /// The message.
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
        /// The outcome.
        outcome: Outcome,
        /// How long it ran, if the executor measured it.
        run: Option<Span>,
    },
    /// The back end of an executor has accepted a run, under this id.
    Delegated {
        /// The run.
        id: RunId,
        /// The id.
        handle: Arc<str>,
    },
    /// The back end of an executor does not have a run.
    Declined {
        /// The run.
        id: RunId,
    },
    /// The back end of an executor was checked.
    BackEndChecked {
        /// The executor, by its index in the worker's list.
        executor: usize,
        /// Whether it is healthy.
        is_healthy: bool,
    },
    /// It was measured how much of the machine is in use. Heartbeats report it.
    UsageMeasured(Usage),
    /// The owner has paused or resumed the worker, its hours have begun or ended, or the owner's use of the machine has.
    OwnerChanged(OwnerState),
    /// An advert arrived by gossip.
    AdvertReceived {
        /// Its author.
        from: Advertiser,
        /// The advert.
        advert: Arc<Advert>,
    },
    /// The end of an advert arrived by gossip.
    AdvertClosed {
        /// Its author.
        scheduler: SchedulerId,
        /// The advert.
        advert: AdvertId,
    },
    /// Others reach this worker through a relay, or no longer.
    ReachabilityChanged {
        /// Whether they do.
        is_relayed: bool,
    },
    /// The worker is to stop gracefully: it returns the attempts that it has not finished, and takes no more.
    LeaveRequested,
    /// The time of [`Machine::wake_at`] has come.
    Woke,
}

/// The worker's machine. See the module documentation.
pub struct WorkerMachine {
    worker: Arc<Worker>,
    epoch: Epoch,
    /// How the last incarnation ended, for those holders of its leases that do not know it.
    left: Option<Leaving>,
    is_leaving: bool,
    rng: Rng,
    book: LeaseBook<RunId>,
    runs: BTreeMap<RunId, RunState>,
    /// For each lease, the runs that wait for room.
    queues: BTreeMap<Holder, run_queue::RunQueue>,
    /// When something is due for a run: its timeout, or a resend of its result. Each run has at most one entry.
    agenda: BTreeSet<(Time, RunId)>,
    /// Executors whose back ends are unreachable.
    unreachable: BTreeSet<usize>,
    /// How much of the machine was in use when that was last measured.
    usage: Option<Usage>,
    owner: OwnerState,
    market: market::Market,
    receipts: receipts::Receipts,
    mutant: Option<Mutant>,
}

struct RunState {
    dispatch: Arc<Dispatch>,
    /// The lease that it runs under.
    holder: Holder,
    executor: usize,
    phase: RunPhase,
    due: Option<Time>,
}

enum RunPhase {
    Waiting,
    Running {
        since: Time,
    },
    /// Stop requested; its room is not free before its executor is gone.
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

impl LeaseKey for RunId {
    fn scheduler(&self) -> SchedulerId {
        self.scheduler
    }
}

impl Machine for WorkerMachine {
    type Event = WorkerEvent;
    type Record = WorkerRecord;
    type Effect = WorkerEffect;
    type Reply = Infallible;

    fn step(&mut self, now: Time, event: WorkerEvent, step: &mut WorkerStep) {
        self.expire_leases(now, step);
        match event {
            WorkerEvent::SchedulerMessageReceived { scheduler, message } => {
                self.handle_message(now, scheduler, message, step);
            }
            WorkerEvent::Progressed { id, permille } => self.progressed(id, permille, step),
            WorkerEvent::Ended { id, outcome, run } => {
                self.ended(now, id, (outcome, run), step);
                self.request_early_renewals(now, step);
            }
            WorkerEvent::Delegated { id, handle } => self.delegated(id, handle, step),
            WorkerEvent::Declined { id } => self.declined(id, step),
            WorkerEvent::BackEndChecked { executor, is_healthy } => {
                self.back_end_checked(executor, is_healthy, step)
            }
            WorkerEvent::UsageMeasured(usage) => self.usage = Some(usage),
            WorkerEvent::OwnerChanged(state) => self.owner_changed(now, state, step),
            WorkerEvent::SchedulerConnected(from) => {
                let scheduler = from.scheduler;
                self.scheduler_connected(from);
                self.repeat_receipts(scheduler, step);
                // Shared leases are granted anew to a scheduler that was restarted, and fixed ones are not.
                self.report_running(now, scheduler, |holder| holder.offer.is_some(), step);
            }
            WorkerEvent::AdvertReceived { from, advert } => {
                self.scheduler_connected(from.clone());
                self.advertised(now, from, advert, false);
            }
            WorkerEvent::AdvertClosed { scheduler, advert } => {
                self.advert_closed(now, scheduler, advert, step);
            }
            WorkerEvent::ReachabilityChanged { is_relayed } => {
                self.reachability_changed(is_relayed);
            }
            WorkerEvent::LeaveRequested => self.leave(step),
            WorkerEvent::Woke => self.wake(now, step),
        }
        self.make_offers(now, step);
        if self.takes_new_work() {
            self.begin_fitting(now, step);
        }
    }

    fn wake_at(&self, now: Time) -> Option<Time> {
        let of_runs = self.agenda.first().map(|(at, _)| *at);
        of_runs
            .into_iter()
            .chain(self.book.wake_at(now))
            .chain(self.market_wake_at())
            .chain(self.receipts_wake_at())
            .min()
    }

    fn woke() -> WorkerEvent {
        WorkerEvent::Woke
    }
}

impl WorkerMachine {
    /// The next incarnation of a worker. Its last one was `last`, and the last one that stopped gracefully was `left`.
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
            book: LeaseBook::new(Arc::clone(&worker)),
            runs: BTreeMap::new(),
            queues: BTreeMap::new(),
            agenda: BTreeSet::new(),
            unreachable: BTreeSet::new(),
            usage: None,
            owner: OwnerState::default(),
            market: market::Market::default(),
            receipts: receipts::Receipts::default(),
            worker,
            mutant: None,
        }
    }

    /// Makes the machine faulty, to show that a checker notices. Does nothing without the `mutants` feature.
    pub fn mutate(&mut self, mutant: Option<Mutant>) {
        self.mutant = mutant;
        if self.is(Mutant::DoubleGrant) {
            self.book.mutate_double_grant();
        }
        if self.is(Mutant::PreemptedByEquals) {
            self.book.mutate_preemption();
        }
        if self.is(Mutant::NewcomersFirst) {
            self.market.mutate_order();
        }
    }

    /// The runs that are running now: the id, the dispatch and since when.
    pub fn running(&self) -> impl Iterator<Item = (RunId, &Dispatch, Time)> {
        self.runs.iter().filter_map(|(id, run)| match run.phase {
            RunPhase::Running { since } => Some((*id, &*run.dispatch, since)),
            _ => None,
        })
    }

    /// How many runs have room, including those that are stopping.
    pub fn slots_in_use(&self) -> usize {
        self.book.booked()
    }

    /// Whether this run is here, in whatever state.
    pub fn has_run(&self, id: RunId) -> bool {
        self.runs.contains_key(&id)
    }

    /// The worker's incarnation.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The shared lease that a scheduler holds, and until when.
    pub fn lease_of(&self, scheduler: SchedulerId) -> Option<(LeaseId, Time)> {
        self.book.lease_of(Holder::shared(scheduler))
    }

    /// The lease that a run is under, and until when; `None` if it has ended.
    pub fn lease_of_run(&self, id: RunId) -> Option<(LeaseId, Time)> {
        self.book.lease_of(self.runs.get(&id)?.holder)
    }

    /// The leases that offers became: the scheduler, the lease, and until when.
    pub fn fixed_leases(&self) -> impl Iterator<Item = (SchedulerId, LeaseId, Time)> {
        let fixed = self.book.holders().filter(|holder| holder.offer.is_some());
        fixed.filter_map(|holder| {
            let (lease, until) = self.book.lease_of(holder)?;
            Some((holder.scheduler, lease, until))
        })
    }

    /// What a scheduler's shared lease covers.
    pub fn limit_of(&self, scheduler: SchedulerId) -> Option<&Portion> {
        self.book.limit_of(Holder::shared(scheduler))
    }

    /// Recomputes the state that is kept incrementally and compares.
    pub fn check(&self) -> Result<(), String> {
        self.book.check()?;
        let is_booked = |run: &&RunState| {
            matches!(run.phase, RunPhase::Running { .. } | RunPhase::Stopping { .. })
        };
        let booked = self.runs.values().filter(is_booked).count();
        if booked != self.book.booked() {
            return Err(format!("{booked} are running and {} are booked", self.book.booked()));
        }
        let due = self.runs.values().filter(|run| run.due.is_some()).count();
        if due != self.agenda.len() {
            return Err(format!("{due} runs are due and {} are on the agenda", self.agenda.len()));
        }
        let is_waiting = |run: &&RunState| matches!(run.phase, RunPhase::Waiting);
        let (waiting, queued) = (
            self.runs.values().filter(is_waiting).count(),
            self.queues.values().map(run_queue::RunQueue::len).sum::<usize>(),
        );
        if waiting != queued {
            return Err(format!("{waiting} runs wait and {queued} are queued"));
        }
        Ok(())
    }

    fn is(&self, mutant: Mutant) -> bool {
        cfg!(feature = "mutants") && self.mutant == Some(mutant)
    }

    fn handle_message(
        &mut self,
        now: Time,
        from: SchedulerId,
        message: ToWorker,
        step: &mut WorkerStep,
    ) {
        match message {
            ToWorker::RequestLease(wanted) => self.lease_requested(now, from, wanted, step),
            ToWorker::Heartbeat { lease, epoch, nonce, demand } => {
                self.renew(now, from, (lease, epoch), (nonce, demand), step);
            }
            ToWorker::Dispatch(dispatch) => self.dispatched(now, from, dispatch, step),
            ToWorker::Cancel { fence, .. } => {
                self.stop(RunId { scheduler: from, fence }, false, step);
            }
            ToWorker::Recorded { fence, .. } => {
                let id = RunId { scheduler: from, fence };
                let ended = |run: &RunState| matches!(run.phase, RunPhase::Ended { .. });
                if self.runs.get(&id).is_some_and(ended) {
                    self.forget(id);
                }
            }
            ToWorker::ReleaseLease { lease, epoch } => {
                if let Some(holder) = self.holder_of(from, lease, epoch) {
                    self.end_lease(now, holder, step);
                }
            }
            ToWorker::Advertise(advert) => self.advertised_directly(now, from, advert, step),
            ToWorker::CloseAdvert(advert) => self.advert_closed(now, from, advert, step),
            ToWorker::AcceptOffer { offer, role, request, ttl } => {
                self.offer_accepted(now, from, (offer, role, request, ttl), step);
            }
            ToWorker::DeclineOffer(offer) => self.offer_declined(now, from, offer, step),
            ToWorker::ReceiptCountersigned(signed) => {
                self.receipt_countersigned(from, signed, step);
            }
        }
    }

    /// The holder of this lease, if it is of this incarnation and `from` holds it.
    fn holder_of(&self, from: SchedulerId, lease: LeaseId, epoch: Epoch) -> Option<Holder> {
        (epoch == self.epoch).then(|| self.book.holder_of(from, lease)).flatten()
    }

    /// The schedulers that hold leases.
    fn lease_holders(&self) -> BTreeSet<SchedulerId> {
        self.book.holders().map(|holder| holder.scheduler).collect()
    }

    fn back_end_checked(&mut self, executor: usize, is_healthy: bool, step: &mut WorkerStep) {
        let is_news = match is_healthy {
            true => self.unreachable.remove(&executor),
            false => executor < self.worker.executors.len() && self.unreachable.insert(executor),
        };
        if is_news {
            for holder in self.lease_holders() {
                self.send_unreachable(holder, step);
            }
        }
    }

    /// Reports which executors are unreachable: all of them while the owner lets nothing new begin.
    fn send_unreachable(&self, to: SchedulerId, step: &mut WorkerStep) {
        let owner = self.owner.refusal();
        let executors = self.worker.executors.iter().enumerate();
        let unreachable =
            executors.filter(|(at, _)| owner.is_some() || self.unreachable.contains(at));
        let executors = unreachable.map(|(_, executor)| executor.name.clone()).collect();
        send_message_at_once(step, to, FromWorker::Unreachable { executors, owner });
    }

    /// The attempts under a lease that are here and whose end will be reported.
    fn holding_for(&self, holder: Holder) -> Vec<(AttemptId, Fence)> {
        let held = |(run, state): (&RunId, &RunState)| {
            let is_stopped = matches!(state.phase, RunPhase::Stopping { timed_out: false, .. });
            (state.holder == holder && !is_stopped).then_some((state.dispatch.attempt, run.fence))
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
        let holder = match from {
            SchedulerId::LOCAL => Some(Holder::shared(from)),
            _ => self.holder_of(from, dispatch.lease, dispatch.epoch),
        };
        if dispatch.resume.is_some() && holder.is_some() {
            self.resume_run(now, id, dispatch.timeout);
        }
        if let Some(known) = self.runs.get(&id) {
            // A repeated dispatch: report its state again.
            let attempt = known.dispatch.attempt;
            let message = match &known.phase {
                RunPhase::Waiting => FromWorker::Accepted { attempt, fence },
                RunPhase::Running { .. } => FromWorker::Started { attempt, fence },
                RunPhase::Stopping { .. } => return,
                RunPhase::Ended { run, outcome } => {
                    FromWorker::Finished { attempt, fence, run: *run, outcome: outcome.clone() }
                }
            };
            send_message_at_once(step, from, message);
            return;
        }
        let Some(holder) = holder else {
            let message = FromWorker::LeaseUnknown { lease: dispatch.lease, epoch: dispatch.epoch };
            send_message_at_once(step, from, message);
            return;
        };
        if self.is_leaving && from != SchedulerId::LOCAL {
            return self.send_left(from, step);
        }
        self.acknowledge_leave(from);
        let attempt = dispatch.attempt;
        let requirement = &dispatch.spec.requirement;
        let executor = match self.book.executor_for(holder, requirement) {
            Ok(_) if self.is_leaving || !self.takes_new_work() => {
                Err(Refusal::without_amount(RefusalKind::Unavailable))
            }
            Ok(_) if self.is_full(holder) => Err(Refusal::without_amount(RefusalKind::Busy)),
            found => found,
        };
        match executor {
            Ok(executor) => {
                let phase = RunPhase::Waiting;
                let interactive = dispatch.interactive;
                self.runs.insert(id, RunState { dispatch, holder, executor, phase, due: None });
                if !self.enqueue(id, executor, interactive) {
                    send_message_at_once(step, from, FromWorker::Accepted { attempt, fence });
                }
            }
            Err(refusal) => {
                let message = FromWorker::Refused { attempt, fence, refusal };
                send_message_at_once(step, from, message);
            }
        }
    }

    /// Resumes a run that was stopping because its lease ended: its back end, which cannot cancel, still has it.
    fn resume_run(&mut self, now: Time, id: RunId, timeout: Span) {
        if let Some(run) = self.runs.get_mut(&id)
            && let RunPhase::Stopping { timed_out: false, since } = run.phase
        {
            run.phase = RunPhase::Running { since };
            self.set_due(id, Some(now + timeout));
        }
    }

    /// Whether no more attempts under a lease are accepted, not even to wait.
    fn is_full(&self, holder: Holder) -> bool {
        let slots = self.concurrency_for(holder) as usize;
        let most_waiting = slots.saturating_mul(MAX_PREFETCH_PER_SLOT);
        let waiting = self.queues.get(&holder).map_or(0, run_queue::RunQueue::len);
        let in_all = self.worker.concurrency() as usize;
        waiting >= most_waiting
            || self.runs.len()
                >= in_all.saturating_mul(1 + MAX_PREFETCH_PER_SLOT).saturating_add(MAX_UNRECORDED)
    }

    /// How many runs of a lease run at once.
    fn concurrency_for(&self, holder: Holder) -> u32 {
        let slots = (0..self.worker.executors.len()).map(|at| self.book.slots_of(holder, at));
        slots.fold(0, u32::saturating_add)
    }

    fn fits(&self, id: RunId) -> bool {
        let Some(run) = self.runs.get(&id) else { return false };
        self.book.fits(run.holder, &run.dispatch.spec.requirement, run.executor)
    }

    fn begin(&mut self, now: Time, id: RunId, step: &mut WorkerStep) {
        let Some(run) = self.runs.get_mut(&id) else { return };
        let requirement = &run.dispatch.spec.requirement;
        let Some(devices) = self.book.begin(id, run.holder, requirement, run.executor) else {
            return;
        };
        run.phase = RunPhase::Running { since: now };
        let ends_by = now + run.dispatch.timeout;
        let (dispatch, executor, holder) = (Arc::clone(&run.dispatch), run.executor, run.holder);
        self.mark_used(holder);
        let (attempt, fence) = (dispatch.attempt, dispatch.fence);
        if !devices.is_empty() {
            let devices = devices.clone();
            let assigned = FromWorker::DevicesAssigned { attempt, fence, devices };
            send_message_at_once(step, id.scheduler, assigned);
        }
        send_message_at_once(step, id.scheduler, FromWorker::Started { attempt, fence });
        step.send_at_once(WorkerEffect::Run(RunCommand::Start { id, dispatch, executor, devices }));
        self.set_due(id, Some(ends_by));
    }

    fn progressed(&mut self, id: RunId, permille: u16, step: &mut WorkerStep) {
        if let Some(run) = self.runs.get(&id)
            && matches!(run.phase, RunPhase::Running { .. })
        {
            let (attempt, fence) = (run.dispatch.attempt, id.fence);
            let message = FromWorker::Progress { attempt, fence, permille };
            send_message_at_once(step, id.scheduler, message);
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
            RunPhase::Running { since } => (since, Some(outcome)),
            RunPhase::Stopping { since, timed_out } => {
                (since, timed_out.then_some(Outcome::TimedOut))
            }
            RunPhase::Waiting | RunPhase::Ended { .. } => return,
        };
        let Some(run) = self.runs.get_mut(&id) else { return };
        match outcome {
            None => self.forget(id),
            Some(outcome) => {
                // It cannot have run for longer than it has been here.
                let elapsed = now.since(since);
                let elapsed = ran.map_or(elapsed, |ran| ran.min(elapsed));
                let (attempt, fence) = (run.dispatch.attempt, id.fence);
                let message =
                    FromWorker::Finished { attempt, fence, run: elapsed, outcome: outcome.clone() };
                send_message_at_once(step, id.scheduler, message);
                run.phase = RunPhase::Ended { run: elapsed, outcome };
                self.set_due(id, Some(now + RESEND_AFTER));
            }
        }
    }

    fn delegated(&self, id: RunId, handle: Arc<str>, step: &mut WorkerStep) {
        if let Some(run) = self.runs.get(&id)
            && matches!(run.phase, RunPhase::Running { .. })
        {
            let (attempt, fence) = (run.dispatch.attempt, id.fence);
            send_message_at_once(
                step,
                id.scheduler,
                FromWorker::Delegated { attempt, fence, handle },
            );
        }
    }

    /// The back end does not have the run.
    fn declined(&mut self, id: RunId, step: &mut WorkerStep) {
        let Some(phase) = self.free_room(id) else { return };
        // Also if it timed out meanwhile: the scheduler waits for the report.
        if let RunPhase::Running { .. } | RunPhase::Stopping { timed_out: true, .. } = phase
            && let Some(run) = self.runs.get(&id)
        {
            let (attempt, fence) = (run.dispatch.attempt, id.fence);
            let refusal = Refusal::without_amount(RefusalKind::Busy);
            send_message_at_once(
                step,
                id.scheduler,
                FromWorker::Refused { attempt, fence, refusal },
            );
        }
        self.forget(id);
    }

    fn is_stopping(&self, id: RunId) -> bool {
        let run = self.runs.get(&id);
        run.is_some_and(|run| matches!(run.phase, RunPhase::Stopping { .. }))
    }

    /// Frees the room of a run that has ended. Returns the phase that it was in; `None` if it had no room.
    fn free_room(&mut self, id: RunId) -> Option<RunPhase> {
        let run = self.runs.get_mut(&id)?;
        let phase = match run.phase {
            RunPhase::Running { since } => RunPhase::Running { since },
            RunPhase::Stopping { timed_out, since } => RunPhase::Stopping { timed_out, since },
            RunPhase::Waiting | RunPhase::Ended { .. } => return None,
        };
        self.book.end(id, run.executor);
        if let Some(queue) = self.queues.get_mut(&run.holder) {
            queue.ended(id);
        }
        Some(phase)
    }

    /// Stops a run in any phase. Its room is free when its executor is gone.
    fn stop(&mut self, id: RunId, timed_out: bool, step: &mut WorkerStep) {
        let Some(run) = self.runs.get_mut(&id) else { return };
        match run.phase {
            RunPhase::Waiting => {
                let executor = run.executor;
                self.dequeue(id, executor);
                self.forget(id);
            }
            RunPhase::Running { since } => {
                run.phase = RunPhase::Stopping { timed_out, since };
                step.send_at_once(WorkerEffect::Run(RunCommand::Stop(id)));
                self.set_due(id, None);
            }
            RunPhase::Stopping { since, .. } => run.phase = RunPhase::Stopping { timed_out, since },
            RunPhase::Ended { .. } => self.forget(id),
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
        self.wake_receipts(now, step);
        if self.book.end_turns(now) {
            self.request_early_renewals(now, step);
        }
        while let Some((at, id)) = self.agenda.first().copied()
            && at <= now
            // `Time::MAX` never comes: an entry at it would be handled repeatedly.
            && at < Time::MAX
        {
            self.set_due(id, None);
            let Some(run) = self.runs.get(&id) else { continue };
            match &run.phase {
                RunPhase::Running { .. } => self.stop(id, true, step),
                RunPhase::Ended { .. } => {
                    self.report_end(id, step);
                    self.set_due(id, Some(now + RESEND_AFTER));
                }
                RunPhase::Waiting | RunPhase::Stopping { .. } => {}
            }
        }
    }

    /// Reports the end of a run again.
    fn report_end(&self, id: RunId, step: &mut WorkerStep) {
        let Some(run) = self.runs.get(&id) else { return };
        if let RunPhase::Ended { run: elapsed, outcome } = &run.phase {
            let (attempt, outcome) = (run.dispatch.attempt, outcome.clone());
            let message = FromWorker::Finished { attempt, fence: id.fence, run: *elapsed, outcome };
            send_message_at_once(step, id.scheduler, message);
        }
    }
}

fn send_message(step: &mut WorkerStep, to: SchedulerId, message: FromWorker) {
    step.send(WorkerEffect::Send(OutgoingMessage { to, message }));
}

/// Sends a message that relies on nothing that is not durable yet: the epoch is durable before a lease is granted in
/// it, and everything that a lease allows comes after that.
fn send_message_at_once(step: &mut WorkerStep, to: SchedulerId, message: FromWorker) {
    step.send_at_once(WorkerEffect::Send(OutgoingMessage { to, message }));
}
