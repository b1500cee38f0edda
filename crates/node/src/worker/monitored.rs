//! A server behind an executor, asked again and again whether it is well.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hypha_backends::BackEnd;
use hypha_model::Name;
use tokio::sync::{Notify, mpsc};

use super::host::WorkerInput;

/// How often a server is asked whether it is well.
const HEALTH_CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// How often one is asked that is not: most are back within seconds, and a connection that is refused costs nobody much.
const UNHEALTHY_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// See the head of this file. Cheap to clone.
#[derive(Clone)]
pub(super) struct MonitoredBackEnd {
    pub(super) back_end: BackEnd,
    /// The place of the executor in the worker's list.
    executor: usize,
    name: Name,
    events: mpsc::Sender<WorkerInput>,
    problem: Arc<Mutex<Option<String>>>,
    /// A task did not reach it: look sooner.
    check_soon: Arc<Notify>,
}

impl MonitoredBackEnd {
    /// Watches a server for as long as the runtime lives; when it goes or comes back, `events` hears of it.
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

    /// Why it is not well, if it is not.
    pub(super) fn problem(&self) -> Option<String> {
        self.problem.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A task could not be sent to it. It is not well from now on, until a look finds otherwise.
    pub(super) async fn mark_unreachable(&self, error: &str) {
        self.set_problem(Some(error.to_owned()));
        self.send_health(false).await;
        self.check_soon.notify_one();
    }

    async fn monitor(self) {
        loop {
            let problem = self.back_end.health().await.err().map(|error| error.to_string());
            let well = problem.is_none();
            self.set_problem(problem);
            // Also when it is no news: a task that did not reach it may have said otherwise meanwhile.
            self.send_health(well).await;
            let pause = if well { HEALTH_CHECK_INTERVAL } else { UNHEALTHY_CHECK_INTERVAL };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.check_soon.notified() => tokio::time::sleep(UNHEALTHY_CHECK_INTERVAL).await,
            }
        }
    }

    async fn send_health(&self, well: bool) {
        let _ = self.events.send(WorkerInput::HealthChecked(self.executor, well)).await;
    }

    /// Notes how it is, and logs it when that has changed.
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
