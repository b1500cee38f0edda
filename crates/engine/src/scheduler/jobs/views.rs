//! Views of jobs and of the market.

use hypha_market::GangMember;
use hypha_model::{JobId, LeaseId, Money, Name};

use super::{Job, Scheduler};
use crate::job::{
    AcceptedJob, AdvertView, EndedJob, JobPlan, JobState, JobView, MarketEvent, MemberView,
    RoleView,
};

/// Sums of what a scheduler leases at a price.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MarketFigures {
    /// Jobs that have not ended.
    pub jobs: usize,
    /// Those that wait for workers.
    pub jobs_waiting: usize,
    /// Leases of jobs and of the pool.
    pub leases: usize,
    /// Workers of the pool.
    pub pool_workers: usize,
    /// What an hour of all leases costs.
    pub price: Money,
}

impl Scheduler {
    /// The members of all gangs, with whether their gang is formed.
    pub fn members(&self) -> impl Iterator<Item = (bool, &GangMember)> {
        let jobs = self.jobs.active.values();
        jobs.flat_map(|job| job.gang.members().map(|member| (job.gang.is_formed(), member)))
    }

    /// Whether the gang that this lease is for is formed; `None` if the lease is for no gang.
    pub fn is_formed_with(&self, lease: LeaseId) -> Option<bool> {
        let (job, _) = self.jobs.by_lease.get(&lease)?;
        let job = self.jobs.active.get(job)?;
        job.gang.member(lease).map(|_| job.gang.is_formed())
    }

    /// How many jobs have not ended.
    pub fn open_jobs(&self) -> usize {
        self.jobs.active.len()
    }

    /// The job with this id.
    pub fn job(&self, id: JobId) -> Option<JobView> {
        if let Some(job) = self.jobs.active.get(&id).filter(|job| !job.is_pool) {
            return Some(job.view());
        }
        self.jobs.ended.get(&id).map(|(accepted, ended)| ended_view(accepted, ended))
    }

    /// The jobs, the latest first, at most `most`, before the job `before`.
    pub fn jobs(&self, before: Option<JobId>, most: usize) -> Vec<JobView> {
        let is_before = |id: &&JobId| before.is_none_or(|before| **id < before);
        let users = self.jobs.active.iter().filter(|(_, job)| !job.is_pool);
        let active = users.map(|(id, _)| id).filter(is_before);
        let ended = self.jobs.ended.keys().filter(is_before);
        let mut ids: Vec<JobId> = active.chain(ended).copied().collect();
        ids.sort_unstable_by(|a, b| b.cmp(a));
        ids.into_iter().take(most).filter_map(|id| self.job(id)).collect()
    }

    /// Whose job this is; `None` if there is no such job.
    pub fn job_tenant(&self, id: JobId) -> Option<Option<&Name>> {
        let active = self.jobs.active.get(&id).filter(|job| !job.is_pool);
        let active = active.map(|job| &job.accepted);
        let known = active.or_else(|| self.jobs.ended.get(&id).map(|(accepted, _)| accepted))?;
        Some(known.plan.tenant.as_ref())
    }

    /// The jobs that have not ended, with how many members each has.
    pub fn active_jobs(&self) -> impl Iterator<Item = (JobId, usize)> {
        let jobs = self.jobs.active.iter().filter(|(_, job)| !job.is_pool);
        jobs.map(|(id, job)| (*id, job.gang.members().count()))
    }

    /// The adverts that are open.
    pub fn open_adverts(&self) -> Vec<AdvertView> {
        let open = |(id, job): (&JobId, &Job)| {
            let (advert, offers) = job.gang.open_advert()?;
            let plan = &job.accepted.plan;
            let wanted: u32 = plan.gang.roles.iter().map(|role| role.count).sum();
            let done: u32 = job.done.iter().sum();
            let present = job.gang.members().count() as u32 + done;
            Some(AdvertView {
                id: advert,
                job: (!job.is_pool).then_some(*id),
                wanted: wanted.saturating_sub(present),
                bid: plan.gang.roles.iter().map(|role| role.bid).max().unwrap_or(Money::ZERO),
                offers: offers as u32,
            })
        };
        self.jobs.active.iter().filter_map(open).collect()
    }

    /// The sequence of the last event of the market.
    pub fn market_sequence(&self) -> u64 {
        self.jobs.sequence
    }

    /// How many jobs there are, and what is leased at a price.
    pub fn market_figures(&self) -> MarketFigures {
        let jobs = self.jobs.active.values().filter(|job| !job.is_pool);
        let members = || self.jobs.active.values().flat_map(|job| job.gang.members());
        let (pool_workers, pool_price) = self.pool_figures();
        MarketFigures {
            jobs: jobs.clone().count(),
            jobs_waiting: jobs.filter(|job| !job.gang.is_formed()).count(),
            leases: members().count() + pool_workers,
            pool_workers,
            price: members().fold(pool_price, |sum, member| sum.saturating_add(member.price)),
        }
    }

    /// The last events of the market after `after`, the oldest first, at most `most`.
    pub fn market_events(&self, after: u64, most: usize) -> Vec<MarketEvent> {
        let is_new = |event: &&MarketEvent| event.sequence > after;
        self.jobs.events.iter().filter(is_new).take(most).cloned().collect()
    }
}

impl Job {
    fn view(&self) -> JobView {
        let role_of = |at: u16| self.accepted.plan.gang.roles.get(usize::from(at));
        let member = |member: &hypha_market::GangMember| {
            let run = self.runs.get(&member.lease);
            Some(MemberView {
                role: role_of(member.role)?.name.clone(),
                worker: member.worker,
                lease: member.lease,
                until: member.until(),
                price: member.price,
                portion: member.portion.clone(),
                joined: member.joined,
                is_running: run.is_some_and(|run| run.is_running),
                progress_permille: run.map_or(0, |run| run.progress_permille),
            })
        };
        let state = if self.gang.is_formed() { JobState::Running } else { JobState::Waiting };
        JobView {
            members: self.gang.members().filter_map(member).collect(),
            roles: role_views(&self.accepted.plan, &self.done),
            lost: self.lost,
            shortfall: self.gang.shortfall().cloned(),
            advert: self.gang.open_advert().map(|(advert, _)| advert),
            next_advert: self.gang.advertises_at(),
            ..base_view(&self.accepted, state)
        }
    }
}

fn ended_view(accepted: &AcceptedJob, ended: &EndedJob) -> JobView {
    JobView {
        finished: Some(ended.finished),
        error: ended.error.clone(),
        lost: ended.lost,
        roles: role_views(&accepted.plan, &ended.done),
        ..base_view(accepted, ended.state)
    }
}

fn base_view(accepted: &AcceptedJob, state: JobState) -> JobView {
    JobView {
        id: accepted.id,
        name: accepted.plan.name.clone(),
        tenant: accepted.plan.tenant.clone(),
        state,
        submitted: accepted.submitted,
        finished: None,
        error: None,
        lost: 0,
        roles: role_views(&accepted.plan, &[]),
        members: Vec::new(),
        shortfall: None,
        advert: None,
        next_advert: None,
    }
}

fn role_views(plan: &JobPlan, done: &[u32]) -> Vec<RoleView> {
    let role = |(at, role): (usize, &hypha_market::GangRole)| RoleView {
        name: role.name.clone(),
        count: role.count,
        minimum: role.minimum,
        done: done.get(at).copied().unwrap_or_default(),
        bid: role.bid,
    };
    plan.gang.roles.iter().enumerate().map(role).collect()
}
