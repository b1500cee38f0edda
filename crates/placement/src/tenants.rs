//! The tenants: what the tasks of each hold of the pool, and which tenant's turn it is.
//!
//! The share of a tenant is its dominant share: of all resources, the one of which its dispatched tasks hold the
//! largest part, divided by its weight. It changes when a task is dispatched or ends, and only that tenant's: each
//! tenant has queues of its own (`waiting.rs`), so no task moves in a queue because a share has changed.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use hypha_model::{Name, Requirement, TaskSpec, Time};
use serde::Serialize;

use crate::deadlines::MAX_CONSECUTIVE_URGENT;
use crate::member::Member;
use crate::order::UNREACHABLE_RANK;
use crate::strategy::Order;
use crate::turns::TurnRules;
use crate::waiting::{Lane, QueuePosition};
use crate::{Placement, PlacementMutant, Stage, TaskRef, WorkerSlot};

/// This many starts in a row may go to a tenant because its first task has a higher priority than those of tenants
/// with smaller shares; the next goes by share alone. So each tenant begins tasks, whatever priorities others use.
pub const MAX_CONSECUTIVE_BY_PRIORITY: u32 = 4;

/// The resources that a share is counted in.
const RESOURCES: usize = 5;

/// Slots, thousandths of cores, bytes of memory and of disk, thousandths of GPUs.
/// Wide: what tasks require, and what workers state, may be more in all than a worker can have.
pub(crate) type Holdings = [u128; RESOURCES];

/// The number of a tenant; reused when the tenant has no tasks left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TenantId(pub(crate) u32);

impl TenantId {
    /// Tasks without a tenant share as if they were those of one.
    const NONE: TenantId = TenantId(0);
}

/// See the module documentation.
#[derive(Clone, Debug)]
pub(crate) struct Tenants {
    known: Vec<Tenant>,
    by_name: BTreeMap<Name, TenantId>,
    free: Vec<u32>,
    /// What the available workers offer.
    offered: Holdings,
    /// How many tasks were dispatched in a row because of their priority, against the order by share.
    consecutive_by_priority: u32,
}

#[derive(Clone, Debug)]
struct Tenant {
    name: Option<Name>,
    weight: f64,
    held: Holdings,
    /// Tasks that have not ended.
    open: u32,
    /// Tasks that were dispatched and have not ended.
    dispatched: u32,
    /// How many urgent tasks were dispatched in a row while others waited.
    consecutive_urgent: u32,
}

/// A tenant, for display and for programs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TenantView {
    /// Its name; `None` stands for all tasks without a tenant.
    pub tenant: Option<Name>,
    /// How much it may have, relative to the others.
    pub weight: f64,
    /// The largest part that its tasks hold of any resource of the pool, from 0 to 1.
    pub dominant_share: f64,
    /// Its tasks that were dispatched to workers and have not ended.
    pub running: u32,
    /// Its other tasks.
    pub queued: u32,
}

/// What decides between the first tasks of two tenants.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    priority: f64,
    weighted_share: f64,
    deadline: Time,
    position: QueuePosition,
}

impl Turn {
    /// The order between tenants: priority, share, deadline, and the strategy's own.
    pub(crate) fn cmp(&self, other: &Turn, ignores_priority: bool) -> Ordering {
        let by_priority = match ignores_priority {
            true => Ordering::Equal,
            false => other.priority.total_cmp(&self.priority),
        };
        by_priority
            .then(self.weighted_share.total_cmp(&other.weighted_share))
            .then(self.deadline.cmp(&other.deadline))
            .then(self.position.cmp(&other.position))
    }
}

impl Default for Tenants {
    fn default() -> Tenants {
        let none = Tenant::new(None);
        Tenants {
            known: vec![none],
            by_name: BTreeMap::new(),
            free: Vec::new(),
            offered: [0; RESOURCES],
            consecutive_by_priority: 0,
        }
    }
}

impl Tenant {
    fn new(name: Option<Name>) -> Tenant {
        Tenant {
            name,
            weight: 1.0,
            held: [0; RESOURCES],
            open: 0,
            dispatched: 0,
            consecutive_urgent: 0,
        }
    }
}

impl Tenants {
    /// A task of the tenant has arrived.
    pub(crate) fn arrived(&mut self, name: Option<&Name>) {
        let id = match name {
            None => TenantId::NONE,
            Some(name) => self.id_of(name),
        };
        self.known[id.0 as usize].open += 1;
    }

    /// The tenant of a task that has not ended.
    pub(crate) fn of(&self, spec: &TaskSpec) -> TenantId {
        let id = spec.tenant.as_ref().and_then(|name| self.by_name.get(name));
        id.copied().unwrap_or(TenantId::NONE)
    }

    fn id_of(&mut self, name: &Name) -> TenantId {
        if let Some(id) = self.by_name.get(name) {
            return *id;
        }
        let tenant = Tenant::new(Some(name.clone()));
        let id = match self.free.pop() {
            Some(id) => {
                self.known[id as usize] = tenant;
                TenantId(id)
            }
            None => {
                self.known.push(tenant);
                TenantId(self.known.len() as u32 - 1)
            }
        };
        self.by_name.insert(name.clone(), id);
        id
    }

    /// A task of the tenant is gone.
    pub(crate) fn left(&mut self, spec: &TaskSpec) {
        let id = self.of(spec);
        let tenant = &mut self.known[id.0 as usize];
        tenant.open -= 1;
        if tenant.open == 0
            && let Some(name) = tenant.name.take()
        {
            self.by_name.remove(&name);
            self.free.push(id.0);
        }
    }

    pub(crate) fn dispatched(&mut self, spec: &TaskSpec) {
        let id = self.of(spec);
        let tenant = &mut self.known[id.0 as usize];
        tenant.dispatched += 1;
        for (held, more) in tenant.held.iter_mut().zip(holdings_of(&spec.requirement)) {
            *held += more;
        }
    }

    pub(crate) fn returned(&mut self, spec: &TaskSpec) {
        let id = self.of(spec);
        let tenant = &mut self.known[id.0 as usize];
        tenant.dispatched -= 1;
        for (held, less) in tenant.held.iter_mut().zip(holdings_of(&spec.requirement)) {
            *held -= less;
        }
    }

    /// What a worker offers has changed.
    pub(crate) fn offer_changed(&mut self, before: Holdings, after: Holdings) {
        for ((total, before), after) in self.offered.iter_mut().zip(before).zip(after) {
            *total = *total - before + after;
        }
    }

    /// The largest part that the tasks of a tenant hold of any resource.
    fn dominant_share(&self, id: TenantId) -> f64 {
        let held = self.known[id.0 as usize].held;
        let parts = held.iter().zip(self.offered).filter(|(_, offered)| *offered > 0);
        parts.map(|(held, offered)| *held as f64 / offered as f64).fold(0.0, f64::max)
    }

    pub(crate) fn weighted_share(&self, id: TenantId) -> f64 {
        self.dominant_share(id) / self.known[id.0 as usize].weight
    }

    /// Whether the next start goes by share alone.
    pub(crate) fn ignores_priority(&self) -> bool {
        self.consecutive_by_priority >= MAX_CONSECUTIVE_BY_PRIORITY
    }

    /// A task was dispatched, perhaps only because of its priority.
    pub(crate) fn count_start(&mut self, by_priority: bool) {
        self.consecutive_by_priority =
            if by_priority { self.consecutive_by_priority.saturating_add(1) } else { 0 };
    }

    fn view(&self, id: TenantId) -> TenantView {
        let tenant = &self.known[id.0 as usize];
        TenantView {
            tenant: tenant.name.clone(),
            weight: tenant.weight,
            dominant_share: self.dominant_share(id),
            running: tenant.dispatched,
            queued: tenant.open - tenant.dispatched,
        }
    }
}

fn holdings_of(requirement: &Requirement) -> Holdings {
    let milli_gpu = u64::from(requirement.min_gpus) * u64::from(requirement.milli_gpu);
    let Requirement { cpu_milli, memory_bytes, storage_bytes, .. } = *requirement;
    [1, cpu_milli, memory_bytes, storage_bytes, milli_gpu].map(u128::from)
}

impl Member {
    /// What it offers while it is available.
    pub(crate) fn offer(&self) -> Holdings {
        if !self.is_available() {
            return [0; RESOURCES];
        }
        let capacity = &self.worker.capacity;
        let milli_gpu: u64 =
            capacity.devices.iter().map(|device| u64::from(device.milli_gpu)).sum();
        let slots = u64::from(self.slots());
        [slots, capacity.cpu_milli, capacity.memory_bytes, capacity.storage_bytes, milli_gpu]
            .map(u128::from)
    }
}

impl Placement {
    /// What a worker offers may have changed.
    pub(crate) fn recount_offer(&mut self, slot: WorkerSlot) {
        let tenants = &mut self.tenants;
        self.pool.change_unindexed(slot, |member| {
            let after = member.offer();
            let before = std::mem::replace(&mut member.counted_offer, after);
            tenants.offer_changed(before, member.counted_offer);
        });
    }

    /// A task of the lane was dispatched: counts the urgent ones in a row while others of the tenant wait.
    pub(crate) fn count_urgent(&mut self, (tenant, lane): (TenantId, Lane)) {
        let others_wait = || self.waiting.has_heads(tenant, lane.with_urgency(false));
        let goes_before_others = lane.is_urgent() && others_wait();
        let counted = &mut self.tenants.known[tenant.0 as usize].consecutive_urgent;
        *counted = match goes_before_others {
            true => counted.saturating_add(1),
            false => 0,
        };
    }

    fn priority_of(&self, task: TaskRef) -> f64 {
        let entry = self.tasks.get(task.0 as usize);
        match (self.recipe.order, entry) {
            (Order::Priority | Order::Predicted { .. }, Some(entry)) => {
                entry.request.spec.requirement.priority.as_f64()
            }
            // In the order of arrival, all priorities are equal.
            _ => 0.0,
        }
    }
}

impl TurnRules for Placement {
    fn turn(&self, tenant: TenantId, position: QueuePosition, task: TaskRef) -> Turn {
        // A task that cannot be in time goes behind those of other tenants that can.
        let (priority, deadline) = match position.rank {
            UNREACHABLE_RANK => (f64::NEG_INFINITY, None),
            _ => {
                let entry = self.tasks.get(task.0 as usize);
                (self.priority_of(task), entry.and_then(|entry| entry.deadline()))
            }
        };
        let weighted_share = match self.is(PlacementMutant::UnfairShares) {
            true => 0.0,
            false => self.tenants.weighted_share(tenant),
        };
        Turn { priority, weighted_share, deadline: deadline.unwrap_or(Time::MAX), position }
    }

    fn ignores_priority(&self) -> bool {
        self.tenants.ignores_priority()
    }

    fn urgent_goes_first(&self, tenant: TenantId, urgent: TaskRef, other: TaskRef) -> bool {
        let counted = self.tenants.known[tenant.0 as usize].consecutive_urgent;
        counted < MAX_CONSECUTIVE_URGENT && self.priority_of(urgent) >= self.priority_of(other)
    }
}

impl Placement {
    /// Sets how much a tenant may have, relative to the others. It is kept while the tenant has tasks; a number that is
    /// not positive is ignored.
    pub fn set_weight(&mut self, tenant: &Name, weight: f64) {
        if let Some(id) = self.tenants.by_name.get(tenant)
            && weight > 0.0
            && weight.is_finite()
        {
            self.tenants.known[id.0 as usize].weight = weight;
        }
    }

    /// The tenants that have tasks, in the order of their names.
    pub fn tenants(&self) -> Vec<TenantView> {
        let has_tasks = |id: &TenantId| self.tenants.known[id.0 as usize].open > 0;
        let named = self.tenants.by_name.values().copied();
        std::iter::once(TenantId::NONE)
            .chain(named)
            .filter(has_tasks)
            .map(|id| self.tenants.view(id))
            .collect()
    }

    /// The tenant of a task.
    pub fn tenant_of(&self, task: TaskRef) -> Option<TenantView> {
        let entry = self.tasks.get(task.0 as usize)?;
        Some(self.tenants.view(self.tenants.of(&entry.request.spec)))
    }

    /// A tenant whose holdings are not those of its tasks.
    pub(crate) fn wrong_tenant(&self) -> Option<String> {
        let mut counted = vec![([0; RESOURCES], 0, 0); self.tenants.known.len()];
        for task in self.tasks.iter() {
            let (held, open, dispatched) =
                &mut counted[self.tenants.of(&task.request.spec).0 as usize];
            *open += 1;
            if let Stage::Dispatched(_) = task.stage {
                *dispatched += 1;
                let holdings = holdings_of(&task.request.spec.requirement);
                held.iter_mut().zip(holdings).for_each(|(held, more)| *held += more);
            }
        }
        let mut offered = [0; RESOURCES];
        for member in self.pool.live().iter().filter_map(|slot| self.pool.member(*slot)) {
            offered.iter_mut().zip(member.offer()).for_each(|(sum, more)| *sum += more);
        }
        if offered != self.tenants.offered {
            let known = self.tenants.offered;
            return Some(format!("the workers offer {offered:?}, and {known:?} is counted"));
        }
        let differs = |(tenant, counted): &(&Tenant, &(Holdings, u32, u32))| {
            (tenant.held, tenant.open, tenant.dispatched) != **counted
        };
        let (tenant, counted) = self.tenants.known.iter().zip(&counted).find(differs)?;
        Some(format!("{tenant:?} holds {counted:?}"))
    }
}
