//! The pool: workers that are leased at a price for tasks. It grows by adverts while tasks are predicted to wait for too
//! long, and shrinks when workers idle. Workers that were registered are used beside it.

use std::collections::BTreeMap;
use std::sync::Arc;

use hypha_market::{
    Demand, GangMember, GangRole, GangSpec, HeldLease, PoolSettings, PoolSize, StoredMember,
};
use hypha_model::{
    ExecutorClass, JobId, Maximise, Money, Name, Priority, Requirement, Span, Time, WorkerId,
};
use serde::Serialize;

use super::{Effect, Scheduler, SchedulerStep};
use crate::job::{JobPlan, JobRecord};
use crate::message::ToWorker;
use crate::record::Record;

/// How often the pool is looked at.
const CHECK_INTERVAL: Span = Span::from_millis(500);
/// Kinds of tasks for which the pool grows at the same time.
const MAX_GROWING: usize = 16;

/// The pool of a scheduler.
#[derive(Default)]
pub(super) struct Pool {
    members: BTreeMap<WorkerId, PoolMember>,
    /// The adverts for more workers, by the kind of task that they are for.
    growing: BTreeMap<TaskKind, JobId>,
    check_at: Option<Time>,
}

/// The tasks that one kind of executor runs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct TaskKind {
    /// The class of the executor.
    pub class: ExecutorClass,
    /// Its name, if the tasks name one.
    pub executor: Option<Name>,
    /// The model, if the tasks name one.
    pub model: Option<Name>,
}

struct PoolMember {
    stored: StoredMember,
    idle_since: Option<Time>,
}

/// A view of the pool for one kind of task.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PoolView {
    /// The kind of task; `None` for what is kept without tasks.
    pub kind: Option<TaskKind>,
    /// Workers of the pool that could run it.
    pub workers: Vec<WorkerId>,
    /// What an hour of them costs.
    pub price: Money,
    /// Tasks that wait.
    pub waiting: u64,
    /// How long the last of them is predicted to wait; `None` if no worker of the pool could run them.
    pub predicted_wait: Option<Span>,
    /// Whether more workers are being leased.
    pub is_growing: bool,
}

impl TaskKind {
    fn of(requirement: &Requirement) -> TaskKind {
        TaskKind {
            class: requirement.class,
            executor: requirement.executor.clone(),
            model: requirement.model.clone(),
        }
    }
}

impl Scheduler {
    /// Whether a worker is leased only through the pool.
    pub(super) fn is_pooled(&self, worker: WorkerId) -> bool {
        self.settings.pool.is_some() && !self.registered.contains(&worker)
    }

    /// Continues with the members of earlier incarnations: their leases are renewed at once.
    pub(super) fn recover_pool(&mut self, now: Time, members: Vec<StoredMember>) {
        if self.settings.pool.is_none() {
            return;
        }
        for stored in members {
            let worker = stored.worker;
            if let Some((slot, state)) = self.state_of(worker) {
                state.lease = held(&stored, now, now, now);
                self.placement.set_price(slot, Some(stored.price), now);
                self.arm_worker(slot);
            }
            self.pool.members.insert(worker, PoolMember { stored, idle_since: None });
        }
        self.pool.check_at = Some(now);
    }

    pub(super) fn pool_wake_at(&self) -> Option<Time> {
        self.pool.check_at
    }

    /// Grows and shrinks the pool, if it is time to look.
    pub(super) fn wake_pool(&mut self, now: Time, step: &mut SchedulerStep) {
        let Some(settings) = self.settings.pool.clone() else { return };
        if self.pool.check_at.is_some_and(|at| at > now) {
            return;
        }
        self.pool.check_at = Some(now + CHECK_INTERVAL);
        self.shrink_pool(now, &settings, step);
        let demands = self.demands(now);
        // Adverts for tasks that no longer wait are withdrawn.
        let over: Vec<(TaskKind, JobId)> = self
            .pool
            .growing
            .iter()
            .filter(|(kind, _)| !demands.contains_key(kind))
            .map(|(kind, job)| (kind.clone(), *job))
            .collect();
        for (kind, job) in over {
            if self.pool_size().workers >= settings.min_workers {
                self.pool.growing.remove(&kind);
                self.withdraw_gang(now, job, step);
            }
        }
        for (kind, (requirement, demand)) in demands {
            let wanted = settings.growth(self.pool_size(), &demand);
            if wanted > 0 {
                self.grow_pool(now, &settings, kind, requirement, wanted, step);
            }
        }
        let size = self.pool_size();
        let lacking = settings.min_workers.saturating_sub(size.workers).min(settings.room(size));
        if lacking > 0 {
            let requirement = Requirement::default();
            let kind = TaskKind::of(&requirement);
            self.grow_pool(now, &settings, kind, requirement, lacking, step);
        }
    }

    /// For each kind of task that waits, the requirement of the first, and how much waits.
    fn demands(&self, now: Time) -> BTreeMap<TaskKind, (Requirement, Demand)> {
        let mut demands: BTreeMap<TaskKind, (Requirement, Demand)> = BTreeMap::new();
        for shape in self.placement.waiting_shapes() {
            let kind = TaskKind::of(shape.requirement);
            if !demands.contains_key(&kind) && demands.len() >= MAX_GROWING {
                continue;
            }
            let entry = demands.entry(kind).or_insert_with(|| {
                let (slots, workers) = self.pool_slots(shape.requirement);
                let demand = Demand { slots, workers, ..Demand::default() };
                (shape.requirement.clone(), demand)
            });
            let demand = &mut entry.1;
            // The mean of the run times, weighted by how many wait.
            let all = demand.tasks + shape.tasks;
            let sum = demand.run.as_secs_f64() * demand.tasks as f64
                + shape.run.as_secs_f64() * shape.tasks as f64;
            demand.waited = demand.waited.max(now.since(shape.submitted));
            (demand.tasks, demand.run) = (all, Span::from_secs_f64(sum / all.max(1) as f64));
        }
        demands
    }

    /// How many tasks with this requirement the leased workers could run at once, and how many workers those are.
    fn pool_slots(&self, requirement: &Requirement) -> (u64, u32) {
        let (mut slots, mut workers) = (0, 0);
        for state in self.workers.iter().flatten().filter(|state| state.lease().is_some()) {
            let portion = state.portion.as_ref();
            let fits = requirement.satisfied_by(&state.worker).is_ok()
                && portion
                    .is_none_or(|part| part.refusal_for(&state.worker, requirement).is_none());
            if fits {
                let of = |at: usize| match portion {
                    Some(portion) => portion.slots.get(at).copied().unwrap_or(0),
                    None => state.worker.executors.get(at).map_or(0, |it| it.concurrency),
                };
                slots += requirement
                    .executors_of(&state.worker)
                    .map(|at| u64::from(of(at)))
                    .sum::<u64>();
                workers += 1;
            }
        }
        (slots, workers)
    }

    fn pool_size(&self) -> PoolSize {
        let members = self.pool.members.values();
        let paid = members.fold(Money::ZERO, |sum, it| sum.saturating_add(it.stored.price));
        let coming: u32 = self.pool.growing.values().map(|job| self.gang_wanted(*job)).sum();
        let bid = self.settings.pool.as_ref().map_or(Money::ZERO, |pool| pool.bid);
        PoolSize {
            workers: self.pool.members.len() as u32 + coming,
            paid: paid.saturating_add(bid.times(coming.into())),
        }
    }

    fn grow_pool(
        &mut self,
        now: Time,
        settings: &PoolSettings,
        kind: TaskKind,
        requirement: Requirement,
        wanted: u32,
        step: &mut SchedulerStep,
    ) {
        if self.pool.growing.contains_key(&kind) || self.pool.growing.len() >= MAX_GROWING {
            return;
        }
        let paid = self.pool_size().paid;
        let role = GangRole {
            name: Name::literal("pool"),
            requirement: Arc::new(requirement),
            count: wanted,
            minimum: 1,
            wants_all: true,
            bid: settings.bid,
            max: settings.max,
        };
        let gang = GangSpec {
            roles: vec![role],
            priority: Priority::default(),
            is_preemptible: false,
            maximise: Maximise::Balance,
            budget: settings.budget.map(|budget| budget.saturating_sub(paid)),
            window: settings.window,
            lease_ttl: self.settings.lease_ttl,
        };
        let plan = JobPlan { name: None, tenant: None, gang: Arc::new(gang), programs: Vec::new() };
        let job = self.start_pool_gang(now, Arc::new(plan), step);
        self.pool.growing.insert(kind, job);
    }

    /// The gang of an advert of the pool was formed: its members join the pool.
    pub(super) fn adopt_members(
        &mut self,
        now: Time,
        job: JobId,
        members: Vec<GangMember>,
        step: &mut SchedulerStep,
    ) {
        self.pool.growing.retain(|_, growing| *growing != job);
        for member in members {
            let stored = member.stored().clone();
            let worker = stored.worker;
            let is_new = !self.pool.members.contains_key(&worker);
            let next = now + self.settings.renewal_interval(stored.ttl, true);
            let Some((slot, state)) = self.state_of(worker).filter(|_| is_new) else {
                // It was removed meanwhile, or has a lease already.
                self.close_account(now, stored.lease, step);
                let message = ToWorker::ReleaseLease { lease: stored.lease, epoch: stored.epoch };
                step.send(Effect::ToWorker { worker, message });
                continue;
            };
            state.lost = None;
            state.lease = held(&stored, member.until(), next, now);
            let record = JobRecord::PoolJoined(Box::new(stored.clone()));
            step.persist(Record::Job(record));
            let (portion, price) = (Some(stored.portion.clone()), stored.price);
            self.pool.members.insert(worker, PoolMember { stored, idle_since: None });
            self.set_portion(now, slot, portion, step);
            self.placement.set_price(slot, Some(price), now);
            self.update_availability(now, slot);
            self.arm_worker(slot);
            step.send(Effect::WorkerLeased(worker));
        }
        self.plan_wanted = true;
    }

    /// A worker's lease is gone: it is no longer in the pool.
    pub(super) fn left_pool(&mut self, now: Time, worker: WorkerId, step: &mut SchedulerStep) {
        if let Some(member) = self.pool.members.remove(&worker) {
            self.close_account(now, member.stored.lease, step);
            step.persist(Record::Job(JobRecord::PoolLeft(worker)));
            if let Some(slot) = self.slot_of.get(&worker).copied() {
                self.placement.set_price(slot, None, now);
            }
        }
    }

    fn shrink_pool(&mut self, now: Time, settings: &PoolSettings, step: &mut SchedulerStep) {
        let workers: Vec<WorkerId> = self.pool.members.keys().copied().collect();
        for worker in workers {
            let slot = self.slot_of.get(&worker).copied();
            let is_idle = slot.is_none_or(|slot| self.placement.is_idle(slot));
            let size = self.pool_size();
            let Some(member) = self.pool.members.get_mut(&worker) else { continue };
            member.idle_since = is_idle.then(|| member.idle_since.unwrap_or(now));
            if member.idle_since.is_some_and(|since| settings.releases(now, size, since)) {
                let (lease, epoch) = (member.stored.lease, member.stored.epoch);
                self.left_pool(now, worker, step);
                if let Some((slot, state)) = self.state_of(worker) {
                    state.lease = HeldLease::request_at(now, Time::MAX);
                    self.update_availability(now, slot);
                    self.arm_worker(slot);
                }
                let message = ToWorker::ReleaseLease { lease, epoch };
                step.send(Effect::ToWorker { worker, message });
            }
        }
    }

    /// How many workers the pool has, and what an hour of them costs.
    pub(super) fn pool_figures(&self) -> (usize, Money) {
        let members = self.pool.members.values();
        let price = members.fold(Money::ZERO, |sum, it| sum.saturating_add(it.stored.price));
        (self.pool.members.len(), price)
    }

    /// The pool, for each kind of task that waits, and as a whole.
    pub fn pools(&self, now: Time) -> Vec<PoolView> {
        if self.settings.pool.is_none() {
            return Vec::new();
        }
        let of = |could: &dyn Fn(WorkerId) -> bool| {
            let members = self.pool.members.iter().filter(|(worker, _)| could(**worker));
            let (mut workers, mut price) = (Vec::new(), Money::ZERO);
            for (worker, member) in members {
                workers.push(*worker);
                price = price.saturating_add(member.stored.price);
            }
            (workers, price)
        };
        let (workers, price) = of(&|_| true);
        let mut views = vec![PoolView {
            kind: None,
            workers,
            price,
            waiting: 0,
            predicted_wait: None,
            is_growing: !self.pool.growing.is_empty(),
        }];
        for (kind, (requirement, demand)) in self.demands(now) {
            let could = |worker| {
                let slot = self.slot_of.get(&worker).copied();
                let state = slot.and_then(|slot| self.workers.get(slot.0 as usize)?.as_ref());
                state.is_some_and(|state| requirement.satisfied_by(&state.worker).is_ok())
            };
            let (workers, price) = of(&could);
            views.push(PoolView {
                is_growing: self.pool.growing.contains_key(&kind),
                kind: Some(kind),
                workers,
                price,
                waiting: demand.tasks,
                predicted_wait: demand.wait(),
            });
        }
        views
    }
}

fn held(stored: &StoredMember, until: Time, next: Time, now: Time) -> HeldLease {
    let recovered = now + stored.ttl.mul_f64(hypha_market::HOLDER_SHARE);
    HeldLease::Held {
        lease: stored.lease,
        epoch: stored.epoch,
        ttl: stored.ttl,
        // After a restart it is not known when the lease was last renewed; its worker knows.
        until: if until == now { recovered } else { until },
        unanswered: None,
        missed: 0,
        next,
    }
}
