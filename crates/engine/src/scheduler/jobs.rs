//! Jobs: the scheduler leases a gang of workers for each, runs a part of the job on every member, and replaces members
//! that are lost.

mod offers;
mod views;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use hypha_machine::Rows;
use hypha_market::{
    Gang, GangAction, GangContext, GrantRecord, LeaseAccount, LedgerSum, LossReason,
};
use hypha_model::{
    AdvertId, AttemptId, Epoch, FailureKind, Fence, JobId, LeaseId, Money, Requirement, Span,
    TaskError, TaskId, Time, WorkerId,
};

pub use views::MarketFigures;

use super::{Effect, Scheduler, SchedulerStep};
use crate::job::{
    AcceptedJob, EndedJob, JobPlan, JobRecord, JobState, MarketEvent, MarketEventKind, StoredRun,
    accounts_of, jobs_of, pool_of,
};
use crate::message::{Dispatch, FromWorker, Outcome, ToWorker};
use crate::mutant::Mutant;
use crate::record::Record;

/// Jobs that have not ended. Each keeps leases and adverts, so they are fewer than tasks.
pub const MAX_JOBS: usize = 1_000;
/// Jobs that have ended and are still shown.
const MAX_ENDED_JOBS: usize = 1_000;
/// Events of the market that are kept for those who watch it.
const MAX_MARKET_EVENTS: usize = 1_024;
/// Workers of which it is remembered whether they granted what they had offered.
const MAX_GRANT_RECORDS: usize = 16_384;
/// Workers that are examined for an advert that goes out directly.
const MAX_CANDIDATES_EXAMINED: usize = 4_096;
/// Accepted offers of which a late grant is recognised: more than are in flight within a round trip.
const MAX_ACCEPTS_REMEMBERED: usize = 16_384;
/// Leases of workers that left which are remembered: messages that overtake each other are close together.
const MAX_LEFT_REMEMBERED: usize = 1_024;
/// A release is repeated after this long, then after twice as long: a lost one would block the worker for the rest of the
/// lease.
const REPEAT_RELEASE_AFTER: Span = Span::from_millis(500);
/// How often a release is repeated. It is not answered, but a final receipt shows that it has arrived.
const MAX_RELEASE_REPEATS: u32 = 4;
/// Releases that are repeated at a time.
const MAX_RELEASES: usize = 16_384;
/// How long the part of a member may run without a time limit of its own.
const DEFAULT_ROLE_TIMEOUT: Span = Span::from_secs(7 * 24 * 3_600);

/// The jobs of a scheduler.
#[derive(Default)]
pub(super) struct Jobs {
    active: BTreeMap<JobId, Job>,
    ended: BTreeMap<JobId, (Arc<AcceptedJob>, Arc<EndedJob>)>,
    /// The leases of members. The ids are chosen by workers, so another worker's message about one does not count.
    by_lease: BTreeMap<LeaseId, (JobId, WorkerId)>,
    by_fence: BTreeMap<Fence, (JobId, LeaseId)>,
    grants: BTreeMap<WorkerId, GrantRecord>,
    /// The requests with which offers were accepted: a grant that comes too late is released.
    accepts: BTreeSet<u64>,
    /// Leases that ended before their grants have arrived.
    left: BTreeSet<LeaseId>,
    /// Leases that were released, while their workers may not know it.
    releases: BTreeMap<LeaseId, Releasing>,
    pub(super) accounts: BTreeMap<LeaseId, LeaseAccount>,
    /// The sums of accounts that are no longer kept.
    pub(super) settled: BTreeMap<WorkerId, LedgerSum>,
    events: VecDeque<MarketEvent>,
    sequence: u64,
    /// When the first gang is due.
    due: Option<Time>,
}

/// A lease that was released.
struct Releasing {
    worker: WorkerId,
    epoch: Epoch,
    again_at: Time,
    repeats: u32,
}

struct Job {
    /// An advert of the pool, not a job that a user submitted: it is not stored, and its members join the pool.
    is_pool: bool,
    accepted: Arc<AcceptedJob>,
    gang: Gang,
    runs: BTreeMap<LeaseId, Run>,
    done: Vec<u32>,
    lost: u32,
}

struct Run {
    stored: Arc<StoredRun>,
    is_running: bool,
    progress_permille: u16,
}

impl Job {
    fn new(accepted: Arc<AcceptedJob>, now: Time) -> Job {
        let gang = Gang::new(Arc::clone(&accepted.plan.gang), now);
        let done = vec![0; accepted.plan.gang.roles.len()];
        Job { is_pool: false, accepted, gang, runs: BTreeMap::new(), done, lost: 0 }
    }

    fn is_complete(&self) -> bool {
        let roles = &self.accepted.plan.gang.roles;
        let has_minimum = roles.iter().zip(&self.done).all(|(role, done)| *done >= role.minimum);
        self.runs.is_empty() && has_minimum && self.done.iter().any(|done| *done > 0)
    }
}

impl Scheduler {
    /// Continues the jobs of earlier incarnations.
    pub(super) fn recover_jobs(&mut self, now: Time, rows: &Rows) {
        (self.jobs.accounts, self.jobs.settled) = accounts_of(rows);
        self.recover_pool(now, pool_of(rows));
        self.jobs.accounts.values_mut().for_each(|account| account.recovered(now));
        for (id, stored) in jobs_of(rows) {
            if let Some(ended) = stored.ended {
                self.jobs.ended.insert(id, (stored.accepted, ended));
                continue;
            }
            let spec = Arc::clone(&stored.accepted.plan.gang);
            let members = stored.runs.values().map(|run| run.member.clone()).collect();
            let progress = (&stored.done[..], stored.is_formed);
            let mut gang = Gang::recover(spec, members, progress, now);
            gang.mutate(self.settings.mutant.and_then(Mutant::of_gang));
            let mut runs = BTreeMap::new();
            for (lease, stored) in stored.runs {
                self.jobs.by_lease.insert(lease, (id, stored.member.worker));
                self.jobs.by_fence.insert(stored.fence, (id, lease));
                runs.insert(lease, Run { stored, is_running: false, progress_permille: 0 });
            }
            let (accepted, done) = (stored.accepted, stored.done);
            let is_pool = false;
            self.jobs.active.insert(id, Job { is_pool, accepted, gang, runs, done, lost: 0 });
        }
        self.jobs.due = self.jobs.earliest();
    }

    /// Accepts a job. `None` if there are too many.
    pub(super) fn submit_job(
        &mut self,
        now: Time,
        plan: Arc<JobPlan>,
        step: &mut SchedulerStep,
    ) -> Option<JobId> {
        if self.jobs.active.len() >= MAX_JOBS {
            return None;
        }
        let id = JobId::new(now, &mut self.rng);
        let accepted = Arc::new(AcceptedJob { id, plan, submitted: now });
        step.persist(Record::Job(JobRecord::Accepted(Arc::clone(&accepted))));
        let mut job = Job::new(accepted, now);
        job.gang.mutate(self.settings.mutant.and_then(Mutant::of_gang));
        self.jobs.active.insert(id, job);
        self.with_job(now, id, step, |gang, context, actions| gang.wake(context, actions));
        Some(id)
    }

    /// Cancels a job. Returns its state after that; `None` if there is no such job.
    pub(super) fn cancel_job(
        &mut self,
        now: Time,
        id: JobId,
        step: &mut SchedulerStep,
    ) -> Option<JobState> {
        if self.jobs.active.get(&id).is_some_and(|job| !job.is_pool) {
            self.end_job(now, id, JobState::Cancelled, None, step);
        }
        self.jobs.ended.get(&id).map(|(_, ended)| ended.state)
    }

    /// Advertises for workers of the pool.
    pub(super) fn start_pool_gang(
        &mut self,
        now: Time,
        plan: Arc<JobPlan>,
        step: &mut SchedulerStep,
    ) -> JobId {
        let id = JobId::new(now, &mut self.rng);
        let accepted = Arc::new(AcceptedJob { id, plan, submitted: now });
        self.jobs.active.insert(id, Job { is_pool: true, ..Job::new(accepted, now) });
        self.with_job(now, id, step, |gang, context, actions| gang.wake(context, actions));
        id
    }

    /// How many workers an advert of the pool calls for.
    pub(super) fn gang_wanted(&self, id: JobId) -> u32 {
        let job = self.jobs.active.get(&id);
        job.map_or(0, |job| job.gang.spec().roles.iter().map(|role| role.count).sum())
    }

    /// Withdraws an advert of the pool.
    pub(super) fn withdraw_gang(&mut self, now: Time, id: JobId, step: &mut SchedulerStep) {
        if let Some(mut job) = self.jobs.active.remove(&id) {
            let mut actions = Vec::new();
            job.gang.release(&mut actions);
            self.perform_without_job(now, id, actions, step);
        }
    }

    /// Does what is due for gangs.
    pub(super) fn wake_jobs(&mut self, now: Time, step: &mut SchedulerStep) {
        if self.jobs.due.is_none_or(|due| due > now) {
            return;
        }
        let is_due = |job: &Job| job.gang.wake_at().is_some_and(|at| at <= now);
        let due: Vec<JobId> =
            self.jobs.active.iter().filter(|(_, job)| is_due(job)).map(|(id, _)| *id).collect();
        for id in due {
            self.with_job(now, id, step, |gang, context, actions| gang.wake(context, actions));
        }
        self.repeat_releases(now, step);
        self.jobs.due = self.jobs.earliest();
    }

    fn repeat_releases(&mut self, now: Time, step: &mut SchedulerStep) {
        self.jobs.releases.retain(|lease, release| {
            if release.again_at > now {
                return true;
            }
            let message = ToWorker::ReleaseLease { lease: *lease, epoch: release.epoch };
            step.send(Effect::ToWorker { worker: release.worker, message });
            release.repeats += 1;
            release.again_at = now + REPEAT_RELEASE_AFTER.times(1 << release.repeats);
            release.repeats < MAX_RELEASE_REPEATS
        });
    }

    /// The worker knows that a lease has ended.
    pub(super) fn release_confirmed(&mut self, lease: LeaseId) {
        self.jobs.releases.remove(&lease);
    }

    /// When a gang is due.
    pub(super) fn jobs_wake_at(&self) -> Option<Time> {
        self.jobs.due
    }

    /// Handles a message of a worker that is about a job or an advert. Returns it if it is not.
    pub(super) fn handle_job_message(
        &mut self,
        now: Time,
        worker: WorkerId,
        message: FromWorker,
        step: &mut SchedulerStep,
    ) -> Option<FromWorker> {
        match message {
            FromWorker::Offered(offer) => self.offered(now, worker, &offer, step),
            FromWorker::NotOffered(advert) => self.not_offered(now, worker, advert, step),
            FromWorker::OfferUnknown(offer) => self.offer_unknown(now, worker, offer, step),
            FromWorker::Preempted { lease, epoch, grace } => {
                if self.jobs.is_member(worker, lease) {
                    self.preempted(now, (lease, epoch), grace);
                }
            }
            FromWorker::ReceiptIssued(signed) => self.receipt_issued(now, worker, &signed, step),
            FromWorker::LeaseGranted { request, lease, epoch, ttl, portion, holding } => {
                let grant = (lease, epoch, ttl, portion.clone());
                if !self.offer_granted(now, (worker, request), grant, step) {
                    return Some(FromWorker::LeaseGranted {
                        request,
                        lease,
                        epoch,
                        ttl,
                        portion,
                        holding,
                    });
                }
            }
            FromWorker::Alive { lease, epoch, nonce, holding, .. }
                if self.jobs.is_member(worker, lease) =>
            {
                self.member_alive(now, (lease, epoch), nonce, &holding, step);
            }
            FromWorker::LeaseUnknown { lease, .. } if self.jobs.is_member(worker, lease) => {
                self.member_lost(now, lease, LossReason::Unknown, step);
            }
            FromWorker::Left { epoch, lease: Some(lease) }
                if self.jobs.is_member(worker, lease) =>
            {
                self.member_lost(now, lease, LossReason::Left, step);
                let message = ToWorker::ReleaseLease { lease, epoch };
                step.send(Effect::ToWorker { worker, message });
            }
            FromWorker::Left { epoch, lease: Some(lease) } => {
                // Its grant may come later.
                if self.jobs.left.len() >= MAX_LEFT_REMEMBERED {
                    self.jobs.left.pop_first();
                }
                self.jobs.left.insert(lease);
                return Some(FromWorker::Left { epoch, lease: Some(lease) });
            }
            message => return self.handle_run_message(now, worker, message, step),
        }
        None
    }

    /// Handles a message about the run of a member.
    fn handle_run_message(
        &mut self,
        now: Time,
        worker: WorkerId,
        message: FromWorker,
        step: &mut SchedulerStep,
    ) -> Option<FromWorker> {
        let fence = match &message {
            FromWorker::Accepted { fence, .. }
            | FromWorker::Delegated { fence, .. }
            | FromWorker::DevicesAssigned { fence, .. }
            | FromWorker::Refused { fence, .. }
            | FromWorker::Started { fence, .. }
            | FromWorker::Running { fence, .. }
            | FromWorker::Progress { fence, .. }
            | FromWorker::Output { fence, .. }
            | FromWorker::Finished { fence, .. } => *fence,
            _ => return Some(message),
        };
        let Some((id, lease)) = self.jobs.by_fence.get(&fence).copied() else {
            return Some(message);
        };
        let job = self.jobs.active.get_mut(&id);
        let run = job.and_then(|job| job.runs.get_mut(&lease));
        let run = run.filter(|run| run.stored.member.worker == worker)?;
        match message {
            FromWorker::Started { .. } | FromWorker::Running { .. } => {
                run.is_running = true;
                step.send_at_once(Effect::JobChanged(id));
            }
            FromWorker::Progress { permille, .. } => {
                (run.is_running, run.progress_permille) = (true, permille);
                step.send_at_once(Effect::JobChanged(id));
            }
            FromWorker::Refused { .. } => self.member_lost(now, lease, LossReason::Refused, step),
            FromWorker::Finished { attempt, outcome, .. } => {
                self.run_finished(now, (id, lease), (attempt, fence), outcome, step);
            }
            _ => {}
        }
        None
    }

    fn run_finished(
        &mut self,
        now: Time,
        (id, lease): (JobId, LeaseId),
        (attempt, fence): (AttemptId, Fence),
        outcome: Outcome,
        step: &mut SchedulerStep,
    ) {
        let Some(job) = self.jobs.active.get_mut(&id) else { return };
        let Some(run) = job.runs.get(&lease) else { return };
        let (worker, role) = (run.stored.member.worker, usize::from(run.stored.member.role));
        match outcome {
            Outcome::Completed { .. } => {
                job.runs.remove(&lease);
                if let Some(done) = job.done.get_mut(role) {
                    *done += 1;
                }
                let done = job.done.clone();
                self.jobs.by_fence.remove(&fence);
                step.persist(Record::Job(JobRecord::MemberLeft { job: id, lease, done }));
                let message = ToWorker::Recorded { attempt, fence };
                step.send(Effect::ToWorker { worker, message });
                self.with_job(now, id, step, |gang, _, actions| {
                    gang.release_member(lease, actions)
                });
                self.jobs.by_lease.remove(&lease);
                if self.jobs.active.get(&id).is_some_and(Job::is_complete) {
                    self.end_job(now, id, JobState::Completed, None, step);
                }
            }
            // The worker is at fault, not the job: another takes its place.
            Outcome::Unreachable { .. } => self.member_lost(now, lease, LossReason::Refused, step),
            Outcome::Failed(error) => {
                self.end_job(now, id, JobState::Failed, Some(error), step);
            }
            Outcome::TimedOut => {
                let error =
                    TaskError::new(FailureKind::TimedOut, "a member exceeded its time limit");
                self.end_job(now, id, JobState::Failed, Some(error), step);
            }
        }
    }

    /// A member's lease has ended.
    fn member_lost(
        &mut self,
        now: Time,
        lease: LeaseId,
        reason: LossReason,
        step: &mut SchedulerStep,
    ) {
        let Some((id, _)) = self.jobs.by_lease.get(&lease).copied() else { return };
        self.with_job(now, id, step, |gang, context, actions| {
            gang.lease_ended(context, lease, reason, actions);
        });
    }

    fn member_alive(
        &mut self,
        now: Time,
        named: (LeaseId, Epoch),
        nonce: u64,
        holding: &[(AttemptId, Fence)],
        step: &mut SchedulerStep,
    ) {
        let Some((id, _)) = self.jobs.by_lease.get(&named.0).copied() else { return };
        let Some(job) = self.jobs.active.get_mut(&id) else { return };
        if !job.gang.renewed(now, named, nonce) {
            return;
        }
        let is_held = |run: &Run| holding.contains(&(run.stored.attempt, run.stored.fence));
        // It was never sent, or was lost on the way: the worker answers a repeated dispatch with its state.
        let is_used =
            !(cfg!(feature = "mutants") && self.settings.mutant == Some(Mutant::NeverUses));
        if job.gang.is_formed()
            && is_used
            && let Some(run) = job.runs.get(&named.0).filter(|run| !is_held(run))
            && let Some(dispatch) = role_dispatch(&job.accepted.plan, &run.stored)
        {
            let worker = run.stored.member.worker;
            step.send(Effect::ToWorker { worker, message: ToWorker::Dispatch(dispatch) });
        }
        self.jobs.due = self.jobs.earliest();
    }

    fn preempted(&mut self, now: Time, (lease, _): (LeaseId, Epoch), grace: Span) {
        if let Some((id, _)) = self.jobs.by_lease.get(&lease)
            && let Some(job) = self.jobs.active.get_mut(id)
        {
            job.gang.preempted(now, lease, grace);
            self.jobs.due = self.jobs.earliest();
        }
    }

    /// The connection to a worker was lost.
    pub(super) fn jobs_disconnected(&mut self, now: Time, worker: WorkerId) {
        for job in self.jobs.active.values_mut() {
            job.gang.disconnected(now, worker);
        }
        self.jobs.due = self.jobs.earliest();
    }

    /// A worker is connected, perhaps again.
    pub(super) fn jobs_reconnected(&mut self, now: Time, worker: WorkerId) {
        for job in self.jobs.active.values_mut() {
            job.gang.reconnected(now, worker);
        }
        self.jobs.due = self.jobs.earliest();
    }

    fn end_job(
        &mut self,
        now: Time,
        id: JobId,
        state: JobState,
        error: Option<TaskError>,
        step: &mut SchedulerStep,
    ) {
        let Some(mut job) = self.jobs.active.remove(&id) else { return };
        let (lost, done) = (job.lost, job.done.clone());
        let ended = Arc::new(EndedJob { job: id, state, finished: now, error, lost, done });
        for (lease, run) in &job.runs {
            self.jobs.by_fence.remove(&run.stored.fence);
            let done = job.done.clone();
            step.persist(Record::Job(JobRecord::MemberLeft { job: id, lease: *lease, done }));
        }
        step.persist(Record::Job(JobRecord::Ended(Arc::clone(&ended))));
        let mut actions = Vec::new();
        job.gang.release(&mut actions);
        self.perform_without_job(now, id, actions, step);
        self.jobs.ended.insert(id, (job.accepted, ended));
        if self.jobs.ended.len() > MAX_ENDED_JOBS
            && let Some((first, _)) = self.jobs.ended.pop_first()
        {
            step.persist(Record::Job(JobRecord::Forgotten(first)));
        }
        step.send(Effect::JobChanged(id));
        self.jobs.due = self.jobs.earliest();
    }

    /// Lets the gang of a job act, and performs what it wants.
    fn with_job(
        &mut self,
        now: Time,
        id: JobId,
        step: &mut SchedulerStep,
        act: impl FnOnce(&mut Gang, &mut GangContext<'_>, &mut Vec<GangAction>),
    ) {
        let Some(mut job) = self.jobs.active.remove(&id) else { return };
        let mut actions = Vec::new();
        let mut rng = self.rng.fork();
        let mut requests = self.requests;
        let epoch = self.epoch;
        {
            let mut next_number = || {
                requests += 1;
                super::with_epoch(epoch, requests)
            };
            let candidates = |needs: &Requirement, most: usize| self.candidates_for(needs, most);
            let mut context = GangContext {
                now,
                rng: &mut rng,
                next_number: &mut next_number,
                candidates: &candidates,
            };
            act(&mut job.gang, &mut context, &mut actions);
        }
        self.requests = requests;
        for action in actions {
            self.perform(now, (id, &mut job), action, step);
        }
        if job.is_pool && job.gang.is_formed() {
            let members = job.gang.take_members();
            for member in &members {
                self.jobs.by_lease.remove(&member.lease);
            }
            self.adopt_members(now, id, members, step);
        } else {
            self.jobs.active.insert(id, job);
        }
        self.jobs.due = self.jobs.earliest();
    }

    fn perform(
        &mut self,
        now: Time,
        (id, job): (JobId, &mut Job),
        action: GangAction,
        step: &mut SchedulerStep,
    ) {
        match action {
            GangAction::Joined(lease) => self.member_joined(now, (id, job), lease, step),
            GangAction::Formed(_) => {
                step.persist(Record::Job(JobRecord::Formed(id)));
                let is_used = !self.is(Mutant::NeverUses);
                for run in job.runs.values().filter(|_| is_used) {
                    if let Some(dispatch) = role_dispatch(&job.accepted.plan, &run.stored) {
                        let worker = run.stored.member.worker;
                        let message = ToWorker::Dispatch(dispatch);
                        step.send(Effect::ToWorker { worker, message });
                    }
                }
                step.send(Effect::JobChanged(id));
            }
            GangAction::Lost { member, reason } => {
                job.lost += 1;
                if job.is_pool {
                    self.jobs.by_lease.remove(&member.lease);
                    return self.close_account(now, member.lease, step);
                }
                if let Some(run) = job.runs.remove(&member.lease) {
                    self.jobs.by_fence.remove(&run.stored.fence);
                }
                self.jobs.by_lease.remove(&member.lease);
                let (lease, worker, done) = (member.lease, member.worker, job.done.clone());
                step.persist(Record::Job(JobRecord::MemberLeft { job: id, lease, done }));
                self.close_account(now, lease, step);
                self.jobs.log(now, Some(id), MarketEventKind::Lost { worker, lease, reason });
                step.send(Effect::JobChanged(id));
            }
            GangAction::Release { lease, .. } => {
                // Before the gang was formed, or after the member's end was recorded.
                if let Some(run) = job.runs.remove(&lease) {
                    self.jobs.by_fence.remove(&run.stored.fence);
                    let done = job.done.clone();
                    step.persist(Record::Job(JobRecord::MemberLeft { job: id, lease, done }));
                }
                self.perform_without_job(now, id, vec![action], step);
            }
            action => self.perform_without_job(now, id, vec![action], step),
        }
    }

    fn member_joined(
        &mut self,
        now: Time,
        (id, job): (JobId, &mut Job),
        lease: LeaseId,
        step: &mut SchedulerStep,
    ) {
        let Some(member) = job.gang.member(lease).map(|member| member.stored().clone()) else {
            return;
        };
        if job.is_pool {
            let (worker, price) = (member.worker, member.price);
            self.open_account(&member, step);
            self.jobs.by_lease.insert(lease, (id, worker));
            return self.jobs.log(now, None, MarketEventKind::Leased { worker, lease, price });
        }
        let task = TaskId::new(now, &mut self.rng);
        let fence = self.next_fence();
        let (worker, price) = (member.worker, member.price);
        self.open_account(&member, step);
        let attempt = AttemptId { task, number: 1 };
        let run = Arc::new(StoredRun { member, attempt, fence });
        step.persist(Record::Job(JobRecord::MemberJoined { job: id, run: Arc::clone(&run) }));
        self.jobs.by_lease.insert(lease, (id, worker));
        self.jobs.by_fence.insert(fence, (id, lease));
        if job.gang.is_formed()
            && !self.is(Mutant::NeverUses)
            && let Some(dispatch) = role_dispatch(&job.accepted.plan, &run)
        {
            step.send(Effect::ToWorker { worker, message: ToWorker::Dispatch(dispatch) });
        }
        let run = Run { stored: run, is_running: false, progress_permille: 0 };
        job.runs.insert(lease, run);
        self.jobs.log(now, Some(id), MarketEventKind::Leased { worker, lease, price });
    }

    /// Performs actions that change nothing of the job itself.
    fn perform_without_job(
        &mut self,
        now: Time,
        id: JobId,
        actions: Vec<GangAction>,
        step: &mut SchedulerStep,
    ) {
        for action in actions {
            let (worker, message) = match action {
                GangAction::Advertise { advert, to } => {
                    self.counts.adverts += 1;
                    let bid = advert.roles.iter().map(|role| role.bid).max();
                    let kind = MarketEventKind::Advertised {
                        advert: advert.id,
                        wanted: advert.members(),
                        bid: bid.unwrap_or(Money::ZERO),
                        asked: to.workers.len() as u32,
                        is_gossiped: to.is_gossiped,
                    };
                    self.jobs.log(now, Some(id), kind);
                    for worker in to.workers {
                        let message = ToWorker::Advertise(Arc::clone(&advert));
                        step.send_at_once(Effect::ToWorker { worker, message });
                    }
                    if to.is_gossiped {
                        step.send_at_once(Effect::GossipAdvert(advert));
                    }
                    continue;
                }
                GangAction::CloseAdvert { advert, to } => {
                    for worker in to.workers {
                        let message = ToWorker::CloseAdvert(advert);
                        step.send_at_once(Effect::ToWorker { worker, message });
                    }
                    if to.is_gossiped {
                        step.send_at_once(Effect::GossipAdvertClosed(advert));
                    }
                    continue;
                }
                GangAction::Short(shortfall) => {
                    let missing = shortfall.roles.iter().map(|role| role.missing).sum();
                    let is_over_budget = shortfall.is_over_budget;
                    let kind = MarketEventKind::Short { missing, is_over_budget };
                    self.jobs.log(now, Some(id), kind);
                    continue;
                }
                GangAction::Answered { worker, is_granted } => {
                    self.jobs.record_grant(worker, is_granted);
                    continue;
                }
                GangAction::Accept { worker, offer, role, request, ttl } => {
                    if self.jobs.accepts.len() >= MAX_ACCEPTS_REMEMBERED {
                        self.jobs.accepts.pop_first();
                    }
                    self.jobs.accepts.insert(request);
                    (worker, ToWorker::AcceptOffer { offer, role, request, ttl })
                }
                GangAction::Decline { worker, offer } => (worker, ToWorker::DeclineOffer(offer)),
                GangAction::Renew { worker, lease, epoch, nonce } => {
                    (worker, ToWorker::Heartbeat { lease, epoch, nonce, demand: None })
                }
                GangAction::Release { worker, lease, epoch } => {
                    self.jobs.by_lease.remove(&lease);
                    self.close_account(now, lease, step);
                    self.jobs.log(now, Some(id), MarketEventKind::Released { worker, lease });
                    if self.jobs.releases.len() < MAX_RELEASES {
                        let again_at = now + REPEAT_RELEASE_AFTER;
                        let release = Releasing { worker, epoch, again_at, repeats: 0 };
                        self.jobs.releases.insert(lease, release);
                    }
                    // Only what is recorded as left may be released.
                    step.send(Effect::ToWorker {
                        worker,
                        message: ToWorker::ReleaseLease { lease, epoch },
                    });
                    continue;
                }
                GangAction::Joined(_) | GangAction::Formed(_) | GangAction::Lost { .. } => continue,
            };
            step.send_at_once(Effect::ToWorker { worker, message });
        }
    }
}

impl Jobs {
    /// Whether this is the lease of a member on this worker.
    fn is_member(&self, worker: WorkerId, lease: LeaseId) -> bool {
        self.by_lease.get(&lease).is_some_and(|(_, holder)| *holder == worker)
    }

    fn earliest(&self) -> Option<Time> {
        let releases = self.releases.values().map(|release| release.again_at);
        self.active.values().filter_map(|job| job.gang.wake_at()).chain(releases).min()
    }

    fn advertising(&self, advert: AdvertId) -> Option<JobId> {
        let is_open = |job: &Job| job.gang.has_advert(advert);
        self.active.iter().find(|(_, job)| is_open(job)).map(|(id, _)| *id)
    }

    fn record_grant(&mut self, worker: WorkerId, is_granted: bool) {
        if self.grants.len() >= MAX_GRANT_RECORDS && !self.grants.contains_key(&worker) {
            self.grants.pop_first();
        }
        self.grants.entry(worker).or_default().record(is_granted);
    }

    fn log(&mut self, at: Time, job: Option<JobId>, kind: MarketEventKind) {
        self.sequence += 1;
        if self.events.len() >= MAX_MARKET_EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(MarketEvent { sequence: self.sequence, at, job, kind });
    }
}

/// The dispatch of a member's part of the job.
fn role_dispatch(plan: &JobPlan, run: &StoredRun) -> Option<Arc<Dispatch>> {
    let spec = plan.programs.get(usize::from(run.member.role))?;
    Some(Arc::new(Dispatch {
        lease: run.member.lease,
        epoch: run.member.epoch,
        attempt: run.attempt,
        fence: run.fence,
        timeout: spec.timeout.unwrap_or(DEFAULT_ROLE_TIMEOUT),
        spec: Arc::clone(spec),
        interactive: false,
        resume: None,
    }))
}
