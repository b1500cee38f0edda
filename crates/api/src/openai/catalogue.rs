//! The models that are served: those of the workers that the scheduler knows.
//!
//! Not every request scans the workers. The result of a scan is cached for a moment; a request for a model that is not
//! in it scans again, since a worker may have joined.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use hypha_model::{ExecutorClass, Name};
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until};

use crate::parts;
use crate::service::SchedulerApi;

/// How long a cached model is taken to be served. After that, a request for a model whose last worker has left is
/// refused; before, it waits as if the worker would return.
const SNAPSHOT_TTL: Duration = Duration::from_secs(1);

/// The minimum time between two scans, however many requests name models that do not exist: each scan delays all other
/// requests.
const MIN_REFRESH_INTERVAL: Duration = Duration::from_millis(10);

/// The cache of models that are served.
#[derive(Default)]
pub(super) struct Catalogue {
    snapshot: RwLock<Arc<ModelSnapshot>>,
    /// Held during a scan, so that concurrent requests wait for its result instead of scanning too.
    refresh_lock: Mutex<()>,
}

#[derive(Default)]
struct ModelSnapshot {
    /// Each with the second in which it was first seen.
    models: BTreeMap<Name, u64>,
    /// Whether some worker accepts any model.
    any: bool,
    /// When the workers were scanned; `None` if they were not yet.
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
        // A model that only workers for any model serve is as old as the request.
        let created = known.models.get(model).copied();
        Some((name, created.unwrap_or_else(|| seconds(service))))
    }

    /// The cached snapshot if it is acceptable, otherwise a new one.
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
    /// Whether it includes every model that was served at the time of the request.
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
        // Taken before the scan, which may miss workers that join while it runs.
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
