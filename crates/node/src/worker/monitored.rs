//! The back end of an executor, with health checks at intervals.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hypha_backends::BackEnd;
use hypha_engine::back_end::{BackEndHealth, HealthCheck};
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
    health: Arc<Mutex<BackEndHealth>>,
    in_flight: Arc<AtomicUsize>,
    /// A call did not reach it, or got an error from it: check its health sooner.
    check_soon: Arc<Notify>,
}

/// A call that is in flight.
pub(super) struct CallInFlight<'a>(&'a AtomicUsize);

impl Drop for CallInFlight<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl MonitoredBackEnd {
    /// Checks a back end for as long as the runtime lives, and sends the results to `events`.
    pub(super) fn start(
        back_end: BackEnd,
        executor: usize,
        name: Name,
        events: &mpsc::Sender<WorkerInput>,
    ) -> MonitoredBackEnd {
        let monitored = MonitoredBackEnd {
            back_end,
            executor,
            name,
            events: events.clone(),
            health: Arc::default(),
            in_flight: Arc::default(),
            check_soon: Arc::default(),
        };
        tokio::spawn(monitored.clone().monitor());
        monitored
    }

    /// Why it is unavailable, if it is.
    pub(super) fn problem(&self) -> Option<String> {
        self.update_health(|health| health.problem().map(str::to_owned))
    }

    /// Counts a call as in flight until the returned value is dropped.
    pub(super) fn call_begins(&self) -> CallInFlight<'_> {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        CallInFlight(&self.in_flight)
    }

    /// A call got an error from it, which alone does not show whether it can work on others.
    pub(super) fn check_soon(&self) {
        self.check_soon.notify_one();
    }

    /// A call did not reach it: it is unavailable until a health check passes.
    pub(super) async fn mark_unreachable(&self, error: &str) {
        self.log_change(|health| health.call_failed(error));
        self.send_health(false).await;
        self.check_soon.notify_one();
    }

    async fn monitor(self) {
        loop {
            let in_flight_before = self.in_flight.load(Ordering::Relaxed);
            let checked = match self.back_end.health().await {
                Ok(()) => HealthCheck::Healthy,
                Err(error) => error.health_check(),
            };
            let in_flight = in_flight_before.max(self.in_flight.load(Ordering::Relaxed));
            let is_healthy = self.log_change(|health| health.checked(checked, in_flight));
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

    fn update_health<T>(&self, update: impl FnOnce(&mut BackEndHealth) -> T) -> T {
        update(&mut self.health.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Updates whether it is available, and logs a change.
    fn log_change<T>(&self, update: impl FnOnce(&mut BackEndHealth) -> T) -> T {
        let (was_healthy, problem, updated) = self.update_health(|health| {
            let was_healthy = health.problem().is_none();
            let updated = update(health);
            (was_healthy, health.problem().map(str::to_owned), updated)
        });
        let executor = &self.name;
        match problem {
            Some(problem) if was_healthy => {
                tracing::warn!(%executor, "the back end is unavailable and gets no tasks: {problem}");
            }
            None if !was_healthy => tracing::info!(%executor, "the back end is healthy again"),
            _ => {}
        }
        updated
    }
}

#[cfg(test)]
mod tests {
    use hypha_backends::{BackEndSettings, Format};
    use tokio::net::TcpListener;

    use super::*;

    /// As a back end that serves one request at a time: its checks are not answered meanwhile.
    #[tokio::test]
    async fn back_end_that_works_on_a_call_is_alive() {
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", silent.local_addr().unwrap());
        let mut settings = BackEndSettings::new(url, Format::Openai);
        settings.check_timeout = Duration::from_millis(50);
        let (events, mut checks) = mpsc::channel(8);
        let back_end = BackEnd::new(settings).unwrap();
        let monitored = MonitoredBackEnd::start(back_end, 0, "e".parse().unwrap(), &events);
        let call = monitored.call_begins();
        let mut is_healthy = async || match checks.recv().await {
            Some(WorkerInput::HealthChecked(0, is_healthy)) => is_healthy,
            _ => panic!("no health check has ended"),
        };
        assert!(is_healthy().await);
        assert_eq!(monitored.problem(), None);
        drop(call);
        monitored.check_soon();
        assert!(!is_healthy().await, "there is nothing that it could be busy with");
        assert!(monitored.problem().is_some());
    }
}
