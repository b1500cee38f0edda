//! How many open tasks each tenant with a quota has.
//!
//! The scheduler's machine does not count by tenant, so the ids of what was accepted are kept here, and those
//! that have ended are only looked for when a quota is used up.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hypha_model::{Name, TaskId};

use crate::backend::Backend;
use crate::caller::Caller;
use crate::error::Error;

/// Looking for tasks that have ended holds the machine up: for one tenant not more often than this.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// When a tenant over its quota should try again, in seconds.
const RETRY_AFTER_S: u32 = 1;

/// See the head of this file.
#[derive(Default)]
pub(crate) struct Quotas(Mutex<BTreeMap<Name, Tenant>>);

#[derive(Default)]
struct Tenant {
    open: HashSet<TaskId>,
    /// Places of requests that are under way.
    reserved: usize,
    looked: Option<Instant>,
}

/// Room for some tasks under a tenant's quota; what is not used is given back when it is dropped.
pub(crate) struct Room<'a> {
    /// None if the caller has no quota.
    quotas: Option<(&'a Quotas, Name)>,
    left: usize,
}

impl Quotas {
    /// Room for `count` tasks of `caller`, or 429.
    pub(crate) fn room(
        &self,
        caller: &Caller,
        count: usize,
        backend: &dyn Backend,
    ) -> Result<Room<'_>, Error> {
        let (Some(tenant), Some(quota)) = (&caller.tenant, caller.quota) else {
            return Ok(Room { quotas: None, left: count });
        };
        let mut tenants = self.lock();
        let entry = tenants.entry(tenant.clone()).or_default();
        if entry.taken() + count > quota as usize {
            entry.forget_ended(backend);
        }
        if entry.taken() + count > quota as usize {
            let taken = entry.taken();
            return Err(Error::too_many(
                format!(
                    "tenant `{tenant}` has {taken} open tasks and may have {quota}: \
                     {count} more do not fit; wait for some to end"
                ),
                RETRY_AFTER_S,
            ));
        }
        entry.reserved += count;
        Ok(Room { quotas: Some((self, tenant.clone())), left: count })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Name, Tenant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tenant {
    fn taken(&self) -> usize {
        self.open.len() + self.reserved
    }

    fn forget_ended(&mut self, backend: &dyn Backend) {
        if self.looked.is_some_and(|looked| looked.elapsed() < LOOK_EVERY) {
            return;
        }
        self.looked = Some(Instant::now());
        backend.read(&mut |scheduler, now| {
            self.open.retain(|task| scheduler.task_view(*task, now).is_some());
        });
    }
}

impl Room<'_> {
    /// A task was accepted: it takes one of the places until it ends.
    pub(crate) fn take(&mut self, task: TaskId) {
        let Some((quotas, tenant)) = &self.quotas else { return };
        let Some(left) = self.left.checked_sub(1) else { return };
        self.left = left;
        if let Some(entry) = quotas.lock().get_mut(tenant) {
            entry.reserved = entry.reserved.saturating_sub(1);
            entry.open.insert(task);
        }
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        if let Some((quotas, tenant)) = &self.quotas
            && self.left > 0
            && let Some(entry) = quotas.lock().get_mut(tenant)
        {
            entry.reserved = entry.reserved.saturating_sub(self.left);
        }
    }
}
