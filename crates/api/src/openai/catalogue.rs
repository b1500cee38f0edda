//! Which models there are: those of the workers that the scheduler knows.
//!
//! The workers are not looked through for every request. What was found is kept for a moment, and whatever
//! would make a difference to the answer is looked up again: a model that is not on the list may have come
//! since.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use hypha_model::{ExecutorClass, Name};
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until};

use crate::parts;
use crate::service::SchedulerApi;

/// How long a model that is on the list is believed to be there. Afterwards a request for a model whose last
/// worker has gone is told so; before, it waits as if the worker would come back.
const SNAPSHOT_TTL: Duration = Duration::from_secs(1);

/// The workers are looked through at most this often, however many ask for models that do not exist: each
/// time, everybody else waits.
const MIN_REFRESH_INTERVAL: Duration = Duration::from_millis(10);

/// The models that are served, kept for a moment.
#[derive(Default)]
pub(super) struct Catalogue {
    snapshot: RwLock<Arc<ModelSnapshot>>,
    /// Held by the one who looks, so that the others wait for what is found instead of looking too.
    refresh_lock: Mutex<()>,
}

#[derive(Default)]
struct ModelSnapshot {
    /// With the second in which each was first seen.
    models: BTreeMap<Name, u64>,
    /// Whether some worker takes any model.
    any: bool,
    /// When the workers were looked through; not yet, if `None`.
    at: Option<Instant>,
}

impl Catalogue {
    /// The model with this name, if a worker serves it.
    pub(super) async fn find(&self, service: &dyn SchedulerApi, model: &str) -> Option<Name> {
        let requested_at = Instant::now();
        let is_current = |known: &ModelSnapshot| {
            known.is_newer_than(requested_at) || known.is_fresh_for(requested_at, model)
        };
        self.snapshot_if(service, is_current).await.find(model)
    }

    /// All models by name, with the second in which each was first seen.
    pub(super) async fn list(&self, service: &dyn SchedulerApi) -> Vec<(Name, u64)> {
        let requested_at = Instant::now();
        let known = self.snapshot_if(service, |known| known.is_newer_than(requested_at)).await;
        known.models.iter().map(|(name, created)| (name.clone(), *created)).collect()
    }

    /// When a model was first seen, if a worker serves it.
    pub(super) async fn find_with_created(
        &self,
        service: &dyn SchedulerApi,
        model: &str,
    ) -> Option<(Name, u64)> {
        let requested_at = Instant::now();
        let known = self.snapshot_if(service, |known| known.is_newer_than(requested_at)).await;
        let name = known.find(model)?;
        // One that is only served by workers that take any is as old as the question.
        let created = known.models.get(model).copied();
        Some((name, created.unwrap_or_else(|| seconds(service))))
    }

    /// What is known if that will do, or else what another look at the workers finds.
    async fn snapshot_if(
        &self,
        service: &dyn SchedulerApi,
        is_acceptable: impl Fn(&ModelSnapshot) -> bool,
    ) -> Arc<ModelSnapshot> {
        let known = self.snapshot();
        if is_acceptable(&known) {
            return known;
        }
        let _refreshing = self.refresh_lock.lock().await;
        let known = self.snapshot();
        if is_acceptable(&known) {
            return known;
        }
        if let Some(at) = known.at {
            sleep_until(at + MIN_REFRESH_INTERVAL).await;
        }
        let known = Arc::new(known.refreshed(service).await);
        *self.snapshot.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&known);
        known
    }

    fn snapshot(&self) -> Arc<ModelSnapshot> {
        Arc::clone(&self.snapshot.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl ModelSnapshot {
    /// Whether nothing that was there when somebody asked is missing.
    fn is_newer_than(&self, requested_at: Instant) -> bool {
        self.at.is_some_and(|at| at >= requested_at)
    }

    fn is_fresh_for(&self, requested_at: Instant, model: &str) -> bool {
        self.at.is_some_and(|at| at + SNAPSHOT_TTL > requested_at) && self.find(model).is_some()
    }

    fn find(&self, model: &str) -> Option<Name> {
        match self.models.get_key_value(model) {
            Some((name, _)) => Some(name.clone()),
            None if self.any => model.parse().ok(),
            None => None,
        }
    }

    async fn refreshed(&self, service: &dyn SchedulerApi) -> ModelSnapshot {
        // Before the look: what comes while it lasts may be missed by it.
        let at = Some(Instant::now());
        let mut found = ModelSnapshot { at, ..ModelSnapshot::default() };
        let now = seconds(service);
        let workers = parts::read_workers(service, |_, view, _| view.worker).await;
        let executors = workers.iter().flat_map(|worker| &worker.executors);
        for executor in executors.filter(|executor| executor.class == ExecutorClass::Inference) {
            found.any |= executor.models.is_empty();
            for model in &executor.models {
                let created = self.models.get(model).copied().unwrap_or(now);
                found.models.insert(model.clone(), created);
            }
        }
        found
    }
}

fn seconds(service: &dyn SchedulerApi) -> u64 {
    service.now().as_millis() / 1_000
}
