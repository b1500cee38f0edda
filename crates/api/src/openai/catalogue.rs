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

use crate::backend::Backend;
use crate::parts;

/// How long a model that is on the list is believed to be there. Afterwards a request for a model whose last
/// worker has gone is told so; before, it waits as if the worker would come back.
const BELIEVED_FOR: Duration = Duration::from_secs(1);

/// The workers are looked through at most this often, however many ask for models that do not exist: each
/// time, everybody else waits.
const LEAST_PAUSE: Duration = Duration::from_millis(10);

/// The models that are served, kept for a moment.
#[derive(Default)]
pub(super) struct Catalogue {
    known: RwLock<Arc<Known>>,
    /// Held by the one who looks, so that the others wait for what is found instead of looking too.
    looking: Mutex<()>,
}

#[derive(Default)]
struct Known {
    /// With the second in which each was first seen.
    models: BTreeMap<Name, u64>,
    /// Whether some worker takes any model.
    any: bool,
    /// When the workers were looked through; not yet, if `None`.
    at: Option<Instant>,
}

impl Catalogue {
    /// The model with this name, if a worker serves it.
    pub(super) async fn find(&self, backend: &dyn Backend, model: &str) -> Option<Name> {
        let asked = Instant::now();
        let believed = |known: &Known| known.is_after(asked) || known.is_believed(asked, model);
        self.known_with(backend, believed).await.find(model)
    }

    /// All models by name, with the second in which each was first seen.
    pub(super) async fn list(&self, backend: &dyn Backend) -> Vec<(Name, u64)> {
        let asked = Instant::now();
        let known = self.known_with(backend, |known| known.is_after(asked)).await;
        known.models.iter().map(|(name, created)| (name.clone(), *created)).collect()
    }

    /// When a model was first seen, if a worker serves it.
    pub(super) async fn created(&self, backend: &dyn Backend, model: &str) -> Option<(Name, u64)> {
        let asked = Instant::now();
        let known = self.known_with(backend, |known| known.is_after(asked)).await;
        let name = known.find(model)?;
        // One that is only served by workers that take any is as old as the question.
        let created = known.models.get(model).copied();
        Some((name, created.unwrap_or_else(|| seconds(backend))))
    }

    /// What is known if that will do, or else what another look at the workers finds.
    async fn known_with(
        &self,
        backend: &dyn Backend,
        will_do: impl Fn(&Known) -> bool,
    ) -> Arc<Known> {
        let known = self.known();
        if will_do(&known) {
            return known;
        }
        let _looking = self.looking.lock().await;
        let known = self.known();
        if will_do(&known) {
            return known;
        }
        if let Some(at) = known.at {
            sleep_until(at + LEAST_PAUSE).await;
        }
        let known = Arc::new(known.looked_again(backend).await);
        *self.known.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&known);
        known
    }

    fn known(&self) -> Arc<Known> {
        Arc::clone(&self.known.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Known {
    /// Whether nothing that was there when somebody asked is missing.
    fn is_after(&self, asked: Instant) -> bool {
        self.at.is_some_and(|at| at >= asked)
    }

    fn is_believed(&self, asked: Instant, model: &str) -> bool {
        self.at.is_some_and(|at| at + BELIEVED_FOR > asked) && self.find(model).is_some()
    }

    fn find(&self, model: &str) -> Option<Name> {
        match self.models.get_key_value(model) {
            Some((name, _)) => Some(name.clone()),
            None if self.any => model.parse().ok(),
            None => None,
        }
    }

    async fn looked_again(&self, backend: &dyn Backend) -> Known {
        // Before the look: what comes while it lasts may be missed by it.
        let at = Some(Instant::now());
        let mut found = Known { at, ..Known::default() };
        let now = seconds(backend);
        let workers = parts::of_workers(backend, |_, view, _| view.worker).await;
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

fn seconds(backend: &dyn Backend) -> u64 {
    backend.now().as_millis() / 1_000
}
