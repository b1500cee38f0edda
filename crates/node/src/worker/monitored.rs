//! The back end of an executor, with health checks at intervals.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hypha_backends::BackEnd;
use hypha_model::Name;
use tokio::sync::{Notify, mpsc};

use super::host::WorkerInput;

/// How often a healthy back end is checked.
const HEALTH_CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// How often an unhealthy back end is checked: most are back within seconds, and a refused connection costs little.
const UNHEALTHY_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// See the module documentation. Cheap to clone.
#[derive(Clone)]
pub(super) struct MonitoredBackEnd {
    pub(super) back_end: BackEnd,
    /// The index of the executor in the worker's list.
    executor: usize,
    name: Name,
    events: mpsc::Sender<WorkerInput>,
    problem: Arc<Mutex<Option<String>>>,
    /// A call did not reach it: check its health sooner.
    check_soon: Arc<Notify>,
}

impl MonitoredBackEnd {
    /// Checks a back end for as long as the runtime lives, and sends the results to `events`.
    pub(super) fn start(
        back_end: BackEnd,
        executor: usize,
        name: Name,
        events: &mpsc::Sender<WorkerInput>,
    ) -> MonitoredBackEnd {
        let (events, problem, check_soon) = (events.clone(), Arc::default(), Arc::default());
        let monitored = MonitoredBackEnd { back_end, executor, name, events, problem, check_soon };
        tokio::spawn(monitored.clone().monitor());
        monitored
    }

    /// Why it is unavailable, if it is.
    pub(super) fn problem(&self) -> Option<String> {
        self.problem.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A call did not reach it: it is unavailable until a health check passes.
    pub(super) async fn mark_unreachable(&self, error: &str) {
        self.set_problem(Some(error.to_owned()));
        self.send_health(false).await;
        self.check_soon.notify_one();
    }

    async fn monitor(self) {
        loop {
            let problem = self.back_end.health().await.err().map(|error| error.to_string());
            let is_healthy = problem.is_none();
            self.set_problem(problem);
            // Also if nothing has changed: a call that did not reach it may have reported otherwise meanwhile.
            self.send_health(is_healthy).await;
            let interval =
                if is_healthy { HEALTH_CHECK_INTERVAL } else { UNHEALTHY_CHECK_INTERVAL };
            tokio::select! {
                () = tokio::time::sleep(interval) => {}
                () = self.check_soon.notified() => tokio::time::sleep(UNHEALTHY_CHECK_INTERVAL).await,
            }
        }
    }

    async fn send_health(&self, is_healthy: bool) {
        let _ = self.events.send(WorkerInput::HealthChecked(self.executor, is_healthy)).await;
    }

    /// Records whether it is available, and logs changes.
    fn set_problem(&self, problem: Option<String>) {
        let before = {
            let mut known = self.problem.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *known, problem.clone())
        };
        let executor = &self.name;
        match (before, &problem) {
            (None, Some(problem)) => {
                tracing::warn!(%executor, "the back end is unavailable and gets no tasks: {problem}");
            }
            (Some(_), None) => tracing::info!(%executor, "the back end is healthy again"),
            _ => {}
        }
    }
}
